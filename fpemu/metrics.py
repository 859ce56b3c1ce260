"""The error measures of the papers, and further measures for the study of rounding.

C (P in LE-GEMM's notation) is the result under test, R (S) the reference; the two have the same shape, any number of
axes, and entries of at most 64 bits. All measures follow these rules:

* they are computed in float64 from differences and quotients scaled by powers of two, so that matrices near 1e300 or
  1e-300 lose nothing to overflow or underflow; sums are rounded once, so the value does not depend on the machine;
* an entry equal to its reference has error 0, also where the reference is 0; an entry that differs from a zero
  reference has an infinite relative error;
* NaN equals NaN, and an infinity equals the same infinity; any other NaN or Inf makes the error inf;
* an empty matrix has error 0.0; a shape mismatch raises `InputError` with both shapes.

For `relative_l2`, `max_relative` and `mred`, R may also be the object of ``fpemu.reference.matmul(out="exact")``: the
error is then relative to the exact matrix, before any rounding of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arguments import checked, number
from fpemu.arrays import as_float64, product_shape
from fpemu.errors import InputError, entries, unknown_name
from fpemu.formats import FloatFormat
from fpemu.parallel import map_chunks

Floats = NDArray[np.float64]


# --- the papers' measures
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
    c, r, equal = _pair(C, R)
    d, e = map_chunks(_difference, c, r, equal)
    if np.isinf(d).any():
        return math.inf
    (top, s), (bottom, t) = _norm(d, e), _norm(*_parts(np.where(equal & ~np.isfinite(r), 0.0, r)))
    if bottom == 0.0:
        return math.inf if top else 0.0
    return float(_scaled(top / bottom, s - t))


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
    return float(R.error_of(C, "max_relative")) if hasattr(R, "error_of") else _max(_relative(C, R))


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
    return _max(symmetric(P, S))


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
    return float(S.error_of(P, "mred")) if hasattr(S, "error_of") else _mean(_relative(P, S, "PS"))


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
        below, f = _parts(np.where(np.isfinite(r), r, 1.0))
        return _scaled(_divide(d, np.abs(below)), e - f)

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
            below = np.abs(_scaled(p, -e)) + np.abs(_scaled(s, -e))
        return np.where(np.isinf(d), np.inf, _divide(d, np.where(np.isfinite(below), below, 1.0)))

    return _elementwise(errors, P, S, "PS", signed)


def _elementwise(errors: Callable[..., Floats], C: Any, R: Any, names: str, signed: bool) -> Floats:
    """Return errors(c, r, d, e) with |c - r| = d 2^e, 0 where C equals R, negative where C < R if `signed`."""

    def chunk(c: Floats, r: Floats, equal: NDArray[np.bool_]) -> Floats:
        d, e = _difference(c, r, equal)
        error = np.where(d == 0, 0.0, errors(c, r, d, e))
        return np.where(signed & (c < r), -error, error)

    return np.asarray(map_chunks(chunk, *_pair(C, R, names)))


# --- measures of numerical analysis
def normwise(C: Any, R: Any, A: Any, B: Any) -> float:
    """Return the largest error relative to |A||B|, max |C - R|_ij / (|A| |B|)_ij.

    The quotient is taken entry by entry: it is the componentwise backward error of a product.

    Parameters
    ----------
    C, R : array_like (..., M, N)
        Result under test and reference.
    A, B : array_like (..., M, K) and (..., K, N)
        Operands of the product; leading axes broadcast. Entries that are NaN or Inf count as 0 in the weight |A| |B|: R
        has a NaN or Inf there, and C either equals it or not.

    Returns
    -------
    float
        Error >= 0, dimensionless. 0.0 if C equals R; inf if C differs from R where the weight is 0, or if an entry is
        NaN or Inf in only one of the two.

    Raises
    ------
    InputError
        Shapes that do not fit one another, or entries that are not real numbers of at most 64 bits.

    Notes
    -----
    The classical bound is K u for a chain of K roundings (Higham 2002, Eq. 3.13), whatever the cancellation. The weight
    comes from a float64 product, accurate to K 2^-53.

    References
    ----------
    N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, SIAM, 2002.

    Examples
    --------
    >>> normwise([[0.5]], [[0.25]], [[1.0, -1.0]], [[1.0], [1.0]])
    0.125
    """
    left, right = as_float64(A, "A"), as_float64(B, "B")
    c, r, equal = _pair(C, R)
    if left.ndim < 2 or right.ndim < 2:
        raise InputError(f"normwise: A {left.shape} and B {right.shape} have no product: they need two axes or more")
    if (product := product_shape(left, right)) != c.shape:
        raise InputError(f"normwise: A {left.shape} times B {right.shape} has shape {product}, not C's shape {c.shape}")
    d, e = _difference(c, r, equal)
    weight, f = _weight(*(np.where(np.isfinite(X), np.abs(X), 0.0) for X in (left, right)))
    return _max(np.where(d == 0, 0.0, _scaled(_divide(d, weight), e - f)))


def max_absolute(C: Any, R: Any) -> float:
    """Return the largest absolute error, max |C - R|.

    Parameters
    ----------
    C, R : array_like
        Result under test and reference, of the same shape; entries of at most 64 bits.

    Returns
    -------
    float
        Error >= 0, in the unit of C. Equal infinities, and NaN in both, count 0; inf if an entry is NaN or Inf in only
        one of the two, or if the difference exceeds the range of float64.

    Raises
    ------
    InputError
        Arrays of different shapes, or entries that are not real numbers of at most 64 bits.

    Examples
    --------
    >>> max_absolute([1.0, 2.5], [1.0, 2.0])
    0.5
    """
    return _max(_scaled(*_difference(*_pair(C, R))))


@checked
def effective_bits(C: Any, R: Any, measure: str | Callable[..., float] = "relative_l2") -> float:
    """Return -log2 of an error, the number of correct leading bits of a result.

    Parameters
    ----------
    C, R : array_like
        Result under test and reference, of the same shape.
    measure : str or callable
        Error measure, as a name that `get` accepts or as a function of (C, R) that returns a number >= 0.

    Returns
    -------
    float
        Bits; inf for an error of 0, -inf for an infinite error.

    Raises
    ------
    InputError
        Unknown measure; arrays that the measure does not accept; a measure that returns NaN or a negative number.

    Examples
    --------
    >>> effective_bits([1.0 + 2.0**-20], [1.0])
    20.0
    """
    error = number("result of measure", (get(measure) if isinstance(measure, str) else measure)(C, R), 0, math.inf)
    return math.inf if error == 0 else -math.log2(error)


# --- distances in units of representable numbers
NOT_COMPARABLE = np.uint64(0xFFFFFFFFFFFFFFFF)
"""`ulps` between a NaN and a number: larger than any distance."""


def ulps(C: Any, R: Any, fmt: FloatFormat | str) -> NDArray[np.uint64]:
    """Return the distance between C and R in units in the last place of a format.

    The distance is the number of steps of ``fmt`` between the two values.

    Parameters
    ----------
    C, R : array_like
        Values of ``fmt``, of the same shape.
    fmt : FloatFormat or str
        Format that defines the steps.

    Returns
    -------
    uint64 array
        0 for equal values (+0 and -0 are equal), 1 for neighbours; infinity is one step beyond the largest finite
        number. 0 between two NaNs whatever their payloads, `NOT_COMPARABLE` between a NaN and a number.

    Raises
    ------
    InputError
        Entries that are no values of the format; shapes that differ.

    Examples
    --------
    >>> int(ulps(1.0, 1.0 + 2.0**-10, "fp16"))
    1
    """
    fmt = formats.get(fmt)
    c, r, _ = _pair(C, R)
    (p, below), (q, under) = _place(c, fmt, "C"), _place(r, fmt, "R")
    apart = np.where(below == under, np.maximum(p, q) - np.minimum(p, q), p + q)
    nans = np.isnan(c).astype(int) + np.isnan(r).astype(int)
    return np.asarray(np.choose(nans, [apart, NOT_COMPARABLE, np.uint64(0)]), dtype=np.uint64)


def max_ulps(C: Any, R: Any, fmt: FloatFormat | str) -> float:
    """Return the largest number of steps of a format between a result and the reference, max `ulps`.

    Parameters
    ----------
    C, R : array_like
        Values of ``fmt``, of the same shape.
    fmt : FloatFormat or str
        Format that defines the steps.

    Returns
    -------
    float
        Steps of ``fmt``; 0.0 for empty arrays; inf where a NaN meets a number.

    Raises
    ------
    InputError
        Entries that are no values of the format; shapes that differ.

    Examples
    --------
    >>> max_ulps([1.0, 2.0], [1.0, 2.0 - 2.0**-10], "fp16")
    1.0
    """
    distance = ulps(C, R, fmt)
    if not distance.size:
        return 0.0
    return math.inf if (distance == NOT_COMPARABLE).any() else float(distance.max())


def _place(x: Floats, fmt: FloatFormat, name: str) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the number of steps from zero, and whether x is below it; arbitrary for NaN."""
    if (bad := ~np.asarray(fmt.contains(x)) & ~np.isnan(x)).any():
        raise InputError(f"{name} has entries that are not values of {fmt} (round_to first): {entries(bad, x)}")
    code = np.asarray(fmt.encode(np.abs(np.where(np.isnan(x), fmt.max, x)))).astype(np.uint64) >> np.uint64(fmt.padding)
    if not fmt.subnormals:  # the codes between zero and the smallest normal number are unused
        gap = np.uint64((1 << fmt.fraction_bits) - 1)
        code = np.maximum(code, gap) - gap
    return code, (x < 0) & (code > 0)


