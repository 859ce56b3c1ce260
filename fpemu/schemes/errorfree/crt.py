"""Scheme II on matrices: operands scaled to integers, residues, and integers from residues, without rounding errors.

**Integers from residues**, by the Chinese remainder theorem.

With pairwise coprime moduli p_i, P their product, Q_i = P / p_i and q_i the inverse of Q_i modulo p_i, an integer C
with 2|C| < P and residues r_i modulo p_i is

    C = sum_i t_i Q_i - z P        t_i = r_i q_i mod p_i in [-p_i/2, p_i/2),  z the integer nearest to sum_i t_i / p_i

(t_i Q_i has the residue r_i modulo p_i and 0 modulo the others.)

z is computed in integers, from f_i = 2^48 / p_i rounded to nearest: |t_i| f_i <= 2^47 + 2^6, so that sum_i t_i f_i,
which is below 2^52, is exact in float64, and it differs from 2^48 sum_i t_i / p_i = 2^48 (C/P + z) by at most
20 · 128 / 2 < 2^10.4. So the nearest integer is z if |C|/P < 1/2 - 2^-37, that is 2|C| < P (1 - 2^-36), the condition
that `check` evaluates.

Q_i and P are cut into limbs of base 2^41: a limb of C is sum_i t_i (limb of Q_i) - z (limb of P), of magnitude below
(20 · 128 + 11) 2^41 < 2^53 in every partial sum, so a float64 matrix product computes it exactly.

**Powers of two** that scale A and B to the largest integers for which the moduli suffice.

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

The last two reduce their limit by a relative 2^-34 + K 2^-50, so that `check`, which computes in float64, can
confirm the condition. S_i is a sum of integers: the exponents depend on no order of summation, and therefore not on
the layout of A and B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.schemes.errorfree.split import times

Array = NDArray[Any]
Product = Callable[[Array, Array, int], Array]
RULES = ("accurate", "fast", "invariant")
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193, 191, 181, 179, 173)
"""Pairwise coprime; N moduli are the first N."""

_BITS = 30  # a row's largest entry becomes an integer of 31 bits, whose square fits int64
_PART = 27  # bits of the parts of an operand
_LIMB = 41
_POINT = 48  # fraction bits of z
_CHUNK = 2**13  # entries combined at a time: their digits and limbs stay in a core's cache


@dataclass(frozen=True, eq=False)
class Basis:
    """The first N moduli and their constants."""

    moduli: tuple[int, ...]
    product: int  # P
    inverses: tuple[int, ...]  # q_i
    limbs: Array  # (L, N + 1): limbs of every Q_i and of -P, the lowest first
    points: Array  # (N,): f_i
    limit: float  # upper limit of 2 sum|a'||b'|: P (1 - 2^-36), rounded down

    @property
    def bits(self) -> int:
        """Every partial sum of `integers` is below 2^bits: t_i Q_i and z P add up to less than 2^12 P."""
        return self.product.bit_length() + 12


@cache
def basis(count: int) -> Basis:
    """The basis of the first `count` moduli.

    Examples
    --------
    >>> basis(2).product, basis(2).inverses
    (65280, (255, 1))
    """
    moduli = MODULI[:count]
    P = math.prod(moduli)
    rest = [P // p for p in moduli]
    limbs = [
        [(Q >> place) & ((1 << _LIMB) - 1) for Q in rest] + [-((P >> place) & ((1 << _LIMB) - 1))]
        for place in range(0, P.bit_length(), _LIMB)
    ]
    return Basis(
        moduli,
        P,
        tuple(pow(Q, -1, p) for Q, p in zip(rest, moduli, strict=True)),
        np.array(limbs, np.float64),
        np.array([((2 << _POINT) // p + 1) // 2 for p in moduli], np.float64),
        math.nextafter(float(P * (1 - Fraction(1, 2**36))), 0.0),
    )


def symmetric(x: Array, p: int) -> Array:
    """x modulo p in [-p/2, p/2), for integers |x| <= 2^43.

    The floor of the quotient is exact: if p divides x + h, the quotient is an integer and the division exact; else it
    lies at least 1/p >= 2^-8 below the next integer, and the rounding error of the division is below 2^-9.
    """
    h = p // 2
    quotient = (x + h) / p
    np.floor(quotient, out=quotient)
    quotient *= -p
    quotient += x
    return quotient


def parts(X: Array) -> list[Array]:
    """X = sum_j part_j 2^(27 j): one or more parts of magnitude below 2^27, for integers of any magnitude."""
    result: list[Array] = []
    while not result or X.any():
        high = np.trunc(X * 2.0**-_PART)
        result.append(X - high * 2.0**_PART)
        X = high
    return result


def residues(X: Sequence[Array], p: int) -> NDArray[np.float32]:
    """Residues in [-p/2, p/2) of integers given as `parts`; their weighted sum, below 2^27 · 128 per part, is exact.

    Examples
    --------
    >>> residues(parts(np.array([2.0**80, -1.0, 128.0])), 256), residues(parts(np.array([2.0**80 + 2.0**30])), 255)
    (array([   0.,   -1., -128.], dtype=float32), array([65.], dtype=float32))
    """
    weights = [pow(2, _PART * j, p) for j in range(len(X))]
    total = X[0]
    for part, weight in zip(X[1:], weights[1:], strict=True):
        total = total + part * float(weight - p * (2 * weight > p))
    return symmetric(total, p).astype(np.float32)


def digit(S: Array, p: int, inverse: int) -> NDArray[np.int8]:
    """t_i for integers S congruent to C modulo p_i, |S| <= 2^43."""
    return symmetric(symmetric(S, p) * float(inverse), p).astype(np.int8)


def three(X: Array, Y: Array, p: int, product: Product) -> Array:
    """X Y modulo p by three products of half the length, X and Y the parts of a complex product and its residues."""
    (a, b), (c, d) = (X[..., ::2], X[..., 1::2]), (Y[..., ::2, ::2], Y[..., ::2, 1::2])
    ac, bd = product(a, c, p // 2), product(b, d, p // 2)
    S = np.empty((*X.shape[:-1], Y.shape[-1]))
    S[..., ::2], S[..., 1::2] = ac - bd, product(symmetric(a + b, p), symmetric(c + d, p), p // 2) - ac - bd
    return S


def integers(t: NDArray[np.int8], basis: Basis) -> Iterator[tuple[Array, int]]:
    """C as a sum of T 2^place, from t (number of moduli, M, N): pairs of T (M, N), integers below 2^53, and place."""
    flat = t.reshape(len(t), -1)
    limbs = np.empty((len(basis.limbs), flat.shape[1]))
    for start in range(0, flat.shape[1], _CHUNK):
        some = slice(start, start + _CHUNK)
        digits = flat[:, some].astype(np.float64)
        z = np.floor((basis.points @ digits + 2.0 ** (_POINT - 1)) * 2.0**-_POINT)
        limbs[:, some] = basis.limbs @ np.concatenate([digits, z[None]])
    for index, limb in enumerate(limbs):
        yield limb.reshape(t.shape[1:]), index * _LIMB


def sums(X: Array, Y: Array) -> Array:
    """Upper bounds of sum_h |x_ih||y_hj| for integers X (M, K) and Y (K, N).

    A sum of K non-negative products in any order has a relative error of at most 2^-53 per operation, and each product
    passes through K operations; no product underflows.
    """
    return (np.abs(X) @ np.abs(Y)) * _upward(X)


def check(X: Array, Y: Array, basis: Basis) -> tuple[float, tuple[int, int] | None]:
    """An upper bound of 2 max_ij sum_h |x_ih||y_hj|, and the index of the maximum if the bound is not below the limit.

    The bound is computed by Cauchy-Schwarz from the longest row and column, and by one float64 product if that bound
    is not below the limit.
    """
    norms = [np.max(np.einsum("ik,ik->i", Z, Z)) for Z in (X, Y.T)]
    bound = 2 * math.sqrt(norms[0]) * math.sqrt(norms[1]) * _upward(X)
    if bound < basis.limit:
        return bound, None
    bounds = sums(X, Y)
    worst = int(np.argmax(bounds))
    bound = 2 * float(bounds.flat[worst])
    return bound, None if bound < basis.limit else divmod(worst, bounds.shape[1])


def _upward(X: Array) -> float:
    """1 + (K + 8) 2^-52: above the relative rounding error of K additions and a few further operations."""
    return 1 + (X.shape[-1] + 8) * 2.0**-52


# --- powers of two that make A and B integers


def fast(A: Array, B: Array, P: int) -> tuple[Array, Array]:
    """Exponents mu (..., M, 1) and nu (..., 1, N) of the published fast mode; A (..., M, K), B (..., K, N) are finite.

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

    return rows(A), rows(B.swapaxes(-1, -2)).swapaxes(-1, -2)


