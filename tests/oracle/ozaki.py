"""The Ozaki family a second time: plain Python integers, from the papers alone. This module does not import `fpemu`.

Numbers are doubles (fp32 numbers are doubles too); one that is taken apart is an integer in units of 2^LEAST, so that
every step below is exact and every rounding is one call of `rounded`. A slice of a vector is (digits, e): the values
are digits · 2^e.

* Algorithm 1, 2 and 3: Mukunoki, Ozaki, Ogita, Imamura 2020 (DGEMM-TC). Algorithm 1 twice: `slices_literal` as it
  stands there, in floating point, and `slices`, the same rule on integers, for every range.
* ozIMMU: Ootomo, Ozaki, Yokota 2024, with int32 sums of groups of products (Uchino, Ozaki, Imamura 2025).
* Ozaki-II: Ozaki, Uchino, Imamura 2025, in the three scalings.

Readings where the papers leave a case open:

* Algorithm 3: a row of zeros has s = t = 0 and would never end the loop; it counts as satisfied. A vector that has no
  d-th slice has t = 0.
* Fast mode is off if Algorithm 1 came to its end (nothing left) without Algorithm 3 being satisfied.
* A digit is a value of the words: Algorithm 1 would give 12 bits at k = 1, which fp16 does not hold, hence `most`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.oracle.values import TARGETS, floor_log2, round_value

LEAST = -1074  # every double is a multiple of 2^LEAST
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193, 191, 181, 179, 173)

Vector = Sequence[int]


class Slice(NamedTuple):
    """Part of a vector: digits · 2^e."""

    digits: list[int]
    e: int


# --- numbers


def units(x: float) -> int:
    """A double in units of 2^LEAST."""
    n, d = float(x).as_integer_ratio()
    return (n << -LEAST) // d


def fraction(x: int, unit: int) -> Fraction:
    """x·2^unit."""
    return Fraction(x << unit) if unit >= 0 else Fraction(x, 1 << -unit)


def ceil_log2(x: Fraction) -> int:
    e = floor_log2(x)
    return e if fraction(1, e) == x else e + 1


def rounded(x: Fraction, precision: str = "fp64") -> float:
    """x rounded once, to nearest even: subnormals, infinities; a non-zero x that becomes zero keeps its sign."""
    return round_value(x, TARGETS[precision], "RNE")


# --- the exact product


def exact(
    A: NDArray, B: NDArray, alpha: float = 1.0, beta: float = 0.0, C: NDArray | None = None
) -> list[list[Fraction]]:
    """alpha·A·B + beta·C of finite doubles, exactly: (M, K) times (K, N), C (M, N)."""
    a, b = [[units(x) for x in row] for row in A], [[units(x) for x in column] for column in B.T]
    ab = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in b] for row in a]
    result = [[fraction(units(alpha) * x, 3 * LEAST) for x in row] for row in ab]
    if C is not None and beta:
        result = [
            [x + fraction(units(beta) * units(c), 2 * LEAST) for x, c in zip(row, line, strict=True)]
            for row, line in zip(result, C, strict=True)
        ]
    return result


def product(
    A: NDArray, B: NDArray, alpha: float = 1.0, beta: float = 0.0, C: NDArray | None = None, precision: str = "fp64"
) -> NDArray:
    """The exact product, rounded once."""
    return as_array(exact(A, B, alpha, beta, C), (len(A), B.shape[1]), precision)


def errors(D: NDArray, A: NDArray, B: NDArray) -> NDArray:
    """|D - A·B| of each entry, its exact value rounded to a double."""
    pairs = (zip(*rows, strict=True) for rows in zip(D, exact(A, B), strict=True))
    return np.array([[float(abs(Fraction(float(d)) - x)) for d, x in row] for row in pairs])


def as_array(values: Sequence[Sequence[Fraction]], shape: tuple[int, int], precision: str = "fp64") -> NDArray:
    table = [[rounded(x, precision) for x in row] for row in values]
    return np.array(table, dtype=np.float64).reshape(shape).astype(np.float32 if precision == "fp32" else np.float64)


# --- Algorithm 1


def published_bits(k: int, most: int = 11) -> int:
    """floor((24 - log2 k)/2): the largest b with k·2^(2b) <= 2^24, and at most ``most``."""
    b = 12
    while b and k << (2 * b) > 1 << 24:
        b -= 1
    return min(b, most)


def slices_literal(x: Sequence[float], bits: int, precision: str = "fp64") -> list[Slice]:
    """Algorithm 1 as published, in the arithmetic of ``precision``; not for vectors near the overflow threshold."""
    real = np.float32 if precision == "fp32" else np.float64
    x = np.array(x, dtype=real)
    rho = TARGETS[precision].precision - bits
    parts = []
    while x.any():
        tau = ceil_log2(Fraction(float(abs(x).max())))
        sigma = real(math.ldexp(1.0, rho + tau))
        part = (x + sigma) - sigma
        x = x - part
        digits = [Fraction(float(v)) / fraction(1, tau - bits) for v in part]
        assert all(d.denominator == 1 for d in digits)
        parts.append(Slice([int(d) for d in digits], tau - bits))
    return parts


def slices(x: Sequence[float], bits: int, most: int | None = None) -> list[Slice]:
    """Algorithm 1 on integers, at most ``most`` slices.

    x + σ lies in [σ, 2σ) for x >= 0 and is rounded to a multiple of 2^(τ - bits + 1); for x < 0 it lies in [σ/2, σ),
    where numbers are twice as dense. σ is a multiple of twice either step, so ties go to the even multiple for x too.
    """
    rest = [units(v) for v in x]
    parts: list = []
    while any(rest) and (most is None or len(parts) < most):
        tau = ceil_log2(fraction(max(abs(r) for r in rest), LEAST))
        e = tau - bits
        digits = []
        for r in rest:
            step = 2 if r >= 0 else 1
            digits.append(round(fraction(r, LEAST - e) / step) * step)  # of a Fraction: ties to even
        parts.append(Slice(digits, e))
        for i, digit in enumerate(digits):
            taken = fraction(digit, e - LEAST)
            assert taken.denominator == 1
            rest[i] -= int(taken)
    return parts


def rows(A: NDArray, bits: int, most: int | None = None) -> list[list[Slice]]:
    return [slices(row, bits, most) for row in A]


def count(parts: Sequence[Sequence[Slice]]) -> int:
    """Slices of a matrix: as many as its longest row has."""
    return max((len(p) for p in parts), default=0)


# --- Algorithm 3


def satisfied(A: NDArray, B: NDArray, bits: int, precision: str = "fp64") -> Callable[[int], bool]:
    """Whether d slices are enough: s_i > t_i in every row, s and t exact (squared, for the square root of k)."""
    u = fraction(1, -TARGETS[precision].precision)
    K = A.shape[1]
    weight = [sum(abs(units(b)) for b in line) for line in B]
    s = [sum(abs(units(a)) * w for a, w in zip(row, weight, strict=True)) for row in A]
    parts = rows(A, bits)

    def enough(d: int) -> bool:
        for i, row in enumerate(parts):
            if d > len(row) or s[i] == 0:
                continue  # t = 0 < s, or a row (of A or of the product) of zeros
            digits, e = row[d - 1]
            t = (d + 1) * sum(abs(x) * w for x, w in zip(digits, weight, strict=True)) * fraction(1, e - LEAST)
            if not 4 * K * (u * s[i]) ** 2 > t**2:
                return False
        return True

    return enough


def algorithm3(A: NDArray, B: NDArray, bits: int, precision: str = "fp64") -> int:
    """The number of slices d at which the loop of Algorithm 3 ends."""
    enough, d = satisfied(A, B, bits, precision), 2
    while not enough(d):
        d += 1
    return d


# --- Algorithm 2


class Evaluated(NamedTuple):
    D: NDArray
    slices: tuple[int, int]
    products: int


def dgemm_tc(
    A: NDArray,
    B: NDArray,
    most: tuple[int, int] | int,
    fast: bool,
    bits: int | None = None,
    precision: str = "fp64",
    d: int | None = None,
) -> Evaluated:
    """Algorithm 2 with at most ``most`` slices of A and of B, q outside and p inside, summed in fp64 (fp32).

    Fast: only p + q <= d + 1, where d is ``most`` unless given.
    """
    most = (most, most) if isinstance(most, int) else most
    d = max(most) if d is None else d
    bits = published_bits(A.shape[1]) if bits is None else bits
    real = np.float32 if precision == "fp32" else np.float64
    a, b = rows(A, bits, most[0]), rows(B.T, bits, most[1])
    sa, sb = count(a), count(b)
    pairs = [(p, q) for q in range(sb) for p in range(sa) if not fast or p + q + 2 <= d + 1]
    D = np.zeros((len(A), B.shape[1]), real)
    for i, row in enumerate(a):
        for j, column in enumerate(b):
            total = real(0)
            for p, q in pairs:
                if p < len(row) and q < len(column):
                    T = dot(row[p].digits, column[q].digits)
                    total = total + real(math.ldexp(T, row[p].e + column[q].e))
            D[i, j] = total
    return Evaluated(D, (sa, sb), len(pairs))


def dot(x: Vector, y: Vector) -> int:
    return sum(p * q for p, q in zip(x, y, strict=True))


# --- ozIMMU


def ozimmu_bits(k: int) -> int:
    return min(7, (31 - (k - 1).bit_length()) // 2)


def fixed_grid(x: Sequence[float], bits: int, most: int, headroom: int = 1) -> tuple[list[list[int]], int, bool]:
    """Truncating split of one vector: (digits of each slice, e, whether anything is left).

    |x| < 2^(e - headroom), and slice p (from 1) is in units of 2^(e - p·bits). The public code of ozIMMU doubles the
    largest power of two of a row: headroom 1.
    """
    rest = [units(v) for v in x]
    largest = max(abs(r) for r in rest)
    if not largest:
        return [[0] * len(rest) for _ in range(most)], 0, False
    e = floor_log2(fraction(largest, LEAST)) + 1 + headroom
    parts = []
    for p in range(1, most + 1):
        unit = e - p * bits - LEAST  # in units of 2^LEAST
        digits = []
        for i, r in enumerate(rest):
            digit = (abs(r) >> unit if unit >= 0 else abs(r) << -unit) * (-1 if r < 0 else 1)
            digits.append(digit)
            rest[i] -= digit << unit if unit >= 0 else digit >> -unit
        parts.append(digits)
    return parts, e, any(rest)


def ozimmu(A: NDArray, B: NDArray, s: int, sums: str = "group", bits: int | None = None, headroom: int = 1) -> NDArray:
    """Products with p + q <= s + 1, groups g = p + q ascending, p ascending, int32 sums of at most 2^r of a group."""
    K = A.shape[1]
    bits = ozimmu_bits(K) if bits is None else bits
    share = 1 << max(31 - 2 * bits - (K - 1).bit_length(), 0) if sums == "group" else 1
    a, b = ([fixed_grid(row, bits, s, headroom) for row in X] for X in (A, B.T))
    D = np.zeros((len(A), B.shape[1]))
    for i, (x, ea, _) in enumerate(a):
        for j, (y, eb, _) in enumerate(b):
            total = 0.0
            for g in range(2, s + 2):
                products = [dot(x[p - 1], y[g - p - 1]) for p in range(1, g)]
                for start in range(0, len(products), share):
                    total += math.ldexp(sum(products[start : start + share]), ea + eb - g * bits)
            D[i, j] = total
    return D


def mantissa_loss(A: NDArray, bits: int, s: int) -> Fraction:
    """Average, over the elements of the rows of A, of the significand bits (of 53) that s slices do not reach.

    Of s·bits places one is the headroom.
    """
    lost = 0
    for row in A:
        top = max(floor_log2(abs(Fraction(float(x)))) for x in row) + 1
        lost += sum(max(0, top - floor_log2(abs(Fraction(float(x)))) + 53 - s * bits) for x in row)
    return Fraction(lost, A.size)


def ozimmu_count(A: NDArray, bits: int, loss: float) -> int:
    s = 1
    while mantissa_loss(A, bits, s) > Fraction(loss):
        s += 1
    return s


def ozimmu_bound(A: NDArray, B: NDArray, s: int) -> NDArray:
    """Rigorous for either split and any order of the sums, generous by a factor of a few.

    What is dropped: sum over p of |a_p| |b - b_1 - ... - b_(s+1-p)| and the rest of A times b, that is s + 1 terms of
    at most 4·2^(ea + eb - s·bits) for each k (|digit| <= 2^bits and one more bit at the top for the nearest split).
    And at most s(s+1)/2 fp64 additions, none of a partial sum above 8·k·2^(ea+eb).
    """
    K = A.shape[1]
    bits = ozimmu_bits(K)

    def tops(X: NDArray) -> NDArray:
        return np.frexp(abs(X).max(axis=1))[1] + 1  # the headroom

    size = np.ldexp(float(K), tops(A)[:, None] + tops(B.T)[None, :])
    return size * (4 * (s + 1) * 2.0 ** (-s * bits) + 8 * s * (s + 1) / 2 * 2.0**-53)


# --- Ozaki-II


def crt(X: Sequence[Sequence[int]], Y: Sequence[Sequence[int]], moduli: Sequence[int]) -> list[list[int]]:
    """X·Yᵀ from its residues, by the Chinese remainder theorem: the symmetric residue modulo the product."""
    P = math.prod(moduli)
    result = []
    for row in X:
        line = []
        for column in Y:
            total = 0
            for m in moduli:
                r = sum((x % m) * (y % m) for x, y in zip(row, column, strict=True)) % m
                total += r * (P // m) * pow(P // m, -1, m)
            total %= P
            line.append(total - P if 2 * total > P else total)
        result.append(line)
    return result


def log2(x: Fraction) -> float:
    """To about 1e-15 of its magnitude, for any positive x."""
    e = floor_log2(x)
    return e + math.log2(float(x / fraction(1, e)))


def floor_away_from_integers(x: float) -> int:
    """The floor of a computed logarithm, which must not hang on its rounding error."""
    assert abs(x - round(x)) > 1e-9, "choose other operands: this logarithm is too close to an integer"
    return math.floor(x)


def ozaki2_exponents(A: NDArray, B: NDArray, N: int, scaling: str) -> tuple[list[int], list[int]]:
    """mu by row of A and nu by column of B; 0 for a vector of zeros (its product is zero for any)."""
    P = math.prod(MODULI[:N])
    a, b = [[Fraction(float(x)) for x in row] for row in A], [[Fraction(float(x)) for x in column] for column in B.T]
    if scaling == "fast":
        L = log2(Fraction(P - 1)) / 2 - 1.5
        return _one_by_one(a, lambda x: _fast(x, L)), _one_by_one(b, lambda x: _fast(x, L))
    L2 = log2(Fraction(P - 1)) / 2 - 0.5
    if scaling == "invariant":

        def by_norm(x: list[Fraction]) -> int:
            return floor_away_from_integers(L2 - log2(sum((v * v for v in x), Fraction(0))) / 2)

        return _one_by_one(a, by_norm), _one_by_one(b, by_norm)
    assert scaling == "accurate"
    mu1 = _one_by_one(a, lambda x: 5 - floor_log2(max(map(abs, x))))
    nu1 = _one_by_one(b, lambda x: 5 - floor_log2(max(map(abs, x))))
    abar = [[math.ceil(abs(v) * Fraction(2) ** m) for v in x] for x, m in zip(a, mu1, strict=True)]
    bbar = [[math.ceil(abs(v) * Fraction(2) ** m) for v in x] for x, m in zip(b, nu1, strict=True)]
    cbar = [[dot(x, y) for y in bbar] for x in abar]
    rows_most, columns_most = [max(line) for line in cbar], [max(column) for column in zip(*cbar, strict=True)]

    def final(first: list[int], most: list[int]) -> list[int]:
        return [f + (_floor_half_log(L2, c) if c else 0) for f, c in zip(first, most, strict=True)]

    return final(mu1, rows_most), final(nu1, columns_most)


def _one_by_one(vectors: list[list[Fraction]], rule: Callable[[list[Fraction]], int]) -> list[int]:
    return [rule(x) if any(x) else 0 for x in vectors]


def _floor_half_log(L: float, c: int) -> int:
    return floor_away_from_integers(L - math.log2(c) / 2)


def _fast(x: list[Fraction], L: float) -> int:
    norm = log2(sum((v * v for v in x), Fraction(0))) / 2
    largest = floor_log2(max(map(abs, x)))
    return min(floor_away_from_integers(L - 1), floor_away_from_integers(L - norm)) - largest


class Modular(NamedTuple):
    D: NDArray
    unique: bool  # 2·sum|a'||b'| < P everywhere
    bits: float  # log2(2·max sum|a'||b'|); -inf if all are zero


def ozaki2(A: NDArray, B: NDArray, N: int, scaling: str, precision: str = "fp64", *, nearest: bool = False) -> Modular:
    """Integers by truncation or to nearest even, the residues, the Chinese remainder, one rounding."""
    P, integer = math.prod(MODULI[:N]), round if nearest else math.trunc
    mu, nu = ozaki2_exponents(A, B, N, scaling)
    x = [[integer(Fraction(float(v)) * Fraction(2) ** m) for v in row] for row, m in zip(A, mu, strict=True)]
    y = [[integer(Fraction(float(v)) * Fraction(2) ** m) for v in column] for column, m in zip(B.T, nu, strict=True)]
    sums = [dot([abs(v) for v in row], [abs(v) for v in column]) for row in x for column in y]
    C = crt(x, y, MODULI[:N])
    values = [[fraction(c, -m - n) for c, n in zip(line, nu, strict=True)] for line, m in zip(C, mu, strict=True)]
    D = as_array(values, (len(A), B.shape[1]), precision)
    most = 2 * max(sums)
    return Modular(D, most < P, log2(Fraction(most)) if most else -math.inf)
