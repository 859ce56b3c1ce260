"""Codes (bit patterns) of operands and results in the formats of an `MmaSpec`: floating-point formats and integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat


def code_dtype(fmt: FloatFormat | str) -> np.dtype[Any]:
    """Return the unsigned integer type that holds a format's codes; "int8" and "int32" are formats too."""
    return np.dtype(f"u{np.dtype(fmt).itemsize}") if isinstance(fmt, str) else fmt.code_dtype


def values(codes: NDArray[Any], fmt: FloatFormat | str) -> NDArray[Any]:
    """Return the operand of `fpemu.mma.execute` with these codes, payloads of NaN and tf32's ignored bits kept."""
    codes = np.ascontiguousarray(codes)
    if isinstance(fmt, str):
        return codes.view(fmt)
    if fmt.code_dtype == fmt.dtype.str.replace("f", "u"):
        return codes.view(fmt.dtype)  # decoding would clear the bits that tf32 ignores
    if fmt.width == 16:
        return np.asarray(fmt.decode(codes))
    return np.asarray(fmt.decode(np.arange(1 << fmt.width, dtype=fmt.code_dtype)))[codes]


def codes(x: NDArray[Any], fmt: FloatFormat | str) -> NDArray[Any]:
    """Return the codes of a result of `fpemu.mma.execute`."""
    return np.ascontiguousarray(x).view(code_dtype(fmt))
