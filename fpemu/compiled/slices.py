"""Compiled steps of the exact product by slices; `fpemu.reference.slices` is the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu._system import map_blocks, map_tasks
from fpemu.compiled.bits import bits_of_f64, power
from fpemu.compiled.cache import saved
from fpemu.compiled.rounding import _FRACTION, _SIGN
from fpemu.formats import FloatFormat

_HUGE = np.int64(1 << 20)
_BLOCK = 1 << 16  # entries of a task


@njit(nogil=True, error_model="numpy", inline="always")
def _exponent(x: int) -> int:
    """Return the binary exponent of a positive integer up to 2^53."""
    return (bits_of_f64(np.float64(x)) >> 52) - 1023


@njit(nogil=True, error_model="numpy", inline="always")
def _bit_length(x: int) -> int:
    """Return the bit length of an integer from 0 to 2^63 - 1."""
    upper = x >> 32
    length = _exponent(upper) + 33 if upper > 0 else _exponent(x) + 1
    return length if x > 0 else np.int64(0)


@saved
@njit(nogil=True, error_model="numpy")
def _spans(X: Any, low: Any, top: Any, by_row: bool) -> None:
    """Write the exponents of the last bit and of the magnitude's bound over each row, or each column, of X."""
    low[:], top[:] = _HUGE, -_HUGE
    for i in range(X.shape[0]):
        least, most = _HUGE, -_HUGE
        for j in range(X.shape[1]):
            m = bits_of_f64(X[i, j]) & ~_SIGN
            field = max(m >> 52, np.int64(1))
            s = (m & _FRACTION) | (np.int64(1) << 52 if m >> 52 else np.int64(0))
            last = field - 1075 + _exponent(s & -s) if m else _HUGE
            bound = field - 1074 + _exponent(s) if m else -_HUGE
            if by_row:
                least, most = min(least, last), max(most, bound)
            else:
                low[j], top[j] = min(low[j], last), max(top[j], bound)
        if by_row:
            low[i], top[i] = least, most


