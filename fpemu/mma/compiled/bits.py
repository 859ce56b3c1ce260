"""Bit casts, truncation and FMA as single machine operations, by LLVM intrinsics."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
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


def _fma(kind: Any) -> Any:
    @intrinsic
    def operation(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
        return kind(kind, kind, kind), lambda c, b, s, args: b.fma(*args)

    return operation


fma32 = _fma(types.float32)
fma64 = _fma(types.float64)
