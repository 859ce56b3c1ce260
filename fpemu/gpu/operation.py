"""Products of any scheme on a GPU, with the bits of `fpemu.gemm`: `fpemu.gpu.gemm` and `fpemu.gpu.plan`.

A call is validated once for its arguments and the layouts of its arrays: its kernel returns its steps, and their plan
(`fpemu.gpu.runtime.plan`) is kept. A repeated call reads the layouts and addresses of its arrays, finds the plan, and
queues it. The Ozaki family, whose steps depend on the values of the operands, waits for the GPU in between.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.gemm.base import Kernel, Prepared
from fpemu.gpu.gemm.choice import check_out, direct, find, refuse_hardware, validate
from fpemu.gpu.runtime import callers, counters, device, matrices
from fpemu.gpu.runtime.counters import Label
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.matrices import Matrix, Read
from fpemu.gpu.runtime.plan import Plan, lock, workspaces
from fpemu.gpu.runtime.selection import current
from fpemu.gpu.runtime.steps import Address, Memory, Step
from fpemu.mma.order import KOrder
from fpemu.mma.tree import OrderResult, order_of
from fpemu.schemes.base import Call, Scheme
from fpemu.schemes.call import Policy
from fpemu.schemes.words import OverflowPolicy

__all__ = ["GemmPlan", "Operation", "Operations", "PreparedOperand", "computed", "gemm", "no_room", "plan", "release"]

_NUMBERS = (float, int)
_MOST = 256  # entries of a cache


# --- operations: plans with one output
@dataclass(eq=False)
class Operation:
    """The plan of a call, for arrays with the layouts that it was made for.

    Parameters
    ----------
    plan : Plan
        Steps.
    shape : tuple of int
        Shape of the output.
    extents : tuple of int
        Bytes from the first to the last entry of A, B, C and the output.
    """

    plan: Plan
    shape: tuple[int, ...]
    extents: tuple[int, ...]

    def run(self, A: Any, out: Any, arrays: Read, prepared: int = 0) -> Any:
        """Queue the plan and return the output: `out`, else a new array like A; `prepared`: as of `queue`."""
        D, pointers = out, arrays.pointers
        if D is None:
            D, pointers[3] = matrices.new(A, self.shape, self.plan.index)
        with lock:
            self.queue(pointers, arrays.stream, private=out is None, prepared=prepared)
        return D

    def queue(self, pointers: list[int], stream: int, *, private: bool, prepared: int = 0) -> None:
        """Queue the plan; the caller holds the lock.

        Parameters
        ----------
        pointers : list of int
            Addresses of A, B, C and D; 0: none.
        stream : int
            Stream.
        private : bool
            D is not yet visible to the caller.
        prepared : int
            Address of an operand prepared in advance.
        """
        addresses, owner = self.plan.addresses(pointers, stream, prepared)
        self.plan.queue(addresses, stream, captured=owner is not None)


class Operations(dict[Any, Any]):
    """Operations by what they depend on: at most 256, all dropped when another one is added."""

    def find(self, key: Any, out: Any, pointers: list[int]) -> Any:
        """Return the operation of a key; None if there is none, or if `out` may share memory with an operand."""
        try:
            operation = self.get(key)
        except TypeError:  # an argument is not hashable
            return None
        return (
            None if operation is None or (out is not None and matrices.near(pointers, operation.extents)) else operation
        )

    def keep(self, key: Any, operation: Any) -> None:
        """Add an operation; a key that is not hashable adds none."""
        if len(self) >= _MOST:
            self.clear()
        with suppress(TypeError):
            self[key] = operation

    def repeat(self, request: Any, A: Any, B: Any, C: Any, out: Any) -> tuple[Any, Read | None, Any]:
        """Run the operation of an earlier call with the same request and layouts.

        Parameters
        ----------
        request : object
            All arguments but the arrays; None: the operation depends on more.
        A, B, C, out : arrays, or None
            Arrays of the call.

        Returns
        -------
        D : array or None
            Output; None if nothing is queued.
        arrays : Read or None
            The arrays; None if they must be converted.
        key : object
            Where to keep the operation of this call; None: nowhere.
        """
        arrays = matrices.read(A, B, C, out)
        if arrays is None or request is None:
            return None, arrays, None
        key = request, arrays.key
        operation = self.find(key, out, arrays.pointers)
        if operation is not None:
            with suppress(OutOfMemoryError):  # the call is validated again, and releases memory
                return operation.run(A, out, arrays), arrays, key
        return None, arrays, key


_products = Operations()


@dataclass(eq=False)
class Product(Operation):
    """The plan of a product, or of D = beta · C: split, product, and the outputs that NaN and Inf reach.

    Parameters
    ----------
    call : Call
        The checked request.
    kernel : Kernel or None
        The kernel; None if there is nothing to multiply.
    deferred : bool
        The overflow policy was left out: entries out of range then raise in `fpemu.gpu.check`.
    checks : bool
        Whether a call waits for the counts of such entries, and raises InputError for them.
    sources : dict of str to Matrix
        Layouts of A and B.
    prepared_counts : int, optional
        Where the counts lie in an operand prepared in advance.
    """

    call: Call
    kernel: Kernel | None
    deferred: bool
    checks: bool
    sources: dict[str, Matrix]
    prepared_counts: int | None = None

    def queue(self, pointers: list[int], stream: int, *, private: bool, prepared: int = 0) -> None:
        """Queue the plan, and check the operands' range: after the product if D is not yet visible, else before."""
        addresses, owner = self.plan.addresses(pointers, stream, prepared)
        if not self.checks:
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
                # the check sets the counts to zero, which the kernel that patches NaN reads: if there are any, split again
                counted = self._check(pointers, addresses[-1], stream)
                self.plan.queue(addresses, stream, 0 if counted else self.plan.mark)

    def _check(self, pointers: list[int], counts: int, stream: int) -> bool:
        """Raise InputError for an operand that the policy refuses; return whether entries are out of range otherwise."""
        if not self.plan.labels:
            return False
        counted = counters.read(counts, stream)
        for i, (label, each) in enumerate(zip(self.plan.labels, counted, strict=True)):
            if refused(label, each):
                name = "AB"[i]
                raise InputError(self.complaint(name, each, replace(self.sources[name], pointer=pointers[i])))
        return any(map(any, counted))

    def complaint(self, name: str, counts: tuple[int, int], source: Matrix) -> str:
        """Return the scheme's error for an operand that the policy refuses."""
        assert self.kernel is not None
        policy = OverflowPolicy.RAISE if self.deferred else self.call.on_range
        try:
            self.kernel.scheme.check_operand(matrices.download(source), name, policy)
        except InputError as problem:
            return str(problem)
        raise GpuError(
            f"{self.kernel.name}: {counts[0]} entries of {name} were found NaN or infinite, {counts[1]} "
            "beyond their words, on the GPU alone"
        )


