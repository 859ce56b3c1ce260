"""Operands as a function of (seed, class, test, element): a counter-based generator and the classes drawn from it.

``fpemu/gpu/kernels/generator.cuh`` draws the same operands on a GPU: a failed test can be reproduced on the CPU.
A `Recipe` gives the distribution of one operand in a class; both implementations read it.

Source of the generator: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma.spec import MmaSpec

CLASSES: dict[str, str] = {
    "any-bits": "every code; Inf and NaN in about every second sum",
    "finite": "every finite code",
    "uniform": "uniform on (-1, 1): the exponents of ordinary data",
    "near-one": "exponents within 1 of 0",
    "small": "lowest exponents and subnormals",
    "large": "highest exponents: overflow",
    "sparse": "three in four zero, of both signs",
    "powers": "powers of two: ties and exact boundaries",
    "cancel": "the second half of k cancels the first, except the last pair",
    "staircase": "magnitudes decrease with k: some lie around the truncation",
    "deep": "products around the floor of the common exponent",
    "mixed": "half spread over all exponents that do not overflow, half near one",
    "zeros": "zeros of both signs and the smallest numbers",
    "leftover": "two large products cancel: the result is the sum of the others after truncation",
    "ties": "powers of two about half a unit of C's last place",
}
_OPERANDS = "ABC"


@dataclass(frozen=True)
class Recipe:
    """Distribution of one operand's codes in a class: ``Recipe`` in ``kernels/generator.cuh``, field by field."""

    low: int = 0  # lowest exponent field
    high: int = 0  # highest exponent field; the distribution is uniform
    other_low: int = 0  # lowest exponent field of a second range
    other_high: int = 0
    other_in_16: int = 0  # probability of the second range, in sixteenths
    zero_in_16: int = 0  # probability of a zero of either sign, in sixteenths
    # Probability of the top exponent field (Inf and NaN, if the format has them), in units of 1/4096
    special_in_4096: int = 0
    fall: int = 0  # decrease of the exponent field with every k
    lift: int = 0  # increase of the exponent field for k = 0 and 1
    geometric: int = 0  # 1: the field is `high` minus the number of trailing zeros of a random word
    mirror: int = 0  # 1: the second half of k repeats the first, except the last k; 2: k = 1 repeats k = 0
    opposite: int = 0  # 1: repeated elements have the opposite sign
    keep: int = -1  # mask of the random bits of the fraction
    fill: int = 0  # mask of the bits of the fraction that are 1

    def numbers(self) -> NDArray[np.int64]:
        """Return the fields as a kernel argument."""
        return np.array(astuple(self), np.int64)


def formats(spec: MmaSpec) -> tuple[FloatFormat | str, FloatFormat | str, FloatFormat | str]:
    """Return the formats of A, B and C."""
    return spec.a_format, spec.b_format, spec.d_format if spec.c_format is None else spec.c_format


def recipes(spec: MmaSpec, kind: str) -> tuple[Recipe, Recipe, Recipe]:
    """Return the recipes of A, B and C of an instruction in a class; an unknown class raises InputError."""
    if kind not in CLASSES:
        raise unknown_name("operand class", kind, CLASSES)
    if spec.is_integer:
        return Recipe(), Recipe(), Recipe()
    fa, fb, fc, _ = spec.operand_formats
    A, B = _factor(fa, kind, spec), _factor(fb, kind, spec)
    if kind in ("cancel", "leftover"):
        A = replace(A, opposite=1)
    return A, B, _accumulator(fc, (fa, fb), kind, spec)


