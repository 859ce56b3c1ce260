"""The error measures of the papers, and their values entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import checked
from fpemu.metrics.scaled import Floats, difference, divide, largest, mean, norm, pair, parts, scaled
from fpemu.parallel import map_chunks


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

    Raises
    ------
    InputError
        Arrays of different shapes, or entries that are not real numbers of at most 64 bits.

    Notes
    -----
    H2SGEMM, Eq. 11 (there with R from DGEMM), Fig. 8 and 9. "L2" is the norm of the matrix as a vector (Frobenius).

    Examples
    --------
    >>> relative_l2([3.0, 4.5], [3.0, 4.0])
    0.1
    """
    if hasattr(R, "error_of"):
        return float(R.error_of(C, "relative_l2"))
    c, r, equal = pair(C, R)
    d, e = map_chunks(difference, c, r, equal)
    if np.isinf(d).any():
        return math.inf
    (top, s), (bottom, t) = norm(d, e), norm(*parts(np.where(equal & ~np.isfinite(r), 0.0, r)))
    if bottom == 0.0:
        return math.inf if top else 0.0
    return float(scaled(top / bottom, s - t))


def max_relative(C: Any, R: Any) -> float:
    """Return the largest componentwise relative error, max |C - R| / |R|.

    Parameters
    ----------
    C : array_like
        Result under test, of any shape; entries of at most 64 bits.
    R : array_like or ExactMatrix
        Reference of the same shape, or the result of ``fpemu.reference.matmul(out="exact")``.

    Returns
    -------
    float
        Error >= 0, dimensionless. An entry equal to its reference counts 0, also where the reference is 0; inf if C
        differs from a zero reference, or if an entry is NaN or Inf in only one of the two.

    Raises
    ------
    InputError
        Arrays of different shapes, or entries that are not real numbers of at most 64 bits.

    Notes
    -----
    DGEMM-TC, Fig. 3 and 8: R is the product in MPFR at 2048 bits rounded to the output format, which is what
    ``fpemu.reference.matmul`` returns (or method="mpmath" at that precision).

    Examples
    --------
    >>> max_relative([1.0, 2.5], [1.0, 2.0])
    0.25
    """
    return float(R.error_of(C, "max_relative")) if hasattr(R, "error_of") else largest(_relative(C, R))


def max_error_legemm(P: Any, S: Any) -> float:
    """Return LE-GEMM's Max_error, max |p - s| / (|p| + |s|).

    Parameters
    ----------
    P : array_like
        Result under test, of any shape; entries of at most 64 bits.
    S : array_like
        Reference of the same shape.

    Returns
    -------
    float
        Error from 0 to 1 for finite entries, dimensionless. Equal entries count 0, two zeros included; inf if an entry
        is NaN or Inf in only one of the two.

    Raises
    ------
    InputError
        Arrays of different shapes, or entries that are not real numbers of at most 64 bits.

    Notes
    -----
    LE-GEMM, Eq. 19. In the paper S is a single-precision CPU result; the exact product rounded to fp32 serves as well.

    Examples
    --------
    >>> max_error_legemm([1.0, 3.0], [1.0, 1.0])
    0.5
    """
    return largest(symmetric(P, S))


def mred(P: Any, S: Any) -> float:
    """Return the mean relative error distance, the mean of |s - p| / |s|.

    Parameters
    ----------
    P : array_like
        Result under test, of any shape; entries of at most 64 bits.
    S : array_like or ExactMatrix
        Reference of the same shape, or the result of ``fpemu.reference.matmul(out="exact")``.

    Returns
    -------
    float
        Mean over all entries, >= 0, dimensionless. An entry equal to its reference counts 0, also where the reference
        is 0; inf if P differs from a zero reference, or if an entry is NaN or Inf in only one of the two.

    Raises
    ------
    InputError
        Arrays of different shapes, or entries that are not real numbers of at most 64 bits.

    Notes
    -----
    LE-GEMM, Eq. 20 (MRED).

    Examples
    --------
    >>> mred([1.0, 3.0], [1.0, 2.0])
    0.25
    """
    return float(S.error_of(P, "mred")) if hasattr(S, "error_of") else mean(_relative(P, S, "PS"))


@checked
def relative(C: Any, R: Any, *, signed: bool = False) -> Floats:
    """Return the relative error |C - R| / |R| of every entry.

    Parameters
    ----------
    C : array_like
        Result under test, of any shape; entries of at most 64 bits.
    R : array_like
        Reference of the same shape.
    signed : bool
        Give each error the sign of C - R.

    Returns
    -------
    float64 array
        Errors, of the shape of C. 0 where C equals R, also if both are 0, NaN or the same infinity; an infinite error
        where C differs from a zero reference, or only one of the two is NaN or Inf.

    Raises
    ------
    InputError
        Arrays of different shapes, or entries that are not real numbers of at most 64 bits.

    Notes
    -----
    `max_relative` is the maximum of this array, `mred` its mean. The histograms of LE-GEMM's Fig. 12 and 13 show signed
    errors; the paper does not say whether they are these or those of `symmetric`.

    Examples
    --------
    >>> relative([1.0, 1.5], [1.0, 2.0], signed=True).tolist()
    [0.0, -0.25]
    """
    return _relative(C, R, signed=signed)


def _relative(C: Any, R: Any, names: str = "CR", signed: bool = False) -> Floats:
    def errors(c: Floats, r: Floats, d: Floats, e: NDArray[Any]) -> Floats:
        below, f = parts(np.where(np.isfinite(r), r, 1.0))
        return scaled(divide(d, np.abs(below)), e - f)

    return _elementwise(errors, C, R, names, signed)


@checked
def symmetric(P: Any, S: Any, *, signed: bool = False) -> Floats:
    """Return the symmetric relative error |p - s| / (|p| + |s|) of every entry.

    Parameters
    ----------
    P : array_like
        Result under test, of any shape; entries of at most 64 bits.
    S : array_like
        Reference of the same shape.
    signed : bool
        Give each error the sign of p - s.

    Returns
    -------
    float64 array
        Errors, of the shape of P: 0 where P equals S, also if both are 0, NaN or the same infinity; at most 1 in
        magnitude for finite entries; infinite where only one of the two is NaN or Inf.

    Raises
    ------
    InputError
        Arrays of different shapes, or entries that are not real numbers of at most 64 bits.

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

    return _elementwise(errors, P, S, "PS", signed)


def _elementwise(errors: Callable[..., Floats], C: Any, R: Any, names: str, signed: bool) -> Floats:
    """Return errors(c, r, d, e) with |c - r| = d 2^e, 0 where C equals R, negative where C < R if `signed`."""

    def chunk(c: Floats, r: Floats, equal: NDArray[np.bool_]) -> Floats:
        d, e = difference(c, r, equal)
        error = np.where(d == 0, 0.0, errors(c, r, d, e))
        return np.where(signed & (c < r), -error, error)

    return np.asarray(map_chunks(chunk, *pair(C, R, names)))
