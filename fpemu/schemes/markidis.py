"""Markidis, Der Chien, Laure, Peng, Vetter (2018): precision refinement with fp16 residuals.

S. Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision", IPDPS workshops 2018,
DOI 10.1109/IPDPSW.2018.00091.

    h = RNE16(x)        r = RNE16(x - h), unscaled
    A·B ≈ r_A r_B + h_A r_B + r_A h_B + h_A h_B

All four products run in one accumulator in that order, each over all of K before the next (`step` interleaves them).
``refine="A"`` keeps the residual of A alone: r_A h_B + h_A h_B.

Range: |x| < 65520. r loses bits below |x| = 2^-2 and is zero below 2^-12.
Error: |D - AB| <= (2^-21 + 4 (K/L) eps) |A||B|: the chain on a truncating core is what limits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fpemu.schemes import options as choose
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import TwoWords

REFINED = {"both": ("rr", "hr", "rh", "hh"), "A": ("rh", "hh")}


@register
@dataclass(frozen=True, kw_only=True)
class Markidis(TwoWords):
    """Four products of unscaled parts in one chain."""

    info = SchemeInfo(
        name="markidis",
        title="Precision refinement",
        paper="Markidis, Der Chien, Laure, Peng, Vetter, IPDPS workshops 2018",
        year=2018,
        doi="10.1109/IPDPSW.2018.00091",
        parts=("h = RNE16(x)", "r = RNE16(x - h)"),
        products=REFINED["both"],
        range="|x| < 65520; r loses bits below 2^-2, and is zero below 2^-12",
        bound="2^-21 + 4 (K/L) eps",
    )

    refine: Literal["both", "A"] = choose.choice("both", tuple(REFINED), "the operands whose residuals are used")
    residual_scale: float = choose.scale(1.0)
    products: tuple[str, ...] | None = choose.products(None, "hr", "products of words, in this order (None: by refine)")
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("one")
    step: int | str | None = choose.turns(None)
    promote: int | str | None = choose.promotion(None)

    def check(self) -> None:
        if self.refine == "A" and any(p[1] == "r" for p in self.kept()):
            self.refuse(f"refine='A' leaves B's residual out, but products={self.products} has it")
        super().check()

    def kept(self) -> tuple[str, ...]:
        return REFINED[self.refine] if self.products is None else self.products
