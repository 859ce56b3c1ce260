"""A bound as a sum of named parts, one per source of error.

All numbers are relative to (|A||B|)_ij, entry by entry: the measure of `fpemu.metrics.normwise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fpemu.arguments import number

if TYPE_CHECKING:
    from fpemu.theory.norms import Norms


_MODEL = 1.1
"""The modelled mean error of a chain is accurate to about a tenth"""
LEAST_TAIL = 1.3
"""`Part.tail` of similar entries, with a third for effects that are not modelled"""


@dataclass(frozen=True)
class Part:
    """One source of error, relative to |A||B|.

    Attributes
    ----------
    name : str
        Source, such as "split of A and B", "products left out" or "truncated sums of hh".
    worst : float
        Upper bound of the error of every entry, for all operands with these norms.
    bias : float
        Mean error in one direction (toward zero: positive), for operands taken as random.
    deviation : float
        Standard deviation about that mean, operands taken as random.
    tail : float
        Factor by which the largest errors among many exceed those of a normal distribution with that deviation.
    """

    name: str
    worst: float
    bias: float = 0.0
    deviation: float = 0.0
    tail: float = 1.0

    @property
    def rms(self) -> float:
        """Root mean square of this part of the error of an entry."""
        return math.hypot(self.bias, self.deviation)


@dataclass(frozen=True)
class Bound:
    """A-priori error of one product, as a sum of parts; returned by `fpemu.theory.bound`.

    Attributes
    ----------
    parts : tuple of Part
        Sources of error.
    entries : int
        M N, the number of entries among which the largest error is sought.

    Examples
    --------
    >>> bound = Bound((Part("split", 2e-7, 0.0, 1e-8), Part("sum", 1e-6, 3e-8, 2e-8)), entries=64)
    >>> bound.worst, round(bound.bias, 9), bound.probable() < bound.worst
    (1.2e-06, 3e-08, True)
    >>> print(bound)
    part   worst     bias      deviation
    split  2.00e-07  0         1.00e-08
    sum    1.00e-06  3.00e-08  2.00e-08
    all    1.20e-06  3.00e-08  2.24e-08
    probable among 64 entries: 1.30e-07
    """

    parts: tuple[Part, ...]
    entries: int = 1

    @property
    def worst(self) -> float:
        """Upper bound of every entry's error over (|A||B|)_ij."""
        return sum(part.worst for part in self.parts)

    @property
    def bias(self) -> float:
        """Mean error toward zero: truncation does not average out."""
        return sum(part.bias for part in self.parts)

    @property
    def deviation(self) -> float:
        """Standard deviation, the parts taken as independent."""
        return math.sqrt(sum(part.deviation**2 for part in self.parts))

    @property
    def rms(self) -> float:
        """Root mean square of the error of an entry."""
        return min(self.worst, math.hypot(self.bias, self.deviation))

    def probable(self, failure: float = 0.01) -> float:
        """Return a bound that some entry exceeds with probability `failure` at most, for random operands.

        |bias| + lambda · deviation with lambda = sqrt(2 ln(2 M N / failure)): the tail of a sum of independent bounded
        errors (Hoeffding; Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, Theorem 2.4), over all entries. Each
        part's deviation is multiplied by its `tail`, since the partial sums of entries differ, and the bias by 1.1, the
        accuracy of its model. The result is at most `worst`.

        The products' magnitudes and their change along k are those of the operands (`Norms.terms`, `Norms.along`).

        Two kinds of random operands exceed it. Magnitudes within the spacing of a word's numbers (uniform in
        [0.9999, 1]) have equal residuals, which add up: the error is several times the result. And if few elements
        dominate (phi = 2, lognormal), norms of a sample are too small for other operands of the distribution.

        Raises
        ------
        InputError
            A probability that is not between 0 and 1.
        """
        failure = number("failure", failure, above=0, below=1, what=", a probability")
        tail = math.sqrt(2 * math.log(2 * max(self.entries, 1) / failure))
        spread = math.sqrt(sum((part.tail * part.deviation) ** 2 for part in self.parts))
        return min(self.worst, _MODEL * abs(self.bias) + tail * spread)

    def relative_l2(self, norms: Norms) -> Bound:
        """Return the same error over ||AB||_F instead of (|A||B|)_ij: all numbers divided by `norms.result`.

        Its `rms` estimates ||D - AB||_F / ||AB||_F (`fpemu.metrics.relative_l2`), and its `worst` bounds that ratio
        rigorously if the norms are those of A and B themselves: |D - AB| <= worst |A||B| entry by entry, so
        ||D - AB||_F <= worst || |A||B| ||_F. `probable` is then about the largest entry's error over the mean size of
        an entry. Infinite where AB = 0, and `worst` also where the rounding errors of the norms hide the size of AB.
        """
        size = norms.result
        least = size - norms.K * 2.0**-52  # the norms come from a product in float64

        def over(x: float, size: float) -> float:
            return (x / size if size > 0 else math.inf) if x else 0.0

        changed = (
            replace(p, worst=over(p.worst, least), bias=over(p.bias, size), deviation=over(p.deviation, size))
            for p in self.parts
        )
        return replace(self, parts=tuple(changed))

    def table(self) -> str:
        """Return a table of the parts, their sum and the probable bound."""
        shown = [("part", "worst", "bias", "deviation")]
        whole = Part("all", self.worst, self.bias, self.deviation)
        for part in (*self.parts, whole):
            shown.append((part.name, _number(part.worst), _number(part.bias), _number(part.deviation)))
        width = max(len(row[0]) for row in shown) + 2
        lines = [f"{a:<{width}}{b:<10}{c:<10}{d}".rstrip() for a, b, c, d in shown]
        return "\n".join([*lines, f"probable among {self.entries} entries: {_number(self.probable())}"])

    def __str__(self) -> str:
        return self.table()


def _number(x: float) -> str:
    return "0" if x == 0 else f"{x:.2e}"
