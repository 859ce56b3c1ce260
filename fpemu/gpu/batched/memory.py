"""Shared memory of the kernel of thread blocks, with the formulas of ``batched_block.cuh``, and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpemu.gpu.batched.task import Task

if TYPE_CHECKING:
    from fpemu.gpu.batched.configuration import Block

SHARED = 227 * 1024
"""Largest shared memory of a thread block on Hopper, bytes"""
SHARED_BEFORE = {(8, 0): 163 * 1024, (8, 7): 163 * 1024, (8, 6): 99 * 1024, (8, 9): 99 * 1024, (12, 0): 99 * 1024}
"""The same on other GPUs, by compute capability"""
_RESERVED, _BARRIER = 1024, 16  # bytes reserved for each thread block, and bytes of a buffer's barrier


def shared_bytes(c: Block, task: Task) -> int:
    """Return the shared memory of a thread block in bytes.

    >>> from fpemu.gpu.batched.configuration import Block
    >>> shared_bytes(Block(block=(64, 64, 64), stages=1), Task(64, 64, 64, width=16))
    18432
    """
    if c.bulk:
        return _bulk(c, task)[0]
    total = _tiles(c, task)
    staged = task.parts * c.block[0] * (c.block[1] // 8 | 1) * 16 if c.staged else 0
    buffers = c.stages + c.persistent
    if apart(c, task):
        return c.products * (buffers * _raw(task)[0] + total)
    if c.flat:
        raw, staged = _raw(task)
        total = max(total, raw)
    result_separate = c.persistent and c.stages == 1
    if c.persistent and not result_separate:
        total = max(total, staged)
    return c.products * (buffers * total + staged if result_separate else max(buffers * total, staged))


def result_apart(c: Block, task: Task) -> bool:
    """Whether D and the tiles have separate memory in a thread block with bulk copies."""
    return c.bulk and _bulk(c, task)[1]


def _bulk(c: Block, task: Task) -> tuple[int, bool]:
    """Bytes of a thread block with bulk copies, and whether D and the tiles have separate memory."""
    *ab, d = _matrix_bytes(task)
    tiles, fixed = _tiles(c, task), c.stages * (sum(ab) + 48 + _BARRIER)
    separate = fixed + tiles + d
    if c.resident * (separate + _RESERVED) <= SHARED + _RESERVED:
        return separate, True
    return fixed + max(tiles, d), False


def apart(c: Block, task: Task) -> bool:
    """Whether the copied matrices of a flat kernel and its tiles have separate memory."""
    return c.flat and c.products * ((c.stages + c.persistent) * _raw(task)[0] + _tiles(c, task)) <= SHARED


def _tiles(c: Block, task: Task) -> int:
    """Bytes of a tile of A and one of B."""
    m, n, k = c.block
    padding = task.width == 2 and c.direct and not c.flat
    total = 0
    for lines, length in ((m, k) if task.a_along_k else (k, m), (n, k) if task.b_along_k else (k, n)):
        total += lines * (task.parts * (length // 8 + padding) | 1) * 16
    return total


def _raw(task: Task) -> tuple[int, int]:
    """Bytes of A and B together, or of D if that is more, without rearrangement; bytes of D."""
    a, b, d = _matrix_bytes(task)
    return max(a + b + 48, d), d


def _matrix_bytes(task: Task) -> tuple[int, int, int]:
    """Bytes of A, B and D, rounded up to multiples of 16 and increased by 16."""
    unit = 4 if task.complex else 2
    sides = (task.M, task.K), (task.K, task.N), (task.M, task.N)
    a, b, d = (16 * (-(-x * y * unit // 16) + 1) for x, y in sides)
    return a, b, d
