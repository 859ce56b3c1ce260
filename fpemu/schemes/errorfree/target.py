"""Precision from the data: the least number of slices or moduli whose error bound meets a target.

The bound of the scheme (`ErrorFree.error_bound`) is evaluated for the operands of the product, entry by entry, and
compared with t |A||B|, where t is the target: a number, or DGEMM's (SGEMM's) bound for the same K,

    "dgemm"    t = K u / (1 - K u), u = 2^-53        "sgemm"    u = 2^-24

(Higham, Accuracy and Stability of Numerical Algorithms, Eq. 3.13). |A||B| is a float64 product, rounded down. The
numbers are tried from 1 slice upward, and by bisection from 2 to 20 moduli: a larger number has a smaller bound, except
that rounding to nearest may, rarely, leave the smaller number with a smaller residual. Where 20 do not suffice, the
report has a violated condition with the entry and both numbers, and `fpemu.gemm` raises it: a product meets its target
or raises. `ozaki` and `ozimmu` add some 36 products of slices in fp64, so that they show "dgemm" from K = 50 on.

The bounds are float64 products too, whose last bits may depend on the BLAS. Where a bound equals the target to 2^-40,
two machines may therefore choose numbers that differ by one; the bits of a product with a given number do not differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.schemes.base import Call
from fpemu.schemes.errorfree.plan import Certificate

UNITS = {"dgemm": 2.0**-53, "sgemm": 2.0**-24}
"""Targets by name, with the unit roundoff of the product whose error bound each is"""
MOST = 20
"""The largest number of slices or moduli that a target selects"""
LEAST = -500
"""Binary exponent, relative to the largest of a row of A or column of B, that smaller numbers count as in |A||B|"""


def limit(target: float | str, K: int) -> float:
    """The largest error relative to |A||B|.

    >>> limit("dgemm", 2**10) / 2**-43
    1.0000000000001137
    """
    if not isinstance(target, str):
        return target
    error = K * UNITS[target]
    return error / (1 - error) if error < 1 else math.inf


def within(scheme: Any, call: Call) -> tuple[Any, Certificate]:
    """The scheme with the least number that meets its target for one product of finite float64 matrices."""
    A, B = (np.squeeze(X, tuple(range(X.ndim - 2))) for X in (call.A, call.B))
    call, sizes = replace(call, A=A, B=B), least_sizes(A, B)

    def ratio(chosen: Any) -> tuple[float, tuple[int, int]]:
        with np.errstate(all="ignore"):
            ratios = np.where(sizes == np.inf, 0.0, chosen._bound(call) / sizes)
        worst = int(np.argmax(ratios))  # the first NaN, if there is one
        return float(ratios.flat[worst]), divmod(worst, B.shape[1])

    return least(scheme, A.shape[1], ratio)


def numbers(scheme: Any) -> range:
    """The numbers of slices or moduli from which a target selects: a given number alone, or all of them."""
    given = getattr(scheme, scheme.counted)
    return range(given, given + 1) if given else range(2 if scheme.modular else 1, MOST + 1)


def counted(scheme: Any, number: int) -> Any:
    """The scheme without a target, with a number of slices or moduli."""
    return replace(scheme, target=None, **{scheme.counted: number})


def least(scheme: Any, K: int, ratio: Callable[[Any], tuple[float, tuple[int, int]]]) -> tuple[Any, Certificate]:
    """The scheme with the least number that meets its target, and its certificate.

    ratio : returns the bound of a scheme without a target relative to |A||B|, the largest of all entries, and its index
    """
    most, name, permitted = limit(scheme.target, K), scheme.counted, numbers(scheme)
    bounds: dict[int, tuple[float, tuple[int, int]]] = {}

    def meets(number: int) -> bool:
        bounds[number] = ratio(counted(scheme, number))
        return bounds[number][0] <= most

    if scheme.modular:
        number = permitted[min(bisect_left(permitted, True, key=meets), len(permitted) - 1)]
    else:  # more slices have more sums, whose roundings may exceed a small target
        number = next((n for n in permitted if meets(n)), 0) or min(bounds, key=lambda n: bounds[n][0])
    if number not in bounds:
        meets(number)
    fewer = bounds[number - 1][0] if number - 1 in bounds else None
    return counted(scheme, number), Certificate(name, number, most, *bounds[number], fewer)


def least_sizes(A: Any, B: Any) -> NDArray[np.float64]:
    """A lower bound of |A||B|; inf where all products are zero, 0 where nothing can be shown.

    Numbers below 2^LEAST of the largest in their row of A (column of B) count as 2^LEAST, so that a sum is zero only if
    all of its products are.
    """
    with np.errstate(all="ignore"):
        a, b = (np.frexp(np.max(np.abs(X), axis=axis, keepdims=True))[1] for X, axis in ((A, 1), (B, 0)))
        x, y = (np.maximum(np.ldexp(np.abs(X), -e), np.where(X == 0, 0, 2.0**LEAST)) for X, e in ((A, a), (B, b)))
        sums = x @ y
        sizes = sums * (1 - (A.shape[1] + 8) * 2.0**-52) - A.shape[1] * 2.0 ** (LEAST + 1)
        return np.where(sums == 0, np.inf, np.ldexp(np.maximum(sizes, 0.0), a + b))
