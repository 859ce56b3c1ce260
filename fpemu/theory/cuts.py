"""Error of a product from omitted digits of random elements, and from roundings: for `slicing`, `modular`, `errorfree`.

Element a_ik loses t_k 2^e_i, with 2^e_i the power of two above the largest element of row i. `Elements` models the mean
of t_k in the direction of the element and its mean square; the remainder is taken as independent over k. An entry then
loses mean · (sum of sign(a_ik) b_kj) 2^e_i / S_ij in one direction, and its deviation follows from the norms
`fpemu.theory.norms.Cut` without any assumption on rows and columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from fpemu.formats import FloatFormat
from fpemu.theory import walk
from fpemu.theory.norms import Cut, Norms
from fpemu.theory.parts import LEAST_TAIL, Part

SLACK = 1 + 2.0**-20
"""Covers the roundings of the norms and of the bounds."""
_ROUNDING = math.sqrt(1 / (8 * math.log(2)))
"""Root mean square of a rounding error over u |x|: 2^e u / sqrt(3), |x| in [2^e, 2^(e+1)) logarithmically uniform."""


@dataclass(frozen=True)
class Elements:
    """The elements of random rows relative to 2^e_i, modelled as lognormal."""

    mean: float
    sigma: float
    """Standard deviation of the logarithm"""
    grid: float
    """Common unit of all elements, below their last place where they come from few random bits"""

    @staticmethod
    def of(norms: Norms, side: str) -> Elements:
        """The model of A or B."""
        mean, rms = norms.magnitudes(side)
        cut, top, unit = (
            (norms.cut_A, norms.max_A, norms.unit_A) if side == "A" else (norms.cut_B, norms.max_B, norms.unit_B)
        )
        return Elements(
            mean=min(lone(norms, "B" if side == "A" else "A") / cut.random, 1.0) if cut.random else 1.0,
            sigma=math.sqrt(max(2 * math.log(rms / mean), 1e-6)),
            grid=math.ldexp(unit, -math.frexp(top)[1]) if math.isfinite(unit) else 0.0,
        )

    def _z(self, x: float) -> float:
        return (math.log(x / self.mean) + self.sigma**2 / 2) / self.sigma

    def above(self, x: float) -> float:
        """Probability that an element is larger."""
        return 1 - NormalDist().cdf(self._z(x))

    def lost(self, unit: float, scatter: float, toward_zero: bool) -> tuple[float, float]:
        """Mean and root mean square of the omitted part at a unit, with the sign of the element.

        Elements above the unit lose half a unit on average if truncated, with a deviation of `scatter` units. Elements
        below it (below half of it if rounded to nearest) are lost entirely.
        """
        unit = min(unit, 1.0)
        if unit <= self.grid:
            return 0.0, 0.0
        below, z = NormalDist().cdf, self._z(unit * (1 if toward_zero else 0.5))
        above, toward = 1 - below(z), (unit - self.grid) / 2 * toward_zero
        mean = self.mean * below(z - self.sigma) + toward * above
        square = self.mean**2 * math.exp(self.sigma**2) * below(z - 2 * self.sigma)
        return mean, math.sqrt(square + (toward**2 + scatter**2 * (unit**2 - self.grid**2)) * above)


def last_place(x: float, fmt: FloatFormat) -> float:
    """The unit in the last place of a number of the format."""
    return max(math.ldexp(1.0, math.frexp(x)[1] - fmt.precision), fmt.min_subnormal)


def times(amount: float, ratio: float) -> float:
    """amount · ratio, with 0 · inf = 0."""
    return amount * ratio if amount else 0.0


def lone(norms: Norms, side: str) -> float:
    """sqrt(sum x^2) / sum|x| of a row: 1 / sqrt(K) for equal elements, 1 for a single one."""
    mean, rms = norms.magnitudes(side)
    return min(1.0, rms / mean / math.sqrt(norms.K))


def cut_off(name: str, worst: float, norms: Norms, a: tuple[float, float], b: tuple[float, float]) -> Part:
    """The error of the product from omitted digits with these means and root mean squares."""
    cuts = norms.cut_A, norms.cut_B
    errors = [
        random(cut, mean, math.sqrt(max(rms**2 - mean**2, 0.0))) for cut, (mean, rms) in zip(cuts, (a, b), strict=True)
    ]
    bias, deviation = sum(x for x, _ in errors), math.hypot(*(y for _, y in errors))
    return Part(name, worst, min(bias, 1.0), min(deviation, 1.0), tail(max(map(uneven, cuts))))


def random(cut: Cut, mean: float, scatter: float) -> tuple[float, float]:
    """Bias and deviation of the product's error for losses with this mean and standard deviation."""
    bias = mean * cut.bias
    return min(bias, 1.0), min(
        math.sqrt((scatter * cut.random) ** 2 + max((mean * cut.aligned) ** 2 - bias**2, 0)), 1.0
    )


def uneven(cut: Cut) -> float:
    """Ratio of the largest deviation of an entry to the root mean square over all entries."""
    return max(cut.peak / cut.random, 1.0) if cut.random else 1.0


def tail(ratio: float) -> float:
    """`Part.tail` of entries whose deviations differ by up to that ratio.

    `Bound.probable` takes more than four deviations for many entries. Few entries have the largest deviation, for which
    three deviations suffice.
    """
    return max(0.7 * ratio, LEAST_TAIL)


def rounded(name: str, norms: Norms, u: float, count: int, typical: int, growth: float = 1.0) -> Part:
    """`count` roundings of numbers of the size of the result."""
    worst = count * u / (1 - count * u) * growth if count * u < 1 else math.inf
    data = walk.Data.of(norms)
    tail = data.tail(math.sqrt(3) * data.mean, 2 * data.deviation**2)
    return Part(name, worst, 0.0, _ROUNDING * u * data.whole * math.sqrt(typical), tail)
