"""Compiled distances in units in the last place, and compiled norms, whose sums of squares are exact.

`fpemu.metrics.analysis` is the specification.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu._system import map_blocks
from fpemu.compiled.bits import bits_of_f64
from fpemu.compiled.cache import saved
from fpemu.compiled.rounding import _FRACTION, _INF, _SIGN, _round, _tuple, parameters
from fpemu.formats import FloatFormat

Floats = NDArray[np.floating[Any]]
_BLOCK = 1 << 14
"""Entries of a block, whose float64 numbers stay in a core's cache. As many squares, multiples of 2^-38 up to 1, add up
to 52 bits."""


@njit(nogil=True, error_model="numpy", inline="always")
def _place(b: int, lowest: int, f: int, gap: int, infinity: int) -> int:
    """Return the signed number of steps from zero of a value's pattern."""
    m = b & ~_SIGN
    field = max(m >> 52, np.int64(1))
    significand = m & _FRACTION | (np.int64(1) << 52 if m >> 52 else np.int64(0))
    place = (max(field - lowest, np.int64(0)) << f) + (
        significand >> min(52 - f + max(lowest - field, np.int64(0)), np.int64(63))
    )
    place = min(max(place, gap) - gap, infinity)
    return -place if b < 0 else place


@saved
@njit(nogil=True, error_model="numpy")
def _ulps(c: Any, r: Any, out: Any, p: Any, lowest: int, f: int, gap: int, infinity: int) -> bool:
    """Write the distances; return whether an entry is neither NaN nor a value of the format."""
    p, foreign = _tuple(p), False
    for i in range(len(c)):
        b, d = bits_of_f64(c[i]), bits_of_f64(r[i])
        t, sign, _ = _round(b, p, np.int64(0))
        u, other, _ = _round(d, p, np.int64(0))
        no_b, no_d = (b & ~_SIGN) > _INF, (d & ~_SIGN) > _INF
        foreign |= ((t | sign) != b) & (not no_b) | ((u | other) != d) & (not no_d)
        x, y = _place(b, lowest, f, gap, infinity), _place(d, lowest, f, gap, infinity)
        apart = np.uint64(max(x, y)) - np.uint64(min(x, y))  # below 2^64, modulo 2^64 on purpose
        apart = ~np.uint64(0) if no_b | no_d else apart
        out[i] = np.uint64(0) if no_b & no_d else apart
    return foreign


def _wide(x: Floats) -> NDArray[np.float64]:
    """Return float64: numba compiles a kernel for each type."""
    return x.astype(np.float64, copy=False)


def ulps(c: Floats, r: Floats, fmt: FloatFormat) -> NDArray[np.uint64] | None:
    """Return the distances of arrays of one shape; None where an entry is not a value of the format."""
    x, y, out = c.reshape(-1), r.reshape(-1), np.empty(c.size, np.uint64)
    f, lowest = fmt.fraction_bits, fmt.emin + 1023
    largest = int(np.float64(fmt.max).view(np.int64)) >> 52 - f  # the place of its successor, infinity, follows
    gap = 0 if fmt.subnormals else (1 << f) - 1
    steps = np.int64(lowest), np.int64(f), np.int64(gap), np.int64(largest - (lowest - 1 << f) + 1 - gap)
    p = parameters(fmt, "RZ")
    foreign = map_blocks(lambda some: _ulps(_wide(x[some]), _wide(y[some]), out[some], p, *steps), x.size, _BLOCK)
    return None if any(foreign) else out.reshape(c.shape)


# --- norms
_LIMIT = 1000  # binary exponent: differences below 2^1000 do not overflow, nor do the scaled ones


@saved
@njit(nogil=True, error_model="numpy")
def _largest(c: Any, r: Any) -> Any:
    """Return the patterns of the largest |c - r|, |c| and |r|."""
    d = x = y = np.int64(0)
    for i in range(len(c)):
        d = max(d, bits_of_f64(c[i] - r[i]) & ~_SIGN)
        x, y = max(x, bits_of_f64(c[i]) & ~_SIGN), max(y, bits_of_f64(r[i]) & ~_SIGN)
    return d, x, y


@njit(nogil=True, error_model="numpy", inline="always")
def _cut(x: float, last: float) -> Any:
    """Return the nearest multiple of a power of two `last` to x, as an integer, and the rest."""
    magic = 1.5 * 2.0**52 * last
    return bits_of_f64(x + magic) - bits_of_f64(magic), x - ((x + magic) - magic)


@saved
@njit(nogil=True, error_model="numpy")
def _squares(c: Any, r: Any, scale: float, weight: float, rest: Any) -> Any:
    """Return the sum of ((c weight - r) scale)^2, which are below 1, as three integers; `rest` receives the rests."""
    high = middle = low = np.int64(0)
    for i in range(len(c)):
        x = (c[i] * weight - r[i]) * scale
        first, x = _cut(x * x, 2.0**-38)
        second, x = _cut(x, 2.0**-77)
        third, rest[i] = _cut(x, 2.0**-116)
        high, middle, low = high + first, middle + second, low + third
    return high, middle, low


def norms(c: Floats, r: Floats) -> tuple[tuple[float, int], tuple[float, int]] | None:
    """Return the norms of c - r and of r as pairs (d, e) of d 2^e; None beyond 2^+-1000, and for NaN and Inf."""
    x, y = c.reshape(-1), r.reshape(-1)
    patterns = map_blocks(lambda some: _largest(_wide(x[some]), _wide(y[some])), x.size, _BLOCK)
    peaks = np.max(patterns, axis=0).view(np.float64)
    if not peaks.max() < 2.0**_LIMIT or 0 < min(peaks[0] or 1.0, peaks[2] or 1.0) < 2.0**-_LIMIT:
        return None

    def norm(peak: float, weight: float) -> tuple[float, int]:
        if peak == 0:
            return 0.0, 0
        exponent = math.frexp(peak)[1]
        scale = math.ldexp(1.0, -exponent)

        def terms(some: slice) -> list[float]:
            rest = np.empty(some.stop - some.start)
            sums = _squares(_wide(x[some]), _wide(y[some]), scale, weight, rest)
            return [*map(math.ldexp, sums, (-38, -77, -116)), *rest[rest != 0].tolist()]

        sums = map_blocks(terms, x.size, _BLOCK)
        return math.sqrt(math.fsum(term for part in sums for term in part)), exponent

    return norm(float(peaks[0]), 1.0), norm(float(peaks[2]), 0.0)
