"""SGEMM on ordinary cores: the baseline that the split schemes are measured against.

Every entry of A·B is one chain of fp32 FMAs from zero, k ascending, one rounding to nearest each.

Range: all of fp32; range policies have nothing to do here. Error: at most gamma(K) |A||B| with u = 2^-24.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from fpemu.mma import MmaSpec, catalog
from fpemu.mma.gemm import _chain
from fpemu.mma.spec import FMA_SPECS
from fpemu.schemes.base import Call, Scheme, register
from fpemu.schemes.options import SchemeInfo


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
