"""Staged accumulation: words of one scale, corrections first, a fresh accumulator for every stage of K.

No paper; the order is that of a Hopper kernel (wgmma, stages of 64) whose results it reproduces bit for bit.

    s = the power of two that brings the largest entry of a row of A, or of a column of B, to [2^13, 2^14)
    h = RNE16(x · s)        r = RNE16(x · s - h), unscaled: h and r share a scale
    stage: acc <- 0, then MMA(r_A, h_B), MMA(h_A, r_B), MMA(h_A, h_B), each over the stage's k
    total <- total + acc     per stage, outside the core, in fp32 to nearest
    A·B ≈ total / (s_A s_B)

The corrections are added while the accumulator is small, so their truncation errors are small.

With `high_rounding="balanced"` the high words bracket the numbers:

    h of A = RZ16(a · s)        h of B = b · s rounded away from zero to 11 significant bits (RNE16 of that, subnormal)

The residuals then have the sign of a and the opposite sign of b, and the omitted product r_A r_B has the opposite sign
of a b. Its omission compensates a part of the error of the truncating accumulator, which always has the sign of a b.
The residual loses one more bit: |x s - h| < 2^-10 |x s| instead of 2^-11 |x s| has up to 13 bits instead of 12, of
which r keeps 11. So h + r differs from x s by at most 2^-22 |x s| instead of 2^-23 |x s|. Relative L2 errors of
emulated products on an H200, K = 512, 1024, 2048, 4096, in units of 1e-7:

    uniform in [0, 1]     to nearest 1.88, 1.91, 1.99, 2.11    balanced 0.88, 0.95, 1.12, 1.31
    uniform in [-1, 1]    to nearest 1.34, 1.48, 1.67, 1.91    balanced 1.62, 1.73, 1.84, 2.09

With `levels`, the operands are quartered `levels` times and `fpemu.schemes.strassen` replaces eight products of blocks
by seven: 21/8 or 147/64 products of words instead of three. The bound below then holds for the products of blocks only:
no bound relative to |A||B| exists, and the range is |x| < 2^124 (two levels: 2^121).

Range: all of fp32, whatever the range policy. Entries below 2^-15 of their row's (column's) largest lose bits of r: an
absolute error of at most 2^-25 / s, about 2^-38 of the largest.
Error: |D - AB| <= (3·2^-22 + (K/stage) 2^-24 + 3 (stage/L) eps) |A||B|; balanced: 2^-19 in place of 3·2^-22, with 2^-21
for the split of each operand and 2^-20 for the omitted product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import entries
from fpemu.schemes import options as choose
from fpemu.schemes import strassen, words
from fpemu.schemes.base import Call, register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import TwoWords
from fpemu.schemes.words import OverflowPolicy, Plan

Array = NDArray[Any]


@register
@dataclass(frozen=True, kw_only=True)
class Staged(TwoWords):
    """Three products in one accumulator that restarts every stage, and Strassen's algorithm around them."""

    scales_rows: ClassVar[bool] = True
    promote_option: ClassVar[str] = "stage"

    info = SchemeInfo(
        name="staged",
        title="Staged accumulation with row and column scaling",
        parts=("h = RNE16(x s)", "r = RNE16(x s - h)"),
        range="all of fp32; full precision down to 2^-15 of a row's (column's) largest entry",
        bound="3 2^-22 + (K/stage) 2^-24 + 3 (stage/L) eps",
    )

    high_rounding: str = choose.rounding(
        "RNE", "rounding of the high part; balanced: toward zero for A, away from zero for B", balanced=True
    )
    residual_scale: float = choose.scale(1.0)
    accumulators: str | tuple[tuple[str, ...], ...] = choose.accumulators("one")
    stage: int | str | None = choose.interval(64, "length in k of a stage", none=False)
    levels: int = choose.integer(0, 0, 2, "levels of Strassen's algorithm around the products, 0: none")

    @property
    def runs_by_plan(self) -> bool:  # type: ignore[override]
        """Whether rules and plan are the whole scheme: without Strassen's algorithm."""
        return not self.levels

    @property
    def limited(self) -> bool:  # type: ignore[override]
        """Whether some finite entries are refused under every overflow policy: with Strassen's algorithm."""
        return self.levels > 0

    @property
    def blocks(self) -> Staged:
        """The scheme that multiplies the smallest blocks."""
        return replace(self, levels=0)

    def plan(self) -> Plan:
        return self.sums(self.residual_scale, None if self.accumulators == "each" else self.stage, self.stage)

    def check_operand(self, X: Array, name: str, on_range: OverflowPolicy) -> None:
        if self.levels:
            self._finite(X, name, on_range)
        else:
            super().check_operand(X, name, on_range)

    def product(self, call: Call) -> Array:
        if not self.levels:
            return super().product(call)
        a, rows = self._finite(call.A, "A", call.on_range)
        b, columns = self._finite(call.B, "B", call.on_range)
        inner = replace(self, levels=self.levels - 1)

        def product(X: Array, Y: Array) -> Array:
            return inner.product(replace(call, A=X, B=Y, on_range=OverflowPolicy.PROPAGATE))

        return words.patch(strassen.multiply(a, b, product), call.A, call.B, rows, columns)

    def _finite(self, X: Array, name: str, on_range: str) -> tuple[Array, NDArray[np.bool_] | None]:
        """Finite entries with zeros for the others, and which rows (columns) have others."""
        ready = words.prepare(X, name, (), on_range, "", self.name)
        values = ready.values
        over = abs(values) >= strassen.limit(self.levels)
        if over.any():
            self.refuse(
                f"{name}: sums of blocks may overflow: {entries(over, X)}, {strassen.limit(self.levels):.3g} or more; "
                "scale the matrix by a power of two"
            )
        return values.astype(np.float32), ready.special
