"""The gradients of the operators, as products by the same operators.

Each function takes the context of a product (`save`), the gradient dD of its result, and a function that multiplies as
the operator does and records gradients in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fpemu.batched.layouts import axis_of
from fpemu.torch.options import literal, read

Multiply = Callable[..., Tensor]


def save(ctx: Any, A: Tensor, B: Tensor, C: Tensor | None = None, *request: Any) -> None:
    """Save what the gradients of a product read."""
    ctx.save_for_backward(A, B)
    ctx.addend = None if C is None else (C.shape, C.dtype)
    ctx.request = request


def gemm(ctx: Any, dD: Tensor, multiply: Multiply) -> tuple[Any, ...]:
    """Return dA = alpha · (dD Bᵀ), dB = alpha · (Aᵀ dD) and dC = beta · dD."""
    A, B = ctx.saved_tensors
    scheme, alpha, beta, options = ctx.request

    def product(X: Tensor, Y: Tensor, like: Tensor) -> Tensor:
        if X.dim() == Y.dim() == like.dim() == 2:
            D = multiply(X, Y, None, scheme, alpha, 0.0, options)
        else:
            D = multiply(*_summed(X, Y, like.shape), None, scheme, alpha, 0.0, options).reshape(like.shape)
        return D if D.dtype == like.dtype else D.to(like.dtype)

    dA = product(dD, B.mT, A) if ctx.needs_input_grad[0] else None
    dB = product(A.mT, dD, B) if ctx.needs_input_grad[1] else None
    dC = None
    if ctx.needs_input_grad[2] and beta:
        shape, kind = ctx.addend
        dC = (dD if beta == 1 else beta * dD).sum_to_size(shape).to(kind)
    return dA, dB, dC, None, None, None, None


def batched(ctx: Any, dD: Tensor, multiply: Multiply) -> tuple[Any, ...]:
    """Return the gradients of a product P Q of op(A) and op(B): dP = dD Q* and dQ = P* dD, with adjoint matrices."""
    A, B = ctx.saved_tensors
    alpha, beta, layout, options = ctx.request
    fixed = 0 if layout is None else 1
    given = dict(read(options))
    transposes = [given.pop(name, "N").upper() for name in ("transa", "transb")]
    plain, last = literal(given), layout is not None and axis_of(layout) != 0
    one_product = given.get("kernel") != "magma-small"  # whose K is at most 32 on a GPU: PyTorch sums the products
    a, b, d = (_parts_first(X, last) for X in (A, B, dD))
    P, Q = (_transposed(X, t, fixed) for X, t in zip((a, b), transposes, strict=True))

    def product(X: Tensor, Y: Tensor, like: Tensor, transpose: str) -> Tensor:
        if one_product:
            X, Y = _summed(X, Y, like.shape, fixed)
        X, Y = (_parts_last(Z, last) for Z in (X, Y))
        D = _parts_first(multiply(X, Y, None, alpha.conjugate(), 0.0, layout, plain), last)
        if not one_product:
            D = D.sum_to_size(_aligned(like.shape, D.dim(), fixed))
        return _parts_last(_transposed(D.reshape(like.shape), transpose, fixed), last)

    dA = product(d, _transposed(Q, "C", fixed), P, transposes[0]) if ctx.needs_input_grad[0] else None
    dB = product(_transposed(P, "C", fixed), d, Q, transposes[1]) if ctx.needs_input_grad[1] else None
    dC = None
    if ctx.needs_input_grad[2] and beta:
        re, im = beta.real, beta.imag
        scaled = torch.stack((re * d[0] + im * d[1], re * d[1] - im * d[0])) if im else d if re == 1 else re * d
        shape, _ = ctx.addend
        shape = (2, *shape[:-1]) if last else shape
        dC = _parts_last(scaled.sum_to_size(_aligned(shape, d.dim(), fixed)).reshape(shape), last)
    return dA, dB, dC, None, None, None, None


def tallskinny(ctx: Any, dD: Tensor, multiply: Multiply) -> tuple[Any, ...]:
    """Return dA = dD Bᵀ and dB = Aᵀ dD."""
    A, B = ctx.saved_tensors
    dA = multiply(dD, B.mT) if ctx.needs_input_grad[0] else None
    return dA, multiply(A.mT, dD) if ctx.needs_input_grad[1] else None


def _parts_first(X: Tensor, last: bool) -> Tensor:
    """X with the axis of real and imaginary parts, if it is the last one, first."""
    return X.movedim(-1, 0) if last else X


def _parts_last(X: Tensor, last: bool) -> Tensor:
    """The inverse of `_parts_first`."""
    return X.movedim(0, -1) if last else X


def _transposed(X: Tensor, transpose: str, parts: int) -> Tensor:
    """X ("N"), its transpose ("T") or its adjoint ("C"); parts: 1 if the first axis is of real and imaginary parts."""
    if transpose == "N":
        return X
    return (torch.stack((X[0], -X[1])) if parts and transpose == "C" else X).mT


def _aligned(shape: Sequence[int], rank: int, fixed: int) -> tuple[int, ...]:
    """A shape with axes of length 1 after the first `fixed` axes, `rank` in all."""
    return (*shape[:fixed], *(1,) * (rank - len(shape)), *shape[fixed:])


def _summed(X: Tensor, Y: Tensor, shape: Sequence[int], fixed: int = 0) -> tuple[Tensor, Tensor]:
    """Operands whose product is X Y summed over the batch axes along which `shape` was broadcast.

    These axes become the outer part of the inner dimension, so that the sums are those of the product.
    """
    rank = max(X.dim(), Y.dim())
    X, Y = (Z.reshape(_aligned(Z.shape, rank, fixed)) for Z in (X, Y))
    n, full, kept = rank - 2, torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), _aligned(shape, rank, fixed)
    over = [i for i in range(n) if kept[i] == 1 and full[i] != 1]
    if not over:
        return X, Y
    others = [i for i in range(n) if i not in over]
    X, Y = (Z.expand(*(full[i] if i in over else Z.shape[i] for i in range(n)), *Z.shape[-2:]) for Z in (X, Y))
    X = X.permute(*others, n, *over, n + 1).flatten(len(others) + 1)
    return X, Y.permute(*others, *over, n, n + 1).flatten(len(others), -2)