# --- by name
_MEASURES: dict[str, Callable[..., float]] = {
    f.__name__: f
    for f in (relative_l2, max_relative, max_error_legemm, mred, normwise, max_absolute, max_ulps, effective_bits)
}
_ALIASES = dict.fromkeys(("h2sgemm", "err", "frobenius", "relative_frobenius"), "relative_l2")
_ALIASES |= dict.fromkeys(("dgemm_tc", "mpfr"), "max_relative") | {"mean_relative": "mred", "componentwise": "normwise"}
_ALIASES |= dict.fromkeys(("legemm", "max_error"), "max_error_legemm")


def names() -> list[str]:
    """Return the names of the error measures that `get` accepts.

    Measures take (C, R); `normwise` takes (C, R, A, B) and `max_ulps` takes (C, R, fmt).

    Returns
    -------
    list of str
        Names, those of the papers' measures first.

    Examples
    --------
    >>> names()[:4]
    ['relative_l2', 'max_relative', 'max_error_legemm', 'mred']
    """
    return list(_MEASURES)


def get(name: str) -> Callable[..., float]:
    """Return an error measure by name.

    Parameters
    ----------
    name : str
        One of `names`, or a paper's or the field's name for it: "h2sgemm", "dgemm-tc", "max_error", "frobenius" and
        others. Case does not matter, and "-" stands for "_".

    Returns
    -------
    callable
        Function of (C, R) that returns a float (`normwise`: of (C, R, A, B); `max_ulps`: of (C, R, fmt)).

    Raises
    ------
    InputError
        Unknown name; the message shows the nearest known one.

    Examples
    --------
    >>> get("h2sgemm").__name__
    'relative_l2'
    """
    key = name.lower().replace("-", "_") if isinstance(name, str) else ""
    key = _ALIASES.get(key, key)
    if key not in _MEASURES:
        raise unknown_name("measure", name, [*_MEASURES, *_ALIASES])
    return _MEASURES[key]


