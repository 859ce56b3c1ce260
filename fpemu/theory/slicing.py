"""Residuals of slices and products of slices left out, bounded by norms: for `fpemu.theory.errorfree`.

Sizes are relative to m, the largest magnitude of a row of A (column of B). The first unit is 2^(tau - b) with 2^tau <=
2 m, more where headroom bits are left or the digit 2^b is not representable (int8). The residual of a row is at most

    adaptive splits   published: a unit, then b bits a slice;   balanced: half a unit, then b + 1 bits a slice
                      (one bit less each where 2^b is not representable: the residual may need it in every slice)
    fixed grids       truncate: a unit;   nearest: half a unit;   b bits a slice

since the residual is at most a power of two that is a multiple of the next unit (`fpemu.schemes.errorfree.split` has
the four rules). A slice p > 1 is at most the residual before it. The residual is a multiple of the last place of the
smallest element, and therefore zero where the bound is below that.

In random rows the first unit is a power of two that follows from the largest element, and the residual has the mean and
the mean square of `fpemu.theory.cuts.Elements`. Where the digit 2^b is not representable, a slice gains one bit more in
the rows whose elements do not need it; the number of elements still above the unit determines how often.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from fpemu.formats import FloatFormat
from fpemu.theory.cuts import SLACK, Elements, cut_off, last_place, random, tail, times, uneven
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Part


@dataclass(frozen=True)
class Side:
    """The split of one operand."""

    top: float
    """Upper bound of 2^tau"""
    first: int
    """b"""
    step: int
    """Bits by which every further slice reduces the residual"""
    needed: float
    """Probability that an element needs the digit 2^b where that is not representable, else 0"""
    at_first: float
    """Probability that the largest element of a row needs it in the first slice"""
    K: int
    free: float
    """First unit over 2^(e_i - b) in most rows, with 2^e_i above the largest element"""
    toward_zero: bool
    """Whether digits are truncated: the residual has the sign of the element"""
    of_unit: float
    """Largest residual in units"""
    scatter: float
    """Standard deviation of the residual of an element of many units, in units"""
    spread: float
    """log2 of the largest element of the matrix over the last place of the smallest"""
    elements: Elements

    def envelope(self, p: int) -> float:
        """Largest residual of a row after p slices, as a power of two."""
        return self.top * self.of_unit * 2.0 ** -(self.first + (p - 1) * self.step) if p else self.top

    def left(self, p: int) -> float:
        """The same, limited to the element itself; 0 below the last place of all elements."""
        size = self.envelope(p)
        return 0.0 if p and (size == 0 or math.log2(size) < -self.spread) else min(size, 1.0)

    def slice(self, p: int) -> float:
        """The largest entry of slice p: rounding to nearest at most doubles."""
        if p == 1:
            return 1.0 if self.toward_zero else 1.0 + self.left(1)
        return min(self.envelope(p - 1), 2.0) if self.left(p - 1) else 0.0

    def typical(self, p: int) -> tuple[float, float]:
        """Mean and root mean square of the residual of random elements after p > 0 slices, over 2^e_i."""
        if not self.left(p):
            return 0.0, 0.0
        bits, _ = _bits(self, p)
        return self.elements.lost(self.free * 2.0**-bits, self.scatter, self.toward_zero)

    def wander(self, p: int) -> float:
        """Ratio of the unit of one row in twenty to the root mean square over all rows after p slices."""
        return 2.0 ** _bits(self, p)[1] if p else 1.0


@lru_cache(maxsize=4096)
def _bits(side: Side, p: int) -> tuple[float, float]:
    """Bits of the unit of slice p below the top, in the mean square over random rows; how many fewer a row may have.

    A slice gains one bit more in a row whose elements do not need the digit 2^b.
    """
    total, mean, variance = float(side.first), 0.0, 0.0
    for q in range(p):
        often, gained = side.at_first, 0.0
        if q:
            above = side.elements.above(side.free * 2.0 ** -min(total, 1000.0)) if side.needed else 0.0
            often = 1 - (1 - side.needed) ** (side.K * above)
            gained = side.step + (side.needed > 0)
        lost = math.log2(1 + 3 * often) / 2  # of bits, in the mean square
        total, mean, variance = total + gained - lost, mean + often - lost, variance + often * (1 - often)
    return total, max(mean + 1.64 * math.sqrt(variance), 0.0)


@dataclass(frozen=True)
class Split:
    """The splits of both operands of a product, with its norms."""

    norms: Norms
    A: Side
    B: Side

    def digits(self, a: int, b: int, name: str = "digits below the last slices") -> Part:
        """The part of the error from the residuals after a slices of A and b of B."""
        norms, x, y = self.norms, self.A.left(a), self.B.left(b)
        worst = sum(min(times(*lost), 1.0) for lost in ((x, norms.row_A), (y, norms.row_B), (x * y, norms.row_AB)))
        part = cut_off(name, worst * SLACK, norms, self.A.typical(a), self.B.typical(b))
        return replace(part, tail=math.hypot(part.tail, max(self.A.wander(a), self.B.wander(b)) - 1))

    def left_out(self, a: int, b: int, d: int) -> Part:
        """The products p + q > d + 1."""
        norms, worst, mean, square = self.norms, 0.0, 0.0, 0.0
        for q in range(1, b + 1):
            p = max(0, d + 1 - q)
            if p >= a:
                continue
            worst += (self.A.left(p) + self.A.left(a)) * self.B.slice(q)
            if p and q > 1:
                (mean_a, rms_a), (mean_b, rms_b) = self.A.typical(p), self.B.typical(q - 1)
                mean, square = mean + mean_a * mean_b, square + (rms_a * rms_b) ** 2 - (mean_a * mean_b) ** 2
        # the kept part is at most the largest partial sum, so that the omitted part is at most that and |A||B|
        most = 1 + self.growth()
        bias, deviation = random(norms.cut_AB, mean, math.sqrt(square))
        wander = max(self.A.wander(d - 1), self.B.wander(d - 1))
        return Part(
            "products left out",
            min(times(worst, norms.row_AB) * SLACK, most),
            bias,
            deviation,
            math.hypot(tail(uneven(norms.cut_AB)), wander - 1),
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
        return min(14.0, 1 + times(x, norms.row_A) + times(y, norms.row_B) + times(x * y, norms.row_AB))


def splits(norms: Norms, bits: int, rule: str, fmt: FloatFormat, short: bool, headroom: int = 0) -> Split:
    """The splits of A and B.

    Parameters
    ----------
    rule : {"published", "balanced", "truncate", "nearest"}
    short : bool
        The digit 2^b is not representable: a row that would need it starts one bit higher.
    headroom : int
        Unused bits above the largest entry of a row.
    """
    short &= rule != "truncate"
    adaptive = rule in ("published", "balanced")
    step = bits + (rule == "balanced") - short if adaptive else bits
    top = 2.0 ** (1 + headroom) / (1 - short * 2.0**-bits)
    of_unit = 0.5 if rule in ("balanced", "nearest") else 1.0
    # published: positive digits are even, so that the residuals of positive elements scatter twice as much
    scatter = math.sqrt(5 / 24) if rule == "published" else math.sqrt(1 / 12)

    def side(which: str, largest: float, least: float) -> Side:
        # of the published digits positive ones alone can be 2^b
        needed = 2.0 ** -(bits + (rule == "published")) if adaptive and short else 0.0
        # rows all of which have elements close to a power of two, as uniform numbers have
        end, row, flat = (
            2.0 ** -(bits + 1),
            *((norms.row_A, norms.flat_A) if which == "A" else (norms.row_B, norms.flat_B)),
        )
        full = short and math.frexp(largest)[0] > 1 - end and flat < 1.1 * row
        at_first = 1 - (1 - end) ** norms.K if full else 0.0
        spread = math.log2(largest) - math.log2(last_place(least, fmt))
        elements = Elements.of(norms, which)
        return Side(
            top,
            bits,
            step,
            needed,
            at_first,
            norms.K,
            2.0**headroom,
            rule == "truncate",
            of_unit,
            scatter,
            spread,
            elements,
        )

    return Split(norms, side("A", norms.max_A, norms.min_A), side("B", norms.max_B, norms.min_B))


def fewest(side: Side, enough: Callable[[float], bool]) -> int:
    """Algorithm 3 of Mukunoki et al. on random elements: the first d >= 2 with which `enough`((d + 1) |A_d|)."""
    d = 2
    while not enough((d + 1) * (side.typical(d - 1)[1] + side.typical(d)[1]) / side.elements.mean):
        d += 1
    return d
