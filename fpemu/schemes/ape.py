"""Ma, Wang, Zhai et al. (2022), APE: three library GEMMs that accumulate into one fp32 matrix.

Z. Ma et al., "Efficiently emulating high-bitwidth computation with low-bitwidth hardware", ICS 2022,
DOI 10.1145/3524059.3532377.

    h = RNE16(x)        r = RNE16((x - h) · 2^12)
    C <- h_A h_B        C <- C + (r_A h_B) / 2^12        C <- C + (h_A r_B) / 2^12

Each product is a separate GEMM, one chain over K; its epilogue scales the accumulator and adds C in fp32. The three
run in the order hh, rh, hr.

Range: |x| < 65520, and above 2^15 not within 2^-8 of halfway between two fp16 numbers, where r overflows; r keeps its
bits down to 2^-14 and is zero below 2^-24.
Error: |D - AB| <= (3·2^-22 + (K/L) eps + 2^-23) |A||B|.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import TwoWords
from fpemu.schemes.words import Plan


@register
@dataclass(frozen=True, kw_only=True)
class Ape(TwoWords):
    """Three products, each a GEMM that adds to C."""

    info = SchemeInfo(
        name="ape",
        title="APE",
        paper="Ma, Wang, Zhai and others, ICS 2022",
        year=2022,
        doi="10.1145/3524059.3532377",
        parts=("h = RNE16(x)", "r = RNE16((x - h) 2^12)"),
        range="|x| < 65520 (not at midpoints above 2^15); r loses bits below 2^-14, and is zero below 2^-24",
        bound="3 2^-22 + (K/L) eps + 2^-23",
    )

    residual_scale: float = choose.scale(2.0**12)
    products: tuple[str, ...] | None = choose.products(("hh", "rh", "hr"), "hr")
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("each")
    step: int | str | None = choose.turns(None)
    promote: int | str | None = choose.promotion(None)

    def plan(self) -> Plan:
        return replace(super().plan(), join="as-run")
