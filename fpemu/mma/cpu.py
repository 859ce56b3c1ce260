"""NumPy reference implementation of the dot products of x86 and ARM processors; `fpemu.mma.compiled.cpu` is compiled.

Source: measured on an Intel Emerald Rapids and an AMD Zen 5; Intel 64 and IA-32 Architectures Software Developer's
Manual, volume 2 (TDPBF16PS, TDPFP16PS, VDPBF16PS); Arm Architecture Reference Manual for A-profile (BFDotAdd, FPDot).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FP32
from fpemu.mma.reference import first_nan, fma, odd_sum
from fpemu.rounding import Rounding, round_to

if TYPE_CHECKING:
    from fpemu.mma.spec import MmaSpec

Array = NDArray[Any]
TINY = 2.0**-126
ROUNDS_TO_TINY = 2.0**-126 - 2.0**-151  # with an unbounded exponent, smaller numbers round to 24 bits below TINY


def _wide(*operands: Array) -> list[Array]:
    """The operands in float64, which holds their numbers; a signalling NaN becomes quiet, the payload stays."""
    return [x.astype(np.float64) for x in operands]


# --- x86


def x86_fma(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """VFMADD of fp16, fp32 and fp64: IEEE's fused multiply-add; of several NaN the first of a, b, c is returned."""
    a, b, c = _wide(a, b, c)
    return first_nan(fma(a, b, c, spec.operand_formats[3]), (a, b, c), spec)


def pairs(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """VDPBF16PS: fma(a0, b0, fma(a1, b1, c)) in fp32, subnormal operands and results of each step flushed."""
    a, b, c = _wide(a, b, c)
    for k in (1, 0):
        c = _flushing(a[..., :, k, None], b[..., None, k, :], c, spec)
    return c


def tile(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """TDPBF16PS, TDPFP16PS: two chains from +0, over even and odd k; c + (even + odd) in fp32; all steps flush."""
    a, b, c = _wide(a, b, c)
    sums = [np.zeros(np.broadcast_shapes(c.shape, (*a.shape[:-1], b.shape[-1])))] * 2
    for k in range(a.shape[-1]):
        sums[k % 2] = _flushing(a[..., :, k, None], b[..., None, k, :], sums[k % 2], spec)
    one = np.ones(())
    return _flushing(c, one, _flushing(sums[0], one, sums[1], spec), spec)


def _flushing(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """One fused multiply-add in fp32 with DAZ and FTZ.

    FTZ replaces results that are subnormal after rounding, as x86 detects underflow: a sum that rounds to 2^-126 with
    an unbounded exponent is a normal number.
    """
    a, b, c = (np.where(np.abs(x) < TINY, np.copysign(0.0, x), x) for x in (a, b, c))
    s = odd_sum(a * b, c)
    d = np.where(np.abs(s) < ROUNDS_TO_TINY, np.copysign(0.0, s), s.astype(np.float32).astype(np.float64))
    return first_nan(d, (a, b, c), spec)


# --- ARM


def odd_pairs(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """BFDOT and BFMMLA with FPCR.EBF = 0: c + (a0 b0 + a1 b1), the products and both sums rounded to odd in fp32.

    Subnormal operands and results are flushed. A magnitude of 2^128 or more becomes Inf.
    """
    a, b, c = (np.where(np.abs(x) < TINY, np.copysign(0.0, x), x) for x in _wide(a, b, c))
    p, q = (_to_odd(a[..., :, k, None] * b[..., None, k, :]) for k in (0, 1))
    return _to_odd(odd_sum(c, _to_odd(odd_sum(p, q))))


def _to_odd(s: Array) -> Array:
    """Round sums that are rounded to odd at 53 bits to odd in fp32, with flushed subnormals."""
    d = np.asarray(round_to(s, FP32, Rounding.ODD)).astype(np.float64)
    d = np.where(np.abs(s) < TINY, np.copysign(0.0, s), d)
    return np.where(np.abs(s) >= 2.0**128, np.copysign(np.inf, s), d)


def fused_pairs(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """BFDOT and BFMMLA with FPCR.EBF = 1: a0 b0 + a1 b1 rounded once to nearest, then added to c; subnormals kept."""
    a, b, c = _wide(a, b, c)
    p, q = (a[..., :, k, None] * b[..., None, k, :] for k in (0, 1))
    return (odd_sum(p, q).astype(np.float32) + c.astype(np.float32)).astype(np.float64)


# --- integers


def saturated(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """VPDPBUSDS: the exact sum of the products and c, limited once to the range of int32."""
    total = c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
    return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)
