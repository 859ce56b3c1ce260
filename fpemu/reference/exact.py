"""The exact product as integers times powers of two, and its one rounding to any format.

Row i of A is a matrix row of integers times 2^a_i, column j of B one times 2^b_j (a_i and b_j the lowest bit used), so
the product of the two integer matrices times 2^(a_i + b_j) is exact whatever the range of the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arguments import flag, is_integer
from fpemu.errors import InputError, shown
from fpemu.formats import FloatFormat
from fpemu.rounding import Rounding, Significands, _round_to

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_bit_length = np.frompyfunc(int.bit_length, 1, 1)


# --- the operands
@dataclass(frozen=True, eq=False)
class ExactOperands:
    """alpha*A@B + beta*C with every array converted to float64 exactly."""

    A: Floats  # (..., M, K), leading axes not yet broadcast
    B: Floats  # (..., K, N)
    C: Floats | None  # broadcasts to `shape`; None where beta is zero
    alpha: Fraction
    beta: Fraction
    shape: tuple[int, ...]  # of the result, (..., M, N)


def finite(X: Floats) -> Floats:
    """Return X with its NaN and Inf entries replaced by zero."""
    fine = np.isfinite(X)
    return X if fine.all() else np.where(fine, X, 0.0)


def integers(X: Floats) -> tuple[Ints, Ints]:
    """Return odd significands s and exponents e with X = s * 2^e exactly (both 0 for a zero), X finite."""
    mantissa, exponent = np.frexp(X)
    s = np.ldexp(mantissa, 53).astype(np.int64)
    lowest = s & -s  # a power of two up to 2^53: exact as a float
    trailing = np.where(s == 0, 0, np.frexp(lowest.astype(np.float64))[1] - 1)
    e = np.where(s == 0, 0, exponent.astype(np.int64) - 53 + trailing)
    return s >> trailing, e


def span(X: Floats, axis: int) -> tuple[Ints, Ints]:
    """Return exponents (low, top) along ``axis``: entries are multiples of 2^low and below 2^top in magnitude.

    The axis is kept with length 1; (0, 0) where all entries are zero.
    """
    s, e = integers(X)
    exponent = np.frexp(X)[1].astype(np.int64)
    huge = 1 << 20
    low = np.min(np.where(s != 0, e, huge), axis=axis, keepdims=True, initial=huge)
    top = np.max(np.where(s != 0, exponent, -huge), axis=axis, keepdims=True, initial=-huge)
    return np.where(low == huge, 0, low), np.where(low == huge, 0, top)


def specials(given: ExactOperands) -> Floats | None:
    """Return NaN, Inf and -Inf where the exact sum has them by IEEE 754, zero elsewhere; None if there are none.

    A sum is NaN if it contains a NaN, Inf * 0 or Inf - Inf, else infinite if it contains an infinity. Products of 0/1
    matrices find these entries, so that the result does not depend on a library's treatment of Inf.
    """
    A, B, C = given.A, given.B, given.C
    arrays = [X for X in ((A, B, C) if given.alpha else (C,)) if X is not None]
    if all(bool(np.isfinite(X).all()) for X in arrays):
        return None
    nan, positive, negative = (np.zeros(given.shape, bool) for _ in range(3))
    if given.alpha:
        nan = nan | np.isnan(A).any(-1, keepdims=True) | np.isnan(B).any(-2, keepdims=True)
        nan = nan | _any_k(np.isinf(A), B == 0) | _any_k(A == 0, np.isinf(B))
        plus, minus = np.isposinf, np.isneginf
        same = _any_k(plus(A), B > 0) | _any_k(minus(A), B < 0) | _any_k(A > 0, plus(B)) | _any_k(A < 0, minus(B))
        opposite = _any_k(plus(A), B < 0) | _any_k(minus(A), B > 0) | _any_k(A < 0, plus(B)) | _any_k(A > 0, minus(B))
        positive, negative = (same, opposite) if given.alpha > 0 else (opposite, same)
    if C is not None:
        addend = C if given.beta > 0 else -C
        nan, positive, negative = nan | np.isnan(C), positive | np.isposinf(addend), negative | np.isneginf(addend)
    out = np.where(positive, np.inf, np.where(negative, -np.inf, 0.0))
    return np.where(nan | (positive & negative), np.nan, out)


def _any_k(X: NDArray[np.bool_], Y: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether some k has X[..., i, k] and Y[..., k, j]."""
    return np.asarray(np.matmul(X.astype(np.float64), Y.astype(np.float64)) > 0)


# --- the product of integer matrices
def product(A: Floats, B: Floats) -> tuple[NDArray[Any], Ints]:
    """Return Python integers V (..., M, N) and exponents E with A @ B = V * 2^E exactly, by FLINT's integers.

    A and B are finite float64 of the same leading axes.
    """
    from flint import fmpz_mat

    batch, M, K, N = A.shape[:-2], A.shape[-2], A.shape[-1], B.shape[-1]
    low_a, low_b = span(A, -1)[0], span(B, -2)[0]
    X, Y = shifted(A, low_a), shifted(B, low_b)
    V = np.zeros((*batch, M, N), dtype=object)
    for index in np.ndindex(*batch):
        if M and N and K:
            left, right = fmpz_mat(M, K, X[index].ravel().tolist()), fmpz_mat(K, N, Y[index].ravel().tolist())
            V[index] = np.array([int(v) for v in (left * right).entries()], object).reshape(M, N)
    return V, np.broadcast_to(low_a + low_b, V.shape)


