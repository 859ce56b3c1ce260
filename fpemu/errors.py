"""Errors for the user: each message is one line that states what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """A wrong argument or input file. The command line prints it as one line and exits with status 2."""


class GuaranteeError(ArithmeticError):
    """A condition on which an error-free scheme rests does not hold for these operands.

    The command line prints it as one line and exits with status 1: the check failed, the command was right.
    """


class GpuError(RuntimeError):
    """A GPU that cannot be used, or a run on it that failed. The command line prints it as one line, exit status 1."""


_EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "matplotlib": "plots",
    "pandas": "plots",
    "distributed": "dask",
    "pyarrow": "parquet",
    "jupytext": "lab",
    "nbclient": "lab",
}


def require(*packages: str) -> None:
    """Raise InputError if a package of an optional extra is not installed, with the command that installs it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing_package(package)


def missing_package(package: str) -> InputError:
    """Make the error for a package that is not installed: the message names the extra that requires it."""
    extra = _EXTRAS.get(package)
    install = f"fpemu[{extra}]" if extra else package
    return InputError(f"the package {package} is not installed: pip install '{install}'")


def shown(value: object, most: int = 60) -> str:
    """A value for a message: one line, cut to ``most`` characters.

    >>> shown([1, 2]), shown(10**100, 12)
    ('[1, 2]', '100000000...')
    """
    try:
        text = " ".join(repr(str(value) if isinstance(value, str) else value).split())
    except Exception:  # integers of thousands of digits have no text, and an object's __repr__ may raise anything
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def unknown_name(kind: str, name: object, known: Iterable[str], listed: Iterable[str] | None = None) -> InputError:
    """Make the error for an unknown name: it shows the nearest of the ``known`` and all ``listed`` (default: known).

    More than 40 names are listed only if none of them is near.

    >>> str(unknown_name("scheme", "otomo", ["ootomo", "markidis"]))
    "unknown scheme 'otomo': did you mean 'ootomo'? known: markidis, ootomo"
    """
    names = {n.lower(): n for n in sorted(known)}
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.55) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(repr(names[n]) for n in near)}? " if near else ""
    listed = sorted(listed or names.values())
    rest = "" if hint and len(listed) > 40 else f"known: {', '.join(listed)}"
    return InputError(f"unknown {kind} {shown(name)}: {hint}{rest}".rstrip())


def entries(mask: Any, values: Any) -> str:
    """Count the True entries of ``mask`` and show the first: "3 of 64 entries, first at [0, 5]: 70000.0"."""
    import numpy as np

    mask = np.asarray(mask)
    values = np.broadcast_to(np.asarray(values), mask.shape)
    count = int(np.count_nonzero(mask))
    place = np.unravel_index(int(np.argmax(mask)), mask.shape)
    where = f"at {[int(i) for i in place]}: " if mask.ndim else ""
    noun = "entry" if mask.size == 1 else "entries"
    return f"{count} of {mask.size} {noun}, first {where}{values[place]!s}"
