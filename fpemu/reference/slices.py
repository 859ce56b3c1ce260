"""The exact product by error-free slices and float64 BLAS: fast where exponents vary by less than about 900 bits.

Each row of A (column of B) is scaled by a power of two to magnitudes below 1 and split into slices of w bits, each
rounded to nearest: an integer of magnitude at most 2^(w-1), so that a product of two slices is a sum of integers of
magnitude at most 2^(2w-2). Where L of them are added and L * 2^(2w-2) <= 2^53, every partial sum is an integer that
float64 holds, whatever the order of summation and with or without fused multiply-adds: BLAS makes no rounding error,
nor does a GPU (`fpemu.mma.device.matmul`). K is divided into ranges of at most L, because fewer and wider slices take
less time. The products of equal weight are added in int64, and carries turn them into limbs of w bits. The method
requires only that BLAS multiplies and adds in IEEE float64; the tests compare it with FLINT's integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu._system import use_compiled
from fpemu.formats import FloatFormat
from fpemu.mma import device as devices
from fpemu.mma.device import Device
from fpemu.reference.exact import Floats, Ints, span
from fpemu.rounding import Significands, bit_lengths

BLOCK = 1 << 23
"""Entries of the result computed at a time: bounds the memory of the limbs."""
_BLOCK_CUDA = 1 << 26
"""The same on a GPU, to which B's slices are copied once per block."""


@dataclass(frozen=True, eq=False)
class Slicing:
    """``width`` bits per slice, ``slices`` of A and of B, exponents of rows and of columns, products added by BLAS."""

    width: int
    slices: tuple[int, int]
    rows: Ints
    columns: Ints
    length: int

    @property
    def products(self) -> int:
        """Number of slice products."""
        return self.slices[0] * self.slices[1]


