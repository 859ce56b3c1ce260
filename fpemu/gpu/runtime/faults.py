"""Counts of operand entries out of range, kept on the GPU until the host reads them: deferred errors.

The kernels that split an operand add to its counters. No call reads them unless its overflow policy is "raise": `check`
reads them all, and so does a copy of a result to the host (`matrices.Array.get`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from fpemu.errors import GpuError, InputError
from fpemu.gpu.runtime import callers, device, recording
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.selection import current
from fpemu.gpu.runtime.sequence import lock

__all__ = ["NBYTES", "NONE", "Counters", "check", "counters", "defer", "message", "read", "reset_on_failure"]

_SLOTS, _WORDS = 2048, 4  # counters of one allocation; 64-bit words of each
NBYTES = 8 * _WORDS
"""Bytes of the counters of an operand: entries that are NaN or infinite, entries with a word that overflows, and of
either the complement of the smallest index in the operand (row-major), 0 for none"""


class Counters:
    """Counters of one operand in memory of the GPU, zero at first.

    Parameters
    ----------
    name : str
        Operand.
    """

    nbytes = NBYTES

    def __init__(self, name: str) -> None:
        self.name, self.entry = name, _take()
        self.pointer = self.entry.buffer.pointer + self.entry.slot * self.nbytes

    def fill(self, byte: int) -> None:
        """Do nothing: the counts are kept over the calls of a recording."""

    def label(self, call: str, refused: tuple[bool, bool], shape: tuple[int, ...]) -> None:
        """Describe the operand for messages.

        Parameters
        ----------
        call : str
            Name of the call's scheme.
        refused : (bool, bool)
            Whether `check` raises for NaN and Inf, and for overflow.
        shape : tuple of int
            Shape of the operand.
        """
        self.entry.text, self.entry.refused, self.entry.shape = f"{self.name} of {call}", refused, shape

    def __del__(self) -> None:
        if "entry" in vars(self):  # no memory otherwise
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
    """Counters of a pool, which outlive their owner until `_collect` has read them."""

    buffer: Buffer
    slot: int
    text: str = ""
    refused: tuple[bool, bool] = (False, False)
    shape: tuple[int, ...] = ()
    dropped: bool = False


_pools: list[tuple[int, Buffer]] = []  # with their GPUs
_entries: list[_Entry] = []
_free: dict[int, list[tuple[Buffer, int]]] = {}  # by GPU
_messages: list[str] = []  # deferred by calls that have synchronised, or of counters that have been dropped


def _take() -> _Entry:
    free = _free.setdefault(current(), [])
    if not free and sum(entry.dropped for entry in _entries) >= _SLOTS // 4 and not _capturing():
        with recording.immediately():
            _messages.extend(_collect())
    if not free:
        with recording.immediately():
            pool = Buffer(NBYTES * _SLOTS)
            device.zero(pool.pointer, pool.nbytes)
        _pools.append((current(), pool))
        free.extend((pool, slot) for slot in reversed(range(_SLOTS)))
    _entries.append(_Entry(*free.pop()))
    return _entries[-1]


def _capturing() -> bool:
    """Return whether torch's current stream is captured: the host must not wait for the GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and callers.capturing(callers.stream(current()))


def read(counters: Iterable[Counters], stream: int) -> dict[str, tuple[int, int]]:
    """Return both numbers of entries by operand and set them to zero, after the work queued on a stream.

    The counters of an allocation are read by one copy.
    """
    result: dict[str, tuple[int, int]] = {}
    for _, group in groupby(counters, key=lambda c: c.entry.buffer):
        held = list(group)
        first = min(c.pointer for c in held)
        words = device.fetch(first, (max(c.pointer for c in held) - first) // 8 + _WORDS, np.uint64, stream)
        for c in held:
            at = (c.pointer - first) // 8
            result[c.name] = int(words[at]), int(words[at + 1])
            if any(result[c.name]):
                device.zero(c.pointer, c.nbytes)
    return result


@contextmanager
def reset_on_failure(counters: Iterable[Counters], stream: int) -> Iterator[None]:
    """Set counters to zero if the work within, on a stream, fails or is interrupted before their counts are read."""
    try:
        yield
    except BaseException:
        with suppress(GpuError):
            device.synchronize(stream)
            for c in counters:
                device.zero(c.pointer, c.nbytes)
        raise


def defer(text: str) -> None:
    """Let the next `check` raise a message, unless it is empty."""
    _messages.append(text)


def check() -> None:
    """Raise the range errors that calls have deferred, after all queued work.

    Calls of `fpemu.gpu.gemm` and of plans on arrays of the GPU do not wait for the GPU: they count the entries of A and
    B that are NaN or infinite, or that overflow a word, on the GPU. This function reads the counts. It raises for the
    first operand that has any, sets all counts to zero, and leaves the results as they are: those that
    ``on_range="propagate"`` defines. It waits for the whole GPU and invalidates every capture there, as
    ``torch.cuda.synchronize`` does.

    Raises
    ------
    InputError
        Operand, number of entries, and index of the first: the smallest index of all calls since the last check.
    GpuError
        A failed kernel.
    """
    with lock:
        messages = [*_messages, *_collect()]
        _messages.clear()
    messages = [each for each in messages if each]
    if messages:
        more = f" (and {len(messages) - 1} other operands)" if len(messages) > 1 else ""
        raise InputError(messages[0] + more)


def _collect() -> list[str]:
    """Return the messages of all counters, after all queued work, set them to zero, and free those of no owner."""
    messages, counts = [], {}
    for index, pool in _pools:
        with device.entered(index):
            device.synchronize()
            words = counts[id(pool)] = device.fetch(pool.pointer, (_SLOTS, _WORDS), np.uint64)
            if words.any():
                device.zero(pool.pointer, pool.nbytes)
    pools = {id(pool): index for index, pool in _pools}
    for entry in _entries.copy():
        words = counts[id(entry.buffer)][entry.slot].tolist()
        messages.append(message(entry.text, entry.shape, words, entry.refused))
        if entry.dropped:
            _entries.remove(entry)
            _free[pools[id(entry.buffer)]].append((entry.buffer, entry.slot))
    return [each for each in messages if each]


def message(text: str, shape: tuple[int, ...], words: list[int], refused: tuple[bool, bool] = (True, True)) -> str:
    """Return the error for an operand by its counters; empty if none of its entries is refused.

    Parameters
    ----------
    text : str
        Operand and call.
    shape : tuple of int
        Shape of the operand.
    words : list of int
        Counters.
    refused : (bool, bool)
        As in `Counters.label`.
    """
    parts = [
        f"{what}: {count} {'entry' if count == 1 else 'entries'}{_first(place, shape)}"
        for count, place, is_refused, what in zip(
            words[:2], words[2:], refused, ("NaN or infinite", "beyond their words"), strict=True
        )
        if count and is_refused
    ]
    return f"{text}: {'; '.join(parts)}, since the last check; on_range='raise' checks every call" if parts else ""


def _first(place: int, shape: tuple[int, ...]) -> str:
    """The first index in words, by its complement in a counter; empty where the counter is 0."""
    index = 2**64 - 1 - place
    if not place or index >= prod(shape):
        return ""
    return f", first at [{', '.join(str(int(i)) for i in np.unravel_index(index, shape))}]"
