"""One block of products and an accumulator, in each of the arithmetics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tests.oracle.codes import (
    FORMATS,
    Format,
    Number,
    canonical_nan,
    code_of,
    decode,
    infinity,
    rounded,
    shifted,
    to_format,
)

Pair = tuple[Number, Number]


class Special(NamedTuple):
    kind: str  # "inf" or "nan"
    sign: int


def special(pairs: Sequence[Pair], c: Number | None = None, limit: int | None = None) -> Special | None:
    """NaN anywhere, Inf·0 or infinities of both signs give NaN; otherwise an infinity wins; None if all is finite.

    A finite product of magnitude 2^limit or more counts as an infinity.
    """
    signs = set()
    for a, b in pairs:
        if "nan" in (a.kind, b.kind):
            return Special("nan", 0)
        if "inf" in (a.kind, b.kind):
            if (a.kind == "finite" and not a.significand) or (b.kind == "finite" and not b.significand):
                return Special("nan", 0)
            signs.add(a.sign ^ b.sign)
        elif limit is not None and abs(a.value * b.value) >= Fraction(2) ** limit:
            signs.add(a.sign ^ b.sign)
    if c is not None and c.kind == "nan":
        return Special("nan", 0)
    if c is not None and c.kind == "inf":
        signs.add(c.sign)
    if len(signs) == 2:
        return Special("nan", 0)
    return Special("inf", signs.pop()) if signs else None


def special_code(s: Special, fmt: Format) -> int:
    return canonical_nan(fmt) if s.kind == "nan" else infinity(fmt, s.sign)


@dataclass(frozen=True)
class Term:
    """A product or an accumulator: x·2^unit, with the exponent that takes part in the alignment."""

    x: int
    unit: int
    exponent: int


def product(a: Number, b: Number) -> Term:
    return Term(a.integer * b.integer, a.unit + b.unit, a.exponent + b.exponent)


def truncated_block(
    pairs: Sequence[Pair], c: Number, F: int, E0: int | None, out: Format, final: str, keep: int | None = None
) -> int:
    """Section 1: align to the largest exponent, truncate at F bits below it, add exactly, round once.

    ``final``: "RZ" or "RNE"; ``keep``: fraction bits of the result where it has fewer than its format.
    """
    found = special(pairs, c)
    if found:
        return special_code(found, out)
    terms = [product(a, b) for a, b in pairs] + [Term(c.integer, c.unit, c.exponent)]
    exponents = [t.exponent for t in terms if t.x] + ([] if E0 is None else [E0])
    if not exponents:
        return 0
    unit = max(exponents) - F
    total = sum(shifted(t.x, t.unit, unit, "trunc") for t in terms)
    if keep is not None:
        total, unit = rounded(total, unit, keep + 1, out.emin, final)
    code = to_format(total, unit, out, final)
    return 0 if code == 1 << (out.width - 1) else code  # every zero is +0


def exact_block(pairs: Sequence[Pair], c: Number, out: Format) -> int:
    """CDNA1, Ascend, the ideal unit: everything added exactly, one rounding to nearest even."""
    found = special(pairs, c)
    if found:
        return special_code(found, out)
    terms = [product(a, b) for a, b in pairs] + [Term(c.integer, c.unit, c.exponent)]
    unit = min(t.unit for t in terms)
    return to_format(sum(t.x << (t.unit - unit) for t in terms), unit, out, "RNE")


def fma(a: Number, b: Number, c: Number, out: Format) -> int:
    """IEEE 754 fused multiply-add, to nearest even: one rounding, subnormals kept, IEEE's signs of zero."""
    found = special([(a, b)], c)
    if found:
        return special_code(found, out)
    p = product(a, b)
    unit = min(p.unit, c.unit)
    total = (p.x << (p.unit - unit)) + (c.integer << (c.unit - unit))
    # an exact zero is -0 only if both addends are -0
    return to_format(total, unit, out, "RNE", zero_sign=(a.sign ^ b.sign) & c.sign)


def add(x: int, y: int, fmt: Format) -> int:
    """IEEE addition to nearest even of two codes of one format."""
    one = decode(code_of(1, 0, fmt), fmt)
    return fma(decode(x, fmt), one, decode(y, fmt), fmt)


def flushed(code: int, fmt: Format, keep_sign: bool) -> int:
    """A magnitude below 2^emin becomes zero: with its sign, or +0 (a -0 too)."""
    n = decode(code, fmt)
    if n.kind == "finite" and n.significand < 1 << fmt.fraction_bits:
        return (n.sign if keep_sign else 0) << (fmt.width - 1)
    return code


def x86_step(a: int, b: int, c: int, fmt: Format, flush: bool) -> int:
    """A fused multiply-add of x86 on codes: the first NaN of a, b, c, made quiet, else the negative quiet one.

    With `flush`, subnormal operands and results are zeros with their signs. A result is subnormal if its magnitude,
    rounded to the precision with an unbounded exponent, is below 2^emin.
    """
    quiet = 1 << (fmt.fraction_bits - 1)
    for code in (a, b, c):
        if decode(code, fmt).kind == "nan":
            return code | quiet
    if flush:
        a, b, c = (flushed(code, fmt, True) for code in (a, b, c))
    x, y, z = (decode(code, fmt) for code in (a, b, c))
    d = fma(x, y, z, fmt)
    if decode(d, fmt).kind == "nan":
        return 1 << (fmt.width - 1) | fmt.top << fmt.fraction_bits | quiet
    if flush and decode(d, fmt).kind == "finite" and "inf" not in (x.kind, y.kind, z.kind):
        total = x.value * y.value + z.value
        unit = total.denominator.bit_length() - 1
        steps, quantum = rounded(total.numerator, -unit, fmt.precision, None, "RNE")
        if total and abs(steps) * Fraction(2) ** quantum < Fraction(2) ** fmt.emin:
            return int(total < 0) << (fmt.width - 1)
    return d


