"""What a user sees when an argument is wrong: one line that names what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np


class InputError(ValueError):
    """A wrong argument or input file. The command line prints it as one line and exits with status 2."""


class GuaranteeError(ArithmeticError):
    """A condition on which an error-free scheme rests does not hold for these operands. The command line prints it as
    one line and exits with status 1: the check failed, the command was right."""


class GpuError(RuntimeError):
    """A GPU that cannot be used, or a run on it that failed. The command line prints it as one line, exit status 1."""


def unknown_name(kind: str, name: object, known: Iterable[str], shown: Iterable[str] | None = None) -> InputError:
    """The error for a name that is not known, with the nearest of the ``known`` and the list of those ``shown``.

    >>> str(unknown_name("scheme", "otomo", ["ootomo", "markidis"]))
    "unknown scheme 'otomo': did you mean 'ootomo'? known: markidis, ootomo"
    """
    names = {n.lower(): n for n in sorted(known)}
    near = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.55)
    hint = f"did you mean {' or '.join(repr(names[n]) for n in near)}? " if near else ""
    return InputError(f"unknown {kind} {name!r}: {hint}known: {', '.join(sorted(shown or names.values()))}")


def entries(mask: Any, values: Any) -> str:
    """Count the True entries of ``mask`` and show the first: "3 of 64 entries, first at [0, 5]: 70000.0"."""
    mask = np.asarray(mask)
    values = np.broadcast_to(np.asarray(values), mask.shape)
    count = int(np.count_nonzero(mask))
    place = np.unravel_index(int(np.argmax(mask)), mask.shape)
    where = f"at {[int(i) for i in place]}: " if mask.ndim else ""
    noun = "entry" if mask.size == 1 else "entries"
    return f"{count} of {mask.size} {noun}, first {where}{values[place]!s}"
