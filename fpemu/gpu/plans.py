"""`fpemu.gpu.plan`: a product of fixed shapes that is prepared once and multiplies any operands of these shapes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fpemu.errors import GpuError, InputError
from fpemu.gpu.errorfree import hopper
from fpemu.gpu.operation import GemmRequest, Operation, Operations, Placed, Request, computed
from fpemu.gpu.runtime import callers, counters, device, matrices
from fpemu.gpu.runtime.counters import lock
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma.order import KOrder
from fpemu.mma.tree import OrderResult
from fpemu.schemes.base import Scheme
from fpemu.schemes.call import Policy

__all__ = ["GemmPlan", "PreparedOperand", "plan"]


def plan(
    scheme: str | Scheme,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: Policy | None = None,
    order: KOrder | OrderResult | None = None,
    **options: Any,
) -> GemmPlan:
    """Return a plan for products by a scheme of operands with the shapes and dtypes of A, B and C.

    Parameters
    ----------
    scheme : str or Scheme
        As in `fpemu.gpu.gemm`; of the Ozaki family `ozaki2` on Hopper in accurate or invariant scaling.
    A : array (..., M, K) of the GPU
        Operand in the scheme's own dtype, or all operands complex with such parts. Its values are not read.
    B : array (..., K, N) of the GPU
        As A.
    C : array (..., M, N) of the GPU, optional
        As A.
    alpha, beta : numbers
        As in `fpemu.gpu.gemm`.
    on_range : str, optional
        Overflow policy, as in `fpemu.gpu.gemm`.
    order : KOrder, optional
        Summation order over K, as in `fpemu.gpu.gemm`.
    **options
        The scheme's choices.

    Returns
    -------
    GemmPlan
        Callable: ``plan(A, B, out=D)``.

    Raises
    ------
    InputError
        As `fpemu.gpu.gemm`; arrays of the CPU or of another dtype; a scheme whose steps depend on the operands' values.
    GpuError
        As `fpemu.gpu.gemm`.

    Examples
    --------
    >>> plan = fpemu.gpu.plan("staged", A, B)  # doctest: +SKIP
    >>> weights = plan.prepare(B)  # doctest: +SKIP
    >>> plan(A, weights, out=D)  # doctest: +SKIP
    """
    request = GemmRequest(scheme, alpha, beta, on_range, order, options)
    device.need()
    given = {"A": A, "B": B} | ({} if C is None else {"C": C})
    with lock, device.entered(callers.place(given.values())):
        operands = computed(lambda: {name: request.take(X, name) for name, X in given.items()}, request.complaint)
        outside = [name for name, X in operands.items() if not isinstance(X, Matrix)]
        if outside:
            raise InputError(f"{' and '.join(outside)} must be on the GPU: a plan multiplies where the operands are")
        shape, dtype = computed(lambda: request.result(operands), request.complaint)
        call = request.call
        if call.scheme.error_free and not hopper.supported(call):
            raise InputError(f"{call.scheme.name}: its kernels depend on the operands' values: call fpemu.gpu.gemm")
        if call.empty:
            raise InputError("there is nothing to multiply: the operands are empty, or alpha is 0")
        for name, X in given.items():
            _refuse_conversion(name, X, operands[name], dtype)
        if call.C is None:
            operands.pop("C", None)
        return GemmPlan(request, operands, Matrix(0, dtype, shape, matrices.packed(shape)))


def _refuse_conversion(name: str, X: Any, x: Matrix, dtype: np.dtype[Any]) -> None:
    """Raise InputError for an operand X, as matrix x, of another dtype, also if torch has converted it to `dtype`."""
    given = str(X.dtype if callers.is_torch(X) else x.dtype).removeprefix("torch.")
    if given != dtype.name:
        raise InputError(f"{name} has {given} and must be {dtype}: a plan converts no operands")


class GemmPlan:
    """A product of fixed shapes, from `fpemu.gpu.plan`: its kernels are prepared, its operands are not.

    It can be called from several threads and on several streams: its launches are queued under a lock, and every
    stream has a separate workspace. Calls in a capture by `torch.cuda.graph` use memory of the graph.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        Shapes of A, B, C if there is one, and D.
    kernels : list of str
        Kernels of one call in their order; "fill" sets workspace to zero.
    bytes : int
        Bytes of workspace per stream.
    """

    def __init__(self, request: GemmRequest, operands: dict[str, Matrix], D: Matrix) -> None:
        self._request, self._variants, self._index = request, Operations(), device.current()
        self._layouts = {name: replace(X, owner=None) for name, X in operands.items()} | {"D": D}
        self.shapes = {name: X.shape for name, X in self._layouts.items()}
        self._first: Any = computed(lambda: request.operation(self._placed({})), request.complaint)

    def __call__(self, A: Any, B: Any, C: Any = None, *, out: Any = None) -> Any:
        """Return D = alpha · (A B) + beta · C.

        Parameters
        ----------
        A : array (..., M, K) of the GPU, or PreparedOperand
            Of the plan's shape, in any strides.
        B : array (..., K, N) of the GPU, or PreparedOperand
            As A; one of the two may be prepared.
        C : array (..., M, N) of the GPU, optional
            As A.
        out : array (..., M, N) of the GPU, optional
            Where to write D, as in `fpemu.gpu.gemm`.

        Returns
        -------
        D : array (..., M, N) of the kind that A is
            Ready on torch's current stream.

        Raises
        ------
        InputError
            Shapes or dtypes that are not the plan's; an operand that another plan prepared, or that is prepared as the
            other operand; two prepared operands; with on_range="raise" also entries out of range.
        GpuError
            A run that failed.
        """
        ready = B if B.__class__ is PreparedOperand else A if A.__class__ is PreparedOperand else None
        name, prepared = "", 0
        if ready is not None:
            ready.check(self, A if ready.name == "B" else B)
            A, B = (ready.X if X is ready else X for X in (A, B))
            name, prepared = ready.name, ready.buffer.pointer
        D, arrays, key = self._variants.repeat(name, A, B, C, out, prepared)
        if D is None:
            if (C is None) != ("C" not in self.shapes):
                raise InputError("C is missing: the plan adds one" if C is None else "the plan adds no C: leave it out")
            given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
            D = self._variants.compute(_PlanRequest(self, ready), given, arrays, key)
        return D

    def prepare(self, X: Any, operand: str = "B") -> PreparedOperand:
        """Split an operand once, for any number of calls, and wait for it.

        Parameters
        ----------
        X : array of the GPU
            A or B of the plan's shape. It is kept alive and must not change.
        operand : {"B", "A"}
            Operand of the products.

        Returns
        -------
        PreparedOperand
            Argument in the place of the array, for calls of this plan. A CUDA graph that captures such a call reads its
            memory: keep it alive as long as the graph is replayed.

        Raises
        ------
        InputError
            Another shape or dtype; entries that the overflow policy refuses.
        """
        if self._request.call.scheme.error_free:
            raise InputError(f"{self._request.call.scheme.name} prepares no operand: call the plan with both arrays")
        if operand not in ("A", "B"):
            raise InputError(f"operand = {operand!r} must be 'A' or 'B'")
        with lock, device.entered(self._index), callers.ordered(callers.streams([X])):
            result: PreparedOperand = computed(lambda: self._split(X, operand), self._request.complaint)
        return result

    def _split(self, X: Any, operand: str) -> PreparedOperand:
        """Return the operand X, split, after a check of its entries."""
        x, request = self.matrix(operand, X), self._request
        _, first = request.products(self._placed({operand: x}), operand)
        result = PreparedOperand(self, operand, X, x, device.Buffer.poisoned(max(first.plan.prepared, 16), 0))
        pointers = [x.pointer if name == operand else 0 for name in "ABCD"]
        first.queue(pointers, 0, private=True, prepared=result.buffer.pointer)
        if first.counts is not None:
            nonfinite, overflow = device.fetch(result.buffer.pointer + first.counts, 2, np.uint64).tolist()
            if request.labels(first.layouts)["AB".index(operand)].refuses((nonfinite, overflow)):
                message = first.complaint(operand, (nonfinite, overflow), x)
                if not request.deferred:
                    raise InputError(message)
                counters.defer(message)
        return result

    def describe(self) -> str:
        """Return one line: kernel, scheme with its options, instruction, order, shapes and workspace.

        Returns
        -------
        str
            Description.
        """
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        call = self._request.call
        kernel = f"{call.scheme.name} on {call.spec}" if call.scheme.error_free else self._first.kernel.describe()
        return f"{kernel}; {shapes}; {self.bytes} bytes of workspace per stream"

    @property
    def kernels(self) -> list[str]:
        """Kernels of one call in their order; "fill" sets workspace to zero."""
        return list(self._first.plan.kernels)

    @property
    def bytes(self) -> int:
        """Bytes of workspace per stream."""
        return self._first.plan.work + self._first.plan.zeros

    def _placed(self, given: dict[str, Matrix]) -> list[Matrix | None]:
        """Return A, B, C and D, with the plan's own layouts for those that are not given."""
        return [given.get(name, self._layouts.get(name)) for name in "ABCD"]

    def matrix(self, name: str, X: Any) -> Matrix:
        """Return a checked argument as a matrix."""
        x, own = matrices.take(X, name, write=name == "out"), self._layouts["D" if name == "out" else name]
        if not isinstance(x, Matrix) or x.shape != own.shape:
            raise InputError(
                f"{name} must be an array on the GPU of the plan's shape {own.shape} and dtype {own.dtype}"
            )
        _refuse_conversion(name, X, x, own.dtype)
        return x


