"""How alpha, beta and C enter a product: the ways that libraries and kernels have for D = alpha A B + beta C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.errors import InputError
from fpemu.mma._device import Device
from fpemu.rounding import round_to

if TYPE_CHECKING:
    from fpemu.conformance.claim import Claim

Array = NDArray[Any]
KINDS = {
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
Product = Callable[[Array, Array, Array | None], Array]


def apply(claim: Claim, product: Product, A: Array, B: Array, C: Array | None, device: Device = "cpu") -> Array:
    """D before its conversion to `claim.out`.

    Parameters
    ----------
    product : callable (A, B, C) -> T
        The product, with C in the accumulator where there is one.
    """
    if claim.spec is not None and claim.spec.is_integer and claim.scheme is None:
        return product(A, B, None if C is None else C.astype(np.int32))
    kind = claim.epilogue
    if claim.scheme is not None and kind == "separate":
        return _once(claim, A, B, C, device)
    if kind == "alpha-on-A":
        A = np.asarray(round_to(A.astype(np.float64) * claim.alpha, claim.operand))
    if kind == "first":
        if claim.scheme is not None or C is None or claim.alpha != 1:
            raise InputError("C can start the accumulator of a plain product with alpha = 1")
        own = claim.spec.d_format if claim.spec is not None else "fp32"
        return product(A, B, np.asarray(round_to(claim.beta * C.astype(np.float64), str(own))))
    T = product(A, B, None)
    if kind in ("half", "rounded"):
        T = np.asarray(round_to(T, "fp16" if kind == "half" else claim.out))
    number = T.dtype.type
    if kind == "half":
        number = np.float16
        T = T.astype(number)
    elif number is np.float16:
        number = np.float32  # the epilogue of an fp16 accumulator is in fp32
        T = T.astype(number)
    alpha, beta = number(claim.alpha), number(claim.beta)
    if kind in ("no-alpha", "alpha-on-A"):
        alpha = number(1)
    if kind == "beta-1":
        beta = number(1)
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


def _once(claim: Claim, A: Array, B: Array, C: Array | None, device: Device) -> Array:
    """A scheme takes alpha, beta and C itself: some round only once."""
    from fpemu import schemes

    assert claim.scheme is not None
    order: Any = claim.order
    return schemes.gemm(
        A,
        B,
        C,
        scheme=claim.scheme,
        hardware=claim.spec,
        alpha=claim.alpha,
        beta=claim.beta,
        order=order,
        on_range=claim.on_range,
        device=device,
    )
