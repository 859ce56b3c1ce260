"""Parameters of TSM2 and ISM2, and the state of the threads in the NumPy reference implementation of their loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import LARGEST, integer
from fpemu.arrays import as_array
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import fma, operands
from fpemu.simt.chains import SPECS, fma_format

Array = NDArray[Any]
_T1, _T3 = 128, 4  # published for the K40c and the P100 (sections 4.2 and 4.4)


@dataclass(frozen=True)
class Tiles:
    """The parameters of Algorithms 3, 4, 6 and 7.

    Parameters
    ----------
    t1 : int
        Rows of B in a tile, and threads in a block.
    t2 : int
        Columns of C that a thread computes at a time.
    t3 : int
        Elements of A that a thread loads at a time. It must divide t1: otherwise line 17 of Algorithm 3 (25 of
        Algorithm 4) reads beyond the tile of B.

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
            integer(name, getattr(self, name), 1, LARGEST)
        if self.t1 % self.t3:
            raise InputError(f"t3 = {self.t3} must divide t1 = {self.t1}: a tile of B is read t3 rows at a time")

    @classmethod
    def of(cls, t1: int | None, t2: int | None, t3: int | None, B: Any) -> Tiles:
        """The given parameters; by default those published, with t2 all columns of B."""
        shape = as_array(B, "B").shape
        columns = max(shape[-1], 1) if shape else 1
        return cls(_T1 if t1 is None else t1, columns if t2 is None else t2, _T3 if t3 is None else t3)


@dataclass(frozen=True, eq=False)
class Threads:
    """Operands in float64, and the format of the fused multiply-adds.

    One thread per row of A. All threads execute a step at once: `C` and the registers hold one number per row.
    """

    A: Array
    """(..., m, k)"""
    B: Array
    """(..., k, n)"""
    C: Array
    """(..., m, n); the algorithms overwrite it"""
    fmt: FloatFormat

    @classmethod
    def of(cls, A: Any, B: Any, C: Any, fmt: FloatFormat | str) -> Threads:
        """Check the operands as `fpemu.simt.gemm` does; the default C is +0."""
        fmt = fma_format(fmt)
        a, b = operands.check_values(A, fmt, "A"), operands.check_values(B, fmt, "B")
        shape, start = operands.broadcast(a, b, None if C is None else operands.check_values(C, fmt, "C"))
        start = np.zeros(shape) if start is None else start
        with np.errstate(invalid="ignore"):  # signalling NaN
            return cls(a.astype(np.float64), b.astype(np.float64), start.astype(np.float64), fmt)

    def rows(self, rows: slice) -> Threads:
        """The threads of some rows, as views."""
        return Threads(self.A[..., rows, :], self.B, self.C[..., rows, :], self.fmt)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """a·b + c of every thread, rounded once; b is the same number in all threads."""
        with np.errstate(all="ignore"):
            return fma.fma(a, b[..., None], c, self.fmt)

    def result(self) -> Array:
        """C in its format, every NaN with the code of `fpemu.simt.gemm`."""
        D = self.C.astype(self.fmt.dtype)
        D.view(self.fmt.code_dtype)[np.isnan(D)] = SPECS[self.fmt.name].nan_code or 0
        return D
