"""Staged accumulation with corrections in int8: hh on fp16 words, rh and hr on integers of 8 bits.

No paper; made for Hopper, where int8 products take half the time of fp16 ones: two units of time instead of three.

    s = j 2^e, the largest with j in 8 ... 15 that keeps a row of A, or a column of B, below 2^13
    h = RNE16(RNE32(x s))        r = x s - h, exact; |r| <= 2
    qh = RNE(h / 2^6)            qr = RNE(r · 2^6)      integers, clamped to ±127
    stage: acc <- MMA(h_A, h_B) from zero over the stage's k;  total <- total + acc in fp32 to nearest
           corrections <- corrections + qr_A qh_B + qh_A qr_B in int32, exact
    after every 2^16 of k and at the end: total <- total + fp32(corrections), each to nearest; corrections <- 0
    A·B ≈ total / (j_A j_B) / 2^(e_A + e_B), one rounding

The scale fills the 8 bits to 8/9 at least, where a power of two fills half of them in the worst case.

Every `exact`-th stage, the first one among them, has its corrections in fp16 as in `staged`: MMA(RNE16(r_A), h_B),
MMA(h_A, RNE16(r_B)), MMA(h_A, h_B), alternating every 64 of k, nothing in int8. The time is 2 + 1/exact units.

Range: all of fp32, whatever the range policy.
Error: words of 8 bits are relative to the largest entry of a row (column), so no bound relative to |A||B| exists. Per k
at most 2^-15.6 max|a| max|b|, over a's row and b's column. Random operands lose much less, since every loss is a
rounding to nearest: about 2^-18.7 √K max|a| max|b| for entries spread evenly over both signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FP16
from fpemu.mma import catalog
from fpemu.mma.gemm import _chain
from fpemu.mma.spec import MmaSpec
from fpemu.schemes import options as choose
from fpemu.schemes import words
from fpemu.schemes.base import Call, register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.words import OverflowPolicy, Plan, Word

Array = NDArray[Any]

LIMIT, HIGH, LOW, TOP = 13, -6, 6, 127
"""Binary exponents of the bound on scaled entries and of the scales of qh and qr, which cancel; the largest integer"""
TURN = 64
"""Interval in k after which the products of an exact stage alternate"""
CHUNK = 2**16
"""Of k: 2 · 127^2 · 2^16 < 2^31, so that int32 holds the corrections"""


class ScaledWords(NamedTuple):
    """An operand scaled and split, in float64."""

    values: Array  # x s
    h: Array
    r: Array  # RNE16(x s - h)
    high: Array  # qh
    low: Array  # qr
    factors: Array
    exponents: NDArray[np.int32]
    special: NDArray[np.bool_] | None


@register
@dataclass(frozen=True, kw_only=True)
class StagedInt8(SplitScheme):
    """One product in fp16, promoted every stage, and two corrections in int8."""

    runs_by_plan: ClassVar[bool] = False
    scales_rows: ClassVar[bool] = True
    promote_option: ClassVar[str] = "stage"

    info = SchemeInfo(
        name="staged-int8",
        title="Staged accumulation with corrections in int8",
        parts=("h = RNE16(x s)", "r = x s - h", "qh = RNE8(h/2^6), qr = RNE8(2^6 r)"),
        products=("hh", "rh", "hr"),
        range="all of fp32; corrections have 8 bits below a row's (column's) largest entry",
        bound="2^-15 K max|a| max|b| + ((K/stage) 2^-24 + (stage/L) eps) |A||B|",
    )

    stage: int | None = choose.integer(64, 1, 2**16, "length in k of a stage, after which the sums of hh are promoted")
    exact: int | None = choose.integer(
        None, 1, 2**16, "number of stages, of which one has its corrections in fp16 (None: no stage has)", none=True
    )

    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec:
        """The fp16 instruction, of hardware that has one for int8 too."""
        spec = super().spec(hardware)
        if not isinstance(hardware, MmaSpec):
            catalog.spec(str(hardware), "int8", "int32")
        return spec

    def rules(self) -> tuple[Word, ...]:
        return Word("h", FP16), Word("r", FP16)

    def plan(self) -> Plan:
        """Of the fp16 words: the corrections of the exact stages, then hh."""
        return Plan(((1, 0), (0, 1), (0, 0)), 0, "one", TURN, self.stage)

    def product(self, call: Call) -> Array:
        assert call.lowering is not None
        a, b = self.split_operand(call.A, "A", call.on_range), self.split_operand(call.B, "B", call.on_range)
        slow = self.stages(call.A.shape[-1])
        ha, hb = (x.h.astype(np.float16) for x in (a, b))
        ra, rb = (np.where(s, x.r, 0).astype(np.float16) for x, s in ((a, slow), (b, slow[:, None])))
        (acc,) = call.lowering.accumulators
        total: Any = None
        for k in (slice(start, start + CHUNK) for start in range(0, call.A.shape[-1], CHUNK)):
            terms = [((ha, ra)[i][..., k], (hb, rb)[j][..., k, :]) for i, j in acc.products]
            total = _chain(terms, total, call.spec, acc.order, acc.turn, device=call.device)
            fast = ~slow[k]
            whole = (a.low[..., k] * fast) @ b.high[..., k, :] + (a.high[..., k] * fast) @ b.low[..., k, :]
            total = total + whole.astype(np.float32)
        with np.errstate(over="ignore", under="ignore"):
            wide = total.astype(np.float64) / (a.factors * b.factors)
            T = np.ldexp(wide, -(a.exponents + b.exponents)).astype(np.float32)
        return words.patch(T, call.A, call.B, a.special, b.special)

    def check_policy(self, on_range: OverflowPolicy) -> None:
        if on_range == OverflowPolicy.HARDWARE:
            self.refuse(
                "on_range='hardware' splits NaN and Inf like numbers, and this scheme scales by the largest entry"
            )

    def check_operand(self, X: Array, name: str, on_range: OverflowPolicy) -> None:
        self.split_operand(X, name, on_range)

    def stages(self, K: int) -> NDArray[np.bool_]:
        """For every k whether its stage is exact."""
        assert self.stage is not None
        stage = np.arange(K) // self.stage
        return np.zeros(K, bool) if self.exact is None else stage % self.exact == 0

    def split_operand(self, X: Array, name: str, on_range: str) -> ScaledWords:
        """The words of an operand, fp32 (..., M, K) or (..., K, N); NaN and Inf raise with on_range="raise"."""
        axis = -1 if name == "A" else -2
        ready = words.prepare(X, name, (), on_range, "", self.name)
        values = ready.values
        factors, exponents = scales(np.max(abs(values), axis=axis, keepdims=True, initial=0.0))
        values = np.ldexp(values * factors, exponents)
        with np.errstate(under="ignore"):
            h = values.astype(np.float32).astype(np.float16).astype(np.float64)
            r = (values - h).astype(np.float16).astype(np.float64)
        high, low = (np.clip(np.rint(np.ldexp(x, e)), -TOP, TOP) for x, e in ((h, HIGH), (values - h, LOW)))
        return ScaledWords(values, h, r, high, low, factors, exponents, ready.special)


def scales(largest: Array) -> tuple[Array, NDArray[np.int32]]:
    """j and e of the scale j 2^e for a row whose largest magnitude is given; 8 and 0 for a row of zeros.

    Examples
    --------
    >>> j, e = scales(np.array([1.0, 1.9999]))
    >>> j * 2.0**e
    array([7680., 4096.])
    """
    fraction, exponent = np.frexp(largest)
    some = largest > 0
    factors = (2.0**27 - 1) // np.where(some, fraction * 2.0**24, 2.0**24 - 1)
    return factors, np.where(some, LIMIT - 3 - exponent, 0).astype(np.int32)
