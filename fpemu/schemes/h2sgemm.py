"""Xue, Xu, Yang, Liu, Fan, Xu, Tian (2025), H2SGEMM: a tunable residual scale, products summed term by term.

W. Xue et al., "H2SGEMM: Emulating FP32 GEMM on Ascend NPUs using FP16 Units with Precision Recovery and Cache-Aware
Optimization", 2025, DOI 10.48550/arXiv.2507.23387.

    h = RNE16(x)        r = RNE16((x - h) · 2^sb), sb = 12     (Eq. 2, 7; Rules 1 and 2)

    term-wise:      A·B ≈ (r_A h_B + h_A r_B) / 2^sb + h_A h_B, each product a chain over all of K (Fig. 7b)
    element-wise:   all three on every position of k before the next (Fig. 7a)

Our reading of element-wise: per instruction, in the order rh, hr, hh, each block product starts from zero and is added
to one fp32 total outside the core, to nearest, the corrections divided by 2^sb first.

Range: |x| < 65520; r keeps its bits down to 2^(-2-sb) and is zero below 2^(-12-sb). Rule 2 allows sb = 12 for all of
them, yet above 2^15 r overflows within 2^-8 of halfway between two fp16 numbers (2^15 + 16): sb = 11 is safe there.
Error: |D - AB| <= (3·2^-22 + (K/L) eps + 2^-23) |A||B|.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fpemu.errors import InputError
from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import TwoWords
from fpemu.schemes.words import Plan, Word


@register
@dataclass(frozen=True, kw_only=True)
class H2sgemm(TwoWords):
    """Three products, term-wise or element-wise."""

    info = SchemeInfo(
        name="h2sgemm",
        title="H2SGEMM",
        paper="Xue, Xu, Yang, Liu, Fan, Xu, Tian, 2025",
        year=2025,
        doi="10.48550/arXiv.2507.23387",
        parts=("h = RNE16(x)", "r = RNE16((x - h) 2^sb)"),
        range="|x| < 65520 (sb = 12: not at midpoints above 2^15); r loses bits below 2^(-2-sb), and is zero below "
        "2^(-12-sb)",
        bound="3 2^-22 + (K/L) eps + 2^-23",
    )

    sb: int = choose.integer(12, -60, 60, "binary exponent of the residual's scale")
    combine: Literal["term-wise", "element-wise"] = choose.choice(
        "term-wise", ("term-wise", "element-wise"), "sums of whole products, or of the products of every step"
    )
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("each")
    step: int | str | None = choose.turns("instruction")
    promote: int | str | None = choose.promotion(None)

    def check(self) -> None:
        if self.combine == "term-wise":
            return super().check()
        if (self.accumulators, self.promote, self.combine_in) != ("each", None, "fp32"):
            self.refuse(
                "element-wise adds every block outside in fp32: "
                "accumulators, promote and combine_in have no effect there"
            )
        if self.step is None:
            self.refuse("element-wise needs a step: a length in k or 'instruction'")

    def rules(self) -> tuple[Word, ...]:
        return self.words_of_scale(2.0**self.sb)

    def plan(self) -> Plan:
        plan = self.plan_of(self.kept(), "hr", self.sb, self.step, self.promote)
        return replace(plan, accumulators="none") if self.combine == "element-wise" else plan


def equation6(lowest: int, highest: int, *, printed: bool = False) -> range:
    """Return the scaling exponents that keep 22 mantissa bits of every number of given offset exponents.

    For |x| in [2^E, 2^(E+1)), -14 <= E <= 15, the paper's 22 bits mean an error of at most 2^(E-23), half of the last
    of them, and Eq. 6 (section 3.1.3) prints

        -2 - E_min <= sb <= 27 - E_max

    from the place of the last bit, 2^(E-22+sb) >= 2^-24, and of the first one, 2^(E-12+sb) <= 2^15. The lower bound
    holds (where an error of 2^(E-22) is called 22 bits, as on the page of figure 2b, it could be one lower). The upper
    one does not: |x - h| reaches 2^(E-11), half of h's last place, when x lies midway between two fp16 numbers, so that
    sb = 27 - E makes a residual of 2^16, which overflows. 26 - E_max holds.

    Parameters
    ----------
    lowest, highest : int
        Offset exponents of the smallest and the largest number, binary exponents of their leading bits.
    printed : bool
        Use the upper bound of the paper, which is one too high.

    Returns
    -------
    range
        Empty if no exponent serves: below -14 h is subnormal and the two words together hold fewer bits whatever the
        scale; from 65520 on h overflows, which is in the binade of 15: only the printed bounds go as far.

    Raises
    ------
    InputError
        `lowest` is above `highest`.

    Examples
    --------
    >>> equation6(-14, 15, printed=True), equation6(-14, 14), equation6(0, 0)
    (range(12, 13), range(12, 13), range(-2, 27))
    """
    if lowest > highest:
        raise InputError(f"the lowest offset exponent, {lowest}, is above the highest, {highest}")
    return range(0) if lowest < -14 or highest > 14 + printed else range(-2 - lowest, 27 - highest + printed)
