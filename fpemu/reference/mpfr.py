"""The product by mpmath at any precision: the independent oracle, which shares only the operands.

The DGEMM-TC paper (Mukunoki et al., 2020, section 5.1) measures errors against MPFR at 2048 bits rounded to the output
format; mpmath does the same arithmetic (each operation rounded to nearest at the precision given).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError, entries
from fpemu.formats import FloatFormat
from fpemu.reference.exact import ExactOperands

PAPER_BITS = 2048


def product(given: ExactOperands, fmt: FloatFormat) -> NDArray[Any]:
    """Return alpha*A@B + beta*C in 2048 bits, or more if the operands need more, rounded to ``fmt`` (RNE) at last.

    The scalars are multiplied one at a time: for small matrices. An overflow or an invalid sum raises InputError in a
    format without NaN.
    """
    import mpmath

    batch = given.shape[:-2]
    left = np.broadcast_to(given.A, (*batch, *given.A.shape[-2:]))
    right = np.broadcast_to(given.B, (*batch, *given.B.shape[-2:]))
    addend = None if given.C is None else np.broadcast_to(given.C, given.shape)
    result = np.empty(given.shape, dtype=fmt.dtype)
    with mpmath.workprec(max(PAPER_BITS, _bits_needed(given))):
        mpf = mpmath.mpf
        p, q, r, s = given.alpha.numerator, given.alpha.denominator, given.beta.numerator, given.beta.denominator
        for place in np.ndindex(*given.shape):
            *b, i, j = place
            total = mpf(0)
            if p:
                for x, y in zip(left[(*b, i)].tolist(), right[(*b, slice(None), j)].tolist(), strict=True):
                    total += mpf(x) * mpf(y)
                total *= p * s
            if addend is not None:
                total += mpf(float(addend[place])) * (r * q)
            # alpha and beta over one denominator: the only division is the last operation
            total /= q * s
            result[place] = _round(total, fmt)
    if not fmt.has_nan and (lost := np.isnan(result)).any():
        raise InputError(f"method 'mpmath': {fmt} has no NaN for overflow or invalid sums: {entries(lost, result)}")
    return result


def _bits_needed(given: ExactOperands) -> int:
    """Precision at which no sum above is rounded, and a quotient by the denominators rounds as the exact one."""
    tops, lows = [0], [0]
    for array in (given.A, given.B):
        sizes = [math.frexp(x)[1] for x in np.unique(array).tolist() if x and math.isfinite(x)] or [0]
        tops.append(max(sizes))
        lows.append(min(sizes) - 53)
    top, low = sum(tops) + given.A.shape[-1].bit_length(), sum(lows)
    if given.C is not None:
        sizes = [math.frexp(x)[1] for x in np.unique(given.C).tolist() if x and math.isfinite(x)] or [0]
        top, low = max(top, max(sizes)), min(low, min(sizes) - 53)
    scalars = sum(x.numerator.bit_length() + x.denominator.bit_length() for x in (given.alpha, given.beta))
    return top - low + 2 * scalars + 64


def _round(x: Any, fmt: FloatFormat) -> float:
    """An mpmath number rounded to nearest, ties to even; an exact zero is +0."""
    import mpmath

    if mpmath.isnan(x):
        return math.nan
    if fmt.positive and x <= 0:
        return math.nan
    sign = -1.0 if x < 0 else 1.0
    x = abs(x)
    if x == 0:
        return 0.0
    overflow = math.inf if fmt.inf and (fmt.signed or sign > 0) else math.nan
    if mpmath.isinf(x):
        return sign * overflow
    exponent = int(mpmath.frexp(x)[1]) - 1
    quantum = exponent - fmt.precision + 1
    if exponent < fmt.emin + 2 * (fmt.sign == "complement"):
        quantum = fmt.emin - fmt.precision + 1 if fmt.subnormals else fmt.emin
    scaled = mpmath.ldexp(x, -quantum)
    nearest = mpmath.nint(scaled)
    if fmt.precision == 1 and scaled == 1.5 and (quantum + fmt.bias) % 2 == 0:
        nearest = mpmath.mpf(1)  # a tie goes to the even exponent field
    if not (0 if fmt.positive else fmt.min) <= sign * mpmath.ldexp(nearest, quantum) <= fmt.max:
        return sign * overflow
    if nearest == 0 and fmt.positive:
        return fmt.min_normal
    if nearest == 0 and not fmt.negative_zero:
        return 0.0
    return sign * math.ldexp(float(nearest), quantum)
