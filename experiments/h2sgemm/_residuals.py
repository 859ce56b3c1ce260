"""The residual of a rounded number, exactly: which values it takes at an exponent, and how many mantissas give each.

x = 1.M · 2^E of a wide format with P bits of precision is split into h = round(x) and r = round((x - h) · 2^sb), both
of a narrow format with p bits. In units of x's last place, 2^(E - P + 1), x is the integer X = 2^(P-1) + M, and h is a
multiple of 2^D: D = P - p where h is normal, and more by emin - E below. With X = m · 2^D + rho the residual x - h is
rho if h was rounded down (event T, for truncation) and rho - 2^D if it was rounded up (event R). The rounding decides
between the two by rho, at a tie also by the parity of m, and by nothing else. So the magnitudes i = abs(x - h) form a
few intervals, and each integer of an interval has equally many mantissas. Everything below counts integers in these
intervals; no floating-point number is rounded, so that `_enumeration` is an independent check.

Period: rho and the parity of m are the low D + 1 bits of M. So any 2^(D+1) consecutive mantissas have the residuals of
all the others, as long as h does not overflow.

Roundings are RNE and RZ; x is positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict

from fpemu import formats
from fpemu.formats import FloatFormat

Event = Literal["T", "R"]
Form = Literal["printed", "corrected"]


class Choice(TypedDict, total=False):
    """Formats and roundings of a split, as keywords of the functions of `_underflow`.

    Without them fp32 is split into fp16 words, both rounded to nearest even. A residual rounding of None is the
    rounding of the high word.
    """

    wide: FloatFormat | str
    narrow: FloatFormat | str
    rounding: str
    residual_rounding: str | None


@dataclass(frozen=True)
class Interval:
    """Magnitudes i of the residual, in last places of x, that equally many mantissas give."""

    event: Event
    """T: h was rounded down, or is x; R: it was rounded up"""
    first: int
    last: int
    count: int
    """Mantissas for each i from `first` to `last`"""

    def within(self, first: int, last: int) -> int:
        """Mantissas whose i lies between `first` and `last`, both included."""
        return self.count * max(0, min(self.last, last) - max(self.first, first) + 1)


@dataclass(frozen=True)
class Split:
    """How a number is split in two. Make it with `Split.of`, which takes names."""

    wide: FloatFormat
    narrow: FloatFormat
    rounding: str = "RNE"
    residual_rounding: str = "RNE"

    @staticmethod
    def of(
        wide: FloatFormat | str = "fp32",
        narrow: FloatFormat | str = "fp16",
        rounding: str = "RNE",
        residual_rounding: str | None = None,
    ) -> Split:
        """A split by names; ``residual_rounding`` is ``rounding`` unless given.

        >>> Split.of("fp32", "bf16", "RZ").dropped(0)
        16
        """
        return Split(formats.get(wide), formats.get(narrow), rounding, residual_rounding or rounding)

    def unit(self, exponent: int) -> int:
        """Binary exponent of the last place of numbers in [2^exponent, 2^(exponent+1))."""
        return exponent - self.wide.precision + 1

    @property
    def least(self) -> int:
        """Binary exponent of the smallest number of the narrow format."""
        return _quantum(self.narrow, self.narrow.emin - 1)

    def dropped(self, exponent: int) -> int:
        """D: the last place of h is 2^D last places of x."""
        return _quantum(self.narrow, exponent) - self.unit(exponent)

    def period(self, exponent: int) -> int:
        """How many low bits of the mantissa decide the residual where h does not overflow: D + 1, or all."""
        return min(self.wide.fraction_bits, self.dropped(exponent) + 1)

    def mantissas(self) -> int:
        """Numbers of one exponent."""
        return 1 << self.wide.fraction_bits

    def intervals(self, exponent: int) -> tuple[Interval, ...]:
        """The residuals of all numbers of an exponent whose h does not overflow; an exact split is i = 0, event T."""
        D, P = self.dropped(exponent), self.wide.precision
        if D < P:  # every remainder, below each of the multiples m
            low, high, multiples = 0, (1 << D) - 1, range(1 << (P - 1 - D), 1 << (P - D))
        else:  # x is below the last place of h
            low, high, multiples = 1 << (P - 1), (1 << P) - 1, range(1)
        most = _limit(self.narrow, exponent)
        below, above = _upto(multiples, most), _upto(multiples, most - 1)
        half = 1 << (D - 1)
        if self.rounding == "RZ":
            intervals = [Interval("T", low, high, len(below))]
        else:
            up = max(low, half + 1)  # the least remainder that is rounded up
            intervals = [
                Interval("T", low, min(high, half - 1), len(below)),
                Interval("R", (1 << D) - high, (1 << D) - up, len(above)),
            ]
            if low <= half <= high:
                even = _evens(below)
                intervals += [Interval("T", half, half, even), Interval("R", half, half, len(above) - _evens(above))]
        return tuple(one for one in intervals if one.count and one.first <= one.last)

    # --- what becomes of the scaled residual
    def least_over(self, exponent: int, sb: int) -> int:
        """The least i whose word would be beyond the largest number of the narrow format."""
        nearest, largest = self.residual_rounding == "RNE", _significand(self.narrow)
        # i · 2^c against a threshold in half last places of the largest number
        c = sb + self.unit(exponent) - self.narrow.emax + self.narrow.precision
        threshold = 2 * largest + (1 if nearest else 2)
        return _floor(threshold, -c) + 1 if nearest and largest % 2 == 0 else -_floor(-threshold, -c)

    def last_gone(self, exponent: int, sb: int) -> int:
        """The largest i whose word is 0; 0 if there is none."""
        s = sb + self.unit(exponent)
        if self.residual_rounding == "RNE":  # a tie with 0 is one with an even number
            return _floor(1, self.least - 1 - s)
        return -_floor(-1, self.least - s) - 1

    def bits(self, exponent: int, sb: int) -> dict[int, int]:
        """Mantissas by number of bits kept: b is the most with abs(x - h - r/2^sb) <= 2^(E - b), 0 to P.

        Numbers with an overflowing word are left out; an error of zero keeps P bits.
        """
        P, counts = self.wide.precision, dict.fromkeys(range(self.wide.precision + 1), 0)
        s = sb + self.unit(exponent)
        for interval in self.intervals(exponent):
            end = min(interval.last, self.least_over(exponent, sb) - 1)
            for first, last in _binades(interval.first, end):
                top = first.bit_length() - 1
                k = _quantum(self.narrow, top + s) - s if first else 0
                before = 0
                for m in range(-1, P - 1):  # numbers with an error of at most 2^m units; m = -1: of zero
                    within = last - first + 1 if k <= 0 else _near(first, last, k, m, self.residual_rounding)
                    counts[P - 1 - m] += interval.count * (within - before)
                    before = within
                counts[0] += interval.count * (last - first + 1 - before)
        return counts


def _quantum(fmt: FloatFormat, exponent: int) -> int:
    """Binary exponent of the last place that numbers of an exponent have in a format, overflow aside."""
    if exponent >= fmt.emin:
        return exponent - fmt.fraction_bits
    return fmt.emin - (fmt.fraction_bits if fmt.subnormals else 0)


def _significand(fmt: FloatFormat) -> int:
    """Of the largest number, an integer of p bits."""
    return int(fmt.max / 2.0 ** (fmt.emax - fmt.fraction_bits))


def _limit(fmt: FloatFormat, exponent: int) -> int:
    """The largest multiple m that h can be without overflow."""
    if exponent == fmt.emax:
        return _significand(fmt)
    return 1 << 64 if exponent < fmt.emax else -1


def _upto(multiples: range, most: int) -> range:
    return range(multiples.start, max(multiples.start, min(multiples.stop, most + 1)))


def _evens(multiples: range) -> int:
    return (multiples.stop + 1) // 2 - (multiples.start + 1) // 2


def _floor(number: int, exponent: int) -> int:
    """floor(number · 2^exponent)."""
    return number << exponent if exponent >= 0 else number >> -exponent


def _binades(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The integers from `first` to `last`, by binade; 0 is a binade."""
    while first <= last:
        end = min(last, (1 << first.bit_length()) - 1)
        yield first, end
        first = end + 1


def _near(first: int, last: int, k: int, m: int, rounding: str) -> int:
    """How many integers are rounded to a multiple of 2^k with an error of 2^m at most (m = -1: none); k >= 1."""
    reach = 0 if m < 0 else 1 << m
    left = reach if rounding == "RNE" else 0
    width = left + reach + 1  # remainders from -left to reach
    whole = 1 << k
    if width >= whole:
        return last - first + 1

    def upto(n: int) -> int:
        return n // whole * width + min(n % whole, width)

    return upto(last + left + 1) - upto(first + left)
