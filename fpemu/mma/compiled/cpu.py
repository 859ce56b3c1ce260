"""Compiled dot products of x86 and ARM processors; `fpemu.mma.cpu` is the specification.

If NaN payloads are propagated, the chains whose result is NaN are computed a second time, step by step.
"""

from __future__ import annotations

from collections import namedtuple
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload
from numpy.typing import NDArray

from fpemu.compiled.bits import bits_of_f64, f64_of_bits, fma
from fpemu.mma.arithmetic import Operands
from fpemu.mma.compiled.fma import fma16, odd_sum
from fpemu.mma.compiled.panel import implements
from fpemu.mma.compiled.run import run
from fpemu.mma.spec import MmaSpec

_TINY = np.float32(2.0**-126)
_LIFT = np.float32(2.0**48)  # a sum below 2^-126 is a normal number after multiplication by it


# Parameters of kernels; those with `invalid`, the NaN of an invalid operation in the carrier, propagate payloads
Fma = namedtuple("Fma", ("block", "invalid"))  # VFMADD of fp32 and fp64
Fma16 = namedtuple("Fma16", ("block", "invalid"))  # VFMADD of fp16, in float32
Pairs = namedtuple("Pairs", ("block", "invalid"))  # VDPBF16PS
Tile = namedtuple("Tile", ("block", "invalid"))  # TDPBF16PS and TDPFP16PS
OddPairs = namedtuple("OddPairs", ("block",))  # BFDOT and BFMMLA with EBF = 0
FusedPairs = namedtuple("FusedPairs", ("block",))  # BFDOT and BFMMLA with EBF = 1


def _run(kind: Any, x: Operands, spec: MmaSpec) -> NDArray[Any]:
    fmt = spec.operand_formats[3]
    invalid = np.array(spec.nan_code, fmt.code_dtype).view(fmt.dtype).astype(x.C.dtype)
    return run(kind((0,) * spec.block, *[invalid[()]] * (len(kind._fields) - 1)), x, spec)


def x86_fma(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """VFMADD."""
    return _run(Fma16 if spec.operand_formats[3].name == "fp16" else Fma, x, spec)


pairs, tile = partial(_run, Pairs), partial(_run, Tile)
odd_pairs, fused_pairs = partial(_run, OddPairs), partial(_run, FusedPairs)


@njit(nogil=True, error_model="numpy", inline="always")
def _zeroed(x: Any) -> Any:
    return np.copysign(np.float32(0), x) if abs(x) < _TINY else x


@njit(nogil=True, error_model="numpy", inline="always")
def _flushing(x: Any, y: Any, z: Any) -> Any:
    """x y + z with DAZ and FTZ.

    A result of at most 2^-126 is computed again, lifted by 2^48, to find whether it is smaller after rounding with an
    unbounded exponent. If the lifted operands overflow, their sum is 0 or greater than 2^-126 and not flushed.
    """
    x, y, z = _zeroed(x), _zeroed(y), _zeroed(z)
    d = fma(x, y, z)
    lifted = fma(x * _LIFT, y, z * _LIFT)
    return np.copysign(np.float32(0), d) if abs(d) <= _TINY and abs(lifted) < _TINY * _LIFT else d


def _step(params: Any, x: Any, y: Any, z: Any) -> Any:
    """One fused multiply-add of an instruction of x86."""


@overload(_step)
def _steps(params: Any, x: Any, y: Any, z: Any) -> Any:
    function = {Fma: fma, Fma16: fma16}.get(params.instance_class, _flushing)

    def step(params: Any, x: Any, y: Any, z: Any) -> Any:
        return function(x, y, z)

    return step


@njit(nogil=True, error_model="numpy", inline="always")
def _keeping(params: Any, x: Any, y: Any, z: Any) -> Any:
    """One step, or where it is NaN the first of x, y, z that is NaN (its sum with itself is quiet), or `invalid`."""
    d = _step(params, x, y, z)
    if d == d:
        return d
    if x != x:
        return x + x
    if y != y:
        return y + y
    return z + z if z != z else params.invalid


@implements(Fma, Fma16, Pairs)
def _block(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    for q in range(k + len(params.block) - 1, k - 1, -1):  # the odd element of a pair comes first
        for j in range(len(acc)):
            acc[j] = _step(params, a[q], b[q, j], acc[j])


@implements(Fma, Fma16, Pairs, correction=True)
def _payloads(params: Any, a: Any, b: Any, c: Any, acc: Any) -> None:
    length = len(params.block)
    for j in range(len(c)):
        if acc[j] != acc[j]:
            acc[j] = c[j]
            for k in range(0, len(a), length):
                for q in range(k + length - 1, k - 1, -1):
                    acc[j] = _keeping(params, a[q], b[q, j], acc[j])


@implements(Tile)
def _block_tile(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    one, sums = np.float32(1), np.zeros((2, len(acc)), np.float32)
    for q in range(len(params.block)):
        part = sums[q % 2]
        for j in range(len(acc)):
            part[j] = _flushing(a[k + q], b[k + q, j], part[j])
    for j in range(len(acc)):
        acc[j] = _flushing(acc[j], one, _flushing(sums[0, j], one, sums[1, j]))


@implements(Tile, correction=True)
def _payloads_tile(params: Any, a: Any, b: Any, c: Any, acc: Any) -> None:
    one = np.float32(1)
    for j in range(len(c)):
        if acc[j] != acc[j]:
            d = c[j]
            for k in range(0, len(a), len(params.block)):
                even, odd = np.float32(0), np.float32(0)
                for q in range(k, k + len(params.block), 2):
                    even = _keeping(params, a[q], b[q, j], even)
                    odd = _keeping(params, a[q + 1], b[q + 1, j], odd)
                d = _keeping(params, d, one, _keeping(params, even, one, odd))
            acc[j] = d


@njit(nogil=True, error_model="numpy", inline="always")
def _to_odd(s: float) -> float:
    """A sum rounded to odd at 53 bits, rounded to odd in fp32: the 29 lower bits are replaced by a sticky bit."""
    low = np.int64((1 << 29) - 1)
    bits = bits_of_f64(s)
    kept = f64_of_bits((bits & ~low) | (np.int64(1 << 29) if bits & low != 0 else np.int64(0)))
    kept = np.copysign(0.0, s) if abs(s) < 2.0**-126 else kept
    return np.copysign(np.inf, s) if abs(s) >= 2.0**128 else (s if s != s else kept)


@implements(OddPairs)
def _block_odd(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    x0, x1 = np.float64(_zeroed(a[k])), np.float64(_zeroed(a[k + 1]))
    for j in range(len(acc)):
        p, q = _to_odd(x0 * _zeroed(b[k, j])), _to_odd(x1 * _zeroed(b[k + 1, j]))
        acc[j] = np.float32(_to_odd(odd_sum(np.float64(_zeroed(acc[j])), _to_odd(odd_sum(p, q)))))


@implements(FusedPairs)
def _block_fused(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    x0, x1 = np.float64(a[k]), np.float64(a[k + 1])
    for j in range(len(acc)):
        acc[j] += np.float32(odd_sum(x0 * b[k, j], x1 * b[k + 1, j]))
