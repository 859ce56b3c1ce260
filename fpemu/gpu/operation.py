"""Products of any scheme on a GPU, with the bits of `fpemu.gemm`: `fpemu.gpu.gemm`.

A call is validated once for its arguments and the layouts of its arrays: its `Request` returns the steps, and their
plan (`fpemu.gpu.runtime.plan`) is kept as an `Operation`. A repeated call reads the layouts and addresses of its
arrays, finds the operation, and queues it. The Ozaki family, whose steps depend on the values of the operands, waits
for the GPU in between, except `ozaki2` on Hopper with a scaling whose conditions hold for any operands.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fpemu.arguments import real_view
from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree import hopper, target
from fpemu.gpu.gemm import complex_products
from fpemu.gpu.gemm.base import Kernel, Prepared
from fpemu.gpu.gemm.choice import direct, find, refuse_hardware, validate
from fpemu.gpu.runtime import callers, counters, device, matrices
from fpemu.gpu.runtime.counters import Label, lock
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.matrices import Matrix, Read
from fpemu.gpu.runtime.plan import Plan, make_room, queue, workspaces
from fpemu.gpu.runtime.steps import REGIONS, Memory, Step
from fpemu.mma.order import KOrder
from fpemu.mma.tree import OrderResult, order_of
from fpemu.schemes.base import Call, Form, Scheme, as_operand, complex_dtype
from fpemu.schemes.call import Policy
from fpemu.schemes.words import OverflowPolicy

_NUMBERS = (float, int)
_MOST = 1024  # keys of a cache
_WORK = REGIONS.index("work")


# --- operations: plans with one output
Placed = Sequence[Matrix | None]
"""A, B, C and the output on the GPU; None for an operand that the steps do not read"""


class Operation:
    """The plan of a call, for arrays with the layouts that it was made for."""

    def __init__(self, plan: Plan, placed: Placed) -> None:
        self.plan, self.layouts = plan, matrices.layouts(*placed)
        self.shape = self.layouts["D"].shape
        self.extents = tuple(map(matrices.extent, placed))

    def run(self, A: Any, out: Any, arrays: Read, prepared: int = 0) -> Any:
        """Queue the plan and return the output: `out`, else a new array like A; `prepared`: as of `queue`."""
        D, pointers = out, arrays.pointers
        if D is None:
            D, pointers[3] = matrices.new(A, self.shape, self.plan.index)
        with lock:
            self.queue(pointers, arrays.stream, private=out is None, prepared=prepared)
        return D

    def queue(self, pointers: list[int], stream: int, *, private: bool, prepared: int = 0) -> None:
        """Queue the plan on a stream; the caller holds the lock.

        pointers : addresses of A, B, C and D, 0: none; private : D is not yet visible to the caller; prepared : address
        of an operand prepared in advance
        """
        addresses, owner = self.plan.addresses(pointers, stream, prepared)
        self.plan.queue(addresses, stream, captured=owner is not None)


class Request(ABC):
    """The checked arguments of a call but for its arrays."""

    sizes: ClassVar[str] = ""  # to lower where memory does not suffice, for messages
    rows: ClassVar[bool] = False  # the rows of `out` must be contiguous
    kept = True  # whether an operation runs for any values of the operands
    index: int | None = None  # GPU of the call; None: that of its arrays
    signature: Any = None  # once `result` has returned, all that the steps depend on beside the layouts; None: more
    prepared = 0  # address of an operand prepared in advance

    def arrays(self, given: dict[str, Any]) -> list[Any]:
        """Return the arrays of the arguments, whose streams the call waits for."""
        return list(given.values())

    def take(self, X: Any, name: str) -> Any:
        """Return an array of the GPU as a `Matrix`, another one as a NumPy array."""
        return matrices.take(X, name, write=name == "out")

    def place(self, operands: dict[str, Any]) -> list[Matrix | None]:
        """Return A, B and C on the GPU, copied there if they are not; None for one that the steps do not read."""
        given = [operands.get(name) for name in "ABC"]
        return [matrices.upload(X) if isinstance(X, np.ndarray) else X for X in given]

    def operation(self, placed: Placed) -> Operation:
        """Return the operation for A, B, C and the output with these layouts."""
        memory = Memory()
        return Operation(Plan(self.steps(matrices.layouts(*placed), memory), memory), placed)

    def steps(self, layouts: dict[str, Any], memory: Memory) -> list[Step]:
        """Return the steps for A, B, C and D at addresses in their regions."""
        raise NotImplementedError

    def complaint(self, problem: BaseException) -> GpuError:
        """Return the error where memory does not suffice: bytes needed in one piece, bytes free, sizes to lower."""
        nbytes = problem.nbytes if isinstance(problem, OutOfMemoryError) else 0
        needed = f"{nbytes / 1e9:.2f} GB are needed in one piece, and " if nbytes else ""
        return GpuError(f"out of memory: {needed}{callers.free_bytes() / 1e9:.2f} GB are free: lower {self.sizes}")

    @abstractmethod
    def result(self, operands: dict[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of the output; InputError for operands that do not fit."""

    def checked(self, given: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, ...], np.dtype[Any]]:
        """Return the arrays as matrices or NumPy arrays, all in one memory, with shape and dtype of the output."""
        operands = {name: self.take(X, name) for name, X in given.items()}
        matrices.same_place(operands)
        shape, dtype = self.result(operands)
        if "out" in operands:
            matrices.check_out(operands, shape, dtype, rows=self.rows)
        return operands, shape, dtype

    def queued(self, given: dict[str, Any]) -> Callable[..., None]:
        """Return a function that queues the product of arrays of the GPU, `out` among them, on a stream; it keeps them.

        For measurements: it costs less host time than a call.
        """
        listed = self.arrays(given)
        with lock, device.entered(callers.place(listed)), callers.ordered(callers.streams(listed)):
            operands, *_ = self.checked(given)
            placed = [*self.place(operands), operands["out"]]
            operation = self.operation(placed)
        pointers = [0 if X is None else X.pointer for X in placed]

        def queue(stream: int = 0, keep: Any = (placed, given)) -> None:
            with lock:
                operation.queue(pointers, stream, private=False)

        return queue


