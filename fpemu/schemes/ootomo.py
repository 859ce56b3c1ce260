"""Ootomo and Yokota (2022): error correction with scaled residuals, accumulated outside the tensor cores.

H. Ootomo, R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
performance", International Journal of High Performance Computing Applications 36(4), 2022,
DOI 10.1177/10943420221090256.

    h = RNE16(x)        r = RNE16((x - h) · 2^11)
    main <- main + MMA(h_A, h_B, 0)     per instruction, the addition outside in fp32 to nearest
    corr <- MMA(r_A, h_B, corr), then MMA(h_A, r_B, corr)     per instruction
    A·B ≈ main + corr / 2^11

Options beyond the paper: `promote` restarts the main accumulator less often; `step` lets rh and hr take
turns after more than one instruction. The Hopper kernel with stages of 64 is promote=64, step=64.

ootomo-tf32 has the same sums over nearly all of fp32's range: h = RNE-tf32(x), r = RNE-tf32(x - h), unscaled, because
tf32 has fp32's exponents, and A·B ≈ main + corr.

Range: |x| < 65520; r keeps its bits down to 2^-13 and is zero below 2^-23. With tf32, |x| < 2^128 (1 - 2^-12); r keeps
its bits down to 2^-114.
Error: |D - AB| <= (3·2^-22 + (K/k + L + 2) 2^-24 + ...) |A||B|: no truncation builds up along K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fpemu.formats import TF32, FloatFormat
from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import TwoWords


@register
@dataclass(frozen=True, kw_only=True)
class Ootomo(TwoWords):
    """Three products; the main one restarts every instruction."""

    info = SchemeInfo(
        name="ootomo",
        title="Error-corrected SGEMM on tensor cores (fp16)",
        paper="Ootomo, Yokota, IJHPCA 36(4), 2022",
        year=2022,
        doi="10.1177/10943420221090256",
        parts=("h = RNE16(x)", "r = RNE16((x - h) 2^11)"),
        range="|x| < 65520; r loses bits below 2^-13, and is zero below 2^-23",
        bound="3 2^-22 + (K/k) 2^-24 + (k/L) eps",
    )

    residual_scale: float = choose.scale(2.0**11)
    products: tuple[str, ...] | None = choose.products(("hh", "rh", "hr"), "hr")
    step: int | str | None = choose.turns("instruction")
    promote: int | str | None = choose.promotion("instruction")


@register
@dataclass(frozen=True, kw_only=True)
class OotomoTf32(Ootomo):
    """Three products of tf32 parts; the main one restarts every instruction."""

    info = replace(
        Ootomo.info,
        name="ootomo-tf32",
        title="Error-corrected SGEMM on tensor cores (tf32)",
        parts=("h = RNE-tf32(x)", "r = RNE-tf32(x - h)"),
        range="|x| < 2^128 (1 - 2^-12); r loses bits below 2^-114",
    )

    word_format: ClassVar[FloatFormat] = TF32

    high_rounding: str = choose.rounding("RNE", "rounding of the high part", cut=False)
    residual_rounding: str = choose.rounding("RNE", "rounding of the residual", cut=False)
    residual_scale: float = choose.scale(1.0)
