"""Number of slices of a product: Algorithm 3 of Mukunoki et al. (2020), and the slices of a split, block by block.

The error of DGEMM is estimated as |fl(AB) - AB| e <= 2 sqrt(k) u |A||B| e (Eq. 1). Omitting the products of slice d
of A and of the residual after it adds an error of at most (d + 1) |A_d|(|B| e). d is the smallest number of at least 2
for which the second bound is below the first in every row.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.schemes.errorfree.blocks import pieces
from fpemu.schemes.errorfree.split import ceil_log2, slices, times

Array = NDArray[Any]


def row_sums(B: Array, step: int | None = None) -> Array:
    """|B| e divided by a power of two, for B (K, N); `step` rows at a time."""
    top = ceil_log2(np.maximum(np.max(B, keepdims=True), -np.min(B)))
    rows = (np.ascontiguousarray(B[k]) for k in pieces(len(B), step or len(B)))
    return np.concatenate([times(np.abs(b), -top).sum(axis=1) for b in rows])


def needed_for(
    A: Array, weight: Array, bits: int, rule: str, u: float, limit: int | None = None, printed: bool = False
) -> int:
    """Algorithm 3's d for A (M, K) and `weight` = |B| e (K,), for results with unit roundoff u.

    With `printed`, the criterion uses only the digits of slice d, without the residual after them. NumPy sums each row
    by itself, so that the order of summation, and with it d, depends on neither threads nor blocks.
    """
    top = ceil_log2(np.max(np.abs(A), axis=1, keepdims=True))
    enough = 2 * np.sqrt(A.shape[1]) * u * (times(np.abs(A), -top) * weight).sum(axis=1)
    d = 0
    for d, (item, rest) in enumerate(slices(A, 1, bits, rule, limit), 1):
        size = times(item.digits.astype(np.float64), item.exponents - top)
        if not printed:
            size = size + times(rest.left, rest.exponents - top)
        lost = (d + 1) * (np.abs(size) * weight).sum(axis=1)
        if d >= 2 and ((enough > lost) | (lost == 0)).all():
            return d
    return max(2, d + 1)


def length(X: Array, bits: int, rule: str, count: int | None, limit: int, step: int) -> tuple[int, bool, int]:
    """The number of slices of X, at most `count`; whether the residual is zero; bits from top to bottom."""
    longest, complete, spread = 1, True, bits
    for i in pieces(len(X), step):
        number, top = 0, None
        some = slices(np.ascontiguousarray(X[i]), 1, bits, rule, limit)
        for number, (item, rest) in enumerate(islice(some, count), 1):
            top = item.exponents + bits if top is None else top
            spread = max(spread, int(np.max(top - item.exponents)))
            complete = complete and not (number == count and bool(rest.left.any()))
        longest = max(longest, number)
    return longest, complete, spread
