"""The exact sum of all products of slices, from few products of float64 matrices where BLAS is exact.

Neighbouring slices of A are merged into bins of w bits: in a row with entries of at most 2^top, bin i holds the slices
whose tau lies in (top - (i+1)·w, top - i·w], as integers in units of 2^(top - (i+1)·w - b + 1). B is merged in the same
way. The product of bin i of A and bin j of B then has the weight 2^-((i + j)·w) in every row and column, and one call
of BLAS (or of a GPU) adds products of equal weight, along a K several times as long. All sums are exact while

    (products in a call) · K · max|X| · max|Y| <= 2^53,

and the number of products in a call follows from this condition and the entries of the bins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import device as devices
from fpemu.mma.device import Device
from fpemu.schemes.errorfree.products import SliceProducts
from fpemu.schemes.errorfree.split import Slices, times
from fpemu.schemes.errorfree.sums import ExactSum

Array = NDArray[Any]
_TERMS = 8  # products of equal weight that one call adds


def stride(K: int, bits: int) -> int | None:
    """w for slices of `bits` bits; None where a bin can hold only one slice, so that merging saves no product."""
    w = (53 - (_TERMS * K - 1).bit_length()) // 2 - bits + 1
    return w if w > bits else None


def lowest(slices: Slices, w: int) -> Array:
    """Exponent of the unit of the last bin, for every row (column)."""
    return slices.top - bins(slices, w) * w - slices.bits + 1


def bins(slices: Slices, w: int) -> int:
    """Number of bins that the slices fill."""
    begins = slices.items[-1].exponents + slices.bits
    return int(np.max(slices.top - begins)) // w + 1


def merge(slices: Slices, w: int, axis: int) -> tuple[Array, list[Array]]:
    """The bins of a matrix side by side along the axis of K, and a view of each; B's bins are in reverse order."""
    shape, count = list(slices.items[0].digits.shape), bins(slices, w)
    K = shape[axis]
    shape[axis] = count * K
    side = np.zeros(shape)
    views = [
        side[:, i * K : (i + 1) * K] if axis else side[(count - 1 - i) * K : (count - i) * K] for i in range(count)
    ]
    for item in slices.items:
        below = slices.top - (item.exponents + slices.bits)
        place = below // w
        shift = (place + 1) * w - 1 - below
        for i in np.unique(place).tolist():
            here = place == i
            part = times(item.digits, np.where(here, shift, 0))
            views[i] += part if here.all() else np.where(here, part, 0.0)
    return side, views


def sums(a: Slices, b: Slices, w: int, device: Device = "cpu") -> Iterator[tuple[Array, int]]:
    """Integer matrices and exponents above `lowest(a, w)` + `lowest(b, w)`, whose sum is (sum of a) @ (sum of b)."""
    (left, X), (right, Y) = merge(a, w, 1), merge(b, w, 0)
    K, last = X[0].shape[1], len(X) + len(Y) - 2
    largest = [max(1, int(max(np.max(x), -np.min(x)))) for x in (left, right)]
    most = 2**53 // (K * largest[0] * largest[1])
    assert most >= 1, "the stride allows several products per call"
    m, n = (max((i + 1 for i, x in enumerate(side) if not thin(x)), default=1) for side in (X, Y))
    for d in range(m + n - 1):
        start, stop = max(0, d - n + 1), min(d, m - 1) + 1
        for i in range(start, stop, most):
            end = min(i + most, stop)
            j = len(Y) - 1 - d + i  # the position of bin d - i of B, whose bins are in reverse order
            T = devices.matmul(left[:, i * K : end * K], right[j * K : (j + end - i) * K], device)
            yield T, (last - d) * w
    yield from ((T, (last - i - j) * w) for i, j, T in _tails(X, Y, m, n))


def thin(X: Array) -> bool:
    """Whether X has so few non-zero entries that a sparse product is faster than BLAS."""
    return X.size > 4096 and int(np.count_nonzero(X)) * 256 < X.size


def _tails(X: list[Array], Y: list[Array], m: int, n: int) -> Iterator[tuple[int, int, Array]]:
    """The products with bins m and later of A or n and later of B, which hold a few last bits."""
    if m == len(X) and n == len(Y):
        return
    from scipy.sparse import csr_array

    for i in range(m, len(X)):
        few = csr_array(X[i])
        yield from ((i, j, few @ y) for j, y in enumerate(Y))
    tails = [(j, csr_array(Y[j].T)) for j in range(n, len(Y))]
    for i in range(m if tails else 0):
        turned = np.ascontiguousarray(X[i].T)
        yield from ((i, j, (few @ turned).T) for j, few in tails)


def exact_sum(products: SliceProducts) -> tuple[ExactSum, NDArray[np.bool_]]:
    """The unrounded sum of all products of slices, and the entries in which a product was not finite.

    Slices are merged where BLAS computes the products and there are no more bins than slices; rows with wide gaps
    between their slices have more. Only products that are not exact can be infinite or NaN.
    """
    a, b, K = products.a, products.b, products.K
    w = stride(K, a.bits) if products.by_blas else None
    if w is not None and (bins(a, w) > len(a) or bins(b, w) > len(b)):
        w = None
    rows, columns = (x.items[-1].exponents if w is None else lowest(x, w) for x in (a, b))
    # inexact products may exceed the products of their digits
    spare = K.bit_length() + 2 + 64 * bool(products.inexact or products.lost)
    total = ExactSum(rows, columns, int(np.max(a.top - rows)) + int(np.max(b.top - columns)) + spare)
    broken = np.zeros(total.shape, bool)
    if w is not None:
        for T, shift in sums(a, b, w, products.device):
            total.add(T, shift)
        return total, broken
    for p, x in enumerate(a.items):
        for q, y in enumerate(b.items):
            T = products(p, q)
            infinite = ~np.isfinite(T)
            if infinite.any():
                T, broken = np.where(infinite, 0, T), broken | infinite
            total.add(T, x.exponents - rows + (y.exponents - columns))
    return total, broken
