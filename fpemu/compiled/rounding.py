"""Compiled rounding to any format with a sign and a zero, in every mode, and the split into words.

`fpemu.rounding._round_to` and `fpemu.schemes.words.steps` are the specification. One kernel serves every format and
mode: their differences are integers, the parameters of `_round`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu._system import map_blocks
from fpemu.compiled.bits import bits_of_f64, f64_of_bits
from fpemu.compiled.cache import saved
from fpemu.formats import FloatFormat

_INF = np.int64(0x7FF << 52)
_NAN = np.int64(0x7FF8 << 48)
_SIGN = np.int64(-(2**63))
_FRACTION = (1 << 52) - 1
_BLOCK = 1 << 12  # entries whose residuals stay in the first-level cache


def _bits(x: float) -> int:
    return int(np.float64(x).view(np.int64))


@lru_cache(maxsize=256)
def parameters(
    fmt: FloatFormat, mode: str, saturate: bool | str = False, bit_cut: bool = False, away: bool = False
) -> Any:
    """Return the parameters of `_round` for a mode by name; `bit_cut` and `away` are roundings of a word."""
    f, one_bit = fmt.fraction_bits, fmt.precision == 1
    mode = "RNA" if fmt.ties_away and mode == "RNE" else mode
    q = fmt.emin - (f if fmt.subnormals else 0)  # binary exponent of the smallest positive number
    smallest, infinite = _bits(np.ldexp(1.0, q)), int(_INF if fmt.inf else _NAN)
    tie = _bits(np.ldexp(1.0, q - 1))  # 0 below 2^-1074, where only a zero is smaller than the smallest number
    least = {"RNE": tie + 1, "RNZ": tie + 1, "RNA": max(tie, 1), "ODD": 1}.get(mode, smallest)
    up, down = (-int(mode in (directed, "ODD")) for directed in ("RU", "RD"))
    largest = _bits(fmt.max)
    finite = mode in ("RZ", "ODD", "RD"), mode in ("RZ", "ODD", "RU")  # an overflow, above and below zero
    over = [largest if saturate or (stays and not bit_cut) else infinite for stays in finite]
    last = (-1, 0, (1023 + fmt.bias) & 1) if one_bit else (_FRACTION, 1 << 52, 0)  # the bit that makes a number odd
    places = [_FRACTION >> f if away else 0, 52 - f, fmt.emin + 1023, *last]
    nearest = mode in ("RNE", "RNA", "RNZ")
    ways = [int(mode == "RNA"), -int(nearest), up, down, -int(mode != "ODD"), -int(mode == "RNE")]
    limits = [smallest, 1 if mode == "RU" else least, 1 if mode == "RD" else least, largest, *over]
    return np.array([*places, *ways, *limits, largest if saturate is True else infinite, -int(fmt.negative_zero)])


@njit(nogil=True, error_model="numpy", inline="always")
def _tuple(p: Any) -> Any:
    """Return the parameters as scalars, which a loop keeps in registers."""
    return (
        (p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9]),
        (p[10], p[11], p[12], p[13], p[14], p[15], p[16], p[17], p[18], p[19]),
    )


@njit(nogil=True, error_model="numpy", inline="always")
def _round(b: int, p: Any, word: int) -> Any:
    """Round the float64 of a pattern: pattern of the magnitude, sign bit, and whether it was NaN or above the largest.

    An addition to the pattern rounds: a carry out of the fraction increments the exponent. `word` has the random bits
    of SR below the sign bit, the first of them on top; 0 in the other modes.
    """
    away, width, lowest, fraction, hidden, flip, half, nearest, up, down = p[0]
    even, tie, smallest, positive, negative, largest, over, under, infinite, minus_zero = p[1]
    below = b < 0
    m = ((b & ~_SIGN) + away) & ~away  # to the format's precision away from zero, exponent unlimited
    last = min(width + max(lowest - max(m >> 52, np.int64(1)), np.int64(0)), np.int64(63))  # bit of the last place
    rest = (np.int64(1) << last) - 1
    odd = (((m & fraction | hidden) >> last) ^ flip) & 1
    directed = (down if below else up) & ((odd - 1) | even)
    step = (((rest + half) >> 1 & nearest) + (rest & directed) + (odd & tie)) & rest
    t = (m + step + (word >> (63 - last))) & ~rest
    # below the smallest number SR compares the quotient, in units of 2^-63
    significand = m & _FRACTION | (1 << 52 if m >= 1 << 52 else 0)
    quotient = (significand << 10) >> min(max((smallest >> 52) - (m >> 52) - 1, 0), 63)
    carries = quotient + word < 0
    small = smallest if (m >= (negative if below else positive)) | carries else np.int64(0)
    t = small if m < smallest else t
    beyond = t > largest
    limit = under if below else over
    limit = infinite if m == _INF else limit
    t = limit if beyond else t
    t = _NAN if m > _INF else t
    sign = b & _SIGN
    sign = sign & minus_zero if t == 0 else sign
    return t, sign, beyond | (m > _INF)


@saved
@njit(nogil=True, error_model="numpy")
def _round_half(x: Any, out: Any, p: Any) -> bool:
    """Round to fp16 or a format inside it; `out` are patterns."""
    p, flagged = _tuple(p), False
    for i in range(len(x)):
        t, sign, beyond = _round(bits_of_f64(x[i]), p, np.int64(0))
        flagged |= beyond
        subnormal = bits_of_f64(f64_of_bits(t) + 2.0**28) & 0x7FF  # the sum's last place is 2^-24
        code = min((t >> 42) - (1008 << 10), 0x7C00)
        code = subnormal if t < (1009 << 52) else code
        code = np.int64(0x7E00) if t > _INF else code
        out[i] = np.uint16(code | (sign >> 48 & 0x8000))
    return flagged


@saved
@njit(nogil=True, error_model="numpy")
def _round_wide(x: Any, out: Any, p: Any) -> bool:
    """Round to a format whose carrier is float32 or float64."""
    p, flagged = _tuple(p), False
    for i in range(len(x)):
        t, sign, beyond = _round(bits_of_f64(x[i]), p, np.int64(0))
        flagged |= beyond
        out[i] = f64_of_bits(t | sign)
    return flagged


@saved
@njit(nogil=True, error_model="numpy")
def _round_stochastic(x: Any, words: Any, shift: int, out: Any, p: Any) -> bool:
    """Round by SR to any carrier; `shift` moves the first bit of a word below the sign bit."""
    p, flagged = _tuple(p), False
    for i in range(len(x)):
        t, sign, beyond = _round(bits_of_f64(x[i]), p, np.int64(words[i] << shift))
        flagged |= beyond
        out[i] = f64_of_bits(t | sign)
    return flagged


@saved
@njit(nogil=True, error_model="numpy")
def _split(x: Any, out: Any, first: int, p: Any, ups: Any, downs: Any) -> bool:
    """Split into words, out (words, entries) from entry `first` on; word w rounds the residual times ups[w]."""
    left, flagged = np.empty(_BLOCK), False
    for start in range(0, len(x), _BLOCK):
        count = min(_BLOCK, len(x) - start)
        left[:count] = x[start : start + count]
        for w in range(len(out)):
            q, to, word, up, down = _tuple(p[w]), first + start, out[w], ups[w], downs[w]
            for i in range(count):
                t, sign, beyond = _round(bits_of_f64(left[i] * up), q, np.int64(0))
                flagged |= beyond
                value = f64_of_bits(t | sign)
                word[to + i] = value
                left[i] -= value * down
    return flagged


def round_to(
    wide: NDArray[np.float64],
    fmt: FloatFormat,
    mode: str,
    saturate: bool | str,
    words: NDArray[np.uint64] | None = None,
    bits: int = 0,
) -> NDArray[Any] | None:
    """Return float64 numbers rounded to a format; None where the reference implementation finds the entries to name.

    `words` are the random words of SR, below 2^bits with bits <= 63.
    """
    x, out, p = wide.reshape(-1), np.empty(wide.size, fmt.dtype), parameters(fmt, mode, saturate)
    if words is not None:
        w, wider = words.reshape(-1), np.empty(wide.size)
        flagged = map_blocks(lambda s: _round_stochastic(x[s], w[s], np.uint64(63 - bits), wider[s], p), x.size)
        with np.errstate(over="ignore", invalid="ignore"):
            out[:] = wider
    else:
        half = fmt.dtype == np.float16
        codes, kernel = (out.view(np.uint16), _round_half) if half else (out, _round_wide)
        flagged = map_blocks(lambda some: kernel(x[some], codes[some], p), x.size)
    return None if any(flagged) and not fmt.has_nan else out.reshape(wide.shape)


def split(
    x: NDArray[Any], p: NDArray[np.int64], up: NDArray[np.float64], down: NDArray[np.float64]
) -> tuple[NDArray[np.float32], bool]:
    """Return the words of finite numbers, (words, *shape), and whether one overflows, NaN included.

    Word w has the parameters p[w] and rounds the residual times up[w] = 1 / down[w].
    """
    flat, out = x.reshape(-1), np.empty((len(p), x.size), np.float32)
    flagged = map_blocks(lambda some: _split(flat[some].astype(np.float64), out, some.start, p, up, down), x.size)
    return out.reshape(len(p), *x.shape), any(flagged)
