"""`fpemu.gpu.gemm`: any scheme on a GPU, with the bits of `fpemu.gemm`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from fpemu.errors import GpuError
from fpemu.gpu.gemm import memory, recorded, run
from fpemu.gpu.gemm.choice import check_out, refuse_hardware
from fpemu.gpu.gemm.memory import release
from fpemu.gpu.gemm.recorded import Product, products
from fpemu.gpu.runtime import callers, device, sequence, tensors
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.sequence import lock
from fpemu.gpu.runtime.tensors import Read
from fpemu.mma.order import KOrder
from fpemu.mma.tree import OrderResult, order_of
from fpemu.schemes.base import Scheme
from fpemu.schemes.call import Policy

__all__ = ["gemm"]

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
    A call whose kernels are recorded, because an earlier one had the same scheme, options, shapes, strides, dtypes and
    alignment, validates nothing again. On torch tensors it queues the kernels on torch's current stream of the
    operands' GPU, in workspace of this stream; on arrays of CuPy and others whose ``__cuda_array_interface__`` states
    CUDA's default stream, on the default stream. Calls of several threads are queued one after another. A torch call
    can be captured in a CUDA graph, then in workspace of the graph, except where ``on_range`` waits, operands of
    another dtype than the scheme's, the Ozaki family, kernels of unusual orders, products without entries or with
    K = 0, and an alpha that is 0, NaN or no number of Python. The kernels and constants of a captured call stay in
    memory until the process ends.
    """
    request = _request(scheme, alpha, beta, on_range, order, options)
    D = products.families.queue(request, A, B, C, out)
    if D is not None:
        return D
    arrays = None if request is None else tensors.read(A, B, C, out)
    if arrays is not None:
        arrays = arrays._replace(key=(request, arrays.key))
        product = products.find(arrays.key, out, arrays.pointers)
        if product is not None:
            try:
                return _repeated(product, A, B, C, out, arrays, request)
            except OutOfMemoryError:
                release()
                return gemm(
                    A, B, C, scheme=scheme, alpha=alpha, beta=beta, on_range=on_range, order=order, out=out, **options
                )
    return _first(A, B, C, scheme, alpha, beta, on_range, order, out, options, arrays)


def _request(scheme: Any, alpha: Any, beta: Any, on_range: Any, order: Any, options: dict[str, Any]) -> Any:
    """What the kernels depend on beside the arrays; None for scalars that are not plain nonzero numbers."""
    if alpha.__class__ not in _NUMBERS or beta.__class__ not in _NUMBERS or not alpha or alpha != alpha or beta != beta:
        return None
    if order is not None and order.__class__ is not KOrder:
        order = order_of(order, trees=False)  # a result's order may change
    if not options:
        return scheme, on_range, order, alpha, beta
    return scheme, on_range, order, alpha, beta, *((n, v.__class__, v) for n, v in options.items())


def _repeated(product: Product, A: Any, B: Any, C: Any, out: Any, arrays: Read, request: Any) -> Any:
    """The result of a recorded product."""
    D, (_, pointers, stream) = out, arrays
    if D is None:
        D, pointers[3] = tensors.new(A, product.shape, product.sequence.index)
    if product.synchronises:
        recorded.refuse_capture(stream)
    with lock:
        room = tensors.room(product.sequence, stream)
        product.queue(pointers, room, stream, private=out is None, checks=product.synchronises)
        if room[2] is None and not product.synchronises:
            family = products.families.family(request)
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
    arrays: Read | None,
) -> Any:
    """The result of a request that is validated; arrays: if its kernels can be recorded, and by which key."""
    refuse_hardware(options)
    path = order_of(order, trees=False)
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | {name: X for name, X in (("C", C), ("out", out)) if X is not None}
    request, index = (scheme, alpha, beta, on_range, path, options), callers.place(given.values())
    ordered = callers.ordered(callers.streams(given.values())) if arrays is None else nullcontext()
    with lock, device.entered(index), ordered:
        operands, on_device, call = memory.computed(lambda: run.received(given, request), memory.no_copy)
        if "out" in operands:
            check_out(operands, call.result_shape, call.scheme.operand.dtype)
        if call.empty and not on_device:
            return memory.returned(call.finish(None), A)
        deferred = on_device and on_range is None
        D = memory.computed(
            lambda: run.multiply(operands, call, on_device, given, deferred, arrays),
            lambda problem: memory.too_little(problem, call),
        )
        if on_device and arrays is None and callers.must_synchronize(given.values()):
            device.synchronize(0)
        return D if on_device else memory.returned(D, A)