def shifted(X: Floats, low: Ints) -> NDArray[Any]:
    """Return the integers X * 2^-low: int64 where they fit, Python integers otherwise."""
    s, e = integers(X)
    shift = np.where(s == 0, 0, e - low)
    if np.max(shift, initial=0) + 53 < 63:
        return np.asarray(s << shift)
    return np.asarray(s.astype(object) << shift.astype(object))


def combine(given: ExactOperands, V: NDArray[Any], E: Ints) -> ExactMatrix:
    """Return alpha * (V * 2^E) + beta * C, with the NaN and Inf that the operands in ``given`` cause."""
    bottom = lcm(given.alpha.denominator, given.beta.denominator)
    twos = (bottom & -bottom).bit_length() - 1
    V = V * (given.alpha.numerator * (bottom // given.alpha.denominator)) if given.alpha != 1 or bottom != 1 else V
    if given.C is not None:
        s, e = integers(np.broadcast_to(finite(given.C), given.shape))
        e = np.where(s == 0, E, e)
        E = np.where(V == 0, e, E)
        low = np.minimum(e, E)
        addend = s.astype(object) * (given.beta.numerator * (bottom // given.beta.denominator))
        V = (V << (E - low).astype(object)) + (addend << (e - low).astype(object))
        E = low
    return ExactMatrix(V, np.asarray(E - twos), bottom >> twos, specials(given))


# --- one rounding
def _leading_bits(V: NDArray[Any], E: Ints, denominator: int = 1) -> Significands:
    """Return the leading bits of V * 2^E / denominator, V an array of Python integers."""
    magnitude, rest = np.abs(V), np.zeros(V.shape, bool)
    if denominator != 1:
        # the quotient has at least 62 bits; a non-zero remainder sets the sticky bit
        up = np.maximum(0, denominator.bit_length() + 64 - _lengths(magnitude))
        magnitude = magnitude << up.astype(object)
        rest = (magnitude % denominator).astype(bool)
        magnitude, E = magnitude // denominator, E - up
    cut = np.maximum(0, _lengths(magnitude) - 62)
    if cut.any():
        top = magnitude >> cut.astype(object)
        rest = rest | ((top << cut.astype(object)) != magnitude).astype(bool)
        magnitude = top
    return Significands((V < 0).astype(bool), magnitude.astype(np.uint64), rest, np.asarray(E + cut))


def _lengths(V: NDArray[Any]) -> Ints:
    return np.asarray(_bit_length(V), dtype=object).astype(np.int64)


# --- the result
@dataclass(frozen=True, eq=False)
class ExactMatrix:
    """Matrix of exact numbers, significand * 2^exponent / denominator.

    Parameters
    ----------
    significand : object array (..., M, N)
        Python integers.
    exponent : int64 array (..., M, N)
        Binary exponents.
    denominator : int
        Odd; 1 unless alpha or beta is a Fraction that no float holds.
    special : float64 array (..., M, N) or None
        NaN and Inf where the result is one (its significand has no meaning there), zero elsewhere.
    """

    significand: NDArray[Any]
    exponent: Ints
    denominator: int = 1
    special: Floats | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (..., M, N)."""
        return self.significand.shape

    def round_to(self, fmt: FloatFormat | str, mode: Rounding | str = "RNE", *, saturate: bool = False) -> Any:
        """The matrix rounded once to ``fmt``, as an array of ``fmt.dtype``; an exact zero is +0 in every mode.

        ``mode`` is any but SR; ``saturate`` clips overflow to the largest finite value.
        """
        saturate = flag("saturate", saturate)
        out = _leading_bits(self.significand, self.exponent, self.denominator).round_to(fmt, mode, saturate=saturate)
        return with_specials(out, self.special, formats.get(fmt), saturate)

    def fraction(self, *index: int) -> Fraction:
        """The exact entry at ``index``.

        Raises
        ------
        InputError
            An index outside the matrix, or an entry that is NaN or Inf.
        """
        if (
            not all(map(is_integer, index))
            or len(index) != len(self.shape)
            or not all(-n <= i < n for i, n in zip(index, self.shape, strict=True))
        ):
            raise InputError(f"index {shown(index)} must be {len(self.shape)} integers within the shape {self.shape}")
        if self.special is not None and not (np.isfinite(self.special[index])):
            raise InputError(f"entry {list(index)} is {self.special[index]}, which is no fraction")
        e = int(self.exponent[index])
        power = Fraction(1 << e) if e >= 0 else Fraction(1, 1 << -e)
        return Fraction(int(self.significand[index]), self.denominator) * power


def with_specials(out: NDArray[Any], special: Floats | None, fmt: FloatFormat, saturate: bool = False) -> NDArray[Any]:
    """Return ``out`` with the NaN and Inf of ``special`` rounded to ``fmt``."""
    if special is None:
        return out
    return np.where(special == 0, out, _round_to(special, fmt, saturate=saturate))
