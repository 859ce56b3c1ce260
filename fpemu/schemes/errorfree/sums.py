"""Exact sums of integer matrices times powers of two, and one rounding of alpha * S + beta * C at the end.

Limbs. The integer of each entry is stored in int64 limbs of base 2^52, the lowest first. A carry reduces all limbs but
the highest, which has the sign, to [0, 2^52); between carries limbs are plain sums of their terms.

No limb overflows. Placing T * 2^s, |T| <= 2^54 and s = 52 q + r with 0 <= r <= 51, adds to limb q the low 52 - r bits
of T times 2^r, which is in [0, 2^52), and to limb q + 1 the rest, floor(T / 2^(52 - r)), at most 2^53 in magnitude. A
limb receives at most one of the two, so after a carry and n placements it is below 2^52 + n * 2^53 in magnitude: with
n <= 500, below 2^62. A carry adds at most 2^62 / 2^52 = 2^10 to a limb.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import frexp, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.sticky import Ints, Significands, bit_lengths

WIDTH = 52
"""Bits of a limb"""
HALF = WIDTH // 2
PLACEMENTS = 500
"""Matrices placed between two carries"""
CHUNK = 1 << 14
"""Entries computed at a time, so that their limbs stay in a core's cache and memory is bounded"""


class ExactSum:
    """A matrix S of exact sums of integer matrices times powers of two.

    Entry (i, j) is (sum of T[i, j] * 2^shift) * 2^(rows[i] + columns[j]).

    Parameters
    ----------
    rows, columns : integer arrays (M, 1) and (1, N)
        Binary exponent of the sum's lowest unit.
    bits : int
        Zero or more. Every partial sum is below 2^bits units in magnitude.

    Examples
    --------
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
        shapes = self.rows.shape, self.columns.shape
        if [len(shape) for shape in shapes] != [2, 2] or (shapes[0][1], shapes[1][0]) != (1, 1):
            raise InputError(f"an exact sum takes exponents (M, 1) and (1, N), not {shapes[0]} and {shapes[1]}")
        self.shape = (shapes[0][0], shapes[1][1])
        # one limb more than 2^bits needs: the highest is then 0 or -1 after a carry
        self._limbs = np.zeros((bits // WIDTH + 2, self.shape[0] * self.shape[1]), dtype=np.int64)
        self._placed = 0

    def add(self, T: NDArray[Any], shift: Any) -> None:
        """Add T * 2^shift units to the sum: T (M, N) integers of magnitude up to 2^53, `shift` zero or more.

        Raises
        ------
        InputError
            T of another shape; a shift that is negative, or leaves a non-zero entry no room within ``bits``.
        """
        if T.shape != self.shape:
            raise InputError(f"an exact sum of shape {self.shape} cannot take terms of shape {T.shape}")
        if self._placed == PLACEMENTS:
            for some in self._chunks():
                _carry(self._limbs[:, some])
            self._placed = 0
        shift = np.asarray(shift, dtype=np.int64)
        # a term is the difference of two partial sums, hence below 2^(bits + 1): only a zero is shifted further
        outside = (shift < 0) | (shift > self.bits)
        if outside.any():
            if (shift < 0).any() or (outside & (T != 0)).any():
                raise InputError(f"shifts from {shift.min()} to {shift.max()} in an exact sum of {self.bits} bits")
            shift = np.where(outside, 0, shift)
        terms, shifts = T.reshape(-1), np.broadcast_to(shift, self.shape).reshape(-1) if shift.ndim else int(shift)
        for some in self._chunks():
            _place(self._limbs[:, some], terms[some], shifts if isinstance(shifts, int) else shifts[some])
        self._placed += 1

    def round_to(
        self, fmt: FloatFormat | str, alpha: float = 1.0, beta: float = 0.0, C: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """alpha * S + beta * C, all finite, rounded once to nearest even: (M, N) of ``fmt.dtype``.

        Subnormals and overflow follow IEEE 754. An exact zero is +0; a result that rounds to zero keeps its sign.

        Raises
        ------
        InputError
            Operands that are not finite; C missing or of another shape; a sum that is not below 2^bits.
        """
        fmt = formats.get(fmt)
        if not (isfinite(alpha) and isfinite(beta)):
            raise InputError(f"an exact sum is scaled by finite numbers, not alpha = {alpha}, beta = {beta}")
        addend = None
        if beta:
            if C is None or C.shape != self.shape or not np.isfinite(C).all():
                raise InputError(f"an exact sum with beta = {beta} needs a finite C of shape {self.shape}")
            addend = C.astype(np.float64, copy=False).reshape(-1)
        exponents = (self.rows + self.columns).reshape(-1)
        out = np.empty(exponents.shape, fmt.dtype)
        for some in self._chunks():
            S = self._limbs[:, some]
            _carry(S)
            if (S[-1] != S[-1] >> 1).any():  # neither 0 nor -1
                raise InputError(f"an exact sum of {self.bits} bits holds a number of more than {WIDTH * (len(S) - 1)}")
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
