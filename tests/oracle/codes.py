"""Numbers as integers: formats, codes and one explicit rounding."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


@dataclass(frozen=True)
class Format:
    """Where sign, exponent and fraction lie in a code, and which codes are special."""

    exponent_bits: int
    fraction_bits: int
    emin: int
    specials: str = "ieee"  # "ieee"; "fn": only the code of all ones is NaN; "fnuz": only the code of -0; "none"
    padding: int = 0  # low bits of the word that are ignored

    @property
    def width(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits + self.padding

    @property
    def precision(self) -> int:
        return self.fraction_bits + 1

    @property
    def top(self) -> int:
        return (1 << self.exponent_bits) - 1

    @property
    def emax(self) -> int:
        return self.emin + self.top - (2 if self.specials == "ieee" else 1)


FORMATS = {
    "fp16": Format(5, 10, -14),
    "bf16": Format(8, 7, -126),
    "tf32": Format(8, 10, -126, padding=13),
    "fp32": Format(8, 23, -126),
    "fp64": Format(11, 52, -1022),
    "e4m3": Format(4, 3, -6, "fn"),
    "e5m2": Format(5, 2, -14),
    "e3m2": Format(3, 2, -2, "none"),
    "e2m3": Format(2, 3, 0, "none"),
    "e2m1": Format(2, 1, 0, "none"),
    "e4m3fnuz": Format(4, 3, -7, "fnuz"),
    "e5m2fnuz": Format(5, 2, -15, "fnuz"),
}


class Number(NamedTuple):
    """A decoded operand: (-1)^sign · significand · 2^(exponent - fraction_bits), or an infinity, or a NaN."""

    kind: str  # "finite", "inf", "nan"
    sign: int
    significand: int = 0
    exponent: int = 0
    fraction_bits: int = 0

    @property
    def integer(self) -> int:
        """The signed significand."""
        return -self.significand if self.sign else self.significand

    @property
    def unit(self) -> int:
        """Binary exponent of the significand's last bit."""
        return self.exponent - self.fraction_bits

    @property
    def value(self) -> Fraction:
        return self.integer * Fraction(2) ** self.unit


def decode(code: int, fmt: Format) -> Number:
    """A subnormal keeps the exponent emin and a significand below 1: it is not normalised."""
    code >>= fmt.padding
    fraction = code & ((1 << fmt.fraction_bits) - 1)
    field = (code >> fmt.fraction_bits) & fmt.top
    sign = (code >> (fmt.fraction_bits + fmt.exponent_bits)) & 1
    if fmt.specials == "ieee" and field == fmt.top:
        return Number("nan" if fraction else "inf", sign)
    if fmt.specials == "fn" and field == fmt.top and fraction == (1 << fmt.fraction_bits) - 1:
        return Number("nan", sign)
    if fmt.specials == "fnuz" and sign and not field and not fraction:
        return Number("nan", sign)
    if field == 0:
        return Number("finite", sign, fraction, fmt.emin, fmt.fraction_bits)
    return Number("finite", sign, fraction | 1 << fmt.fraction_bits, fmt.emin + field - 1, fmt.fraction_bits)


def infinity(fmt: Format, sign: int) -> int:
    return (sign << (fmt.width - 1)) | (fmt.top << (fmt.fraction_bits + fmt.padding))


def canonical_nan(fmt: Format) -> int:
    """All bits set but the sign: what NVIDIA's matrix instructions return."""
    return (1 << (fmt.width - 1)) - 1


def code_of(x: int, unit: int, fmt: Format, sign: int | None = None) -> int:
    """The code of x·2^unit, which must be a value of ``fmt``; ``sign`` is used for a zero only."""
    if x == 0:
        return (sign or 0) << (fmt.width - 1)
    negative, magnitude = int(x < 0), abs(x)
    exponent = max(magnitude.bit_length() - 1 + unit, fmt.emin)
    shift = unit - (exponent - fmt.fraction_bits)
    steps = magnitude << shift if shift >= 0 else magnitude >> -shift
    assert shift >= 0 or steps << -shift == magnitude, "not a value of the format"
    assert exponent <= fmt.emax, "beyond the format"
    field = exponent - fmt.emin  # adding carries the implicit bit into the field: a subnormal keeps field 0
    return negative << (fmt.width - 1) | ((field << fmt.fraction_bits) + steps) << fmt.padding


def shifted(x: int, from_unit: int, to_unit: int, how: str) -> int:
    """x·2^from_unit in units of 2^to_unit, bits below it dropped toward zero ("trunc") or downward ("floor")."""
    if from_unit >= to_unit:
        return x << (from_unit - to_unit)
    if how == "floor":
        return x >> (to_unit - from_unit)
    return -(-x >> (to_unit - from_unit)) if x < 0 else x >> (to_unit - from_unit)


def rounded(x: int, unit: int, precision: int, emin: int | None, mode: str) -> tuple[int, int]:
    """x·2^unit rounded once to ``precision`` bits, fewer below 2^emin, as (integer, unit)."""
    if x == 0:
        return 0, unit
    exponent = abs(x).bit_length() - 1 + unit
    quantum = (exponent if emin is None else max(exponent, emin)) - precision + 1
    if unit >= quantum:
        return x, unit
    magnitude, cut = abs(x), quantum - unit
    low, rest, half = magnitude >> cut, magnitude & ((1 << cut) - 1), 1 << (cut - 1)
    up = {"RNE": rest > half or (rest == half and low & 1 == 1), "RZ": False}[mode]
    return (low + up) * (-1 if x < 0 else 1), quantum


def to_format(x: int, unit: int, fmt: Format, mode: str, zero_sign: int = 0) -> int:
    """The code of x·2^unit in ``fmt``; too large a magnitude is Inf, in every mode (RZ included: see the spec)."""
    y, quantum = rounded(x, unit, fmt.precision, fmt.emin, mode)
    if abs(y).bit_length() - 1 + quantum > fmt.emax and y:
        return infinity(fmt, int(x < 0))
    return code_of(y, quantum, fmt, sign=int(x < 0) if x else zero_sign)
