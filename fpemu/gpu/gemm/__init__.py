"""`fpemu.gpu.gemm`: any scheme on the current GPU, with the bits of `fpemu.gemm`; its run, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from threading import RLock
from typing import Any

import numpy as np

from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.gemm import patching
from fpemu.gpu.gemm.base import Kernel, Prepared
from fpemu.gpu.gemm.choice import architecture, check_out, direct, find, kernel, refuse_hardware, validate
from fpemu.gpu.runtime import callers, device, matrices
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma.order import KOrder
from fpemu.mma.tree import OrderResult, order_of
from fpemu.schemes.base import Call, Scheme
from fpemu.schemes.call import Policy
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.ranges import OverflowPolicy

__all__ = ["architecture", "gemm", "kernel", "release"]

_lock = RLock()  # kernels keep buffers: one call at a time


def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: str | Scheme,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: Policy = "raise",
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
    on_range : str
        Overflow policy, as in `fpemu.gemm`.
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
    """
    refuse_hardware(options)
    path = order_of(order, trees=False)
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
    request = (scheme, alpha, beta, on_range, path, options)
    with _lock, device.entered(), callers.ordered(callers.streams(given.values())):
        operands, on_device, call = _with_memory(lambda: _received(given, request), _no_copy)
        if "out" in operands:
            check_out(operands, call.result_shape, call.scheme.operand.dtype)
        if call.empty and not on_device:
            return _returned(call.finish(None), A)
        D = _with_memory(lambda: _computed(operands, call, on_device, given), lambda p: _too_little(p, call))
        if on_device and callers.must_synchronize(given.values()):
            device.synchronize()
        return D if on_device else _returned(D, A)


def release() -> None:
    """Release the memory that is kept between calls.

    It may be several times that of the largest operands. A call for which memory is too little does it by itself.
    """
    with _lock:
        find.cache_clear()
        matrices.forget()
        if errorfree.workspace.cache_info().currsize:
            errorfree.workspace().free()


# --- the run
def _received(given: dict[str, Any], request: tuple[Any, ...]) -> tuple[dict[str, Any], bool, Call]:
    """The arrays as matrices, whether they are on the GPU, and the checked call."""
    operands = {name: matrices.take(X, name, write=name == "out") for name, X in given.items()}
    return operands, matrices.same_place(operands), validate(operands, *request)


def _computed(operands: dict[str, Any], call: Call, on_device: bool, given: dict[str, Any]) -> Any:
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
    if a is None or b is None:
        _without_product(D, c, call)
    elif isinstance(scheme, ErrorFree):
        private = D if given_out is None else matrices.empty(shape, D.dtype)  # `out` keeps its content after an error
        report = errorfree.gemm(a, b, private, scheme, call.spec, call.alpha, call.beta, c, call.order)
        if not report.ok:
            raise GuaranteeError("; ".join(fault.message for fault in report.faults))
        if private is not D:
            matrices.copy(private, D)
    else:
        kernel = find(scheme, call.spec, (*shape[-2:], a.shape[-1]), call.order)
        _multiply(kernel, a, b, c, D, call, output_is_private=given_out is None)
    return result if on_device else matrices.download(D)


def _multiply(
    kernel: Kernel, A: Matrix, B: Matrix, C: Matrix | None, D: Matrix, call: Call, *, output_is_private: bool
) -> None:
    """Split A and B, run the product kernel, and check the operands' range.

    output_is_private : bool
        D was allocated by this call. The range check may then follow the product, because D is discarded if the check
        raises.
    """
    a, b = kernel.both(A, B, call.on_range)
    if not output_is_private:
        _check_range(kernel, a, b, call.on_range)
    kernel.multiply(a, b, D, call.alpha, call.beta, C)
    if output_is_private:
        _check_range(kernel, a, b, call.on_range)
    if call.on_range != OverflowPolicy.RAISE and a.special is not None and b.special is not None:
        patching.patch(a, b, D, call.alpha, call.beta, C, kernel.scheme.nan_code(kernel.spec))


def _check_range(kernel: Kernel, a: Prepared, b: Prepared, on_range: OverflowPolicy) -> None:
    """Raise the scheme's InputError for an operand in which the split has counted entries out of range."""
    if on_range == OverflowPolicy.PROPAGATE and not kernel.scheme.limited:
        return
    for x in (a, b):
        if x.faults is None:
            continue
        nonfinite_count, overflow_count = (int(n) for n in x.faults.array(2, np.uint64))
        if overflow_count or (nonfinite_count and on_range == OverflowPolicy.RAISE):
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
