"""The operands of advice: their norms, and the rows and columns on which errors are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, reference
from fpemu.arguments import as_array, as_float64
from fpemu.errors import InputError, entries
from fpemu.theory import Norms

Array = NDArray[Any]
SMALL = 2**24
"""Multiply-adds of the product on which every candidate with a sufficient bound is tried."""
LARGE = {"probable": 2**33, "worst": 2**36}
"""Largest number of multiply-adds for which norms are those of all entries, by the confidence; else of a sample."""
MEASURES = ("normwise", "relative_l2", "max_relative", "mred", "max_error_legemm")
"""Measures of a relative error."""
MEANS = ("relative_l2", "mred")
"""Measures that are means over the entries, not maxima."""


class Change(NamedTuple):
    """Effect of rounding a matrix to fp32."""

    largest: float
    """Largest relative change of an entry; inf where one overflows"""
    typical: float
    """Norm of the change divided by the norm of the matrix"""
    lost: bool
    """Whether all entries become zero"""


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of A and columns of B, with the exact product rounded to fp64."""

    A: Array
    B: Array
    whole: bool
    """Whether these are all rows and columns"""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the product."""
        return self.A.shape[0], self.B.shape[1]

    def operations(self, products: int) -> int:
        """Multiply-adds of this many products of the block."""
        return self.A.shape[0] * self.A.shape[1] * self.B.shape[1] * products

    @cached_property
    def exact(self) -> Array:
        """AB, rounded once to fp64."""
        return np.asarray(reference.matmul(self.A, self.B))

    def error(self, D: Array, measure: str) -> float:
        """The error of a result of this product."""
        if measure == "normwise":
            return metrics.normwise(D, self.exact, self.A, self.B)
        return float(metrics.get(measure)(D, self.exact))


@dataclass(frozen=True, eq=False)
class Data:
    """A (M, K) and B (K, N) in float64, finite and not empty: the user's, or drawn from a distribution."""

    A: Array
    B: Array
    given: bool
    text: str
    seed: int = 0
    confidence: str = "probable"

    @staticmethod
    def read(A: Any, B: Any, seed: int, confidence: str = "probable") -> Data:
        """The user's operands, checked."""
        a, b = (_matrix(X, name) for X, name in ((A, "A"), (B, "B")))
        if a.shape[1] != b.shape[0]:
            raise InputError(
                f"A of shape {a.shape} and B of shape {b.shape}: A has {a.shape[1]} columns and B {b.shape[0]} rows"
            )
        text = f"A {a.shape[0]}×{a.shape[1]} and B {b.shape[0]}×{b.shape[1]}"
        return Data(a, b, True, text, seed, confidence)

    @staticmethod
    def draw(name: str, parameters: dict[str, Any], rows: int, K: int, dtype: str, seed: int) -> Data:
        """Rows and columns of a named distribution."""
        A, B = inputs.operands(name, rows, rows, K, seed, dtype, **parameters)
        shown = ", ".join([f"{key}={value}" for key, value in parameters.items()])
        size = f"{rows} rows and columns" if rows > 1 else "a row and a column"
        text = f"{size} in {dtype} drawn as {name}" + (f" ({shown})" if shown else "")
        return replace(Data.read(A, B, seed), given=False, text=f"{text}, seed {seed}")

    @property
    def K(self) -> int:  # noqa: N802
        """Length of the sums."""
        return int(self.A.shape[1])

    @cached_property
    def whole(self) -> Block:
        """All rows and columns."""
        return Block(self.A, self.B, True)

    def of(self, tried: tuple[int, int]) -> str:
        """The entries tried, in words."""
        if not self.given:
            return self.text
        some = "all entries" if tried == self.whole.shape else f"{tried[0]} rows and {tried[1]} columns"
        return f"{some} of {self.text}"

    @cached_property
    def zero(self) -> bool:
        """Whether every product a_ik b_kj is zero, so that every scheme is exact."""
        return not (self.A.any(axis=0) & self.B.any(axis=1)).any()

    @cached_property
    def are_fp32(self) -> bool:
        """Whether all entries are fp32 numbers."""
        return all(np.array_equal(_as_fp32(X), X) for X in (self.A, self.B))

    @cached_property
    def changed(self) -> tuple[Change, Change]:
        """The effect of rounding A and B to fp32."""
        return _change(self.A), _change(self.B)

    @cached_property
    def small(self) -> Block:
        """Some rows and columns, `SMALL` multiply-adds at most: see `_selected`."""
        side = max(8, int((SMALL / self.K) ** 0.5))
        rows = _selected(self.A, side, self.seed)
        columns = _selected(self.B.T, side, self.seed + 1)
        whole = len(rows) == self.A.shape[0] and len(columns) == self.B.shape[1]
        return self.whole if whole else Block(self.A[rows], np.ascontiguousarray(self.B[:, columns]), False)

    # --- norms

    @cached_property
    def norms(self) -> Norms:
        """Norms of the operands; of large ones the norms of the sample with the range of all entries."""
        norms = Norms.of(self.for_norms.A, self.for_norms.B)
        if self.for_norms.whole:
            return norms
        (low, high), (under, over) = (_range(X) for X in (self.A, self.B))
        return replace(norms, min_A=low, max_A=high, min_B=under, max_B=over, max_S=np.inf)

    @property
    def for_norms(self) -> Block:
        """The block whose norms are computed."""
        M, N = self.whole.shape
        count = M * N * max(self.K, 2**10)  # the product is stored too
        return self.whole if count <= LARGE[self.confidence] else self.small

    def factor(self, measure: str) -> float:
        """Largest ratio of an error in a measure to the error relative to (|A||B|)_ij; inf for a reference of zero."""
        if measure == "normwise":
            return 1.0
        if measure == "relative_l2":
            size = self.norms.result - self.K * 2.0**-52  # the norm of a product in float64
            return 1 / size if size > 0 else np.inf
        return float(self._ratios.mean() if measure == "mred" else self._ratios.max())

    @cached_property
    def _ratios(self) -> Array:
        """Upper bounds of (|A||B|)_ij / |AB|_ij."""
        # rows and columns are scaled, so that products of small ones do not underflow
        a, b = (
            np.ldexp(X, -np.frexp(np.abs(X).max(axis=axis, keepdims=True))[1])
            for X, axis in ((self.for_norms.A, 1), (self.for_norms.B, 0))
        )
        S, R = np.abs(a) @ np.abs(b), a @ b
        sure = np.abs(R) - self.K * 2.0**-52 * S
        terms = (a != 0).astype(np.float64) @ (b != 0).astype(np.float64)
        return np.where(terms == 0, 0, np.where((sure > 0) & (S > 2.0**-900), S / np.where(sure > 0, sure, 1), np.inf))


