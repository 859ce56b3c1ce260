"""Shared memory of the kernel of blocks, as ``batched_block.cuh`` counts it, and what thread blocks may have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fpemu.gpu.batched.task import Task

if TYPE_CHECKING:
    from fpemu.gpu.batched.configuration import Block

SHARED = 227 * 1024
"""Bytes of shared memory that a block may have on Hopper"""
SHARED_BEFORE = {(8, 0): 163 * 1024, (8, 7): 163 * 1024, (8, 6): 99 * 1024, (8, 9): 99 * 1024, (12, 0): 99 * 1024}
"""The same on other GPUs, by compute capability"""
_RESERVED, _BARRIER = 1024, 16  # bytes that each thread block takes besides, and of a buffer's barrier


def shared_bytes(c: Block, task: Task) -> int:
    """Bytes of shared memory of a thread block.

    >>> from fpemu.gpu.batched.configuration import Block
    >>> shared_bytes(Block(block=(64, 64, 64), stages=1), Task(64, 64, 64, width=16))
    18432
    """
    m, n, k = c.block
    total = 0
    more = task.width == 2 and c.direct and not c.flat
    for lines, length in ((m, k) if task.a_along_k else (k, m), (n, k) if task.b_along_k else (k, n)):
        line = task.parts * (length // 8 + more)
        total += lines * (line | 1) * 16
    staged = task.parts * m * (n // 8 | 1) * 16 if c.staged else 0
    buffers = c.stages + c.persistent
    if c.bulk:
        return _bulk_bytes(c, task, total)
    if apart(c, task):
        return c.products * (buffers * _raw(task)[0] + total)
    if c.flat:
        raw, staged = _raw(task)
        total = max(total, raw)
    own = c.persistent and c.stages == 1
    if c.persistent and not own:
        total = max(total, staged)
    return c.products * (buffers * total + staged if own else max(buffers * total, staged))


def _bulk_bytes(c: Block, task: Task, tiles: int) -> int:
    """Of a block whose matrices come by the copy engine: D is apart from the tiles where there is room."""
    *ab, d = _pieces(task)
    fixed = c.stages * (sum(ab) + 48 + _BARRIER)
    own = fixed + tiles + d
    return own if c.resident * (own + _RESERVED) <= SHARED + _RESERVED else fixed + max(tiles, d)


def result_apart(c: Block, task: Task) -> bool:
    """Whether D has memory of its own in a block whose matrices come by the copy engine."""
    return c.bulk and shared_bytes(c, task) > shared_bytes(replace(c, resident=10**6), task)


def apart(c: Block, task: Task) -> bool:
    """Whether a flat kernel has memory for what it copies besides its tiles."""
    m, n, k = c.block
    lines = ((m, k) if task.a_along_k else (k, m), (n, k) if task.b_along_k else (k, n))
    tiles = sum(x * (task.parts * (length // 8) | 1) * 16 for x, length in lines)
    return c.flat and c.products * ((c.stages + c.persistent) * _raw(task)[0] + tiles) <= SHARED


def _raw(task: Task) -> tuple[int, int]:
    """Bytes of A and B, or of D if that is more, as they lie in memory; those of D."""
    a, b, d = _pieces(task)
    return max(a + b + 48, d), d


def _pieces(task: Task) -> tuple[int, int, int]:
    """Bytes of A, B and D in whole pieces of 16, and one piece more."""
    unit = 4 if task.complex else 2
    sides = (task.M, task.K), (task.K, task.N), (task.M, task.N)
    a, b, d = (16 * (-(-x * y * unit // 16) + 1) for x, y in sides)
    return a, b, d
