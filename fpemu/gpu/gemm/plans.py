"""`fpemu.gpu.plan`: a product of fixed shapes that is prepared once and multiplies any operands of these shapes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fpemu.errors import GpuError, InputError
from fpemu.gpu.gemm import memory, recorded
from fpemu.gpu.gemm.choice import check_out, refuse_hardware, validate
from fpemu.gpu.gemm.recorded import Product
from fpemu.gpu.runtime import callers, device, faults, matrices, tensors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.repeats import Repeats
from fpemu.gpu.runtime.selection import current
from fpemu.gpu.runtime.sequence import Arenas, lock
from fpemu.mma.order import KOrder
from fpemu.mma.tree import OrderResult, order_of
from fpemu.schemes.base import Call, Scheme
from fpemu.schemes.call import Policy
from fpemu.schemes.words import OverflowPolicy

__all__ = ["Plan", "PreparedOperand", "plan"]


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
) -> Plan:
    """Return a plan for products by a scheme of operands with the shapes and dtypes of A, B and C.

    Parameters
    ----------
    scheme : str or Scheme
        As in `fpemu.gpu.gemm`, without the Ozaki family.
    A : array (..., M, K) of the GPU
        Operand in the scheme's own dtype. Its values are not read.
    B : array (..., K, N) of the GPU
        As A.
    C : array (..., M, N) of the GPU, optional
        As A.
    alpha, beta : real numbers
        As in `fpemu.gpu.gemm`.
    on_range : str, optional
        Overflow policy, as in `fpemu.gpu.gemm`.
    order : KOrder, optional
        Summation order over K, as in `fpemu.gpu.gemm`.
    **options
        The scheme's choices.

    Returns
    -------
    Plan
        Callable: ``plan(A, B, out=D)``.

    Raises
    ------
    InputError
        As `fpemu.gpu.gemm`; arrays of the CPU or of another dtype; a scheme or an order whose kernels wait for the
        host.
    GpuError
        As `fpemu.gpu.gemm`.

    Examples
    --------
    >>> plan = fpemu.gpu.plan("staged", A, B)  # doctest: +SKIP
    >>> weights = plan.prepare(B)  # doctest: +SKIP
    >>> plan(A, weights, out=D)  # doctest: +SKIP
    """
    refuse_hardware(options)
    path = order_of(order, trees=False)
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | ({} if C is None else {"C": C})
    with lock, device.entered(callers.place(given.values())):
        operands = memory.computed(lambda: {name: matrices.take(X, name) for name, X in given.items()}, memory.no_copy)
        outside = [name for name, X in operands.items() if not isinstance(X, Matrix)]
        if outside:
            raise InputError(f"{' and '.join(outside)} must be on the GPU: a plan multiplies where the operands are")
        policy = OverflowPolicy.PROPAGATE if on_range is None else on_range
        call = validate(operands, scheme, alpha, beta, policy, path, options)
        if call.scheme.error_free:
            raise InputError(f"{call.scheme.name}: its kernels depend on the operands' values: call fpemu.gpu.gemm")
        if call.empty:
            raise InputError("there is nothing to multiply: the operands are empty, or alpha is 0")
        for name, X in given.items():
            _refuse_conversion(name, X, operands[name], np.dtype(call.scheme.operand.dtype))
        if call.C is None:
            operands.pop("C", None)
        result = Plan(call, operands, deferred=on_range is None)
        arrays = tensors.read(A, B, C, None)
        record = partial(result._product, (arrays and arrays.key, None), operands, result._result(None), None)
        result._first = memory.computed(record, result._too_little)
        return result


def _refuse_conversion(name: str, X: Any, x: Matrix, dtype: np.dtype[Any]) -> None:
    """Raise InputError for an operand X, as matrix x, of another dtype, also if torch has converted it to `dtype`."""
    given = str(X.dtype if callers.is_torch(X) else x.dtype).removeprefix("torch.")
    if given != dtype.name:
        raise InputError(f"{name} has {given} and must be {dtype}: a plan converts no operands")


class Plan:
    """A product of fixed shapes, from `fpemu.gpu.plan`: kernels and workspace are prepared, operands are not.

    A plan can be called from several threads and on several streams: its launches are queued under a lock, and every
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

    def __init__(self, call: Call, operands: dict[str, Matrix], *, deferred: bool) -> None:
        self._call, self._deferred, self._dtype = call, deferred, np.dtype(call.scheme.operand.dtype)
        self._given = {name: replace(X, owner=None) for name, X in operands.items()}
        self.shapes = {name: X.shape for name, X in operands.items()} | {"D": call.result_shape}
        self._products = tensors.Cache()
        self._first: Product  # of the operands that the plan was made for
        self._arenas, self._repeats, self._index = Arenas(), Repeats(), current()

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
        if B.__class__ is PreparedOperand or A.__class__ is PreparedOperand:
            return self._prepared(A, B, C, out)
        D = self._repeats.queue(A, B, C, self._new(A, self._repeats) if out is None else out)
        return self._other(A, B, C, out, None) if D is None else D

    def _prepared(self, A: Any, B: Any, C: Any, out: Any) -> Any:
        """The result for an operand that is prepared."""
        ready, D = B if B.__class__ is PreparedOperand else A, None
        if ready.plan is self:
            a, b = (A, None) if ready is B else (None, B)
            D = self._new(B if a is None else a, ready.repeats) if out is None else out
            D = ready.repeats.queue(a, b, C, D)
        return self._other(A, B, C, out, ready) if D is None else D

    def _new(self, X: Any, repeats: Repeats) -> Any:
        """A new output for a call that may repeat an earlier one with an operand X; else None."""
        try:
            return X.new_empty(self.shapes["D"]) if X.__class__ in repeats.kinds else None
        except RuntimeError:  # memory does not suffice
            return None

    def _other(self, A: Any, B: Any, C: Any, out: Any, ready: PreparedOperand | None) -> Any:
        """The result of a call that the compiled call does not repeat."""
        return memory.computed(lambda: self._queued(A, B, C, out, ready), self._too_little)

    def _too_little(self, problem: BaseException) -> GpuError:
        """The error of `fpemu.gpu.gemm` where memory does not suffice."""
        with device.entered(self._index):
            return memory.too_little(problem, self._call)

    def _queued(self, A: Any, B: Any, C: Any, out: Any, ready: PreparedOperand | None) -> Any:
        """The result of checked arguments."""
        if ready is not None:
            ready.check(self, A if ready.name == "B" else B)
            arrays = tensors.read(*(ready.X if X is ready else X for X in (A, B)), C, out)
        else:
            arrays = tensors.read(A, B, C, out)
        if arrays is None:
            return self._general(A, B, C, out, ready)
        facts, pointers, stream = arrays
        product = self._products.get((facts, ready and ready.name))
        if product is None or (out is not None and tensors.near(pointers, product.extents)):
            product = self._variant(A, B, C, out, ready, (facts, ready and ready.name))
        D, prepared = out, 0 if ready is None else ready.pointer
        if D is None:
            D, pointers[3] = tensors.new(B if A is ready else A, product.shape, self._index)
        if product.synchronises:
            recorded.refuse_capture(stream)
        with lock:
            room = tensors.room(product.sequence, stream, self._arenas)
            product.queue(pointers, room, stream, prepared=prepared, private=out is None, checks=product.synchronises)
            if room[2] is None and not product.synchronises:
                family = self._repeats if ready is None else ready.repeats
                constants = {} if ready is None else {"AB".index(ready.name): ready.matrix.pointer}
                family.add(product.sequence, self._arenas, (A, B, C, D), product.extents, constants, prepared)
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
        if operand not in ("A", "B"):
            raise InputError(f"operand = {operand!r} must be 'A' or 'B'")
        return memory.computed(lambda: self._split(X, operand), self._too_little)

    def _split(self, X: Any, operand: str) -> PreparedOperand:
        """The operand X, split, after a check of its entries."""
        with lock, device.entered(self._index), callers.ordered(callers.streams([X])):
            x = self._as_matrix(operand, X)
            first, _ = self._pair({**self._given, operand: x}, self._result(None), operand)
            result = PreparedOperand(self, operand, X, x, device.Buffer.poisoned(max(first.sequence.prepared, 16), 0))
            arena = self._arenas.of(0, first.sequence)
            pointers = [x.pointer if name == operand else 0 for name in "ABCD"]
            first.sequence.queue([*pointers, arena.work, arena.zeros, result.pointer], 0)
            counts = first.counts(result.pointer)
            if first.refused(counts):
                message = first.complaint(operand, counts, x)
                if not self._deferred:
                    raise InputError(message)
                faults.defer(message)
            return result

    def describe(self) -> str:
        """Return one line: kernel, scheme with its options, instruction, order, shapes and workspace.

        Returns
        -------
        str
            Description.
        """
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        return f"{self._first.kernel.describe()}; {shapes}; {self.bytes} bytes of workspace per stream"

    @property
    def kernels(self) -> list[str]:
        """Kernels of one call in their order; "fill" sets workspace to zero."""
        return list(self._first.sequence.kernels)

    @property
    def bytes(self) -> int:
        """Bytes of workspace per stream."""
        sequence = self._first.sequence
        return sequence.work + sequence.zeros

    def _result(self, D: Matrix | None) -> Matrix:
        """D, or the layout of a new D."""
        shape = self.shapes["D"]
        strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
        return Matrix(0, self._dtype, shape, strides) if D is None else D

    def _product(self, key: Any, operands: dict[str, Matrix], D: Matrix, ready: PreparedOperand | None) -> Product:
        """The recorded product of a key, which is recorded if there is none."""
        product: Product | None = self._products.get(key)
        if product is None:
            product = self._record(operands, D) if ready is None else self._pair(operands, D, ready.name)[1]
            self._products.keep(key, product)
        return product

    def _record(self, operands: dict[str, Matrix], D: Matrix) -> Product:
        result = recorded.record(
            self._call, operands["A"], operands["B"], operands.get("C"), D, deferred=self._deferred
        )
        if result is None:
            raise InputError(f"{self._call.scheme.name}: its kernel waits for the host: call fpemu.gpu.gemm")
        return result

    def _pair(self, operands: dict[str, Matrix], D: Matrix, name: str) -> tuple[Product, Product]:
        """The preparation of an operand, and the product with the prepared operand."""
        result = recorded.record_prepared(
            self._call, operands["A"], operands["B"], operands.get("C"), D, name, deferred=self._deferred
        )
        assert result is not None
        return result

    def _as_matrix(self, name: str, X: Any) -> Matrix:
        """A checked argument as a matrix."""
        x = matrices.take(X, name, write=name == "out")
        shape = self.shapes["D" if name == "out" else name]
        if not isinstance(x, Matrix) or x.shape != shape:
            raise InputError(f"{name} must be an array on the GPU of the plan's shape {shape} and dtype {self._dtype}")
        _refuse_conversion(name, X, x, self._dtype)
        return x

    def _operands(self, A: Any, B: Any, C: Any, out: Any, ready: PreparedOperand | None) -> dict[str, Matrix]:
        """The checked arguments as matrices."""
        if (C is None) != ("C" not in self.shapes):
            raise InputError("C is missing: the plan adds one" if C is None else "the plan adds no C: leave it out")
        given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
        operands = {
            n: ready.matrix if ready is not None and X is ready else self._as_matrix(n, X) for n, X in given.items()
        }
        if out is not None:
            check_out(operands, self.shapes["D"], self._dtype)
        return operands

    def _variant(self, A: Any, B: Any, C: Any, out: Any, ready: PreparedOperand | None, key: Any) -> Product:
        """The product for arguments of other strides or alignment, which are checked."""
        with lock, device.entered(self._index):
            operands = self._operands(A, B, C, out, ready)
            return self._product(key, operands, self._result(operands.get("out")), ready)

    def _general(self, A: Any, B: Any, C: Any, out: Any, ready: PreparedOperand | None) -> Any:
        """The result for arrays of other libraries, on the default stream."""
        arrays = [ready.X if X is ready else X for X in (A, B, C, out) if X is not None]
        with lock, device.entered(self._index), callers.ordered(callers.streams(arrays)):
            operands = self._operands(A, B, C, out, ready)
            result = out
            if out is None:
                operands["out"], result = matrices.like(arrays[0], self.shapes["D"], self._dtype)
            used = [operands.get(name) for name in ("A", "B", "C", "out")]
            key = tensors.facts_of(*used), ready and ready.name
            product = self._product(key, operands, operands["out"], ready)
            arena = self._arenas.of(0, product.sequence)
            pointers = [0 if X is None else X.pointer for X in used]
            prepared = 0 if ready is None else ready.pointer
            checks = product.synchronises
            room = arena.work, arena.zeros, None
            product.queue(pointers, room, 0, prepared=prepared, private=out is None, checks=checks)
            if callers.must_synchronize(arrays):
                device.synchronize(0)
            return result


