"""What slices leave of a matrix, and what products of slices leave out, from norms: for `fpemu.theory.errorfree`.

Sizes are relative to m, the largest magnitude of a row of A (column of B). The first unit is 2^(tau - b) with 2^tau <=
2 m, more where bits are left free or the digit 2^b has no place (int8). No row has more left than

    adaptive splits   published: a unit, then b bits a slice;   balanced: half a unit, then b + 1 bits a slice
                      (one bit less each where the digit 2^b has no place: what is left may need it in every slice)
    fixed grids       truncate: a unit;   nearest: half a unit;   b bits a slice

since what is left is at most a power of two, and that is a multiple of the next unit (`fpemu.schemes.errorfree.split`
has the four rules). A slice p > 1 is at most what was left before it. What is left is a multiple of the last place of
the smallest element, so nothing is left where the bound is below that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

from fpemu.formats import FloatFormat
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Part

SLACK = 1 + 2.0**-20
"""Makes up for roundings in the norms and in the bounds."""


@dataclass(frozen=True)
class Side:
    """The split of one operand."""

    top: float
    """2^tau is at most that"""
    first: int
    """b"""
    step: int
    """Bits by which every further slice lowers what is left"""
    gained: float
    """The same in the mean square over random rows: not in every one does an element need the digit 2^b"""
    toward_zero: bool
    """Digits are truncated: what is left has the sign of the element"""
    of_unit: float
    """At most that part of a unit is left"""
    scatter: float
    """Standard deviation of what is left of an element of many units, in units"""
    spread: float
    """log2 of the largest element of the matrix over the last place of the smallest"""
    usual: float
    """m over the mean element of random rows"""
    sigma: float
    """Standard deviation of the logarithm of lognormal elements with that mean and mean square"""

    def envelope(self, p: int) -> float:
        """No row has more left after p slices: a power of two for every row."""
        return self.top * self.of_unit * 2.0 ** -(self.first + (p - 1) * self.step) if p else self.top

    def left(self, p: int) -> float:
        """The same, but no more than the element itself, and nothing below the last place of all elements."""
        size = self.envelope(p)
        return 0.0 if p and (size == 0 or math.log2(size) < -self.spread) else min(size, 1.0)

    def slice(self, p: int) -> float:
        """The largest entry of slice p: rounding to nearest at most doubles."""
        if p == 1:
            return 1.0 if self.toward_zero else 1.0 + self.left(1)
        return min(self.envelope(p - 1), 2.0) if self.left(p - 1) else 0.0

    def typical(self, p: int) -> tuple[float, float]:
        """Mean and root mean square of what p > 0 slices leave of random elements.

        2^tau lies halfway between its bounds, in octaves. Elements below the unit are left as they are, to which end
        they are taken as lognormal.
        """
        if not self.left(p):
            return 0.0, 0.0
        unit = min(self.top / math.sqrt(2) * 2.0 ** -(self.first + (p - 1) * self.gained), 1.0)
        mean, square = 1 / self.usual, math.exp(self.sigma**2) / self.usual**2
        below = NormalDist().cdf
        z = (math.log(unit / mean) + self.sigma**2 / 2) / self.sigma
        above = 1 - below(z)
        mean = mean * below(z - self.sigma) + unit / 2 * above
        square = square * below(z - 2 * self.sigma) + (0.25 * self.toward_zero + self.scatter**2) * unit**2 * above
        return mean if self.toward_zero else 0.0, math.sqrt(square)


@dataclass(frozen=True)
class Split:
    """The splits of both operands of a product, with its norms."""

    norms: Norms
    A: Side
    B: Side
    alike: float = field(init=False)
    """0 for products of both signs alike, 1 for those of one sign"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alike", coherence(self.norms))

    def digits(self, a: int, b: int, name: str = "digits below the last slices") -> Part:
        """What a slices of A and b of B do not hold."""
        norms, x, y = self.norms, self.A.left(a), self.B.left(b)
        worst = min(x * norms.row_A, 1.0) + min(y * norms.row_B, 1.0) + min(x * y * norms.row_AB, 1.0)
        (mean_a, scatter_a), (mean_b, scatter_b) = (
            random(*side.typical(p), self.alike) for side, p in ((self.A, a), (self.B, b))
        )
        bias = mean_a * self.A.usual + mean_b * self.B.usual
        deviation = math.hypot(scatter_a * self.A.usual * lone(norms, "B"), scatter_b * self.B.usual * lone(norms, "A"))
        uneven = tail(max(norms.row_A / self.A.usual, norms.row_B / self.B.usual))
        return Part(name, worst * SLACK, min(bias, 1.0), min(deviation, 1.0), uneven)

    def left_out(self, a: int, b: int, d: int) -> Part:
        """The products p + q > d + 1."""
        norms, worst, bias, square = self.norms, 0.0, 0.0, 0.0
        for q in range(1, b + 1):
            p = max(0, d + 1 - q)
            if p >= a:
                continue
            worst += (self.A.left(p) + self.A.left(a)) * self.B.slice(q)
            if p and q > 1:
                (mean_a, rms_a), (mean_b, rms_b) = self.A.typical(p), self.B.typical(q - 1)
                mean, scatter = random(mean_a * mean_b, rms_a * rms_b, self.alike)
                bias, square = bias + mean, square + scatter**2
        # what is kept is at most the largest partial sum; so what is lost is at most that and |A||B|
        most = 1 + self.growth()
        likely = self.A.usual**2 / norms.row_A * self.B.usual**2 / norms.row_B  # for most rows and columns
        usual = math.sqrt(norms.row_AB * min(norms.row_AB, likely))
        return Part(
            "products left out",
            min(worst * norms.row_AB * SLACK, most),
            min(bias * usual, 1.0),
            min(math.sqrt(square / norms.K) * usual, 1.0),
            tail(norms.row_AB / usual),
        )

    def growth(self) -> float:
        """The largest partial sum of products of slices, over |A||B|.

        |A_1 + ... + A_p| <= |A| + left_A(1) m and |B_1| + |B_2| + ... <= |B| + 2 (left_B(1) + left_B(2) + ...) n; or,
        element by element, 2|A| and 7|B|: rounding to nearest at most doubles, and what a first slice leaves, at most
        x itself, is followed by units that shrink by two at least.
        """
        if self.A.toward_zero:
            return 1.0
        norms, x, y = self.norms, self.A.left(1), 2 * self.B.envelope(1) / (1 - 2.0**-self.B.step)
        return min(14.0, 1 + x * norms.row_A + y * norms.row_B + x * y * norms.row_AB)


