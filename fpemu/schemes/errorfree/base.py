"""What the error-free schemes share: a product of finite matrices with a report, and everything around it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma
from fpemu.errors import GuaranteeError, InputError, entries
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec
from fpemu.mma._device import Device
from fpemu.schemes import options as choose
from fpemu.schemes import ranges
from fpemu.schemes.base import Scheme, scaled
from fpemu.schemes.errorfree.report import Certified, Report

Array = NDArray[Any]
Mask = NDArray[np.bool_]
CARRIERS = ("blas", "compiled", "numpy")


@dataclass(frozen=True, kw_only=True)
class ErrorFree(Scheme):
    """A scheme whose products of slices or residues are exact, under conditions that it checks.

    NaN and Inf propagate as in DGEMM (SGEMM), whatever the range policy: the schemes cover all of fp64 (fp32).

    Parameters
    ----------
    precision : {"fp64", "fp32"}
        Format of the operands and of the result.
    carrier : str
        Exact products by BLAS where they are provably the same integers ("blas"), or by the instruction's model.
    instruction, k : str or None
        Matrix instruction and its length in k; None: the widest.
    """

    precision: str | None = choose.choice("fp64", ("fp64", "fp32"), "format of the operands and of the result")
    carrier: str = choose.choice(
        "blas",
        CARRIERS,
        "exact products by BLAS where they are provably the same integers, or by the instruction's model",
    )
    instruction: str | None = choose.name("which matrix instruction, None: the widest", "mma | wgmma | tcgen05 | mfma")
    k: int | None = choose.integer(None, 1, 4096, "length in k of the instruction, None: the widest", none=True)

    @property
    def operand(self) -> FloatFormat:
        return formats.get(self.precision or "fp64")

    @property
    def word_format(self) -> str:
        """The format of what is multiplied on the instruction."""
        return "int8"

    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec:
        """The matrix instruction that the scheme runs on.

        Raises
        ------
        InputError
            Without hardware; if it lacks the instruction; if an MmaSpec's formats are not those of the words.
        """
        if hardware is None:
            self.refuse("runs on a matrix instruction: give hardware=, such as 'ampere', 'H200' or an MmaSpec")
        assert hardware is not None
        if isinstance(hardware, MmaSpec) and (self.instruction, self.k) != (None, None):
            self.refuse("an MmaSpec is one instruction already: leave instruction= and k= out")
        word = self.word_format
        spec = mma.spec(hardware, word, None, self.instruction, self.k)
        have = {str(spec.a_format), str(spec.b_format)}
        if not all(name.removesuffix("fnuz") == word for name in have):
            self.refuse(f"multiplies {word} by {word}, but {spec.name!r} takes {' and '.join(sorted(have))}")
        return spec

    @abstractmethod
    def multiply(
        self,
        A: Array,
        B: Array,
        spec: MmaSpec,
        order: Any,
        alpha: float = 1.0,
        beta: float = 0.0,
        C: Any = None,
        device: Device = "cpu",
    ) -> tuple[Array, Report]:
        """A·B for finite float64 matrices (M, K), (K, N), none of them empty, and what was checked on the way.

        The product is in the format `operand`. alpha, beta and C (finite) are given only if `rounds_once`; the result
        is then that of alpha·A·B + beta·C. A condition that does not hold is a fault in the report, not an exception.
        """

    def certified(
        self,
        A: Array,
        B: Array,
        C: Array | None,
        alpha: Any,
        beta: Any,
        spec: MmaSpec,
        order: Any,
        device: Device = "cpu",
    ) -> Certified:
        """alpha · (A·B) + beta · C, batch axes broadcast, with the report of every product."""
        batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2], () if C is None else C.shape[:-2])
        left, right = np.broadcast_to(A, batch + A.shape[-2:]), np.broadcast_to(B, batch + B.shape[-2:])
        D = np.empty((*batch, A.shape[-2], B.shape[-1]), self.operand.dtype)
        addend = None if C is None else np.broadcast_to(C, D.shape)
        reports = []
        for at in np.ndindex(*batch):
            c = None if addend is None else addend[at]
            D[at], report = self._one(left[at], right[at], c, alpha, beta, spec, order, device)
            reports.append(report)
        first = next((r for r in reports if not r.ok), reports[0])
        return Certified(D, first, tuple(reports))

    def _one(
        self, A: Array, B: Array, C: Array | None, alpha: Any, beta: Any, spec: MmaSpec, order: Any, device: Device
    ) -> tuple[Array, Report]:
        rows, columns = (_where(np.asarray(~np.isfinite(X).all(axis))) for X, axis in ((A, 1), (B, 0)))
        a, b = (
            np.ascontiguousarray(X if special is None else np.where(np.isfinite(X), X, 0.0), np.float64)
            for X, special in ((A, rows), (B, columns))
        )
        if not self.rounds_once:
            T, report = self.multiply(a, b, spec, order, device=device)
            return scaled(ranges.patch(T, A, B, rows, columns), C, alpha, beta), report
        if not (np.isfinite(alpha) and np.isfinite(beta)):
            # only signs count: a power of two keeps a product from being rounded to zero
            T, report = self.multiply(a, b, spec, order, alpha=2.0**1023, device=device)
            return _special(np.sign(T), A, B, C, alpha, beta, rows, columns), report
        c = None if C is None else np.where(np.isfinite(C), C, 0.0).astype(np.float64)
        D, report = self.multiply(a, b, spec, order, float(alpha), float(beta), c, device)
        special = np.zeros(D.shape, bool) if C is None else ~np.isfinite(C)
        special |= False if rows is None else rows[:, None]
        special |= False if columns is None else columns
        if special.any():
            D = np.where(special, _special(np.zeros_like(D), A, B, C, alpha, beta, rows, columns), D)
        return D, report

    def product(
        self, A: Array, B: Array, spec: MmaSpec | None, order: Any, on_range: str, device: Device = "cpu"
    ) -> Array:
        return self.evaluate(A, B, None, 1.0, 0.0, spec, order, on_range, device)

    def evaluate(
        self,
        A: Array,
        B: Array,
        C: Array | None,
        alpha: Any,
        beta: Any,
        spec: MmaSpec | None,
        order: Any,
        on_range: str,
        device: Device = "cpu",
    ) -> Array:
        assert spec is not None
        found = self.certified(A, B, C, alpha, beta, spec, order, device)
        if not found.report.ok:
            raise GuaranteeError("; ".join(fault.message for fault in found.report.faults))
        return found.D

    def nan_code(self, spec: MmaSpec | None) -> int:
        """The NaN of ordinary cores: the sums are taken there."""
        return super().nan_code(None)

    def bounded(self, A: Any, B: Any, bound: Callable[[Array, Array], Array]) -> Array:
        """`bound`(A, B) of finite float64 matrices, for every pair of a batch: float64 (..., M, N)."""
        a, b = finite(A, B, self.operand)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(X, batch + X.shape[-2:]) for X in (a, b))
        found = np.zeros((*batch, a.shape[-2], b.shape[-1]))
        if found.size and a.shape[-1]:
            for at in np.ndindex(*batch):
                with np.errstate(over="ignore"):
                    found[at] = bound(*(np.ascontiguousarray(X[at], np.float64) for X in (a, b)))
        return found

    def relative_bound(self, K: int, hardware: str | MmaSpec | None = None) -> float:
        """inf: rows are cut relative to their largest entry, so that a small entry of |A||B| may lose everything."""
        return float("inf")


def finite(A: Any, B: Any, fmt: FloatFormat) -> tuple[Array, Array]:
    """A (..., M, K) and B (..., K, N) as arrays of `fmt` that fit each other, all entries finite."""
    a, b = ranges.matrices(A, B, fmt)
    for X, who in ((a, "A"), (b, "B")):
        good = np.isfinite(X)
        if not good.all():
            raise InputError(f"{who}: NaN or infinite: {entries(~good, X)}")
    return a, b


def _special(
    T: Array, A: Array, B: Array, C: Array | None, alpha: Any, beta: Any, rows: Mask | None, columns: Mask | None
) -> Array:
    """alpha · A·B + beta · C where something is NaN or infinite; T has the sign of finite entries of A·B.

    Sizes do not count there, only signs: finite numbers are kept from overflowing against an infinity.
    """
    T = ranges.patch(T, A, B, rows, columns)
    if np.isfinite(alpha):
        T = np.where(np.isfinite(T), 0, T).astype(T.dtype)
    if C is not None and np.isfinite(beta):
        C = np.where(np.isfinite(C), 0, C).astype(C.dtype)
    return scaled(T, C, alpha, beta)


def _where(mask: Mask) -> Mask | None:
    return mask if mask.any() else None