def refused(label: Label, counts: tuple[int, int]) -> bool:
    """Return whether the overflow policy refuses an operand with these counts of entries out of range."""
    return any(count and refuses for count, refuses in zip(counts, label.refused, strict=True))


def _product(
    call: Call, a: Matrix | None, b: Matrix | None, c: Matrix | None, D: Matrix, *, deferred: bool, wait: bool = False
) -> Product:
    """Return the product of operands on the GPU with these layouts; their memory is not accessed.

    wait : bool
        The operands are copies of arrays of the CPU, for which the call waits anyway.
    """
    scalars = np.array([call.alpha, call.beta], np.float64).tobytes()  # 0 and -0 are two
    request = call.scheme, call.spec, call.order, call.on_range, scalars, deferred, wait
    key = request, matrices.facts_of(a, b, c, D)
    product: Product | None = _products.get(key)
    if product is None:
        layouts = matrices.layouts(A=a, B=b, C=c, D=D)
        extents = tuple(matrices.extent(X) for X in (a, b, c, D))
        memory = Memory()
        if a is None or b is None:
            kernel, split, steps, labels = None, 0, _without_product(layouts["D"], layouts["C"], call), ()
        else:
            kernel, labels = _kernel(call, a, D), _labels(call, layouts, deferred)
            steps, split = kernel.steps(layouts, (call.alpha, call.beta), call.on_range, memory)
        checks = kernel is not None and (wait or _waits(call, deferred))
        plan = Plan(steps, memory, split, labels)
        product = Product(plan, D.shape, extents, call, kernel, deferred, checks, layouts)
        _products.keep(key, product)
    return product


def _kernel(call: Call, a: Matrix, D: Matrix) -> Kernel:
    return find(call.scheme, call.spec, (*D.shape[-2:], a.shape[-1]), call.order)


