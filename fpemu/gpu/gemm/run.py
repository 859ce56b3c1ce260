"""The run of a checked request of `fpemu.gpu.gemm`: recorded kernels, other kernels, or the Ozaki family."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np

from fpemu.errors import GpuError, GuaranteeError
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.gemm import patching, recorded
from fpemu.gpu.gemm.base import Kernel, Prepared
from fpemu.gpu.gemm.choice import find, validate
from fpemu.gpu.gemm.memory import on_gpu
from fpemu.gpu.gemm.recorded import Product, products
from fpemu.gpu.runtime import callers, faults, matrices, tensors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.tensors import Read
from fpemu.schemes.base import Call
from fpemu.schemes.words import OverflowPolicy

__all__ = ["multiply", "received"]


def received(given: dict[str, Any], request: tuple[Any, ...]) -> tuple[dict[str, Any], bool, Call]:
    """Return the arrays as matrices, whether they are on the GPU, and the checked call."""
    operands = {name: matrices.take(X, name, write=name == "out") for name, X in given.items()}
    on_device = matrices.same_place(operands)
    scheme, alpha, beta, on_range, order, options = request
    if on_range is None:
        on_range = OverflowPolicy.PROPAGATE if on_device else OverflowPolicy.RAISE
    return operands, on_device, validate(operands, scheme, alpha, beta, on_range, order, options)


def multiply(
    operands: dict[str, Any], call: Call, on_device: bool, given: dict[str, Any], deferred: bool, arrays: Read | None
) -> Any:
    """Return the result of a call: of the kind that A is on the GPU, else a NumPy array."""
    stream = 0 if arrays is None else arrays.stream
    scheme, shape = call.scheme, call.result_shape
    given_out = operands.get("out")
    a, b = (None if call.empty else on_gpu(operands[name], getattr(call, name), scheme) for name in "AB")
    c = None if call.C is None else on_gpu(operands["C"], call.C, scheme)
    if given_out is not None:
        D, result = given_out, given["out"]
    elif on_device:
        D, result = matrices.like(given["A"], shape, scheme.operand.dtype)
    else:
        D, result = matrices.empty(shape, scheme.operand.dtype), None
    private = given_out is None
    product = None
    if a is not None and b is not None and not scheme.error_free:
        key = None if arrays is None or not arrays.in_place(a, b, c, given_out) else arrays.key
        checks = not on_device or recorded.waits(call.on_range, scheme, deferred)
        product = _recorded(call, a, b, c, D, deferred, checks, key)
    if product is not None:
        _queue(product, [a, b, c, D], private=private, checks=checks, stream=stream)
        return result if on_device else matrices.download(D)
    with nullcontext() if not stream else callers.ordered(callers.streams(given.values())):
        if a is None or b is None:
            _without_product(D, c, call)
        elif scheme.error_free:
            target = D if private else matrices.empty(shape, D.dtype)  # `out` keeps its content after an error
            report = errorfree.gemm(a, b, target, scheme, call.spec, call.alpha, call.beta, c, call.order)
            if not report.ok:
                raise GuaranteeError("; ".join(fault.message for fault in report.faults))
            if target is not D:
                matrices.copy(target, D)
        else:
            kernel = find(scheme, call.spec, (*shape[-2:], a.shape[-1]), call.order)
            _split_and_multiply(kernel, a, b, c, D, call, output_is_private=private, deferred=deferred)
    return result if on_device else matrices.download(D)


def _recorded(
    call: Call, A: Matrix, B: Matrix, C: Matrix | None, D: Matrix, deferred: bool, checks: bool, key: Any
) -> Product | None:
    """The recorded product of a call, kept by `key`, else by what the kernels read of the arrays."""
    if key is None:
        request = (call.scheme, call.spec, call.order, call.on_range, deferred, checks)
        scalars = struct.pack("dd", call.alpha, call.beta)  # NaN != NaN and 0.0 == -0.0
        key = (*request, scalars, tensors.facts_of(A, B, C, D))
    product = products.find(key, None, [])
    if product is None:
        product = recorded.record(call, A, B, C, D, deferred=deferred)
        if product is None:
            return None
        products.keep(key, product)
    return product


def _queue(product: Product, operands: list[Matrix | None], *, private: bool, checks: bool, stream: int) -> None:
    """Queue a recorded product of matrices in the workspace of a stream."""
    if checks:
        recorded.refuse_capture(stream)
    pointers = [0 if X is None else X.pointer for X in operands]
    product.queue(pointers, tensors.room(product.sequence, stream), stream, private=private, checks=checks)


def _split_and_multiply(
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
        words = x.faults.array(faults.NBYTES // 8, np.uint64).tolist()
        nonfinite_count, overflow_count = words[:2]
        if deferred:
            faults.defer(faults.message(f"{x.name} of {kernel.scheme.name}", x.source.shape, words))
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
