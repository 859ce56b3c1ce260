"""Complex products on a GPU: their arguments, and the real product of the parts ("4M") for kernels of real products.

`fpemu.schemes.complex_products` defines the real product A'·B' for which A·B stands. A' and D' are the memory of A and
D; kernels/strided_copy.cu writes B'. Kernels that take complex operands read them where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from fpemu.gpu.runtime import matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Step
from fpemu.schemes.base import Call


def part(dtype: Any) -> Any:
    """Return the dtype of the parts of complex numbers, and any other dtype as it is."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def validated(given: Mapping[str, Any], check: Callable[..., Call]) -> Call:
    """Return the call with zeros in place of A', B' and C'; `check(A, B, C, **scalars)` validates a call.

    No array as large as B' is allocated: scalars are checked with small operands, shapes with real ones.
    """
    scalars = check(*np.zeros((3, 1, 1), complex))
    zero = scalars.scheme.operand.dtype.type(0)
    shapes = {name: np.broadcast_to(zero, np.shape(X)) for name, X in given.items()}
    call = check(**shapes, alpha=float(scalars.alpha != 0), beta=float(scalars.beta != 0))

    def parts(X: Any, rows: int) -> Any:
        return None if X is None else np.broadcast_to(zero, (*X.shape[:-2], rows * X.shape[-2], 2 * X.shape[-1]))

    operands = {"A": parts(call.A, 1), "B": parts(call.B, 2), "C": parts(call.C, 1)}
    return replace(call, **operands, alpha=scalars.alpha, beta=scalars.beta, form=scalars.form)


def plain(call: Call) -> Call:
    """Return the call without scalars and C if a scalar is complex, so that `combined` has to follow; else the call."""
    if not any(map(np.iscomplexobj, (call.alpha, call.beta))):
        return call
    one = call.scheme.operand.dtype.type(1)
    return replace(call, C=None, alpha=one, beta=0 * one)


def combined(call: Call, layouts: Mapping[str, Any]) -> list[Step]:
    """Return the step D = alpha · D + beta · C where a scalar is complex, or D = beta · C of an empty product."""
    D, C, scheme, scalars = layouts["D"], layouts["C"], call.scheme, (call.alpha, call.beta)
    if 0 in D.shape or not (call.empty or any(map(np.iscomplexobj, scalars))):
        return []
    addend: tuple[Any, ...] = (0, matrices.table(D), 0)
    steps, parts, narrow = (0, 0), 1 + (D.dtype.kind == "c"), 0
    if C is not None:
        c = C.broadcast(D.shape)
        addend, steps = (c.pointer, matrices.table(D), matrices.table(c, D.shape[:-2])), c.strides[-2:]
        narrow = C.dtype.itemsize == 4 * parts
    sizes = D.count, *D.shape[-2:], D.strides[-2], *steps, np.int32(parts), np.int32(narrow)
    factors = [float(x) for number in scalars for x in (number.real, number.imag)]
    plus_zero = call.empty and scheme.rounds_once and bool(np.isfinite(call.beta))
    end = *factors, np.uint64(scheme.nan_code(call.spec)), np.int32(not call.empty), np.int32(plus_zero)
    kernel = f"combine{D.dtype.itemsize // parts}"
    return [matrices.module().step(kernel, matrices.blocks(prod(D.shape)), 256, D.pointer, *addend, *sizes, *end)]


def embedded(layouts: Mapping[str, Any], allocate: Callable[[int], Any]) -> tuple[dict[str, Any], list[Step]]:
    """Return A', B', C' and D' of complex A, B, C and D, and the steps that write those that are not in place."""
    steps: list[Step] = []

    def real(X: Matrix, second: bool) -> Matrix:
        kind, (rows, columns) = part(X.dtype), X.shape[-2:]
        shape = (*X.shape[:-2], rows * (1 + second), 2 * columns)
        if not second and (X.strides[-1] == 1 or columns == 1):
            return Matrix(X.pointer, kind, shape, (*(2 * step for step in X.strides[:-1]), 1), X.owner)
        memory = allocate(max(1, X.count * shape[-2] * shape[-1]) * kind.itemsize)
        strides, grid = tuple(map(int, X.strides[-2:])), matrices.blocks(X.count * rows * columns)
        arguments = (X.pointer, memory, matrices.table(X), X.count, rows, columns, *strides, np.int32(second))
        steps.append(matrices.module().step(f"parts{kind.itemsize}", grid, 256, *arguments))
        return Matrix(memory.pointer, kind, shape, matrices.packed(shape), memory)

    return {name: None if X is None else real(X, name == "B") for name, X in layouts.items()}, steps
