"""`fpemu.gpu.gemm`: any scheme on the GPU at hand, with the bits of `fpemu.gemm`; its run, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.gpu.gemm.call import check_out, checked, direct
from fpemu.gpu.gemm.choice import architecture, find, kernel, refuse_hardware
from fpemu.gpu.gemm.kernel import Kernel, Prepared
from fpemu.gpu.runtime import callers, device, matrices
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.matrices import Matrix

if TYPE_CHECKING:
    from fpemu.mma import KOrder
    from fpemu.mma.tree import OrderResult
    from fpemu.schemes import Scheme

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
    on_range: str = "raise",
    order: KOrder | OrderResult | None = None,
    out: Any = None,
    **options: Any,
) -> Any:
    """Return D = alpha · (A B by a scheme) + beta · C, computed on the GPU at hand.

    The same bits as ``fpemu.gemm(A, B, **fpemu.gpu.gemm.kernel(scheme, M, N, K).arguments)``, which emulates the GPU.

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
        Summation order over K. Default: the kernel's, which `fpemu.gpu.gemm.kernel` returns. Another order is accepted if a
        kernel has it.
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
    from fpemu.mma.tree import order_of

    refuse_hardware(options)
    order = order_of(order, trees=False)
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | {who: X for who, X in (("C", C), ("out", out)) if X is not None}
    with _lock, device.entered(), callers.ordered(callers.streams(given.values())):
        taken, there, call = _with_memory(
            lambda: _taken(given, (scheme, alpha, beta, on_range, order, options)), _no_copy
        )
        c = call.arguments["C"]
        shape = call.shape if c is None else np.broadcast_shapes(call.shape, c.shape)
        if "out" in taken:
            check_out(taken, shape, call.scheme.operand.dtype)
        if call.empty and not there:
            return _returned(call.finish(None), A)
        D = _with_memory(
            lambda: _computed(taken, call, shape, there, given, order), lambda p: _too_little(p, call, shape)
        )
        if there and callers.must_synchronize(given.values()):
            device.synchronize()
        return D if there else _returned(D, A)


def release() -> None:
    """Release the memory that is kept between calls.

    It may be several times that of the largest operands. A call for which memory is too little does it by itself.
    """
    from fpemu.gpu.errorfree import gemm as errorfree

    with _lock:
        find.cache_clear()
        matrices.forget()
        if errorfree.workspace.cache_info().currsize:
            errorfree.workspace().free()


# --- the run
def _taken(given: dict[str, Any], asked: tuple[Any, ...]) -> tuple[dict[str, Any], bool, Any]:
    """The arguments as matrices, whether they are on the GPU, and the call, checked."""
    taken = {who: matrices.take(X, who, write=who == "out") for who, X in given.items()}
    return taken, matrices.same_place(taken), checked(taken, *asked)


def _computed(
    taken: dict[str, Any], call: Any, shape: tuple[int, ...], there: bool, given: dict[str, Any], order: Any
) -> Any:
    """The result: of the kind that A is on the GPU, else a NumPy array."""
    from fpemu.schemes.errorfree.base import ErrorFree

    chosen, spec, alpha, beta = (call.scheme, *(call.arguments[name] for name in ("spec", "alpha", "beta")))
    operands = {
        who: _on_gpu(taken[who], call, who)
        for who in "ABC"
        if call.arguments[who] is not None and (who == "C" or not call.empty)
    }
    a, b, c = (operands.get(who) for who in "ABC")
    if "out" in taken:
        D, made = taken["out"], given["out"]
    elif there:
        D, made = matrices.like(given["A"], shape, chosen.operand.dtype)
    else:
        D, made = matrices.empty(shape, chosen.operand.dtype), None
    if a is None or b is None:
        _alone(D, c, beta, chosen, spec)
    elif isinstance(chosen, ErrorFree):
        own = D if "out" not in taken else matrices.empty(shape, D.dtype)  # nobody sees what breaks a condition
        _errorfree(a, b, c, own, alpha, beta, chosen, spec, order)
        if own is not D:
            matrices.copy(own, D)
    else:
        found = find(chosen, spec, (*shape[-2:], a.shape[-1]), order)
        _run(found, a, b, c, D, alpha, beta, call.on_range, mine="out" not in taken)
    return made if there else matrices.download(D)


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
    from fpemu.gpu.gemm import patching

    a, b = found.both(A, B, on_range)
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
            raise GpuError(
                f"{found.name}: {wild} entries of {x.who} were found NaN or infinite, {beyond} beyond their "
                "words, on the GPU alone"
            )


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
        np.uint64(scheme.nan_code(spec)),
        np.int32(scheme.rounds_once and bool(np.isfinite(beta))),
        wait=False,
    )


# --- memory
def _on_gpu(taken: Any, call: Any, who: str) -> Matrix:
    """An operand on the GPU: where it is, if it is there and of a dtype that kernels read."""
    if isinstance(taken, Matrix) and direct(taken.dtype, call.scheme):
        return taken
    return matrices.upload(call.arguments[who])


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


def _too_little(problem: BaseException, call: Any, shape: tuple[int, ...]) -> GpuError:
    """What was asked for, what is free, and what to lower."""
    from fpemu.schemes.errorfree.base import ErrorFree

    if isinstance(call.scheme, ErrorFree) and isinstance(problem, GpuError):  # which says it itself
        return problem
    one = problem.nbytes if isinstance(problem, OutOfMemoryError) else 0
    piece = f", {one / 1e9:.2f} GB of it in one piece" if one else ""
    needed, (M, N) = max(_needed(call, shape), one), shape[-2:]
    return GpuError(
        f"out of memory: A, B, D and their words take {needed / 1e9:.2f} GB or more{piece}, and "
        f"{callers.free_bytes() / 1e9:.2f} GB are free: lower the batch ({prod(shape[:-2])}), M ({M}) or N ({N})"
    )


def _needed(call: Any, shape: tuple[int, ...]) -> int:
    from fpemu.schemes.base import SplitScheme

    A, B = call.arguments["A"], call.arguments["B"]
    words = 0
    if isinstance(call.scheme, SplitScheme):
        words = sum(rule.format.code_dtype.itemsize for rule in call.scheme.rules())
    return int((A.size + B.size) * (call.scheme.operand.dtype.itemsize + words)) + 8 * prod(shape)