def _waits(call: Call, deferred: bool) -> bool:
    """Return whether a call reads the counts of entries out of range: its policy was given and may raise."""
    return not deferred and (call.scheme.limited or call.on_range != OverflowPolicy.PROPAGATE)


def _labels(call: Call, layouts: dict[str, Any], deferred: bool) -> tuple[Label, Label]:
    refuses_nonfinite = deferred or call.on_range == OverflowPolicy.RAISE
    refuses_overflow = deferred or call.scheme.limited or call.on_range != OverflowPolicy.PROPAGATE
    a, b = (
        Label(f"{name} of {call.scheme.name}", layouts[name].shape, (refuses_nonfinite, refuses_overflow))
        for name in "AB"
    )
    return a, b


def _without_product(D: Matrix, C: Matrix | None, call: Call) -> list[Step]:
    """Return the step of D = beta · C: there is nothing to multiply."""
    scheme, beta = call.scheme, call.beta
    if 0 in D.shape:
        return []
    c = None if C is None else C.broadcast(D.shape)
    addend = (0, matrices.table(D), 0) if c is None else (c.pointer, matrices.table(D), matrices.table(c, D.shape[:-2]))
    real = scheme.operand.dtype.type
    return [
        matrices.module().step(
            f"alone_{scheme.operand.name}",
            matrices.blocks(prod(D.shape)),
            256,
            D.pointer,
            *addend,
            *(D.count, *D.shape[-2:], D.strides[-2], *((0, 0) if c is None else c.strides[-2:])),
            real(0),
            real(beta),
            np.uint64(scheme.nan_code(call.spec)),
            np.int32(scheme.rounds_once and bool(np.isfinite(beta))),
        )
    ]


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
        and the Ozaki family), of any strides; leading axes broadcast. Arrays of the GPU with another dtype are copied
        to the CPU, where it is checked that their values fit (the Ozaki family reads fp32 as well). Gradients are not
        tracked.
    B : array (..., K, N)
        As A.
    C : array (..., M, N), optional
        As A.
    scheme : str or Scheme
        As in `fpemu.gemm`.
    alpha, beta : real numbers
        As in `fpemu.gemm`.
    on_range : str, optional
        Overflow policy, as in `fpemu.gemm`. On arrays of the GPU "raise", "scale" and "scale-rows" wait for the GPU, to
        read the counts of entries out of range. Default: "raise" for arrays of the CPU; for arrays of the GPU the bits
        of "propagate", and the errors of "raise" deferred to `fpemu.gpu.check`.
    order : KOrder, optional
        Summation order over K. Default: the kernel's, which `fpemu.gpu.kernel` returns. Another order is accepted
        if a kernel has it.
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
    family. The kernels and constants of a captured call stay in memory until the process ends.
    """
    request = _request(scheme, alpha, beta, on_range, order, options)
    D, arrays, key = _products.repeat(request, A, B, C, out)
    if D is None:
        D = _first(A, B, C, (scheme, alpha, beta, on_range, order, options), out, arrays, key)
    return D


def _request(scheme: Any, alpha: Any, beta: Any, on_range: Any, order: Any, options: dict[str, Any]) -> Any:
    """All that the steps depend on beside the arrays; None for scalars that are not plain nonzero numbers."""
    if alpha.__class__ not in _NUMBERS or beta.__class__ not in _NUMBERS or not alpha or alpha != alpha or beta != beta:
        return None
    if order is not None and order.__class__ is not KOrder:
        order = order_of(order, trees=False)  # a result's order may change
    if not options:
        return scheme, on_range, order, alpha, beta
    return scheme, on_range, order, alpha, beta, *((n, v.__class__, v) for n, v in options.items())


def _first(A: Any, B: Any, C: Any, request: tuple[Any, ...], out: Any, arrays: Read | None, key: Any) -> Any:
    """Return the result of a request that is validated.

    arrays : Read or None
        The arrays, if they are queued on their stream; None: they are queued on the default stream.
    key : object
        Where to keep the product, if no operand is converted.
    """
    scheme, alpha, beta, on_range, order, options = request
    refuse_hardware(options)
    path = order_of(order, trees=False)
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
    ordered = callers.ordered(callers.streams(given.values())) if arrays is None else nullcontext()
    with lock, device.entered(callers.place(given.values())), ordered:

        def received() -> tuple[dict[str, Any], bool, Call]:
            operands = {name: matrices.take(X, name, write=name == "out") for name, X in given.items()}
            on_device = matrices.same_place(operands)
            default = OverflowPolicy.PROPAGATE if on_device else OverflowPolicy.RAISE
            policy = default if on_range is None else on_range
            return operands, on_device, validate(operands, scheme, alpha, beta, policy, path, options)

        operands, on_device, call = computed(received, no_copy)
        if "out" in operands:
            check_out(operands, call.result_shape, call.scheme.operand.dtype)
        if call.empty and not on_device:
            return _returned(call.finish(None), A)
        deferred = on_device and on_range is None
        D = computed(
            lambda: _multiply(operands, call, given, on_device, deferred, arrays, key),
            lambda problem: too_little(problem, call),
        )
        if on_device and arrays is None and callers.must_synchronize(given.values()):
            device.synchronize(0)
        return D if on_device else _returned(D, A)


def _multiply(
    operands: dict[str, Any],
    call: Call,
    given: dict[str, Any],
    on_device: bool,
    deferred: bool,
    arrays: Read | None,
    key: Any,
) -> Any:
    """Return the result of a call: of the kind that A is on the GPU, else a NumPy array."""
    scheme, shape, stream = call.scheme, call.result_shape, 0 if arrays is None else arrays.stream
    a, b = (None if call.empty else _on_gpu(operands[name], getattr(call, name), scheme) for name in "AB")
    c = None if call.C is None else _on_gpu(operands["C"], call.C, scheme)
    private = "out" not in operands
    if not private:
        D, result = operands["out"], given["out"]
    elif on_device:
        D, result = matrices.like(given["A"], shape, scheme.operand.dtype)
    else:
        D, result = matrices.empty(shape, scheme.operand.dtype), None
    if a is not None and b is not None and scheme.error_free:
        with callers.ordered(callers.streams(given.values())) if stream else nullcontext():
            target = D if private else matrices.empty(shape, D.dtype)  # `out` keeps its content after an error
            report = errorfree.gemm(a, b, target, scheme, call.spec, call.alpha, call.beta, c, call.order)
            if not report.ok:
                raise GuaranteeError("; ".join(fault.message for fault in report.faults))
            if target is not D:
                matrices.copy(target, D)
    else:
        product = _product(call, a, b, c, D, deferred=deferred, wait=not on_device)
        if key is not None and arrays is not None and arrays.in_place(a, b, c, operands.get("out")):
            _products.keep(key, product)
        pointers = [0 if X is None else X.pointer for X in (a, b, c, D)]
        product.queue(pointers, stream, private=private)
    return result if on_device else matrices.download(D)


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
        matrices.forget()
        errorfree.workspace.cache_clear()


def _on_gpu(X: Any, checked: Any, scheme: Scheme) -> Matrix:
    """Return an operand on the GPU: the caller's array if it is there in a dtype that kernels read, else a copy."""
    return X if isinstance(X, Matrix) and direct(X.dtype, scheme) else matrices.upload(checked)


