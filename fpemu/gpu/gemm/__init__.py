"""`fpemu.gpu.gemm`: any scheme on the current GPU, with the bits of `fpemu.gemm`; its run, and its memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np

from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.gemm import patching, recorded
from fpemu.gpu.gemm.base import Kernel, Prepared
from fpemu.gpu.gemm.choice import architecture, check_out, direct, find, kernel, refuse_hardware, validate
from fpemu.gpu.gemm.recorded import Product
from fpemu.gpu.runtime import callers, device, faults, matrices, sequence, tensors
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.sequence import lock
from fpemu.mma.order import KOrder
from fpemu.mma.tree import OrderResult, order_of
from fpemu.schemes.base import Call, Scheme
from fpemu.schemes.call import Policy
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.ranges import OverflowPolicy

__all__ = ["architecture", "gemm", "kernel", "release"]

_products = tensors.Cache()
_NUMBERS = (float, int)


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
    """Return D = alpha · (A B by a scheme) + beta · C, computed on the current GPU.

    The same bits as ``fpemu.gemm(A, B, **fpemu.gpu.kernel(scheme, M, N, K).arguments)``, which emulates the GPU.

    Parameters
    ----------
    A : array (..., M, K)
        NumPy, CuPy or torch arrays, or any with ``__cuda_array_interface__`` or DLPack: all in the CPU's memory or all
        in the GPU's. fp32 numbers (fp64 for dgemm and the Ozaki family), of any strides; leading axes broadcast. Arrays
        of the GPU with another dtype are copied to the CPU, where it is checked that their values fit (the Ozaki family
        reads fp32 as well). Gradients are not tracked.
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
        As `fpemu.gemm`; arrays of another GPU, or some here and some there; an order that no kernel has.
    GuaranteeError
        A condition of an error-free scheme is broken.
    GpuError
        No GPU, one that is too old or has too little memory, or a run that failed.

    Notes
    -----
    A call whose kernels are recorded, because an earlier one had the same scheme, options, shapes, strides, dtypes and
    alignment, validates nothing again: it queues the kernels on torch's current stream, in workspace of this stream.
    Calls of several threads are queued one after another. The torch call can be captured in a CUDA graph, then in
    workspace of the graph, except where ``on_range`` waits, the Ozaki family and kernels of unusual orders.
    """
    request = _request(scheme, alpha, beta, on_range, order, options)
    D = _products.families.queue(request, A, B, C, out)
    if D is not None:
        return D
    read = tensors.facts(A, B, C, out)
    key = None if request is None or read is None else (request, read[0])
    if key is not None and read is not None:
        product = _products.find(key, out, read[1])
        if product is not None:
            try:
                return _repeated(product, A, B, C, out, read[1], request)
            except OutOfMemoryError:
                release()
                return gemm(
                    A, B, C, scheme=scheme, alpha=alpha, beta=beta, on_range=on_range, order=order, out=out, **options
                )
    return _first(A, B, C, scheme, alpha, beta, on_range, order, out, options, key)


def _request(scheme: Any, alpha: Any, beta: Any, on_range: Any, order: Any, options: dict[str, Any]) -> Any:
    """What the kernels depend on beside the arrays; None for scalars that are not plain nonzero numbers."""
    if alpha.__class__ not in _NUMBERS or beta.__class__ not in _NUMBERS or not alpha or alpha != alpha or beta != beta:
        return None
    if not options:
        return scheme, on_range, order, alpha, beta
    return scheme, on_range, order, alpha, beta, *((n, v.__class__, v) for n, v in options.items())


def _repeated(product: Product, A: Any, B: Any, C: Any, out: Any, pointers: list[int], request: Any) -> Any:
    """The result of a recorded product of torch tensors on their current stream."""
    D = out
    if D is None:
        D = A.new_empty(product.shape)
        pointers[3] = D.data_ptr()
    stream = tensors.stream(product.sequence.index)
    if product.synchronises:
        recorded.refuse_capture(stream)
    with lock:
        room = tensors.room(product.sequence, stream)
        product.queue(pointers, room, stream, private=out is None, checks=product.synchronises)
        if room[2] is None and not product.synchronises:
            family = _products.families.family(request)
            family.add(product.sequence, sequence.arenas, (A, B, C, D), product.extents)
    return D


def _first(
    A: Any,
    B: Any,
    C: Any,
    scheme: Any,
    alpha: Any,
    beta: Any,
    on_range: Any,
    order: Any,
    out: Any,
    options: dict[str, Any],
    key: Any,
) -> Any:
    """The result of a request that is validated; key: by which its kernels are kept, for torch tensors on the GPU."""
    refuse_hardware(options)
    path = order_of(order, trees=False)
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
    request, index = (scheme, alpha, beta, on_range, path, options), callers.place(given.values())
    stream = 0 if key is None else tensors.stream(index)
    ordered = callers.ordered(callers.streams(given.values())) if key is None else device.unrestricted()
    with lock, device.entered(index), ordered:
        operands, on_device, call = _with_memory(lambda: _received(given, request), _no_copy)
        if "out" in operands:
            check_out(operands, call.result_shape, call.scheme.operand.dtype)
        if call.empty and not on_device:
            return _returned(call.finish(None), A)
        deferred = on_device and on_range is None
        D = _with_memory(
            lambda: _computed(operands, call, on_device, given, deferred, key, stream), lambda p: _too_little(p, call)
        )
        if on_device and key is None and callers.must_synchronize(given.values()):
            device.synchronize()
        return D if on_device else _returned(D, A)


def release() -> None:
    """Release the memory that is kept between calls.

    It may be several times that of the largest operands. A call for which memory is too little does it by itself.
    Deferred range errors are kept.
    """
    with lock:
        find.cache_clear()
        _products.clear()
        sequence.arenas.clear()
        matrices.forget()
        errorfree.workspace.cache_clear()


# --- the run
def _received(given: dict[str, Any], request: tuple[Any, ...]) -> tuple[dict[str, Any], bool, Call]:
    """The arrays as matrices, whether they are on the GPU, and the checked call."""
    operands = {name: matrices.take(X, name, write=name == "out") for name, X in given.items()}
    on_device = matrices.same_place(operands)
    scheme, alpha, beta, on_range, order, options = request
    if on_range is None:
        on_range = OverflowPolicy.PROPAGATE if on_device else OverflowPolicy.RAISE
    return operands, on_device, validate(operands, scheme, alpha, beta, on_range, order, options)


def _computed(
    operands: dict[str, Any], call: Call, on_device: bool, given: dict[str, Any], deferred: bool, key: Any, stream: int
) -> Any:
    """The result: of the kind that A is on the GPU, else a NumPy array."""
    scheme, shape = call.scheme, call.result_shape
    given_out = operands.get("out")
    a, b = (None if call.empty else _on_gpu(operands[name], getattr(call, name), scheme) for name in "AB")
    c = None if call.C is None else _on_gpu(operands["C"], call.C, scheme)
    if given_out is not None:
        D, result = given_out, given["out"]
    elif on_device:
        D, result = matrices.like(given["A"], shape, scheme.operand.dtype)
    else:
        D, result = matrices.empty(shape, scheme.operand.dtype), None
    private = given_out is None
    product = None
    if a is not None and b is not None and not isinstance(scheme, ErrorFree):
        if key is not None and not _in_place({"A": a, "B": b, "C": c, "out": given_out}, given):
            key = None
        checks = not on_device or recorded.waits(call.on_range, scheme, deferred)
        product = _recorded(call, a, b, c, D, deferred, checks, key)
    if product is not None:
        _queue(product, [a, b, c, D], private=private, checks=checks, stream=stream)
        return result if on_device else matrices.download(D)
    with nullcontext() if not stream else callers.ordered(callers.streams(given.values())):
        if a is None or b is None:
            _without_product(D, c, call)
        elif isinstance(scheme, ErrorFree):
            target = D if private else matrices.empty(shape, D.dtype)  # `out` keeps its content after an error
            report = errorfree.gemm(a, b, target, scheme, call.spec, call.alpha, call.beta, c, call.order)
            if not report.ok:
                raise GuaranteeError("; ".join(fault.message for fault in report.faults))
            if target is not D:
                matrices.copy(target, D)
        else:
            kernel = find(scheme, call.spec, (*shape[-2:], a.shape[-1]), call.order)
            _multiply(kernel, a, b, c, D, call, output_is_private=private, deferred=deferred)
    return result if on_device else matrices.download(D)


def _in_place(operands: dict[str, Matrix | None], given: dict[str, Any]) -> bool:
    """Whether the kernels read and write all given tensors where they are, and not copies."""
    used = {name: operands[name] for name in given}
    return all(X is not None and X.pointer == given[name].data_ptr() for name, X in used.items())


def _recorded(
    call: Call, A: Matrix, B: Matrix, C: Matrix | None, D: Matrix, deferred: bool, checks: bool, key: Any
) -> Product | None:
    """The recorded product of a call, kept by `key`, else by what the kernels read of the arrays."""
    if key is None:
        request = (call.scheme, call.spec, call.order, call.on_range, deferred, checks)
        scalars = tuple((float(x), math.copysign(1, x)) for x in (call.alpha, call.beta))
        key = (*request, scalars, tensors.facts_of(A, B, C, D)[0])
    product = _products.find(key, None, [])
    if product is None:
        product = recorded.record(call, A, B, C, D, deferred=deferred)
        if product is None:
            return None
        _products.keep(key, product)
    return product


def _queue(product: Product, operands: list[Matrix | None], *, private: bool, checks: bool, stream: int) -> None:
    """Queue a recorded product of matrices in the workspace of a stream."""
    if checks:
        recorded.refuse_capture(stream)
    pointers = [0 if X is None else X.pointer for X in operands]
    product.queue(pointers, tensors.room(product.sequence, stream), stream, private=private, checks=checks)


def _multiply(
    kernel: Kernel,
    A: Matrix,
    B: Matrix,
    C: Matrix | None,
    D: Matrix,
    call: Call,
    *,
    output_is_private: bool,
    deferred: bool,
) -> None:
    """Split A and B, run the product kernel, and check the operands' range.

    output_is_private : bool
        D was allocated by this call. The range check may then follow the product, because D is discarded if the check
        raises.
    deferred : bool
        `fpemu.gpu.check` raises the errors of the range check.
    """
    a, b = kernel.both(A, B, call.on_range)
    if not output_is_private and not deferred:
        _check_range(kernel, a, b, call.on_range)
    kernel.multiply(a, b, D, call.alpha, call.beta, C)
    if output_is_private or deferred:
        _check_range(kernel, a, b, call.on_range, deferred=deferred)
    patched = kernel.patches or call.on_range == OverflowPolicy.RAISE
    if not patched and a.special is not None and b.special is not None:
        patching.patch(a, b, D, call.alpha, call.beta, C, kernel.scheme.nan_code(kernel.spec))


def _check_range(kernel: Kernel, a: Prepared, b: Prepared, on_range: OverflowPolicy, *, deferred: bool = False) -> None:
    """Raise the scheme's InputError for an operand in which the split has counted entries out of range."""
    if on_range == OverflowPolicy.PROPAGATE and not kernel.scheme.limited and not deferred:
        return
    for x in (a, b):
        if x.faults is None:
            continue
        nonfinite_count, overflow_count = (int(n) for n in x.faults.array(2, np.uint64))
        if deferred and (overflow_count or nonfinite_count):
            numbers = f"{nonfinite_count} entries NaN or infinite, {overflow_count} beyond their words"
            faults.defer(f"{x.name} of {kernel.scheme.name}: {numbers}; on_range='raise' checks every call")
        elif overflow_count or (nonfinite_count and on_range == OverflowPolicy.RAISE):
            kernel.scheme.check_operand(matrices.download(x.source), x.name, on_range)
            raise GpuError(
                f"{kernel.name}: {nonfinite_count} entries of {x.name} were found NaN or infinite, {overflow_count} "
                "beyond their words, on the GPU alone"
            )