def odd(value: Fraction, zero_sign: int) -> int:
    """ARM's BFRound: the fp32 code rounded to odd, with flushed subnormals and Inf from 2^128 on."""
    fp32, sign = FORMATS["fp32"], int(value < 0) if value else zero_sign
    if abs(value) < Fraction(2) ** fp32.emin:
        return sign << 31
    if abs(value) >= Fraction(2) ** 128:
        return infinity(fp32, sign)
    unit = 0
    while abs(value) * Fraction(2) ** -unit >= 1 << 24:
        unit += 1
    while abs(value) * Fraction(2) ** -unit < 1 << 23:
        unit -= 1
    steps = abs(value) * Fraction(2) ** -unit
    low = steps.numerator // steps.denominator
    return code_of((low | (low != steps)) * (-1 if sign else 1), unit, fp32)


def arm_block(a: Sequence[int], b: Sequence[int], c: int, ebf: bool) -> int:
    """ARM's BFDotAdd on bf16 codes: EBF = 0 rounds products and sums to odd, EBF = 1 rounds the sum of products."""
    bf16, fp32 = FORMATS["bf16"], FORMATS["fp32"]
    if not ebf:
        a, b, c = ([flushed(x, bf16, True) for x in a], [flushed(x, bf16, True) for x in b], flushed(c, fp32, True))
    pairs = [(decode(x, bf16), decode(y, bf16)) for x, y in zip(a, b, strict=True)]
    if ebf:
        found = special(pairs)
        terms = [product(x, y) for x, y in pairs]
        unit = min(t.unit for t in terms)
        zero = int(all(x.sign ^ y.sign for x, y in pairs))
        p = to_format(sum(t.x << (t.unit - unit) for t in terms), unit, fp32, "RNE", zero_sign=zero)
        d = add(special_code(found, fp32) if found else p, c, fp32)
        return 0x7FC00000 if decode(d, fp32).kind == "nan" else d

    def rounded_sum(x: int, y: int) -> int:
        u, v = decode(x, fp32), decode(y, fp32)
        one = decode(code_of(1, 0, fp32), fp32)
        found = special([(u, one), (v, one)])
        return special_code(found, fp32) if found else odd(u.value + v.value, u.sign & v.sign)

    products = []
    for x, y in pairs:
        found = special([(x, y)])
        products.append(special_code(found, fp32) if found else odd(x.value * y.value, x.sign ^ y.sign))
    d = rounded_sum(c, rounded_sum(*products))
    return 0x7FC00000 if decode(d, fp32).kind == "nan" else d


def cdna2_block(a: Sequence[int], b: Sequence[int], c: int, ab: Format) -> int:
    """CDNA2 fp16 and bf16, 4 or 2 products: a tree of fp32 additions that flush, then the accumulator.

    The accumulator between two blocks is a flushed result and keeps a -0; only C on entry (`cdna2`) becomes +0.
    """
    fp32 = FORMATS["fp32"]
    zero = decode(1 << 31, fp32)  # x·y + (-0) is x·y rounded, its sign of zero kept
    products = [
        flushed(fma(decode(flushed(x, ab, False), ab), decode(flushed(y, ab, False), ab), zero, fp32), fp32, True)
        for x, y in zip(a, b, strict=True)
    ]
    while len(products) > 1:
        products = [flushed(add(p, q, fp32), fp32, True) for p, q in zip(products[::2], products[1::2], strict=True)]
    return flushed(add(c, products[0], fp32), fp32, True)


def cdna3_sum(pairs: Sequence[Pair]) -> tuple[int, int | None]:
    """Products alone, truncated 24 bits below their own largest exponent: (integer, exponent); None if all are zero."""
    terms = [product(a, b) for a, b in pairs]
    exponents = [t.exponent for t in terms if t.x]
    if not exponents:
        return 0, None
    e = max(exponents)
    return sum(shifted(t.x, t.unit, e - 24, "trunc") for t in terms), e


def cdna3_block(pairs: Sequence[Pair], c: Number, interleaved: bool) -> int:
    """CDNA3. ``interleaved`` (fp8): even and odd k apart, and c dropped where e_c < E - 25."""
    fp32 = FORMATS["fp32"]
    found = special(pairs, c, limit=128)
    if found:
        return special_code(found, fp32)
    if interleaved:
        sums = [cdna3_sum(pairs[::2]), cdna3_sum(pairs[1::2])]
        exponents = [e for _, e in sums if e is not None]
        e_dot = max(exponents) if exponents else None
        dot = sum(shifted(x, e - 24, e_dot - 24, "floor") for x, e in sums if e is not None and e_dot is not None)
    else:
        dot, e_dot = cdna3_sum(pairs)
    E = c.exponent if e_dot is None else max(e_dot, c.exponent)
    total = 0 if e_dot is None else shifted(dot, e_dot - 24, E - 32, "floor")
    if not (interleaved and c.exponent < E - 25):
        total += shifted(c.integer, c.unit, E - 24, "floor") << 8
    if total == 0:
        return 0
    top = max(abs(total).bit_length() - 1 + E - 32, fp32.emin)
    return to_format(shifted(total, E - 32, top - 31, "floor"), top - 31, fp32, "RNE")


def converted(code: int, source: Format, target: Format) -> int:
    """A code in another format, rounded once to nearest even; a NaN becomes the canonical one."""
    n = decode(code, source)
    if n.kind != "finite":
        return special_code(Special(n.kind, n.sign), target)
    return to_format(n.integer, n.unit, target, "RNE", n.sign)