def _factor(fmt: FloatFormat, kind: str, spec: MmaSpec) -> Recipe:
    """Return the recipe of A or B."""
    top, one = (1 << fmt.exponent_bits) - 1, fmt.bias
    finite = top - (fmt.nan == "ieee")  # the highest field of a finite number
    fraction = (1 << fmt.fraction_bits) - 1
    d = spec.operand_formats[3]
    wide = min(finite, one + (d.emax - 6) // 2)  # sums of products of such numbers do not overflow
    if kind == "deep":  # products about 2^E0, or of subnormals where E0 is out of reach
        floor = d.emin - 7 if spec.E0 is None else spec.E0
        middle = max(floor // 2 + one, 1)
        return Recipe(max(middle - 9, 0), middle + 9, zero_in_16=4)
    if kind == "leftover":  # the others' products lie about F places below the first two
        half = spec.F // 2
        return Recipe(one - half - 3, one - half + 5, lift=half, mirror=2)
    if kind == "ties":
        half = d.precision // 2
        return Recipe(one - half - 1, one - half + 1, zero_in_16=11, keep=0)
    return {
        # about one output in two meets an Inf or a NaN
        "any-bits": Recipe(0, wide, 0, finite, other_in_16=1, special_in_4096=max(1, 1024 // spec.k)),
        "finite": Recipe(0, top),
        "uniform": Recipe(high=one - 1, geometric=1),
        "near-one": Recipe(one - 1, one + 1),
        "small": Recipe(0, min(4, top)),
        "large": Recipe(max(top - 6, 0), top),
        "sparse": Recipe(0, wide, zero_in_16=12),
        "powers": Recipe(0, wide, keep=0),
        "cancel": Recipe(one - 3, one + 3, mirror=1, keep=fraction ^ (fraction >> 3)),
        "staircase": Recipe(one, one + 1, fall=max(1, 18 // spec.k)),
        "mixed": Recipe(0, wide, one - 2, one, other_in_16=8),
        "zeros": Recipe(0, 1, zero_in_16=12, keep=1),
    }[kind]


def _accumulator(fmt: FloatFormat, ab: tuple[FloatFormat, FloatFormat], kind: str, spec: MmaSpec) -> Recipe:
    """Return the recipe of C, whose magnitudes overlap those of the products."""
    least, most = sum(f.emin for f in ab), sum(f.emax for f in ab)
    top, one, quarter = (1 << fmt.exponent_bits) - 1, fmt.bias, 4

    def between(low: int, high: int, **fields: Any) -> Recipe:
        low, high = (min(max(e + one, 0), top) for e in (low, high))
        return Recipe(low, high, zero_in_16=fields.pop("zero_in_16", quarter), **fields)

    return {
        "any-bits": Recipe(0, top, special_in_4096=128),
        "finite": Recipe(0, top),
        "uniform": Recipe(high=one, geometric=1, zero_in_16=quarter),
        "near-one": between(-4, 4),
        "small": between(least - 20, least + 10),
        "large": between(fmt.emax - 2, fmt.emax, other_low=one, other_high=top, other_in_16=4),
        "sparse": between(least - 6, min(most + 6, fmt.emax - 1), zero_in_16=8),
        "powers": between(least - 6, min(most + 6, fmt.emax - 1), keep=0),
        "cancel": between(-8, 7),
        "staircase": between(-30, 3),
        "deep": between(fmt.emin - 1, fmt.emin + 2, other_low=0, other_high=0, other_in_16=8, zero_in_16=6),
        "mixed": between(least - 6, min(most + 6, fmt.emax - 1), other_low=one - 4, other_high=one + 1, other_in_16=8),
        "zeros": Recipe(0, 1, zero_in_16=12, keep=7),
        "leftover": between(-spec.F - 4, -spec.F + 10, zero_in_16=8),
        "ties": between(-1, 2, zero_in_16=1),
    }[kind]


# --- the generator
def philox(counter: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Return 128 random bits for each counter (..., 4) as four words, by Philox4x32-10.

    Examples
    --------
    >>> [hex(w) for w in philox(np.zeros(4, np.uint32), 0)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    x = [counter[..., i].astype(np.uint64) for i in range(4)]
    low = np.uint64(0xFFFFFFFF)
    k0, k1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [
            (p1 >> np.uint64(32)) ^ x[1] ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ x[3] ^ np.uint64(k1),
            p0 & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(x, -1).astype(np.uint32)


def operand(
    spec: MmaSpec, letter: str, kind: str, seed: int, first: int, tests: int, rows: int, columns: int
) -> NDArray[Any]:
    """Return the codes (tests, rows, columns) of A, B or C in a class, in the tests from `first` on.

    A has the rows of the tile and K columns, B is stored by its columns, C has the tile's shape. `seed` and `first` are
    from 0 to 2^64 - 1.
    """
    which = _OPERANDS.index(letter)
    fmt, recipe = formats(spec)[which], recipes(spec, kind)[which]
    k = np.arange(columns)
    source = k if letter == "C" else _source(recipe, columns)
    element = np.arange(rows)[:, None] * columns + source
    test = np.uint64(first) + np.arange(tests, dtype=np.uint64)
    counter = np.empty((tests, rows, columns, 4), np.uint32)
    counter[..., 0] = element
    counter[..., 1] = (test & np.uint64(0xFFFFFFFF))[:, None, None]
    counter[..., 2] = (test >> np.uint64(32))[:, None, None]
    counter[..., 3] = list(CLASSES).index(kind) << 2 | which
    words = philox(counter, seed)
    if isinstance(fmt, str):
        return _integers(words, 8 * np.dtype(fmt).itemsize)
    flip = (source != k) & bool(recipe.opposite)
    return _draw(fmt, recipe, words, np.full_like(source, 2) if letter == "C" else source, flip)


def operands(
    spec: MmaSpec, kind: str, seed: int, first: int, tests: int, m: int, n: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the codes of A (tests, m, k), of B stored by columns (tests, n, k), and of C (tests, m, n)."""
    shapes = {"A": (m, spec.k), "B": (n, spec.k), "C": (m, n)}
    A, B, C = (operand(spec, letter, kind, seed, first, tests, *shape) for letter, shape in shapes.items())
    return A, B, C


def _source(recipe: Recipe, K: int) -> NDArray[np.int64]:
    """Return the k that each k repeats."""
    k = np.arange(K)
    if recipe.mirror == 1 and K > 1:
        return np.where((k >= K // 2) & (k < K - 1), k - K // 2, k)
    return np.where((k == 1) & (recipe.mirror == 2), 0, k)


def _integers(words: NDArray[np.uint32], bits: int) -> NDArray[Any]:
    mask, coin = (1 << bits) - 1, words[..., 2] & 15
    drawn = words[..., 0].astype(np.uint64) & np.uint64(mask)
    chosen = np.select([coin == 0, coin == 1, coin == 2], [mask >> 1, (mask >> 1) + 1, 0], drawn.astype(np.int64))
    return chosen.astype(f"u{bits // 8}")


def _draw(fmt: FloatFormat, r: Recipe, words: NDArray[np.uint32], k: NDArray[Any], flip: Any) -> NDArray[Any]:
    """Compute ``draw`` of ``kernels/generator.cuh``, step by step."""
    w = words.astype(np.int64)
    coins, top, sign = w[..., 2], (1 << fmt.exponent_bits) - 1, fmt.exponent_bits + fmt.fraction_bits
    full = (1 << fmt.fraction_bits) - 1
    special = (coins >> 16 & 4095) < r.special_in_4096
    zero = ~special & ((coins >> 4 & 15) < r.zero_in_16)
    other = (coins >> 8 & 15) < r.other_in_16
    low, high = np.where(other, r.other_low, r.low), np.where(other, r.other_high, r.high)
    field = low + ((w[..., 1] * (high - low + 1)) >> 32)
    if r.geometric:
        zeros = np.where(w[..., 1] == 0, 32, np.bitwise_count(~w[..., 1] & (w[..., 1] - 1)))
        field = np.where(other, field, high - zeros)
    field = field + np.where(k < 2, r.lift, 0) - r.fall * k
    fraction = (((w[..., 3] & 0xFFFFF) << 32 | w[..., 0]) & r.keep | r.fill) & full
    field = np.clip(field, 0, top - 1 if fmt.nan == "ieee" and not r.special_in_4096 else top)
    if not r.keep and not r.fill:
        fraction = np.where(field == 0, 1, fraction)
    field, fraction = np.where(special, top, field), np.where(special & (coins & 4096 != 0), 0, fraction)
    field, fraction = np.where(zero, 0, field), np.where(zero, 0, fraction)
    if fmt.nan == "top" and not r.special_in_4096:
        fraction = np.where((field == top) & (fraction == full), fraction ^ 1, fraction)
    negative = (coins >> 31 != 0) != flip
    raw = negative.astype(np.uint64) << np.uint64(sign)
    raw |= (field << fmt.fraction_bits | fraction).astype(np.uint64)
    if fmt.nan == "negative-zero" and not r.special_in_4096:
        raw = np.where(raw == np.uint64(1 << sign), np.uint64(0), raw)
    junk = (w[..., 3] & ((1 << fmt.padding) - 1)).astype(np.uint64)
    return (raw << np.uint64(fmt.padding) | junk).astype(fmt.code_dtype)
