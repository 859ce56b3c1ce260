"""The exact product as integers times powers of two, and its one rounding to any format.

Row i of A is a matrix row of integers times 2^a_i, column j of B one times 2^b_j (a_i and b_j the lowest bit used), so
the product of the two integer matrices times 2^(a_i + b_j) is exact whatever the range of the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import fsum, inf, isqrt, lcm, ldexp
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arguments import choice, flag, is_integer
from fpemu.arrays import as_float64
from fpemu.errors import InputError, shown
from fpemu.formats import FloatFormat
from fpemu.reference.arguments import Floats, Ints, Operands, finite, integers, span, specials
from fpemu.rounding import Rounding, round_to
from fpemu.sticky import Significands

_bit_length = np.frompyfunc(int.bit_length, 1, 1)


# --- the product of integer matrices
def product(A: Floats, B: Floats, method: str) -> tuple[NDArray[Any], Ints]:
    """Python integers V (..., M, N) and exponents E with A @ B = V * 2^E exactly, by "flint" or "python".

    A and B are finite float64 of the same leading axes.
    """
    batch, M, K, N = A.shape[:-2], A.shape[-2], A.shape[-1], B.shape[-1]
    low_a, low_b = span(A, -1)[0], span(B, -2)[0]
    X, Y = shifted(A, low_a), shifted(B, low_b)
    V = np.zeros((*batch, M, N), dtype=object)
    multiply = _flint_product if method == "flint" else _python_product
    for index in np.ndindex(*batch):
        if M and N and K:
            V[index] = _objects(multiply(X[index], Y[index]), (M, N))
    return V, np.broadcast_to(low_a + low_b, V.shape)


def _flint_product(X: NDArray[Any], Y: NDArray[Any]) -> list[int]:
    from flint import fmpz_mat

    (M, K), N = X.shape, Y.shape[1]
    left, right = fmpz_mat(M, K, X.ravel().tolist()), fmpz_mat(K, N, Y.ravel().tolist())
    return [int(v) for v in (left * right).entries()]


def _python_product(X: NDArray[Any], Y: NDArray[Any]) -> list[int]:
    columns = Y.T.tolist()
    return [sum(map(mul, row, column)) for row in X.tolist() for column in columns]


def shifted(X: Floats, low: Ints) -> NDArray[Any]:
    """Return the integers X * 2^-low: int64 where they fit, Python integers otherwise."""
    s, e = integers(X)
    shift = np.where(s == 0, 0, e - low)
    if np.max(shift, initial=0) + 53 < 63:
        return np.asarray(s << shift)
    return np.asarray(s.astype(object) << shift.astype(object))


def _objects(values: list[int], shape: tuple[int, ...]) -> NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out.reshape(shape)


def combine(given: Operands, V: NDArray[Any], E: Ints) -> ExactMatrix:
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

        ``mode`` is RNE, RNA, RZ, RU, RD or ODD ("to-odd"); ``saturate`` clips overflow to the largest finite value.
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

    def error_of(self, D: Any, measure: str = "elementwise") -> Any:
        """Relative error of ``D`` (..., M, N) against the exact matrix X, each value rounded to float64 once.

        Parameters
        ----------
        D : array_like of at most 64-bit numbers, same shape
        measure : {"elementwise", "max_relative", "mred", "relative_l2"}
            |D - X| / |X| as an array; its maximum; its mean; ||D - X||_F / ||X||_F (to about one ulp).

        Notes
        -----
        0/0 counts as 0 and x/0 as inf. A NaN where X is NaN, or the same infinity, is no error; any other NaN or Inf is
        an infinite one. An empty matrix has error 0.
        """
        choice("measure", measure, ("elementwise", "max_relative", "mred", "relative_l2"))
        wide = as_float64(D, "D")
        if wide.shape != self.shape:
            raise InputError(f"error_of: D {wide.shape} and the exact matrix {self.shape} differ in shape")
        special = np.zeros(self.shape) if self.special is None else self.special
        same = (wide == special) | (np.isnan(wide) & np.isnan(special))
        fine = np.isfinite(wide) & np.isfinite(special)
        s, e = integers(np.where(fine, wide, 0.0))
        low = np.minimum(np.where(s == 0, self.exponent, e), self.exponent)
        X = np.where(fine, self.significand << (self.exponent - low).astype(object), 0)
        delta = np.abs((s.astype(object) * self.denominator << np.where(s == 0, 0, e - low).astype(object)) - X)
        X = np.abs(X)
        if measure == "relative_l2":
            return inf if (~fine & ~same).any() else _l2_ratio(delta, X, low)
        each = np.frompyfunc(_quotient, 2, 1)(delta, X).astype(np.float64)
        each = np.where(fine, each, np.where(same, 0.0, np.inf))
        if measure == "elementwise":
            return each
        if each.size == 0 or np.isinf(each).any():
            return inf if each.size else 0.0
        if measure == "max_relative":
            return float(each.max())
        scale = int(np.frexp(each.max())[1])  # so that the sum of finite errors cannot overflow
        return float(np.ldexp(fsum(np.ldexp(each, -scale).ravel().tolist()) / each.size, scale))


def _quotient(a: int, b: int) -> float:
    if b == 0:
        return inf if a else 0.0
    try:
        return a / b  # correctly rounded for integers of any length
    except OverflowError:
        return inf


def _l2_ratio(delta: NDArray[Any], X: NDArray[Any], low: Ints) -> float:
    """sqrt(sum (delta 2^low)^2 / sum (X 2^low)^2) from exact integers."""
    shift = (low - np.min(low, initial=0)).astype(object)
    top = sum(v * v for v in (delta << shift).ravel().tolist())
    bottom = sum(v * v for v in (X << shift).ravel().tolist())
    if top == 0 or bottom == 0:
        return inf if top else 0.0
    # a quotient of about 128 bits, so that its root has 64
    scale = (128 - top.bit_length() + bottom.bit_length()) // 2
    quotient = (top << 2 * scale) // bottom if scale >= 0 else top // (bottom << -2 * scale)
    try:
        return ldexp(float(isqrt(quotient)), -scale)
    except OverflowError:
        return inf


def with_specials(out: NDArray[Any], special: Floats | None, fmt: FloatFormat, saturate: bool = False) -> NDArray[Any]:
    """Return ``out`` with the NaN and Inf of ``special`` rounded to ``fmt``."""
    if special is None:
        return out
    return np.where(special == 0, out, np.asarray(round_to(special, fmt, saturate=saturate)))