def _returned(D: Any, A: Any) -> Any:
    """Return a NumPy result as the caller's kind: a tensor for a torch tensor of the CPU's."""
    return matrices.as_torch(D) if matrices.is_torch(A) else D


def computed(compute: Callable[[], Any], complaint: Callable[[BaseException], GpuError]) -> Any:
    """Return a result; where memory does not suffice, compute it again without the buffers kept between calls."""
    for last in (False, True):
        try:
            return compute()
        except (InputError, GuaranteeError):
            raise
        except Exception as problem:
            if "OUT_OF_MEMORY" not in str(problem) and "OutOfMemory" not in type(problem).__name__:
                raise
            if last:
                raise complaint(problem) from None
        release()
        callers.free_cached_memory()
    raise AssertionError


def no_copy(problem: BaseException) -> GpuError:
    """Return the error where memory does not suffice for a copy of an operand."""
    return GpuError(
        f"out of memory: {callers.free_bytes() / 1e9:.2f} GB are free, too little for a copy of an operand: "
        "give arrays of the scheme's own dtype, without negative strides"
    )


def no_room(problem: BaseException, sizes: str) -> GpuError:
    """Return an error with the bytes needed in one piece, the bytes free, and the sizes to lower."""
    nbytes = problem.nbytes if isinstance(problem, OutOfMemoryError) else 0
    needed = f"{nbytes / 1e9:.2f} GB are needed in one piece, and " if nbytes else ""
    return GpuError(f"out of memory: {needed}{callers.free_bytes() / 1e9:.2f} GB are free: lower {sizes}")


