"""Powers of two that scale A and B to the largest integers for which the moduli of Ozaki scheme II suffice.

    A' = trunc(2^mu_i A) by rows,  B' = trunc(B 2^nu_j) by columns,  condition: 2 sum_h |a'_ih||b'_hj| < P for all i, j

All three rules have the form mu_i = floor(log2(limit / S_i) / 2) + known exponents. No logarithm is computed: `_power`
determines the floor by comparing S_i with the limit. S_i is an integer, or a sum of squares rounded upward.

fast        limit (P-1)/8 and S_i = max(4, sum_h a_ih^2), mu_i less e_i = floor(log2 max_h|a_ih|): the published formula
            (public source of GEMMul8). The sum is not normalised by the maximum that is subtracted, so that
                sum|a'||b'| <= 2^(mu+nu) |a_i| |b_j| <= limit 2^-(e_i + e_j):
            the condition holds if e_i + e_j >= -2. Otherwise it can be violated, and rows of large e_i lose e_i bits.
accurate    limit (P-1)/2 and S_i = max_j sum_h abar_ih bbar_hj with 7-bit integers abar >= |a| 2^mu1, bbar >= |b| 2^nu1
            (published; one product more). With cbar_ij the sums,
                sum|a'||b'| <= 2^(mu-mu1 + nu-nu1) cbar_ij <= limit · cbar_ij / sqrt(S_i S_j) <= limit.
invariant   limit (P-1)/2 and S_i = sum_h (a_ih / 2^e_i)^2, mu_i less e_i (this project). By Cauchy-Schwarz
                sum|a'||b'| <= 2^(mu+nu) |a_i| |b_j| <= limit,
            and a row times a power of two has another e_i and the same a'.

The last two reduce their limit by a relative 2^-34 + K 2^-50, so that `crt.check`, which computes in float64, can
confirm the condition. S_i is a sum of integers: the exponents depend on no order of summation, and therefore not on
the layout of A and B.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.schemes.errorfree.split import times

Array = NDArray[Any]
Product = Callable[[Array, Array, int], Array]
RULES = ("accurate", "fast", "invariant")
_BITS = 30  # a row's largest entry becomes an integer of 31 bits, whose square fits int64


def fast(A: Array, B: Array, P: int) -> tuple[Array, Array]:
    """Exponents mu (M, 1) and nu (1, N) of the published fast mode, for finite float64 A (M, K) and B (K, N).

    Zero rows and columns have the exponent 0, here and in the other rules.

    Examples
    --------
    >>> fast(np.full((1, 4), 1.0), np.full((4, 1), 2.0**10), 2**64)
    (array([[29]]), array([[9]]))
    """

    def rows(X: Array) -> Array:
        S, e = _squares(X)
        limit = Fraction(P - 1, 8)
        most = _power(np.array(4.0), limit)
        return np.where(S == 0, 0, np.minimum(most, _power(S, limit) - e) - e)

    return rows(A), rows(B.T).T


def invariant(A: Array, B: Array, P: int) -> tuple[Array, Array]:
    """Exponents that satisfy the condition by Cauchy-Schwarz and are equivariant to powers of two of rows and columns.

    Examples
    --------
    >>> invariant(np.full((1, 4), 1.0), np.full((4, 1), 2.0**10), 2**64)
    (array([[30]]), array([[20]]))
    """
    limit = _limit(P, A.shape[1])

    def rows(X: Array) -> Array:
        S, e = _squares(X)
        return np.where(S == 0, 0, _power(S, limit) - e)

    return rows(A), rows(B.T).T


def accurate(A: Array, B: Array, P: int, product: Product) -> tuple[Array, Array]:
    """Exponents of the published accurate mode.

    Parameters
    ----------
    product : callable (X, Y, largest) -> XY
        The exact product of matrices of integers of magnitude at most `largest`.
    """
    limit = _limit(P, A.shape[1])

    def leading(X: Array) -> tuple[Array, Array]:
        size = np.abs(X)
        first = 5 - _floor_log2(np.max(size, axis=1, keepdims=True))
        return np.maximum(np.ceil(times(size, first)), size != 0), first  # 1 also where the scaled entry underflows

    (abar, mu), (bbar, nu) = leading(A), leading(B.T)
    cbar = product(abar, bbar.T, 64)
    # if the largest sum is zero, all products of the row (column) are zero and any exponent is valid
    mu = mu + _power(cbar.max(axis=1, keepdims=True), limit)
    nu = nu.T + _power(cbar.max(axis=0, keepdims=True), limit)
    return np.where(abar.any(axis=1, keepdims=True), mu, 0), np.where(bbar.T.any(axis=0, keepdims=True), nu, 0)


def _limit(P: int, K: int) -> Fraction:
    return Fraction(P - 1, 2) * (1 - Fraction(2**16 + K, 2**50))


def _power(S: Array, limit: Fraction) -> Array:
    """The largest t with 4^t S <= limit, for S > 0; for S = 0 the value for S just below 1.

    limit = g 4^h and S = s 4^q with g and s in [1, 4): t = h - q if s <= g, else one less. s is exact and so is the
    comparison; g is rounded down to 51 fraction bits.
    """
    h = 0
    while limit >= 4 ** (h + 1):
        h += 1
    g = int(limit / 4**h * 2**51) / 2**51
    q = (np.frexp(S)[1].astype(np.int64) - 1) // 2
    return np.asarray(h - q - (np.ldexp(S, -2 * q) > g))


def _squares(X: Array) -> tuple[Array, Array]:
    """An upper bound S of the sums of (x / 2^e)^2 over rows, and e = floor(log2 max|x|): both (rows, 1).

    |x| / 2^e is rounded up to a multiple of 2^-30, so that S exceeds the sum by a relative error of at most
    sqrt(K) 2^-28 and a few 2^-52; entries that underflow contribute less. The squares are integers and are added in
    two halves.
    """
    size = np.abs(X)
    e = _floor_log2(np.max(size, axis=1, keepdims=True))
    units = np.ceil(times(size, _BITS - e)).astype(np.int64)
    squares, half = units**2, _BITS + 1
    high = (squares >> half).sum(axis=1, keepdims=True).astype(np.float64)
    low = (squares & ((1 << half) - 1)).sum(axis=1, keepdims=True).astype(np.float64)
    S = np.ldexp(high, half) + low  # at most three roundings to nearest
    return np.ldexp(S * (1 + 2.0**-50), -2 * _BITS), e


def _floor_log2(x: Array) -> Array:
    return np.where(x == 0, 0, np.frexp(x)[1].astype(np.int64) - 1)
