"""Counts of operand entries out of range, kept on the GPU until the host reads them: deferred errors.

The kernels that split an operand add to its counters. No call reads them unless its overflow policy is "raise": `check`
reads them all, and so does a copy of a result to the host (`matrices.Array.get`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.runtime import device, recording
from fpemu.gpu.runtime.device import Buffer

__all__ = ["NONE", "Counters", "check", "counters", "defer"]

_SLOTS, _WORDS = 1024, 4  # counters of one allocation; 64-bit words of each


class Counters:
    """Counters of one operand in memory of the GPU, zero at first.

    The words are the number of entries that are NaN or infinite, the number of entries with a word that overflows, and
    for both the complement of the index of the first such entry in the operand (0: not recorded).

    Parameters
    ----------
    name : str
        Operand.
    """

    nbytes = 8 * _WORDS

    def __init__(self, name: str) -> None:
        self.name, self.entry = name, _take()
        self.pointer = self.entry.buffer.pointer + self.entry.slot * self.nbytes

    def fill(self, byte: int) -> None:
        """Do nothing: the counts are kept over the calls of a recording."""

    def label(self, call: str, shape: tuple[int, ...], refused: tuple[bool, bool]) -> None:
        """Describe the operand for messages; refused: whether `check` raises for NaN and Inf, and for overflow."""
        self.entry.text, self.entry.shape, self.entry.refused = f"{self.name} of {call}", shape, refused

    def read(self) -> tuple[int, int]:
        """Return both numbers of entries and set them to zero, after all queued work."""
        words = device.fetch(self.pointer, _WORDS, np.uint64)
        if words.any():
            device.zero(self.pointer, self.nbytes)
        return int(words[0]), int(words[1])

    def __del__(self) -> None:
        self.entry.dropped = True


def counters(name: str) -> Any:
    """Return the counters of an operand in the recording of this thread.

    Those of an operand that is prepared in advance lie in its own memory, because its rows keep their NaN and Inf.
    """
    record = recording.active()
    assert record is not None
    if record.work == "prepared":
        return Buffer(Counters.nbytes)
    if name not in record.counters:
        record.counters[name] = Counters(name)
    return record.counters[name]


NONE: Any = SimpleNamespace(pointer=0, nbytes=0, fill=lambda byte: None)
"""No counters"""


@dataclass(eq=False)
class _Entry:
    """Counters of a pool, which outlive their owner until `check` has read them."""

    buffer: Buffer
    slot: int
    text: str = ""
    shape: tuple[int, ...] = ()
    refused: tuple[bool, bool] = (False, False)
    dropped: bool = False


_pools: list[Buffer] = []
_entries: list[_Entry] = []
_free: list[tuple[Buffer, int]] = []
_messages: list[str] = []  # deferred by calls that have synchronised


def _take() -> _Entry:
    if not _free:
        with recording.immediately():
            _pools.append(Buffer.zeroed(8 * _WORDS * _SLOTS))
        _free.extend((_pools[-1], slot) for slot in reversed(range(_SLOTS)))
    _entries.append(_Entry(*_free.pop()))
    return _entries[-1]


def defer(message: str) -> None:
    """Let the next `check` raise a message."""
    _messages.append(message)


def check() -> None:
    """Raise the range errors that calls have deferred, after all queued work.

    Calls of `fpemu.gpu.gemm` and of plans on arrays of the GPU do not wait for the GPU: they count the entries of A and
    B that are NaN or infinite, or that overflow a word, on the GPU. This function reads the counts. It raises for the
    first operand that has any, sets all counts to zero, and leaves the results as they are: those that
    ``on_range="propagate"`` defines.

    Raises
    ------
    InputError
        Operand, number of entries and index of the first.
    GpuError
        A failed kernel.
    """
    messages = _messages.copy()
    _messages.clear()
    if _entries:
        counts = {id(pool): device.fetch(pool.pointer, (_SLOTS, _WORDS), np.uint64) for pool in _pools}
        for pool in _pools:
            if counts[id(pool)].any():
                device.zero(pool.pointer, pool.nbytes)
        for entry in _entries.copy():
            words = counts[id(entry.buffer)][entry.slot]
            if message := _message(entry, words.tolist()):
                messages.append(message)
            if entry.dropped:
                _entries.remove(entry)
                _free.append((entry.buffer, entry.slot))
    if messages:
        more = f" (and {len(messages) - 1} other operands)" if len(messages) > 1 else ""
        raise InputError(messages[0] + more)


def _message(entry: _Entry, words: list[int]) -> str:
    """The error for an operand; empty if it has none."""
    parts = []
    for count, place, refused, what in zip(
        words[:2], words[2:], entry.refused, ("NaN or infinite", "beyond their words"), strict=True
    ):
        if count and refused:
            noun = "entry" if count == 1 else "entries"
            where = f", first at {_index((1 << 64) - 1 - place, entry.shape)}" if place else ""
            parts.append(f"{what}: {count} {noun}{where}")
    if not parts:
        return ""
    return f"{entry.text}: {'; '.join(parts)}, since the last check; on_range='raise' checks every call"


def _index(flat: int, shape: tuple[int, ...]) -> list[int]:
    return [int(i) for i in np.unravel_index(flat, shape)]
