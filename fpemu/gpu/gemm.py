"""`fpemu.gpu.gemm`: any scheme on the GPU at hand, with the bits of `fpemu.gemm`; which kernel, and every complaint."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.gpu import callers, device, matrices
from fpemu.gpu.choice import architecture, find, kernel, need_a_gpu, rehearse
from fpemu.gpu.kernel import Kernel, Prepared
from fpemu.gpu.matrices import Matrix

if TYPE_CHECKING:
    from fpemu.mma import KOrder
    from fpemu.schemes import Scheme

__all__ = ["architecture", "gemm", "kernel"]

_lock = RLock()  # kernels keep buffers: one call at a time


def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: str | Scheme,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: str = "raise",
    order: KOrder | None = None,
    out: Any = None,
    **options: Any,
) -> Any:
    """D = alpha · (A B by a scheme) + beta · C, computed on the GPU at hand.

    The same bits as ``fpemu.gemm(A, B, C, **fpemu.gpu.kernel(scheme, M, N, K).arguments)``, which emulates the GPU.

    Parameters
    ----------
    A : array (..., M, K), B : array (..., K, N), C : array (..., M, N), optional
        NumPy, CuPy or torch arrays, or whatever has ``__cuda_array_interface__`` or DLPack: all in the CPU's memory or
        all in the GPU's. fp32 numbers (fp64 for dgemm and the Ozaki family), of any strides; leading axes broadcast.
        Arrays of the GPU with another dtype take the way over the CPU, where it is checked that their values fit.
    scheme, alpha, beta, on_range, **options
        As in `fpemu.gemm`.
    order : KOrder, optional
        Default: whatever the kernel does, which `fpemu.gpu.kernel` tells. Another one if some kernel has it.
    out : array (..., M, N) of the GPU, optional
        Where to write D; it must not share memory with A, B or C, and its last axis must be contiguous.

    Returns
    -------
    D : array (..., M, N) of the kind that A is
        In the GPU's memory if A is, ready on the caller's current stream.

    Raises
    ------
    InputError
        As `fpemu.gemm`; arrays of another GPU, or some here and some there; an order that no kernel has.
    GuaranteeError
        A condition of an error-free scheme is broken.
    GpuError
        No GPU, one that is too old or has too little memory, or a run that failed.
    """
    from fpemu.schemes.errorfree.base import ErrorFree

    given = (("A", A), ("B", B), ("C", C), ("out", out))
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    taken = {who: matrices.take(X, who) for who, X in given if X is not None or who in "AB"}
    there = matrices.same_place(taken)
    call = _checked(taken, scheme, alpha, beta, on_range, order, options)
    chosen, spec, alpha, beta = (call.scheme, *(call.arguments[name] for name in ("spec", "alpha", "beta")))
    c = call.arguments["C"]
    shape = call.shape if c is None else np.broadcast_shapes(call.shape, c.shape)
    if call.empty and not there:
        return _returned(call.finish(None), A)

    def compute() -> Any:
        given = {who: call.arguments[who] for who in "ABC" if call.arguments[who] is not None}
        a, b, c = (_on_gpu(taken[who], given[who]) if who in given else None for who in "ABC")
        assert a is not None
        assert b is not None
        D, made = _room_for(taken.get("out"), out, A, shape, chosen.operand.dtype, there, (a, b, c))
        if call.empty:
            _alone(D, c, beta, chosen, spec)
        elif isinstance(chosen, ErrorFree):
            _errorfree(a, b, c, D, alpha, beta, chosen, spec, order)
        else:
            found = find(chosen, spec, (*shape[-2:], a.shape[-1]), order)
            _run(found, a, b, c, D, alpha, beta, call.on_range, mine=out is None)
        return made if there else _returned(matrices.download(D), A)

    with _lock, callers.in_turn(callers.streams(X for X in (A, B, C, out) if X is not None)):
        return _with_memory(compute, call, shape)


# --- what is asked for
def _checked(
    taken: dict[str, Any], scheme: str | Scheme, alpha: Any, beta: Any, on_range: str, order: Any,
    options: dict[str, Any],
) -> Any:  # fmt: skip
    """The call as `fpemu.gemm` checks it: with zeros in place of arrays on the GPU that have the operands' dtype."""
    on_gpu = {who: (X.shape, X.dtype) for who, X in taken.items() if isinstance(X, Matrix) and who in "ABC"}
    if len(on_gpu) < len({*taken} - {"out"}):
        return _call({who: taken.get(who) for who in "ABC"}, scheme, alpha, beta, on_range, order, options)
    told = (tuple(on_gpu.items()), scheme, (type(alpha), alpha), (type(beta), beta), on_range, order)
    try:
        call = _call_like(*told, tuple(options.items()))
    except TypeError:  # something that is not hashable, and so will be refused, or is a list of products
        call = _call_like.__wrapped__(*told, tuple(options.items()))
    read = {"A": call.arguments["alpha"] != 0, "B": call.arguments["alpha"] != 0, "C": call.arguments["beta"] != 0}
    odd = [who for who, (_, dtype) in on_gpu.items() if dtype != call.scheme.operand.dtype and read[who]]
    if not odd:
        return call
    zeros = {who: _zeros(*kind) for who, kind in on_gpu.items()}
    given = zeros | {who: matrices.download(taken[who]) for who in odd}
    return _call(given, scheme, alpha, beta, on_range, order, options)


