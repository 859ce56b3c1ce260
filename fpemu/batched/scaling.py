"""The post-processing of section 5.6: alpha, beta and C, and the rounding to fp16.

The sums T of a product are in the accumulator's format P. Every operation is rounded to P once, to nearest even:

    beta != 0    D = RN16(RN_P(RN_P(alpha T) + RN_P(beta C)))
    beta  = 0    D = RN16(RN_P(alpha T)); C is not read

with the fp16 matrix C converted to P exactly, and alpha and beta rounded to P. The multiplication by alpha and the
addition are two operations, as the paper says, not one fused multiply-add. alpha = 0 is no special case: 0 · Inf is
NaN.

Complex alpha and beta: as in `fpemu.schemes.complex_products`, each product and each sum one operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError

Array = NDArray[Any]


def needs_c(C: Any, beta: Any, shape: tuple[int, ...]) -> None:
    """Raise InputError for a non-zero beta without C."""
    if C is None and beta != 0:
        raise InputError(f"beta = {beta} needs C, a matrix of shape {shape}")


def scaled(T: Array, C: Array | None, alpha: Any, beta: Any) -> Array:
    """alpha T + beta C in T's format; C is fp16 and None where it is not read."""
    with np.errstate(all="ignore"):
        t = alpha * T
        return np.asarray(t if C is None else t + beta * C.astype(T.dtype))


def half(x: Array, nan_code: int) -> NDArray[np.float16]:
    """Rounded to fp16 to nearest even, every NaN with the pattern of the hardware."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        d = np.array(x, dtype=np.float16)
    nan = np.isnan(d)
    if nan.any():
        d.view(np.uint16)[nan] = nan_code
    return d
