"""The truncated fused dot product of NVIDIA's tensor cores: the NumPy reference implementation, on 64-bit integers.

For one element of D, a block of L products and an accumulator c:

1. A finite operand is s · 2^e with 1 <= |s| < 2; a subnormal keeps e = emin of its format (it is not normalised).
2. Products are exact and not normalised: significand in [0, 4), exponent e_a + e_b.
3. e_max is the largest exponent among non-zero products and a non-zero c, and at least the floor E0.
4. Every term is truncated toward zero to a multiple of 2^(e_max - F). No guard bit, no sticky bit.
5. The terms are added exactly.
6. The sum is rounded once to the format of D; every zero is +0; there is one NaN.

Why int64 is exact: a term has at most F + 2 bits (F <= 35), and at most 65 terms are added.

Source: Fasi, Higham, Mikaitis, Pranesh 2021; Khattak and Mikaitis 2025; measured on an H200.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma.spec import MmaSpec

_ZERO = -(10**6)  # the exponent of a zero: below every floor


def block(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """One block: a (..., M, L), b (..., L, N), c (..., M, N) -> d (..., M, N), values in float64."""
    fa, fb, fc, _ = spec.operand_formats
    sa, ea = decode(a, fa)
    sb, eb = decode(b, fb)
    sc, ec = decode(c, fc)
    floor = _ZERO if spec.E0 is None else spec.E0
    e_max = np.maximum(ec, floor)
    for k in range(a.shape[-1]):
        np.maximum(e_max, ea[..., :, k, None] + eb[..., None, k, :], out=e_max)
    e_max = np.where(e_max < _ZERO // 2, 0, e_max)  # all terms are zero and there is no floor: any grid is exact
    point = fa.precision + fb.precision - 2  # binary point of a product of integer significands
    total = align(sc, ec - e_max, fc.precision - 1, spec.F)
    for k in range(a.shape[-1]):
        product = sa[..., :, k, None] * sb[..., None, k, :]
        total += align(product, ea[..., :, k, None] + eb[..., None, k, :] - e_max, point, spec.F)
    d = finish(total, e_max - spec.F, spec)
    return specials(a, b, c, d)


def decode(x: NDArray[Any], fmt: FloatFormat) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Integer significands with precision - 1 fraction bits, and exponents: emin if subnormal, `_ZERO` if zero."""
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    _, exponent = np.frexp(finite)
    exponent = np.maximum(exponent.astype(np.int64) - 1, fmt.emin)
    significand = np.ldexp(finite, fmt.precision - 1 - exponent).astype(np.int64)
    return significand, np.where(significand == 0, _ZERO, exponent)


def align(significand: Any, below: Any, point: int, F: int) -> Any:
    """Truncate significand · 2^(below - point) toward zero to a multiple of 2^-F; the result counts those units."""
    shift = np.maximum(below, -100) + (F - point)  # below <= 0; a term 100 binary places down truncates to zero
    right = np.minimum(np.maximum(-shift, 0), 63)
    magnitude = (np.abs(significand) << np.maximum(shift, 0)) >> right
    return np.where(significand < 0, -magnitude, magnitude)


def finish(units: NDArray[np.int64], exponent: NDArray[Any], spec: MmaSpec) -> NDArray[np.float64]:
    """Round units · 2^exponent once to the format of D; RZ overflows to Inf as the hardware does; zeros are +0."""
    fmt = spec.operand_formats[3]
    magnitude = np.abs(units)
    top = np.frexp(magnitude.astype(np.float64))[1]  # exact: fewer than 53 bits
    quantum = np.maximum(top - 1 + exponent, fmt.emin) - spec.sum_fraction_bits
    drop = np.clip(quantum - exponent, 0, 62)
    low = magnitude >> drop
    if spec.final == "RNE":
        rest = magnitude - (low << drop)
        half = np.where(drop > 0, np.int64(1) << np.maximum(drop - 1, 0), 1)  # drop = 0: no rest
        low = low + ((rest > half) | ((rest == half) & (low % 2 == 1)))
    value = np.ldexp(low.astype(np.float64), np.where(drop > 0, quantum, exponent).astype(np.int32))
    value = np.where(value > fmt.max, np.inf, value)
    return np.where((units < 0) & (value > 0), -value, value)


def specials(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], d: NDArray[Any]) -> NDArray[Any]:
    """Replace the results of non-finite operands: NaN or Inf by IEEE's rules on the exact sum."""
    if np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all():
        return d
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*shape, a.shape[-2], b.shape[-1])) + c.astype(np.float64)
    nonfinite = ~np.isfinite(total)
    for k in range(a.shape[-1]):
        product = a[..., :, k, None].astype(np.float64) * b[..., None, k, :].astype(np.float64)
        total += product
        nonfinite |= ~np.isfinite(product)
    return np.where(nonfinite, total, d)
