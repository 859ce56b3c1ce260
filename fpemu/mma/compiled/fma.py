"""Compiled FMA chains; `fpemu.mma.reference.fused` is the specification.

fp32 and fp64 are the machine's own FMA. fp16 is rounded to odd in float64 first, then once to fp16.

If NaN payloads are propagated, the chains whose result is NaN are computed a second time, step by step, to find the
payload. Chains with a numeric result cost nothing extra.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu.compiled.bits import bits_of_f64, f64_of_bits, fma
from fpemu.mma.arithmetic import Operands
from fpemu.mma.compiled.panel import implements
from fpemu.mma.compiled.run import run
from fpemu.mma.spec import MmaSpec


class Fma(NamedTuple):
    """fp32 and fp64."""

    block: tuple[int, ...]


class Fma16(NamedTuple):
    """fp16 values in float32."""

    block: tuple[int, ...]


class Payloads64(NamedTuple):
    """fp64 whose NaN keep their payloads."""

    block: tuple[int, ...]
    invalid: np.int64  # the code of a NaN that comes of numbers


def chain(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Chains of FMAs, k ascending."""
    params: Any
    if spec.payloads:
        params = Payloads64((0,), np.uint64(spec.nan_code or 0).astype(np.int64))
    else:
        params = (Fma16 if spec.operand_formats[3].name == "fp16" else Fma)((0,))
    return run(params, x, spec)


@implements(Fma, Payloads64)
def _block(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    for j in range(len(acc)):
        acc[j] = fma(a[k], b[k, j], acc[j])


@njit(nogil=True, error_model="numpy", inline="always")
def odd_sum(p: float, c: float) -> float:
    """Return p + c rounded to odd at 53 bits."""
    s = p + c
    v = s - p
    error = (p - (s - v)) + (c - v)
    bits = bits_of_f64(s)
    # an even s moves one unit toward the error; away from zero if they have one sign
    outward = (error > 0) == (s > 0)
    move = (np.int64(1) if outward else np.int64(-1)) if error != 0 and bits & 1 == 0 else np.int64(0)
    return f64_of_bits(bits + move) if abs(s) < np.inf else s


@njit(nogil=True, error_model="numpy", inline="always")
def fma16(x: Any, y: Any, z: Any) -> Any:
    """Return x y + z of fp16 values in float32, rounded once to fp16."""
    v = odd_sum(np.float64(x) * np.float64(y), np.float64(z))
    ev = ((bits_of_f64(v) >> 52) & 2047) - 1023
    magic = 1.5 * f64_of_bits((1023 + 52 - 10 + min(max(ev, -14), 16)) << 52)
    r = np.copysign((v + magic) - magic, v)
    return np.float32(np.copysign(np.inf, r) if abs(r) >= 65536.0 else r)


@implements(Fma16)
def _block16(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    for j in range(len(acc)):
        acc[j] = fma16(a[k], b[k, j], acc[j])


@implements(Payloads64, correction=True)
def _payloads(params: Any, a: Any, b: Any, c: Any, acc: Any) -> None:
    quiet, used = np.int64(1 << 51), len(c)
    if not np.isnan(acc[:used]).any():
        return
    acc[:used] = c
    for k in range(len(a)):
        x = a[k]
        for j in range(used):
            y, z = b[k, j], acc[j]
            d = fma(x, y, z)
            first = bits_of_f64(x) | quiet if x != x else params.invalid
            first = bits_of_f64(z) | quiet if z != z else first
            first = bits_of_f64(y) | quiet if y != y else first
            acc[j] = f64_of_bits(first) if d != d else d
