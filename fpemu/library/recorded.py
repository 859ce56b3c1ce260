"""The operands whose products by a library are recorded, as a function of place and seed, and the digests of D."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.digests import digest

SAMPLE = 32  # rows and columns of D, at most, whose digest is kept beside that of all


def operands(
    kind: str, M: int, N: int, K: int, seed: int, rows: NDArray[Any] | None = None, columns: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A (M, K) and B (K, N) of a recorded product, or A[rows] and B[:, columns] alone.

    Values of either sign in [1/4, 4), a function of place and seed.
    """
    rows = np.arange(M) if rows is None else rows
    columns = np.arange(N) if columns is None else columns
    along = np.arange(K, dtype=np.int64)
    a = values(rows.astype(np.int64)[:, None] * K + along, kind, 2 * seed, np.float64)
    b = values(along[:, None] * N + columns.astype(np.int64), kind, 2 * seed + 1, np.float64)
    return a.astype(carrier(kind)), b.astype(carrier(kind))


def carrier(kind: str) -> Any:
    """The dtype of a type's inputs."""
    return {"fp16": np.float16, "fp16->fp16": np.float16, "fp64": np.float64}.get(kind, np.float32)


def values(index: Any, kind: str, seed: int, double: Any) -> Any:
    """The operands at int64 indices, in double precision: of a NumPy array or, on the GPU, of a tensor.

    `double` is the array library's double. No product of the integers here exceeds 63 bits.
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
    """32 bits from an index."""
    h = (index * 0x1E3779B1 + (seed * 0x9E3779B1 + 0x7F4A7C15) % 2**32) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x68E31DA5)):
        h = ((h ^ (h >> shift)) * factor) & 0xFFFFFFFF
    return h ^ (h >> 16)


def places(M: int, N: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows and columns of D of which the sample's digest is taken, evenly spread."""
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64)) for n in (M, N))
    return rows, columns


def digest_of(D: NDArray[Any]) -> str:
    """The digest of a product's bits."""
    D = np.ascontiguousarray(D)
    return f"{digest(D.view(f'u{D.itemsize}')):016x}"
