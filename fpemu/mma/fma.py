"""Chains of IEEE fused multiply-adds: matrix instructions with a block of one, and FMA units.

One rounding per step, shown for each format:

fp32, fp16  The product of two numbers of at most 24 bits is exact in float64. s = RN(p + c) and the TwoSum error e give
            the sum exactly. Where e is not zero and the last bit of s is even, the neighbour of s on e's side is p + c
            rounded to odd at 53 bits. Rounding this number to q <= 51 bits, subnormals included, equals one rounding of
            p + c (Boldo and Melquiond 2008).
fp64        The exact value is a ratio of integers, which Python divides with one rounding to nearest even.

Every NaN receives one code at the end, except on matrix instructions that keep payloads: see `first_nan`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma.exact import two_sum
from fpemu.mma.spec import MmaSpec

_QUIET = np.uint64(1 << 51)  # the bit of a quiet NaN in fp64


def block(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """One step: a (..., M, 1), b (..., 1, N), c (..., M, N) -> d (..., M, N), values in float64."""
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    d = fma(a, b, c, spec.operand_formats[3])
    if spec.payloads and np.isnan(d).any():
        d = np.where(np.isnan(d), first_nan(a, b, c, spec), d)
    return d


def first_nan(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """Return the NaN of a step that keeps payloads: the first of b, c, a that is NaN, made quiet, else `nan_code`."""
    chosen: NDArray[Any] = np.array(spec.nan_code, np.uint64)
    for x in (a, c, b):
        chosen = np.where(np.isnan(x), np.ascontiguousarray(x).view(np.uint64) | _QUIET, chosen)
    return chosen.view(np.float64)


def fma(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], fmt: FloatFormat) -> NDArray[Any]:
    """a·b + c, elementwise with broadcasting, rounded once to nearest even in `fmt` (fp16, fp32 or fp64)."""
    if fmt.name == "fp64":
        return np.asarray(_fma64(a, b, c), dtype=np.float64)
    s = sum_to_odd(a * b, c)
    return s.astype(fmt.dtype).astype(np.float64)


def sum_to_odd(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """x + y in float64, rounded to odd (no overflow of float64 assumed)."""
    s, error = two_sum(x, y)
    even = np.asarray(s).view(np.uint64) % np.uint64(2) == 0
    move = np.isfinite(s) & (error != 0) & even
    return np.where(move, np.nextafter(s, np.copysign(np.inf, error)), s)


def _scalar64(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a * b == 0 == c else 0.0  # IEEE: only a sum of zeros can be -0
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_fma64 = np.frompyfunc(_scalar64, 3, 1)
