"""Compiled truncated fused dot product, on two carriers; `fpemu.mma.reference.truncated` is the specification.

float64 carrier, every spec. A product of two significands of at most 24 bits is exact; scaled by 2^(F - e_max) it is
below 2^(F+2), truncation is one machine operation, and block + 1 such integers add exactly below 2^53 (F <= 35,
block <= 64). NaN and Inf need no extra code: the scale is a finite power of two, so Inf stays Inf, and the sum makes
the NaN of Inf - Inf; an accumulator that overflowed stays infinite.

float32 carrier, for finite fp16 or fp8 operands, D in fp32 with RZ and 23 <= F. A product has at most 22 significant
bits, so a·b and a·b·2^(F - e_max) are exact in fp32 (their exponents lie between -150 and 128, and a number that
underflows is below one unit); conversion to int32 truncates; the significands are below 2, hence `block` products sum
to less than block · 2^(F+2) <= 2^31 in int32. The accumulator's term is added in float64. If every product of a block
is zero, c is unchanged: it has no more than 23 fraction bits. `chain` selects this carrier only if no accumulator
can reach 2^127.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu.compiled.bits import bits_of_f32, bits_of_f64, f32_of_bits, f64_of_bits, power, rounded, trunc
from fpemu.mma.arithmetic import Operands
from fpemu.mma.compiled.panel import NO_EXPONENT, implements
from fpemu.mma.compiled.run import run
from fpemu.mma.spec import MmaSpec


class Truncated32(NamedTuple):
    """Parameters of the float32 carrier."""

    block: tuple[int, ...]  # as long as the block
    F: np.int32
    lowest: np.int32  # smallest exponent of a non-zero product


class Truncated64(NamedTuple):
    """Parameters of the float64 carrier."""

    block: tuple[int, ...]  # as long as the block
    F: np.int64
    E0: np.int64
    emin: np.int64  # of C and D
    emax: np.int64
    fraction: np.int64  # fraction bits of D
    final: tuple[int, ...]  # `MmaSpec.final_kind`


def chain(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Truncated sums, on the float32 carrier if the specification and the values meet its conditions."""
    fa, fb, _, d = spec.operand_formats
    block_, F = (0,) * spec.block, spec.F
    params: Any
    if _fits_float32(spec) and _bounded(x.A, x.B, x.C):
        params = Truncated32(block_, np.int32(F), np.int32(fa.emin + fb.emin))  # subnormals are not normalised
    else:
        floor = -400 if spec.E0 is None else spec.E0  # -400: below every exponent
        limits = np.int64(F), np.int64(floor), np.int64(d.emin), np.int64(d.emax), np.int64(spec.sum_fraction_bits)
        params = Truncated64(block_, *limits, spec.final_kind)
    return run(params, x, spec)


def _fits_float32(spec: MmaSpec) -> bool:
    """Whether the specification meets the float32 carrier's conditions."""
    fa, fb, _, d = spec.operand_formats
    narrow = fa.precision + fb.precision <= 22 and fa.emin + fb.emin >= -28 and fa.emax + fb.emax <= 30
    sums = spec.block * 2 ** (spec.F + 2) <= 2**31
    plain = d.name == "fp32" and spec.final == "RZ" and spec.fraction_bits in (None, 23)
    floor = spec.E0 is None or spec.E0 <= -126
    return narrow and sums and plain and floor and spec.F >= 23


def _bounded(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any]) -> bool:
    """Whether A, B and C are finite, and C so small that no sum reaches 2^127."""
    limit = 2.0**120  # NaN compares false
    small = C.max(initial=0) <= limit and C.min(initial=0) >= -limit
    return bool(small and np.isfinite(A).all() and np.isfinite(B).all())


@njit(nogil=True, error_model="numpy", inline="always")
def _highest(params: Any, ea: Any, eb: Any, highest: Any) -> None:
    """The largest exponent of the products of a block, for each column."""
    for j in range(len(highest)):
        e = np.int16(2 * NO_EXPONENT)
        for q in range(len(params.block)):
            e = max(e, np.int16(ea[q] + eb[q, j]))
        highest[j] = e


@implements(Truncated32, aligned=True)
def _block32(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    length = len(params.block)
    F = params.F
    ak, ek, bk, fk, highest = a[k : k + length], ea[k : k + length], b[k : k + length], eb[k : k + length], top[0]
    _highest(params, ek, fk, highest)
    for j in range(len(acc)):
        c = acc[j]
        ec = ((bits_of_f32(c) >> np.int32(23)) & np.int32(255)) - np.int32(127)
        e = max(max(np.int32(highest[j]), params.lowest), ec)
        scale = f32_of_bits((np.int32(127) + F - e) << np.int32(23))
        s = np.int32(0)
        for q in range(length):
            s += np.int32((ak[q] * bk[q, j]) * scale)
        total = np.float64(s) + np.float64(np.int32(c * scale))
        cut = np.float32(f64_of_bits(bits_of_f64(total) & np.int64(-(1 << 29))))
        d = cut * f32_of_bits((np.int32(127) - F + e) << np.int32(23))
        acc[j] = d if np.int32(highest[j]) >= params.lowest else c + np.float32(0)  # +0: a zero is positive


@implements(Truncated64, aligned=True)
def _block64(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    length = len(params.block)
    F = params.F
    ak, ek, bk, fk, highest = a[k : k + length], ea[k : k + length], b[k : k + length], eb[k : k + length], top[0]
    _highest(params, ek, fk, highest)
    for j in range(len(acc)):
        c = acc[j]
        ec = np.int64((bits_of_f32(c) >> np.int32(23)) & np.int32(255)) - 127
        ec = max(ec, params.emin) if c != 0 else params.E0
        e = max(max(np.int64(highest[j]), params.E0), ec)
        scale = power(F - e)
        s = trunc(np.float64(c) * scale)
        for q in range(length):
            s += trunc(np.float64(ak[q]) * np.float64(bk[q, j]) * scale)
        acc[j] = rounded(params, s * power(e - F), words[j]) + np.float32(0)  # every zero is +0
