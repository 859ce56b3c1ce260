"""Staged accumulation: parts of one scale, corrections first, a fresh accumulator for every stage of K.

No paper; the order is that of a Hopper kernel (wgmma, stages of 64) whose results it reproduces bit for bit.

    s = the power of two that brings the largest entry of a row of A, or of a column of B, to [2^13, 2^14)
    h = RNE16(x · s)        r = RNE16(x · s - h), unscaled: h and r share a scale
    stage: acc <- 0, then MMA(r_A, h_B), MMA(h_A, r_B), MMA(h_A, h_B), each over the stage's k
    total <- total + acc     per stage, outside the core, in fp32 to nearest
    A·B ≈ total / (s_A s_B)

The corrections enter while the accumulator is small, so that they add next to nothing to its truncation.

Range: all of fp32, whatever the range policy. Entries below 2^-15 of their row's (column's) largest lose bits of r: an
absolute error of at most 2^-25 / s, about 2^-38 of the largest.
Error: |D - AB| <= (3·2^-22 + (K/stage) 2^-24 + 3 (stage/L) eps) |A||B|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fpemu.schemes import options as choose
from fpemu.schemes.base import TwoWords, register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.words import Plan


@register
@dataclass(frozen=True, kw_only=True)
class Staged(TwoWords):
    """Three products in one accumulator that restarts every stage."""

    scales_rows: ClassVar[bool] = True
    promote_option: ClassVar[str] = "stage"

    info = SchemeInfo(
        name="staged",
        title="Staged accumulation with row and column scaling",
        parts=("h = RNE16(x s)", "r = RNE16(x s - h)"),
        products=("rh", "hr", "hh"),
        range="all of fp32; full precision down to 2^-15 of a row's (column's) largest entry",
        bound="3 2^-22 + (K/stage) 2^-24 + 3 (stage/L) eps",
    )

    residual_scale: float = choose.scale(1.0)
    accumulators: Literal["one", "band", "each"] = choose.accumulators("one")
    stage: int | str | None = choose.interval(64, "length in k of a stage", none=False)

    def plan(self) -> Plan:
        return self.sums(self.residual_scale, None if self.accumulators == "each" else self.stage, self.stage)
