"""Bit casts, truncation and FMA as single machine operations, by LLVM intrinsics; the one rounding of a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# numba calls the code generator of an intrinsic with (context, builder, signature, arguments)


@intrinsic
def bits_of_f32(typing_context: Any, x: Any) -> Any:
    """Return the int32 pattern of a float32."""
    return types.int32(types.float32), lambda c, b, s, args: b.bitcast(args[0], ir.IntType(32))


@intrinsic
def f32_of_bits(typing_context: Any, x: Any) -> Any:
    """Return the float32 of an int32 pattern."""
    return types.float32(types.int32), lambda c, b, s, args: b.bitcast(args[0], ir.FloatType())


@intrinsic
def bits_of_f64(typing_context: Any, x: Any) -> Any:
    """Return the int64 pattern of a float64."""
    return types.int64(types.float64), lambda c, b, s, args: b.bitcast(args[0], ir.IntType(64))


@intrinsic
def f64_of_bits(typing_context: Any, x: Any) -> Any:
    """Return the float64 of an int64 pattern."""
    return types.float64(types.int64), lambda c, b, s, args: b.bitcast(args[0], ir.DoubleType())


def _unary(name: str) -> Any:
    @intrinsic
    def operation(typing_context: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.call(builder.module.declare_intrinsic(name, [ir.DoubleType()]), args)

        return types.float64(types.float64), emit

    return operation


trunc = _unary("llvm.trunc")
floor = _unary("llvm.floor")


@intrinsic
def fma(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x·y + z with one rounding, for three float32 or three float64."""
    return x(x, x, x), lambda c, b, s, args: b.fma(*args)


@njit(nogil=True, error_model="numpy", inline="always")
def power(e: int) -> float:
    """Return 2^e, a normal number of float64."""
    return f64_of_bits(np.int64(1023 + e) << 52)


@njit(nogil=True, error_model="numpy", inline="always")
def mixed(state: Any, index: Any) -> Any:
    """Return the word of SplitMix64 at an index, of uint64 as the state; `fpemu.rounding._words_at` nests them."""
    x = state + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, error_model="numpy", inline="always")
def rounded(params: Any, v: float, word: float) -> Any:
    """Round a float64 number once to a format, keeping the sign of a zero; RZ overflows to Inf too.

    `params` has the exponents `emin` and `emax` of the format, its fraction bits, and the kind of rounding `final`: of
    length 1 RZ, 2 RNE, 3 SR, whose last entry is 2^r; `word` has the r random bits of SR.
    """
    ev = ((bits_of_f64(v) >> 52) & 2047) - 1023
    quantum = min(max(ev, params.emin), params.emax + 1) - params.fraction
    if len(params.final) == 2:
        magic = 1.5 * power(52 + quantum)  # its last place is the quantum: the sum rounds to nearest even there
        r = (v + magic) - magic
    elif len(params.final) == 3:
        units = abs(v) * power(-quantum)
        low = trunc(units)  # the sum below is exact: it has fewer than 53 bits
        r = (low + (floor((units - low) * params.final[-1]) + word >= params.final[-1])) * power(quantum)
    else:
        r = trunc(v * power(-quantum)) * power(quantum)
    r = np.inf if abs(r) >= power(params.emax + 1) else r
    return np.float32(np.copysign(r, v))
