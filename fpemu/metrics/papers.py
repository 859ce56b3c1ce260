"""The error measures of the papers, and their values entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee, map_chunks, use_compiled
from fpemu.arguments import flag, widen
from fpemu.errors import InputError
from fpemu.metrics.analysis import (
    Floats,
    both,
    difference,
    divide,
    largest,
    mean,
    norm,
    pair,
    parts,
    real_parts,
    scaled,
)


@in_ieee
def relative_l2(C: Any, R: Any) -> float:
    """Return the relative Frobenius error ||R - C||_F / ||R||_F of a result.

    Parameters
    ----------
    C : array_like
        Result under test, of any shape; entries of at most 64 bits.
    R : array_like or ExactMatrix
        Reference of the same shape, or the result of ``fpemu.reference.matmul(out="exact")``.

    Returns
    -------
    float
        sqrt(sum (r - c)^2) / sqrt(sum r^2) >= 0, dimensionless. 0.0 if C equals R; inf if R is zero and C is not, or if
        an entry is NaN or Inf in only one of the two. Equal infinities, and NaN in both, add nothing.

    Notes
    -----
    H2SGEMM, Eq. 11 (there with R from DGEMM), Fig. 8 and 9. "L2" is the norm of the matrix as a vector (Frobenius).

    Examples
    --------
    >>> relative_l2([3.0, 4.5], [3.0, 4.0])
    0.1
    """
    if _is_exact(R):
        return _exact_l2(C, R)
    c, r = both(C, R)
    if (norms := _compiled_norms(c, r)) is None:
        c, r, equal = pair(c, r)
        d, e = difference(c, r, equal)
        if np.isinf(d).any():
            return math.inf
        norms = norm(d, e), norm(*parts(np.where(equal & ~np.isfinite(r), 0.0, r)))
    (top, s), (bottom, t) = norms
    if bottom == 0.0:
        return math.inf if top else 0.0
    return float(scaled(top / bottom, s - t))


def _compiled_norms(c: NDArray[Any], r: NDArray[Any]) -> Any:
    """Return the norms of c - r and r by the compiled implementation; None where it does not apply."""
    if not use_compiled(c.size):
        return None
    from fpemu.compiled.measures import norms

    return norms(c, r)


@in_ieee
def max_relative(C: Any, R: Any) -> float:
    """Return the largest componentwise relative error, max |C - R| / |R|.

    Parameters
    ----------
    C, R : array_like
        Result under test and reference, as in `relative_l2`.

    Returns
    -------
    float
        Error >= 0, dimensionless. An entry equal to its reference counts 0, also where the reference is 0; inf if C
        differs from a zero reference, or if an entry is NaN or Inf in only one of the two.

    Notes
    -----
    DGEMM-TC, Fig. 3 and 8: R is the product in MPFR at 2048 bits rounded to the output format, which is what
    ``fpemu.reference.matmul`` returns (or method="mpmath" at that precision).

    Examples
    --------
    >>> max_relative([1.0, 2.5], [1.0, 2.0])
    0.25
    """
    return largest(_relative(C, R))


@in_ieee
def max_error_legemm(P: Any, S: Any) -> float:
    """Return LE-GEMM's Max_error, max |p - s| / (|p| + |s|).

    Parameters
    ----------
    P, S : array_like
        Result under test and reference, of the same shape; entries of at most 64 bits.

    Returns
    -------
    float
        Error from 0 to 1 for finite entries, dimensionless. Equal entries count 0, two zeros included; inf if an entry
        is NaN or Inf in only one of the two.

    Notes
    -----
    LE-GEMM, Eq. 19. In the paper S is a single-precision CPU result; the exact product rounded to fp32 serves as well.

    Examples
    --------
    >>> max_error_legemm([1.0, 3.0], [1.0, 1.0])
    0.5
    """
    return largest(symmetric(P, S))


@in_ieee
def mred(P: Any, S: Any) -> float:
    """Return the mean relative error distance, the mean of |s - p| / |s|.

    Parameters
    ----------
    P, S : array_like
        Result under test and reference, as in `relative_l2`.

    Returns
    -------
    float
        Mean over all entries, >= 0, dimensionless. An entry equal to its reference counts 0, also where the reference
        is 0; inf if P differs from a zero reference, or if an entry is NaN or Inf in only one of the two.

    Notes
    -----
    LE-GEMM, Eq. 20 (MRED).

    Examples
    --------
    >>> mred([1.0, 3.0], [1.0, 2.0])
    0.25
    """
    return mean(_relative(P, S, "PS"))


@in_ieee
def relative(C: Any, R: Any, *, signed: bool = False) -> Floats:
    """Return the relative error |C - R| / |R| of every entry.

    Parameters
    ----------
    C, R : array_like
        Result under test and reference, as in `relative_l2`.
    signed : bool
        Give each error the sign of C - R.

    Returns
    -------
    float64 array
        Errors, of the shape of C. 0 where C equals R, also if both are 0, NaN or the same infinity; an infinite error
        where C differs from a zero reference, or only one of the two is NaN or Inf.

    Notes
    -----
    `max_relative` is the maximum of this array, `mred` its mean. The histograms of LE-GEMM's Fig. 12 and 13 show signed
    errors; the paper does not say whether they are these or those of `symmetric`.

    Examples
    --------
    >>> relative([1.0, 1.5], [1.0, 2.0], signed=True).tolist()
    [0.0, -0.25]
    """
    return _relative(C, R, signed=flag("signed", signed))


def _relative(C: Any, R: Any, names: str = "CR", signed: bool = False) -> Floats:
    if _is_exact(R):
        return _exact_relative(C, R, names, signed)

    def errors(c: Floats, r: Floats, d: Floats, e: NDArray[Any]) -> Floats:
        below, f = parts(np.where(np.isfinite(r), r, 1.0))
        return scaled(divide(d, np.abs(below)), e - f)

    return _elementwise(errors, C, R, names, signed)


@in_ieee
def symmetric(P: Any, S: Any, *, signed: bool = False) -> Floats:
    """Return the symmetric relative error |p - s| / (|p| + |s|) of every entry.

    Parameters
    ----------
    P, S : array_like
        Result under test and reference, of the same shape; entries of at most 64 bits.
    signed : bool
        Give each error the sign of p - s.

    Returns
    -------
    float64 array
        Errors, of the shape of P: 0 where P equals S, also if both are 0, NaN or the same infinity; at most 1 in
        magnitude for finite entries; infinite where only one of the two is NaN or Inf.

    Notes
    -----
    `max_error_legemm` is the maximum of this array (LE-GEMM, Eq. 19).

    Examples
    --------
    >>> symmetric([1.0, 1.0], [1.0, 3.0], signed=True).tolist()
    [0.0, -0.5]
    """

    def errors(p: Floats, s: Floats, d: Floats, e: NDArray[Any]) -> Floats:
        with np.errstate(invalid="ignore"):
            below = np.abs(scaled(p, -e)) + np.abs(scaled(s, -e))
        return np.where(np.isinf(d), np.inf, divide(d, np.where(np.isfinite(below), below, 1.0)))

    return _elementwise(errors, P, S, "PS", flag("signed", signed))


def _elementwise(errors: Callable[..., Floats], C: Any, R: Any, names: str, signed: bool) -> Floats:
    """Return errors(c, r, d, e) with |c - r| = d 2^e, 0 where C equals R, negative where C < R if `signed`."""

    def chunk(c: Floats, r: Floats, equal: NDArray[np.bool_]) -> Floats:
        d, e = difference(c, r, equal)
        error = np.where(d == 0, 0.0, errors(c, r, d, e))
        return np.where(signed & (c < r), -error, error)

    return np.asarray(map_chunks(chunk, *pair(C, R, names)))


# --- errors relative to an exact matrix, before any rounding of the reference
def _is_exact(R: Any) -> bool:
    """Whether R is an `fpemu.reference.ExactMatrix`, a class that metrics does not import."""
    return hasattr(R, "significand")


def _exact_difference(C: Any, X: Any, names: str = "CR") -> tuple[Any, Any, Any, Any, Any, Any]:
    """Return C - X and |X| as integers times 2^e / X.denominator, e, and where both are finite, equal, and C < X."""
    c = widen(real_parts(C, names[0]))
    if c.shape != X.shape:
        raise InputError(f"result {names[0]} and reference {names[1]} differ in shape: {c.shape} and {X.shape}")
    special = np.zeros(X.shape) if X.special is None else X.special
    fine = np.isfinite(c) & np.isfinite(special)
    mantissa, exponent = parts(np.where(fine, c, 0.0))
    s, e = np.ldexp(mantissa, 53).astype(np.int64).astype(object), exponent - 53
    low = np.minimum(np.where(s == 0, X.exponent, e), X.exponent)
    x = np.where(fine, X.significand << (X.exponent - low).astype(object), 0)
    delta = (s * X.denominator << np.where(s == 0, 0, e - low).astype(object)) - x
    same = (c == special) | (np.isnan(c) & np.isnan(special))
    return delta, np.abs(x), low, fine, same, np.where(fine, delta < 0, c < special)


def _exact_relative(C: Any, X: Any, names: str, signed: bool) -> Floats:
    """Return |C - X| / |X|, each quotient rounded to float64 once."""
    delta, size, _, fine, same, less = _exact_difference(C, X, names)
    each = np.frompyfunc(_quotient, 2, 1)(np.abs(delta), size).astype(np.float64)
    each = np.where(fine, each, np.where(same, 0.0, np.inf))
    return np.where(signed & less.astype(bool), -each, each)


def _quotient(a: int, b: int) -> float:
    if b == 0:
        return math.inf if a else 0.0
    try:
        return a / b  # correctly rounded for integers of any length
    except OverflowError:
        return math.inf


def _exact_l2(C: Any, X: Any) -> float:
    """Return ||C - X||_F / ||X||_F from exact integers, to about one ulp."""
    delta, size, low, fine, same, _ = _exact_difference(C, X)
    if (~fine & ~same).any():
        return math.inf
    shift = (low - np.min(low, initial=0)).astype(object)
    top = sum(v * v for v in (delta << shift).ravel().tolist())
    bottom = sum(v * v for v in (size << shift).ravel().tolist())
    if top == 0 or bottom == 0:
        return math.inf if top else 0.0
    # a quotient of about 128 bits, so that its root has 64
    scale = (128 - top.bit_length() + bottom.bit_length()) // 2
    quotient = (top << 2 * scale) // bottom if scale >= 0 else top // (bottom << -2 * scale)
    try:
        return math.ldexp(float(math.isqrt(quotient)), -scale)
    except OverflowError:
        return math.inf
