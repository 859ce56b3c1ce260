"""Structures that kernels take as parameters, as NumPy records; and what all products say about their result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.gemm.kernel import Kernel
from fpemu.gpu.runtime.matrices import Matrix

RESULT = np.dtype(
    [
        *((name, "<u8") for name in ("d", "c")),
        *((name, "<i8") for name in ("d_row", "c_row", "c_column")),
        ("alpha", "<f4"),
        ("beta", "<f4"),
        ("nan", "<u8"),
    ],
    align=True,
)
"""The struct Result of ``kernels/hopper_epilogue.cuh``"""
TASK = np.dtype(
    [
        ("out", RESULT),
        *((name, "<u8") for name in ("where", "row_exponents", "column_exponents", "slices")),
        *((name, "<i4") for name in ("M", "N", "K", "batch", "group")),
    ],
    align=True,
)
"""The struct Task of ``kernels/hopper_epilogue.cuh``"""


def record(dtype: np.dtype[Any], values: Mapping[str, Any]) -> NDArray[Any]:
    """One structure: fields by name; what has a pointer stands for it, None for a null, what is not named is zero."""
    made = np.zeros(1, dtype)
    for name, value in values.items():
        made[name] = 0 if value is None else getattr(value, "pointer", value)
    return made


def result(
    kernel: Kernel, D: Matrix, alpha: Any, beta: Any, C: Matrix | None, d_at: int = 0, c_at: int = 0
) -> NDArray[Any]:
    """The struct Result for D = alpha · (A B) + beta · C, for one matrix of a stack, which begins at these elements."""
    values = {
        "d": D.pointer + 4 * d_at,
        "d_row": D.strides[-2],
        "alpha": alpha,
        "beta": beta,
        "nan": kernel.scheme.nan_code(kernel.spec),
    }
    if C is not None:
        c = C.broadcast(D.shape)
        values |= {"c": c.pointer + 4 * c_at, "c_row": c.strides[-2], "c_column": c.strides[-1]}
    return record(RESULT, values)


def places(D: Matrix, C: Matrix | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each product of a stack begins in D and in C, in elements."""
    lead = D.shape[:-2]
    return D.offsets(lead), np.zeros(D.count, np.int64) if C is None else C.broadcast(D.shape).offsets(lead)


def layout(X: Matrix | None) -> Any:
    """What a launch depends on in a matrix."""
    return None if X is None else (X.pointer, X.shape, X.strides)


def keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Enter something into a small store: a caller with ever new arrays does not fill the memory."""
    if len(kept) >= 16:
        kept.clear()
    kept[key] = value
