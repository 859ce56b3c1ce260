"""H2SGEMM's theory of a split in two words, for any formats and roundings: Eq. 3 to 6, Rules 1 and 2, figure 2.

Source: Xue et al., H2SGEMM (2025), sections 3.1.1 to 3.1.3, where fp32 numbers x = 1.M · 2^E become fp16 words,
h = RNE(x) and r = RNE((x - h) · 2^sb). Here the wide format has P bits of precision (24) and the narrow one p (11),
with normal exponents emin to emax (-14 to 15); l_M is P - 1, l_Mhigh is p - 1, b_low is 1 - emin, and D = P - p.
The residual has the exponent E - (p + 1) - N; N = D - 1 stands for x = h. All exponents are binary exponents.

"printed" is the paper's formula with its constants expressed by the formats; "corrected" is the result of
enumeration (`_enumeration`), exact for every exponent, format pair and rounding.

* Eq. 3 is called a probability "given N = n" and is the joint one of N and T or R: it sums to one. N must be counted
  from the exponent of x, not from the exponent of h after a carry (Eq. 2), and runs from -1 to D - 2, not from 0 to 10.
* Eq. 5 counts exact splits as underflows, and its second line counts every residual below the smallest number,
  although rounding to nearest loses only residuals of at most half of it.
* Eq. 6 puts the largest residual at N = 0; a tie has N = -1. The upper bound is one too high, and Rule 2 with it:
  x = 2^15 + 16 has the residual 16, and 16 · 2^12 overflows fp16. The lower bound counts the places that r holds and
  not the error, half a place: as an error of 2^(E - bits) it is one too high, for nearest rounding of the residual.
* Rule 1 is Eq. 6's lower bound at sb = 0: pessimistic by one exponent in the same sense.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Unpack

from fpemu.arguments import choice
from fpemu.errors import InputError

from ._residuals import Choice, Form, Split


# --- Eq. 3 and 5
def residual_probability(n: int, event: str, **split: Unpack[Choice]) -> float:
    """Return P(N = n, event), H2SGEMM's Eq. 3.

    It is the joint probability that h was rounded down (T) or up (R) and that the residual has N = n, for h normal and
    without overflow. As printed, for rounding to nearest even:

        2^-(D+1) at n = -1 (the tie), 2^-(n+2) for 0 <= n < D - 1, T and R alike; 2^-D at n = D - 1 (x = h) for T

    The other roundings are not in the paper. Ties away from zero: the tie is R alone, 2^-D. Toward zero: 2^-(n+2) for
    -1 <= n < D - 1, T alone, and RU the same with R (x > 0), beside 2^-D for x = h.

    >>> residual_probability(-1, "T") == 2**-14, residual_probability(0, "R") == 2**-2
    (True, True)
    >>> residual_probability(-1, "T", narrow="bf16", rounding="RZ")
    0.5
    """
    setup = Split.of(**split)
    choice("event of the rounding", event, ("T", "R"))
    D = setup.wide.precision - setup.narrow.precision
    if n == D - 1:
        return 2.0**-D if event == "T" else 0.0
    if setup.rounding in ("RNE", "RNA"):
        if n == -1:
            return 2.0 ** -(D + 1) if setup.rounding == "RNE" else 2.0**-D if event == "R" else 0.0
        return 2.0 ** -(n + 2) if 0 <= n < D - 1 else 0.0
    return 2.0 ** -(n + 2) if -1 <= n < D - 1 and (event == "R") == (setup.rounding == "RU") else 0.0


def underflow_probability(
    exponent: int, *, sb: int = 0, gradual: bool = False, form: Form = "corrected", **split: Unpack[Choice]
) -> float:
    """Return the share of the numbers of an exponent whose scaled residual underflows, Eq. 5.

    As printed, with E + sb for the offset exponent (the paper has sb = 0), b = 1 - emin:

        P_u+gu = sum of P(n, T) + P(n, R) over n from E + sb - p + b - 1 to D - 1        (below 2^emin)
        P_u    = the same from n = E + sb + b - 2                                        (below 2^(emin - p + 1))

    Corrected, exact splits (d = 0) are no underflows: P_u+gu counts 0 < abs(d · 2^sb) < 2^emin, and P_u the d that are
    not 0 while r is. For nearest rounding with h normal that is, with f = E + sb + b - 1,

        P_u = sum of P(n, T) + P(n, R) over n from max(f, -1) to D - 2  +  2^-(D-1) if 0 <= f <= D - 1  (ties of r)

    about half of what is printed. With a residual rounded toward zero the printed P_u is right but for exact splits.

    >>> [100 * underflow_probability(-12, form=form) for form in ("printed", "corrected")]
    [49.98779296875, 25.0]
    """
    setup = Split.of(**split)
    narrow = setup.narrow
    if form == "printed":
        first = exponent + sb - narrow.precision - (narrow.emin if gradual else setup.least)
        ns = range(max(first, -1), setup.wide.precision - narrow.precision)
        return sum((residual_probability(n, event, **split) for n in ns for event in "TR"), 0.0)
    hits = 0
    for interval in setup.intervals(exponent):
        least = narrow.emin - sb - setup.unit(exponent)
        end = (1 << least if least > 0 else 1) - 1 if gradual else setup.last_gone(exponent, sb, interval.event)
        hits += interval.within(1, end)
    return hits / setup.mantissas()


# --- figure 2(b) and Eq. 6
@dataclass(frozen=True)
class Bits:
    """Accuracy of two words over the numbers of one exponent.

    Attributes
    ----------
    worst : int
        Largest b with abs(x - h - r / 2^sb) <= 2^(E - b) for every number whose words are finite; 0 if there is none.
    mean : float
        The mean of the same b, number by number; 0 if no words are finite.
    h_overflows : float
        Share of the numbers whose high word overflows.
    r_overflows : float
        Share of the numbers whose residual overflows, and not the high word.
    """

    worst: int
    mean: float
    h_overflows: float
    r_overflows: float


def bits_kept(exponent: int, sb: int = 0, **split: Unpack[Choice]) -> Bits:
    """Return the bits that the two words keep of the numbers of an exponent (figure 2(b)).

    A number that is kept exactly counts P bits, the precision of the wide format.

    >>> bits_kept(0, 12).worst, bits_kept(-8, 0).worst, round(bits_kept(15, 12).r_overflows * 2**13)
    (23, 17, 3)
    """
    return _bits(Split.of(**split), exponent, sb)


@functools.lru_cache(maxsize=4096)
def _bits(setup: Split, exponent: int, sb: int) -> Bits:
    counts = {b: count for b, count in setup.bits(exponent, sb).items() if count}
    kept, every = sum(counts.values()), setup.mantissas()
    finite = sum(interval.within(interval.first, interval.last) for interval in setup.intervals(exponent))
    mean = sum(b * count for b, count in counts.items()) / kept if kept else 0.0
    return Bits(min(counts, default=0), mean, (every - finite) / every, (finite - kept) / every)


def printed_bits(exponent: int, sb: int, **split: Unpack[Choice]) -> int:
    """Return the bits of figure 2(b) as the text states them.

    They are min(2p, E + sb - (emin - p + 1)), and not below the p of h, for a normal h.

    >>> printed_bits(0, 12), printed_bits(-8, 0)
    (22, 16)
    """
    setup = Split.of(**split)
    p = setup.narrow.precision
    return max(p, min(2 * p, exponent + sb - setup.least))


def scaling_interval(
    lowest: int, highest: int, *, bits: int | None = None, form: Form = "corrected", **split: Unpack[Choice]
) -> range:
    """Return the scaling exponents that keep enough bits and overflow no residual, Eq. 6.

    They keep `bits` bits from the exponent `lowest` on and overflow no residual up to `highest`. As printed, for fp16
    and 22 bits -24 + 22 - E_min <= sb <= 15 + 12 - E_max, and in general

        (emin - p + 1) + bits - E_min  <=  sb  <=  emax + (p + 1) - E_max

    Corrected, with bits counted as in `bits_kept`, the ends are those that exact counts give. For nearest rounding of
    both words, h normal, and bits from p + 1 to 2p + 1, they are

        (emin - p) + bits - E_min  <=  sb  <=  emax + p - E_max

    Numbers with an overflowing h (at emax, above the largest number) are not considered.

    >>> scaling_interval(-14, 15, form="printed"), scaling_interval(-14, 15)
    (range(12, 13), range(11, 12))
    """
    setup = Split.of(**split)
    narrow = setup.narrow
    wanted = 2 * narrow.precision if bits is None else bits
    if lowest > highest:
        raise InputError(f"the lowest exponent, {lowest}, is above the highest, {highest}")
    if wanted <= narrow.precision:
        raise InputError(f"{wanted} bits need no residual: h alone is {narrow}, of {narrow.precision}; choose more")
    low, high = setup.least + wanted - lowest, narrow.emax + narrow.precision + 1 - highest
    if form == "printed":
        return range(low, high + 1)
    least, most = _lowest(setup, lowest, wanted), _highest(setup, highest)
    return range(0) if least is None or most is None else range(least, most + 1)


def _lowest(setup: Split, exponent: int, bits: int) -> int | None:
    """The smallest sb that keeps the bits at an exponent; None if there is none."""
    last = setup.narrow.emin - setup.unit(exponent)  # from here on every residual is normal: scaling is no help
    first = setup.least - exponent - 2  # up to here every residual is gone: h alone does not keep the bits
    return next((sb for sb in range(first, last + 1) if _bits(setup, exponent, sb).worst >= bits), None)


def _highest(setup: Split, exponent: int) -> int | None:
    """The largest sb with which no residual overflows at an exponent; None if none does with any sb."""
    intervals = [interval for interval in setup.intervals(exponent) if interval.last]
    if not intervals:
        return None
    largest = max(interval.last for interval in intervals).bit_length()
    sb = setup.narrow.emax - setup.unit(exponent) - largest  # every residual stays below 2^emax
    while all(interval.last < setup.least_over(exponent, sb + 1, interval.event) for interval in intervals):
        sb += 1
    return sb


# --- Rules 1 and 2: Eq. 6 in words
@dataclass(frozen=True)
class Rule1:
    """Binary exponents of the numbers below which an unscaled residual (sb = 0) is not enough.

    Attributes
    ----------
    scale_below : int
        Below it the residual must be scaled for the two words to keep 2p bits (printed: -2).
    fails_below : int
        Below it the unscaled residual adds nothing to the p bits of h (printed: -12).
    """

    scale_below: int
    fails_below: int


def rule_1(*, form: Form = "corrected", bits: int | None = None, **split: Unpack[Choice]) -> Rule1:
    """Return Rule 1: where the residual must be scaled.

    As printed emin + p + 1 and emin + 2, -2 and -12 for fp16.

    Corrected: the lowest normal exponents of h from which on sb = 0 keeps `bits` bits (default 2p), and more than p;
    one above the highest where none does (2p bits, both words truncated).

    >>> rule_1(form="printed"), rule_1()
    (Rule1(scale_below=-2, fails_below=-12), Rule1(scale_below=-3, fails_below=-13))
    """
    setup = Split.of(**split)
    narrow = setup.narrow
    wanted = 2 * narrow.precision if bits is None else bits
    if form == "printed":
        return Rule1(setup.least + wanted, narrow.emin + 2)
    ends = []
    for least in (wanted, narrow.precision + 1):
        spans = range(max(narrow.emin, setup.wide.emin), min(narrow.emax, setup.wide.emax) + 1)
        # the quantum of a subnormal r is the same everywhere: bits kept never fall as the exponent grows
        ends.append(next((e for e in spans if _bits(setup, e, 0).worst >= least), spans.stop))
    return Rule1(*ends)


def rule_2(*, form: Form = "corrected", **split: Unpack[Choice]) -> int:
    """Return Rule 2: the largest scaling exponent with which no residual of large numbers overflows.

    As printed p + 1 (12 for fp16).

    >>> rule_2(form="printed"), rule_2(), overflow_example(15, 12) == 2**15 + 16
    (12, 11, True)
    """
    setup = Split.of(**split)
    if form == "printed":
        return setup.narrow.precision + 1
    top = min(setup.narrow.emax, setup.wide.emax)
    largest = (_highest(setup, e) for e in range(top, setup.wide.emin - 1, -1))
    return next(sb for sb in largest if sb is not None)  # at emax there may be no residual


def overflow_example(exponent: int, sb: int, **split: Unpack[Choice]) -> float | None:
    """Return a number of an exponent whose scaled residual overflows while h does not.

    >>> overflow_example(15, 11) is None
    True
    """
    setup = Split.of(**split)
    examples: list[tuple[int, int]] = []
    for interval in setup.intervals(exponent):
        if interval.last >= setup.least_over(exponent, sb, interval.event):
            examples.append((-interval.last, setup.smallest(exponent, interval.event, interval.last)))
    return float(min(examples)[1]) * 2.0 ** setup.unit(exponent) if examples else None
