"""H2SGEMM's theory of a split in two words, for any formats and roundings: Eq. 3 to 6, Rules 1 and 2, figure 2.

Source: Xue et al., H2SGEMM (2025), sections 3.1.1 to 3.1.3, where fp32 numbers x = 1.M · 2^E become fp16 words,
h = RNE(x) and r = RNE((x - h) · 2^sb). Here the wide format has P bits of precision (24) and the narrow one p (11),
with normal exponents emin to emax (-14 to 15); l_M is P - 1, l_Mhigh is p - 1, b_low is 1 - emin, and D = P - p.
The residual has the exponent E - (p + 1) - N; N = D - 1 stands for x = h. All exponents are binary exponents.

"printed" is the paper's formula with its constants expressed by the formats; "corrected" is the result of
enumeration (`fpemu.theory.enumeration`), exact for every exponent, format pair and rounding.

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

from typing import Unpack

from fpemu.arguments import checked, choice
from fpemu.theory.residuals import Choice, Form, Split
from fpemu.theory.scaling import (
    Bits,
    Rule1,
    bits_kept,
    overflow_example,
    printed_bits,
    rule_1,
    rule_2,
    scaling_interval,
)

__all__ = [
    "Bits",
    "Choice",
    "Rule1",
    "bits_kept",
    "overflow_example",
    "printed_bits",
    "residual_probability",
    "rule_1",
    "rule_2",
    "scaling_interval",
    "underflow_probability",
]


@checked
def residual_probability(n: int, event: str, **split: Unpack[Choice]) -> float:
    """Return P(N = n, event), H2SGEMM's Eq. 3.

    It is the joint probability that h was rounded down (T) or up (R) and that the residual has N = n, for h normal and
    without overflow. As printed, for rounding to nearest even:

        2^-(D+1) at n = -1 (the tie), 2^-(n+2) for 0 <= n < D - 1, T and R alike; 2^-D at n = D - 1 (x = h) for T

    The other roundings are not in the paper. Ties away from zero: the tie is R alone, 2^-D. Toward zero: 2^-(n+2) for
    -1 <= n < D - 1, T alone, and RU the same with R (x > 0), beside 2^-D for x = h.

    Parameters
    ----------
    n : int
        Place of the residual's leading bit.
    event : {"T", "R"}
        h rounded down ("T") or up ("R").
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    float
        Probability.

    Raises
    ------
    InputError
        Unknown names, or a narrow format that is not narrower than the wide one.

    Examples
    --------
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


@checked
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

    Parameters
    ----------
    exponent : int
        E, the exponent of x.
    sb : int
        Scaling exponent: the residual is multiplied by 2^sb.
    gradual : bool
        Return P_u+gu instead of P_u.
    form : {"printed", "corrected"}
        "printed" is derived for a normal h, and is evaluated as it stands elsewhere.
    **split
        Formats and roundings of the split, as in `Choice`.

    Returns
    -------
    float
        Probability.

    Raises
    ------
    InputError
        Unknown names, or a narrow format that is not narrower than the wide one.

    Examples
    --------
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
