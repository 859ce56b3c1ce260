"""Shapes and dtypes of the operators' results, for tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fpemu.batched.layouts import axis_of
from fpemu.errors import InputError
from fpemu.torch.options import dtype, read


def gemm(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: float = 1.0, beta: float = 0.0, options: str = ""
) -> Tensor:
    shape = _shape(A.shape, B.shape, None if C is None or not beta else C.shape)
    _check_addend(None if C is None else C.shape, shape)
    return A.new_empty(shape, dtype=dtype(scheme, options))


def batched(
    A: Tensor,
    B: Tensor,
    C: Tensor | None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    layout: str | None = None,
    options: str = "",
) -> Tensor:
    given, axis = read(options), None if layout is None else axis_of(layout)
    a, b = (_matrix_shape(X.shape, axis, given.get(name, "N")) for X, name in ((A, "transa"), (B, "transb")))
    shape = _shape(a, b, None)
    _check_addend(None if C is None else _matrix_shape(C.shape, axis, "N"), shape)
    return A.new_empty(shape if axis is None else (2, *shape) if axis == 0 else (*shape, 2))


def tallskinny(A: Tensor, B: Tensor) -> Tensor:
    for name, X in (("A", A), ("B", B)):
        if X.dim() != 2:
            raise InputError(f"{name} has shape {tuple(X.shape)}: one matrix, with two axes, is needed")
    return A.new_empty(
        _shape(A.shape, B.shape, None), dtype=torch.float64 if A.dtype == torch.float64 else torch.float32
    )


def _shape(a: Sequence[int], b: Sequence[int], c: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of D, with the batch axes of C."""
    for name, shape in (("A", a), ("B", b), ("C", c)):
        if shape is not None and len(shape) < 2:
            raise InputError(f"{name} must be a matrix (..., rows, columns), not of shape {tuple(shape)}")
    if a[-1] != b[-2]:
        raise InputError(f"A of shape {tuple(a)} and B of shape {tuple(b)} do not fit")
    batch = [shape[:-2] for shape in (a, b, c) if shape is not None]
    return (*torch.broadcast_shapes(*batch), a[-2], b[-1])


def _check_addend(c: Sequence[int] | None, shape: tuple[int, ...]) -> None:
    if c is not None and tuple(c[-2:]) != shape[-2:]:
        raise InputError(f"C of shape {tuple(c)} does not fit the product of shape {shape}")


def _matrix_shape(shape: Sequence[int], axis: int | None, transpose: str) -> Sequence[int]:
    """The shape of a transposed operand, without the axis of real and imaginary parts."""
    if axis is not None:
        shape = shape[1:] if axis == 0 else shape[:-1]
    return shape if transpose.upper() == "N" or len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2])
