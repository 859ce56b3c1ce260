"""Three bfloat16 words with 3, 6 or 9 products: what cuBLAS and CUTLASS offer as emulated SGEMM.

G. Henry, P. Tang, A. Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
computations", ARITH 2019, DOI 10.1109/ARITH.2019.00019, has the split and the choices of products.

    b1 = RNE(x)     b2 = RNE((x - b1) · 2^8)     b3 = RNE((x - b1 - b2/2^8) · 2^16)
    products b_i b_j with (i - 1) + (j - 1) <= 1 (bf16x3), <= 2 (bf16x6), all (bf16x9), in at most five bands
    total = smallest band; total = total/2^8 + next band ..., in fp32 to nearest

One chain per band. Our reading: the products of a band alternate after every instruction, A's lower word first.

Range: nearly all of fp32: |x| < 2^128 (1 - 2^-9); b3 loses bits below 2^-110 or so.
Error: |D - AB| <= (delta + (K/L) eps) |A||B|, with delta = 3·2^-16 (bf16x3) or 2^-22 (bf16x6, bf16x9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fpemu.formats import BF16
from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import SplitScheme, exponent_of
from fpemu.schemes.words import Plan, Word

NINE = tuple(f"{i}{s - i}" for s in range(6, 1, -1) for i in range(3, 0, -1) if 1 <= s - i <= 3)
SIX = tuple(p for p in NINE if int(p[0]) + int(p[1]) <= 4)
THREE = tuple(p for p in NINE if int(p[0]) + int(p[1]) <= 3)
_INFO = SchemeInfo(
    name="bf16x9",
    title="Three bfloat16 words, nine products",
    paper="Henry, Tang, Heinecke, ARITH 2019; cuBLAS and CUTLASS",
    year=2019,
    doi="10.1109/ARITH.2019.00019",
    parts=("b1 = RNE(x)", "b2 = RNE((x - b1) 2^8)", "b3 = RNE((x - b1 - b2/2^8) 2^16)"),
    range="|x| < 2^128 (1 - 2^-9); b3 loses bits below 2^-110",
    bound="(K/L) eps + 2^-22",
)


@register
@dataclass(frozen=True, kw_only=True)
class Bf16x9(SplitScheme):
    """Three bf16 words, all nine products."""

    info = _INFO

    rounding: str = choose.rounding("RNE", "rounding of every word", cut=False)
    residual_scale: float = choose.scale(2.0**8, "scale between a word and the next")
    products: tuple[str, ...] = choose.products(NINE, "123")
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("band")
    step: int | str | None = choose.turns("instruction")
    promote: int | str | None = choose.promotion(None, "every accumulator")
    combine_in: Literal["fp32", "fp64"] = choose.combine_in()

    def rules(self) -> tuple[Word, ...]:
        e = exponent_of(self.residual_scale)
        return tuple(self.word(str(i + 1), BF16, self.rounding, i * e) for i in range(3))

    def plan(self) -> Plan:
        exponent = exponent_of(self.residual_scale)
        return self.plan_of(self.products, "123", exponent, self.step, self.promote, promote_all=True)


@register
@dataclass(frozen=True, kw_only=True)
class Bf16x6(Bf16x9):
    """Three bf16 words, the six largest products."""

    info = replace(_INFO, name="bf16x6", title="Three bfloat16 words, six products", bound="2^-22 + (K/L) eps")

    products: tuple[str, ...] = choose.products(SIX, "123")


@register
@dataclass(frozen=True, kw_only=True)
class Bf16x3(Bf16x9):
    """Three bf16 words, the three largest products."""

    info = replace(_INFO, name="bf16x3", title="Three bfloat16 words, three products", bound="3 2^-16 + (K/L) eps")

    products: tuple[str, ...] = choose.products(THREE, "123")
