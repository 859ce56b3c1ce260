"""From a caller's arrays to the carriers of a chain: checks, broadcasting, and the gathering of K.

Carriers hold the values of a format exactly: float32 for formats of at most 24 bits, float64 for fp64, int8 and int32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.arrays import as_array
from fpemu.errors import InputError, entries
from fpemu.formats import FP16, FP32, FP64, TF32, FloatFormat
from fpemu.mma.order import Run

_CHUNK = 2**18  # entries checked at a time: their temporaries are float64


def check_values(x: Any, fmt: FloatFormat | str, name: str) -> NDArray[Any]:
    """``x`` as an array whose entries are values of ``fmt``; the array itself where its dtype says so.

    Raises
    ------
    InputError
        For a dtype that is no number, fewer than two axes, or entries that are not values of ``fmt``.
    """
    a = as_array(x, name)
    if a.ndim < 2:
        raise InputError(f"{name} has shape {a.shape}: it needs two axes or more")
    if isinstance(fmt, str):
        wanted = np.dtype(fmt)
        if a.dtype.kind not in "iu":
            raise InputError(f"{name} has dtype {a.dtype}: the instruction takes {fmt}")
        bad = a != a.astype(wanted)
        if bad.any():
            raise InputError(f"{name} has entries that {fmt} does not hold: {entries(bad, a)}")
        return a.astype(wanted, copy=False)
    carries = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}.get(a.dtype)
    if carries == fmt:
        return a
    if fmt == TF32 and carries == FP32:
        return a  # the hardware ignores the low 13 bits of each word: `carry` cuts them
    good = np.ones(a.shape, bool)
    step = max(_CHUNK * len(a) // max(a.size, 1), 1)
    for i in range(0, len(a), step):
        good[i : i + step] = fmt.contains(a[i : i + step])
    if not good.all():
        raise InputError(
            f"{name} has entries that are not values of {fmt} (fpemu.round_to rounds them): {entries(~good, a)}"
        )
    return a


class Stack(NamedTuple):
    """Matrices of one operand with their leading axes flattened, and which of them each product uses."""

    matrices: NDArray[Any]  # (stack, rows, columns), a view where possible
    of: NDArray[np.int64]  # (products,) -> stack


def flatten(x: NDArray[Any], lead: tuple[int, ...]) -> Stack:
    """Flatten the leading axes of ``x`` without repeating what broadcasting to ``lead`` would repeat."""
    own = x.shape[:-2]
    count = int(np.prod(own, dtype=np.int64))
    index = np.broadcast_to(np.arange(count, dtype=np.int64).reshape(own), lead).reshape(-1)
    return Stack(x.reshape(count, *x.shape[-2:]), np.ascontiguousarray(index))


def carry(x: NDArray[Any], fmt: FloatFormat | str, out: NDArray[Any]) -> None:
    """Write the values of ``x`` into the carrier ``out``; a tf32 operand loses the low 13 bits of its word."""
    if fmt == TF32 and x.dtype == np.float32:
        words = np.ascontiguousarray(x).view(np.uint32)
        cut = (words & np.uint32(0xFFFFE000)).view(np.float32)
        # a NaN whose payload sits in the ignored bits is Inf to the hardware
        out[...] = cut
    else:
        out[...] = x


def carrier(fmt: FloatFormat | str) -> np.dtype[Any]:
    """The dtype that carries a format through a chain."""
    return np.dtype(fmt) if isinstance(fmt, str) else np.dtype(np.float64 if fmt.name == "fp64" else np.float32)


def gather(
    operands: list[NDArray[Any]], runs: list[list[Run]], fmt: FloatFormat | str, k: int, axis: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Lay the runs of a slice out along K, each padded with zeros to whole instructions.

    Parameters
    ----------
    operands : one array (stack, M, K) or (stack, K, N) per term
    runs : for each chain, its runs
    axis : the K axis: -1 for A, -2 for B

    Returns
    -------
    The carrier array, and for each instruction whether it ends a chain.
    """
    lengths = [[-(-(run.stop - run.start) // k) for run in chain] for chain in runs]
    total = sum(map(sum, lengths))
    shape = list(operands[0].shape)
    shape[axis] = total * k
    out = np.zeros(shape, carrier(fmt))
    cuts = np.zeros(total, bool)
    at = 0
    for chain, counts in zip(runs, lengths, strict=True):
        for run, count in zip(chain, counts, strict=True):
            source = operands[run.term]
            stretch, place = slice(run.start, run.stop), slice(at * k, at * k + run.stop - run.start)
            if axis == -1:
                carry(source[..., stretch], fmt, out[..., place])
            else:
                carry(source[..., stretch, :], fmt, out[..., place, :])
            at += count
        cuts[at - 1] = True
    return out, cuts


def broadcast_shape(shapes: list[tuple[int, ...]], names: str) -> tuple[int, ...]:
    """The leading axes that all operands broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise InputError(f"leading axes of {names} do not broadcast: {' and '.join(map(str, shapes))}") from None


def check_pair(A: NDArray[Any], B: NDArray[Any]) -> None:
    """A (..., M, K) and B (..., K, N) share K."""
    if A.shape[-1] != B.shape[-2]:
        raise InputError(f"A of shape {A.shape} and B of shape {B.shape} do not share K (columns of A, rows of B)")
