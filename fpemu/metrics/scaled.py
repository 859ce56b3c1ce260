"""Arithmetic on numbers d·2^e, pairs (d, e) of arrays: differences, quotients, norms and sums without overflow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arrays import as_float64
from fpemu.errors import InputError
from fpemu.parallel import map_chunks

Floats = NDArray[np.float64]


def pair(C: Any, R: Any, names: str = "CR") -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return both as float64, and where C equals R."""
    c, r = (as_float64(X, name) for X, name in zip((C, R), names, strict=True))
    if c.shape != r.shape:
        raise InputError(f"result {names[0]} and reference {names[1]} differ in shape: {c.shape} and {r.shape}")
    return c, r, (c == r) | (np.isnan(c) & np.isnan(r))


def parts(x: Floats) -> tuple[Floats, NDArray[Any]]:
    """x as (d, e), d in [0.5, 1) in magnitude."""
    mantissa, exponent = np.frexp(x)
    return mantissa, exponent.astype(np.int64)


def scaled(d: Any, e: Any) -> Floats:
    """d * 2^e."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(d, np.clip(e, -5000, 5000).astype(np.int32)))


def difference(c: Floats, r: Floats, equal: NDArray[np.bool_]) -> tuple[Floats, NDArray[Any]]:
    """|c - r| as (d, e): d is 0 where they are equal, else inf for NaN and Inf, else below 2, rounded once."""
    fine = np.isfinite(c) & np.isfinite(r)
    x, y = np.where(fine, c, 0.0), np.where(fine, r, 0.0)
    # the larger of the two goes to [0.5, 1); the smaller may lose bits only some 2^1000 below
    e = np.maximum(parts(x)[1], parts(y)[1])
    e = np.where(x == 0, parts(y)[1], np.where(y == 0, parts(x)[1], e))
    d = np.abs(scaled(x, -e) - scaled(y, -e))
    return np.where(equal, 0.0, np.where(fine, d, np.inf)), e


def divide(d: Floats, below: Floats) -> Floats:
    """d / below; inf or NaN where below is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.divide(d, below))


@np.errstate(under="ignore")
def norm(d: Floats, e: NDArray[Any]) -> tuple[float, int]:
    """The root of the sum of (d 2^e)^2 as a pair; the largest term is scaled to about 1."""

    def leading(d: Floats, e: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
        mantissa, exponent = parts(d)
        return mantissa, np.where(d == 0, -(1 << 20), e + exponent)

    mantissa, e = map_chunks(leading, d, e)
    top = int(np.max(e, initial=-(1 << 20)))
    return math.sqrt(rounded_sum(map_chunks(lambda m, e: np.square(scaled(m, e - top)), mantissa, e))), top


def rounded_sum(x: Floats) -> float:
    """The sum rounded once.

    Exact sums of the leading bits of 2^14 numbers at a time, then of their next bits, are what `math.fsum` adds: with
    |x| < 2^e and sigma = 2^(e+14), fl(fl(sigma + x) - sigma) is a multiple of 2^(e-39) and at most 2^e, so that any sum
    of 2^14 of them is at most 2^53 multiples; and x without it is again a number of float64.
    """
    flat, terms = x.ravel(), list[float]()
    for i in range(0, flat.size, 1 << 14):
        left = flat[i : i + (1 << 14)]
        while peak := float(np.max(np.abs(left))):
            if not peak < 2.0**1000:
                terms += left.tolist()
                break
            sigma = math.ldexp(1.0, math.frexp(peak)[1] + 14)
            leading = (left + sigma) - sigma
            terms.append(float(np.sum(leading)))
            left = left - leading
    return math.fsum(terms)


def largest(errors: Floats) -> float:
    """The largest error; 0 of an empty matrix."""
    return float(np.max(errors, initial=0.0))


def mean(errors: Floats) -> float:
    """The mean of errors of at least 0; 0 of an empty matrix."""
    top = largest(errors)
    if top == 0.0 or math.isinf(top):
        return top
    scale = int(np.frexp(top)[1])
    return float(scaled(rounded_sum(scaled(errors, -scale)) / errors.size, scale))