def _without_product(D: Matrix, C: Matrix | None, call: Call) -> None:
    """D = beta · C: there is nothing to multiply."""
    scheme, beta = call.scheme, call.beta
    if 0 in D.shape:
        return
    c = None if C is None else C.broadcast(D.shape)
    tables = (
        [np.uint64(0), matrices.table(D), np.uint64(0)]
        if c is None
        else [np.uint64(c.pointer), matrices.table(D), matrices.table(c, D.shape[:-2])]
    )
    steps = (0, 0) if c is None else c.strides[-2:]
    real = scheme.operand.dtype.type
    matrices.module().launch(
        f"alone_{scheme.operand.name}",
        matrices.blocks(prod(D.shape)),
        256,
        np.uint64(D.pointer),
        *tables,
        np.int64(D.count),
        *(np.int64(n) for n in (*D.shape[-2:], D.strides[-2], *steps)),
        real(0),
        real(beta),
        np.uint64(scheme.nan_code(call.spec)),
        np.int32(scheme.rounds_once and bool(np.isfinite(beta))),
        wait=False,
    )


# --- memory
def _on_gpu(X: Any, checked: Any, scheme: Scheme) -> Matrix:
    """An operand on the GPU: the caller's array if it is there in a dtype that kernels read, else a copy."""
    return X if isinstance(X, Matrix) and direct(X.dtype, scheme) else matrices.upload(checked)


