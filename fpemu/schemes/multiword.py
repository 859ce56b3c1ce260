"""Fasi, Higham, Lopez, Mary, Mikaitis (2023): multiword arithmetic with blocked summation.

M. Fasi et al., "Matrix multiplication in multiword arithmetic: error analysis and application to GPU tensor cores",
SIAM Journal on Scientific Computing 45(1), 2023, DOI 10.1137/21M1465032.

    x ≈ x_1 + x_2 / S + ... + x_p / S^(p-1)        x_i = round((x - sum of the words before) · S^(i-1))
    A·B ≈ sum of A_i B_j / S^(i+j-2) over i + j <= p + 1

S is 1/u of the low format (2^11 for fp16 and tf32, 2^8 for bf16). Blocked summation: an accumulator takes b
instructions (`promote`), starts again from zero, and is added outside in fp32 to nearest.

Our reading where the paper leaves a parameter to the user: one accumulator per band i + j, its products each over the
block's k in turn, the bands joined from the smallest (total = total/S + band), blocks of 4 instructions.

Range: the low format's; for fp16 |x| < 65520.
Error: |D - AB| <= ((p + 1) u^p + (K / (b k)) 2^-24 + p b (k/L) eps) |A||B|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fpemu import formats
from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import SplitScheme, exponent_of
from fpemu.schemes.words import BIT_CUT, Plan, Word

DIGITS = "1234"
FORMATS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")


@register
@dataclass(frozen=True, kw_only=True)
class Multiword(SplitScheme):
    """p words of a low format, a band of products in each accumulator."""

    info = SchemeInfo(
        name="multiword",
        title="Multiword arithmetic",
        paper="Fasi, Higham, Lopez, Mary, Mikaitis, SIAM J. Sci. Comput. 45(1), 2023",
        year=2023,
        doi="10.1137/21M1465032",
        parts=("x_i = RNE((x - x_1 - ... - x_(i-1) / S^(i-2)) S^(i-1))",),
        products=("A_i B_j with i + j <= p + 1",),
        range="the low format's: |x| < 65520 for fp16",
        bound="(p + 1) u^p + (K / (b k)) 2^-24 + p b (k/L) eps",
    )

    words: int = choose.integer(2, 1, 4, "number of words p")
    fmt: str = choose.choice("fp16", FORMATS, "format of the words")
    high_rounding: str = choose.rounding("RNE", "rounding of the first word")
    residual_rounding: str = choose.rounding("RNE", "rounding of the other words")
    residual_scale: float | None = choose.scale(None, "scale S between a word and the next (None: 1/u)", none=True)
    products: tuple[str, ...] | None = choose.products(
        None, DIGITS, "products of words, in this order (None: i+j <= p+1)"
    )
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("band")
    step: int | str | None = choose.turns(None)
    promote: int | str | None = choose.promotion("4 instructions", "every accumulator")
    combine_in: Literal["fp32", "fp64"] = choose.combine_in()

    def check(self) -> None:
        if self.fmt != "fp16" and BIT_CUT in (self.high_rounding, self.residual_rounding):
            self.refuse(f"bit-cut makes fp16 words, not {self.fmt}")
        if any(int(digit) > self.words for name in self.products or () for digit in name):
            self.refuse(f"products={self.products} name more than the {self.words} words there are")
        super().check()

    @property
    def _exponent(self) -> int:
        scale = self.residual_scale
        return formats.get(self.fmt).precision if scale is None else exponent_of(scale)

    def rules(self) -> tuple[Word, ...]:
        fmt = formats.get(self.fmt)
        rest = (self.word(str(i + 1), fmt, self.residual_rounding, i * self._exponent) for i in range(1, self.words))
        return (self.word("1", fmt, self.high_rounding), *rest)

    def plan(self) -> Plan:
        p = self.words
        kept = self.products or [f"{i}{j}" for s in range(p + 1, 1, -1) for i in range(s - 1, 0, -1) for j in (s - i,)]
        return self.plan_of(kept, DIGITS, self._exponent, self.step, self.promote, promote_all=True)