def too_little(problem: BaseException, call: Call) -> GpuError:
    """Return an error with the bytes needed, the bytes free, and the sizes to lower."""
    if call.scheme.error_free and isinstance(problem, GpuError):  # its message has them already
        return problem
    largest = problem.nbytes if isinstance(problem, OutOfMemoryError) else 0
    one_piece = f", {largest / 1e9:.2f} GB of it in one piece" if largest else ""
    words = 0 if call.lowering is None else sum(word.format.code_dtype.itemsize for word in call.lowering.words)
    size = (call.A.size + call.B.size) * (call.scheme.operand.dtype.itemsize + words) + 8 * prod(call.result_shape)
    *batch, M, N = call.result_shape
    return GpuError(
        f"out of memory: A, B, D and their words take {max(size, largest) / 1e9:.2f} GB or more{one_piece}, and "
        f"{callers.free_bytes() / 1e9:.2f} GB are free: lower the batch ({prod(batch)}), M ({M}) or N ({N})"
    )


# --- fpemu.gpu.plan
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
    refuse_hardware(options)
    path = order_of(order, trees=False)
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | ({} if C is None else {"C": C})
    with lock, device.entered(callers.place(given.values())):
        operands = computed(lambda: {name: matrices.take(X, name) for name, X in given.items()}, no_copy)
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
        return GemmPlan(call, operands, deferred=on_range is None)


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

    def __init__(self, call: Call, operands: dict[str, Matrix], *, deferred: bool) -> None:
        self._call, self._deferred, self._dtype = call, deferred, np.dtype(call.scheme.operand.dtype)
        self._given = {name: replace(X, owner=None) for name, X in operands.items()}
        self.shapes = {name: X.shape for name, X in operands.items()} | {"D": call.result_shape}
        self._variants, self._index = Operations(), current()
        self._first = computed(lambda: self._of(self._given, self._result(None), None), self._too_little)

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
        if ready is not None:
            ready.check(self, A if ready.name == "B" else B)
            A, B = (ready.X if X is ready else X for X in (A, B))
        arrays = matrices.read(A, B, C, out)
        if arrays is not None:
            key = arrays.key, ready and ready.name
            product = self._variants.find(key, out, arrays.pointers)
            if product is not None:
                with suppress(OutOfMemoryError):
                    return product.run(A, out, arrays, 0 if ready is None else ready.buffer.pointer)
        return computed(lambda: self._run(A, B, C, out, ready, arrays), self._too_little)

    def _run(self, A: Any, B: Any, C: Any, out: Any, ready: PreparedOperand | None, arrays: Read | None) -> Any:
        """Return the result of arguments that are checked first."""
        given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
        ordered = callers.ordered(callers.streams(given.values())) if arrays is None else nullcontext()
        with lock, device.entered(self._index), ordered:
            if (C is None) != ("C" not in self.shapes):
                raise InputError("C is missing: the plan adds one" if C is None else "the plan adds no C: leave it out")
            operands = {
                name: ready.matrix if ready is not None and name == ready.name else self._as_matrix(name, X)
                for name, X in given.items()
            }
            if out is not None:
                check_out(operands, self.shapes["D"], self._dtype)
            result = out
            if out is None:
                operands["out"], result = matrices.like(A, self.shapes["D"], self._dtype)
            product = self._of(operands, operands["out"], ready)
            if arrays is not None:
                self._variants.keep((arrays.key, ready and ready.name), product)
            pointers = [X.pointer if (X := operands.get(name)) is not None else 0 for name in ("A", "B", "C", "out")]
            stream, prepared = 0 if arrays is None else arrays.stream, 0 if ready is None else ready.buffer.pointer
            product.queue(pointers, stream, private=out is None, prepared=prepared)
            if arrays is None and callers.must_synchronize(given.values()):
                device.synchronize(0)
            return result

    def _too_little(self, problem: BaseException) -> GpuError:
        """Return the error of `fpemu.gpu.gemm` where memory does not suffice."""
        with device.entered(self._index):
            return too_little(problem, self._call)

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
        return computed(lambda: self._split(X, operand), self._too_little)

    def _split(self, X: Any, operand: str) -> PreparedOperand:
        """Return the operand X, split, after a check of its entries."""
        with lock, device.entered(self._index), callers.ordered(callers.streams([X])):
            x = self._as_matrix(operand, X)
            first, _ = self._pair({**self._given, operand: x}, self._result(None), operand)
            result = PreparedOperand(self, operand, X, x, device.Buffer.poisoned(max(first.plan.prepared, 16), 0))
            pointers = [x.pointer if name == operand else 0 for name in "ABCD"]
            addresses, _ = first.plan.addresses(pointers, 0, result.buffer.pointer)
            first.plan.queue(addresses)
            if first.prepared_counts is not None:
                nonfinite, overflow = device.fetch(result.buffer.pointer + first.prepared_counts, 2, np.uint64).tolist()
                label = _labels(self._call, first.sources, self._deferred)["AB".index(operand)]
                if refused(label, (nonfinite, overflow)):
                    message = first.complaint(operand, (nonfinite, overflow), x)
                    if not self._deferred:
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
        return f"{self._first.kernel.describe()}; {shapes}; {self.bytes} bytes of workspace per stream"

    @property
    def kernels(self) -> list[str]:
        """Kernels of one call in their order; "fill" sets workspace to zero."""
        return list(self._first.plan.kernels)

    @property
    def bytes(self) -> int:
        """Bytes of workspace per stream."""
        return self._first.plan.work + self._first.plan.zeros

    def _result(self, D: Matrix | None) -> Matrix:
        """Return D, or the layout of a new D."""
        shape = self.shapes["D"]
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        return Matrix(0, self._dtype, shape, strides) if D is None else D

    def _of(self, operands: dict[str, Matrix], D: Matrix, ready: PreparedOperand | None) -> Product:
        """Return the product of operands with some layouts."""
        if ready is not None:
            return self._pair(operands, D, ready.name)[1]
        a, b, c = (operands.get(name) for name in "ABC")
        return _product(self._call, a, b, c, D, deferred=self._deferred)

    def _pair(self, operands: dict[str, Matrix], D: Matrix, name: str) -> tuple[Product, Product]:
        """Return the preparation of an operand, and the product with the prepared operand."""
        a, b, c = operands["A"], operands["B"], operands.get("C")
        key = name, matrices.facts_of(a, b, c, D)
        if key not in self._variants:
            self._variants.keep(key, _pair(self._call, a, b, c, D, name, deferred=self._deferred))
        pair: tuple[Product, Product] = self._variants[key]
        return pair

    def _as_matrix(self, name: str, X: Any) -> Matrix:
        """Return a checked argument as a matrix."""
        x = matrices.take(X, name, write=name == "out")
        shape = self.shapes["D" if name == "out" else name]
        if not isinstance(x, Matrix) or x.shape != shape:
            raise InputError(f"{name} must be an array on the GPU of the plan's shape {shape} and dtype {self._dtype}")
        _refuse_conversion(name, X, x, self._dtype)
        return x


