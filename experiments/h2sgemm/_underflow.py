"""H2SGEMM's theory of a split in two words, for any formats and roundings: Eq. 3 to 6, Rules 1 and 2, figure 2.

Source: Xue et al., H2SGEMM (2025), sections 3.1.1 to 3.1.3, where fp32 numbers x = 1.M · 2^E become fp16 words,
h = RNE(x) and r = RNE((x - h) · 2^sb). Here the wide format has P bits of precision (24) and the narrow one p (11),
with normal exponents emin to emax (-14 to 15); l_M is P - 1, l_Mhigh is p - 1, b_low is 1 - emin, and D = P - p.
The residual has the exponent E - (p + 1) - N; N = D - 1 stands for x = h. All exponents are binary exponents.

"printed" is the paper's formula with its constants expressed by the formats; "corrected" is the result of enumeration
(`_enumeration`), exact for every exponent and format pair and for words rounded to nearest even or toward zero.

* Eq. 3 is called a probability "given N = n" and is the joint one of N and T or R: it sums to one. N must be counted
  from the exponent of x, not from the exponent of h after a carry (Eq. 2), and runs from -1 to D - 2, not from 0 to 10.
* Eq. 5 counts exact splits as underflows, and its second line counts every residual below the smallest number,
  although rounding to nearest loses only residuals of at most half of it.
* Eq. 6 puts the largest residual at N = 0; a tie has N = -1. The upper bound is one too high, and Rule 2 with it:
  x = 2^15 + 16 has the residual 16, and 16 · 2^12 overflows fp16. The lower bound counts the places that r holds and
  not the error, half a place: as an error of 2^(E - bits) it is one too high, for nearest rounding of the residual.
* Rule 1 is Eq. 6's lower bound at sb = 0: pessimistic by one exponent in the same sense.
"""

import functools
from dataclasses import dataclass
from typing import Unpack

from ._residuals import Choice, Form, Split


# --- Eq. 3 and 5
def residual_probability(n: int, event: str, **split: Unpack[Choice]) -> float:
    """Return P(N = n, event), H2SGEMM's Eq. 3.

    It is the joint probability that h was rounded down (T) or up (R) and that the residual has N = n, for h normal and
    without overflow. As printed, for rounding to nearest even:

        2^-(D+1) at n = -1 (the tie), 2^-(n+2) for 0 <= n < D - 1, T and R alike; 2^-D at n = D - 1 (x = h) for T

    Rounding toward zero is not in the paper: 2^-(n+2) for -1 <= n < D - 1, T alone, beside 2^-D for x = h.

    >>> residual_probability(-1, "T") == 2**-14, residual_probability(0, "R") == 2**-2
    (True, True)
    >>> residual_probability(-1, "T", narrow="bf16", rounding="RZ")
    0.5
    """
    setup = Split.of(**split)
    D = setup.wide.precision - setup.narrow.precision
    if n == D - 1:
        return 2.0**-D if event == "T" else 0.0
    if setup.rounding == "RNE":
        return 2.0 ** -(D + 1) if n == -1 else 2.0 ** -(n + 2) if 0 <= n < D - 1 else 0.0
    return 2.0 ** -(n + 2) if -1 <= n < D - 1 and event == "T" else 0.0


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
        end = (1 << least if least > 0 else 1) - 1 if gradual else setup.last_gone(exponent, sb)
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


def scaling_interval(lowest: int, highest: int, *, form: Form = "corrected", **split: Unpack[Choice]) -> range:
    """Return the scaling exponents that keep 2p bits and overflow no residual, Eq. 6.

    They keep the bits from the exponent `lowest` on and overflow no residual up to `highest`. As printed, for fp16
    -24 + 22 - E_min <= sb <= 15 + 12 - E_max, and in general

        (emin - p + 1) + 2p - E_min  <=  sb  <=  emax + (p + 1) - E_max

    Corrected, with bits counted as in `bits_kept`, for nearest rounding of both words and a normal h, both ends are one
    lower. Numbers with an overflowing h (at emax, above the largest number) are not considered.

    >>> scaling_interval(-14, 15, form="printed"), scaling_interval(-14, 15)
    (range(12, 13), range(11, 12))
    """
    setup = Split.of(**split)
    narrow, less = setup.narrow, form == "corrected"
    low = setup.least + 2 * narrow.precision - lowest - less
    return range(low, narrow.emax + narrow.precision + 2 - highest - less)
