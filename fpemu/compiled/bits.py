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
def rounded(params: Any, v: float) -> Any:
    """Round a float64 number once to a format, keeping the sign of a zero; RZ overflows to Inf too.

    `params` has the exponents `emin` and `emax` of the format, its fraction bits, and the kind of rounding.
    """
    ev = ((bits_of_f64(v) >> 52) & 2047) - 1023
    quantum = min(max(ev, params.emin), params.emax + 1) - params.fraction
    if len(params.nearest) == 2:
        magic = 1.5 * power(52 + quantum)  # its last place is the quantum: the sum rounds to nearest even there
        r = (v + magic) - magic
    else:
        r = trunc(v * power(-quantum)) * power(quantum)
    r = np.inf if abs(r) >= power(params.emax + 1) else r
    return np.float32(np.copysign(r, v))
