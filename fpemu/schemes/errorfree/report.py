"""The conditions of an error-free scheme that were checked for a result, and the violated ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

KINDS = {
    "inexact-product": "a product of slices can lose bits on the instruction",
    "crt": "the integers are too large to be found from their residues: 2 sum|a'||b'| >= P",
    "int32-overflow": "an int32 sum can leave its range",
    "underflow": "a digit of a slice, or a product of digits, is lost below the smallest numbers of a format",
}
"""The conditions that can be violated, with their meaning"""


@dataclass(frozen=True)
class Fault:
    """One violated condition: a key of `KINDS`, and a message with the limit, the value and the remedy."""

    kind: str
    message: str


@dataclass(frozen=True)
class Report:
    """Conditions of an error-free scheme that were checked.

    A field is None where the scheme has no such condition.

    Parameters
    ----------
    scheme : str
        Name of the scheme.
    hardware : str
        Name of the instruction.
    bits : int, optional
        Bits of a slice.
    slices : (int, int)
        Slices of A and of B.
    products : int, optional
        Number of matrix products on the instruction, one that determines a scaling included.
    fast : bool
        Whether the products p + q > d + 1 were left out.
    exact : bool
        Every product of slices is exact on the instruction, by the condition of `fpemu.mma.exactness`. Products that a
        scheme omits are not covered.
    sum_bound, sum_limit : int
        Upper limit of the sum of magnitudes of a chain, in units, from the largest digits; and the largest exact sum.
    complete : bool
        The slices add up to A and to B, without a residual.
    fill : (tuple of float, tuple of float)
        Fraction of non-zero digits in every slice of A and of B.
    crt : bool
        2 sum|a'||b'| < P for every entry.
    crt_bits : (float, float)
        log2 of a bound on the largest 2 sum|a'||b'|, and of P.
    int32 : bool
        No int32 sum leaves its range.
    int32_bound : int
        A bound on the magnitude of every int32 sum.
    underflow : bool, optional
        Whether a non-zero digit is below the range of its word, is flushed by the hardware, or has products below the
        range of the sums; or whether a whole row of A or column of B is lost in this way.
    block : (int, int)
        Rows and columns of D computed at a time.
    faults : tuple of Fault
        Violated conditions; empty if all hold.
    """

    scheme: str
    hardware: str = ""
    bits: int | None = None
    slices: tuple[int, int] | None = None
    products: int | None = None
    fast: bool | None = None
    exact: bool | None = None
    sum_bound: int | None = None
    sum_limit: int | None = None
    complete: bool | None = None
    fill: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    crt: bool | None = None
    crt_bits: tuple[float, float] | None = None
    int32: bool | None = None
    int32_bound: int | None = None
    underflow: bool | None = None
    block: tuple[int, int] | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every condition holds."""
        return not self.faults


@dataclass(frozen=True, eq=False)
class Certified:
    """Result of an error-free scheme with the report of its conditions.

    Parameters
    ----------
    D : array_like
        Result (..., M, N).
    report : Report
        Report of the only matrix; for a batch, of the first matrix with a fault, else of the first.
    reports : tuple of Report
        One for each matrix of a batch, in row-major order of the batch axes. Empty if there was nothing to multiply.
    """

    D: NDArray[Any]
    report: Report
    reports: tuple[Report, ...]
