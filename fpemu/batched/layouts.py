"""Half-complex arrays: float16 with one additional axis, interleaved or planar, and conversions of NumPy's complex.

interleaved   (..., M, N, 2): the real and the imaginary part of an element are adjacent, CUDA's ``half2``
planar        (2, ..., M, N): all real parts, then all imaginary parts
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import as_array, choice
from fpemu.errors import InputError, entries
from fpemu.formats import FP16
from fpemu.mma.gemm import as_values

Layout = Literal["interleaved", "planar"]
LAYOUTS = {"interleaved": -1, "planar": 0}
"""Each layout with the axis of the two parts."""


def interleaved(z: Any) -> NDArray[np.float16]:
    """Convert complex numbers to half-complex in the interleaved layout, each part rounded to nearest even.

    Parameters
    ----------
    z : array_like (...)
        Complex or real numbers.

    Returns
    -------
    float16 array (..., 2)
        Real and imaginary parts along the last axis.

    Raises
    ------
    InputError
        Not an array of numbers, or finite parts beyond fp16's range.

    Examples
    --------
    >>> interleaved([[1 + 2j, 3]]).tolist()
    [[[1.0, 2.0], [3.0, 0.0]]]
    """
    return _packed(z, "interleaved")


def planar(z: Any) -> NDArray[np.float16]:
    """Convert complex numbers to half-complex in the planar layout, each part rounded to nearest even.

    Parameters
    ----------
    z : array_like (...)
        Complex or real numbers.

    Returns
    -------
    float16 array (2, ...)
        Real and imaginary parts along the first axis.

    Raises
    ------
    InputError
        Not an array of numbers, or finite parts beyond fp16's range.

    Examples
    --------
    >>> planar([[1 + 2j, 3]]).tolist()
    [[[1.0, 3.0]], [[2.0, 0.0]]]
    """
    return _packed(z, "planar")


def as_complex(x: Any, layout: Layout = "interleaved") -> NDArray[np.complex64]:
    """Convert half-complex numbers to complex64, exactly.

    Parameters
    ----------
    x : array_like (..., 2) interleaved, or (2, ...) planar
        Real and imaginary parts, values of fp16.
    layout : {"interleaved", "planar"}
        Layout of ``x``.

    Returns
    -------
    complex64 array (...)
        The same numbers.

    Raises
    ------
    InputError
        Unknown layout, no axis of two parts, values that are not of fp16.

    Examples
    --------
    >>> as_complex(planar([[1 + 2j, 3]]), "planar").tolist()
    [[(1+2j), (3+0j)]]
    """
    real, imaginary = parts(x, layout, "x")
    z = np.empty(real.shape, np.complex64)
    z.real, z.imag = real, imaginary
    return z


def parts(x: Any, layout: str, name: str, *, read: bool = True) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Return the real and the imaginary part of a half-complex array, as views."""
    axis = axis_of(layout)
    a = halves(x, name, read=read)
    if a.ndim < 1 or a.shape[axis] != 2:
        where = "last" if axis else "first"
        raise InputError(
            f"{name} of shape {a.shape} is not {layout}: its {where} axis must hold the two parts, so have length 2"
        )
    return (a[..., 0], a[..., 1]) if axis else (a[0], a[1])


def joined(pair: tuple[NDArray[Any], NDArray[Any]], layout: str) -> NDArray[np.float16]:
    """Return two parts in fp16 as one half-complex array."""
    return np.ascontiguousarray(np.stack(pair, axis=axis_of(layout)))


def halves(x: Any, name: str, *, read: bool = True) -> NDArray[np.float16]:
    """Return values of fp16 as float16; zeros of the same shape unless `read`."""
    if getattr(getattr(x, "dtype", None), "kind", None) == "c":
        raise InputError(
            f"{name} has dtype {x.dtype}: half-complex matrices are float16 with one axis more "
            "(fpemu.batched.interleaved and planar make them, hcgemm multiplies them)"
        )
    if not read and (a := as_array(x, name)).dtype != np.float16:
        return np.zeros(a.shape, np.float16)
    return as_values(x, FP16, name).astype(np.float16, copy=False)


def axis_of(layout: str) -> int:
    """Return the axis of the two parts."""
    return LAYOUTS[choice("layout", layout, LAYOUTS)]


def complex_parts(z: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the real and the imaginary part of an array of complex or real numbers, in its own precision."""
    a = as_array(z, name, complex_numbers=True)
    return (a.real, a.imag) if a.dtype.kind == "c" else (a, np.zeros(a.shape, a.dtype))


def _packed(z: Any, layout: str) -> NDArray[np.float16]:
    pair = complex_parts(z, "z")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = pair[0].astype(np.float16), pair[1].astype(np.float16)
    for name, wide, half in zip(("real", "imaginary"), pair, rounded, strict=True):
        overflow = np.isinf(half) & np.isfinite(wide)
        if overflow.any():
            raise InputError(f"the {name} part of z is beyond fp16's range, {FP16.max}: {entries(overflow, wide)}")
    return joined(rounded, layout)