def splits(norms: Norms, bits: int, rule: str, fmt: FloatFormat, short: bool, headroom: int = 0) -> Split:
    """The splits of A and B.

    Parameters
    ----------
    rule : {"published", "balanced", "truncate", "nearest"}
    short : bool
        The digit 2^b has no place: a row that would need it starts a bit higher.
    headroom : int
        Bits left free above the largest entry of a row.
    """
    short &= rule != "truncate"
    adaptive = rule in ("published", "balanced")
    step = bits + (rule == "balanced") - short if adaptive else bits
    top = 2.0 ** (1 + headroom) / (1 - short * 2.0**-bits)
    of_unit = 0.5 if rule in ("balanced", "nearest") else 1.0
    # published: positive digits are even, so that what is left of positive elements scatters twice as much
    scatter = math.sqrt(5 / 24) if rule == "published" else math.sqrt(1 / 12)

    def side(which: str, largest: float, least: float) -> Side:
        gained = float(step)
        if adaptive and short:
            # one of n elements lies within 2^-b of its bound (of the published ones positive elements alone can): of
            # those that count beside the largest at first, of all K in the end
            miss, few = 1 - 2.0 ** -(bits + (rule == "published")), min(norms.K, lone(norms, which) ** -2)
            often = 1 - (miss**norms.K + miss**few) / 2
            gained += 1 - math.log2(1 + 3 * often) / 2
        spread = math.log2(largest) - math.log2(last_place(least, fmt))
        shape = over_mean(norms, which), log_deviation(norms, which)
        return Side(top, bits, step, gained, rule == "truncate", of_unit, scatter, spread, *shape)

    return Split(norms, side("A", norms.max_A, norms.min_A), side("B", norms.max_B, norms.min_B))


def fewest(side: Side, enough: Callable[[float], bool]) -> int:
    """Algorithm 3 of Mukunoki et al. on random elements: the first d >= 2 with which `enough`((d + 1) |A_d|)."""
    d = 2
    while not enough((d + 1) * (side.typical(d - 1)[1] + side.typical(d)[1]) * side.usual):
        d += 1
    return d


def last_place(x: float, fmt: FloatFormat) -> float:
    """The unit in the last place of a number of the format."""
    return max(math.ldexp(1.0, math.frexp(x)[1] - fmt.precision), fmt.min_subnormal)


def over_mean(norms: Norms, side: str) -> float:
    """The largest element of a row over its mean element, root mean square over the entries of random matrices.

    Halfway, in octaves, between `Norms.row_A` (row_B), which is the largest, and a row as most are: its largest element
    is the largest of K lognormal ones, and at most the matrix's.
    """
    row, largest = (norms.row_A, norms.max_A) if side == "A" else (norms.row_B, norms.max_B)
    mean, rms = norms.magnitudes(side)
    sigma = log_deviation(norms, side)
    likely = math.exp(sigma * max(NormalDist().inv_cdf(1 - 0.7 / norms.K), 0.0) - sigma**2 / 2)
    return math.sqrt(row * min(row, largest / mean, rms * math.sqrt(norms.K) / mean, max(likely, 1.0)))


def log_deviation(norms: Norms, side: str) -> float:
    """Standard deviation of the logarithm of lognormal elements with the matrix's mean and mean square."""
    mean, rms = norms.magnitudes(side)
    return math.sqrt(max(2 * math.log(rms / mean), 1e-6))


def lone(norms: Norms, side: str) -> float:
    """sqrt(sum x^2) / sum|x| of a row: 1 / sqrt(K) for equal elements, 1 for a single one."""
    mean, rms = norms.magnitudes(side)
    return min(1.0, rms / mean / math.sqrt(norms.K))


def coherence(norms: Norms) -> float:
    """0 for products of both signs alike, 1 for those of one sign.

    By how much the squares of sums exceed the sums of squares; less a tenth of these, about what chance adds.
    """
    even = norms.spread**2
    return math.sqrt(min(max(norms.result**2 - 1.1 * even, 0.0) / (1 - even), 1.0)) if even < 1 else 0.0


def tail(ratio: float) -> float:
    """Of a part whose deviation at one entry is `ratio` times that of all.

    `Bound.probable` counts on 4 to 5 deviations among many entries; one entry alone seldom has more than 1.5.
    """
    return max(1.0, ratio / 3)


def random(mean: float, rms: float, alike: float) -> tuple[float, float]:
    """Bias and deviation of terms of that mean and rms, of which the share `alike` has one sign."""
    return mean * alike, math.sqrt(max(rms**2 - (mean * alike) ** 2, 0.0))
