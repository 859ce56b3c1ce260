"""Compiled exact block sums; `fpemu.mma.reference.exact` is the specification.

Products are exact in float64. They are added with their TwoSum errors; if every error is zero, the sum is exact and
rounds once. All other sums are computed in a long fixed-point accumulator and rounded to odd at 53 bits first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu.compiled.bits import bits_of_f64, f64_of_bits, rounded
from fpemu.mma.arithmetic import Operands
from fpemu.mma.compiled.panel import implements
from fpemu.mma.compiled.run import run
from fpemu.mma.spec import MmaSpec

_LOWEST = 352  # 2^-352 lies below the last bit of any product of two fp32 numbers held in 53 bits
_WORDS = 24  # of 32 bits: up to 2^416, above 64 products of 2^256


class Exact(NamedTuple):
    """Parameters of an exact block sum."""

    block: tuple[int, ...]  # as long as the block
    emin: np.int64  # of D
    emax: np.int64
    fraction: np.int64
    final: tuple[int, ...]  # `MmaSpec.final_kind`


def chain(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Exact block sums."""
    d = spec.operand_formats[3]
    limits = np.int64(d.emin), np.int64(d.emax), np.int64(spec.sum_fraction_bits)
    params = Exact((0,) * spec.block, *limits, spec.final_kind)
    return run(params, x, spec)


@njit(nogil=True, error_model="numpy")
def _add(words: Any, x: float) -> None:
    """Add a float64 number to the long accumulator."""
    bits = bits_of_f64(x)
    field = (bits >> 52) & 2047
    if field == 0:
        return  # a zero: no term is as small as a float64 subnormal
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    place = field - 1075 + _LOWEST
    w, shift = place >> 5, place & 31
    low, high = (m & 0xFFFFFFFF) << shift, (m >> 32) << shift
    sign = -1 if bits < 0 else 1
    words[w] += sign * (low & 0xFFFFFFFF)
    words[w + 1] += sign * ((low >> 32) + (high & 0xFFFFFFFF))
    words[w + 2] += sign * (high >> 32)


@njit(nogil=True, error_model="numpy")
def _to_odd(words: Any) -> float:
    """The long accumulator rounded to odd at 53 bits."""
    sign = 1.0
    for _ in range(2):
        carry = 0
        for w in range(_WORDS):
            carry += words[w]
            words[w] = carry & 0xFFFFFFFF
            carry >>= 32
        if carry == 0:
            break
        sign = -1.0  # the sum is negative: negate it and carry again
        for w in range(_WORDS):
            words[w] = -words[w]
        words[_WORDS - 1] -= carry << 32
    top = _WORDS - 1
    while top > 0 and words[top] == 0:
        top -= 1
    if words[top] == 0:
        return 0.0
    bits = 0
    while words[top] >> bits:
        bits += 1
    end = 32 * top + bits  # the sum is below 2^(end - _LOWEST)
    m, sticky = 0, False
    for place in range(end - 1, -1, -1):
        bit = (words[place >> 5] >> (place & 31)) & 1
        if end - place <= 53:
            m = 2 * m + bit
        elif bit:
            sticky = True
            break
    missing = max(53 - end, 0)
    m <<= missing
    return sign * float(m | sticky) * f64_of_bits(np.int64(1023 + end - 53 - _LOWEST) << 52)


@njit(nogil=True, error_model="numpy")
def _slow(a: Any, b: Any, k: int, length: int, j: int, c: float) -> float:
    words = np.zeros(_WORDS, np.int64)
    _add(words, c)
    for q in range(k, k + length):
        _add(words, np.float64(a[q]) * np.float64(b[q, j]))
    return _to_odd(words)


@implements(Exact)
def _block(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    length = len(params.block)
    ak, bk, inexact = a[k : k + length], b[k : k + length], top[0]
    count = 0
    for j in range(len(acc)):
        s, errors = np.float64(acc[j]), 0.0
        for q in range(length):
            p = np.float64(ak[q]) * np.float64(bk[q, j])
            t = s + p
            v = t - s
            errors += abs((s - (t - v)) + (p - v))
            s = t
        inexact[j] = np.int16(errors > 0)
        count += np.int64(errors > 0)
        acc[j] = acc[j] if errors > 0 else rounded(params, s, words[j])
    if count > 0:
        for j in range(len(acc)):
            if inexact[j]:
                acc[j] = rounded(params, _slow(a, b, k, length, j, np.float64(acc[j])), words[j])
