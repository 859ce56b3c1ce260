"""DGEMM on ordinary cores: chains of fp64 FMAs, k ascending. Operands and result are fp64; so are alpha and beta.

Range: all of fp64. Error: at most gamma(K) |A||B| with u = 2^-53.
"""

from __future__ import annotations

from dataclasses import dataclass

from fpemu.formats import FP64, FloatFormat
from fpemu.schemes.base import register
from fpemu.schemes.options import SchemeInfo
from fpemu.schemes.sgemm import Baseline


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
