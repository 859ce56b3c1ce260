"""Compiled CDNA2 and CDNA3 arithmetic; `fpemu.mma.reference` is the specification.

CDNA2 is ordinary fp32 arithmetic on products of at most 22 bits. CDNA3 is exact in float64: a block's truncated
products are integers below 2^26, and both grids of the final addition lie within 2^53 of one another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu.compiled.bits import bits_of_f32, bits_of_f64, floor, power, trunc
from fpemu.mma.arithmetic import Operands
from fpemu.mma.compiled.panel import implements
from fpemu.mma.compiled.run import run
from fpemu.mma.spec import MmaSpec

_TINY = np.float32(2.0**-126)
_NONE = -500  # below every exponent


class Flushed(NamedTuple):
    """CDNA2; `flushed` has replaced the subnormals of A and B by zero."""

    block: tuple[int, ...]  # as long as the instruction, which flushes its C
    group: tuple[int, ...]  # two or four


class Cdna3(NamedTuple):
    """CDNA3 fp16, bf16, xf32."""

    block: tuple[int, ...]


class Cdna3Fp8(NamedTuple):
    """CDNA3 fp8, bf8."""

    block: tuple[int, ...]
    drop: np.int64  # c is dropped where it lies this many binary places below


def flushed(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """CDNA2."""
    for words, fmt in zip((x.A, x.B), spec.operand_formats, strict=False):
        words[np.abs(words) < fmt.min_normal] = 0
    return run(Flushed((0,) * spec.k, (0,) * spec.block), x, spec)


def cdna3(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """CDNA3 fp16, bf16, xf32."""
    return run(Cdna3((0,) * spec.block), x, spec)


def cdna3_fp8(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """CDNA3 fp8, bf8."""
    return run(Cdna3Fp8((0,) * spec.block, np.int64(25)), x, spec)


@njit(nogil=True, error_model="numpy", inline="always")
def _flush(x: Any) -> Any:
    return np.copysign(np.float32(0), x) if abs(x) < _TINY else x


@implements(Flushed)
def _block_cdna2(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    group = len(params.group)
    for j in range(len(acc)):
        acc[j] = np.float32(0) if abs(acc[j]) < _TINY else acc[j]
    for q in range(k, k + len(params.block), group):
        for j in range(len(acc)):
            s = _flush(_flush(a[q] * b[q, j]) + _flush(a[q + 1] * b[q + 1, j]))
            if group == 4:
                s = _flush(s + _flush(_flush(a[q + 2] * b[q + 2, j]) + _flush(a[q + 3] * b[q + 3, j])))
            acc[j] = _flush(acc[j] + s)


@njit(nogil=True, error_model="numpy", inline="always")
def _product(x: Any, y: Any) -> float:
    p = np.float64(x) * np.float64(y)
    return np.copysign(np.inf, p) if abs(p) >= 2.0**128 else p


@njit(nogil=True, error_model="numpy", inline="always")
def _add_accumulator(total: float, e_dot: int, c: Any, drop: int) -> Any:
    ec = np.int64((bits_of_f32(c) >> np.int32(23)) & np.int32(255)) - 127
    ec = max(ec, -126)
    highest = max(e_dot, ec)
    kept = floor(np.float64(c) * power(24 - highest)) * power(highest - 24)
    kept = 0.0 if ec < highest - drop else kept
    s = floor(total * power(32 - highest)) * power(highest - 32) + kept
    es = max(((bits_of_f64(s) >> 52) & 2047) - 1023, -126)
    return np.float32(floor(s * power(31 - es)) * power(es - 31) + 0.0)


@implements(Cdna3, aligned=True)
def _block_cdna3(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    length = len(params.block)
    ak, ek, bk, fk = a[k : k + length], ea[k : k + length], b[k : k + length], eb[k : k + length]
    for j in range(len(acc)):
        e = np.int64(_NONE)
        for q in range(length):
            e = max(e, np.int64(ek[q]) + np.int64(fk[q, j]))
        scale, total = power(24 - e), 0.0
        for q in range(length):
            total += trunc(_product(ak[q], bk[q, j]) * scale)
        acc[j] = _add_accumulator(total * power(e - 24), e, acc[j], 10000)


@implements(Cdna3Fp8, aligned=True)
def _block_cdna3_fp8(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    length = len(params.block)
    ak, ek, bk, fk = a[k : k + length], ea[k : k + length], b[k : k + length], eb[k : k + length]
    for j in range(len(acc)):
        e0 = np.int64(_NONE)
        e1 = np.int64(_NONE)
        for q in range(0, length, 2):
            e0 = max(e0, np.int64(ek[q]) + np.int64(fk[q, j]))
            e1 = max(e1, np.int64(ek[q + 1]) + np.int64(fk[q + 1, j]))
        even, odd = 0.0, 0.0
        for q in range(0, length, 2):
            even += trunc(_product(ak[q], bk[q, j]) * power(24 - e0))
            odd += trunc(_product(ak[q + 1], bk[q + 1, j]) * power(24 - e1))
        e = max(e0, e1)
        total = floor(even * power(e0 - e)) + floor(odd * power(e1 - e))
        acc[j] = _add_accumulator(total * power(e - 24), e, acc[j], params.drop)
