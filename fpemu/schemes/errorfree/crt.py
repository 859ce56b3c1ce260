"""Integers from their residues: the Chinese remainder theorem on matrices, without rounding errors.

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
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193, 191, 181, 179, 173)
"""Pairwise coprime; N moduli are the first N."""

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
    return 1 + (X.shape[1] + 8) * 2.0**-52
