"""Sums of products of slices: in a format and a stated order, or exact with one rounding of alpha * S + beta * C.

Limbs. The integer of each entry is stored in int64 limbs of base 2^52, the lowest first. A carry reduces all limbs but
the highest, which has the sign, to [0, 2^52); between carries limbs are plain sums of their terms.

No limb overflows. Placing T * 2^s, |T| <= 2^54 and s = 52 q + r with 0 <= r <= 51, adds to limb q the low 52 - r bits
of T times 2^r, which is in [0, 2^52), and to limb q + 1 the rest, floor(T / 2^(52 - r)), at most 2^53 in magnitude. A
limb receives at most one of the two, so after a carry and n placements it is below 2^52 + n * 2^53 in magnitude: with
n <= 500, below 2^62. A carry adds at most 2^62 / 2^52 = 2^10 to a limb.

Merged slices. Where BLAS is exact, few products of float64 matrices give the sum of all products of slices.
Neighbouring slices of A are merged into bins of w bits: in a row with entries of at most 2^top, bin i holds the slices
whose tau lies in (top - (i+1)·w, top - i·w], as integers in units of 2^(top - (i+1)·w - b + 1). B is merged in the same
way. The product of bin i of A and bin j of B then has the weight 2^-((i + j)·w) in every row and column, and one call
of BLAS (or of a GPU) adds products of equal weight, along a K several times as long. All sums are exact while

    (products in a call) · K · max|X| · max|Y| <= 2^53,

and the number of products in a call follows from this condition and the entries of the bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import frexp, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.formats import FloatFormat
from fpemu.mma import device as devices
from fpemu.mma.device import Device
from fpemu.rounding import Ints, Significands, bit_lengths
from fpemu.schemes.base import Call
from fpemu.schemes.errorfree.plan import Counts, Report, SlicePlan
from fpemu.schemes.errorfree.products import SliceProducts, Tally
from fpemu.schemes.errorfree.split import Slices, pieces, times, within_range

Array = NDArray[Any]
WIDTH = 52
"""Bits of a limb"""
HALF = WIDTH // 2
PLACEMENTS = 500
"""Matrices placed between two carries"""
CHUNK = 1 << 14
"""Entries computed at a time, so that their limbs stay in a core's cache and memory is bounded"""
_TERMS = 8  # products of equal weight that one call adds


def multiply(
    plan: SlicePlan, call: Call, carrier: str, every: Sequence[Counts | None], blocks: tuple[int, int]
) -> tuple[Array, list[Report]]:
    """The products of a call's matrices by a plan, and their reports; those with similar counts are computed together.

    `every` has the largest numbers of slices of each; None, for all of them: all slices and products. In a stack, the
    matrices with fewer slices have slices of zeros, whose products change no sum.
    """
    similar: dict[Any, list[int]] = {}
    for i, counts in enumerate(every):
        # zeros would move products to other int32 sums, where these do not have room for all of equal p + q
        alone = counts is not None and 1 < (plan.shared or 1) < counts.d
        similar.setdefault((i * alone, counts and max(counts.d, 16).bit_length()), []).append(i)
    parts = []
    for some in similar.values():
        part = call if len(similar) == 1 else replace(call, A=call.A[some], B=call.B[some])
        parts.append(_together(plan, part, carrier, [every[i] for i in some], blocks))
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(list(similar.values())))
    reports = [report for _, some in parts for report in some]
    return np.concatenate([D for D, _ in parts])[order], [reports[i] for i in order]