def invariant(A: Array, B: Array, P: int, nearest: bool = False) -> tuple[Array, Array]:
    """Exponents that satisfy the condition by Cauchy-Schwarz and are equivariant to powers of two of rows and columns.

    Examples
    --------
    >>> invariant(np.full((1, 4), 1.0), np.full((4, 1), 2.0**10), 2**64)
    (array([[30]]), array([[20]]))
    """
    most = limit(P, A.shape[-1], nearest)

    def rows(X: Array) -> Array:
        S, e = _squares(X)
        return np.where(S == 0, 0, _power(S, most) - e)

    return rows(A), rows(B.swapaxes(-1, -2)).swapaxes(-1, -2)


def accurate(
    A: Array, B: Array, P: int, product: Product, nearest: bool = False, paired: bool = False
) -> tuple[Array, Array]:
    """Exponents of the published accurate mode; `product(X, Y, largest)` is exact for integers up to `largest`.

    `paired`: columns 2n and 2n + 1 of B belong to one column of a complex matrix, and have one exponent.
    """
    most = limit(P, A.shape[-1], nearest)

    def leading(X: Array) -> tuple[Array, Array]:
        size = np.abs(X)
        first = 5 - _floor_log2(np.max(size, axis=-1, keepdims=True))
        return np.maximum(np.ceil(times(size, first)), size != 0), first  # 1 also where the scaled entry underflows

    (abar, mu), (bbar, nu) = leading(A), leading(B.swapaxes(-1, -2))
    bbar = bbar.swapaxes(-1, -2)
    cbar = product(abar, bbar, 64)
    # if the largest sum is zero, all products of the row (column) are zero and any exponent is valid
    mu = mu + _power(cbar.max(axis=-1, keepdims=True), most)
    columns = cbar.max(axis=-2, keepdims=True)
    if paired:
        columns = np.repeat(np.maximum(columns[..., ::2], columns[..., 1::2]), 2, axis=-1)
    nu = nu.swapaxes(-1, -2) + _power(columns, most)
    return np.where(abar.any(axis=-1, keepdims=True), mu, 0), np.where(bbar.any(axis=-2, keepdims=True), nu, 0)