def span(X: NDArray[np.float64], axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return `fpemu.reference.exact.span` of stacks of matrices, not empty."""
    *batch, M, K = X.shape
    rows, by_row = np.ascontiguousarray(X).reshape(-1, K), axis == -1

    def block(some: slice) -> NDArray[np.int64]:
        result = np.empty((2, some.stop - some.start if by_row else K), np.int64)
        _spans(rows[some], *result, by_row)
        return result

    height = max(1, _BLOCK // K)
    if by_row:
        low, top = np.concatenate(map_blocks(block, len(rows), height), axis=1).reshape(2, *batch, M, 1)
    else:
        starts = [slice(m, min(m + height, b + M)) for b in range(0, len(rows), M) for m in range(b, b + M, height)]
        parts = np.array(map_tasks(block, starts)).reshape(*batch, -1, 2, K)
        low, top = np.min(parts[..., 0, :], axis=-2, keepdims=True), np.max(parts[..., 1, :], axis=-2, keepdims=True)
    zero = low == _HUGE
    return np.where(zero, 0, low), np.where(zero, 0, top)


@saved
@njit(nogil=True, error_model="numpy")
def _cut(X: Any, top: Any, first: int, last: int, width: int, out: Any) -> None:
    """Write slices of the rows from `first` to `last` of all matrices X (batch, M, K) to out (slices, batch, M, K)."""
    M, K = X.shape[1:]
    rest, step = np.empty(K), power(width)
    for row in range(first, last):
        b, i = row // M, row % M
        exponents = top[b, min(i, top.shape[1] - 1)]
        for j in range(K):
            e = -exponents[j if len(exponents) > 1 else 0] - 1
            rest[j] = X[b, i, j] * power(e >> 1) * power(e - (e >> 1))
        for s in range(len(out)):
            line = out[s, b, i]
            for j in range(K):
                part = (rest[j] * step + 1.5 * 2.0**52) - 1.5 * 2.0**52  # to the nearest integer
                line[j] = part
                rest[j] = rest[j] * step - part


def cut(X: NDArray[np.float64], top: NDArray[np.int64], width: int, out: NDArray[np.float64]) -> None:
    """Write the slices of X (batch, M, K) to `out` (slices, batch, M, K)."""
    x, top = np.ascontiguousarray(X), np.ascontiguousarray(top)
    height = max(1, _BLOCK // X.shape[-1])
    task = lambda some: _cut(x, top, some.start, some.stop, width, out)  # noqa: E731
    map_blocks(task, X.shape[0] * X.shape[1], height)


@saved
@njit(nogil=True, error_model="numpy")
def _add(total: Any, T: Any) -> None:
    for i in range(len(T)):
        total[i] += np.int64(T[i])


def add(total: NDArray[np.int64], T: NDArray[np.float64]) -> None:
    """Add integers to an int64 sum in place."""
    flat, terms = total.reshape(-1), T.reshape(-1)
    map_blocks(lambda some: _add(flat[some], terms[some]), flat.size)


@saved
@njit(nogil=True, error_model="numpy")
def _round(sums: Any, first: int, exponent: Any, width: int, f: int, emin: int, smallest: int, out: Any) -> None:
    """Round sums (weights, entries) times 2^exponent to nearest, ties to even, with no largest number."""
    count, below = len(sums), (np.int64(1) << width) - 1
    v = np.empty(count, np.int64)
    for i in range(len(exponent)):
        negative = False
        for d in range(count):
            v[d] = sums[d, first + i]
        for _ in range(2):
            for d in range(count - 1, 0, -1):
                v[d - 1] += v[d] >> width
                v[d] &= below
            if v[0] >= 0:
                break
            negative = True
            for d in range(count):
                v[d] = -v[d]
        lead, sticky, e = v[0], False, exponent[i]
        for d in range(1, count):  # at most 62 leading bits
            drop = width - min(max(62 - _bit_length(lead), np.int64(0)), width)
            lead = (lead << (width - drop)) | (v[d] >> drop)
            sticky |= (v[d] & ((np.int64(1) << drop) - 1)) != 0
            e += drop
        if lead == 0:
            out[i] = 0.0
            continue
        leading = e + _bit_length(lead) - 1
        quantum = max(leading - f, smallest) if leading >= emin else smallest
        right, left = min(max(quantum - e, np.int64(0)), np.int64(63)), min(max(e - quantum, np.int64(0)), np.int64(63))
        steps, rest = (lead << left) >> right, lead & ((np.int64(1) << right) - 1)
        half = np.int64(1) << (right - 1) if right > 0 else np.int64(1) << 62
        steps += rest > half or (rest == half and (sticky or steps & 1 == 1))
        q = min(quantum, np.int64(1024))
        value = np.float64(steps) * power(q >> 1) * power(q - (q >> 1))
        out[i] = -value if negative else value


def round_sums(sums: NDArray[np.int64], exponent: NDArray[np.int64], width: int, fmt: FloatFormat) -> NDArray[Any]:
    """Return the rounded totals of sums (weights, *shape), the lowest weight 2^exponent, in a format with NaN."""
    rows, e, out = sums.reshape(len(sums), -1), exponent.reshape(-1), np.empty(exponent.size)
    smallest = fmt.emin - (fmt.fraction_bits if fmt.subnormals else 0)
    limits = np.int64(width), np.int64(fmt.fraction_bits), np.int64(fmt.emin), np.int64(smallest)
    map_blocks(lambda some: _round(rows, some.start, e[some], *limits, out[some]), out.size, 1 << 13)
    if (beyond := np.abs(out) > fmt.max).any():
        out[beyond] = np.copysign(np.inf if fmt.inf else np.nan, out[beyond])
    out = out if fmt.negative_zero else out + 0.0
    return out.astype(fmt.dtype).reshape(exponent.shape)
