"""The tiles of TSM2 and ISM2: their three parameters, and the operands that the readable algorithms walk over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import LARGEST, integer
from fpemu.arrays import as_array
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import fma as _fma
from fpemu.mma import operands
from fpemu.simt.chains import SPECS, _format

Array = NDArray[Any]
T1, T3 = 128, 4
"""Published for the K40c and the P100 (sections 4.2 and 4.4)."""


@dataclass(frozen=True)
class Tiles:
    """The parameters of Algorithms 3, 4, 6 and 7.

    Parameters
    ----------
    t1 : int
        Rows of B in a tile, and threads in a block.
    t2 : int
        Columns of C that a thread works on at a time.
    t3 : int
        Elements of A that a thread loads at a time. It divides t1: line 17 of Algorithm 3 (25 of Algorithm 4) would run
        beyond the tile of B else.

    Raises
    ------
    InputError
        A parameter that is no positive integer; t3 that does not divide t1.
    """

    t1: int
    t2: int
    t3: int

    def __post_init__(self) -> None:
        for name in ("t1", "t2", "t3"):
            positive(name, getattr(self, name))
        if self.t1 % self.t3:
            raise InputError(f"t3 = {self.t3} must divide t1 = {self.t1}: a tile of B is read t3 rows at a time")

    @classmethod
    def of(cls, t1: int | None, t2: int | None, t3: int | None, n: int) -> Tiles:
        """The parameters given; the others as published, t2 all of C's columns."""
        return cls(T1 if t1 is None else t1, max(n, 1) if t2 is None else t2, T3 if t3 is None else t3)


def columns(B: Any) -> int:
    """How many columns B has; 1 for a scalar, which the product itself refuses."""
    shape = as_array(B, "B").shape
    return int(shape[-1]) if shape else 1


def positive(name: str, value: Any) -> None:
    """Refuse a value that is no positive integer."""
    integer(name, value, 1, LARGEST)


@dataclass(frozen=True, eq=False)
class Walk:
    """What the readable algorithms walk over: values in float64, and the format of their fused multiply-adds.

    All threads take a step at once: `C` and the registers hold a number for every row of A.
    """

    A: Array
    """(..., m, k)"""
    B: Array
    """(..., k, n)"""
    C: Array
    """(..., m, n), which the algorithms change in place"""
    fmt: FloatFormat

    @classmethod
    def over(cls, A: Any, B: Any, C: Any, fmt: FloatFormat | str) -> Walk:
        """Operands checked as `fpemu.simt.gemm` does; without C it is +0."""
        found = _format(fmt)
        a, b = (operands.check_values(x, found, who) for x, who in ((A, "A"), (B, "B")))
        operands.check_pair(a, b)
        lead = operands.broadcast_shape([a.shape[:-2], b.shape[:-2]], "A and B")
        c = np.zeros((a.shape[-2], b.shape[-1])) if C is None else operands.check_values(C, found, "C")
        lead = operands.broadcast_shape([lead, c.shape[:-2]], "A, B and C")
        shape = (*lead, a.shape[-2], b.shape[-1])
        try:
            start = np.broadcast_to(c, shape)
        except ValueError:
            raise InputError(f"C of shape {c.shape} does not fit D of shape {shape}") from None
        with np.errstate(invalid="ignore"):  # signalling NaN
            return cls(a.astype(np.float64), b.astype(np.float64), start.astype(np.float64), found)

    def rows(self, some: slice) -> Walk:
        """The rows of some threads, views of this one's."""
        return Walk(self.A[..., some, :], self.B, self.C[..., some, :], self.fmt)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """One step of every thread, rounded once: a and c a number a thread, b one for all of them."""
        with np.errstate(all="ignore"):
            return _fma.fma(a, b[..., None], c, self.fmt)

    def result(self) -> Array:
        """C in its format, every NaN with the pattern of `fpemu.simt.gemm`."""
        D = self.C.astype(self.fmt.dtype)
        D.view(self.fmt.code_dtype)[np.isnan(D)] = SPECS[self.fmt.name].nan_code or 0
        return D
