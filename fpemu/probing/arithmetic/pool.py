"""Directed probes as data: dot products in codes, each made to show one thing.

A probe is one entry of D: a row of A, a column of B, an entry of C. It has a `level` e where the largest exponent of
its terms is e: the place below which terms are cut is then one unknown number, whatever F and E0 are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat

DEPTH = 37  # places below a level that are asked: F is at most 35
NO_LEVEL = 10**6
Pair = tuple[float, float]
Formats = tuple[FloatFormat, FloatFormat, FloatFormat, FloatFormat]


@dataclass(frozen=True)
class Pool:
    """Probes as codes: A (n, k), B (n, k), C (n,); for each its kind, its level, and where its products lie."""

    A: NDArray[Any]
    B: NDArray[Any]
    C: NDArray[Any]
    kinds: tuple[str, ...]
    levels: NDArray[np.int64]
    spans: NDArray[np.int64]
    """The products lie at the last so many positions"""
    with_c: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.C)

    def take(self, some: NDArray[np.int64]) -> Pool:
        """Some of the probes."""
        kinds = tuple(self.kinds[i] for i in some.tolist())
        arrays = (self.levels[some], self.spans[some], self.with_c[some])
        return Pool(self.A[some], self.B[some], self.C[some], kinds, *arrays)

    def join(self, other: Pool) -> Pool:
        """These probes, then the others."""
        pairs = ((getattr(self, f), getattr(other, f)) for f in ("A", "B", "C", "levels", "spans", "with_c"))
        A, B, C, e, spans, with_c = (np.concatenate(pair) for pair in pairs)
        return Pool(A, B, C, self.kinds + other.kinds, e, spans, with_c)

    def without(self, other: Pool) -> Pool:
        """The probes that are not among others."""
        old = {row.tobytes() for row in other._rows()}
        return self.take(np.flatnonzero([row.tobytes() not in old for row in self._rows()]))

    def _rows(self) -> NDArray[Any]:
        return np.concatenate([self.A, self.B, self.C[:, None]], axis=1).astype(np.uint64)
