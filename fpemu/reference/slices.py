"""The exact product by error-free slices and float64 BLAS: the fast way where exponents do not range widely.

Each row of A (column of B) is scaled by its own power of two to magnitudes below 1 and cut into slices of w bits. A
slice times 2^w is an integer below 2^w in magnitude, so a product of two slices is a sum of K integers below 2^(2w).
With K * 2^(2w) <= 2^53 every partial sum is an integer that float64 holds, whatever the order of summation and whether
or not products are fused: BLAS makes no rounding error. The products of equal weight are added in int64, and carries
turn them into limbs of w bits. The method assumes nothing of a BLAS but that it multiplies and adds in IEEE float64;
`fpemu.reference` checks it against FLINT's integers in its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.heads import Heads, bits_of
from fpemu.reference.arguments import Floats, Ints, span

BLOCK = 1 << 21
"""Entries of the result worked on at a time: bounds the memory of the limbs."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How A and B are cut: ``width`` bits a slice, ``slices`` of A and of B, exponents of rows and of columns."""

    width: int
    slices: tuple[int, int]
    rows: Ints
    columns: Ints

    @property
    def products(self) -> int:
        """Matrix products needed."""
        return self.slices[0] * self.slices[1]


def plan(A: Floats, B: Floats) -> Plan | None:
    """How to multiply A (..., M, K) by B (..., K, N), both finite; None where exponents range too widely to scale."""
    K = A.shape[-1]
    width = (53 - (max(K, 1) - 1).bit_length()) // 2
    (low_a, top_a), (low_b, top_b) = span(A, -1), span(B, -2)
    bits = [int(np.max(top - low, initial=1)) for low, top in ((low_a, top_a), (low_b, top_b))]
    if max(bits) > 900:  # scaled entries must stay multiples of 2^-1074
        return None
    counts = [max(1, -(-b // width)) for b in bits]
    return Plan(width, (counts[0], counts[1]), top_a, top_b)


def cut(X: Floats, top: Ints, width: int, count: int) -> list[Floats]:
    """Slices S_s, integers below 2^width in magnitude, with X = 2^top * sum_s S_s * 2^(-(s+1) width)."""
    rest = np.ldexp(X, (-top).astype(np.int32))
    out = []
    for _ in range(count):
        rest = np.ldexp(rest, width)
        out.append(np.trunc(rest))
        rest = rest - out[-1]
    return out


def rounded(A: Floats, B: Floats, how: Plan, fmt: FloatFormat) -> NDArray[Any]:
    """A @ B rounded once to ``fmt`` (RNE); A and B finite, of the same leading axes."""
    out = np.empty((*A.shape[:-1], B.shape[-1]), dtype=fmt.dtype)
    flat = _stack(out)
    for where, negative, limbs, exponent in _blocks(A, B, how):
        flat[where] = _heads(negative, limbs, exponent, how.width).round_to(fmt)
    return out


def significands(A: Floats, B: Floats, how: Plan) -> tuple[NDArray[Any], Ints]:
    """Python integers V (..., M, N) and exponents E with A @ B = V * 2^E."""
    shape = (*A.shape[:-1], B.shape[-1])
    V, E = np.zeros(shape, dtype=object), np.zeros(shape, dtype=np.int64)
    flat, exponents = _stack(V), _stack(E)
    for where, negative, limbs, exponent in _blocks(A, B, how):
        value = limbs[0].astype(object)
        for limb in limbs[1:]:
            value = (value << how.width) + limb
        flat[where], exponents[where] = np.where(negative, -value, value), exponent
    return V, E


def _blocks(A: Floats, B: Floats, how: Plan) -> Iterator[tuple[Any, NDArray[np.bool_], list[Ints], Ints]]:
    """The product block by block: (place, sign, limbs from the highest, exponent of the lowest limb)."""
    M, N = A.shape[-2], B.shape[-1]
    left, right, rows, columns = _stack(A), _stack(B), _stack(how.rows), _stack(how.columns)
    batch = max(1, BLOCK // max(1, M * N))
    height = max(1, M) if M * N <= BLOCK else max(1, BLOCK // N)
    scale = -(how.slices[0] + how.slices[1]) * how.width
    for b in range(0, len(left), batch):
        some = slice(b, b + batch)
        Y = cut(right[some], columns[some], how.width, how.slices[1])
        for m in range(0, M, height):
            where = (some, slice(m, m + height))
            X = cut(left[where], rows[where], how.width, how.slices[0])
            negative, limbs = _limbs(X, Y, how.width)
            yield where, negative, limbs, rows[where] + columns[some] + scale


def _stack(X: NDArray[Any]) -> NDArray[Any]:
    """X with its leading axes made one."""
    return X.reshape(prod(X.shape[:-2]), *X.shape[-2:])


def _limbs(X: list[Floats], Y: list[Floats], width: int) -> tuple[NDArray[np.bool_], list[Ints]]:
    """Signs and magnitudes of the sum over s, t of X_s @ Y_t * 2^(-(s + t) width), the lowest weight last."""
    shape = (*X[0].shape[:-1], Y[0].shape[-1])
    sums = [np.zeros(shape, dtype=np.int64) for _ in range(len(X) + len(Y) - 1)]
    for s, x in enumerate(X):
        for t, y in enumerate(Y):
            sums[s + t] += np.matmul(x, y).astype(np.int64)  # at most 90 terms of 2^53 each: below 2^60
    _carry(sums, width)
    negative = sums[0] < 0
    if negative.any():
        sign = np.where(negative, -1, 1)
        for limb in sums:
            limb *= sign
        _carry(sums, width)
    return negative, sums


def _carry(sums: list[Ints], width: int) -> None:
    """Bring all but the first of ``sums`` to [0, 2^width), in place."""
    for d in range(len(sums) - 1, 0, -1):
        sums[d - 1] += sums[d] >> width
        sums[d] &= (1 << width) - 1


def _heads(negative: NDArray[np.bool_], limbs: list[Ints], exponent: Ints, width: int) -> Heads:
    """The leading 62 bits of limbs[0] * 2^(width (n-1)) + ... + limbs[n-1], with the rest as a sticky bit."""
    full = np.uint64(width)
    head = limbs[0].astype(np.uint64)
    sticky = np.zeros(head.shape, bool)
    left_out = np.zeros(head.shape, dtype=np.int64)
    for limb in (x.astype(np.uint64) for x in limbs[1:]):
        take = np.clip(62 - bits_of(head), 0, width).astype(np.uint64)
        drop = full - take
        head = (head << take) | (limb >> drop)
        sticky |= (limb & ((np.uint64(1) << drop) - np.uint64(1))) != 0
        left_out += drop.astype(np.int64)
    return Heads(negative, head, sticky, exponent + left_out)