def choose(A: Floats, B: Floats) -> Slicing | None:
    """Return the slicing of A (..., M, K) and B (..., K, N), both finite; None where exponents vary too widely."""
    K = max(A.shape[-1], 1)
    (low_a, top_a), (low_b, top_b) = _span(A, -1), _span(B, -2)
    bits = [int(np.max(top - low, initial=1)) for low, top in ((low_a, top_a), (low_b, top_b))]
    if max(bits) > 900:  # scaled entries must stay multiples of 2^-1074
        return None
    options = []
    for width in range(2, 26):
        left, right = (-(-(b + 1) // width) for b in bits)  # the first slice has a bit less
        length = min(K, 1 << 53 - 2 * (width - 1))
        if min(left, right) * K << 2 * (width - 1) <= 1 << 62:  # the int64 sums of equal weight
            # an addition of a range's product takes about as long as 48 multiply-adds of BLAS
            options.append((left * right * (K + 48 * -(-K // length)), width, (left, right), length))
    _, width, counts, length = min(options)
    return Slicing(width, counts, top_a, top_b, length)


def cut(X: Floats, top: Ints, width: int, count: int) -> Floats:
    """Return slices S_s of X (batch, M, K), integers up to 2^(width-1): X = 2^(top + 1) sum_s S_s 2^(-(s + 1) width).

    ``top`` is (batch, M, 1) or (batch, 1, K).
    """
    out = np.empty((count, *X.shape))
    if use_compiled(X.size):
        from fpemu.compiled import slices as compiled

        compiled.cut(X, top, width, out)
        return out
    rest = np.ldexp(X, np.broadcast_to((-top - 1).astype(np.int32), X.shape))
    for slice_ in out:
        rest = np.ldexp(rest, width)
        rest = rest - np.rint(rest, out=slice_)
    return out


def rounded(A: Floats, B: Floats, slicing: Slicing, fmt: FloatFormat, device: Device = "cpu") -> NDArray[Any]:
    """Return A @ B rounded once to ``fmt`` (RNE); A and B finite, of the same leading axes."""
    out = np.empty((*A.shape[:-1], B.shape[-1]), dtype=fmt.dtype)
    flat = _stack(out)
    for where, sums, exponent in _blocks(A, B, slicing, device):
        flat[where] = _round(sums, exponent, slicing.width, fmt)
    return out


def _round(sums: Ints, exponent: Ints, width: int, fmt: FloatFormat) -> NDArray[Any]:
    """Return the result of `_sums` rounded once."""
    if use_compiled(exponent.size) and fmt.precision > 1 and not fmt.ties_away:
        from fpemu.compiled import slices as compiled

        return compiled.round_sums(sums, exponent, width, fmt)
    return np.asarray(_leading_bits(_limbs(sums, width), sums, exponent, width).round_to(fmt))


def significands(A: Floats, B: Floats, slicing: Slicing, device: Device = "cpu") -> tuple[NDArray[Any], Ints]:
    """Return Python integers V (..., M, N) and exponents E with A @ B = V * 2^E."""
    shape = (*A.shape[:-1], B.shape[-1])
    V, E = np.zeros(shape, dtype=object), np.zeros(shape, dtype=np.int64)
    flat, exponents = _stack(V), _stack(E)
    for where, limbs, exponent in _blocks(A, B, slicing, device):
        negative = _limbs(limbs, slicing.width)
        value = limbs[0].astype(object)
        for limb in limbs[1:]:
            value = (value << slicing.width) + limb
        flat[where], exponents[where] = np.where(negative, -value, value), exponent
    return V, E


def _blocks(A: Floats, B: Floats, slicing: Slicing, device: Device) -> Iterator[tuple[Any, Ints, Ints]]:
    """Yield blocks of the product: (place, sums of equal weight from the highest, exponent of the lowest)."""
    M, N = A.shape[-2], B.shape[-1]
    left, right, rows, columns = _stack(A), _stack(B), _stack(slicing.rows), _stack(slicing.columns)
    device = devices.resolve(device)
    most = _BLOCK_CUDA if device == "cuda" else BLOCK
    batch = max(1, most // max(1, M * N))
    height = max(1, M) if most >= M * N else max(1, most // N)
    scale = 2 - (slicing.slices[0] + slicing.slices[1]) * slicing.width
    for b in range(0, len(left), batch):
        some = slice(b, b + batch)
        Y = cut(right[some], columns[some], slicing.width, slicing.slices[1])
        for m in range(0, M, height):
            where = (some, slice(m, m + height))
            X = cut(left[where], rows[where], slicing.width, slicing.slices[0])
            yield where, _sums(X, Y, slicing.length, device), rows[where] + columns[some] + scale


def _span(X: Floats, axis: int) -> tuple[Ints, Ints]:
    """Return `span`."""
    if not use_compiled(X.size):
        return span(X, axis)
    from fpemu.compiled import slices as compiled

    return compiled.span(X, axis)


def _stack(X: NDArray[Any]) -> NDArray[Any]:
    """Return X with its leading axes flattened."""
    return X.reshape(prod(X.shape[:-2]), *X.shape[-2:])


def _sums(X: Floats, Y: Floats, length: int, device: Device) -> Ints:
    """Return the sums of the products X_s @ Y_t of equal weight 2^(-(s + t) width), the lowest weight last."""
    sums = np.zeros((len(X) + len(Y) - 1, *X.shape[1:-1], Y.shape[-1]), dtype=np.int64)
    for k in range(0, X.shape[-1], length):
        for s, x in enumerate(X[..., k : k + length]):
            for t, y in enumerate(Y[..., k : k + length, :]):
                _add(sums[s + t], devices.matmul(x, y, device))
    return sums


def _add(total: Ints, T: Floats) -> None:
    """Add integers to a sum in place."""
    if T.size >= 1 << 14 and use_compiled(T.size):
        from fpemu.compiled import slices as compiled

        compiled.add(total, np.ascontiguousarray(T))
    else:
        total += T.astype(np.int64)


def _limbs(sums: Ints, width: int) -> NDArray[np.bool_]:
    """Turn sums of equal weight into the limbs of their total's magnitude, in place; return where it is negative."""
    _carry(sums, width)
    negative = np.asarray(sums[0] < 0)
    if negative.any():
        sign = np.where(negative, -1, 1)
        for limb in sums:
            limb *= sign
        _carry(sums, width)
    return negative


def _carry(sums: Ints, width: int) -> None:
    """Carry so that all but the first of ``sums`` are in [0, 2^width), in place."""
    for d in range(len(sums) - 1, 0, -1):
        sums[d - 1] += sums[d] >> width
        sums[d] &= (1 << width) - 1


def _leading_bits(negative: NDArray[np.bool_], limbs: Ints, exponent: Ints, width: int) -> Significands:
    """Return the leading 62 bits of limbs[0] * 2^(width (n-1)) + ... + limbs[n-1], with the rest as a sticky bit."""
    full = np.uint64(width)
    leading = limbs[0].astype(np.uint64)
    sticky = np.zeros(leading.shape, bool)
    left_out = np.zeros(leading.shape, dtype=np.int64)
    for limb in (x.astype(np.uint64) for x in limbs[1:]):
        take = np.clip(62 - bit_lengths(leading), 0, width).astype(np.uint64)
        drop = full - take
        leading = (leading << take) | (limb >> drop)
        sticky |= (limb & ((np.uint64(1) << drop) - np.uint64(1))) != 0
        left_out += drop.astype(np.int64)
    return Significands(negative, leading, sticky, exponent + left_out)
