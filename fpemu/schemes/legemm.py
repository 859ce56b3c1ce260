"""Zhang, Lu, Yang, Liang, Suo (2025), LE-GEMM: a bit-cut split and two accumulators.

Y. Zhang et al., "LE-GEMM: a lightweight emulation-based GEMM with precision refinement on GPU", Journal of Systems
Architecture 160 (2025) 103336, DOI 10.1016/j.sysarc.2025.103336.

    h = bit-cut(x): sign and top ten fraction bits copied, the exponent re-biased (Eq. 5, 7)
    r = RZ16((x - h) · 2^10)     (Eq. 6, 8)
    acc0 <- MMA(h_A, h_B, acc0)
    acc1 <- MMA(h_A, r_B, acc1), then MMA(r_A, h_B, acc1)     per instruction (Algorithm 1)
    D = alpha · (acc0 + acc1 / 2^10) + beta · C     (Eq. 11)

Range: |x| < 65536; r keeps its bits down to 2^-13 and is zero below 2^-23.
Error: |D - AB| <= (2^-18 + (K/L) eps) |A||B|: the cut leaves r up to twice as large as rounding does, and the product
r_A r_B that is dropped four times as large.
"""

from __future__ import annotations

from dataclasses import dataclass

from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import TwoWords
from fpemu.schemes.words import BIT_CUT


@register
@dataclass(frozen=True, kw_only=True)
class Legemm(TwoWords):
    """Three products in two chains, truncated parts."""

    info = SchemeInfo(
        name="legemm",
        title="LE-GEMM",
        paper="Zhang, Lu, Yang, Liang, Suo, Journal of Systems Architecture 160, 2025",
        year=2025,
        doi="10.1016/j.sysarc.2025.103336",
        parts=("h = bit-cut(x)", "r = RZ16((x - h) 2^10)"),
        range="|x| < 65536; r loses bits below 2^-13, and is zero below 2^-23",
        bound="2^-18 + (K/L) eps",
    )

    high_rounding: str = choose.rounding(BIT_CUT, "rounding of the high part")
    residual_rounding: str = choose.rounding("RZ", "rounding of the residual")
    residual_scale: float = choose.scale(2.0**10)
    products: tuple[str, ...] | None = choose.products(("hh", "hr", "rh"), "hr")
    step: int | str | None = choose.turns("instruction")
    promote: int | str | None = choose.promotion(None)
