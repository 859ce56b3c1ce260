"""Error-free splits: a matrix as a sum of slices of few bits, with exponents for each row of A (column of B).

    X = sum over j of digits_j · 2^(exponents_j)  +  residual

A slice holds integers, its digits, and for every row the exponent of its unit digit. Four rules define the digits of a
residual x, with 2^tau >= max|x| of the row (column) and the unit 2^(tau - b):

published   fl(fl(x + sigma) - sigma) with u·sigma the unit (Mukunoki et al. 2020, Algorithm 1), tau anew for every
            slice. For x < 0, fl(x + sigma) lies in the binade below sigma, and its last place is half as large:
            negative digits are any integers of at most 2^b, positive digits are even. The residual is at most a unit,
            so a slice removes b bits of the row.
balanced    the nearest integer, tau anew for every slice. The residual is at most half a unit: b + 1 bits a slice.
truncate    toward zero on a fixed grid of units, b bits apart (Ootomo, Ozaki, Yokota 2024).
nearest     the nearest integer on the same grid (Uchino, Ozaki, Imamura 2025).

No step rounds: x in units is x times a power of two; the digit is a multiple of x's last place, or x a multiple of the
digit's; and the residual, a multiple of x's last place, is smaller than x. Entries so far below a unit that they
underflow in units have the digit 0 and stay in the residual unchanged. (Algorithm 1 in fp64 overflows for max|x| near
2^1023, where its slices cannot be scaled by 2^-tau in one step; in units nothing overflows.)

The number of slices of a product follows from Algorithm 3 of Mukunoki et al. (2020). It estimates the error of DGEMM as
|fl(AB) - AB| e <= 2 sqrt(k) u |A||B| e (Eq. 1); omitting the products of slice d of A and of the residual after it adds
an error of at most (d + 1) |A_d|(|B| e). d is the smallest number of at least 2 for which the second bound is below the
first in every row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.formats import FloatFormat

Array = NDArray[Any]
ADAPTIVE = ("published", "balanced")
FIXED = ("truncate", "nearest")
_SIGMA = 2.0**53  # sigma in units: u·sigma = 1


class Slice(NamedTuple):
    """One slice of X: digits · 2^exponents. Rows without a residual repeat the exponent of the previous slice."""

    digits: Array  # integers, of X's shape
    exponents: Array  # of the unit digit: (M, 1) for A, (1, N) for B


class Rest(NamedTuple):
    """Residual of X after some slices: left · 2^exponents."""

    left: Array
    exponents: Array
    largest: Array  # magnitude in `left` of every row (column)


@dataclass(frozen=True, eq=False)
class Slices:
    """X as a sum of slices and a residual; a stack of matrices has the slices of the matrix with the most."""

    bits: int  # b: units lie at 2^-b of a bound on the residual of a row (column)
    top: Array  # exponent tau of every row (column): its entries are at most 2^tau in magnitude
    items: tuple[Slice, ...]
    rest: Rest
    complete: Any  # whether the residual is zero, for every matrix

    @property
    def slices(self) -> int:
        """Number of slices."""
        return len(self.items)

    @cached_property
    def largest(self) -> Array:
        """The largest magnitude of a digit, for every matrix."""
        sizes = reduce(np.maximum, (np.abs(s.digits) for s in self.items))
        return np.asarray(np.max(sizes, axis=(-2, -1)).astype(np.int64))

    def magnitudes(self) -> tuple[list[Array], Array]:
        """The magnitudes of the slices as float64 numbers, and the magnitude of the residual."""
        sizes = [np.ldexp(np.abs(s.digits.astype(np.float64)), s.exponents) for s in self.items]
        return sizes, np.ldexp(np.abs(self.rest.left), self.rest.exponents)


def split(
    X: Array, axis: int, bits: int, rule: str, count: Any = None, limit: int | None = None, headroom: int = 0
) -> Slices:
    """Split X into at most `count` slices (None: until the residual is zero); at least one, of zeros if X is zero.

    X is a finite float64 matrix or a stack of them, without empty axes; `axis` is the axis of K, -1 for A and -2 for B.
    A stack may have a `count` for each matrix, which has zeros in the slices after its last. A row in which a digit
    would exceed `limit` (default 2^b) starts one binade higher; `headroom` bits stay free above a row's largest entry
    on a fixed grid.
    """
    items: list[Slice] = []
    most, complete = sys.maxsize if count is None else int(np.max(count)), np.ones(X.shape[:-2], bool)
    for number, (item, rest) in enumerate(islice(slices(X, axis, bits, rule, limit, headroom), most), 1):
        items.append(item)
        if number < most and np.any(ended := np.equal(count, number)):  # the next step finds no residual of these
            complete[ended] = ~rest.largest[ended].any(axis=(-2, -1))
            rest.left[ended] = rest.largest[ended] = 0
    if not items:
        zero = np.zeros_like(np.max(X, axis=axis, keepdims=True), np.int64)
        items, rest = [Slice(np.zeros(X.shape, _dtype(bits)), zero)], Rest(np.zeros_like(X), zero, zero)
    complete = complete & ~rest.largest.any(axis=(-2, -1))
    return Slices(bits, items[0].exponents + bits, tuple(items), rest, complete)


def slices(
    X: Array, axis: int, bits: int, rule: str, limit: int | None = None, headroom: int = 0
) -> Iterator[tuple[Slice, Rest]]:
    """Yield the slices of X until the residual is zero, each with the residual, which the next step overwrites."""
    left, base, largest, wide = _normalised(X, axis)
    work, unit, first, dtype, short = np.empty_like(left), base, True, _dtype(bits), X.shape[axis] <= 16
    while (remains := largest > 0).any():
        if first or rule in ADAPTIVE:
            tau = ceil_log2(largest)
            if limit is not None and limit < 2**bits:
                ends = np.ldexp(np.stack([largest, -largest]), bits - tau)
                tau = tau + (np.abs(_digits(ends, rule)).max(axis=0) > limit)
            tau = base + tau + headroom
        else:
            tau = unit
        unit, first = np.where(remains, tau - bits, unit), False
        if wide:
            t = np.ldexp(left, -unit)
            digits = _digits(t, rule, work)
            left = np.where(digits == 0, left, np.ldexp(t - digits, unit))
        else:
            left = times(left, base - unit, left)
            digits = _digits(left, rule, work)
            left -= digits
            base = unit
        item = Slice(digits.astype(dtype), unit)
        size = np.abs(left, out=work)
        if short:  # NumPy takes many times longer for the maxima of short rows than for those of arrays of entries
            largest = np.expand_dims(reduce(np.maximum, np.moveaxis(size, axis, 0), 0.0), axis)
        else:
            largest = np.max(size, axis=axis, keepdims=True)
        yield item, Rest(left, base, largest)


def _normalised(X: Array, axis: int) -> tuple[Array, Array, Array, bool]:
    """X as Y · 2^base with Y at most 1 in every row (column), and max Y; X, 0, max X and True if Y would underflow."""
    largest = np.max(np.abs(X), axis=axis, keepdims=True)
    base = ceil_log2(largest)
    Y = times(X, -base)
    if np.array_equal(times(Y, base), X):
        return Y, base, np.ldexp(largest, -base), False
    return X, np.zeros_like(base), largest, True


def times(x: Array, exponent: Array, out: Array | None = None) -> Array:
    """x · 2^exponent, rounded once outside the normal range."""
    if np.max(np.abs(exponent), initial=0) <= 1000:
        return np.asarray(np.multiply(x, np.ldexp(1.0, exponent), out=out))
    return np.asarray(np.ldexp(x, exponent, out=out))


def inside(A: Array, B: Array, paired: bool = False) -> tuple[Array, Array]:
    """A S and S^-1 B with S diagonal, of powers of two: for A (..., M, K), B (..., K, N), finite.

    s_k = floor((e(max_j|b_kj|) - e(max_i|a_ik|)) / 2), e(x) = floor(log2 x), which brings the largest entries of column
    k of A and of row k of B within a factor of four: the "inside scaling" of Ballard, Benson, Druinsky, Lipshitz and
    Schwartz, "Improving the numerical stability of fast matrix multiplication", SIAM J. Matrix Anal. Appl. 37(4), 2016,
    with powers of two. s_k is limited so that no entry becomes subnormal: both scalings are exact. s_k = 0 where either
    is zero. `paired`: 2k and 2k + 1 belong to one k of a complex product, and have one power.

    >>> A, B = inside(np.array([[2.0**20, 1.0]]), np.array([[1.0], [2.0**-6]]))
    >>> A.tolist(), B.tolist()
    ([[1024.0, 0.125]], [[1024.0], [0.125]])
    """

    def ends(X: Array, axis: int) -> tuple[Array, Array]:
        size = np.abs(X)
        top, least = size.max(axis=axis), np.where(size == 0, np.inf, size).min(axis=axis)
        if paired:
            top, least = (
                np.repeat(f(x[..., ::2], x[..., 1::2]), 2, axis=-1) for f, x in ((np.maximum, top), (np.minimum, least))
            )
        return top, least

    (a, p), (b, q) = ends(A, -2), ends(B, -1)
    exponent = (np.frexp(b)[1] - np.frexp(a)[1]) >> 1
    low, high = np.minimum(0, -1021 - np.frexp(p)[1]), np.maximum(0, np.frexp(q)[1] + 1021)
    exponent = np.where((a == 0) | (b == 0), 0, np.clip(exponent, low, high))
    return np.ldexp(A, exponent[..., None, :]), np.ldexp(B, -exponent[..., :, None])


def ceil_log2(x: Array) -> Array:
    """ceil(log2 x) for x > 0; 0 for x = 0."""
    mantissa, exponent = np.frexp(x)
    return np.where(x == 0, 0, exponent - (mantissa == 0.5)).astype(np.int64)


def _digits(t: Array, rule: str, out: Array | None = None) -> Array:
    if rule == "published":
        sum_ = np.add(t, _SIGMA, out=out)
        return np.asarray(np.subtract(sum_, _SIGMA, out=sum_))
    return np.asarray(np.trunc(t, out=out) if rule == "truncate" else np.rint(t, out=out))


def _dtype(bits: int) -> Any:
    return np.float32 if bits <= 24 else np.float64


def left_out(A: Array, B: Array, a: Slices, b: Slices, d: int, fast: bool) -> Array:
    """Bound on the error of A·B from residuals, and in fast mode from the products p + q > d + 1; float64."""
    (x, rest_a), (y, rest_b) = a.magnitudes(), b.magnitudes()
    lost = rest_a @ abs(B) + abs(A) @ rest_b + rest_a @ rest_b
    for p in range(len(x)):
        for q in range(max(0, d - p), len(y)) if fast else ():
            lost = lost + x[p] @ y[q]
    return np.asarray(lost)


def within_range(add: Callable[[Array], Array], a: Slices, b: Slices, fmt: FloatFormat) -> Array:
    """A floating-point sum of products of slices that overflows only where its result does.

    `add(back)` sums the products times 2^-back, for every entry of D. Where the plain sum is not finite, it is replaced
    by a sum with a `back` for which no partial sum can overflow, times 2^back; terms that underflow there are
    negligible.
    """
    none = np.zeros((1, 1), np.int64)
    with np.errstate(all="ignore"):
        total = add(none)
        over = ~np.isfinite(total)
        if over.any():
            back = np.maximum(0, a.top + b.top + a.items[0].digits.shape[-1].bit_length() + 2 - fmt.emax)
            total = np.where(over, np.ldexp(add(back), back), total)
    return total


# --- the number of slices


def row_sums(B: Array, step: int | None = None) -> Array:
    """|B| e divided by a power of two, for B (..., K, N); `step` rows at a time."""
    K, axes = B.shape[-2], (-2, -1)
    top = ceil_log2(np.maximum(np.max(B, axis=axes, keepdims=True), -np.min(B, axis=axes, keepdims=True)))
    rows = (np.ascontiguousarray(B[..., k, :]) for k in pieces(K, step or K))
    return np.concatenate([times(np.abs(b), -top).sum(axis=-1) for b in rows], axis=-1)


def needed_for(
    A: Array, weight: Array, bits: int, rule: str, u: float, limit: int | None = None, printed: bool = False
) -> Array:
    """Algorithm 3's d for A (..., M, K) and `weight` = |B| e (..., K), for results with unit roundoff u.

    With `printed`, the criterion uses only the digits of slice d, without the residual after them. NumPy sums each row
    by itself, so that the order of summation, and with it d, depends on neither threads nor blocks.
    """
    top, weight = ceil_log2(np.max(np.abs(A), axis=-1, keepdims=True)), weight[..., None, :]
    enough = 2 * np.sqrt(A.shape[-1]) * u * (times(np.abs(A), -top) * weight).sum(axis=-1)
    d, result = 0, np.zeros(A.shape[:-2], np.int64)
    for d, (item, rest) in enumerate(slices(A, -1, bits, rule, limit), 1):
        size = times(item.digits.astype(np.float64), item.exponents - top)
        if not printed:
            size = size + times(rest.left, rest.exponents - top)
        lost = (d + 1) * (np.abs(size) * weight).sum(axis=-1)
        if d >= 2:
            result = np.where((result == 0) & ((enough > lost) | (lost == 0)).all(axis=-1), d, result)
            if result.all():
                return result
    return np.where(result == 0, max(2, d + 1), result)


class Length(NamedTuple):
    """The slices of every matrix, whether the residual after them is zero, and bits from top to bottom."""

    slices: Array
    complete: Array
    spread: Array


def length(X: Array, bits: int, rule: str, count: Any, limit: int, step: int) -> Length:
    """The slices of the matrices X (n, rows, K), at most `count` (one or n; None: all), `step` rows at a time."""
    one = np.ones(len(X), np.int64)
    longest, complete, spread, count = one, one > 0, bits * one, (sys.maxsize if count is None else count) * one
    for i in pieces(X.shape[1], step):
        rows, top = np.ascontiguousarray(X[:, i]), None
        remains = rows.any(axis=(1, 2))
        for number, (item, rest) in enumerate(islice(slices(rows, 2, bits, rule, limit), int(count.max())), 1):
            top = item.exponents + bits if top is None else top
            within = remains & (number <= count)
            longest = np.maximum(longest, number * within)
            spread = np.maximum(spread, np.max(top - item.exponents, axis=(1, 2)) * within)
            remains = rest.largest.any(axis=(1, 2))
            complete = complete & ~(remains & (number == count))
    return Length(longest, complete, spread)


# --- outer blocks: the product of some rows of A and some columns of B at a time, within a limit on memory


@dataclass(frozen=True)
class BlockCost:
    """Bytes of a block per row of A, per column of B, and per entry of D."""

    row: int
    column: int
    entry: int

    def bytes(self, rows: int, columns: int) -> int:
        """Bytes of a block."""
        return rows * self.row + columns * self.column + rows * columns * self.entry


def block(M: int, N: int, cost: BlockCost, memory: int | None, largest: int, name: str) -> tuple[int, int]:
    """Rows and columns of a block: ceil(n / ceil(n / b)) for the largest b that fits (Mukunoki et al. 2020, 4.2).

    InputError if not even one row and one column fit.
    """
    b = largest
    if memory is not None:
        if cost.bytes(1, 1) > memory:
            raise InputError(
                f"{name}: memory={memory} bytes hold no block of one row and one column, which take about "
                f"{cost.bytes(1, 1)}: give more, or multiply in pieces along K"
            )
        linear = cost.row + cost.column  # the largest b with entry·b² + linear·b <= memory
        b = min(b, (isqrt(linear * linear + 4 * cost.entry * memory) - linear) // (2 * cost.entry))
        b = max(b, 1)
    return even(M, b), even(N, b)


def even(n: int, b: int) -> int:
    """ceil(n / ceil(n / b)): the size of blocks of at most b, as equal as possible."""
    return -(-n // -(-n // b))


def pieces(n: int, size: int) -> Iterator[slice]:
    """The indices from 0 to n in blocks of a size, the last one shorter."""
    return (slice(i, min(i + size, n)) for i in range(0, n, size))