# --- arithmetic on scaled numbers: a pair (d, e) stands for d * 2^e
def _pair(C: Any, R: Any, names: str = "CR") -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return both as float64, and where C equals R."""
    c, r = (as_float64(X, name) for X, name in zip((C, R), names, strict=True))
    if c.shape != r.shape:
        raise InputError(f"result {names[0]} and reference {names[1]} differ in shape: {c.shape} and {r.shape}")
    return c, r, (c == r) | (np.isnan(c) & np.isnan(r))


def _parts(x: Floats) -> tuple[Floats, NDArray[Any]]:
    mantissa, exponent = np.frexp(x)
    return mantissa, exponent.astype(np.int64)


def _scaled(d: Any, e: Any) -> Floats:
    """d * 2^e."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(d, np.clip(e, -5000, 5000).astype(np.int32)))


def _difference(c: Floats, r: Floats, equal: NDArray[np.bool_]) -> tuple[Floats, NDArray[Any]]:
    """|c - r| as (d, e): d is 0 at a equal, inf where one of the two is NaN or Inf, else below 2 and rounded once."""
    fine = np.isfinite(c) & np.isfinite(r)
    x, y = np.where(fine, c, 0.0), np.where(fine, r, 0.0)
    # the larger of the two goes to [0.5, 1); the smaller may lose bits only some 2^1000 below
    e = np.maximum(_parts(x)[1], _parts(y)[1])
    e = np.where(x == 0, _parts(y)[1], np.where(y == 0, _parts(x)[1], e))
    d = np.abs(_scaled(x, -e) - _scaled(y, -e))
    return np.where(equal, 0.0, np.where(fine, d, np.inf)), e


