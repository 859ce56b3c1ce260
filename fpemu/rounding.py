"""Rounding to any format, in every mode, with exactly one rounding.

A float64 x is scaled by a power of two so that the target's quantum becomes 1. The scaling is exact, because the
quotient has x's significand and lies in the normal range, and so is the split into an integer and a fraction. The
choice between the two neighbours is then a comparison of exact numbers: one rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee, mix, use_compiled
from fpemu.arguments import as_array, as_float64, choice, flag, integer
from fpemu.errors import InputError, entries, unknown_name
from fpemu.formats import FloatFormat


class Rounding(Enum):
    """Rounding mode.

    The values describe the modes; `round_to` also accepts a mode's name.
    """

    RNE = "to nearest, ties to even"
    RNA = "to nearest, ties away from zero"
    RNZ = "to nearest, ties toward zero"
    RZ = "toward zero"
    RU = "toward +infinity"
    RD = "toward -infinity"
    ODD = "to odd: an inexact result gets an odd last bit"
    SR = "stochastic: away from zero with the probability of the distance, by random bits"


_NAMES = {
    "RNE": "rn nearest nearest-even even ties-even",
    "RNA": "ties-away away nearest-away",
    "RNZ": "ties-zero ties-to-zero nearest-zero",
    "RZ": "zero truncate rtz toward-zero",
    "RU": "up",
    "RD": "down",
    "ODD": "to-odd ro rto",
    "SR": "stochastic",
}
_ALIASES = {alias: name for name, aliases in _NAMES.items() for alias in aliases.split()}


def mode_of(mode: Rounding | str) -> Rounding:
    """Return a `Rounding` by name ("RNE", "to-odd", "stochastic" ...); a Rounding passes through."""
    if isinstance(mode, Rounding):
        return mode
    key = _ALIASES.get(mode.lower().replace("_", "-"), mode.upper()) if isinstance(mode, str) else None
    if key not in Rounding.__members__:
        raise unknown_name("rounding mode", mode, [*Rounding.__members__, "to-odd", "stochastic", "ties-away"])
    return Rounding[key]


@in_ieee
def round_to(
    x: Any,
    fmt: FloatFormat | str,
    mode: Rounding | str = "RNE",
    *,
    saturate: bool | Literal["propagate"] = False,
    unbounded: bool = False,
    subnormals: Literal["keep", "flush"] = "keep",
    random_bits: Any = None,
    bits: int | None = None,
    seed: int | None = None,
) -> Any:
    """Round numbers to values of a format, once.

    Parameters
    ----------
    x : array_like
        Real numbers of at most 64 bits, of any shape.
    fmt : FloatFormat or str
        Target format.
    mode : Rounding or str
        RNE, RNA (ties away), RNZ (ties to zero), RZ, RU, RD, ODD ("to-odd") or SR ("stochastic").
    saturate : bool or "propagate"
        Overflow gives the largest finite value with the sign of ``x``; so does an infinite ``x``, except with
        "propagate" (SatPropagate of IEEE P3109): it stays infinite, or becomes NaN in a format without Inf.
    unbounded : bool
        Round to the precision of ``fmt`` with no limit on the exponent (no overflow, no subnormals) beyond float64's.
    subnormals : {"keep", "flush"}
        "flush": numbers below the smallest normal one, 2^emin, become zero with their sign before the rounding, as in
        microxcaling, pychop and XLA's bf16.
    random_bits : array_like of unsigned integers, optional
        Random words for SR; broadcasts to ``x``. A word of r bits rounds away from zero where word + floor(2^r ·
        fraction) >= 2^r; the fraction is in units of the last place. SR requires these words or a seed.
    bits : int, optional
        Random bits r per rounding by SR, 1 to 64. Default: the width of ``random_bits``, or 32.
    seed : int, optional
        Seed of the words for SR: entry i of the flattened ``x`` takes ``stochastic_words(seed, i, bits)``.

    Returns
    -------
    array of ``fmt.dtype``
        Rounded values, of the shape of ``x`` (float64 if ``unbounded``); a NumPy scalar for a scalar.

    Raises
    ------
    InputError
        Unknown names; SR without words and seed, or these for another mode; a word of more than ``bits`` bits; an
        overflow or NaN in a format that has neither Inf nor NaN.

    Notes
    -----
    Overflow is decided after rounding with an unbounded exponent, as in IEEE 754: RNE, RNA, RNZ and SR give Inf, RZ and
    ODD the largest finite value, RU and RD one or the other by sign. A format without Inf gives NaN in place of Inf.
    In an unsigned format, a number that rounds below zero becomes NaN, or +0 with ``saturate``.
    With one bit of precision "even" and "odd" are the last bit of the code, that is, of the exponent field. In a format
    without zero (E8M0) a positive number below the smallest becomes the smallest in every mode, and zero and negative
    numbers become NaN.

    Examples
    --------
    >>> round_to(0.1, "fp16")
    np.float16(0.1)
    >>> float(round_to(1e6, "e4m3", saturate=True))
    448.0
    >>> round_to([1.25] * 8, "e2m1", "SR", bits=8, seed=1).tolist()
    [1.0, 1.5, 1.0, 1.5, 1.0, 1.5, 1.5, 1.0]
    """
    fmt, mode = formats.get(fmt), mode_of(mode)
    saturate = saturate if isinstance(saturate, str) and saturate == "propagate" else flag("saturate", saturate)
    unbounded = flag("unbounded", unbounded)
    stochastic = {"random_bits": random_bits, "bits": bits, "seed": seed}
    if mode is not Rounding.SR and (given := [name for name, value in stochastic.items() if value is not None]):
        raise InputError(f"{given[0]} go{'es' * (given[0] == 'seed')} with mode 'SR', not {mode.name!r}: leave it out")
    wide = as_float64(x, "x of round_to")
    if subnormals != "keep" and choice("subnormals", subnormals, ("keep", "flush")):
        if unbounded:
            raise InputError("unbounded=True has no subnormal numbers: leave out subnormals='flush'")
        wide = np.where(np.abs(wide) < fmt.min_normal, np.copysign(0.0, wide), wide)
    words, width = _random_words(wide.shape, **stochastic) if mode is Rounding.SR else (None, 0)
    return _round_to(wide, fmt, mode, saturate, unbounded, words, width)[()]


def stochastic_words(seed: int, index: Any, bits: int = 32) -> NDArray[np.uint64]:
    """Return the random words of stochastic rounding by a seed and the index of each rounding.

    The words of different indices are independent of the order in which they are computed: threads, and kernels on
    other devices, compute the same ones.

    Parameters
    ----------
    seed : int
        0 to 2^63 - 1.
    index : array_like of unsigned integers
        Index of each rounding, of any shape.
    bits : int
        Random bits per word, 1 to 64.

    Returns
    -------
    uint64 array
        Words below 2^bits, of the shape of ``index``.

    Raises
    ------
    InputError
        A seed or number of bits out of range; indices that are not unsigned integers.

    Notes
    -----
    The generator SplitMix64 at position ``index``: with its finaliser m and G = 0x9E3779B97F4A7C15, the word is the
    upper ``bits`` bits of m(m(seed + G) + (index + 1) G), modulo 2^64.

    References
    ----------
    Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.

    Examples
    --------
    >>> stochastic_words(1, np.arange(3, dtype=np.uint64), bits=8)
    array([ 94, 241,  11], dtype=uint64)
    """
    seed, bits = integer("seed", seed, 0, 2**63 - 1), integer("bits", bits, 1, 64)
    index = as_array(index, "index of stochastic_words")
    if index.dtype.kind != "u":
        raise InputError(f"index of stochastic_words must be unsigned integers, not {index.dtype}")
    return _words_at(seed, bits, index)


def _words_at(seed: Any, bits: Any, *indices: Any) -> NDArray[np.uint64]:
    """`stochastic_words` at positions of several non-negative indices, broadcast: each seeds the words of the next."""
    words = np.asarray(_mixed_seed(seed))
    with np.errstate(over="ignore"):  # modulo 2^64 on purpose
        for index in indices:
            words = mix((np.asarray(index).astype(np.uint64) + np.uint64(1)) * _GOLDEN + words)
    return words >> np.uint64(64 - bits)


def _derived_seed(seed: Any, *indices: int) -> int:
    """Return the seed of a stream by the numbers of what it is for, such as an operand and a word."""
    return int(_words_at(seed, 63, *indices))


def _mixed_seed(seed: Any) -> Any:
    """Return the state from which the words of a seed are computed."""
    return mix(np.array([seed], np.uint64) + _GOLDEN)[0]


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, the increment of SplitMix64


def _random_words(shape: tuple[int, ...], random_bits: Any, bits: Any, seed: Any) -> tuple[NDArray[np.uint64], int]:
    """Return the words of stochastic rounding, broadcast to the shape of x, and their width."""
    width = integer("bits", bits, 1, 64, none=True)
    if (random_bits is None) == (seed is None):
        raise InputError(
            "stochastic rounding needs either seed or random_bits: an array of unsigned integers, one word per entry"
        )
    if seed is not None:
        width = width or 32
        index = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape)
        return _words_at(integer("seed", seed, 0, 2**63 - 1), width, index), width
    words = as_array(random_bits, "random_bits")
    if words.dtype.kind != "u":
        raise InputError(
            f"random_bits must be unsigned integers (their width is the number of bits), not {words.dtype}"
        )
    width = width or 8 * words.dtype.itemsize
    if (wider := words.astype(np.uint64) > np.uint64((1 << width) - 1)).any():
        raise InputError(f"random_bits have words of more than bits = {width} bits: {entries(wider, words)}")
    try:
        return np.broadcast_to(words.astype(np.uint64), shape), width
    except ValueError:
        raise InputError(f"random_bits of shape {words.shape} do not broadcast to x of shape {shape}") from None


def _round_to(
    wide: NDArray[np.float64],
    fmt: FloatFormat,
    mode: Rounding = Rounding.RNE,
    saturate: bool | str = False,
    unbounded: bool = False,
    words: NDArray[np.uint64] | None = None,
    bits: int = 0,
) -> NDArray[Any]:
    """`round_to` for an array of float64; ``words``: the random words of SR, of the same shape, below 2^bits."""
    mode = Rounding.RNA if fmt.ties_away and mode is Rounding.RNE else mode
    dtype = np.dtype(np.float64) if unbounded else fmt.dtype
    if fmt.signed and not (unbounded or fmt.emin < -1022 or bits == 64) and use_compiled(wide.size):
        from fpemu.compiled import rounding as compiled

        if (result := compiled.round_to(wide, fmt, mode.name, saturate, words, bits)) is not None:
            return result
    rounded = _rounded(wide, fmt, mode, unbounded, words, bits)
    if not unbounded:
        if fmt.positive:
            rounded = _positive(rounded, wide, fmt)
        rounded = _overflow(rounded, wide, fmt, mode, saturate)
        if not fmt.negative_zero:
            rounded = np.where(rounded == 0, 0.0, rounded)
    if np.isnan(wide).any() and not unbounded:
        # quiet NaNs, as an arithmetic operation would leave them
        rounded = np.where(np.isnan(wide), np.copysign(np.nan, wide), rounded)
    with np.errstate(over="ignore"):
        return np.asarray(rounded.astype(dtype))


def _rounded(
    wide: NDArray[Any], fmt: FloatFormat, mode: Rounding, unbounded: bool, words: Any = None, bits: int = 0
) -> NDArray[Any]:
    """Rounded to the precision of the format and, unless `unbounded`, to its subnormals; not yet to its largest."""
    finite = np.isfinite(wide)
    value = np.where(finite, wide, 0.0)
    _, exponent = np.frexp(value)
    exponent = exponent - 1
    quantum = exponent - fmt.fraction_bits
    if unbounded:
        quantum = np.maximum(quantum, -1074)
    else:
        tiny = exponent < fmt.emin + 2 * (fmt.sign == "complement")  # integers have one step up to their limits
        quantum = np.where(tiny, fmt.emin - (fmt.fraction_bits if fmt.subnormals else 0), quantum)
    scaled = np.ldexp(np.abs(value), -quantum)
    scaled = np.where(
        (scaled == 0) & (value != 0), np.finfo(np.float64).smallest_subnormal, scaled
    )  # a quantum above 1
    odd = None if fmt.fraction_bits else (scaled >= 1) & ((quantum + fmt.bias) % 2 == 1)
    steps = _choose(scaled, np.signbit(wide), mode, odd, words, bits)
    with np.errstate(over="ignore"):
        rounded = np.copysign(np.ldexp(steps, quantum), wide)
    return np.where(finite, rounded, wide)


def _choose(
    scaled: NDArray[Any], negative: NDArray[Any], mode: Rounding, odd: NDArray[Any] | None, words: Any, bits: int
) -> NDArray[Any]:
    """Round ``scaled`` >= 0 to an integer; ``odd``: whether the code of its floor is odd (None: as the floor is)."""
    if mode is Rounding.RNE and odd is None:
        return np.asarray(np.rint(scaled))
    if mode is Rounding.RZ:
        return np.asarray(np.floor(scaled))
    low = np.floor(scaled)
    fraction = scaled - low  # exact: both share the quantum of scaled
    inexact = fraction > 0
    odd = 2 * np.floor(low / 2) != low if odd is None else odd
    if mode is Rounding.RNE:
        up = (fraction > 0.5) | ((fraction == 0.5) & odd)
    elif mode is Rounding.RNA:
        up = fraction >= 0.5
    elif mode is Rounding.RNZ:
        up = fraction > 0.5
    elif mode is Rounding.RU:
        up = inexact & ~negative
    elif mode is Rounding.RD:
        up = inexact & negative
    elif mode is Rounding.ODD:
        up = inexact & ~odd
    else:
        up = _carries(fraction, words, bits)
    return np.asarray(low + up)


def _carries(fraction: NDArray[Any], words: NDArray[np.uint64], bits: int) -> NDArray[Any]:
    """Return where word + floor(2^bits fraction) carries out of ``bits`` bits."""
    threshold = np.floor(np.ldexp(fraction, bits)).astype(np.uint64)
    return np.asarray(words > np.uint64((1 << bits) - 1) - threshold)


def _positive(rounded: Any, wide: Any, fmt: FloatFormat) -> NDArray[Any]:
    """Round up to the smallest number; zero and negative numbers become NaN."""
    invalid = wide <= 0
    if not fmt.has_nan and invalid.any():
        raise InputError(f"round_to {fmt.name}: it holds positive numbers only: {entries(invalid, wide)}")
    return np.where(invalid, np.nan, np.maximum(rounded, fmt.min_normal))


def _overflow(rounded: Any, wide: Any, fmt: FloatFormat, mode: Rounding, saturate: bool | str) -> NDArray[Any]:
    over = ((rounded > fmt.max) | (rounded < fmt.min)) & ~np.isnan(rounded)
    if not over.any() and not (np.isnan(wide).any() and not fmt.has_nan):
        return np.asarray(rounded)
    infinite, below = np.isinf(wide), np.signbit(wide)
    if mode in (Rounding.RZ, Rounding.ODD):
        to_max = ~infinite
    elif mode in (Rounding.RU, Rounding.RD):
        to_max = ~infinite & (below if mode is Rounding.RU else ~below)
    else:
        to_max = np.zeros(over.shape, bool)
    unsigned = below & (fmt.sign in ("none", "ignored"))  # -Inf is no value of these formats
    to_max = (~infinite if saturate == "propagate" else np.ones(over.shape, bool)) if saturate else to_max & ~unsigned
    lost = (over & ~to_max & (unsigned | (not fmt.inf))) | np.isnan(wide)
    if not fmt.has_nan and lost.any():
        have = "no NaN" if fmt.inf else "no Inf and no NaN (saturate=True clips overflow)"
        raise InputError(f"round_to {fmt.name}: it has {have}: {entries(lost, wide)}")
    overflow = np.where(unsigned | (not fmt.inf), np.nan, np.inf)
    limit = np.where(below, fmt.min, fmt.max)
    return np.where(over, np.where(to_max, limit, np.copysign(overflow, wide)), rounded)


@in_ieee
def bit_cut(x: Any) -> Any:
    """Convert fp32 numbers to fp16 by LE-GEMM's bit-cut.

    The sign and the top ten fraction bits are copied and the exponent is re-biased.

    Parameters
    ----------
    x : array_like
        Real numbers, of any shape.

    Returns
    -------
    float16 array
        ``x`` truncated toward zero to fp16, of the same shape. Zeros keep their signs, results below 2^-14 are
        subnormal, magnitudes of 2^16 or more, which have no exponent field in fp16, become Inf with the sign of ``x``,
        and NaN stays NaN.

    Raises
    ------
    InputError
        Entries that are not real numbers of at most 64 bits.

    References
    ----------
    Zhang et al., LE-GEMM (2025), Fig. 4 and Eq. 5.

    Examples
    --------
    >>> bit_cut(np.float32(1 + 2**-10 + 2**-11))
    np.float16(1.001)
    """
    return _bit_cut(as_float64(x, "x of bit_cut"))[()]


def _bit_cut(wide: NDArray[np.float64]) -> NDArray[np.float16]:
    """`bit_cut` for an array of float64."""
    cut = _round_to(wide, formats.FP16, Rounding.RZ)
    return np.where(np.abs(wide) >= 2.0**16, np.copysign(np.float16(np.inf), wide).astype(np.float16), cut)


# --- exact significands
# An exact computation, in Python integers or in limbs, leaves 62 leading bits and a sticky bit for all bits below them
# (a round-to-odd intermediate). A rounding to at most 53 bits depends on nothing else.
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Significands:
    """Real numbers (-1)^negative * (significand + rest) * 2^exponent, with significand < 2^62 and 0 <= rest < 1.

    ``sticky`` is True where rest > 0, which requires a significand of 60 bits or more: enough to round to any format of
    at most 53 bits as if from the exact number.
    """

    negative: NDArray[np.bool_]
    significand: NDArray[np.uint64]
    sticky: NDArray[np.bool_]
    exponent: Ints

    def round_to(self, fmt: FloatFormat | str, mode: Rounding | str = "RNE", *, saturate: bool = False) -> Any:
        """Values of ``fmt`` in ``fmt.dtype``: one rounding, subnormals and overflow as in `fpemu.round_to`."""
        fmt, mode = formats.get(fmt), mode_of(mode)
        if mode is Rounding.SR:
            raise InputError("an exact product is rounded by RNE, RNA, RNZ, RZ, RU, RD or to odd, not stochastically")
        mode = Rounding.RNA if fmt.ties_away and mode is Rounding.RNE else mode
        leading = self.exponent + bit_lengths(self.significand) - 1
        quantum = leading - fmt.fraction_bits
        if fmt.sign == "complement":  # integers have one step up to their limits
            quantum = np.where(leading < fmt.emin + 2, fmt.emin - fmt.fraction_bits, quantum)
        elif fmt.subnormals:
            quantum = np.maximum(quantum, fmt.emin - fmt.fraction_bits)
        else:
            quantum = np.where(leading < fmt.emin, fmt.emin, quantum)
        quantum = np.where(self.significand == 0, self.exponent, quantum)
        shift = quantum - self.exponent
        # a shift beyond 63 leaves all bits below half a quantum, as 63 does: significand < 2^62, half of 2^63
        right = np.clip(shift, 0, 63).astype(np.uint64)
        left = np.clip(-shift, 0, 63).astype(np.uint64)
        steps = (self.significand << left) >> right
        low = self.significand & ((np.uint64(1) << right) - np.uint64(1))
        half = np.where(right > 0, np.uint64(1) << (np.maximum(right, 1) - np.uint64(1)), np.uint64(1 << 63))
        odd = steps if fmt.fraction_bits else np.where(steps > 0, quantum + fmt.bias, 0)  # else the exponent field's
        steps = steps + self._up(mode, odd % 2 == 1, low, half)
        if fmt.positive:
            steps = np.maximum(steps, self.significand != 0)  # no zero: an inexact tiny number is the smallest one
        with np.errstate(over="ignore"):
            value = np.ldexp(steps.astype(np.float64), np.clip(quantum, -1074, 2000).astype(np.int32))
        value = np.where(self.negative, -value, value)
        if fmt.negative_zero and bool((np.abs(value) <= fmt.max).all()):
            return value.astype(fmt.dtype)  # values of fmt already
        # only overflow is left to _round_to. It propagates an infinite operand, so modes that round overflow to the
        # largest finite number receive a finite one
        to_largest = {Rounding.RZ: True, Rounding.ODD: True, Rounding.RU: self.negative, Rounding.RD: ~self.negative}
        overflow = np.isinf(value) & to_largest.get(mode, False)
        value = np.where(overflow, np.copysign(np.finfo(np.float64).max, value), value)
        return _round_to(value, fmt, mode, saturate)

    def _up(self, mode: Rounding, odd: Any, low: Any, half: Any) -> NDArray[np.bool_]:
        """Return where to round away from zero; ``odd``: the code toward zero is odd."""
        inexact = (low != 0) | self.sticky
        if mode is Rounding.RNE:
            return np.asarray((low > half) | ((low == half) & (self.sticky | odd)))
        if mode is Rounding.RNA:
            return np.asarray(low >= half)
        if mode is Rounding.RNZ:
            return np.asarray((low > half) | ((low == half) & self.sticky))
        if mode is Rounding.ODD:
            return inexact & ~odd
        if mode is Rounding.RZ:
            return np.zeros(inexact.shape, bool)
        return inexact & (self.negative if mode is Rounding.RD else ~self.negative)


def bit_lengths(x: NDArray[np.uint64]) -> Ints:
    """Bit lengths of integers below 2^63."""
    upper = x >> np.uint64(32)
    half = np.where(upper > 0, upper, x & np.uint64(0xFFFFFFFF))  # below 2^32: exact as a float
    return np.asarray(np.frexp(half.astype(np.float64))[1] + np.where(upper > 0, 32, 0), dtype=np.int64)