def _matrix(X: Any, name: str) -> Array:
    x = as_array(X, name)
    if x.ndim != 2:
        more = ": advise on one product of a batch at a time" if x.ndim > 2 else ""
        raise InputError(f"{name} must be a matrix (rows, columns), not of shape {x.shape}{more}")
    if not x.size:
        raise InputError(f"{name} of shape {x.shape} has no entries")
    wide = np.ascontiguousarray(as_float64(x, name))
    bad = ~np.isfinite(wide)
    if bad.any():
        raise InputError(f"{name}: NaN or infinite: {entries(bad, wide)}; no bound holds for such a product")
    return wide


def _selected(X: Array, most: int, seed: int) -> Sequence[int]:
    """Rows of X to try: an eighth each with the largest entries, the widest ranges, the largest ratios of maximum to
    mean, the smallest entries and the smallest ratios; the rest at random."""
    count = len(X)
    if count <= most:
        return range(count)
    sizes = np.abs(X)
    high, low = sizes.max(axis=1), np.where(sizes > 0, sizes, np.inf).min(axis=1)
    mean = sizes.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        peaks = high / np.where(mean > 0, mean, np.inf)
        scores = [high, high / low, peaks, *(np.where(high > 0, -score, -np.inf) for score in (high, peaks))]
    chosen: dict[int, None] = {}
    for score in scores:
        chosen.update(dict.fromkeys(np.argsort(-score, kind="stable")[: max(1, most // 8)].tolist()))
    rest = np.random.default_rng(seed).permutation(count).tolist()
    for i in rest:
        if len(chosen) >= most:
            break
        chosen[i] = None
    return sorted(chosen)


def _range(X: Array) -> tuple[float, float]:
    """The smallest nonzero and the largest magnitude."""
    sizes = np.abs(X)
    return float(np.where(sizes > 0, sizes, np.inf).min()), float(sizes.max())


def _as_fp32(X: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return X.astype(np.float32)


def _change(X: Array) -> Change:
    x = np.abs(X[X != 0])
    near = _as_fp32(x).astype(np.float64)
    change = np.abs(near / x - 1)
    if not x.size or np.isinf(near).any():
        return Change(np.inf if x.size else 0.0, 0.0, not x.size)
    sizes = np.ldexp(x, -int(np.frexp(x.max())[1]))
    typical = np.linalg.norm(change * sizes) / np.linalg.norm(sizes)
    return Change(float(change.max()), float(typical), not near.any())
