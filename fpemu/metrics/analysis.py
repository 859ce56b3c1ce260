"""Absolute errors, errors relative to |A||B| and in ulps; the arithmetic of all measures on numbers d·2^e.

Differences, quotients, norms and sums are formed on pairs (d, e) of arrays, so that none overflows or underflows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee, use_compiled
from fpemu.arguments import (
    _float64,
    any_complex,
    as_array,
    as_complex,
    as_float64,
    product_shape,
    real_factor,
    real_view,
)
from fpemu.errors import InputError, entries
from fpemu.formats import FloatFormat

Floats = NDArray[np.float64]

NOT_COMPARABLE = np.uint64(0xFFFFFFFFFFFFFFFF)
"""`ulps` between a NaN and a number: larger than any distance."""


@in_ieee
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
    if any_complex(C, R, A, B):
        C, R, A, B = (as_complex(X, name) for X, name in ((C, "C"), (R, "R"), (A, "A"), (B, "B")))
        A, B = (real_view(A), real_factor(B)) if B.ndim > 1 else (A.real, B.real)
    left, right = as_float64(A, "A"), as_float64(B, "B")
    c, r, equal = pair(C, R)
    if left.ndim < 2 or right.ndim < 2:
        raise InputError(f"normwise: A {left.shape} and B {right.shape} have no product: they need two axes or more")
    if (product := product_shape(left, right)) != c.shape:
        raise InputError(f"normwise: A {left.shape} times B {right.shape} has shape {product}, not C's shape {c.shape}")
    d, e = difference(c, r, equal)
    weight, f = _weight(*(np.where(np.isfinite(X), np.abs(X), 0.0) for X in (left, right)))
    return largest(np.where(d == 0, 0.0, scaled(divide(d, weight), e - f)))


@in_ieee
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

    Examples
    --------
    >>> max_absolute([1.0, 2.5], [1.0, 2.0])
    0.5
    """
    return largest(scaled(*difference(*pair(C, R))))


@in_ieee
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
    c, r = both(C, R)
    if use_compiled(c.size) and fmt.signed and fmt.emin >= -1022:
        from fpemu.compiled.measures import ulps as compiled

        if (distances := compiled(c, r, fmt)) is not None:
            return distances
    c, r = _float64(c, "C"), _float64(r, "R")
    (p, below), (q, under) = _place(c, fmt, "C"), _place(r, fmt, "R")
    apart = np.where(below == under, np.maximum(p, q) - np.minimum(p, q), p + q)
    nans = np.isnan(c).astype(int) + np.isnan(r).astype(int)
    return np.asarray(np.choose(nans, [apart, NOT_COMPARABLE, np.uint64(0)]), dtype=np.uint64)


@in_ieee
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
    if (bad := ~fmt._contains(x) & ~np.isnan(x)).any():
        raise InputError(f"{name} has entries that are not values of {fmt} (round_to first): {entries(bad, x)}")
    code = np.asarray(fmt.encode(np.abs(np.where(np.isnan(x), fmt.max, x)))).astype(np.uint64) >> np.uint64(fmt.padding)
    if fmt.inf:  # codes between the largest number and Inf may be unused
        code = np.minimum(code, np.uint64((int(fmt.encode(fmt.max)) >> fmt.padding) + 1))
    if not fmt.subnormals:  # the codes between zero and the smallest normal number are unused
        gap = np.uint64((1 << fmt.fraction_bits) - 1)
        code = np.maximum(code, gap) - gap
    return code, (x < 0) & (code > 0)


# --- the weight |A| |B|
@np.errstate(under="ignore")
def _weight(A: Floats, B: Floats) -> tuple[Floats, NDArray[Any]]:
    """|A| |B| of non-negative matrices as (d, e), right also where float64 products of the entries would underflow."""
    a, b = _top(A, -1), _top(B, -2)
    X, Y = scaled(A, -a), scaled(B, -b)
    W = np.matmul(X, Y)
    E = np.broadcast_to(a + b, W.shape).copy()
    # rows and columns now have maxima near 1, but at different k the products may underflow: these are computed again
    underflow = (W < 2.0**-900) & (np.matmul((A > 0).astype(np.float64), (B > 0).astype(np.float64)) > 0)
    batch = W.shape[:-2]
    A, B = (np.broadcast_to(M, (*batch, *M.shape[-2:])) for M in (A, B))
    for index in np.argwhere(underflow).tolist():
        *lead, i, j = index
        (x, s), (y, t) = parts(A[tuple(lead)][i]), parts(B[tuple(lead)][:, j])
        terms, exponents = x * y, s + t
        top = int(np.max(exponents[terms > 0]))
        W[tuple(index)], E[tuple(index)] = rounded_sum(scaled(terms, exponents - top)), top
    return W, E


