"""The baselines that the split schemes are compared with: SGEMM and DGEMM on ordinary cores, and plain fp16.

sgemm, dgemm: every entry of A·B is one chain of FMAs from zero in fp32 or fp64, k ascending, one rounding to nearest
each. For dgemm operands and result are fp64; so are alpha and beta.

    Range: all of fp32 (fp64); range policies have nothing to do here.
    Error: at most gamma(K) |A||B| with u = 2^-24 (2^-53).

fp16: what WMMA and rocWMMA compute when fp32 matrices are converted to fp16. h = RNE16(x), A·B ≈ h_A h_B in one chain
of instructions with an fp32 (or fp16) accumulator.

    Range: |x| < 65520; below 2^-14 bits are lost, below 2^-25 all of them.
    Error: |D - AB| <= (2^-10 + K/L · eps) |A||B| with L and eps the length and the error of one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

from fpemu.formats import FP16, FP64, FloatFormat
from fpemu.mma import MmaSpec, catalog
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.gemm import _chain
from fpemu.schemes import options as choose
from fpemu.schemes.base import Call, Scheme, register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.words import Plan, Word


@dataclass(frozen=True, kw_only=True)
class Baseline(Scheme):
    """A chain of FMAs in the operands' own format."""

    needs_hardware: ClassVar[bool] = False

    @property
    def takes_trees(self) -> bool:
        return True

    def spec(self, hardware: str | MmaSpec | None) -> None:
        """No matrix instruction; a hardware name is only checked."""
        if not (hardware is None or isinstance(hardware, MmaSpec)):
            catalog.architecture(hardware)

    def product(self, call: Call) -> NDArray[Any]:
        return _chain([(call.A, call.B)], None, FMA_SPECS[self.operand.name], call.order, device=call.device)


@register
@dataclass(frozen=True, kw_only=True)
class Sgemm(Baseline):
    """A chain of fp32 FMAs."""

    info = SchemeInfo(
        name="sgemm", title="SGEMM on ordinary cores", parts=("fp32",), range="all of fp32", bound="K 2^-24"
    )


@register
@dataclass(frozen=True, kw_only=True)
class Dgemm(Baseline):
    """A chain of fp64 FMAs."""

    info = SchemeInfo(
        name="dgemm", title="DGEMM on ordinary cores", parts=("fp64",), range="all of fp64", bound="K 2^-53"
    )

    @property
    def operand(self) -> FloatFormat:
        return FP64


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
        return (self.word("h", FP16, self.high_rounding),)

    def plan(self) -> Plan:
        return Plan(((0, 0),), accumulators="one", promote=self.promote)
