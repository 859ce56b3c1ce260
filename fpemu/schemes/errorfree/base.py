"""The common steps of the error-free schemes: batches, NaN and Inf, alpha, beta and C, and reports of conditions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import any_complex, real_factor, real_view
from fpemu.errors import GuaranteeError, InputError, entries
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes import options as choose
from fpemu.schemes import words
from fpemu.schemes.base import Call, Scheme, matrices, matrix_instruction, scaled
from fpemu.schemes.errorfree import target as targets
from fpemu.schemes.errorfree.plan import Certified, Counts, ModularPlan, Report, SlicePlan
from fpemu.schemes.errorfree.split import inside

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
    target : {"dgemm", "sgemm"}, float or None
        Limit t of the error, for every entry |D - AB| <= t |A||B| with alpha = 1 and beta = 0: the least number of
        slices or moduli whose bound stays within it for these operands, or a violated condition. "dgemm": DGEMM's own
        bound, t = K u / (1 - K u) with u = 2^-53; "sgemm": with u = 2^-24. A number that is given is checked.
    inside_scaling : bool or None
        Whether A and B are first scaled along k, as `fpemu.schemes.errorfree.split.inside` does.
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
    target: float | str | None = choose.limit(
        "largest error relative to |A||B|, which determines the number of slices or moduli", tuple(targets.UNITS)
    )
    inside_scaling: bool | None = choose.flag("scale the columns of A and the rows of B by powers of two (None: no)")

    error_free = True
    counted: ClassVar[str] = "slices"
    """The option that `target` determines"""

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
        alone |= self.target is not None
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
        if self.inside_scaling:
            a, b = inside(a, b, paired=call.form is not None)
        plain = replace(call, A=a, B=b, C=None, alpha=1.0, beta=0.0)
        chosen, certificate = (self, None) if self.target is None else targets.within(self, plain)

        def multiply(call: Call) -> tuple[Array, Sequence[Report]]:
            T, reports = chosen.multiply(call)
            return T, reports if certificate is None else [r.with_certificate(certificate) for r in reports]

        if not self.rounds_once:
            T, reports = multiply(plain)
            return scaled(words.patch(T, A, B, rows, columns), C, alpha, beta), reports
        if not (np.isfinite(alpha) and np.isfinite(beta)):
            # only the signs matter: the power of two prevents a product from rounding to zero
            T, reports = multiply(replace(plain, alpha=2.0**1023))
            return _special(np.sign(T), call, rows, columns), reports
        c = None if C is None else np.where(np.isfinite(C), C, 0.0).astype(np.float64)
        D, reports = multiply(replace(plain, C=c, alpha=float(alpha), beta=float(beta)))
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
        cannot be shown. `hardware` is as in `fpemu.gemm`, and only `ozaki` requires it. The bound of a complex product
        in form 4M is a complex number, of a bound for each part.
        """
        spec = self.instruction_of(hardware)
        own = any_complex(A, B)
        a, b = finite(A, B, self.operand, complex_numbers=own)
        if own:
            a, b = real_view(a), real_factor(b)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(X, batch + X.shape[-2:]) for X in (a, b))
        result = np.zeros((*batch, a.shape[-2], b.shape[-1]))
        if result.size and a.shape[-1]:
            for at in np.ndindex(*batch):
                with np.errstate(all="ignore"):
                    x, y = (np.ascontiguousarray(X[at], np.float64) for X in (a, b))
                    if self.inside_scaling:
                        x, y = inside(x, y, paired=own)
                    call = Call(
                        self,
                        x,
                        y,
                        None,
                        1.0,
                        0.0,
                        spec,
                        None,
                        None,
                        words.OverflowPolicy.RAISE,
                        form="4M" if own else None,
                    )
                    chosen = self if self.target is None else targets.within(self, call)[0]
                    result[at] = chosen._bound(call)
        return result.view(np.complex128) if own else result

    @abstractmethod
    def _bound(self, call: Call) -> Array:
        """`error_bound` of a call with finite float64 matrices A and B."""


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
    def rounding_errors(self, plan: SlicePlan, a: int, b: int, d: int, fast: bool) -> tuple[float, float]:
        """The sums' errors relative to |A||B| and absolutely, for a and b slices and the d and fast of `numbers`."""

    @abstractmethod
    def counts(self, A: Array, B: Array, plan: SlicePlan) -> Counts:
        """Slices and products of A·B: C-contiguous float64, finite, not empty."""


def finite(A: Any, B: Any, fmt: FloatFormat, complex_numbers: bool = False) -> tuple[Array, Array]:
    """A (..., M, K) and B (..., K, N) as arrays of `fmt` that fit each other, all entries finite."""
    a, b = matrices(A, B, fmt, complex_numbers=complex_numbers)
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
