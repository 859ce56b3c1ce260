"""Error of a chain on random operands: a partial sum that drifts and walks, and every rounding along it.

After terms that are a fraction t of S the partial sum over S is c = m t + v W(t): a drift, and a walk of variance
v^2 at the end. m^2 + v^2 is the square of `Norms.part`, and the squares of all terms sum to `Norms.spread`^2 =
v^2 + m^2 / K. `Norms.along` relates t to k: if large terms come first, most blocks are added to a large sum.

`fpemu.theory.losses` models the error of a block. The error of truncating c has the sign of c, which persists: these
errors add up with the covariance of the walk, not as independent errors. They are averaged over c at Gauss-Hermite
points, on a few stretches of the chain. The bias is the part of the error that has the sign of the final sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.lowering import Chains
from fpemu.theory.losses import Products, losses
from fpemu.theory.norms import SHARES, STRETCHES, Norms
from fpemu.theory.parts import LEAST_TAIL

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """The sum of the products a_ik b_kj over S: m, v, sum of squares."""

    K: int
    mean: float
    deviation: float
    square: float
    uneven: float = 1.0
    S: float = math.nan
    """Typical size of S_ij, which determines where partial sums of one sign pass powers of two"""
    terms: tuple[float, ...] = (1.0,) * len(SHARES)
    """`Norms.terms`"""
    shares: tuple[float, ...] = (1 / STRETCHES,) * STRETCHES
    """`Norms.along`"""

    @staticmethod
    def of(norms: Norms) -> Data:
        """From the norms of two matrices."""
        K = norms.K
        square = norms.spread**2
        whole = norms.part**2
        mean = min(max(whole - square, 0.0) / (1 - 1 / K), whole) if K > 1 else whole
        sizes = math.sqrt(mean), math.sqrt(max(whole - mean, 0.0)), square
        return Data(K, *sizes, norms.uneven, norms.rms_S, norms.terms, norms.along)

    def along(self) -> tuple[float, float]:
        """E[sign C] and E[W(1) sign C] for C = m + v W(1), W standard normal."""
        if self.deviation == 0:
            return 1.0, 0.0
        h = self.mean / self.deviation
        return math.erf(h / math.sqrt(2)), math.sqrt(2 / math.pi) * math.exp(-(h**2) / 2)

    def tail(self, mean: float, variance: float) -> float:
        """`Part.tail` for roundings of partial sums with this mean and variance at their end.

        A rounding error to nearest is proportional to the sum that it rounds. If the sums walk, their mean square
        differs between entries: among 10^2 to 10^5 products of such a size and a normal number the largest are 1.8
        times those of normal numbers. `parts.LEAST_TAIL` multiplies that.
        """
        walks = variance / 2
        share = walks / (mean**2 / 3 + walks) if walks else 0.0
        return math.sqrt((LEAST_TAIL * (1 + 0.8 * share)) ** 2 + share * (self.uneven**2 - 1))

    def along_chain(self, parts: float, blocks: int, at: Floats) -> tuple[Floats, Floats]:
        """Shares of drift and variance, in blocks of their mean, before the block `at` of a chain and in that block.

        The mean of `parts` equal chains of so many blocks; arrays of shape (n, 2). The variance of a stretch of k is
        taken as proportional to the square of its drift.
        """
        grid, ends = np.linspace(0, 1, STRETCHES + 1), np.stack([at, at + 1]) / blocks
        # the sums of many short chains grow evenly
        starts = np.arange(math.ceil(parts)) / parts if parts <= STRETCHES else None
        columns = []
        for shares in (np.array(self.shares), np.array(self.shares) ** 2):
            if starts is not None:
                along = np.concatenate([[0.0], np.cumsum(shares)])
                chains = np.interp(starts + grid[:, None] / parts, grid, along) - np.interp(starts, grid, along)
                columns.append(np.interp(ends, grid, chains.sum(axis=1) / chains[-1].sum()))
            else:
                columns.append(ends)
        before, after = np.stack(columns, axis=-1) * blocks
        return before, after - before

    @property
    def whole(self) -> float:
        """Root mean square of C"""
        return math.hypot(self.mean, self.deviation)

    @property
    def size(self) -> float:
        """E|C|"""
        one, two = self.along()
        return self.mean * one + self.deviation * two


@dataclass(frozen=True)
class Steps:
    """The products of two words: m and the sum of squares times these factors, magnitudes too."""

    data: Data
    mean: float = 1.0
    square: float = 1.0
    magnitude: float = 1.0
    main: bool = True
    """Whether their sum is nearly AB: its walk then has the sign of the result"""

    @property
    def drift(self) -> float:
        """Mean of their sum over S."""
        return self.data.mean * self.mean

    @property
    def squares(self) -> float:
        """Sum of their squares over S^2."""
        return self.data.square * self.square

    @property
    def variance(self) -> float:
        """Variance of their sum over S^2."""
        return max(self.squares - self.drift**2 / self.data.K, 0.0)


@dataclass(frozen=True)
class Drift:
    """A mean error relative to S."""

    data: Data
    mean: float = 0.0
    """In the direction of the drift m"""
    covariance: float = 0.0
    """With the walk of the result, W(1)"""
    square: float = 0.0
    """Mean square about the mean"""

    def __add__(self, other: Drift) -> Drift:
        parts = (self.mean + other.mean, self.covariance + other.covariance, self.square + other.square)
        return Drift(self.data, *parts)

    @property
    def relative(self) -> tuple[float, float]:
        """Bias and deviation of a Part."""
        one, two = self.data.along()
        bias = self.mean * one + self.covariance * two
        return bias, math.sqrt(max(self.mean**2 + self.square - bias**2, 0.0))


def rounding(data: Data, mean: float, variance: float, unit: float, count: float = 1.0) -> Drift:
    """`count` roundings to nearest of sums of this mean and variance, with unit roundoff `unit`."""
    return Drift(data, square=count * (mean**2 + variance) * 0.541 * unit**2 / 3)


def outside(data: Data, additions: int, mean: float, variance: float, unit: float) -> Drift:
    """A running sum of equal parts in that many additions, each to nearest: partial sums grow evenly."""
    return rounding(data, mean / math.sqrt(3), variance / 2, unit, additions)


def inside(terms: Sequence[Steps], spec: MmaSpec, chains: Chains, turns: bool) -> Drift:
    """Mean error of the chains of one accumulator, without additions outside the instruction."""
    data, turns, mean = terms[0].data, turns and chains.rounds > 1, sum(t.drift for t in terms)
    blocks = max(1, round(chains.total_blocks / chains.even))
    parts = chains.total_blocks / blocks
    one, down = _chain(terms, spec, parts, blocks, turns)
    toward_zero = Drift(data, min(one.mean * parts, mean), one.covariance * parts, one.square * parts)
    # toward minus infinity is toward zero for positive sums
    return toward_zero + Drift(data, parts * down * data.mean, 0.0, (parts * down) ** 2 * max(1 - data.mean**2, 0.0))


def drift(terms: Sequence[Steps], spec: MmaSpec, order: KOrder, chains: Chains, turns: bool) -> Drift:
    """Mean error of the chains of one accumulator, with additions outside and joins of slices."""
    data, result = terms[0].data, inside(terms, spec, chains, turns)
    n, mean, variance = chains.total, sum(t.drift for t in terms), sum(t.variance for t in terms)
    unit = 2.0**-53 if str(spec.d_format) == "fp64" else 2.0**-24
    slices = chains.slices
    if n > slices:
        result += outside(data, n - slices, mean / slices, variance / slices, unit)
    if slices > 1:
        result += outside(data, chains.joins(order), mean, variance, unit)
    if str(spec.d_format) == "fp16" and n > 1:
        result += rounding(data, mean, variance, 2.0**-11)
    return result


def _chain(terms: Sequence[Steps], spec: MmaSpec, parts: float, blocks: int, turns: bool) -> tuple[Drift, float]:
    """One of `parts` equal chains, with so many blocks for each term; and its loss toward minus infinity."""
    data, count = terms[0].data, parts * blocks
    edges = np.unique(np.rint(np.linspace(0, blocks, min(blocks, STRETCHES) + 1)))
    steps, middle = np.diff(edges), (edges[:-1] + edges[1:] - 1) / 2
    sizes = np.array([[t.drift / count, t.variance / count] for t in terms])  # of a block
    # shares of the drift and of the variance: before a block, in blocks of the mean, and of the block itself
    before, local = data.along_chain(parts, blocks, middle)
    blocks_lost, variances = [], []
    for i, term in enumerate(terms):
        # the earlier terms are one step ahead, or complete
        passed = sizes[:i].sum(axis=0) * (local if turns else blocks)
        ahead = before * (sizes.sum(axis=0) if turns else sizes[i]) + passed
        L = min(spec.block, data.K)
        sign = max(min(term.drift / term.magnitude, 1.0), -1.0) if term.magnitude else 0.0
        squares = term.squares / data.K * local[:, 1]
        products = Products(L, term.magnitude / data.K * local[:, 0], squares, sign, data.terms)
        step = sizes[i, 0] * local[:, 0], sizes[i, 1] * local[:, 1]
        blocks_lost.append(losses(products, spec, ahead[:, 0], ahead[:, 1], step, data.S))
        variances.append(ahead[:, 1])
    weights = np.tile(steps, len(terms))
    mean, slope, square, down = (
        np.concatenate([getattr(f, name) for f in blocks_lost]) * weights
        for name in ("mean", "slope", "square", "down")
    )
    at = np.concatenate(variances)
    whole = math.sqrt(sum(t.variance for t in terms))
    covariance = float(slope @ at) / whole if whole and any(t.main for t in terms) else 0.0
    walk = float(slope @ np.minimum.outer(at, at) @ slope)
    return Drift(data, float(mean.sum()), covariance, walk + float(square.sum())), float(down.sum())
