"""Compiled chains of multiply-adds in any format and rounding; `fpemu.simt.rounded` is the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu._system import map_tasks
from fpemu.compiled.bits import bits_of_f64, f64_of_bits, mixed
from fpemu.compiled.cache import saved
from fpemu.compiled.rounding import _SIGN, _round, _tuple, parameters
from fpemu.formats import FloatFormat

_SMALL = 2**16  # multiply-adds of a task
_WIDTH = 512  # columns at a time: their accumulators, 4 KB, stay in the first-level cache


@njit(nogil=True, error_model="numpy", inline="always")
def _sum_to_odd(p: float, c: float, ways: Any, directed: Any) -> int:
    """Return the pattern of p + c rounded to odd at 53 bits; in RD an exact zero sum is -0."""
    s = p + c
    v = s - p
    error = (p - (s - v)) + (c - v)
    bits, low = bits_of_f64(s), bits_of_f64(error)
    # an even s moves one unit toward the error: away from zero if they have one sign
    even = (bits & 1) - 1
    move = (np.int64(1) | ((low ^ bits) >> 63)) & even if error != 0 else np.int64(0)
    if len(directed):
        bits |= (bits_of_f64(p) | bits_of_f64(c)) & _SIGN & (ways[9] & ~ways[8]) if s == 0 else np.int64(0)
    return bits + move


@njit(nogil=True, error_model="numpy", inline="always")
def _finite_to_odd(p: float, c: float, ways: Any, directed: Any) -> int:
    """Return `_sum_to_odd`, or the pattern of p + c if it is NaN or infinite."""
    s = p + c
    return _sum_to_odd(p, c, ways, directed) if abs(s) < np.inf else bits_of_f64(s)


@njit(nogil=True, error_model="numpy", inline="always")
def _round_normal(b: int, p: Any, word: int, directed: Any) -> Any:
    """Return `_round` of a zero or a number whose result is normal, as a pattern; negative second: it is neither."""
    _, width, lowest, fraction, hidden, flip, half, nearest, up, down = p[0]
    even, tie, _, _, _, largest, _, _, _, _ = p[1]
    m = b & ~_SIGN
    rest = (np.int64(1) << width) - 1  # the same shift for all numbers, which the compiler vectorises
    odd = (((m & fraction | hidden) >> width) ^ flip) & 1
    step = ((rest + half) >> 1 & nearest) + (odd & tie)
    if len(directed):
        step += rest & (down if b < 0 else up) & ((odd - 1) | even)
    t = (m + step + (word >> (63 - width))) & ~rest
    return t | (b & _SIGN), ((m - (lowest << 52)) & -m) | (largest - t)


@njit(nogil=True, error_model="numpy", inline="always")
def _word(index: int, random: Any) -> int:
    """Return `fpemu.rounding.stochastic_words` of an index with the first bit below the sign bit; 0 without SR."""
    start, drop, stochastic = random
    if len(stochastic) == 0:
        return np.int64(0)
    return np.int64((mixed(start, index) >> drop) << (drop - np.uint64(1)))


@njit(nogil=True, error_model="numpy")
def _step(x: float, b: Any, acc: Any, new: Any, at: Any, random: Any, p: Any, fused: Any, directed: Any) -> int:
    """Write acc + x b to `new`; a negative result: an operand or a result is not normal, and `_careful_step` is due."""
    p, special, (index, by_column, by_rounding) = _tuple(p), np.int64(0), at
    for j in range(len(acc)):
        product, entry = x * b[j], index + np.uint64(j) * by_column
        if len(fused) == 0:
            t, beyond = _round_normal(bits_of_f64(product), p, _word(entry, random), directed)
            special |= beyond
            product = f64_of_bits(t)
            entry += by_rounding
        t, beyond = _round_normal(_sum_to_odd(product, acc[j], p[0], directed), p, _word(entry, random), directed)
        special |= beyond
        new[j] = f64_of_bits(t)
    return special


@njit(nogil=True, error_model="numpy")
def _careful_step(
    x: float, b: Any, acc: Any, new: Any, at: Any, random: Any, p: Any, fused: Any, directed: Any
) -> bool:
    """Write acc + x b to `new`, for all numbers; whether a NaN or an overflow occurred."""
    p, flagged, (index, by_column, by_rounding) = _tuple(p), False, at
    for j in range(len(acc)):
        product, entry = x * b[j], index + np.uint64(j) * by_column
        if len(fused) == 0:
            t, sign, beyond = _round(bits_of_f64(product), p, _word(entry, random))
            flagged |= beyond
            product = f64_of_bits(t | sign)
            entry += by_rounding
        t, sign, beyond = _round(_finite_to_odd(product, acc[j], p[0], directed), p, _word(entry, random))
        flagged |= beyond
        new[j] = f64_of_bits(t | sign)
    return flagged


@saved
@njit(nogil=True, error_model="numpy")
def _chain(
    A: Any, B: Any, D: Any, rows: Any, columns: Any, ks: Any, index: Any, random: Any, p: Any, fused: Any, directed: Any
) -> bool:
    """Add the products of ks to D (rows, columns); an empty tuple `fused`: each product is rounded before.

    `index` has the indices of the words: of the first rounding of entry (0, 0), and the steps from a row, a column, and
    a rounding to the next.
    """
    first, by_row, by_column, by_rounding = index
    count, flagged, minus_zero = columns[1] - columns[0], False, p[19]
    acc, new = np.empty(count), np.empty(count)
    for i in range(rows[0], rows[1]):
        acc[:] = D[i, columns[0] : columns[1]]
        start = first + np.uint64(i) * by_row + np.uint64(columns[0]) * by_column
        for k in range(ks[0], ks[1]):
            x, b, at = A[i, k], B[k, columns[0] : columns[1]], (start, by_column, by_rounding)
            if _step(x, b, acc, new, at, random, p, fused, directed) < 0 or minus_zero == 0:
                flagged |= _careful_step(x, b, acc, new, at, random, p, fused, directed)
            acc, new = new, acc
            start += by_rounding * np.uint64(1 if len(fused) else 2)
        D[i, columns[0] : columns[1]] = acc
    return flagged


def chain(
    A: NDArray[Any],
    B: NDArray[Any],
    D: NDArray[np.float64],
    ks: tuple[int, int],
    fmt: FloatFormat,
    mode: str,
    saturate: bool,
    fused: bool,
    index: tuple[int, int, int, int],
    start: np.uint64,
    bits: int,
) -> bool:
    """Add the products of ks of A (M, K) and B (K, N) to D (M, N) in place; whether a NaN or an overflow occurred.

    `bits` random bits of SR, 1 to 63; `start` is the mixed seed.
    """
    p, directed = parameters(fmt, mode, saturate), (0,) if mode in ("RU", "RD", "ODD") else ()
    words = tuple(np.uint64(i) for i in index)
    random = (start, np.uint64(64 - bits), (0,) if mode == "SR" else ())
    M, N = D.shape
    height = max(1, _SMALL // max(1, min(N, _WIDTH) * (ks[1] - ks[0])))
    tasks = [
        ((i, min(i + height, M)), (j, min(j + _WIDTH, N))) for j in range(0, N, _WIDTH) for i in range(0, M, height)
    ]
    kind = (0,) if fused else ()
    return (
        any(map_tasks(lambda t: _chain(A, B, D, *t, ks, words, random, p, kind, directed), tasks)) if tasks else False
    )
