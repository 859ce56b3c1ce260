"""The exact sum of all products of slices, from few products of float64 matrices where BLAS is exact.

Neighbouring slices of A are merged into bins of w bits: where a row's entries are at most 2^top, bin i holds the slices
whose tau lies in (top - (i+1)·w, top - i·w], as integers in units of 2^(top - (i+1)·w - b + 1). B alike. The product of
bin i of A and bin j of B has the weight 2^-((i + j)·w) then, the same all over a row and a column, and products of
equal weight are added inside one BLAS call, along a K several times as long. All of it is exact while

    (products in a call) · K · max|X| · max|Y| <= 2^53,

which decides, on the bins as they are, how many products a call adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.schemes.errorfree.products import SliceProducts, integer_product, thin
from fpemu.schemes.errorfree.split import Slices, times
from fpemu.schemes.errorfree.sums import ExactSum

Array = NDArray[Any]
_TERMS = 8  # products of equal weight that one call adds


def stride(K: int, bits: int) -> int | None:
    """w for slices of `bits` bits; None where merging does not pay: fewer than two slices a bin, now and then."""
    w = (53 - (_TERMS * K - 1).bit_length()) // 2 - bits + 1
    return w if w > bits else None


def lowest(slices: Slices, w: int) -> Array:
    """Exponent of the unit of the last bin, for every row (column)."""
    return slices.top - bins(slices, w) * w - slices.bits + 1


def bins(slices: Slices, w: int) -> int:
    """How many bins the slices fill."""
    begins = slices.items[-1].exponents + slices.bits
    return int(np.max(slices.top - begins)) // w + 1


def merge(slices: Slices, w: int) -> list[Array]:
    """The bins of a matrix."""
    filled: list[Array | None] = [None] * bins(slices, w)
    for item in slices.items:
        below = slices.top - (item.exponents + slices.bits)
        place = below // w
        shift = (place + 1) * w - 1 - below
        for i in np.unique(place).tolist():
            part = times(item.digits.astype(np.float64), np.where(place == i, shift, 0))
            if (place != i).any():
                part = np.where(place == i, part, 0.0)
            before = filled[i]
            filled[i] = part if before is None else before + part
    zero = np.zeros_like(slices.items[0].digits, np.float64)
    return [zero if x is None else x for x in filled]


def sums(a: Slices, b: Slices, w: int) -> Iterator[tuple[Array, int]]:
    """Integer matrices and exponents above `lowest(a, w)` + `lowest(b, w)`, whose sum is (sum of a) @ (sum of b)."""
    X, Y = merge(a, w), merge(b, w)
    K = X[0].shape[1]
    largest = [max(1, *(int(np.max(np.abs(x))) for x in side)) for side in (X, Y)]
    room = 2**53 // (K * largest[0] * largest[1])
    assert room >= 1, "stride leaves room for several products"
    m, n = (max((i + 1 for i, x in enumerate(side) if not thin(x)), default=1) for side in (X, Y))
    last = len(X) + len(Y) - 2
    left, right = np.hstack(X[:m]), np.vstack(Y[:n][::-1])
    for d in range(m + n - 1):
        start, stop = max(0, d - n + 1), min(d, m - 1) + 1
        for i in range(start, stop, room):
            end = min(i + room, stop)
            j = n - 1 - d + i  # the place of bin d - i of B, which runs backwards
            yield left[:, i * K : end * K] @ right[j * K : (j + end - i) * K], (last - d) * w
    for i, x in enumerate(X):  # the last bins hold a few last bits: their products are sparse
        for j, y in enumerate(Y):
            if i >= m or j >= n:
                yield integer_product(x, y, K * largest[0] * largest[1]), (last - i - j) * w


def exact_sum(products: SliceProducts) -> ExactSum:
    """The sum of all products of slices, unrounded; merged where BLAS carries them, else one after another."""
    a, b, K = products.a, products.b, products.K
    w = stride(K, a.bits) if products.by_blas else None
    rows, columns = (x.items[-1].exponents if w is None else lowest(x, w) for x in (a, b))
    spread = int(np.max(a.top - rows)) + int(np.max(b.top - columns))
    total = ExactSum(rows, columns, spread + K.bit_length() + 2)
    if w is not None:
        for T, shift in sums(a, b, w):
            total.add(T, shift)
        return total
    for p, x in enumerate(a.items):
        for q, y in enumerate(b.items):
            total.add(products(p, q), x.exponents - rows + (y.exponents - columns))
    return total
