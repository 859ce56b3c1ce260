"""The value of a specification: the emulated product and its epilogue, D = alpha A B + beta C."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, schemes, simt
from fpemu.arrays import _float64
from fpemu.conformance.specification import Specification
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, tree
from fpemu.mma.device import Backend, Device
from fpemu.mma.gemm import _chain
from fpemu.probing.callables import bits
from fpemu.rounding import Rounding, _round_to

Array = NDArray[Any]
EPILOGUES = {
    "separate": "t = round(alpha T), D = round(t + round(beta C))",
    "fma": "D = fma(alpha, T, round(beta C))",
    "fma-c": "D = fma(beta, C, round(alpha T))",
    "first": "C starts the accumulator",
    "alpha-last": "D = round(alpha round(T + round(beta C)))",
    "alpha-on-A": "A is multiplied by alpha, in its own format, before the product",
    "half": "T is rounded to fp16, then alpha, beta and C enter in fp16",
    "rounded": "T is rounded to the format of D, then alpha, beta and C enter",
    "double": "alpha, beta and C enter in fp64, one rounding at the end",
    "no-alpha": "alpha is left out",
    "no-beta": "C is left out",
    "beta-1": "C is added without beta",
}
"""How alpha, beta and C enter a product T = A B in libraries and kernels."""


def evaluate(
    specification: Specification,
    A: Array,
    B: Array,
    C: Array | None = None,
    rows: Any = None,
    columns: Any = None,
    device: Device = "cpu",
    backend: Backend = "compiled",
) -> Array:
    """The specified D, or its given rows and columns, in the dtype of its format.

    A and B are values of the instruction's formats after `Specification.inputs`, and C of the accumulator's.

    Raises
    ------
    InputError
        Operands that a scheme does not admit.
    """
    s = specification
    if s.place == "BA":
        A, B = B, A
    A, B = (A.T if s.place[1] == "'" else A), (B.T if s.place in ("AB'", "A'B'") else B)
    A, B = A[:, : s.length], B[: s.length]
    rows, columns = (slice(None) if x is None else x for x in (rows, columns))
    transposed = s.place == "(AB)'"
    A, B = A[columns if transposed else rows], B[:, rows if transposed else columns]
    if s.inputs is not None:
        A, B = (_rounded(x, *s.inputs) for x in (A, B))
    if s.flush == "inputs":
        A, B = (_flushed(x, s.inputs[0] if s.inputs else s.operand) for x in (A, B))
    if C is not None:
        C = C[rows][:, columns].T if transposed else C[rows][:, columns]  # the transpose is that of A B alone
    with np.errstate(all="ignore"):
        D = _with_epilogue(s, A, B, C, device, backend)
        D = D.T if transposed else D
        if s.relu:
            D = np.where(D > 0, D, D.dtype.type(0))
        if s.is_integer:
            return np.asarray(D)
        dtype = formats.get(s.out).dtype
        if s.out != s.accumulator or s.rounding != "RNE" or D.dtype != dtype:  # some epilogues are in another format
            D = _rounded(D, s.out, s.rounding).astype(dtype)
        if s.flush == "result":
            D = _flushed(D, s.out)
    D = np.ascontiguousarray(D)
    if s.nan is not None:
        bits(D)[np.isnan(D)] = s.nan
    return D


def _product(s: Specification, A: Array, B: Array, C: Array | None, device: Device, backend: Backend) -> Array:
    """T = A B, with C in the accumulator of a plain product."""
    order: Any = s.order
    if s.scheme is not None:
        policy: Any = s.on_range
        return schemes.gemm(A, B, scheme=s.scheme, hardware=s.spec, order=order, on_range=policy, device=device)
    assert s.spec is not None
    if (s.join or s.stored) and isinstance(order, KOrder) and order.split is not None:
        sums = tree.from_order(order, A.shape[-1], s.spec)
        order = tree.Sum(sums.parts, s.join, s.stored) if isinstance(sums, tree.Sum) else sums
    return _chain([(A, B)], C, s.spec, order, None, backend, device)


def _with_epilogue(s: Specification, A: Array, B: Array, C: Array | None, device: Device, backend: Backend) -> Array:
    """alpha A B + beta C before the conversion to `out`."""
    if s.is_integer:
        return _product(s, A, B, None if C is None else C.astype(np.int32), device, backend)
    kind = s.epilogue
    if s.scheme is not None and kind == "separate":  # some schemes round the scaled sum only once
        factors: dict[str, Any] = {"alpha": s.alpha, "beta": s.beta, "order": s.order, "on_range": s.on_range}
        return schemes.gemm(A, B, C, scheme=s.scheme, hardware=s.spec, device=device, **factors)
    if kind == "alpha-on-A":
        A = _rounded(A.astype(np.float64) * s.alpha, s.operand)
    if kind == "first":
        if s.scheme is not None or C is None or s.alpha != 1:
            raise InputError("C can start the accumulator of a plain product with alpha = 1")
        return _product(s, A, B, _rounded(s.beta * C.astype(np.float64), s.accumulator), device, backend)
    T = _product(s, A, B, None, device, backend)
    if kind in ("half", "rounded"):
        T = _rounded(T, "fp16" if kind == "half" else s.out)
    if kind == "half":
        T = T.astype(np.float16)
    elif T.dtype == np.float16:
        T = T.astype(np.float32)  # the epilogue of an fp16 accumulator is in fp32
    number = T.dtype.type
    alpha = number(1 if kind in ("no-alpha", "alpha-on-A") else s.alpha)
    beta = number(1 if kind == "beta-1" else s.beta)
    c = None if C is None or kind == "no-beta" else C.astype(number)
    return np.asarray(_combined(kind, T, c, alpha, beta))


def _combined(kind: str, T: Array, c: Array | None, alpha: Any, beta: Any) -> Any:
    if kind == "double":
        wide = alpha.astype(np.float64) * T.astype(np.float64)
        return (wide if c is None else wide + beta.astype(np.float64) * c.astype(np.float64)).astype(T.dtype)
    if c is None:
        return T if alpha == 1 else alpha * T
    fmt = {2: "fp16", 4: "fp32", 8: "fp64"}[T.dtype.itemsize]
    if kind == "fma":
        return simt.fma(alpha, T, beta * c, fmt)
    if kind == "fma-c":
        return simt.fma(beta, c, alpha * T, fmt)
    if kind == "alpha-last":
        return alpha * (T + beta * c)
    return (T if alpha == 1 else alpha * T) + beta * c


def _rounded(x: Array, fmt: FloatFormat | str, mode: str = "RNE") -> Array:
    return _round_to(_float64(x, "x"), formats.get(fmt), Rounding[mode])


def _flushed(x: Array, fmt: FloatFormat | str) -> Array:
    return np.where(np.abs(x) < formats.get(fmt).min_normal, np.copysign(x.dtype.type(0), x), x)
