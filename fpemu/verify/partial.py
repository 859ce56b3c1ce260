"""What a verification has found so far, in a file beside its record, from which the same command goes on.

The file is written anew after each part, by one rename; it is gone once the record is there. Its parts count only for a
run that would find the same: what they depend on is kept with them, and a digest of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fpemu
from fpemu.files import write_atomic
from fpemu.gpu.runtime import device
from fpemu.verify import kernelrecord, records

_TEXTS = (".py", ".cu", ".cuh", ".toml")


class Partial:
    """The parts of a record that is being made.

    Parameters
    ----------
    record : str or path, optional
        The file that the record is to be; None: nothing is kept.
    about : dict
        What the parts depend on (`about`), as JSON has it.
    names : sequence of str
        Of all parts.
    fresh : bool
        Whether to begin anew, whatever was kept.

    Attributes
    ----------
    path : Path or None
        The file of the parts: the record's name and ``.partial``.
    parts : dict
        By name, as JSON has them; at first what an interrupted run with the same `about` has kept.
    """

    def __init__(
        self, record: str | Path | None, about: dict[str, Any], names: Sequence[str], *, fresh: bool = False
    ) -> None:
        self.record = None if record is None else Path(record)
        self.path = None if record is None else Path(f"{record}.partial")
        self.about = about
        self.fresh = fresh
        self.names = names
        before = {} if self.path is None or fresh else _recalled(self.path, about)
        self.parts: dict[str, Any] = {name: before[name] for name in names if name in before}

    def keep(self, name: str, part: Any) -> None:
        """Add a part, on disk before this returns.

        Raises
        ------
        OSError
            If the file cannot be written; what it held is still there.
        """
        if self.path is not None:
            self.parts[name] = part
            told = {"about": self.about, "digest": _digest(self.parts), "parts": self.parts}
            write_atomic(self.path, json.dumps(told).encode())

    def finish(self, content: bytes) -> None:
        """Write the record, then remove the parts.

        Raises
        ------
        OSError
            If the record cannot be written; the parts are still there.
        """
        if self.record is not None and self.path is not None:
            write_atomic(self.record, content)
            self.path.unlink(missing_ok=True)

    def __str__(self) -> str:
        return f"{len(self.parts)} of {len(self.names)} parts are kept in {self.path}"

    def interrupted(self) -> str:
        """In one line what is kept, where, and how to go on."""
        if not self.parts:
            return "interrupted; nothing is kept" + (" without --record" if self.path is None else " yet")
        again = "the same command without --fresh" if self.fresh else "the same command"
        return f"interrupted; {self}, and {again} goes on from there"


def about(rooms: Sequence[str], **asked: Any) -> dict[str, Any]:
    """What the parts of a verification depend on: the GPU, its driver and compiler, the code, and what was asked for.

    Parameters
    ----------
    rooms : sequence of str
        Folders of the package whose code decides, besides `kernelrecord.code`'s.
    **asked
        The seed and other arguments, as JSON has them.
    """
    told = {**device.describe(), "driver": records.driver()}
    return {"fpemu": fpemu.__version__, "code": code(rooms), "device": told, **asked}


def code(rooms: Sequence[str]) -> str:
    """A digest of the kernels, of what they are compared with, and of some rooms."""
    root, found = Path(fpemu.__file__).parent, hashlib.sha256(kernelrecord.code().encode())
    for file in sorted(f for room in rooms for f in (root / room).rglob("*") if f.suffix in _TEXTS):
        found.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _recalled(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The parts in a file; none if it cannot be read, is of another run, or was changed by somebody."""
    try:
        told = json.loads(path.read_bytes())
        same = told["about"] == about and told["digest"] == _digest(told["parts"])
        return dict(told["parts"]) if same else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
