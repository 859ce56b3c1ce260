"""Words of a low format, and the plan of their products: a split scheme states both, and `lowering` runs them.

A split is a list of `Word` rules: word i of x is the rounding of the residual that the words before it leave of x,
times its scale. A `Plan` lists the products of words in the order run, their accumulators, and the final combination.
The band of a product of word i and word j is i + j: all products of a band carry the same power of the scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FP16, FloatFormat
from fpemu.mma.spec import MmaSpec
from fpemu.rounding import Rounding, _bit_cut, _round_to

Array = NDArray[Any]
BIT_CUT = "bit-cut"
BALANCED = "balanced"
"""Rounding of a word that `of_operand` replaces: toward zero for A, away from zero for B"""
AWAY = "away-from-zero"
"""To the format's precision away from zero, then to nearest even where that is subnormal"""
NEAREST = ("RNE", "RNA")
ALONG_SIGN = ("RZ", BIT_CUT, BALANCED, AWAY)
"""Roundings whose error depends on the sign of the number"""
Product = tuple[int, int]
"""Index of A's word and of B's word"""


class Accumulators(StrEnum):
    """Number of accumulators: one for all products, one per band, one per product, or none that outlives a step."""

    ONE = "one"
    BAND = "band"
    EACH = "each"
    NONE = "none"


class Join(StrEnum):
    """Order of the final combination of the accumulators."""

    SMALLEST_FIRST = "smallest-first"
    AS_RUN = "as-run"


@dataclass(frozen=True)
class Word:
    """Rule of one word of a split.

    Parameters
    ----------
    name : str
        "h" or "r", or the word's number from 1.
    format : FloatFormat
    rounding : str
        Name of a rounding mode, "bit-cut" (fp16 only), "away-from-zero", or "balanced", which depends on the operand.
    exponent : int
        Binary exponent of the scale: the word is the rounding of residual · 2^exponent.
    """

    name: str
    format: FloatFormat
    rounding: str = "RNE"
    exponent: int = 0

    def round(self, x: Array) -> Array:
        """`x` (float64, already scaled) as values of the format."""
        if self.rounding == BIT_CUT:
            return _bit_cut(x)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            if self.rounding == AWAY:
                return _round_to(self.unbounded(x), self.format)
            if self.format is FP16 and self.rounding == "RNE":
                return _nearest_half(x)
            return _round_to(x, self.format, Rounding[self.rounding])

    def unbounded(self, x: Array) -> Array:
        """`x` (float64) rounded to the format's precision with no limit on the exponent."""
        if self.rounding == AWAY:
            return np.copysign(_round_to(np.abs(x), self.format, Rounding.RU, unbounded=True), x)
        mode = "RZ" if self.rounding == BIT_CUT else self.rounding
        return _round_to(x, self.format, Rounding[mode], unbounded=True)

    def overflows(self, x: Array) -> NDArray[np.bool_]:
        """Where the rounding of `x` with an unbounded exponent is beyond the format's largest number."""
        over = np.abs(x) > self.format.max
        if over.any():
            over[over] = np.abs(self.unbounded(x[over])) > self.format.max
        return np.asarray(over)

    @property
    def unit(self) -> float:
        """Largest relative error of the rounding, without overflow and underflow."""
        return self.format.unit_roundoff * (1 if self.rounding in NEAREST else 2)


def _nearest_half(x: Array) -> Array:
    """`x` (float64) rounded to nearest even fp16.

    NumPy's conversion is one rounding, but takes 30 times as long where a subnormal result is inexact. There a sum with
    1.5 · 2^28, whose last place is 2^-24, rounds first.
    """
    subnormal = np.abs(x) < FP16.min_normal
    if subnormal.any():
        x = np.where(subnormal, np.copysign((x + 1.5 * 2.0**28) - 1.5 * 2.0**28, x), x)
    return np.asarray(x.astype(np.float16))


def of_operand(words: Sequence[Word], operand: str) -> tuple[Word, ...]:
    """The rules of one operand, "A" or "B".

    A balanced split rounds h of A toward zero and h of B away from zero. Residuals then have the sign of a and the
    opposite sign of b, so that an omitted product r_A r_B, of the opposite sign of a b, makes up for a part of what
    truncating accumulators lose.
    """
    rounding = "RZ" if operand == "A" else AWAY
    return tuple(replace(word, rounding=rounding) if word.rounding == BALANCED else word for word in words)


