"""What is asked of `fpemu.gpu.gemm`, checked as `fpemu.gemm` checks it, on arrays that lie on the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.gemm.choice import architecture, need_a_gpu, rehearse
from fpemu.gpu.runtime import matrices
from fpemu.gpu.runtime.matrices import Matrix

if TYPE_CHECKING:
    from fpemu.schemes import Scheme


def checked(
    taken: dict[str, Any],
    scheme: str | Scheme,
    alpha: Any,
    beta: Any,
    on_range: str,
    order: Any,
    options: dict[str, Any],
) -> Any:
    """The call as `fpemu.gemm` checks it: with zeros in place of arrays on the GPU that have the operands' dtype."""
    on_gpu = {who: (X.shape, X.dtype) for who, X in taken.items() if isinstance(X, Matrix) and who in "ABC"}
    if len(on_gpu) < len({*taken} - {"out"}):
        return _call({who: taken.get(who) for who in "ABC"}, scheme, alpha, beta, on_range, order, options)
    typed = tuple((name, type(value), value) for name, value in options.items())  # 64.0 is refused where 64 is not
    told = (tuple(on_gpu.items()), scheme, (type(alpha), alpha), (type(beta), beta), on_range, order, typed)
    try:
        call = _call_like(*told)
    except TypeError:  # something that is not hashable, and so will be refused, or is a list of products
        call = _call_like.__wrapped__(*told)
    read = {"A": call.arguments["alpha"] != 0, "B": call.arguments["alpha"] != 0, "C": call.arguments["beta"] != 0}
    odd = [who for who, (_, dtype) in on_gpu.items() if read[who] and not direct(dtype, call.scheme)]
    if not odd:
        return call
    zeros = {who: _zeros(shape, dtype, call.scheme) for who, (shape, dtype) in on_gpu.items()}
    given = zeros | {who: matrices.download(taken[who]) for who in odd}
    return _call(given, scheme, alpha, beta, on_range, order, options)


@lru_cache(maxsize=256)
def _call_like(
    kinds: tuple[Any, ...],
    scheme: str | Scheme,
    alpha: Any,
    beta: Any,
    on_range: str,
    order: Any,
    options: tuple[tuple[str, type, Any], ...],
) -> Any:
    """The call with zeros of some shapes and dtypes; checking takes longer than a small product."""
    from fpemu import schemes

    given = {name: value for name, _, value in options}
    zeros = {who: _zeros(shape, dtype, schemes.build(scheme, given)) for who, (shape, dtype) in kinds}
    return _call(zeros, scheme, alpha[1], beta[1], on_range, order, given)


def _call(
    operands: dict[str, Any],
    scheme: str | Scheme,
    alpha: Any,
    beta: Any,
    on_range: str,
    order: Any,
    options: dict[str, Any],
) -> Any:
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


def _zeros(shape: tuple[int, ...], dtype: Any, scheme: Scheme) -> Any:
    """Zeros in one entry's memory: of the scheme's own dtype where another one would be converted to it in full."""
    number = dtype.kind in "fiu" and dtype.itemsize <= 8
    return np.broadcast_to(np.zeros((), scheme.operand.dtype if number else dtype), shape)


def check_out(taken: dict[str, Any], shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse an `out` that the result does not fit, or that is not its alone."""
    out = taken["out"]
    if not isinstance(out, Matrix) or out.dtype != dtype or out.shape != shape:
        fits = False
    else:
        fits = 0 in shape or ((out.strides[-1] == 1 or shape[-1] == 1) and matrices.apart(out))
    if not fits:
        raise InputError(
            f"out must be an array on the GPU of shape {shape} and dtype {dtype} whose last axis is "
            "contiguous, every entry with a place of its own"
        )
    for who, X in taken.items():
        if who != "out" and isinstance(X, Matrix) and matrices.overlap(X, out):
            raise InputError(f"out shares memory with {who}: give it memory of its own")


def direct(dtype: Any, scheme: Scheme) -> bool:
    """Whether kernels read numbers of this dtype: the scheme's own, and the Ozaki family fp32 too."""
    from fpemu.schemes.errorfree.base import ErrorFree

    return bool(dtype == scheme.operand.dtype or (dtype == np.float32 and isinstance(scheme, ErrorFree)))