class Operations(dict[Any, Any]):
    """Operations by what they depend on: the older half is dropped where there are too many."""

    def find(self, key: Any, out: Any, pointers: list[int]) -> Any:
        """Return the operation of a key; None if there is none, or if `out` may share memory with an operand."""
        try:
            operation = self.get(key)
        except TypeError:  # an argument is not hashable
            return None
        shared = operation is not None and out is not None and matrices.near(pointers, operation.extents)
        return None if shared else operation

    def repeat(self, request: Any, A: Any, B: Any, C: Any, out: Any, prepared: int = 0) -> tuple[Any, Read | None, Any]:
        """Run the operation of an earlier call with the same request and layouts.

        request : object
            All arguments but the arrays; None: the operation depends on more.

        Returns the output, None if nothing is queued; the arrays, None if they must be converted; and the key under
        which to keep the operation of this call, None if it must not be kept.
        """
        arrays = matrices.read(A, B, C, out)
        if arrays is None or request is None:
            return None, arrays, None
        key = request, arrays.key
        operation = self.find(key, out, arrays.pointers)
        if operation is not None:
            with suppress(OutOfMemoryError):  # the call is validated again, and releases memory
                return operation.run(A, out, arrays, prepared), arrays, key
        return None, arrays, key

    def compute(self, request: Request, given: dict[str, Any], arrays: Read | None, key: Any) -> Any:
        """Return the output of a call that has no operation yet, and keep its operation.

        given : A, B, C and out, without those that are None; arrays, key : from `repeat`

        The output is `out`, else a new array like A: on the GPU if A is.
        """
        device.need()
        listed = request.arrays(given)
        index = callers.place(listed) if request.index is None else request.index
        ordered = callers.ordered(callers.streams(listed)) if arrays is None else nullcontext()
        with lock, device.entered(index), ordered:
            D = computed(lambda: self._first(request, given, arrays, key), request.complaint)
            if isinstance(D, np.ndarray):
                return sys.modules["torch"].from_numpy(D) if matrices.is_torch(given["A"]) else D
            if arrays is None and callers.must_synchronize(listed):
                device.synchronize(0)
            return D

    def _first(self, request: Request, given: dict[str, Any], arrays: Read | None, key: Any) -> Any:
        operands, shape, dtype = request.checked(given)
        on_device, result = isinstance(operands["A"], Matrix), given.get("out")
        placed = request.place(operands)
        if result is not None:
            D = operands["out"]
        elif on_device:
            D, result = matrices.like(given["A"], shape, dtype)
        else:
            D = matrices.empty(shape, dtype)
        placed.append(D)
        # an empty operand has no address, by which a converted one differs from the caller's array
        empty = None in placed[:2] or any(X is not None and 0 in X.shape for X in placed)
        keys = [] if request.signature is None else [(request.signature, matrices.facts_of(*placed))]
        # a repeated call returns an array like A
        same = "out" in given or placed[0] is None or placed[0].dtype == dtype
        if arrays is not None and key is not None and not empty and same and arrays.in_place(*placed[:3]):
            keys.append(key)
        operation = next((each for key in keys if (each := self.find(key, None, [])) is not None), None)
        if operation is None:
            operation = request.operation(placed)
        if request.kept and keys:
            make_room(self, _MOST)
            with suppress(TypeError):  # an argument is not hashable
                self.update(dict.fromkeys(keys, operation))
        pointers, stream = [0 if X is None else X.pointer for X in placed], 0 if arrays is None else arrays.stream
        operation.queue(pointers, stream, private="out" not in given, prepared=request.prepared)
        return result if on_device else matrices.download(D)


