"""The compiled exponential function of `fpemu.inputs`, whose `_exp` is the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fpemu.compiled.bits import floor, power
from fpemu.compiled.cache import saved


@njit(nogil=True, error_model="numpy", inline="always")
def _halves(x: float) -> Any:
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


@njit(nogil=True, error_model="numpy", inline="always")
def _product(a: float, b: float) -> Any:
    product = a * b
    a1, a2 = _halves(a)
    b1, b2 = _halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


@njit(nogil=True, error_model="numpy", inline="always")
def _fma(a: float, b: float, c: float) -> float:
    """Return a b + c by the operations of `fpemu.inputs._fma`, from which a true fma differs close to a tie."""
    product, error = _product(a, b)
    high = product + c
    part = high - product
    low = (product - (high - part)) + (c - part)
    return high + (low + error)


@saved
@njit(nogil=True, error_model="numpy")
def exp(x: Any, out: Any, near: Any, rest: Any, steps: float, ln2: float, ln2_rest: float, q: Any) -> None:
    """Write e^x; the loads from tables have a loop of their own, because the compiler vectorises only the others."""
    count = len(x)
    r, index, leading, remainder = np.empty(count), np.empty(count, np.int32), np.empty(count), np.empty(count)
    q0, q1, q2, q3, q4, q5 = q[0], q[1], q[2], q[3], q[4], q[5]
    for i in range(count):
        given = x[i] if x[i] > -800.0 else -800.0
        given = given if given < 800.0 else 800.0
        high, low = _product(given, steps)
        n = floor(high)
        n -= 1.0 if (n == high) & (low < 0) else 0.0
        y = _fma(n / -16, ln2_rest, _fma(n / -16, ln2, given))
        square = y * y
        ratio = _fma(square, _fma(square, _fma(y, q0, q1), _fma(y, q2, q3)), _fma(y, q4, q5))
        out[i], r[i], index[i] = ratio, y, np.int32(n)
    for i in range(count):
        leading[i], remainder[i] = near[index[i] & 15], rest[index[i] & 15]
    for i in range(count):
        value = _fma(leading[i], _fma(out[i], r[i], remainder[i]), leading[i])
        e = np.int64(index[i] >> 4)
        out[i] = value * power(e >> 1) * power(e - (e >> 1))  # only the second product rounds
