"""Conversion of array arguments without a change of value: any real dtype to float64 and back, NaN payloads kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError, entries, shown


def as_array(x: Any, name: str, *, complex_numbers: bool = False) -> NDArray[Any]:
    """Return ``x`` as an array of numbers in the machine's byte order.

    A subclass such as np.matrix becomes a plain array, and so does a masked array without masked entries.

    Raises
    ------
    InputError
        For masked entries, ragged lists, structured or raw bytes, objects, text, dates, truth values, and complex
        numbers unless ``complex_numbers``.
    """
    if type(x) is not np.ndarray:
        refuse_masked(x, name)
    try:
        a = np.asarray(x)
        number = a.dtype.kind in "fiu" or (
            a.dtype.kind == "V" and a.dtype.names is None and a.dtype.type is not np.void
        )
    except Exception as problem:  # an object's __array__ may raise anything
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(f"{name} is no array: {reason}") from None
    if complex_numbers and a.dtype.kind == "c" and a.dtype.itemsize <= 16:
        return a
    if not number or a.dtype.itemsize > 8:
        given = f"{a.dtype} of shape {a.shape}" if a.shape else f"{shown(x)} ({a.dtype})"
        raise InputError(f"{name} takes real{' or complex' * complex_numbers} numbers of at most 64 bits, not {given}")
    return a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("="))


def refuse_masked(x: Any, name: str) -> None:
    """Raise InputError for masked entries, also within lists: NumPy would read the values under the mask."""
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.is_masked(x):
            raise InputError(
                f"{name}: masked entries have no value: {entries(np.ma.getmaskarray(x), x.data)}; fill them, "
                f"as {name}.filled(0)"
            )
    elif isinstance(x, list | tuple):
        for entry in x:
            if isinstance(entry, np.ma.MaskedArray | list | tuple):
                refuse_masked(entry, name)


def as_float64(x: Any, name: str) -> NDArray[np.float64]:
    """Return ``x`` as float64 with the same values and NaN payloads; refuse integers that float64 does not hold."""
    return _float64(as_array(x, name), name)


def _float64(a: NDArray[Any], name: str) -> NDArray[np.float64]:
    """`as_float64` for an array that `as_array` returned."""
    if a.dtype.kind in "iu":
        wide = a.astype(np.float64)
        limit = 2.0 ** (8 * a.dtype.itemsize - (a.dtype.kind == "i"))
        fits = (wide < limit) & (wide >= -limit)
        bad = (
            ~fits | (np.where(fits, wide, 0).astype(a.dtype) != a) if a.dtype.itemsize == 8 else np.zeros(a.shape, bool)
        )
        if bad.any():
            raise InputError(f"{name}: integers that float64 cannot hold: {entries(bad, a)}")
        return wide
    if a.dtype == np.float64:
        return np.ascontiguousarray(a).reshape(a.shape)
    return widen(a)


def widen(a: NDArray[Any]) -> NDArray[np.float64]:
    """Convert to float64 with the payloads of NaN (a cast would make a signalling NaN quiet)."""
    with np.errstate(invalid="ignore"):
        wide = np.array(a.astype(np.float64), dtype=np.float64, ndmin=0)
    nan = np.isnan(wide)
    if nan.any() and a.dtype in (np.float16, np.float32):
        width, f = (16, 10) if a.dtype == np.float16 else (32, 23)
        raw = np.ascontiguousarray(a).reshape(a.shape).view(f"u{width // 8}").astype(np.uint64)
        pattern = ((raw >> np.uint64(width - 1)) << np.uint64(63)) | np.uint64(0x7FF << 52)
        pattern |= (raw & np.uint64((1 << f) - 1)) << np.uint64(52 - f)
        wide = np.where(nan, pattern, wide.view(np.uint64)).view(np.float64)
    return wide


def narrow(pattern: NDArray[np.uint64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert float64 patterns, whose values ``dtype`` holds exactly, to ``dtype`` with the payloads of NaN."""
    wide = np.ascontiguousarray(pattern).reshape(pattern.shape).view(np.float64)
    if dtype == np.float64:
        return wide
    with np.errstate(invalid="ignore", over="ignore"):
        narrow = wide.astype(dtype)
    nan = np.isnan(wide)
    if nan.any():
        width, f, top = (16, 10, 0x1F) if dtype == np.float16 else (32, 23, 0xFF)
        raw = ((pattern >> np.uint64(63)) << np.uint64(width - 1)) | np.uint64(top << f)
        raw |= (pattern & np.uint64((1 << 52) - 1)) >> np.uint64(52 - f)
        code = f"u{width // 8}"
        narrow = np.where(nan, raw.astype(code), narrow.view(code)).view(dtype)
    return narrow


def product_shape(A: NDArray[Any], B: NDArray[Any], names: tuple[str, str] = ("A", "B")) -> tuple[int, ...]:
    """Return the shape (..., M, N) of A (..., M, K) times B (..., K, N), leading axes broadcast; names: for errors."""
    a, b = names
    if A.shape[-1] != B.shape[-2]:
        raise InputError(
            f"{a} of shape {A.shape} and {b} of shape {B.shape} do not share K (columns of {a}, rows of {b})"
        )
    try:
        lead = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    except ValueError:
        raise InputError(f"leading axes of {a} {A.shape} and {b} {B.shape} do not broadcast") from None
    return (*lead, A.shape[-2], B.shape[-1])