@dataclass(eq=False)
class PreparedOperand:
    """An operand of a plan that is split already, from `Plan.prepare`.

    Parameters
    ----------
    plan : Plan
        Plan whose calls take it.
    name : {"A", "B"}
        Operand of the products.
    X : array of the GPU
        The operand itself, kept alive.
    matrix : Matrix
        The operand as pointer, shape and strides.
    buffer : Buffer
        Its words, exponents and special rows.
    """

    plan: Plan
    name: str
    X: Any
    matrix: Matrix
    buffer: device.Buffer
    pointer: int = field(init=False)
    repeats: Repeats = field(init=False, default_factory=Repeats)

    def __post_init__(self) -> None:
        self.pointer = self.buffer.pointer

    @property
    def bytes(self) -> int:
        """Bytes of the prepared operand."""
        return self.buffer.nbytes

    def check(self, plan: Plan, other: Any) -> None:
        """Raise InputError unless the operand was prepared by a plan, and is not passed as its `other` operand."""
        if self.plan is not plan:
            raise InputError(f"{self.name} was prepared by another plan: prepare it by this one")
        if other is self:
            place = "A" if self.name == "B" else "B"
            raise InputError(f"{place} was prepared as {self.name}: prepare it with operand={place!r}")
        if isinstance(other, PreparedOperand):
            raise InputError("A and B are prepared: pass one of them as an array")
