"""The compiled exponential function of `fpemu.inputs`, and the generator of `fpemu.mma.operand_streams`."""

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


@saved
@njit(nogil=True, error_model="numpy")
def draw_codes(out: Any, r: Any, fmt: Any, seed: Any, first: Any, which: Any, source: Any, integer_bits: Any) -> None:
    """Compute `fpemu.mma.operand_streams.operand`; `fmt`: exponent bits, fraction bits, padding, 1 for IEEE's NaN."""
    low32, one = np.uint64(0xFFFFFFFF), np.uint64(1)
    tests, rows, columns = out.shape
    exponent_bits, fraction_bits, padding, nan = fmt
    top, full = (1 << exponent_bits) - 1, (1 << fraction_bits) - 1
    for t in range(tests):
        test = first + np.uint64(t)
        for i in range(rows):
            for j in range(columns):
                k = source[j]
                x0, x1, x2, x3 = np.uint64(i * columns + k), test & low32, test >> np.uint64(32), np.uint64(which)
                k0, k1 = seed & low32, seed >> np.uint64(32)
                for _ in range(10):
                    p0, p1 = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
                    x0, x1, x2, x3 = (
                        (p1 >> np.uint64(32)) ^ x1 ^ k0,
                        p1 & low32,
                        (p0 >> np.uint64(32)) ^ x3 ^ k1,
                        p0 & low32,
                    )
                    k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low32, (k1 + np.uint64(0xBB67AE85)) & low32
                w0, w1, w2, w3 = np.int64(x0), np.int64(x1), np.int64(x2), np.int64(x3)
                if integer_bits:
                    mask, coin = (np.int64(1) << integer_bits) - 1, w2 & 15
                    word = (
                        mask >> 1 if coin == 0 else ((mask >> 1) + 1 if coin == 1 else (0 if coin == 2 else w0 & mask))
                    )
                    out[t, i, j] = word
                    continue
                special, zero = (w2 >> 16 & 4095) < r[6], (w2 >> 4 & 15) < r[5]
                other = (w2 >> 8 & 15) < r[4]
                lowest, highest = (r[2], r[3]) if other else (r[0], r[1])
                field = lowest + ((w1 * (highest - lowest + 1)) >> 32)
                if r[9] and not other:
                    zeros = 0
                    while zeros < 32 and not w1 >> zeros & 1:
                        zeros += 1
                    field = highest - zeros
                at = 2 if which & 3 == 2 else k
                field += (r[8] if at < 2 else 0) - r[7] * at
                fraction = (((w3 & 0xFFFFF) << 32 | w0) & r[12] | r[13]) & full
                field = min(max(field, 0), top - 1 if nan == 1 and not r[6] else top)
                if not r[12] and not r[13] and field == 0:
                    fraction = 1
                if special:
                    field, fraction = top, 0 if w2 & 4096 else fraction
                elif zero:
                    field, fraction = 0, 0
                negative = (w2 >> 31 != 0) != (k != j and r[11] != 0)
                raw = np.uint64(field << fraction_bits | fraction)
                raw |= (one if negative else np.uint64(0)) << np.uint64(exponent_bits + fraction_bits)
                out[t, i, j] = raw << np.uint64(padding) | np.uint64(w3 & ((1 << padding) - 1))
