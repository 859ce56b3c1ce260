"""From a caller's arrays to the carriers of a chain: checks, broadcasting, and the gathering of K.

Carriers hold the values of a format exactly: float32 for formats of at most 24 bits, float64 for fp64, int8 and int32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.arrays import as_array, product_shape
from fpemu.errors import InputError, entries
from fpemu.formats import FP16, FP32, FP64, TF32, FloatFormat
from fpemu.mma.order import Run

_CHUNK = 2**18  # entries checked at a time: their temporaries are float64


def as_values(x: Any, fmt: FloatFormat | str, name: str) -> NDArray[Any]:
    """Return ``x`` as an array of values of ``fmt``, without a copy if it has the format's dtype.

    Raises
    ------
    InputError
        Not an array of numbers, or entries that are not values of ``fmt``.
    """
    a = as_array(x, name)
    if isinstance(fmt, str):
        if a.dtype.kind not in "iu":
            raise InputError(f"{name} has dtype {a.dtype}: the instruction takes {fmt}")
        converted = a.astype(fmt)
        if (bad := a != converted).any():
            raise InputError(f"{name} has entries that {fmt} does not hold: {entries(bad, a)}")
        return converted.astype(fmt, copy=False)
    native = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}.get(a.dtype)
    if native == fmt or (native == FP32 and fmt == TF32):  # `carry` drops the low 13 bits, as the hardware does
        return a
    good = np.ones(a.shape, bool)
    rows = max(_CHUNK * len(a) // max(a.size, 1), 1) if a.ndim else 1
    for i in range(0, len(a) if a.ndim else 1, rows):
        chunk = slice(i, i + rows) if a.ndim else ()
        good[chunk] = fmt.contains(a[chunk])
    if not good.all():
        raise InputError(
            f"{name} has entries that are not values of {fmt} (fpemu.round_to rounds them): {entries(~good, a)}"
        )
    return a


def check_values(x: Any, fmt: FloatFormat | str, name: str) -> NDArray[Any]:
    """Return a matrix (two axes or more) of values of ``fmt``, as `as_values`."""
    a = as_array(x, name)
    if a.ndim < 2:
        raise InputError(f"{name} has shape {a.shape}: it needs two axes or more")
    return as_values(a, fmt, name)


def broadcast(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any] | None) -> tuple[tuple[int, ...], NDArray[Any] | None]:
    """Return the shape (..., M, N) of A B + C and C broadcast to it."""
    shape = product_shape(A, B)
    if C is None:
        return shape, None
    try:
        shape = (*np.broadcast_shapes(shape[:-2], C.shape[:-2]), *shape[-2:])
    except ValueError:
        raise InputError(f"leading axes of C {C.shape} and of the product {shape} do not broadcast") from None
    try:
        return shape, np.broadcast_to(C, shape)
    except ValueError:
        raise InputError(f"C of shape {C.shape} does not fit D of shape {shape}") from None


class Stack(NamedTuple):
    """The matrices of one operand with leading axes flattened, and the index of the matrix that each product uses."""

    matrices: NDArray[Any]  # (stack, rows, columns), a view where possible
    indices: NDArray[np.int64]  # (products,)


def flatten(x: NDArray[Any], lead: tuple[int, ...]) -> Stack:
    """Flatten the leading axes of ``x``; matrices that broadcasting to ``lead`` repeats are stored once."""
    count = int(np.prod(x.shape[:-2], dtype=np.int64))
    index = np.broadcast_to(np.arange(count, dtype=np.int64).reshape(x.shape[:-2]), lead).reshape(-1)
    return Stack(x.reshape(count, *x.shape[-2:]), np.ascontiguousarray(index))


def carry(x: NDArray[Any], fmt: FloatFormat | str, out: NDArray[Any]) -> None:
    """Write the values of ``x`` into the carrier ``out``; a tf32 operand loses the low 13 bits of its word.

    A NaN whose payload lies in these bits becomes Inf, as in the hardware.
    """
    if fmt == TF32 and x.dtype == np.float32:
        x = (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    out[...] = x


def carrier(fmt: FloatFormat | str) -> np.dtype[Any]:
    """The dtype that carries a format through a chain."""
    return np.dtype(fmt) if isinstance(fmt, str) else np.dtype(np.float64 if fmt.name == "fp64" else np.float32)


def gather(
    terms: list[NDArray[Any]], chains: list[list[Run]], fmt: FloatFormat | str, k: int, axis: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Lay the runs of a slice out along K, each padded with zeros to whole instructions.

    The terms are arrays (stack, M, K) with axis = -1, or (stack, K, N) with axis = -2. Returns the carrier array, and
    for each instruction whether it ends a chain.
    """
    lengths = [[-(-(run.stop - run.start) // k) for run in chain] for chain in chains]
    total = sum(map(sum, lengths))
    shape = list(terms[0].shape)
    shape[axis] = total * k
    out = np.zeros(shape, carrier(fmt))
    ends = np.zeros(total, bool)
    at = 0
    for chain, counts in zip(chains, lengths, strict=True):
        for run, count in zip(chain, counts, strict=True):
            source, target = slice(run.start, run.stop), slice(at * k, at * k + run.stop - run.start)
            if axis == -1:
                carry(terms[run.term][..., source], fmt, out[..., target])
            else:
                carry(terms[run.term][..., source, :], fmt, out[..., target, :])
            at += count
        ends[at - 1] = True
    return out, ends
