"""Operands of the recorded products, as functions of index and seed, and the digests of D."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import digests
from fpemu.library.product import INPUT_DTYPES

SAMPLE = 32  # largest number of rows and of columns in the sample of D


def operands(
    kind: str, M: int, N: int, K: int, seed: int, rows: NDArray[Any] | None = None, columns: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A (M, K) and B (K, N) of a recorded product, or A[rows] and B[:, columns] alone: values of either sign in
    [1/4, 4)."""
    rows = np.arange(M) if rows is None else rows
    columns = np.arange(N) if columns is None else columns
    along = np.arange(K, dtype=np.int64)
    a = values(rows.astype(np.int64)[:, None] * K + along, kind, 2 * seed, np.float64)
    b = values(along[:, None] * N + columns.astype(np.int64), kind, 2 * seed + 1, np.float64)
    return a.astype(INPUT_DTYPES[kind]), b.astype(INPUT_DTYPES[kind])


def values(index: Any, kind: str, seed: int, double: Any) -> Any:
    """The operands at int64 indices in float64, the array library's `double`; `index` is a NumPy array or a tensor.

    No product of the integers here exceeds 63 bits.
    """
    precision = {"fp16": 11, "fp16->fp16": 11, "bf16": 8, "fp64": 53}.get(kind, 24)
    h = _mixed(index, seed)
    fraction = h & (2 ** min(precision - 1, 23) - 1)
    if precision == 53:
        fraction = fraction + (_mixed(index, seed + 7919) & (2**29 - 1)) * 2**23
    power = ((h >> 23 & 1) + 1) * ((h >> 24 & 1) * 3 + 1)  # 1, 2, 4, 8
    whole = (fraction + 2 ** (precision - 1)) * power * (1 - (h >> 25 & 1) * 2)
    return (whole.astype(double) if isinstance(whole, np.ndarray) else whole.to(double)) * 2.0 ** (-1 - precision)


def _mixed(index: Any, seed: int) -> Any:
    """32 pseudorandom bits for each index."""
    h = (index * 0x1E3779B1 + (seed * 0x9E3779B1 + 0x7F4A7C15) % 2**32) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x68E31DA5)):
        h = ((h ^ (h >> shift)) * factor) & 0xFFFFFFFF
    return h ^ (h >> 16)


def sample_indices(M: int, N: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The evenly spread rows and columns of the sample of D."""
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64)) for n in (M, N))
    return rows, columns


def digest_of(D: NDArray[Any]) -> str:
    """The digest of a product's bits, as the tables hold it."""
    D = np.ascontiguousarray(D)
    return digests.text(D.view(f"u{D.itemsize}"))