@lru_cache(maxsize=256)
def _call_like(
    kinds: tuple[Any, ...], scheme: str | Scheme, alpha: Any, beta: Any, on_range: str, order: Any,
    options: tuple[tuple[str, Any], ...],
) -> Any:  # fmt: skip
    """The call with zeros of some shapes and dtypes; checking takes longer than a small product."""
    zeros = {who: _zeros(*kind) for who, kind in kinds}
    return _call(zeros, scheme, alpha[1], beta[1], on_range, order, dict(options))


def _call(
    operands: dict[str, Any], scheme: str | Scheme, alpha: Any, beta: Any, on_range: str, order: Any,
    options: dict[str, Any],
) -> Any:  # fmt: skip
    from fpemu import schemes

    chosen = schemes.build(scheme, options)
    need_a_gpu(chosen)
    hardware = architecture() if chosen.needs_hardware else None
    chosen.check_order(order, options)
    A, B, C = (operands.get(who) for who in "ABC")
    call = schemes._call(A, B, C, chosen, hardware, alpha, beta, on_range, order, {})
    if not isinstance(chosen, schemes.ErrorFree):
        rehearse(chosen, call.arguments["spec"], order, call.on_range)
    return call


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return np.broadcast_to(np.zeros((), dtype), shape)


# --- the run
def _run(
    found: Kernel,
    A: Matrix,
    B: Matrix,
    C: Matrix | None,
    D: Matrix,
    alpha: Any,
    beta: Any,
    on_range: str,
    *,
    mine: bool,
) -> None:
    """Multiply into D; `mine`: if the operands are refused, nobody sees D, so that the GPU need not wait to know it."""
    from fpemu.gpu import patching

    a, b = found.prepare(A, "A", on_range), found.prepare(B, "B", on_range)
    if not mine:
        _check_range(found, a, b, on_range)
    found.multiply(a, b, D, alpha, beta, C)
    if mine:
        _check_range(found, a, b, on_range)
    if on_range != "raise" and a.special is not None and b.special is not None:
        patching.patch(a, b, D, alpha, beta, C, found.scheme.nan_code(found.spec))


def _check_range(found: Kernel, a: Prepared, b: Prepared, on_range: str) -> None:
    """Raise what `fpemu.gemm` raises about entries out of range: it is asked about the operand concerned."""
    from fpemu.schemes import ranges
    from fpemu.schemes.base import SplitScheme
    from fpemu.schemes.strassen import Strassen

    scheme = found.scheme
    if on_range == "propagate" and isinstance(scheme, SplitScheme):
        return
    for x in (a, b):
        if x.faults is None:
            continue
        wild, beyond = (int(n) for n in x.faults.array(2, np.uint64))
        if beyond or (wild and on_range == "raise"):
            host = matrices.download(x.source)
            if isinstance(scheme, Strassen):  # which has no words of its own, and a limit under every policy
                scheme._finite(host, x.who, on_range)
            elif isinstance(scheme, SplitScheme):
                ranges.prepare(host, x.who, scheme.rules(), on_range, scheme._policy(on_range), scheme.name)
            raise GpuError(f"{found.name}: {wild} entries of {x.who} were found NaN or infinite, {beyond} beyond their "
                           "words, on the GPU alone")  # fmt: skip