def _top(X: Floats, axis: int) -> NDArray[Any]:
    return parts(np.max(X, axis=axis, keepdims=True, initial=0.0))[1]


# --- numbers d·2^e
def pair(C: Any, R: Any, names: str = "CR") -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return both as float64, and where C equals R."""
    c, r = (_float64(X, name) for X, name in zip(both(C, R, names), names, strict=True))
    return c, r, (c == r) | (np.isnan(c) & np.isnan(r))


def both(C: Any, R: Any, names: str = "CR") -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both as arrays, of float16, float32 or float64; different shapes raise InputError."""
    c, r = (real_parts(X, name) for X, name in zip((C, R), names, strict=True))
    if any_complex(C) != any_complex(R):
        c, r = (real_view(as_complex(X, name)) for X, name in zip((C, R), names, strict=True))
    if c.shape != r.shape:
        raise InputError(f"result {names[0]} and reference {names[1]} differ in shape: {c.shape} and {r.shape}")
    return c, r


def real_parts(X: Any, name: str) -> NDArray[Any]:
    """Numbers as an array of float16, float32 or float64, complex ones as their parts along the last axis."""
    x = as_array(X, name, complex_numbers=True)
    if x.dtype.kind == "c":
        return real_view(x)
    return x if x.dtype in (np.float16, np.float32) else _float64(x, name)


def parts(x: Floats) -> tuple[Floats, NDArray[Any]]:
    """x as (d, e), d in [0.5, 1) in magnitude."""
    mantissa, exponent = np.frexp(x)
    return mantissa, exponent.astype(np.int64)


def scaled(d: Any, e: Any) -> Floats:
    """d * 2^e."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(d, np.clip(e, -5000, 5000).astype(np.int32)))


def difference(c: Floats, r: Floats, equal: NDArray[np.bool_]) -> tuple[Floats, NDArray[Any]]:
    """|c - r| as (d, e): d is 0 where they are equal, else inf for NaN and Inf, else below 2, rounded once."""
    fine = np.isfinite(c) & np.isfinite(r)
    x, y = np.where(fine, c, 0.0), np.where(fine, r, 0.0)
    # the larger of the two goes to [0.5, 1); the smaller may lose bits only some 2^1000 below
    e = np.maximum(parts(x)[1], parts(y)[1])
    e = np.where(x == 0, parts(y)[1], np.where(y == 0, parts(x)[1], e))
    d = np.abs(scaled(x, -e) - scaled(y, -e))
    return np.where(equal, 0.0, np.where(fine, d, np.inf)), e


def divide(d: Floats, below: Floats) -> Floats:
    """d / below; inf or NaN where below is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.divide(d, below))


@np.errstate(under="ignore")
def norm(d: Floats, e: NDArray[Any]) -> tuple[float, int]:
    """The root of the sum of (d 2^e)^2 as a pair; the largest term is scaled to about 1."""
    mantissa, exponent = parts(d)
    e = np.where(d == 0, -(1 << 20), e + exponent)
    top = int(np.max(e, initial=-(1 << 20)))
    return math.sqrt(rounded_sum(np.square(scaled(mantissa, e - top)))), top


def rounded_sum(x: Floats) -> float:
    """The sum rounded once.

    Exact sums of the leading bits of 2^14 numbers at a time, then of their next bits, are what `math.fsum` adds: with
    |x| < 2^e and sigma = 2^(e+14), fl(fl(sigma + x) - sigma) is a multiple of 2^(e-39) and at most 2^e, so that any sum
    of 2^14 of them is at most 2^53 multiples; and x without it is again a number of float64.
    """
    flat, terms = x.ravel(), list[float]()
    for i in range(0, flat.size, 1 << 14):
        left = flat[i : i + (1 << 14)]
        while peak := float(np.max(np.abs(left))):
            if not peak < 2.0**1000:
                terms += left.tolist()
                break
            sigma = math.ldexp(1.0, math.frexp(peak)[1] + 14)
            leading = (left + sigma) - sigma
            terms.append(float(np.sum(leading)))
            left = left - leading
    return math.fsum(terms)


def largest(errors: Floats) -> float:
    """The largest error; 0 of an empty matrix."""
    return float(np.max(errors, initial=0.0))


def mean(errors: Floats) -> float:
    """The mean of errors of at least 0; 0 of an empty matrix."""
    top = largest(errors)
    if top == 0.0 or math.isinf(top):
        return top
    scale = int(np.frexp(top)[1])
    return float(scaled(rounded_sum(scaled(errors, -scale)) / errors.size, scale))
