"""SGEMM on ordinary cores: the baseline that the split schemes are measured against.

Every entry of A·B is one chain of fp32 FMAs from zero, k ascending, one rounding to nearest each.

Range: all of fp32; range policies have nothing to do here. Error: at most gamma(K) |A||B| with u = 2^-24.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.arguments import LARGEST, integer
from fpemu.mma import MmaSpec, catalog
from fpemu.schemes import ranges
from fpemu.schemes.base import Scheme, SchemeInfo, register
from fpemu.schemes.words import growth


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

    def product(self, A: Any, B: Any, spec: MmaSpec | None, order: Any, on_range: str) -> NDArray[Any]:
        return np.asarray(simt.gemm(A, B, fmt=self.operand, order=order))

    def error_bound(
        self, A: Any, B: Any, hardware: str | MmaSpec | None = None, on_range: str = "raise"
    ) -> NDArray[Any]:
        """Bound on abs(D - AB), entry by entry, for one ascending chain (float64, (..., M, N))."""
        A, B = ranges.matrices(A, B, self.operand)
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = abs(A).astype(np.float64) @ abs(B).astype(np.float64)
        tiny = A.shape[-1] * self.operand.min_subnormal
        return np.asarray(self.relative_bound(A.shape[-1]) * sizes * (1 + 2.0**-20) + tiny)

    def relative_bound(self, K: int, hardware: str | MmaSpec | None = None) -> float:
        """Factor g with abs(D - AB) <= g |A||B|."""
        return growth(integer("K", K, 0, LARGEST), self.operand.unit_roundoff)


@register
@dataclass(frozen=True, kw_only=True)
class Sgemm(Baseline):
    """A chain of fp32 FMAs."""

    info = SchemeInfo(
        name="sgemm", title="SGEMM on ordinary cores", parts=("fp32",), range="all of fp32", bound="K 2^-24"
    )
