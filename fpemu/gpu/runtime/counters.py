"""Counters of operand entries out of range, kept on the GPU until the host reads them: deferred errors.

The kernels that split an operand add to the counters of their plan: one slot of a table, one table for each GPU. No
call reads them unless its overflow policy is "raise"; `check` reads all of them, and so does a copy of a result to the
host (`fpemu.gpu.runtime.matrices.Array.get`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from threading import RLock
from typing import NamedTuple

import numpy as np

from fpemu.errors import GpuError, InputError
from fpemu.gpu.runtime import callers, device
from fpemu.gpu.runtime.device import Buffer

_SLOTS, _OPERANDS, _WORDS = 2048, 2, 4  # slots of a table; operands of a slot; 64-bit words of an operand
_MOST = 16  # tables of a GPU
lock = RLock()
"""Held while work of this package is queued, and while its counters are read and set to zero"""
NBYTES = 8 * _WORDS
"""Bytes of the counters of an operand: entries that are NaN or infinite, entries with a word that overflows, and of
either the complement of the smallest index in the operand (row-major), 0 for none"""


class Label(NamedTuple):
    """What the errors say of an operand."""

    text: str  # operand and scheme
    shape: tuple[int, ...]
    refused: tuple[bool, bool] = (True, True)  # whether `check` raises for NaN and Inf, and for overflow

    def refuses(self, counts: tuple[int, int]) -> bool:
        """Return whether these counts of NaN and Inf, and of overflow, are an error."""
        return any(count and refuses for count, refuses in zip(counts, self.refused, strict=True))


class _Table:
    """The counters of one GPU: a buffer with a slot for each plan that runs there."""

    def __init__(self, index: int) -> None:
        self.index, self.labels, self.current = index, list[tuple[Label, ...]](), True
        self.buffer = Buffer(NBYTES * _OPERANDS * _SLOTS)
        device.zero(self.buffer.pointer, self.buffer.nbytes)

    def collect(self) -> list[str]:
        """Return the messages of all slots, after all queued work, and set their counts to zero."""
        with device.entered(self.index):
            device.synchronize()
            words = device.fetch(self.buffer.pointer, (_SLOTS, _OPERANDS, _WORDS), np.uint64)
            if words.any():
                device.zero(self.buffer.pointer, self.buffer.nbytes)
        pairs = (
            (each, label)
            for slot, labels in zip(words, self.labels, strict=False)
            for each, label in zip(slot, labels, strict=False)
        )
        return [text for each, label in pairs if (text := message(label, each.tolist()))]


_tables: dict[tuple[int, bool], list[_Table]] = {}  # by GPU, and whether captured calls count there; the last has room
_messages: list[str] = []  # deferred by calls that have synchronised, or from tables that were emptied


def take(index: int, labels: tuple[Label, ...], *, captured: bool = False) -> tuple[_Table, int]:
    """Return a table and the address of a slot for the operands of a plan; the caller holds the lock of the plans.

    Where all tables are full, they are read, and their plans take new slots. The slots of captured calls are never
    taken again, because a replay of their graphs counts there.
    """
    tables = _tables.setdefault((index, captured), [])
    if len(tables) == _MOST and len(tables[-1].labels) == _SLOTS and not captured and not _capturing(index):
        _retire(tables)
    if not tables or len(tables[-1].labels) == _SLOTS:
        with device.entered(index):
            tables.append(_Table(index))
    table = tables[-1]
    table.labels.append(labels)
    return table, table.buffer.pointer + NBYTES * _OPERANDS * (len(table.labels) - 1)


def _capturing(index: int) -> bool:
    """Return whether torch's current stream is captured: the host must not wait for the GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and device.captures(callers.stream(index))


def read(address: int, stream: int) -> list[tuple[int, int]]:
    """Return both numbers of entries of each operand of a slot, after the work of a stream, and set them to zero."""
    words = device.fetch(address, (_OPERANDS, _WORDS), np.uint64, stream)
    if words.any():
        device.zero(address, words.nbytes)
    return [(int(operand[0]), int(operand[1])) for operand in words]


@contextmanager
def reset_on_failure(address: int, stream: int) -> Iterator[None]:
    """Set the counts of a slot to zero if the work within fails or is interrupted before they are read."""
    try:
        yield
    except BaseException:
        with suppress(GpuError):
            device.synchronize(stream)
            device.zero(address, NBYTES * _OPERANDS)
        raise


def defer(text: str) -> None:
    """Let the next `check` raise a message, unless it is empty."""
    _messages.append(text)


def forget() -> None:
    """Free the tables of calls that are not captured; their messages are kept."""
    for (index, captured), tables in _tables.items():
        if not captured and not _capturing(index):
            _retire(tables)


def _retire(tables: list[_Table]) -> None:
    """Read the counts of tables, whose plans take new slots, and free them."""
    for table in tables:
        _messages.extend(table.collect())
        table.current = False
    tables.clear()


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
    with lock:  # kernels of a call read the counts, so that no call may begin between the wait and the zeros
        collected = [text for tables in _tables.values() for table in tables for text in table.collect()]
        messages = [each for each in (*_messages, *collected) if each]
        _messages.clear()
    if messages:
        more = f" (and {len(messages) - 1} other operands)" if len(messages) > 1 else ""
        raise InputError(messages[0] + more)


def message(label: Label, words: list[int]) -> str:
    """Return the error for an operand by its counters; empty if none of its entries is refused."""
    parts = [
        f"{what}: {count} {'entry' if count == 1 else 'entries'}{_first(place, label.shape)}"
        for count, place, is_refused, what in zip(
            words[:2], words[2:], label.refused, ("NaN or infinite", "beyond their words"), strict=True
        )
        if count and is_refused
    ]
    text = label.text
    return f"{text}: {'; '.join(parts)}, since the last check; on_range='raise' checks every call" if parts else ""


def _first(place: int, shape: tuple[int, ...]) -> str:
    """The first index in words, by its complement in a counter; empty where the counter is 0."""
    index = 2**64 - 1 - place
    if not place or index >= prod(shape):
        return ""
    return f", first at [{', '.join(str(int(i)) for i in np.unravel_index(index, shape))}]"