def _errorfree(
    A: Matrix, B: Matrix, C: Matrix | None, D: Matrix, alpha: Any, beta: Any, scheme: Any, spec: Any, order: Any
) -> None:
    from fpemu.gpu.errorfree import gemm as errorfree

    report = errorfree.gemm(A, B, D, scheme, spec, alpha, beta, C, order)
    if not report.ok:
        raise GuaranteeError("; ".join(fault.message for fault in report.faults))


def _alone(D: Matrix, C: Matrix | None, beta: Any, scheme: Scheme, spec: Any) -> None:
    """D = beta · C: there is no product."""
    if 0 in D.shape:
        return
    c = None if C is None else C.broadcast(D.shape)
    tables = [np.uint64(0), matrices.table(D), np.uint64(0)] if c is None else [
        np.uint64(c.pointer), matrices.table(D), matrices.table(c, D.shape[:-2])]  # fmt: skip
    steps = (0, 0) if c is None else c.strides[-2:]
    real = scheme.operand.dtype.type
    matrices.module().launch(
        f"alone_{scheme.operand.name}", matrices.blocks(prod(D.shape)), 256, np.uint64(D.pointer), *tables,
        np.int64(D.count), *(np.int64(n) for n in (*D.shape[-2:], D.strides[-2], *steps)), real(0), real(beta),
        np.uint64(scheme.nan_code(spec)), np.int32(scheme.rounds_once and bool(np.isfinite(beta))), wait=False,
    )  # fmt: skip


# --- memory
def _on_gpu(taken: Any, checked: Any) -> Matrix:
    """An operand on the GPU: where it is, if it is there and of the right dtype."""
    return taken if isinstance(taken, Matrix) and taken.dtype == checked.dtype else matrices.upload(checked)


def _room_for(
    there_out: Any, out: Any, like: Any, shape: tuple[int, ...], dtype: Any, there: bool, operands: tuple[Any, ...]
) -> tuple[Matrix, Any]:
    if there_out is None:
        return matrices.like(like, shape, dtype) if there else (matrices.empty(shape, dtype), None)
    if not there or there_out.dtype != dtype or there_out.shape != shape or there_out.strides[-1] != 1:
        raise InputError(f"out must be an array on the GPU of shape {shape} and dtype {dtype} whose last axis is "
                         "contiguous")  # fmt: skip
    for X, who in zip(operands, "ABC", strict=True):
        if X is not None and matrices.overlap(X, there_out):
            raise InputError(f"out shares memory with {who}: give it memory of its own")
    return there_out, out


def _returned(D: Any, A: Any) -> Any:
    """A NumPy result as the caller's kind: a tensor for a torch tensor of the CPU's."""
    return matrices.as_torch(D) if matrices.is_torch(A) else D


def _with_memory(compute: Callable[[], Any], call: Any, shape: tuple[int, ...]) -> Any:
    """The result; where memory is too little for it, once more after what is only kept for later has gone."""
    for last in (False, True):
        try:
            return compute()
        except Exception as problem:
            if "OUT_OF_MEMORY" not in str(problem) and "OutOfMemory" not in type(problem).__name__:
                raise
            if last:
                M, N = shape[-2:]
                raise GpuError(
                    f"out of memory: about {_needed(call, shape) / 1e9:.2f} GB are needed for A, B, D and their words, "
                    f"{callers.free_bytes() / 1e9:.2f} GB are free: lower the batch ({prod(shape[:-2])}), "
                    f"M ({M}) or N ({N})"
                ) from None
        find.cache_clear()  # with the buffers that kernels keep
        callers.give_way()
    raise AssertionError


def _needed(call: Any, shape: tuple[int, ...]) -> int:
    from fpemu.schemes.base import SplitScheme

    A, B = call.arguments["A"], call.arguments["B"]
    words = 0
    if isinstance(call.scheme, SplitScheme):
        words = sum(rule.format.code_dtype.itemsize for rule in call.scheme.rules())
    return int((A.size + B.size) * (call.scheme.operand.dtype.itemsize + words)) + 8 * prod(shape)