def steps(x: Array, words: Sequence[Word]) -> Iterator[tuple[Word, Array, Array, Array]]:
    """For each word: its rule, the scaled residual that it rounds, its value, and the residual of x after it.

    All in float64, where every step is exact for fp32 numbers times a power of two: the residual of a rounding to
    nearest, or toward zero, is a multiple of x's last place and smaller than x. (A directed rounding that lifts a tiny
    number to a word more than 2^53 times larger leaves a residual that is itself rounded, as it is on a GPU.)
    """
    left = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for word in words:
            scaled = np.ldexp(left, word.exponent)
            value = word.round(scaled)
            left = left - np.ldexp(value.astype(np.float64), -word.exponent)
            yield word, scaled, value, left


def split(x: Array, words: Sequence[Word]) -> tuple[Array, ...]:
    """The words of `x`, each an array of its format's dtype."""
    return tuple(value for _, _, value, _ in steps(x, words))


@dataclass(frozen=True)
class Plan:
    """Products of words, their accumulators, and the final combination.

    Parameters
    ----------
    products : tuple of (int, int)
        Index of A's word and of B's word, in the order run.
    exponent : int
        Binary exponent of the scale between a word and the next.
    accumulators : {"one", "band", "each", "none"}
        One accumulator for all products, one per band, one per product; or none that outlives a step: the block
        product of every step starts from zero and is added to one fp32 total outside.
    step : int, "instruction" or None
        Products that share an accumulator alternate after so many k; None: each runs over all of K before the next.
    promote : int, "instruction" or None
        The accumulator restarts from zero after so many k and is added to an fp32 total outside.
    promote_in : {"k", "instructions"}
        Unit of `promote`.
    promote_all : bool
        Whether the accumulators of the corrections are promoted too, or only that of band 0.
    join : {"smallest-first", "as-run"}
        total = sum of the highest band, then total = total / 2^exponent + next band; or each sum divided by its own
        power of two and added in the order run.
    combine_in : {"fp32", "fp64"}
        Arithmetic of the join; "fp64" rounds to fp32 once, at the end.
    """

    products: tuple[Product, ...]
    exponent: int = 0
    accumulators: Literal["one", "band", "each", "none"] = "band"
    step: int | str | None = None
    promote: int | str | None = None
    promote_in: Literal["k", "instructions"] = "k"
    promote_all: bool = False
    join: Literal["smallest-first", "as-run"] = "smallest-first"
    combine_in: Literal["fp32", "fp64"] = "fp32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "accumulators", Accumulators(self.accumulators))
        object.__setattr__(self, "join", Join(self.join))

    def groups(self) -> list[tuple[int, list[Product]]]:
        """The accumulators in the order of their first product: (band, products run in it)."""
        if self.accumulators in (Accumulators.EACH, Accumulators.NONE):
            return [(i + j, [(i, j)]) for i, j in self.products]
        if self.accumulators == Accumulators.ONE:
            return [(min(i + j for i, j in self.products), list(self.products))]
        bands = list(dict.fromkeys(i + j for i, j in self.products))
        return [(b, [p for p in self.products if sum(p) == b]) for b in bands]

    def promoted(self, band: int, spec: MmaSpec) -> int | None:
        """The promotion interval, in k, of an accumulator that holds `band`."""
        if not (self.promote_all or band == 0 or self.accumulators == Accumulators.ONE):
            return None
        interval = in_k(self.promote, spec)
        return interval if interval is None or self.promote_in == "k" else interval * spec.k


def in_k(interval: int | str | None, spec: MmaSpec) -> int | None:
    """A length in k, where "instruction" is the length of one."""
    return spec.k if interval == "instruction" else interval  # type: ignore[return-value]


def pairs(names: Sequence[str], letters: str) -> tuple[tuple[int, int], ...]:
    """Products by name as pairs of indices: "rh" with the letters "hr" is (1, 0)."""
    return tuple((letters.index(name[0]), letters.index(name[1])) for name in names)