def _returned(D: Any, A: Any) -> Any:
    """A NumPy result as the caller's kind: a tensor for a torch tensor of the CPU's."""
    return matrices.as_torch(D) if matrices.is_torch(A) else D


def _with_memory(compute: Callable[[], Any], complaint: Callable[[BaseException], GpuError]) -> Any:
    """The result; where memory is too little for it, once more after what is only kept for later has gone."""
    for last in (False, True):
        try:
            return compute()
        except (InputError, GuaranteeError):
            raise
        except BaseException as problem:
            find.cache_clear()  # what an interrupt has left half done in a kernel's buffers
            if "OUT_OF_MEMORY" not in str(problem) and "OutOfMemory" not in type(problem).__name__:
                raise
            if last:
                raise complaint(problem) from None
        release()
        callers.free_cached_memory()
    raise AssertionError


def _no_copy(problem: BaseException) -> GpuError:
    return GpuError(
        f"out of memory: {callers.free_bytes() / 1e9:.2f} GB are free, too little for a copy of an operand: "
        "give arrays of the scheme's own dtype, without negative strides"
    )


def _too_little(problem: BaseException, call: Call) -> GpuError:
    """An error with the bytes needed, the bytes free, and the sizes to lower."""
    if isinstance(call.scheme, ErrorFree) and isinstance(problem, GpuError):  # its message has them already
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