class _PlanRequest(Request):
    """A call of a plan, with an operand prepared in advance or none."""

    rows = True

    def __init__(self, plan: GemmPlan, ready: PreparedOperand | None) -> None:
        self._plan, self._ready, self.index = plan, ready, plan._index
        self.prepared = 0 if ready is None else ready.buffer.pointer
        self.signature = "" if ready is None else ready.name

    def take(self, X: Any, name: str) -> Any:
        ready = self._ready
        return ready.matrix if ready is not None and name == ready.name else self._plan.matrix(name, X)

    def result(self, operands: dict[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        D = self._plan._layouts["D"]
        return D.shape, D.dtype

    def operation(self, placed: Placed) -> Operation:
        ready, request = self._ready, self._plan._request
        return request.operation(placed) if ready is None else request.products(placed, ready.name)[0]

    def complaint(self, problem: BaseException) -> GpuError:
        return self._plan._request.complaint(problem)


@dataclass(eq=False)
class PreparedOperand:
    """An operand of a plan that is split already, from `GemmPlan.prepare`."""

    plan: GemmPlan  # whose calls take it
    name: str  # "A" or "B"
    X: Any  # the operand itself, kept alive
    matrix: Matrix
    buffer: device.Buffer = field(repr=False)  # its words, exponents and special rows

    @property
    def bytes(self) -> int:
        """Bytes of the prepared operand."""
        return self.buffer.nbytes

    def check(self, plan: GemmPlan, other: Any) -> None:
        """Raise InputError unless the operand was prepared by a plan, and is not passed as its `other` operand."""
        if self.plan is not plan:
            raise InputError(f"{self.name} was prepared by another plan: prepare it by this one")
        if other is self:
            place = "A" if self.name == "B" else "B"
            raise InputError(f"{place} was prepared as {self.name}: prepare it with operand={place!r}")
        if isinstance(other, PreparedOperand):
            raise InputError("A and B are prepared: pass one of them as an array")
