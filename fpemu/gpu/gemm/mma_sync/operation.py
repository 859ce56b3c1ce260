"""What the kernels of `fpemu.gpu.gemm.mma_sync` are told: operands, scalars, batches."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.gemm.base import Kernel, Prepared, record
from fpemu.gpu.runtime.matrices import Matrix

PROBLEM = np.dtype(
    [
        *((name, "<u8") for name in ("A", "B", "C", "D")),
        *((name, "<i8") for name in ("a_row", "a_k", "b_column", "b_k", "c_row", "c_column", "d_row")),
        *((name, "<u8") for name in ("a_exponents", "b_exponents", "a_special", "b_special", "batches")),
        *((name, "<i4") for name in ("M", "N", "K")),
        ("alpha", "<f4"),
        ("beta", "<f4"),
        ("nan", "<u4"),
    ]
)
"""The struct Problem of ``kernels/split_epilogue.cuh``"""


def layout(X: Matrix, who: str) -> str:
    """How neighbours lie in memory: one of `source.LAYOUTS`."""
    along, rows = (X.strides[-1], X.strides[-2]) if who == "A" else (X.strides[-2], X.strides[-1])
    if along != 1:
        return "ALONG_ROWS"
    K = X.shape[-1 if who == "A" else -2]
    aligned = X.pointer % 16 == 0 and K % 8 == 0 and all(s % 4 == 0 for s in (rows, *X.strides[:-2]))
    return "ALONG_K_BY_FOUR" if aligned else "ALONG_K"


def describe(
    kernel: Kernel, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None
) -> NDArray[Any]:
    """The struct Problem, without its batches."""
    A, B = a.source, b.source
    values: dict[str, Any] = {
        "A": A,
        "B": B,
        "D": D,
        "C": C,
        "a_row": A.strides[-2],
        "a_k": A.strides[-1],
        "b_column": B.strides[-1],
        "b_k": B.strides[-2],
        "c_row": 0 if C is None else C.strides[-2],
        "c_column": 0 if C is None else C.strides[-1],
        "d_row": D.strides[-2],
        "M": A.shape[-2],
        "N": B.shape[-1],
        "K": A.shape[-1],
        "alpha": alpha,
        "beta": beta,
        "nan": kernel.scheme.nan_code(kernel.spec),
    }
    for name, x in (("a", a), ("b", b)):
        values |= {f"{name}_exponents": x.exponents, f"{name}_special": x.special}
    return record(PROBLEM, values)


def batches(A: Matrix, B: Matrix, C: Matrix | None, D: Matrix) -> NDArray[np.int64] | None:
    """For each product of a batch where A, B, C and D begin, and its first row and column; None if there is one."""
    lead = D.shape[:-2]
    if prod(lead) == 1:
        return None
    columns = [np.zeros(prod(lead), np.int64) if X is None else X.offsets(lead) for X in (A, B, C, D)]
    columns += [A.index(lead) * A.shape[-2], B.index(lead) * B.shape[-1]]
    return np.stack(columns, axis=1)


def moved(problem: NDArray[Any], at: NDArray[np.int64]) -> NDArray[Any]:
    """The struct Problem of one product of a batch, by its row of `batches`."""
    own = problem.copy()
    for name, size, where in (
        ("A", 4, 0),
        ("B", 4, 1),
        ("C", 4, 2),
        ("D", 4, 3),
        ("a_exponents", 4, 4),
        ("b_exponents", 4, 5),
        ("a_special", 1, 4),
        ("b_special", 1, 5),
    ):
        if own[name][0]:
            own[name] = int(own[name][0]) + size * int(at[where])
    return own