def _pair(
    call: Call, a: Matrix, b: Matrix, c: Matrix | None, D: Matrix, name: str, *, deferred: bool
) -> tuple[Product, Product]:
    """Return a product as the preparation of the operand `name` and the rest."""
    layouts = matrices.layouts(A=a, B=b, C=c, D=D)
    extents = tuple(matrices.extent(X) for X in (a, b, c, D))
    kernel, labels, other = _kernel(call, a, D), _labels(call, layouts, deferred), "BA"["AB".index(name)]
    before, memory, ready = Memory("prepared"), Memory(), dict[str, Prepared]()
    (ready[name],), first = kernel.split([(layouts[name], name)], call.on_range, before)
    (ready[other],), steps = kernel.split([(layouts[other], other)], call.on_range, memory)
    product = kernel.product(
        ready["A"], ready["B"], layouts["D"], call.alpha, call.beta, layouts["C"], call.on_range, memory
    )
    counts = ready[name].faults
    shared = (D.shape, extents, call, kernel, deferred, _waits(call, deferred), layouts)
    return (
        Product(Plan(first, before), *shared, prepared_counts=counts.offset if isinstance(counts, Address) else None),
        Product(Plan([*steps, *product], memory, len(steps), labels), *shared),
    )


@dataclass(eq=False)
class PreparedOperand:
    """An operand of a plan that is split already, from `GemmPlan.prepare`.

    Parameters
    ----------
    plan : GemmPlan
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

    plan: GemmPlan
    name: str
    X: Any
    matrix: Matrix
    buffer: device.Buffer = field(repr=False)

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
