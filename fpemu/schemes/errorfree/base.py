"""The common steps of the error-free schemes: batches, NaN and Inf, alpha, beta and C, and reports of conditions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.errors import GuaranteeError, InputError, entries
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes import options as choose
from fpemu.schemes import words
from fpemu.schemes.base import Call, Scheme, matrices, matrix_instruction, scaled
from fpemu.schemes.errorfree.plan import Certified, Counts, ModularPlan, Report, SlicePlan

Array = NDArray[Any]
Mask = NDArray[np.bool_]
CARRIERS = ("blas", "compiled", "numpy")
_SMALL, _STACK = 2**14, 2**20  # entries of the matrices of a product that others join, and of a stack of products


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

    precision: Literal["fp64", "fp32"] | None = choose.choice(
        "fp64", ("fp64", "fp32"), "format of the operands and of the result"
    )
    carrier: Literal["blas", "compiled", "numpy"] = choose.choice(
        "blas",
        CARRIERS,
        "exact products by BLAS where they are provably the same integers, or by the instruction's model",
    )
    instruction: str | None = choose.name("matrix instruction (None: the widest)", "mma | wgmma | tcgen05 | mfma")
    k: int | None = choose.integer(None, 1, 4096, "length in k of the instruction (None: the largest)", none=True)

    error_free = True

    @property
    def operand(self) -> FloatFormat:
        return formats.get(self.precision or "fp64")

    @property
    def word_format(self) -> str:
        """Format of the words that the instruction multiplies."""
        return "int8"

    def spec(self, hardware: str | MmaSpec | None) -> MmaSpec:
        """The matrix instruction that the scheme runs on; without one for its formats InputError."""
        word = self.word_format
        spec = matrix_instruction(self, hardware, word, None)
        have = {str(spec.a_format), str(spec.b_format)}
        if not all(name.removesuffix("fnuz") == word for name in have):
            self.refuse(f"multiplies {word} by {word}, but {spec.name!r} takes {' and '.join(sorted(have))}")
        return spec

    def instruction_of(self, hardware: str | MmaSpec | None) -> MmaSpec | None:
        """The instruction that bounds of the error depend on; None without hardware, for schemes that need none."""
        return None if hardware is None else self.spec(hardware)

    @abstractmethod
    def plan_for(self, spec: MmaSpec | None, K: int, order: KOrder | None = None) -> SlicePlan | ModularPlan:
        """The plan of a product over K; options that leave no bit a slice raise InputError."""

    @abstractmethod
    def multiply(self, call: Call) -> tuple[Array, Sequence[Report]]:
        """A·B for stacks of finite float64 matrices (n, M, K) and (n, K, N), not empty, and the reports of all n.

        The products are in the format `operand`. If `rounds_once`, the result is alpha·A·B + beta·C, with finite alpha,
        beta and C. A violated condition is a fault in a report, not an exception.
        """

    @np.errstate(all="ignore")  # what underflows in a step is in the residual
    def certified(self, call: Call) -> Certified:
        """The result of a call, batch axes broadcast, with the report of every product."""
        batch, shape = call.result_shape[:-2], (-1, *call.result_shape[-2:])
        stacks: list[Any] = [
            None if X is None else np.broadcast_to(X, batch + X.shape[-2:]).reshape(-1, *X.shape[-2:])
            for X in (call.A, call.B, call.C)
        ]
        A, B, C = stacks
        D = np.empty(call.result_shape, self.operand.dtype)
        size = sum(math.prod(X.shape[-2:]) for X in (call.A, call.B, D))
        alone = size > _SMALL or call.device != "cpu" or getattr(self, "memory", None) is not None
        reports: list[Report] = []
        most = 1 if alone else _STACK // size
        for start in range(0, math.prod(batch), most):
            some = slice(start, start + most)
            one = replace(call, A=A[some], B=B[some], C=None if C is None else C[some])
            D.reshape(shape)[some], every = self._stack(one)
            reports += every
        return Certified(D, next((r for r in reports if not r.ok), reports[0]), tuple(reports))

    def _stack(self, call: Call) -> tuple[Array, Sequence[Report]]:
        A, B, C, alpha, beta = call.A, call.B, call.C, call.alpha, call.beta
        rows, columns = (_where(np.asarray(~np.isfinite(X).all(axis))) for X, axis in ((A, -1), (B, -2)))
        a, b = (
            np.ascontiguousarray(X if special is None else np.where(np.isfinite(X), X, 0.0), np.float64)
            for X, special in ((A, rows), (B, columns))
        )
        plain = replace(call, A=a, B=b, C=None, alpha=1.0, beta=0.0)
        if not self.rounds_once:
            T, reports = self.multiply(plain)
            return scaled(words.patch(T, A, B, rows, columns), C, alpha, beta), reports
        if not (np.isfinite(alpha) and np.isfinite(beta)):
            # only the signs matter: the power of two prevents a product from rounding to zero
            T, reports = self.multiply(replace(plain, alpha=2.0**1023))
            return _special(np.sign(T), call, rows, columns), reports
        c = None if C is None else np.where(np.isfinite(C), C, 0.0).astype(np.float64)
        D, reports = self.multiply(replace(plain, C=c, alpha=float(alpha), beta=float(beta)))
        special = np.zeros(D.shape, bool) if C is None else ~np.isfinite(C)
        special |= False if rows is None else rows[..., None]
        special |= False if columns is None else columns[..., None, :]
        if special.any():
            D = np.where(special, _special(np.zeros_like(D), call, rows, columns), D)
        return D, reports

    def product(self, call: Call) -> Array:
        return self.evaluate(replace(call, C=None, alpha=1.0, beta=0.0))

    def evaluate(self, call: Call) -> Array:
        result = self.certified(call)
        if not result.report.ok:
            raise GuaranteeError("; ".join(fault.message for fault in result.report.faults))
        return result.D

    def nan_code(self, spec: MmaSpec | None) -> int:
        """The NaN of ordinary cores, which compute the sums."""
        return super().nan_code(None)

    @in_ieee
    def error_bound(self, A: Any, B: Any, hardware: str | MmaSpec | None = None) -> Array:
        """Bound on abs(D - AB), AB exact, entry by entry: omitted digits, omitted products and roundings, float64.

        It holds for finite operands and results, alpha = 1 and beta = 0, and is inf where a condition of the scheme
        cannot be shown. `hardware` is as in `fpemu.gemm`, and only `ozaki` requires it.
        """
        spec = self.instruction_of(hardware)
        a, b = finite(A, B, self.operand)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(X, batch + X.shape[-2:]) for X in (a, b))
        result = np.zeros((*batch, a.shape[-2], b.shape[-1]))
        if result.size and a.shape[-1]:
            for at in np.ndindex(*batch):
                with np.errstate(all="ignore"):
                    x, y = (np.ascontiguousarray(X[at], np.float64) for X in (a, b))
                    result[at] = self._bound(x, y, spec)
        return result

    @abstractmethod
    def _bound(self, A: Array, B: Array, spec: MmaSpec | None) -> Array:
        """`error_bound` of finite float64 matrices."""


class SliceScheme(ErrorFree):
    """A scheme whose words are slices: `ozaki` and `ozimmu`."""

    @abstractmethod
    def plan_for(self, spec: MmaSpec | None, K: int, order: KOrder | None = None) -> SlicePlan:
        """The plan of a product over K; equal ones are computed once."""

    def given(self, plan: SlicePlan) -> Counts | None:
        """The slices and products if the options give them, for operands with more digits; None: see `counts`."""
        s = getattr(self, "slices", None)
        return Counts((s, s), s, getattr(self, "fast", None) is not False, plan.bits) if isinstance(s, int) else None

    @abstractmethod
    def numbers(self, needed: Callable[[int], int], cut: Callable[[int, int], Any]) -> tuple[Any, Any, int, bool]:
        """The splits of A and of B, the number of slices d, and whether products p + q > d + 1 are left out.

        `needed(0)` returns the number of slices that the data of A require (1: of B), `cut(0, count)` the split of A
        into at most `count` slices, with attributes `slices` and `complete`; for a stack of matrices in arrays.
        """

    @abstractmethod
    def counts(self, A: Array, B: Array, plan: SlicePlan) -> Counts:
        """Slices and products of A·B: C-contiguous float64, finite, not empty."""


def finite(A: Any, B: Any, fmt: FloatFormat) -> tuple[Array, Array]:
    """A (..., M, K) and B (..., K, N) as arrays of `fmt` that fit each other, all entries finite."""
    a, b = matrices(A, B, fmt)
    for X, name in ((a, "A"), (b, "B")):
        good = np.isfinite(X)
        if not good.all():
            raise InputError(f"{name}: NaN or infinite: {entries(~good, X)}")
    return a, b


def _special(T: Array, call: Call, rows: Mask | None, columns: Mask | None) -> Array:
    """The result of a call with NaN or Inf in an operand or a scalar; T has the signs of the finite entries of A·B.

    The magnitude of a finite number has no effect beside an infinity. Where alpha (beta) is finite, finite entries of
    T (C) are set to zero, so that they cannot overflow.
    """
    T, C = words.patch(T, call.A, call.B, rows, columns), call.C
    if np.isfinite(call.alpha):
        T = np.where(np.isfinite(T), 0, T).astype(T.dtype)
    if C is not None and np.isfinite(call.beta):
        C = np.where(np.isfinite(C), 0, C).astype(C.dtype)
    return scaled(T, C, call.alpha, call.beta)


def _where(mask: Mask) -> Mask | None:
    return mask if mask.any() else None
