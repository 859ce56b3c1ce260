"""The post-processing of section 5.6: alpha, beta and C, and the rounding to fp16.

The sums T of a product are in the accumulator's format P. Every operation is rounded to P once, to nearest even:

    beta != 0    D = RN16(RN_P(RN_P(alpha T) + RN_P(beta C)))
    beta  = 0    D = RN16(RN_P(alpha T)); C is not read

with the fp16 matrix C converted to P exactly, and alpha and beta rounded to P. The multiplication by alpha and the
addition are two operations, as the paper says, not one fused multiply-add. alpha = 0 is no special case: 0 · Inf is
NaN.

Complex alpha and beta: each of the four products and each of the sums is one operation,

    alpha T = (RN(RN(ar Tr) - RN(ai Ti)), RN(RN(ar Ti) + RN(ai Tr))),

and a number without imaginary part scales both parts by its real part alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.schemes.base import scalar

Array = NDArray[Any]
Pair = tuple[Array, Array]


def complex_scalar(value: Any, name: str, fmt: FloatFormat) -> tuple[Any, Any]:
    """The two parts of alpha or beta in the accumulator's format."""
    if isinstance(value, complex | np.complexfloating) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind == "c"
    ):
        return scalar(float(value.real), f"{name}.real", fmt), scalar(float(value.imag), f"{name}.imag", fmt)
    return scalar(value, name, fmt), fmt.dtype.type(0)


def needs_c(C: Any, beta: Any, shape: tuple[int, ...]) -> None:
    """Raise InputError for a non-zero beta without C."""
    if C is None and beta != 0:
        raise InputError(f"beta = {beta} needs C, a matrix of shape {shape}")


def scaled(T: Array, C: Array | None, alpha: Any, beta: Any) -> Array:
    """alpha T + beta C in T's format; C is fp16 and None where it is not read."""
    with np.errstate(all="ignore"):
        t = alpha * T
        return np.asarray(t if C is None else t + beta * C.astype(T.dtype))


def scaled_pair(T: Pair, C: Pair | None, alpha: tuple[Any, Any], beta: tuple[Any, Any]) -> Pair:
    """The same for complex numbers."""
    with np.errstate(all="ignore"):
        t = _times(alpha, T)
        if C is None:
            return t
        c = _times(beta, (C[0].astype(T[0].dtype), C[1].astype(T[1].dtype)))
        return np.asarray(t[0] + c[0]), np.asarray(t[1] + c[1])


def half(x: Array, nan_code: int) -> NDArray[np.float16]:
    """Rounded to fp16 to nearest even, every NaN with the pattern of the hardware."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        d = np.array(x, dtype=np.float16)
    nan = np.isnan(d)
    if nan.any():
        d.view(np.uint16)[nan] = nan_code
    return d


def _times(number: tuple[Any, Any], x: Pair) -> Pair:
    real, imaginary = number
    if imaginary == 0:
        return real * x[0], real * x[1]
    return real * x[0] - imaginary * x[1], real * x[1] + imaginary * x[0]
