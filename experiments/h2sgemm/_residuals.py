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

Roundings are RNE, RNA, RZ (bit-cut is the same), RU and RD; x is positive: for negative x swap RU and RD.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict

from fpemu import formats
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.rounding import mode_of

Event = Literal["T", "R"]
Form = Literal["printed", "corrected"]
BIT_CUT = "bit-cut"
ROUNDINGS = ("RNE", "RNA", "RZ", "RU", "RD", BIT_CUT)


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
        wide, narrow = formats.get(wide), formats.get(narrow)
        if not 2 <= narrow.precision < wide.precision:
            raise InputError(
                f"a split of {wide} into {narrow} words: the narrow format has {narrow.precision} bits and needs 2 to "
                f"{wide.precision - 1}"
            )
        second = rounding if residual_rounding is None else residual_rounding
        return Split(wide, narrow, _mode(rounding), _mode(second))

    def unit(self, exponent: int) -> int:
        """Binary exponent of the last place of numbers in [2^exponent, 2^(exponent+1))."""
        if exponent != int(exponent) or not self.wide.emin <= exponent <= self.wide.emax:
            raise InputError(
                f"exponent {exponent}: {self.wide} has normal numbers with integer exponents from {self.wide.emin} to "
                f"{self.wide.emax}"
            )
        return int(exponent) - self.wide.precision + 1

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
        half, intervals = 1 << (D - 1), []
        if self.rounding in ("RZ", "RD", BIT_CUT):
            intervals.append(Interval("T", low, high, len(below)))
        elif self.rounding == "RU":
            intervals += [Interval("T", low, 0, len(below)), _up(D, max(low, 1), high, len(above))]
        else:
            intervals += [
                Interval("T", low, min(high, half - 1), len(below)),
                _up(D, max(low, half + 1), high, len(above)),
            ]
            if low <= half <= high:
                even = _evens(below) if self.rounding == "RNE" else 0
                odd = len(above) - (_evens(above) if self.rounding == "RNE" else 0)
                intervals += [Interval("T", half, half, even), Interval("R", half, half, odd)]
        return tuple(one for one in intervals if one.count and one.first <= one.last)

    def smallest(self, exponent: int, event: Event, i: int) -> int:
        """The smallest X with the residual i after an event of `intervals`."""
        D = self.dropped(exponent)
        rho = i if event == "T" else (1 << D) - i
        m = max(0, -((rho - self.mantissas()) >> D))  # m · 2^D + rho is 2^(P-1) or more
        if self.rounding == "RNE" and 2 * rho == 1 << D and m % 2 != (event == "R"):
            m += 1  # a tie goes to the even one
        return (m << D) + rho

    # --- what becomes of the scaled residual
    def least_over(self, exponent: int, sb: int, event: Event) -> int:
        """The least i whose word would be beyond the largest number of the narrow format, whatever the mode gives."""
        way, largest = _way(self.residual_rounding, event), _significand(self.narrow)
        # i · 2^c against a threshold in half last places of the largest number
        c = sb + self.unit(exponent) - self.narrow.emax + self.narrow.precision
        threshold = 2 * largest + {"in": 2, "out": 0}.get(way, 1)
        strict = way == "out" or (way == "RNE" and largest % 2 == 0)
        return _floor(threshold, -c) + 1 if strict else -_floor(-threshold, -c)

    def last_gone(self, exponent: int, sb: int, event: Event) -> int:
        """The largest i whose word is 0; 0 if there is none."""
        way, s = _way(self.residual_rounding, event), sb + self.unit(exponent)
        if way == "out":
            return 0
        if way == "RNE":  # a tie with 0 is one with an even number
            return _floor(1, self.least - 1 - s)
        return -_floor(-1, self.least - (1 if way == "RNA" else 0) - s) - 1

    def bits(self, exponent: int, sb: int) -> dict[int, int]:
        """Mantissas by number of bits kept: b is the most with abs(x - h - r/2^sb) <= 2^(E - b), 0 to P.

        Numbers with an overflowing word are left out; an error of zero keeps P bits.
        """
        P, counts = self.wide.precision, dict.fromkeys(range(self.wide.precision + 1), 0)
        s = sb + self.unit(exponent)
        for interval in self.intervals(exponent):
            end = min(interval.last, self.least_over(exponent, sb, interval.event) - 1)
            way = _way(self.residual_rounding, interval.event)
            for first, last in _binades(interval.first, end):
                top = first.bit_length() - 1
                k = _quantum(self.narrow, top + s) - s if first else 0
                before = 0
                for m in range(-1, P - 1):  # numbers with an error of at most 2^m units; m = -1: of zero
                    within = last - first + 1 if k <= 0 else _near(first, last, k, m, way)
                    counts[P - 1 - m] += interval.count * (within - before)
                    before = within
                counts[0] += interval.count * (last - first + 1 - before)
        return counts


def _mode(name: str) -> str:
    if str(name).lower().replace("_", "-") == BIT_CUT:
        return BIT_CUT
    mode = mode_of(name).name
    if mode not in ROUNDINGS:
        raise unknown_name("rounding of a split", name, ROUNDINGS)
    return mode


def _way(mode: str, event: Event) -> str:
    """What a mode does to the magnitude of the residual, which is positive after T and negative after R."""
    if mode in ("RNE", "RNA"):
        return mode
    return "out" if (mode, event) in (("RU", "T"), ("RD", "R")) else "in"


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


def _up(D: int, low: int, high: int, count: int) -> Interval:
    """The interval of remainders `low` to `high` rounded up."""
    return Interval("R", (1 << D) - high, (1 << D) - low, count)


def _floor(number: int, exponent: int) -> int:
    """floor(number · 2^exponent)."""
    return number << exponent if exponent >= 0 else number >> -exponent


def _binades(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The integers from `first` to `last`, by binade; 0 is a binade."""
    while first <= last:
        end = min(last, (1 << first.bit_length()) - 1)
        yield first, end
        first = end + 1


def _near(first: int, last: int, k: int, m: int, way: str) -> int:
    """How many integers are rounded to a multiple of 2^k with an error of 2^m at most (m = -1: none); k >= 1."""
    reach = 0 if m < 0 else 1 << m
    left, right = (0 if way == "in" else reach), (0 if way == "out" else reach)
    width = left + right + 1  # remainders from -left to right
    whole = 1 << k
    if width >= whole:
        return last - first + 1

    def upto(n: int) -> int:
        return n // whole * width + min(n % whole, width)

    return upto(last + left + 1) - upto(first + left)
