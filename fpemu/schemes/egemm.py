"""Feng, Wang, Chen, Zhang, Xie, Ding (2021), EGEMM-TC: extended precision from a rounded split.

B. Feng et al., "EGEMM-TC: accelerating scientific computing on tensor cores with extended precision", PPoPP 2021,
DOI 10.1145/3437801.3441599.

    h = RNE16(x)        r = RNE16(x - h), unscaled; its sign is one more bit: 21 in all
    A·B ≈ r_A r_B + r_A h_B + h_A r_B + h_A h_B

The four products share one accumulator. Our reading of the emulated instruction: the four run one after another on
every instruction's k, from the smallest to the largest.

Range: |x| < 65520. r loses bits below |x| = 2^-2 and is zero below 2^-12.
Error: |D - AB| <= (2^-21 + 4 (K/L) eps) |A||B|.
"""

from __future__ import annotations

from dataclasses import dataclass

from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import TwoWords


@register
@dataclass(frozen=True, kw_only=True)
class Egemm(TwoWords):
    """Four products of unscaled parts, interleaved in one chain."""

    info = SchemeInfo(
        name="egemm",
        title="EGEMM-TC",
        paper="Feng, Wang, Chen, Zhang, Xie, Ding, PPoPP 2021",
        year=2021,
        doi="10.1145/3437801.3441599",
        parts=("h = RNE16(x)", "r = RNE16(x - h)"),
        range="|x| < 65520; r loses bits below 2^-2, and is zero below 2^-12",
        bound="2^-21 + 4 (K/L) eps",
    )

    residual_scale: float = choose.scale(1.0)
    products: tuple[str, ...] | None = choose.products(("rr", "rh", "hr", "hh"), "hr")
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("one")
    step: int | str | None = choose.turns("instruction")
    promote: int | str | None = choose.promotion(None)
