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
        products=("rh", "hr", "hh"),
        range="|x| < 65520 (sb = 12: not at midpoints above 2^15); r loses bits below 2^(-2-sb), and is zero below "
        "2^(-12-sb)",
        bound="3 2^-22 + (K/L) eps + 2^-23",
    )

    sb: int = choose.integer(12, -60, 60, "binary exponent of the residual's scale")
    combine: Literal["term-wise", "element-wise"] = choose.choice(
        "term-wise", ("term-wise", "element-wise"), "sums of whole products, or of the products of every step"
    )
    accumulators: Literal["one", "band", "each"] = choose.accumulators("each")
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
        plan = self.sums(2.0**self.sb, self.step, self.promote)
        return replace(plan, accumulators="none") if self.combine == "element-wise" else plan
