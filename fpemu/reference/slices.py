"""The exact product by error-free slices and float64 BLAS: fast where exponents vary by less than about 900 bits.

Each row of A (column of B) is scaled by a power of two to magnitudes below 1 and split into slices of w bits. A slice
times 2^w is an integer below 2^w in magnitude, so a product of two slices is a sum of K integers below 2^(2w). With
K * 2^(2w) <= 2^53 every partial sum is an integer that float64 holds, whatever the order of summation and with or
without fused multiply-adds: BLAS makes no rounding error, nor does a GPU (`fpemu.mma.device.matmul`). The products of
equal weight are added in int64, and carries turn them into limbs of w bits. The method requires only that BLAS
multiplies and adds in IEEE float64; the tests compare it with FLINT's integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu._system import map_threads
from fpemu.formats import FloatFormat
from fpemu.mma import device as devices
from fpemu.mma.device import Device
from fpemu.reference.exact import Floats, Ints, span
from fpemu.rounding import Significands, bit_lengths

BLOCK = 1 << 23
"""Entries of the result computed at a time: bounds the memory of the limbs."""
_BLOCK_CUDA = 1 << 26
"""The same on a GPU, to which B's slices are copied once per block."""
_CHUNK = 1 << 15
"""Entries that a thread computes at a time: they stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class Slicing:
    """Slices of both operands: ``width`` bits per slice, ``slices`` of A and of B, exponents of rows and of columns."""

    width: int
    slices: tuple[int, int]
    rows: Ints
    columns: Ints

    @property
    def products(self) -> int:
        """Number of slice products."""
        return self.slices[0] * self.slices[1]


def choose(A: Floats, B: Floats) -> Slicing | None:
    """Return the slicing of A (..., M, K) and B (..., K, N), both finite; None where exponents vary too widely."""
    K = A.shape[-1]
    width = (53 - (max(K, 1) - 1).bit_length()) // 2
    (low_a, top_a), (low_b, top_b) = _span(A, -1), _span(B, -2)
    bits = [int(np.max(top - low, initial=1)) for low, top in ((low_a, top_a), (low_b, top_b))]
    if max(bits) > 900:  # scaled entries must stay multiples of 2^-1074
        return None
    counts = [max(1, -(-b // width)) for b in bits]
    return Slicing(width, (counts[0], counts[1]), top_a, top_b)


def cut(X: Floats, top: Ints, width: int, count: int) -> list[Floats]:
    """Return slices S_s, integers below 2^width in magnitude, with X = 2^top * sum_s S_s * 2^(-(s+1) width)."""
    out = [np.empty_like(X) for _ in range(count)]
    shift = np.broadcast_to((-top).astype(np.int32), X.shape)

    def split_rows(rows: slice) -> None:
        rest = np.ldexp(X[..., rows, :], shift[..., rows, :])
        for slice_ in out:
            rest = np.ldexp(rest, width)
            part = np.trunc(rest, out=slice_[..., rows, :])
            rest = rest - part

    height = max(1, _CHUNK * X.shape[-2] // max(1, X.size))
    map_threads(split_rows, [slice(m, m + height) for m in range(0, X.shape[-2], height)])
    return out


def rounded(A: Floats, B: Floats, slicing: Slicing, fmt: FloatFormat, device: Device = "cpu") -> NDArray[Any]:
    """Return A @ B rounded once to ``fmt`` (RNE); A and B finite, of the same leading axes."""
    out = np.empty((*A.shape[:-1], B.shape[-1]), dtype=fmt.dtype)
    flat = _stack(out)
    for where, sums, exponent in _blocks(A, B, slicing, device):
        _round(sums, exponent, slicing.width, fmt, flat[where])
    return out


def _round(sums: list[Ints], exponent: Ints, width: int, fmt: FloatFormat, out: NDArray[Any]) -> None:
    """Round the result of `_sums` into ``out``, in blocks of rows or matrices on threads."""

    def round_block(place: tuple[slice, slice]) -> None:
        limbs = [x[place] for x in sums]
        out[place] = _leading_bits(_limbs(limbs, width), limbs, exponent[place], width).round_to(fmt)

    batch, M, N = out.shape
    several, height = max(1, _CHUNK // max(1, M * N)), max(1, _CHUNK // max(1, N))
    places = [(b, m) for b in range(0, batch, several) for m in range(0, M, height)]
    map_threads(round_block, [(slice(b, b + several), slice(m, m + height)) for b, m in places])


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


def _blocks(A: Floats, B: Floats, slicing: Slicing, device: Device) -> Iterator[tuple[Any, list[Ints], Ints]]:
    """Yield blocks of the product: (place, sums of equal weight from the highest, exponent of the lowest)."""
    M, N = A.shape[-2], B.shape[-1]
    left, right, rows, columns = _stack(A), _stack(B), _stack(slicing.rows), _stack(slicing.columns)
    device = devices.resolve(device)
    most = _BLOCK_CUDA if device == "cuda" else BLOCK
    batch = max(1, most // max(1, M * N))
    height = max(1, M) if most >= M * N else max(1, most // N)
    scale = -(slicing.slices[0] + slicing.slices[1]) * slicing.width
    for b in range(0, len(left), batch):
        some = slice(b, b + batch)
        Y = cut(right[some], columns[some], slicing.width, slicing.slices[1])
        for m in range(0, M, height):
            where = (some, slice(m, m + height))
            X = cut(left[where], rows[where], slicing.width, slicing.slices[0])
            yield where, _sums(X, Y, device), rows[where] + columns[some] + scale


def _span(X: Floats, axis: int) -> tuple[Ints, Ints]:
    """Return `span`, computed in blocks of rows (columns) on threads."""
    other, lines = -3 - axis, X.shape[-3 - axis]
    height = max(1, 8 * _CHUNK * lines // max(1, X.size))
    blocks = [slice(i, i + height) for i in range(0, max(1, lines), height)]
    spans = map_threads(lambda some: span(X[..., some, :] if axis == -1 else X[..., some], axis), blocks)
    low, top = (np.concatenate(part, axis=other) for part in zip(*spans, strict=True))
    return low, top


def _stack(X: NDArray[Any]) -> NDArray[Any]:
    """Return X with its leading axes flattened."""
    return X.reshape(prod(X.shape[:-2]), *X.shape[-2:])


def _sums(X: list[Floats], Y: list[Floats], device: Device) -> list[Ints]:
    """Return the sums of the products X_s @ Y_t of equal weight 2^(-(s + t) width), the lowest weight last."""
    shape = (*X[0].shape[:-1], Y[0].shape[-1])
    sums = [np.zeros(shape, dtype=np.int64) for _ in range(len(X) + len(Y) - 1)]
    for s, x in enumerate(X):
        for t, y in enumerate(Y):
            _add(sums[s + t], devices.matmul(x, y, device))  # at most 90 terms of 2^53 each: below 2^60
    return sums


def _add(total: Ints, T: Floats) -> None:
    """Add integers to a sum, on all threads."""

    def add_rows(rows: slice) -> None:
        total[:, rows] += T[:, rows].astype(np.int64)

    height = max(1, 8 * _CHUNK // max(1, total.shape[0] * total.shape[-1]))
    map_threads(add_rows, [slice(m, m + height) for m in range(0, total.shape[1], height)])


def _limbs(sums: list[Ints], width: int) -> NDArray[np.bool_]:
    """Turn sums of equal weight into the limbs of their total's magnitude, in place; return where it is negative."""
    _carry(sums, width)
    negative = np.asarray(sums[0] < 0)
    if negative.any():
        sign = np.where(negative, -1, 1)
        for limb in sums:
            limb *= sign
        _carry(sums, width)
    return negative


def _carry(sums: list[Ints], width: int) -> None:
    """Carry so that all but the first of ``sums`` are in [0, 2^width), in place."""
    for d in range(len(sums) - 1, 0, -1):
        sums[d - 1] += sums[d] >> width
        sums[d] &= (1 << width) - 1


def _leading_bits(negative: NDArray[np.bool_], limbs: list[Ints], exponent: Ints, width: int) -> Significands:
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