def _together(
    plan: SlicePlan, call: Call, carrier: str, every: list[Any], blocks: tuple[int, int]
) -> tuple[Array, list[Report]]:
    """`multiply` for all matrices at once, some rows and columns of the results at a time."""
    A, B, fmt = call.A, call.B, call.scheme.operand
    D, tallies = np.empty((*A.shape[:-1], B.shape[-1]), fmt.dtype), (Tally(), Tally())
    a_count, b_count, (d, fast) = None, None, np.zeros((2, len(A)), int)
    if every[0] is not None:
        a_count, b_count, d, fast = np.array([(*counts.slices, counts.d, counts.fast) for counts in every]).T
    lost = np.zeros(len(A), bool)
    for i in pieces(A.shape[-2], blocks[0]):
        a = plan.cut(A[:, i], -1, a_count)
        tallies[0].add(a)
        for j in pieces(B.shape[-1], blocks[1]):
            b = plan.cut(B[..., j], -2, b_count)
            tallies[1].add(b)
            products = SliceProducts(plan, a, b, carrier, call.device)
            lost |= products.lost
            if plan.adds_in is None:
                total, broken = exact_sum(products)
                C = None if call.C is None else call.C[:, i, j]
                rounded = total.round_to(fmt, call.alpha, call.beta, C)
                D[:, i, j] = np.where(broken, np.nan, rounded) if broken.any() else rounded
            else:
                D[:, i, j] = floating_sum(products, d, fast.astype(bool))
    conditions: dict[Any, Report] = {}  # of equal slices but for the zeros among their digits
    reports = []
    summaries = tallies[0].total(a_count), tallies[1].total(b_count)
    for x, y, most, fewer, bad in zip(*summaries, d.tolist(), fast.astype(bool).tolist(), lost.tolist(), strict=True):
        key = (x[:3], y[:3], most, fewer, bad)
        if key not in conditions:
            conditions[key] = plan.report(x, y, most, fewer, bad, blocks)
        reports.append(Report(**vars(conditions[key]) | {"fill": (x.fill, y.fill)}))
    return D, reports


# --- sums in floating point


def floating_sum(products: SliceProducts, d: Array, fast: Array) -> Array:
    """The sum of groups of products, rounded after each to the plan's format; d and fast of each matrix."""
    plan, a, b, fmt = products.plan, products.a, products.b, products.plan.adds_in
    assert fmt is not None
    dtype, on_grid = fmt.dtype, plan.on_grid
    groups = plan.groups(a.slices, b.slices, int(d.max()), bool(fast.all()))

    def add(back: Array) -> Array:
        total = np.zeros((*a.top.shape[:-1], b.top.shape[-1]), dtype)
        for pairs in groups:
            p, q = pairs[0]
            # float64 at once, so that the memory of a float32 product is free for the next array
            T = (products(p, q) if len(pairs) == 1 else products.sum(pairs)).astype(np.float64, copy=False)
            if (left_out := fast & (p + q >= d)).any():
                T = np.where(left_out[:, None, None], 0.0, T)
            rows, columns = a.items[p].exponents, b.items[q].exponents
            if on_grid:  # a slice of zeros repeats the exponent before it, unlike slices of other products of the sum
                rows, columns = a.top - (p + 1) * plan.bits, b.top - (q + 1) * plan.bits
            total += _weighted(T, rows, columns, back).astype(dtype, copy=False)
        return total

    return within_range(add, a, b, fmt)


def _weighted(T: Array, rows: Array, columns: Array, back: Array) -> Array:
    """T · 2^(rows + columns - back): exact unless the result leaves the normal range."""
    if not back.any() and max(np.max(np.abs(rows)), np.max(np.abs(columns))) <= 500:
        return T * np.ldexp(1.0, rows) * np.ldexp(1.0, columns)
    return np.asarray(np.ldexp(T, rows + columns - back))


# --- exact sums


