"""Algorithm 3 of Mukunoki et al. (2020) on the GPU: the number of slices, by sums in NumPy's order.

NumPy sums the n terms of a row pairwise: up to 128 terms by eight interleaved accumulators, more terms as the sum of
the first half (rounded down to a multiple of 8) and of the second. The order depends on n alone, so the sums here have
the same bits, and every comparison the same result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.errorfree.machine import Workspace, int32
from fpemu.gpu.errorfree.operands import RULES, Loaded, Rows, Span, Splitting, load, most_shared, padded
from fpemu.gpu.runtime.properties import multiprocessors
from fpemu.schemes.ozimmu import Ozimmu

_LEAF = 128
_BLOCKS = 4  # thread blocks per multiprocessor


class Pairing(NamedTuple):
    """A pairwise sum: leaves, then merges of two of them (the second into the first), by levels."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    merges: tuple[tuple[int, int], ...]
    levels: tuple[int, ...]


@lru_cache(maxsize=64)
def pairing(n: int) -> Pairing:
    """Return NumPy's order for n terms.

    Examples
    --------
    >>> pairing(300).sizes, pairing(300).merges, pairing(300).levels
    ((72, 72, 72, 84), ((0, 1), (2, 3), (0, 2)), (0, 2, 3))
    """
    leaves: list[tuple[int, int]] = []
    merges: list[list[tuple[int, int]]] = []

    def node(start: int, size: int) -> tuple[int, int]:
        if size <= _LEAF:
            leaves.append((start, size))
            return len(leaves) - 1, 0
        half = size // 2 - size // 2 % 8
        (left, below), (right, beside) = node(start, half), node(start + half, size - half)
        level = max(below, beside)
        merges.extend([] for _ in range(level + 1 - len(merges)))
        merges[level].append((left, right))
        return left, level + 1

    node(0, n)
    levels = np.cumsum([0, *(len(level) for level in merges)]).tolist()
    return Pairing(
        tuple(s for s, _ in leaves),
        tuple(n for _, n in leaves),
        tuple(m for level in merges for m in level),
        tuple(levels),
    )


PLAN = np.dtype(
    [("starts", "u8"), ("sizes", "u8"), ("merges", "u8"), ("levels", "u8"), ("pieces", "i4"), ("depth", "i4")]
)


def _plan(work: Workspace, n: int) -> tuple[NDArray[Any], int]:
    """Return the pairing of n terms as a kernel argument, and its bytes of shared memory."""
    most = most_shared()
    how = pairing(n) if 8 * (n // _LEAF) <= most else None  # the recursion of a much longer sum takes minutes
    if how is None or (shared := 8 * padded(len(how.sizes), 2)) > most:
        raise InputError(
            f"ozaki: the partial sums of {n} terms for Algorithm 3 exceed the {most} bytes of shared memory that a "
            "thread block of this GPU has: give the number of slices (slices=), or take mode='CR'"
        )
    parts = [np.array(x, np.int32).reshape(-1) for x in (how.starts, how.sizes, how.merges, how.levels)]
    table = work.table(np.concatenate(parts))  # one table: a later one may free those before it
    ends = np.cumsum([0, *(part.nbytes for part in parts)]).tolist()
    tables = [table.pointer + at for at in ends[:-1]]
    return np.array([(*tables, len(how.sizes), len(how.levels) - 1)], PLAN), shared


def row_sums(work: Workspace, X: Loaded, top: int, name: str) -> int:
    """Queue |X| e / 2^top; return the address of (rows,) doubles."""
    plan, shared = _plan(work, X.K)
    sums = work.get(f"sums of {name}", 8 * X.rows)
    row = (X.pointer, X.pitch, *int32(X.rows, top), plan, sums)
    work.launch("counting.cu", "row_sums", min(X.rows, 1 << 16), 256, *row, shared=shared)
    return sums.pointer


def needed(work: Workspace, X: Rows, span: Span, other: Rows, top: int, how: Splitting, u: float, printed: bool) -> int:
    """Return Algorithm 3's d for the rows of X and the other operand, largest entry 2^top; waits for the GPU."""
    K, rows, name = X.loaded.K, X.loaded.rows, X.name
    weights = row_sums(work, load(work, other.operand.transposed, "the other transposed"), top, name)
    plan, shared = _plan(work, K)
    factor = 2 * np.sqrt(K) * u
    doubles = shared + 8 * (K + K // _LEAF * 8 + 8)
    count = 53 // how.bits + 4  # suffices for an accuracy of 53 bits in most cases
    while True:
        failed = work.zeros(f"failed of {name}", 4 * count)
        rule = int32(how.bits, RULES[how.rule], how.room, printed)
        row = (*X.arguments, weights, *rule, np.float64(factor), *int32(count), plan)
        if span.moderate and doubles <= most_shared():
            grid = min(rows, 1 << 16)
            work.launch("counting.cu", "criterion_doubles", grid, 512, *row, failed, shared=doubles)
        else:
            blocks = _BLOCKS * multiprocessors()
            scratch = work.get("terms", blocks * 18 * padded(K, 8))
            work.launch("counting.cu", "criterion", min(rows, blocks), 256, *row, scratch, failed, shared=shared)
        good = np.flatnonzero(failed.array(count, np.int32)[2:] == 0)
        if len(good):
            return int(good[0]) + 2
        count *= 4


_BINS = 4096  # fp64 spans 2098 bits, a significand 53


def bits_needed(work: Workspace, X: Rows, how: Splitting, precision: int) -> NDArray[np.int64]:
    """Return the number of entries of X that need 0, 1, 2 ... bits below the top of their row; waits for the GPU."""
    counts = work.zeros("bits needed", 8 * _BINS)
    row = (X.loaded.pointer, X.loaded.pitch, *int32(X.loaded.rows, X.loaded.K, how.room, how.headroom, precision))
    blocks = min(X.loaded.rows, _BLOCKS * multiprocessors())
    work.launch("slices.cu", "bits_needed", blocks, 256, *row, counts)
    return counts.array(_BINS, np.int64)


def automatic(sides: Iterable[NDArray[np.int64]], scheme: Ozimmu, bits: int) -> int:
    """Return the smallest number of slices that loses at most `loss` bits per entry on average."""
    counts = sum(sides, np.zeros(_BINS, np.int64))
    sizes = np.arange(_BINS)
    most = max(1, -(-int(sizes[counts > 0].max(initial=0)) // bits))
    allowed = scheme.loss * int(counts.sum())

    def enough(s: int) -> bool:
        return int((np.maximum(sizes - s * bits, 0) * counts).sum()) <= allowed

    return most if scheme.loss == 0 else bisect_left(range(1, most), True, key=enough) + 1
