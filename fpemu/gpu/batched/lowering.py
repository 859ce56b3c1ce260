"""From a checked request and its operands to launches: one, or the four real products of a half-complex one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fpemu.arguments import product_shape
from fpemu.batched import arguments, scaling
from fpemu.errors import InputError
from fpemu.gpu.batched import call, stacks
from fpemu.gpu.batched.call import Product, Scaling
from fpemu.gpu.batched.request import Request
from fpemu.gpu.batched.stacks import HALF, Operand
from fpemu.gpu.runtime import matrices
from fpemu.gpu.runtime.matrices import Matrix


def queue(stacked: dict[str, Any], request: Request) -> None:
    """Queue the product, after copies of operands that kernels cannot read; four calls use planar copies."""
    operands = {name: stacks.operand(X, request.layout, name) for name, X in stacked.items()}
    copies = request.algorithm == "calls" and request.layout == "interleaved"
    planar = {name: _planar(X, copied=name != "out") for name, X in operands.items()} if copies else operands
    for product in launches_of(planar, request, True):
        product.queue()
    if copies:
        matrices.copy(_parts_first(planar["out"]), _parts_first(operands["out"]))


def _planar(X: Operand, *, copied: bool) -> Operand:
    """The same matrices in the planar layout, in new memory."""
    planar = matrices.copy(_parts_first(X)) if copied else matrices.empty((2, *X.shape), HALF)
    return stacks.operand(planar, "planar", "a copy")


def _parts_first(X: Operand) -> Matrix:
    """The two parts as the first axis of a stack."""
    steps = tuple(s // 2 for s in (X.plane, *X.strides))
    return Matrix(X.first, HALF, (2, *X.shape), steps, X)


def shape_of(operands: dict[str, Operand], request: Request) -> tuple[tuple[int, ...], int, int, int]:
    """The batch, M, N and K of the product, transposes done; raises as `fpemu.batched` does."""
    zeros = {name: np.broadcast_to(np.float16(0), X.shape) for name, X in operands.items()}
    a = arguments.transposed(zeros["A"], request.transa, "transa")
    b = arguments.transposed(zeros["B"], request.transb, "transb")
    shape = product_shape(a, b, arguments.factor_names(request.transa, request.transb))
    scaling.needs_c(zeros.get("C"), request.beta if request.has_c else 0, shape)
    if "C" in zeros:
        arguments.check_addend(zeros["C"], shape)
    if "out" in zeros and zeros["out"].shape != shape:
        raise InputError(f"out has shape {zeros['out'].shape}, and the product {shape}")
    return shape[:-2], shape[-2], shape[-1], a.shape[-1]


def launches_of(operands: dict[str, Operand], request: Request, overlap: bool) -> list[Product]:
    if 0 in operands["out"].shape:
        return []
    a = operands["A"].transposed if request.transa != "N" else operands["A"]
    b = operands["B"].transposed if request.transb != "N" else operands["B"]
    c, d = operands.get("C") if request.has_c else None, operands["out"]
    if not d.along_columns:
        raise InputError("out must have contiguous rows")
    if request.algorithm != "calls":
        return [call.prepare(a, b, c, d, request.arithmetic, request.scaling, request.choose, overlap=overlap)]
    if d.unit == 4:
        raise InputError("algorithm='calls' is prepared on planar arrays only")
    return _four_calls(a, b, c, d, request, overlap)


def _four_calls(
    a: Operand, b: Operand, c: Operand | None, d: Operand, request: Request, overlap: bool
) -> list[Product]:
    """Cr = Ar Br + beta Cr, Cr -= Ai Bi, Ci = Ar Bi + beta Ci, Ci += Ai Br (section 6.2); conjugates change signs."""
    alpha, launches = request.scaling.alpha[0], []
    for part, i, j in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
        first = i == 0
        addend = (None if c is None else _part(c, part)) if first else _part(d, part)
        beta = request.scaling.beta if first else (1.0, 0.0)
        factors = Scaling((alpha if first or part else -alpha, 0.0), beta)
        negative_a, negative_b = (k == 1 and t == "C" for k, t in ((i, request.transa), (j, request.transb)))
        arithmetic = replace(request.arithmetic, conjugate_a=negative_a, conjugate_b=negative_b)
        operands = _part(a, i), _part(b, j), addend, _part(d, part)
        launches.append(call.prepare(*operands, arithmetic, factors, request.choose, overlap=overlap))
    return launches


def _part(X: Operand, index: int) -> Operand:
    return Operand(X.first + index * X.plane, X.shape, X.strides, 0, 2, None, X)