def limit(P: int, K: int, nearest: bool = False) -> Fraction:
    """Return the limit of the rules "accurate" and "invariant" for A' and B' truncated, or rounded to nearest."""
    most = Fraction(P - 1, 2) * (1 - Fraction(2**16 + K, 2**50))
    # sum|a'||b'| <= (|a_i| + sqrt(K) / 2) (|b_j| + sqrt(K) / 2) for integers rounded from norms |a_i|, |b_j|
    return Fraction(max(1, math.isqrt(int(most)) - math.isqrt(K) - 1) ** 2) if nearest else most


def scaled(limit: Fraction) -> tuple[int, float]:
    """Return h and g of limit = g 4^h, g in [1, 4) rounded down to 51 fraction bits."""
    h = 0
    while limit >= 4 ** (h + 1):
        h += 1
    return h, int(limit / 4**h * 2**51) / 2**51


def _power(S: Array, limit: Fraction) -> Array:
    """The largest t with 4^t S <= limit, for S > 0; for S = 0 the value for S just below 1.

    limit = g 4^h and S = s 4^q with g and s in [1, 4): t = h - q if s <= g, else one less. s is exact and so is the
    comparison.
    """
    h, g = scaled(limit)
    q = (np.frexp(S)[1].astype(np.int64) - 1) // 2
    return np.asarray(h - q - (np.ldexp(S, -2 * q) > g))


def _squares(X: Array) -> tuple[Array, Array]:
    """An upper bound S of the sums of (x / 2^e)^2 over rows, and e = floor(log2 max|x|): both (..., rows, 1).

    |x| / 2^e is rounded up to a multiple of 2^-30, so that S exceeds the sum by a relative error of at most
    sqrt(K) 2^-28 and a few 2^-52; entries that underflow contribute less. The squares are integers and are added in
    two halves.
    """
    size = np.abs(X)
    e = _floor_log2(np.max(size, axis=-1, keepdims=True))
    units = np.ceil(times(size, _BITS - e)).astype(np.int64)
    squares, half = units**2, _BITS + 1
    high = (squares >> half).sum(axis=-1, keepdims=True).astype(np.float64)
    low = (squares & ((1 << half) - 1)).sum(axis=-1, keepdims=True).astype(np.float64)
    S = np.ldexp(high, half) + low  # at most three roundings to nearest
    return np.ldexp(S * (1 + 2.0**-50), -2 * _BITS), e


def _floor_log2(x: Array) -> Array:
    return np.where(x == 0, 0, np.frexp(x)[1].astype(np.int64) - 1)
