"""Rounding one float64 to one format, by exact fractions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tests.oracle.codes import FORMATS


@dataclass(frozen=True)
class Target:
    """A format as a set of values, for `round_value`; the fields mean what those of `fpemu.FloatFormat` mean."""

    precision: int
    emin: int
    emax: int
    inf: bool = True
    nan: bool = True
    subnormals: bool = True
    negative_zero: bool = True
    largest: int | None = None  # integer significand of the largest number where it is not 2^precision - 1

    @property
    def max(self) -> Fraction:
        return (self.largest or (1 << self.precision) - 1) * Fraction(2) ** (self.emax - self.precision + 1)


TARGETS = {
    name: Target(f.precision, f.emin, f.emax, inf=f.specials == "ieee", nan=f.specials != "none")
    for name, f in FORMATS.items()
    if f.specials in ("ieee", "none")
} | {
    "e4m3": Target(4, -6, 8, inf=False, largest=14),
    "e4m3fnuz": Target(4, -7, 7, inf=False, negative_zero=False),
    "e5m2fnuz": Target(3, -15, 15, inf=False, negative_zero=False),
}


class NotRepresentable(Exception):  # noqa: N818
    """An overflow or a NaN in a format that has nothing to show it."""


def floor_log2(x: Fraction) -> int:
    """The binary exponent of a positive x."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def carries(fraction: Fraction, word: int, width: int) -> bool:
    """Stochastic rounding with a word of random bits: up where word + floor(2^width · fraction) carries out."""
    return word + int(fraction * (1 << width)) >= 1 << width


def round_value(
    x: float | Fraction,
    t: Target,
    mode: str,
    saturate: bool = False,
    unbounded: bool = False,
    word: int = 0,
    width: int = 8,
) -> float:
    """The float64 or fraction ``x`` rounded once. Overflow is decided after rounding with an unbounded exponent."""
    negative = x < 0 if isinstance(x, Fraction) else math.copysign(1, x) < 0
    signed = -1.0 if negative else 1.0
    if isinstance(x, Fraction):
        if x == 0:
            return 0.0
    elif math.isnan(x):
        if not (t.nan or unbounded):
            raise NotRepresentable
        return x
    elif math.isinf(x):
        if unbounded:
            return x
        return signed * float(t.max) if saturate else _overflowed(t, signed)
    elif x == 0:
        return x if t.negative_zero or unbounded else 0.0
    exponent = floor_log2(abs(Fraction(x)))
    quantum = exponent - t.precision + 1
    if unbounded:
        quantum = max(quantum, -1074)  # the carrier ends there
    elif exponent < t.emin:
        quantum = t.emin - t.precision + 1 if t.subnormals else t.emin
    scaled = abs(Fraction(x)) / Fraction(2) ** quantum
    low = scaled.numerator // scaled.denominator
    fraction = scaled - low
    up = {
        "RNE": fraction > Fraction(1, 2) or (fraction == Fraction(1, 2) and low % 2 == 1),
        "RNA": fraction >= Fraction(1, 2),
        "RNZ": fraction > Fraction(1, 2),
        "RZ": False,
        "RU": fraction > 0 and not negative,
        "RD": fraction > 0 and negative,
        "ODD": fraction > 0 and low % 2 == 0,
        "SR": carries(fraction, word, width),
    }[mode]
    y = (low + up) * Fraction(2) ** quantum
    if unbounded:
        return signed * (math.inf if y >= Fraction(2) ** 1024 else float(y))
    if y > t.max:
        stays = saturate or mode in ("RZ", "ODD") or (mode == "RU" and negative) or (mode == "RD" and not negative)
        return signed * float(t.max) if stays else _overflowed(t, signed)
    return signed * float(y) if y or t.negative_zero else 0.0


def _overflowed(t: Target, signed: float) -> float:
    if t.inf:
        return signed * math.inf
    if not t.nan:
        raise NotRepresentable
    return math.nan
