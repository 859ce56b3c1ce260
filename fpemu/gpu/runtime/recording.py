"""Record the kernels and fills of a call instead of queueing them, with placeholders for the addresses of its memory.

A recording is what a stream capture is for CUDA, one level higher: the code that queues work runs once, on operands
whose addresses are placeholders, and the packed parameters of its launches become a `fpemu.gpu.runtime.sequence`, whose
placeholders are replaced by the addresses of every later call. Recording is per thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "REGIONS",
    "Fill",
    "NotRecordableError",
    "Recording",
    "active",
    "immediately",
    "placeholder",
    "refuse",
    "region",
    "start",
]

REGIONS = ("A", "B", "C", "D", "work", "zeros", "prepared", "cleared")
"""Memory that a sequence addresses: operands and result of the call, workspace, workspace that is zero before and after
the sequence, an operand prepared in advance, and workspace that the sequence sets to zero at its beginning"""
_SHIFT, _ALIGNED = 44, 40  # bits of a placeholder: its region, the alignment of the region's memory, and an offset
_FIRST = 0x7FFA0  # upper bits of a placeholder: no address, and as fp32 a NaN that nothing else has
_ALIGNMENT = 1024  # bytes, of the buffers in a workspace
_thread = threading.local()


class NotRecordableError(Exception):
    """Work that a recording cannot hold: it synchronises with the host, or reads the GPU's memory."""


@dataclass(frozen=True)
class Fill:
    """Set the bytes of a buffer."""

    pointer: int
    byte: int
    nbytes: int


@dataclass
class Recording:
    """The work queued since `start`.

    Parameters
    ----------
    steps : list
        Launches and fills in their order.
    nbytes : dict of str to int
        Bytes of the workspaces in use.
    counters : dict of str to Counters
        Counters of the operands' faults, in GPU memory that persists.
    work : str
        Region of new buffers: "work" or "prepared".
    """

    steps: list[Any] = field(default_factory=list)
    nbytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REGIONS[4:], 0))
    counters: dict[str, Any] = field(default_factory=dict)
    work: str = "work"

    def allocate(self, nbytes: int, where: str | None = None) -> int:
        """Return the placeholder of a buffer in a workspace."""
        if where is None or (where == "cleared" and self.work == "prepared"):
            where = self.work
        start = self.nbytes[where]
        self.nbytes[where] = start + -(-max(nbytes, 16) // _ALIGNMENT) * _ALIGNMENT
        return placeholder(where, start)


def placeholder(where: str, offset: int = 0, alignment: int = 0) -> int:
    """Return the number that stands for an address in a region.

    Parameters
    ----------
    where : str
        Region.
    offset : int
        Bytes from the address of the region, up to 2^40.
    alignment : int
        Address of the region modulo 16, which the placeholder at offset 0 has too.

    Examples
    --------
    >>> hex(placeholder("B", 8)), region(placeholder("B", 8)), region(4096)
    ('0x7ffa100000000008', (1, 8), None)
    >>> placeholder("B", alignment=12) % 16, region(placeholder("B", 8, 12))
    (12, (1, 8))
    """
    return (_FIRST + REGIONS.index(where) << _SHIFT) + (alignment << _ALIGNED) + alignment + offset


def region(value: int) -> tuple[int, int] | None:
    """Return the index of a placeholder's region and its offset there; None for any other number."""
    index = (value >> _SHIFT) - _FIRST
    if not 0 <= index < len(REGIONS):
        return None
    return index, (value & (1 << _ALIGNED) - 1) - (value >> _ALIGNED & 15)


def active() -> Recording | None:
    """Return the recording of this thread."""
    return getattr(_thread, "recording", None)


def refuse(what: str) -> None:
    """Raise NotRecordableError while work is recorded."""
    if active() is not None:
        raise NotRecordableError(what)


@contextmanager
def start(work: str = "work") -> Iterator[Recording]:
    """Record the work that this thread queues within; new buffers lie in the region `work`."""
    before = active()
    _thread.recording = recording = Recording(work=work)
    try:
        yield recording
    finally:
        _thread.recording = before


@contextmanager
def immediately() -> Iterator[None]:
    """Run what this thread queues within, also during a recording: constants that a sequence reads."""
    before = active()
    _thread.recording = None
    try:
        yield
    finally:
        _thread.recording = before
