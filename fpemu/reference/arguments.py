"""Operands of a reference product: checks of shapes, exact scalars, integer significands, NaN and Inf."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import is_real, unwrapped
from fpemu.arrays import as_array, as_float64, product_shape
from fpemu.errors import InputError, shown

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Operands:
    """alpha*A@B + beta*C with every array converted to float64 exactly.

    Parameters
    ----------
    A, B : float64 arrays (..., M, K) and (..., K, N), leading axes not yet broadcast
    C : float64 array that broadcasts to ``shape``, or None where beta is zero
    alpha, beta : Fraction
    shape : tuple of int
        Shape of the result, (..., M, N).
    """

    A: Floats
    B: Floats
    C: Floats | None
    alpha: Fraction
    beta: Fraction
    shape: tuple[int, ...]


def operands(A: Any, B: Any, C: Any = None, alpha: Any = 1, beta: Any = 0) -> Operands:
    """Check the arguments of a product; see `fpemu.reference.matmul` for what they may be.

    Raises
    ------
    InputError
        Shapes that do not fit (both are named), C missing where beta is not zero, alpha or beta not finite.
    """
    a, b = exact_scalar("alpha", alpha), exact_scalar("beta", beta)
    left, right = as_float64(A, "A"), as_float64(B, "B")
    if left.ndim < 2 or right.ndim < 2:
        raise InputError(f"matmul takes (..., M, K) and (..., K, N), not A {left.shape} and B {right.shape}")
    shape = product_shape(left, right)
    addend = None
    if b and C is None:
        raise InputError(f"matmul: beta is {beta} but C is missing")
    if C is not None:
        C = as_array(C, "C")
        try:
            fits = np.broadcast_shapes(C.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise InputError(f"matmul: C {C.shape} does not broadcast to the product's shape {shape}")
        addend = as_float64(C, "C") if b else None
    return Operands(left, right, addend, a, b, shape)


def exact_scalar(name: str, value: Any) -> Fraction:
    """Return an int, float, NumPy scalar or Fraction as a Fraction, without rounding."""
    number = unwrapped(value)
    try:
        if is_real(number):
            return Fraction(number.item() if isinstance(number, np.generic) else number)
    except (ValueError, OverflowError):  # NaN, Inf
        pass
    raise InputError(f"matmul: {name} must be a finite real number, not {shown(value)}")


def finite(X: Floats) -> Floats:
    """Return X with its NaN and Inf entries replaced by zero."""
    return np.where(np.isfinite(X), X, 0.0)


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


def specials(given: Operands) -> Floats | None:
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
