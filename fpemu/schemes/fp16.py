"""Plain half precision: what WMMA and rocWMMA compute when fp32 matrices are converted to fp16.

h = RNE16(x), A·B ≈ h_A h_B in one chain of instructions with an fp32 (or fp16) accumulator.

Range: |x| < 65520; below 2^-14 bits are lost, below 2^-25 all of them.
Error: |D - AB| <= (2^-10 + K/L · eps) |A||B| with L and eps the length and the error of one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fpemu.formats import FP16
from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.words import Plan, Word


@register
@dataclass(frozen=True, kw_only=True)
class Half(SplitScheme):
    """One fp16 word, one chain."""

    info = SchemeInfo(
        name="fp16",
        title="Half precision (WMMA, rocWMMA)",
        parts=("h = RNE16(x)",),
        products=("hh",),
        range="|x| < 65520; full precision from 2^-14",
        bound="2^-10 + (K/L) eps",
    )

    high_rounding: str = choose.rounding("RNE", "rounding of the operands to fp16")
    promote: int | str | None = choose.promotion(None, "the chain")
    accumulator: Literal["fp32", "fp16"] = choose.choice(
        "fp32", ("fp32", "fp16"), "format of the instruction's accumulator and result"
    )

    @property
    def accumulator_format(self) -> str:
        return self.accumulator

    def rules(self) -> tuple[Word, ...]:
        return (Word("h", FP16, self.high_rounding),)

    def plan(self) -> Plan:
        return Plan(((0, 0),), accumulators="one", promote=self.promote)