def _divide(d: Floats, below: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.divide(d, below))


def _norm(d: Floats, e: NDArray[Any]) -> tuple[float, int]:
    """The root of the sum of (d 2^e)^2 as a pair; the largest term is scaled to about 1."""

    def leading(d: Floats, e: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
        mantissa, exponent = _parts(d)
        return mantissa, np.where(d == 0, -(1 << 20), e + exponent)

    mantissa, e = map_chunks(leading, d, e)
    top = int(np.max(e, initial=-(1 << 20)))
    return math.sqrt(_sum(map_chunks(lambda m, e: np.square(_scaled(m, e - top)), mantissa, e))), top


def _sum(x: Floats) -> float:
    """The sum rounded once.

    Exact sums of the leading bits of 2^14 numbers at a time, then of their next bits, are what `math.fsum` adds: with
    |x| < 2^e and sigma = 2^(e+14), fl(fl(sigma + x) - sigma) is a multiple of 2^(e-39) and at most 2^e, so that any sum
    of 2^14 of them is at most 2^53 multiples; and x without it is again a number of float64.
    """
    flat, parts = x.ravel(), list[float]()
    for i in range(0, flat.size, 1 << 14):
        left = flat[i : i + (1 << 14)]
        while largest := float(np.max(np.abs(left))):
            if not largest < 2.0**1000:
                parts += left.tolist()
                break
            sigma = math.ldexp(1.0, math.frexp(largest)[1] + 14)
            leading = (left + sigma) - sigma
            parts.append(float(np.sum(leading)))
            left = left - leading
    return math.fsum(parts)


def _max(errors: Floats) -> float:
    return float(np.max(errors, initial=0.0))


def _mean(errors: Floats) -> float:
    top = _max(errors)
    if top == 0.0 or math.isinf(top):
        return top
    scale = int(np.frexp(top)[1])
    return float(_scaled(_sum(_scaled(errors, -scale)) / errors.size, scale))


def _weight(A: Floats, B: Floats) -> tuple[Floats, NDArray[Any]]:
    """|A| |B| of non-negative matrices as (d, e), right also where float64 products of the entries would underflow."""
    a, b = _top(A, -1), _top(B, -2)
    X, Y = _scaled(A, -a), _scaled(B, -b)
    W = np.matmul(X, Y)
    E = np.broadcast_to(a + b, W.shape).copy()
    # rows and columns now have maxima near 1, but at different k the products may underflow: these are computed again
    underflow = (W < 2.0**-900) & (np.matmul((A > 0).astype(np.float64), (B > 0).astype(np.float64)) > 0)
    batch = W.shape[:-2]
    A, B = (np.broadcast_to(M, (*batch, *M.shape[-2:])) for M in (A, B))
    for index in np.argwhere(underflow).tolist():
        *lead, i, j = index
        (x, s), (y, t) = _parts(A[tuple(lead)][i]), _parts(B[tuple(lead)][:, j])
        terms, exponents = x * y, s + t
        top = int(np.max(exponents[terms > 0]))
        W[tuple(index)], E[tuple(index)] = _sum(_scaled(terms, exponents - top)), top
    return W, E


def _top(X: Floats, axis: int) -> NDArray[Any]:
    return _parts(np.max(X, axis=axis, keepdims=True, initial=0.0))[1]
