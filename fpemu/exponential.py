"""The exponential function in float64, with the same bits on every processor.

The bits of `numpy.exp` depend on the processor: with AVX-512 it calls Intel's vector library, elsewhere the C
library, and the two differ in one result of twenty, so that operands drawn with it would differ. `exp` here
is a fixed sequence of additions, multiplications and scalings by powers of two. Its bits are those of NumPy's Linux
wheels on AVX-512, with which the figures and records of this package were first computed.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_BLOCK = 1 << 15
"""Elements at a time: their intermediate values stay in the cache."""


def _powers() -> tuple[Floats, Floats]:
    """2^(j/16), j = 0 to 15, rounded to nearest, and the relative remainder of each."""
    exact = [Fraction(isqrt(isqrt(isqrt(isqrt(1 << (j + 16 * 200))))), 1 << 200) for j in range(16)]
    near = [float(power) for power in exact]
    rest = [float(power / Fraction(nearest) - 1) for power, nearest in zip(exact, near, strict=True)]
    return np.array(near), np.array(rest)


_NEAR, _REST = _powers()
_STEPS = 16 * float.fromhex("0x1.71547652b82fep+0")  # 16 / ln 2
_LN2, _LN2_REST = float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")
_POLYNOMIAL = tuple(
    map(
        float.fromhex,
        (
            "0x1.7411836940c04p-10",
            "0x1.1101cbbc265c0p-7",
            "0x1.55557242d68fep-5",
            "0x1.5555553939732p-3",
            "0x1.000000000d008p-1",
            "0x1.fffffffffff70p-1",
        ),
    )
)
"""(e^r - 1) / r for r from 0 to ln 2 / 16, the highest power first."""


def exp(x: Floats) -> Floats:
    """Return e^x elementwise, with an error below 0.75 units in the last place.

    Parameters
    ----------
    x : array of float64
        Numbers or infinities.

    Notes
    -----
    x = (n / 16) ln 2 + r with an integer n and 0 <= r <= ln 2 / 16, so that e^x = 2^(n / 16) e^r: a table of 16 powers
    and a polynomial of degree 6 (P. T. P. Tang, ACM Transactions on Mathematical Software 15, 144-157, 1989).

    Examples
    --------
    >>> exp(np.array([0.0, 1.0, -np.inf])).tolist()
    [1.0, 2.718281828459045, 0.0]
    """
    x = np.asarray(x, np.float64)
    out = np.empty(x.shape)
    given, result = x.reshape(-1), out.reshape(-1)
    for start in range(0, x.size, _BLOCK):
        result[start : start + _BLOCK] = _block(np.clip(given[start : start + _BLOCK], -800.0, 800.0))
    return out


def _block(x: Floats) -> Floats:
    """e^x for x from -800 to 800."""
    high, low = _product(x, _STEPS)
    n = np.floor(high)
    n -= (n == high) & (low < 0)  # the floor of the exact product
    r = _fma(n / -16, _LN2_REST, _fma(n / -16, _LN2, x))
    square = r * r
    a, b, c = (_fma(r, _POLYNOMIAL[i], _POLYNOMIAL[i + 1]) for i in (0, 2, 4))
    ratio = _fma(square, _fma(square, a, b), c)
    whole = n.astype(np.int32)
    power, rest = _NEAR[whole & 15], _REST[whole & 15]
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(_fma(power, _fma(ratio, r, rest), power), whole >> 4))


def _fma(a: Floats, b: Floats | float, c: Floats | float) -> Floats:
    """Return a b + c rounded once, except that within 2^-104 of a tie the other neighbour may result."""
    product, error = _product(a, b)
    high = product + c
    part = high - product
    low = (product - (high - part)) + (c - part)
    return np.asarray(high + (low + error))


def _product(a: Floats, b: Floats | float) -> tuple[Floats, Floats]:
    """The rounded product and its error, which is a float64 too (Dekker)."""
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(x: Floats | float) -> tuple[Floats | float, Floats | float]:
    """26 leading bits and the rest."""
    scaled = x * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high
