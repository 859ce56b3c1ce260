"""Absolute errors, and errors relative to |A||B| as in the bounds of numerical analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arrays import as_float64, product_shape
from fpemu.errors import InputError
from fpemu.metrics.scaled import Floats, difference, divide, largest, pair, parts, rounded_sum, scaled


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
    c, r, equal = pair(C, R)
    if left.ndim < 2 or right.ndim < 2:
        raise InputError(f"normwise: A {left.shape} and B {right.shape} have no product: they need two axes or more")
    if (product := product_shape(left, right)) != c.shape:
        raise InputError(f"normwise: A {left.shape} times B {right.shape} has shape {product}, not C's shape {c.shape}")
    d, e = difference(c, r, equal)
    weight, f = _weight(*(np.where(np.isfinite(X), np.abs(X), 0.0) for X in (left, right)))
    return largest(np.where(d == 0, 0.0, scaled(divide(d, weight), e - f)))


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
    return largest(scaled(*difference(*pair(C, R))))


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