_products = Operations()


class Product(Operation):
    """The plan of a product: split, product, and the outputs that NaN and Inf reach.

    policy : whose errors a check raises; waits : whether each call reads the counts of entries out of range; counts :
    their offset in an operand prepared in advance
    """

    def __init__(
        self,
        plan: Plan,
        placed: Placed,
        kernel: Kernel,
        policy: OverflowPolicy,
        waits: bool = False,
        counts: Any = None,
    ) -> None:
        super().__init__(plan, placed)
        self.kernel, self.policy, self.counts, self._waits = kernel, policy, counts, waits and bool(plan.labels)

    def complaint(self, name: str, counts: tuple[int, int], source: Matrix) -> str:
        """Return the scheme's error for an operand that the policy refuses."""
        try:
            self.kernel.scheme.check_operand(real_view(matrices.download(source)), name, self.policy)
        except InputError as problem:
            return str(problem)
        raise GpuError(
            f"{self.kernel.name}: {counts[0]} entries of {name} were found NaN or infinite, {counts[1]} "
            "beyond their words, on the GPU alone"
        )

    def queue(self, pointers: list[int], stream: int, *, private: bool, prepared: int = 0) -> None:
        """Queue the plan, and check the operands' range: after the product if D is not yet visible, else before."""
        addresses, owner = self.plan.addresses(pointers, stream, prepared)
        if not self._waits:
            self.plan.queue(addresses, stream, captured=owner is not None)
            return
        if owner is not None:
            raise InputError("this on_range waits for the GPU, which a CUDA graph cannot capture: leave on_range out")
        with device.entered(self.plan.index), counters.reset_on_failure(addresses[-1], stream):
            if private:
                self.plan.queue(addresses, stream)
                self._check(pointers, addresses[-1], stream)
            else:
                self.plan.queue(addresses, stream, 0, self.plan.mark)
                # the check sets the counts to zero, which the kernel that patches NaN reads: any counts require
                # another split
                counted = self._check(pointers, addresses[-1], stream)
                self.plan.queue(addresses, stream, 0 if counted else self.plan.mark)

    def _check(self, pointers: list[int], counts: int, stream: int) -> bool:
        """Raise InputError for an operand that the policy refuses; return whether any entry is out of range."""
        counted = counters.read(counts, stream)
        for name, pointer, label, each in zip("AB", pointers, self.plan.labels, counted, strict=False):
            if label.refuses(each):
                raise InputError(self.complaint(name, each, replace(self.layouts[name], pointer=pointer)))
        return any(map(any, counted))


