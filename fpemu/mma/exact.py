"""Exact block sums: products and accumulator added exactly, then one rounding to nearest.

Model of CDNA1's fp16 and bf16 instructions (documented), of the Ascend cube (assumed) and of an ideal tensor core.
A zero sum follows IEEE: -0 if every term is -0, else +0.

Products of formats of at most 24 bits are exact in float64, and a sum of them is exact wherever no addition leaves an
error term (TwoSum). The few other sums are computed again in Python integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma.spec import MmaSpec
from fpemu.rounding import Rounding, round_to


def block(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """One block: a (..., M, L), b (..., L, N), c (..., M, N) -> d (..., M, N), values in float64."""
    a, b, total = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    lost = np.zeros(np.broadcast_shapes(c.shape, (*a.shape[:-1], 1)), bool)
    for k in range(a.shape[-1]):
        total, error = two_sum(total, a[..., :, k, None] * b[..., None, k, :])
        lost = lost | (error != 0)
    lost &= np.isfinite(total)
    for where in np.argwhere(lost):
        *batch, i, j = where.tolist()
        row = np.broadcast_to(a, (*lost.shape[:-2], *a.shape[-2:]))[(*batch, i)]
        column = np.broadcast_to(b, (*lost.shape[:-2], *b.shape[-2:]))[(*batch, slice(None), j)]
        total[(*batch, i, j)] = _to_odd([*(row * column), np.broadcast_to(c, lost.shape)[(*batch, i, j)]])
    return round_once(total, spec)


def two_sum(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """x + y = s + e exactly (Knuth)."""
    s = x + y
    v = s - x
    return s, (x - (s - v)) + (y - v)


def _to_odd(terms: list[Any]) -> float:
    """Return the exact sum rounded to odd at 53 bits, from which a rounding to fewer than 52 bits is correct."""
    ratios = [float(t).as_integer_ratio() for t in terms]
    bits = max(d.bit_length() for _, d in ratios) - 1
    total = sum(n << (bits - d.bit_length() + 1) for n, d in ratios)
    drop = max(abs(total).bit_length() - 53, 0)
    low = abs(total) >> drop
    low |= (low << drop) != abs(total)
    return float(np.ldexp(float(low if total >= 0 else -low), drop - bits))


def round_once(total: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """Round float64 sums to the format of D; RZ overflows to Inf, as in MmaSpec."""
    fmt = spec.operand_formats[3]
    if spec.final == "RNE":
        return total.astype(fmt.dtype).astype(np.float64)  # NumPy's casts round once, to nearest even
    truncated = np.asarray(round_to(total, fmt, Rounding.RZ)).astype(np.float64)
    return np.where(np.abs(total) >= 2.0 ** (fmt.emax + 1), np.copysign(np.inf, total), truncated)