class ExactSum:
    """A matrix S of exact sums of integer matrices times powers of two.

    Entry (i, j) is (sum of T[i, j] * 2^shift) * 2^(rows[i] + columns[j]): rows (..., M, 1) and columns (..., 1, N)
    have the binary exponent of the sum's lowest unit. Every partial sum is below 2^bits units in magnitude, bits zero
    or more.

    >>> S = ExactSum(np.array([[-60]]), np.array([[0]]), bits=70)
    >>> S.add(np.array([[1]]), 60)
    >>> S.add(np.array([[1.0]]), 0)
    >>> S.round_to("fp64").item()  # 1 + 2^-60
    1.0
    >>> S.round_to("fp64", beta=-1.0, C=np.array([[1.0]])).item() == 2**-60
    True
    """

    def __init__(self, rows: Any, columns: Any, bits: int) -> None:
        self.rows, self.columns = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
        self.bits = bits
        self.shape = np.broadcast_shapes(self.rows.shape, self.columns.shape)
        # one limb more than 2^bits needs: the highest is then 0 or -1 after a carry
        self._limbs = np.zeros((bits // WIDTH + 2, prod(self.shape)), dtype=np.int64)
        self._placed = 0

    def add(self, T: NDArray[Any], shift: Any) -> None:
        """Add T * 2^shift units to the sum: T (..., M, N) integers of magnitude up to 2^53, `shift` zero or more."""
        if self._placed == PLACEMENTS:
            for some in self._chunks():
                _carry(self._limbs[:, some])
            self._placed = 0
        shift = np.asarray(shift, dtype=np.int64)
        # a term is the difference of two partial sums, hence below 2^(bits + 1): only a zero is shifted further
        outside = (shift < 0) | (shift > self.bits)
        if outside.any():
            assert not ((shift < 0) | (outside & (T != 0))).any(), f"a shift leaves the {self.bits} bits of the sum"
            shift = np.where(outside, 0, shift)
        terms, shifts = T.reshape(-1), np.broadcast_to(shift, self.shape).reshape(-1) if shift.ndim else int(shift)
        for some in self._chunks():
            _place(self._limbs[:, some], terms[some], shifts if isinstance(shifts, int) else shifts[some])
        self._placed += 1

    def round_to(
        self, fmt: FloatFormat | str, alpha: float = 1.0, beta: float = 0.0, C: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """alpha * S + beta * C, all finite, rounded once to nearest even: (..., M, N) of ``fmt.dtype``.

        Subnormals and overflow follow IEEE 754. An exact zero is +0; a result that rounds to zero keeps its sign.
        """
        fmt = formats.get(fmt)
        addend = C.astype(np.float64, copy=False).reshape(-1) if beta and C is not None else None
        exponents = (self.rows + self.columns).reshape(-1)
        out = np.empty(exponents.shape, fmt.dtype)
        for some in self._chunks():
            S = self._limbs[:, some]
            _carry(S)
            # the highest limb is 0 or -1
            assert (S[-1] == S[-1] >> 1).all(), f"an exact sum of {self.bits} bits exceeds {WIDTH * (len(S) - 1)} bits"
            if addend is None:
                limbs, exponent = _scaled(S, alpha, exponents[some])
            else:
                limbs, exponent = _combined(S, alpha, exponents[some], beta, addend[some])
            out[some] = _significands(limbs, exponent).round_to(fmt)
        return out.reshape(self.shape)

    def _chunks(self) -> Iterator[slice]:
        size = self._limbs.shape[1]
        return (slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK))


# --- limbs (L, n) of n integers
def _place(limbs: Ints, T: NDArray[Any], shift: Any) -> None:
    """Add T * 2^shift, T (n,) of magnitude up to 2^54, shift an int or int64 (n,); see the module for the bounds."""
    q, r = divmod(shift, WIDTH)
    low = T.astype(np.int64)
    rest = low >> (WIDTH - r)
    low &= (1 << (WIDTH - r)) - 1
    low <<= r
    if isinstance(q, int):
        limbs[q] += low
        limbs[q + 1] += rest
        return
    for i in range(q.min(), q.max() + 1):
        here = q == i
        np.add(limbs[i], low, out=limbs[i], where=here)
        np.add(limbs[i + 1], rest, out=limbs[i + 1], where=here)


def _carry(limbs: Ints) -> None:
    """Bring all limbs but the highest to [0, 2^52)."""
    for i in range(len(limbs) - 1):
        limbs[i + 1] += limbs[i] >> WIDTH
        limbs[i] &= (1 << WIDTH) - 1


def _significand(x: float) -> tuple[int, int]:
    """(s, e) with x = s * 2^e and 2^52 <= |s| < 2^53, subnormal or not; (0, e) for a zero."""
    fraction, exponent = frexp(x)
    return int(fraction * 2**53), exponent - 53


def _halves(x: Any) -> tuple[Any, Any]:
    """(x0, x1) with x = x0 + x1 * 2^26 and 0 <= x0 < 2^26: for |x| < 2^53, |x1| <= 2^27."""
    return x & ((1 << HALF) - 1), x >> HALF


def _scaled(S: Ints, alpha: float, exponent: Ints) -> tuple[Ints, Ints]:
    """alpha * S as limbs with the exponent of their unit; S carried."""
    a, e = _significand(alpha)
    if a == 1 << 52:
        return S, exponent + (e + 52)
    limbs = np.zeros((len(S) + 2, S.shape[1]), dtype=np.int64)
    _place_multiple(limbs, S, a, 0)
    _carry(limbs)
    return limbs, exponent + e


def _place_multiple(limbs: Ints, S: Ints, a: int, shift: int) -> None:
    """Add a * S * 2^shift, |a| < 2^53, S carried.

    The halves of a limb are at most 2^26, the halves of a at most 2^27, and their products at most 2^53. A limb
    receives at most twelve of these placements, from three limbs of S.
    """
    for i, limb in enumerate(S):
        for j, x in enumerate(_halves(limb)):
            for k, y in enumerate(_halves(a)):
                if y:
                    _place(limbs, x * y, shift + i * WIDTH + (j + k) * HALF)


def _combined(S: Ints, alpha: float, exponent: Ints, beta: float, C: NDArray[Any]) -> tuple[Ints, Ints]:
    """alpha * S + beta * C as limbs with the exponent of their unit, to be rounded; S carried.

    Let alpha * S = X * 2^x and beta * C = Y * 2^(x + d) with integers |X| < 2^t and 2^104 <= |Y| < 2^106 (or Y = 0).
    A d far from zero may be replaced by a nearer one with the same leading 62 bits and the same sticky bit:

    * d > t: |X| < 2^t <= 2^d. If X = 0, any d is valid. Else |Y * 2^d + X| lies strictly between two neighbouring
      multiples of 2^d: |Y| and |Y| + 1 times 2^d if X has the sign of Y, else |Y| - 1 and |Y| times it. The lower
      multiple has at least 104 bits, so the leading 62 depend only on Y and the sign of X. d = t gives the same bits;
      the unit follows Y.
    * d < -170: |Y * 2^d| < 2^-64. If X = 0, any d is valid and the unit follows Y. Else the sum lies strictly between
      neighbouring multiples of 2^-64, the lower of at least 64 bits. d = -170 gives the same bits.
    """
    a, e = _significand(alpha)
    b, f = _significand(beta)
    fraction, g = np.frexp(C)
    c = np.ldexp(fraction, 53).astype(np.int64)
    exponent = exponent + e
    top = WIDTH * (len(S) - 1) + 53  # t: |S| <= 2^(52 (L - 1)), its highest limb being 0 or -1
    away = np.where(c == 0, 0, f + (g - 53) - exponent)
    near = np.clip(away, -170, top)
    origin = 4  # limbs below the unit of X: 208 bits
    limbs = np.zeros((origin + (top + 107) // WIDTH + 2, S.shape[1]), dtype=np.int64)
    _place_multiple(limbs, S, a, origin * WIDTH)
    follows = (away > near) | ~limbs.any(axis=0)  # the unit follows Y
    for j, x in enumerate(_halves(c)):
        for k, y in enumerate(_halves(b)):
            if y:
                _place(limbs, x * y, near + (origin * WIDTH + (j + k) * HALF))  # |x y| <= 2^54
    _carry(limbs)
    return limbs, exponent - origin * WIDTH + np.where(follows, away - near, 0)


def _significands(limbs: Ints, exponent: Ints) -> Significands:
    """The leading 62 bits of the integers, in units of 2^exponent."""
    negative = limbs[-1] < 0
    limbs = limbs * np.where(negative, -1, 1)
    _carry(limbs)
    # the highest non-zero limb, the two below it, and whether a lower limb is non-zero
    first, second, third = (np.zeros(negative.shape, dtype=np.int64) for _ in range(3))
    rest, below, place = np.zeros(negative.shape, bool), np.zeros(negative.shape, bool), np.zeros_like(first)
    for i, limb in enumerate(limbs):
        here = limb != 0
        if i >= 3:
            below |= limbs[i - 3] != 0
        if here.any():
            np.copyto(first, limb, where=here)
            np.copyto(second, limbs[i - 1] if i >= 1 else 0, where=here)
            np.copyto(third, limbs[i - 2] if i >= 2 else 0, where=here)
            np.copyto(rest, below, where=here)
            np.copyto(place, i * WIDTH, where=here)
    # n bits of the first limb and 62 - n of the 62 that follow it
    n = bit_lengths(first.view(np.uint64))
    following = (second << 10) | (third >> (WIDTH - 10))
    head = (first << (62 - n)) | (following >> n)
    dropped = (following & ((1 << n) - 1)) | (third & ((1 << (WIDTH - 10)) - 1))
    return Significands(negative, head.view(np.uint64), rest | (dropped != 0), exponent + place + (n - 62))


# --- merged slices


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
    views = np.split(side, count, axis)[:: 1 if axis == -1 else -1]
    for item in slices.items:
        below = slices.top - (item.exponents + slices.bits)
        place = below // w
        shift = (place + 1) * w - 1 - below
        for i in np.unique(place).tolist():
            here = place == i
            part = times(item.digits, np.where(here, shift, 0))
            views[i] += part if here.all() else np.where(here, part, 0.0)
    return side, views


def merged_sums(a: Slices, b: Slices, w: int, device: Device = "cpu") -> Iterator[tuple[Array, int]]:
    """Integer matrices and exponents above `lowest(a, w)` + `lowest(b, w)`, whose sum is (sum of a) @ (sum of b)."""
    (left, X), (right, Y) = merge(a, w, -1), merge(b, w, -2)
    K, last = X[0].shape[-1], len(X) + len(Y) - 2
    largest = [max(1, int(max(np.max(x), -np.min(x)))) for x in (left, right)]
    most = 2**53 // (K * largest[0] * largest[1])
    assert most >= 1, "the stride allows several products per call"
    m, n = (max((i + 1 for i, x in enumerate(side) if not thin(x)), default=1) for side in (X, Y))
    for d in range(m + n - 1):
        start, stop = max(0, d - n + 1), min(d, m - 1) + 1
        for i in range(start, stop, most):
            end = min(i + most, stop)
            j = len(Y) - 1 - d + i  # the position of bin d - i of B, whose bins are in reverse order
            T = devices.matmul(left[..., i * K : end * K], right[..., j * K : (j + end - i) * K, :], device)
            yield T, (last - d) * w
    yield from ((T, (last - i - j) * w) for i, j, T in _tails(X, Y, m, n))


def thin(X: Array) -> bool:
    """Whether X, one matrix, has so few non-zero entries that a sparse product is faster than BLAS."""
    return X[..., 0, 0].size == 1 and X.size > 4096 and int(np.count_nonzero(X)) * 256 < X.size


def _tails(X: list[Array], Y: list[Array], m: int, n: int) -> Iterator[tuple[int, int, Array]]:
    """The products with bins m and later of A or n and later of B, which hold a few last bits."""
    if m == len(X) and n == len(Y):
        return
    X, Y = ([x.reshape(x.shape[-2:]) for x in side] for side in (X, Y))
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
    a, b, K = products.a, products.b, products.plan.K
    w = stride(K, a.bits) if products.by_blas else None
    if w is not None and (bins(a, w) > a.slices or bins(b, w) > b.slices):
        w = None
    rows, columns = (x.items[-1].exponents if w is None else lowest(x, w) for x in (a, b))
    # inexact products may exceed the products of their digits
    spare = K.bit_length() + 2 + 64 * bool(products.inexact or products.lost.any())
    total = ExactSum(rows, columns, int(np.max(a.top - rows)) + int(np.max(b.top - columns)) + spare)
    broken = np.zeros(total.shape, bool)
    if w is not None:
        for T, shift in merged_sums(a, b, w, products.device):
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