# --- the request of a product
class GemmRequest(Request):
    """The arguments of `fpemu.gpu.gemm` but for the arrays."""

    sizes, rows = "the batch, M or N", True
    call: Call  # once `result` has validated the operands

    def __init__(
        self,
        scheme: str | Scheme,
        alpha: Any,
        beta: Any,
        on_range: str | None,
        order: KOrder | OrderResult | None,
        options: dict[str, Any],
        form: Form = "4M",
    ) -> None:
        refuse_hardware(options)
        self._arguments, self._options = (scheme, alpha, beta), options
        self._on_range, self._order, self._form = on_range, order_of(order, trees=False), form

    def result(self, operands: dict[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        self._on_device = isinstance(operands["A"], Matrix)
        self.deferred = self._on_device and self._on_range is None
        default = OverflowPolicy.PROPAGATE if self._on_device else OverflowPolicy.RAISE
        policy = default if self._on_range is None else self._on_range
        self.call = call = validate(operands, *self._arguments, policy, self._order, self._options, self._form)
        if call.on_range == OverflowPolicy.HARDWARE:  # the split kernels read NaN and Inf as zeros
            raise InputError("on_range='hardware' is emulated on the CPU (fpemu.gemm): use 'propagate' on a GPU")
        self.policy = OverflowPolicy.RAISE if self.deferred else call.on_range  # whose errors a check raises
        # a call reads the counts of entries out of range if its policy was given and may raise
        self.waits = not self.deferred and (call.scheme.limited or call.on_range != OverflowPolicy.PROPAGATE)
        scalars = np.array([call.alpha, call.beta], np.complex128).tobytes()  # 0 and -0 are two
        plans = hopper.supported(call) or hopper.supports_exact(call) or hopper.from_data(call)
        self.kept = call.empty or not call.scheme.error_free or plans
        rules = call.scheme, call.spec, call.order, call.on_range, call.form
        self.signature = (*rules, scalars, self.deferred, self._on_device)
        if call.form is None:
            return call.result_shape, np.dtype(call.scheme.operand.dtype)
        if call.form == "3M" and not call.scheme.modular:
            raise InputError(f"form='3M' of {call.scheme.name} runs on the CPU (fpemu.gemm): leave it out on a GPU")
        return (*call.result_shape[:-1], call.result_shape[-1] // 2), complex_dtype(call.scheme.operand)

    def place(self, operands: dict[str, Any]) -> list[Matrix | None]:
        """Return the operands that are read: the caller's arrays of a dtype that kernels read, else copies."""
        call, placed = self.call, list[Matrix | None]()
        for name, is_read in (("A", not call.empty), ("B", not call.empty), ("C", call.C is not None)):
            X = operands.get(name) if is_read else None
            if X is not None and not (isinstance(X, Matrix) and direct(X.dtype, call)):
                values = getattr(call, name)
                if call.form is not None:
                    values = matrices.download(X) if isinstance(X, Matrix) else X
                    values = as_operand(values, name, call.scheme.operand, complex_numbers=True)
                X = matrices.upload(values)
            placed.append(X)
        return placed

    def operation(self, placed: Placed) -> Operation:
        call, layouts = self.call, matrices.layouts(*placed)
        if call.empty:
            return Operation(Plan(complex_products.combined(call, layouts)), placed)
        return _error_free(placed, call) if call.scheme.error_free else self.products(placed)[0]

    def products(self, placed: Placed, ready: str = "") -> tuple[Product, Product]:
        """Return the product, and the preparation of the operand that is `ready`, which it then does not split."""
        call, memory, before = complex_products.plain(self.call), Memory(), Memory("prepared")
        layouts = matrices.layouts(*placed)
        end = complex_products.combined(self.call, layouts)
        layouts["C"] = None if call.C is None else layouts["C"]
        held, first = _real(call, {ready: layouts.pop(ready)} if ready else {}, before.block)
        layouts, embedding = _real(call, layouts, memory.block)
        layouts |= held
        sizes = (*layouts["D"].shape[-2:], layouts["A"].shape[-1])
        kernel, prepared = find(call.scheme, call.spec, sizes, call.order), Prepared(layouts[ready or "A"], ready)
        first += kernel.split([prepared], call.on_range, before) if ready else []
        steps, split = kernel.steps(layouts, (call.alpha, call.beta), call.on_range, memory, prepared)
        plan = Plan([*embedding, *steps, *end], memory, split + len(embedding), self.labels(layouts))
        given = placed, kernel, self.policy
        # arrays of the CPU are copied, for which the call waits anyway
        product = Product(plan, *given, not self._on_device or self.waits)
        counts = None if prepared.faults is None else prepared.faults.offset
        return product, Product(Plan(first, before), *given, counts=counts)

    def labels(self, layouts: dict[str, Any]) -> tuple[Label, ...]:
        """Return what the errors say of A and B."""
        refused = self.policy == OverflowPolicy.RAISE, self.deferred or self.waits
        return tuple(Label(f"{name} of {self.call.scheme.name}", layouts[name].shape, refused) for name in "AB")


class _ErrorFree(Operation):
    """A product of the Ozaki family, whose plan is empty: the steps depend on the values of the operands."""

    def __init__(self, placed: Placed, call: Call) -> None:
        super().__init__(Plan([]), placed)
        self.call = call

    def queue(self, pointers: list[int], stream: int, *, private: bool, prepared: int = 0) -> None:
        operands = zip(self.layouts.values(), pointers, strict=True)
        a, b, c, D = (None if X is None else replace(X, pointer=at) for X, at in operands)
        assert a is not None
        assert b is not None
        assert D is not None
        with callers.ordered([stream] if stream else []):
            result = D if private else matrices.empty(D.shape, D.dtype)  # `out` keeps its content after an error
            self.multiply({"A": a, "B": b, "C": c, "D": result})
            if result is not D:
                matrices.copy(result, D)

    def multiply(self, operands: dict[str, Any]) -> None:
        """Queue the product of A and B, with C or None, to D on the default stream; GuaranteeError."""
        call = complex_products.plain(self.call)
        real, steps = _real(call, operands | {"C": operands["C"] if call.C is not None else None}, device.Buffer)
        queue(*steps)
        A, B, C, D = real.values()
        rest, paired = (call.alpha, call.beta, C, call.order), call.form is not None
        report = errorfree.gemm(A, B, D, call.scheme, call.spec, *rest, paired=paired)
        if not report.ok:
            raise GuaranteeError("; ".join(fault.message for fault in report.faults))
        queue(*complex_products.combined(self.call, operands))


class _FromData(_ErrorFree):
    """Products with a target, or with operands scaled along k: one after another, each by its own operation."""

    def __init__(self, placed: Placed, call: Call) -> None:
        super().__init__(placed, call)
        self._operations = dict[Any, Operation]()

    def multiply(self, operands: dict[str, Any]) -> None:
        call, work = self.call, errorfree.workspace()
        first = {name: getattr(call, name) for name in "ABC"}
        first = {name: X if X is None else X[(0,) * (X.ndim - 2)] for name, X in first.items()}
        for each in hopper.products(operands):
            scheme: Any = call.scheme
            if scheme.inside_scaling:
                scheme = replace(scheme, inside_scaling=None)
                if not scheme.rounds_once:  # the exact product is the same
                    each["A"], each["B"] = target.balanced(work, each["A"], each["B"])
            if scheme.target is not None:
                real, steps = _real(call, {name: each[name] for name in "AB"}, device.Buffer)
                queue(*steps)
                A, B, paired = real["A"], real["B"], call.form is not None
                scheme, certificate = target.within(work, scheme, A, B, call.spec, call.order, paired=paired)
                for fault in certificate.faults(scheme.name):
                    raise GuaranteeError(fault.message)
            placed = [*each.values()]
            key = scheme, matrices.facts_of(*placed)
            if key not in self._operations:
                make_room(self._operations, _MOST)
                self._operations[key] = _error_free(placed, replace(call, scheme=scheme, **first))
            pointers = [0 if X is None else X.pointer for X in placed]
            self._operations[key].queue(pointers, 0, private=True)


class _Exact(_ErrorFree):
    """A product of mode CR on Hopper: a plan that finds exponents of the operands, and one for the moduli they need."""

    def __init__(self, placed: Placed, call: Call) -> None:
        super().__init__(placed, call)
        call.scheme.plan_for(call.spec, call.A.shape[-1], call.order)  # type: ignore[attr-defined]  # refuses some
        memory = Memory()
        steps, place = hopper.extents(call, self.layouts, memory)
        self._extents, self._offset, self._plans = Plan(steps, memory), place.offset, dict[Any, Plan]()

    def queue(self, pointers: list[int], stream: int, *, private: bool, prepared: int = 0) -> None:
        addresses, owner = self._extents.addresses(pointers, stream)
        if owner is not None:
            raise InputError("ozaki reads exponents of the operands, for which a CUDA graph cannot wait: take ozaki2")
        self._extents.queue(addresses, stream)
        with device.entered(self.plan.index):
            found = device.fetch(addresses[_WORK] + self._offset, 4, np.int32, stream).tolist()
        key = hopper.moduli_and_words(self.call, found)
        if key is None:
            super().queue(pointers, stream, private=private)
            return
        if key not in self._plans:
            memory = Memory()
            self._plans[key] = Plan(hopper.exact(self.call, self.layouts, memory, *key), memory)
        plan = self._plans[key]
        keeps = plan.fits(stream)
        addresses, _ = plan.addresses(pointers, stream)
        if not keeps:  # a larger workspace, which may have the address of the old one, but not its content
            self._extents.queue(addresses, stream)
        plan.queue(addresses, stream)


def _error_free(placed: Placed, call: Call) -> Operation:
    """Return the operation of a call of the Ozaki family."""
    if hopper.supported(call):
        memory = Memory()
        return Operation(Plan(hopper.steps(call, matrices.layouts(*placed), memory), memory), placed)
    kind = _FromData if hopper.from_data(call) else _Exact if hopper.supports_exact(call) else _ErrorFree
    return kind(placed, call)


def _real(call: Call, layouts: dict[str, Any], allocate: Callable[[int], Any]) -> tuple[dict[str, Any], list[Step]]:
    """Return the operands of the real product of a call, and the steps that write them."""
    return (layouts, []) if call.form is None else complex_products.embedded(layouts, allocate)


# --- fpemu.gpu.gemm
def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: str | Scheme,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: Policy | None = None,
    order: KOrder | OrderResult | None = None,
    form: Form = "4M",
    out: Any = None,
    **options: Any,
) -> Any:
    """Return D = alpha · (A B by a scheme) + beta · C, computed on the GPU of the operands.

    The same bits as ``fpemu.gemm(A, B, **fpemu.gpu.kernel(scheme, M, N, K).arguments)``, which emulates the GPU.

    Parameters
    ----------
    A : array (..., M, K)
        NumPy, CuPy or torch arrays, or any with ``__cuda_array_interface__`` or DLPack: all in the CPU's memory, for
        a product on the current GPU, or all on one GPU. The current GPU stays the same. fp32 numbers (fp64 for dgemm
        and the Ozaki family), or complex ones with such parts, of any strides; leading axes broadcast. Arrays of the
        GPU with another dtype are copied to the CPU, where it is checked that their values fit (the Ozaki family reads
        fp32 as well). Gradients are not tracked.
    B : array (..., K, N)
        As A.
    C : array (..., M, N), optional
        As A.
    scheme : str or Scheme
        As in `fpemu.gemm`.
    alpha, beta : numbers
        As in `fpemu.gemm`.
    on_range : str, optional
        Overflow policy, as in `fpemu.gemm`. On arrays of the GPU "raise", "scale" and "scale-rows" wait for the GPU, to
        read the counts of entries out of range. Default: "raise" for arrays of the CPU; for arrays of the GPU the bits
        of "propagate", and the errors of "raise" deferred to `fpemu.gpu.check`.
    order : KOrder, optional
        Summation order over K. Default: the kernel's, which `fpemu.gpu.kernel` returns. Another order is accepted
        if a kernel has it.
    form : {"4M", "3M"}
        Real products of a complex one, as in `fpemu.gemm`; 3M on a GPU for ozaki2, whose bits are the same in both.
    out : array (..., M, N) of the GPU, optional
        Where to write D; it must not share memory with A, B or C, and its last axis must be contiguous. After an
        InputError or a GuaranteeError it is unchanged.
    **options
        The scheme's choices.

    Returns
    -------
    D : array (..., M, N) of the kind that A is
        In the GPU's memory if A is, ready on the caller's current stream; an object with ``get()`` and
        ``__cuda_array_interface__`` if A is of neither torch nor CuPy.

    Raises
    ------
    InputError
        As `fpemu.gemm`; arrays on different GPUs, or on the CPU and a GPU; an order that no kernel has.
    GuaranteeError
        A condition of an error-free scheme is broken.
    GpuError
        No GPU, one that is too old or has too little memory, or a run that failed.

    Notes
    -----
    A call with the scheme, options, shapes, strides, dtypes and alignment of an earlier one validates nothing again. On
    torch tensors it queues its kernels on torch's current stream of the operands' GPU, in workspace of this stream; on
    arrays of CuPy and others whose ``__cuda_array_interface__`` states CUDA's default stream, on the default stream.
    Calls of several threads are queued one after another. A torch call can be captured in a CUDA graph, then in
    workspace of the graph, except where ``on_range`` waits, operands of another dtype than the scheme's, and the Ozaki
    family but for `ozaki2` on Hopper in accurate or invariant scaling. The kernels and constants of a captured call
    stay in memory until the process ends. With ``target`` the GPU evaluates the bounds of the error, and the call waits
    for the number of slices or moduli; ``scaling="fast"`` is refused.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_dynamo_compiling():  # the call becomes the operator of `fpemu.torch`
        options |= {"on_range": on_range, "order": order} | ({} if form == "4M" else {"form": form})
        operators = sys.modules["fpemu"].torch.operators
        return operators.traced(A, B, C, scheme=scheme, alpha=alpha, beta=beta, out=out, **options)
    key = _key(scheme, alpha, beta, on_range, order, form, options)
    D, arrays, key = _products.repeat(key, A, B, C, out)
    if D is None:
        request = GemmRequest(scheme, alpha, beta, on_range, order, options, form)
        given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
        D = _products.compute(request, given, arrays, key)
    return D


def _key(scheme: Any, alpha: Any, beta: Any, on_range: Any, order: Any, form: Any, options: dict[str, Any]) -> Any:
    """All that the steps depend on beside the arrays; None for scalars that are not plain nonzero numbers."""
    if alpha.__class__ not in _NUMBERS or beta.__class__ not in _NUMBERS or not alpha or alpha != alpha or beta != beta:
        return None
    if order is not None and order.__class__ is not KOrder:
        order = order_of(order, trees=False)  # a result's order may change
    if not options:
        return scheme, on_range, order, alpha, beta, form
    return scheme, on_range, order, alpha, beta, form, *((n, v.__class__, v) for n, v in options.items())


# --- memory
def release() -> None:
    """Release the memory that is kept between calls.

    It may be several times the memory of the largest operands. A call that runs out of memory releases it first and
    tries again. Deferred range errors are kept, and so are the kernels and buffers of calls in CUDA graphs, because
    replays read them.
    """
    with lock:
        find.cache_clear()
        _products.clear()
        workspaces.clear()
        counters.forget()
        errorfree.workspace.cache_clear()


def computed(compute: Callable[[], Any], complaint: Callable[[BaseException], GpuError]) -> Any:
    """Return a result; where memory does not suffice, compute it again without the buffers kept between calls."""
    for last in (False, True):
        try:
            return compute()
        except Exception as problem:
            if "OUT_OF_MEMORY" not in str(problem) and "OutOfMemory" not in type(problem).__name__:
                raise
            if last:
                raise complaint(problem) from None
        release()
        callers.free_cached_memory()
    raise AssertionError
