"""Strassen's algorithm in Winograd's form: seven products of half the size instead of eight.

V. Strassen, "Gaussian elimination is not optimal", Numerische Mathematik 13, 1969, DOI 10.1007/BF02165411; the form
with fifteen additions is S. Winograd's.

    S1 = A21 + A22    S2 = S1 - A11     S3 = A11 - A21    S4 = A12 - S2
    T1 = B12 - B11    T2 = B22 - T1     T3 = B22 - B12    T4 = T2 - B21
    P1 = A11 B11  P2 = A12 B21  P3 = S4 B22  P4 = A22 T4  P5 = S1 T1  P6 = S2 T2  P7 = S3 T3
    U2 = P1 + P6      U3 = U2 + P7      U4 = U2 + P5
    C11 = P1 + P2     C12 = U4 + P3     C21 = U3 - P4     C22 = U3 + P5

Every addition is one of fp32, to nearest. Odd sizes are padded with a row or column of zeros. `staged` with levels=1
computes the seven products by staged accumulation; with levels=2 each of the seven is computed the same way, so that 49
products of a quarter of the size replace 64. The additions lose less than staged accumulation saves: the error of a
product of random matrices stays below the error of a chain in fp32.

Range: entries below 2^124, 2^121 with two levels; an entry of the result may overflow where the sum of all magnitudes
is near 2^128.
Error: normwise only, |D - AB| <= g max|A| max|B|; an entry that is small beside others may lose all of its digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def limit(levels: int) -> float:
    """Return the magnitude below which entries must lie, so that no sum of blocks overflows.

    Parameters
    ----------
    levels : {1, 2}
        Levels of the algorithm. A level adds up to four entries before the products, and four products after them.

    Returns
    -------
    float
        2^124, or 2^121 for two levels.
    """
    return 2.0**124 if levels == 1 else 2.0**121


def multiply(A: Array, B: Array, product: Callable[[Array, Array], Array]) -> Array:
    """Return A·B by one level of the algorithm.

    Parameters
    ----------
    A : array (..., M, K)
        Finite fp32 numbers.
    B : array (..., K, N)
        Finite fp32 numbers.
    product : callable (X, Y) -> XY
        Multiplies blocks of fp32 numbers.

    Returns
    -------
    array (..., M, N)
        The product, in fp32.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        products = [product(x, y) for x, y in zip(left(A), right(B), strict=True)]
        return join(products)[..., : A.shape[-2], : B.shape[-1]]


def left(A: Array) -> list[Array]:
    """The seven left operands of A, (..., M, K) of fp32."""
    (a11, a12), (a21, a22) = blocks(A)
    s1 = a21 + a22
    s2 = s1 - a11
    return [a11, a12, a12 - s2, a22, s1, s2, a11 - a21]


def right(B: Array) -> list[Array]:
    """The seven right operands of B, (..., K, N) of fp32."""
    (b11, b12), (b21, b22) = blocks(B)
    t1 = b12 - b11
    t2 = b22 - t1
    return [b11, b21, b22, t2 - b21, t1, t2, b22 - b12]


def join(P: list[Array]) -> Array:
    """The result of the seven products."""
    u2 = P[0] + P[5]
    u3 = u2 + P[6]
    u4 = u2 + P[4]
    upper = np.concatenate([P[0] + P[1], u4 + P[2]], axis=-1)
    return np.concatenate([upper, np.concatenate([u3 - P[3], u3 + P[4]], axis=-1)], axis=-2)


def blocks(X: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Quarters of a matrix, with zeros where its sizes are odd."""
    rows, columns = X.shape[-2:]
    even = np.pad(X, [(0, 0)] * (X.ndim - 2) + [(0, rows % 2), (0, columns % 2)])
    m, n = even.shape[-2] // 2, even.shape[-1] // 2
    return (even[..., :m, :n], even[..., :m, n:]), (even[..., m:, :n], even[..., m:, n:])
