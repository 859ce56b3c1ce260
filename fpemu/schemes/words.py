"""Words of a low format, operands scaled and split into them, and the plan of their products.

A split scheme states its words and its plan, and `lowering` runs them.

A split is a list of `Word` rules: word i of x is the rounding of the residual that the words before it leave of x,
times its scale. A `Plan` lists the products of words in the order run, their accumulators, and the final combination.
The band of a product of word i and word j is i + j: all products of a band carry the same power of the scale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import use_compiled
from fpemu.arguments import choice, flag, integer, is_integer, keywords
from fpemu.errors import InputError, entries, shown
from fpemu.formats import FloatFormat
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.gemm import _chain
from fpemu.mma.spec import MmaSpec
from fpemu.rounding import Rounding, _bit_cut, _derived_seed, _round_to, _words_at, mode_of

Array = NDArray[Any]
Mask = NDArray[np.bool_]
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
Join = Literal["smallest-first", "as-run"]
"""Order of the final combination of the accumulators"""
_PLAN_NAMES = {"accumulators": ("one", "band", "each", "none"), "join": get_args(Join), "combine_in": ("fp32", "fp64")}


POLICIES = {
    "raise": "an error that counts the entries whose words overflow, and those that are NaN or infinite",
    "propagate": "the result of the hardware, with NaN and Inf of overflows; NaN and Inf in A and B as in SGEMM",
    "hardware": "as propagate, and NaN and Inf in A and B are split like numbers: the residual of Inf is NaN",
    "scale": "one power of two per matrix brings its largest entry to [2^13, 2^14); undone at the end",
    "scale-rows": "one power of two per row of A and per column of B; undone at the end",
}
TOP = 14  # scaling brings the largest entry below 2^TOP


class OverflowPolicy(StrEnum):
    """Treatment of entries that the words cannot hold; see `POLICIES`."""

    RAISE = "raise"
    PROPAGATE = "propagate"
    HARDWARE = "hardware"
    SCALE = "scale"
    SCALE_ROWS = "scale-rows"

    @property
    def scales(self) -> bool:
        """Whether operands are multiplied by powers of two."""
        return self in (OverflowPolicy.SCALE, OverflowPolicy.SCALE_ROWS)


def policy(on_range: str) -> OverflowPolicy:
    """The overflow policy of a name; an unknown one raises InputError."""
    return OverflowPolicy(choice("on_range", on_range, POLICIES))


@dataclass(frozen=True)
class Word:
    """Rule of one word of a split.

    Parameters
    ----------
    name : str
        "h" or "r", or the word's number from 1.
    format : FloatFormat or str
        Low format of the word.
    rounding : str
        A rounding mode, "bit-cut" (fp16), "away-from-zero", or "balanced", which depends on the operand.
    exponent : int
        Binary exponent of the scale: the word is the rounding of the residual times 2^exponent.
    random_bits : int, optional
        Random bits of a rounding by SR, as in `fpemu.round_to`. Default: 32.
    seed : int, optional
        Seed of SR, required there. The bits are a function of the seed, the operand, the index of the word, and the row
        and the column of the entry: equal for each matrix of a stack, and for a leading part of a matrix.

    Raises
    ------
    InputError
        Unknown format or rounding; an exponent that is no integer between -420 and 420; SR without a seed, or a seed or
        random bits for another rounding.

    Examples
    --------
    >>> Word("r", "fp16", exponent=11).round(np.array([1 + 2.0**-12])).tolist()
    [1.0]
    """

    name: str
    format: FloatFormat
    rounding: str = "RNE"
    exponent: int = 0
    random_bits: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"the name of a Word must be a text such as 'h', got {shown(self.name)}")
        object.__setattr__(self, "format", formats.get(self.format))
        if self.rounding not in (BIT_CUT, BALANCED, AWAY, *Rounding.__members__):
            object.__setattr__(self, "rounding", mode_of(self.rounding).name)
        integer("exponent of a Word", self.exponent, -420, 420)
        if self.rounding != "SR":
            if (self.random_bits, self.seed) != (None, None):
                raise InputError(f"random_bits and seed have no effect on word {self.name}, rounded by {self.rounding}")
        elif self.seed is None:
            raise InputError(f"word {self.name} is rounded by SR, which needs seed=, an integer from 0 to 2^63 - 1")
        else:
            integer("random_bits of a Word", self.random_bits, 1, 64, none=True)
            integer("seed of a Word", self.seed, 0, 2**63 - 1)

    def _random(self, x: Array) -> dict[str, Any]:
        """The random bits of each entry of `x`, as arguments of `_round_to`."""
        if self.rounding != "SR":
            return {}
        bits, (rows, columns) = self.random_bits or 32, (1, 1, *x.shape)[-2:]
        words = _words_at(self.seed, bits, np.arange(rows)[:, None], np.arange(columns))
        return {"words": np.broadcast_to(words[0] if x.ndim == 1 else words, x.shape), "bits": bits}

    def round(self, x: Array) -> Array:
        """`x` (float64, already scaled) as values of the format."""
        if self.rounding == BIT_CUT:
            return _bit_cut(x)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            if self.rounding == AWAY:
                return _round_to(self.unbounded(x), self.format)
            return _round_to(x, self.format, Rounding[self.rounding], **self._random(x))

    def unbounded(self, x: Array) -> Array:
        """`x` (float64) rounded to the format's precision with no limit on the exponent."""
        if self.rounding == AWAY:
            return np.copysign(_round_to(np.abs(x), self.format, Rounding.RU, unbounded=True), x)
        mode = Rounding["RZ" if self.rounding == BIT_CUT else self.rounding]
        return _round_to(x, self.format, mode, unbounded=True, **self._random(x))

    def overflows(self, x: Array) -> NDArray[np.bool_]:
        """Where the rounding of `x` with an unbounded exponent is beyond the format's largest number."""
        over = np.abs(x) > self.format.max
        if over.any():
            over &= np.abs(self.unbounded(x)) > self.format.max
        return np.asarray(over)

    @property
    def unit(self) -> float:
        """Largest relative error of the rounding, without overflow and underflow."""
        return self.format.unit_roundoff * (1 if self.rounding in NEAREST else 2)


def of_operand(words: Sequence[Word], operand: str) -> tuple[Word, ...]:
    """The rules of one operand, "A" or "B", with a seed for each operand and word that is rounded stochastically.

    A balanced split rounds h of A toward zero and h of B away from zero. Residuals then have the sign of a and the
    opposite sign of b, so that an omitted product r_A r_B, of the opposite sign of a b, makes up for a part of what
    truncating accumulators lose.
    """
    rounding = "RZ" if operand == "A" else AWAY
    words = [replace(word, rounding=rounding) if word.rounding == BALANCED else word for word in words]
    return tuple(
        replace(word, seed=_derived_seed(word.seed, "AB".index(operand), index)) if word.rounding == "SR" else word
        for index, word in enumerate(words)
    )


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
    if np.isfinite(x).all() and (result := _compiled(x, tuple(words))) is not None:
        values = zip(result[0], words, strict=True)
        return tuple(value.astype(word.format.dtype, copy=False) for value, word in values)
    return tuple(value for _, _, value, _ in steps(x, words))


def _compiled(x: Array, rules: tuple[Word, ...]) -> tuple[NDArray[np.float32], bool] | None:
    """The words of finite `x`, (words, *x.shape) in float32, and whether any overflows; None: use `steps`."""
    if not rules or not use_compiled(x.size) or (parameters := _parameters(rules)) is None:
        return None
    from fpemu.compiled.rounding import split

    return split(x, *parameters)


@lru_cache(maxsize=256)
def _parameters(rules: tuple[Word, ...]) -> tuple[Array, Array, Array] | None:
    """The parameters of the compiled split, and the factors of the words; None if it does not apply."""
    from fpemu.compiled.rounding import parameters

    rows = []
    for word in rules:
        if word.format.precision == 1 or word.format.dtype == np.float64 or word.rounding in (BALANCED, "SR"):
            return None
        cut, away = (word.rounding == name for name in (BIT_CUT, AWAY))
        mode = "RZ" if cut else "RNE" if away else word.rounding
        rows.append(parameters(word.format, mode, bit_cut=cut, away=away))
    up, down = (np.ldexp(1.0, [sign * word.exponent for word in rules]) for sign in (1, -1))
    return np.stack(rows), up, down


@dataclass(frozen=True)
class Prepared:
    """A split operand: its numbers (0 for NaN and Inf), words, powers of two, and rows (columns) with NaN or Inf."""

    finite: Array
    words: tuple[Array, ...]  # of the numbers times 2^exponents: float32, or float64 if their format requires it
    exponents: NDArray[np.int32]
    special: NDArray[np.bool_] | None

    @property
    def values(self) -> Array:
        """The numbers times 2^exponents, float64."""
        return np.asarray(np.ldexp(self.finite.astype(np.float64), self.exponents))


def prepare(X: Array, name: str, rules: Sequence[Word], on_range: str, scaling: str, scheme: str) -> Prepared:
    """Scale operand "A" (..., M, K) or "B" (..., K, N), fp32, split it, and check that its words hold it.

    `on_range` is the overflow policy; a `scaling` other than "scale" and "scale-rows" scales nothing.
    """
    finite = np.isfinite(X)
    special = None
    rules = of_operand(rules, name)
    if not finite.all():
        if on_range == OverflowPolicy.RAISE:
            raise InputError(
                f"{name}: NaN or infinite: {entries(~finite, X)}; on_range='propagate' returns the NaN and Inf of SGEMM"
            )
        if on_range != OverflowPolicy.HARDWARE:
            special = np.asarray(~finite.all(axis=-1 if name == "A" else -2))
            X = np.where(finite, X, np.float32(0))
    exponents = np.zeros((1, 1), np.int32)
    if scaling in (OverflowPolicy.SCALE, OverflowPolicy.SCALE_ROWS):
        axes = (-2, -1) if scaling == OverflowPolicy.SCALE else ((-1,) if name == "A" else (-2,))
        exponents = _exponents(X, axes, rules[0].format)
    checked = on_range not in (OverflowPolicy.PROPAGATE, OverflowPolicy.HARDWARE)
    scaled = np.multiply(X, np.ldexp(1.0, exponents), dtype=np.float64) if exponents.any() else X
    if (result := _compiled(scaled, rules)) is not None and not (checked and result[1]):
        return Prepared(X, tuple(result[0]), exponents, special)
    ready, words = Prepared(X, (), exponents, special), list[Array]()
    for word, scaled, value, _ in steps(ready.values, rules):
        if checked:
            over = word.overflows(scaled)
            if over.any():
                raise InputError(_overflow(name, word, over, X, on_range, scheme, first=not words))
        words.append(value if value.dtype == np.float64 else value.astype(np.float32))
    return replace(ready, words=tuple(words))


def _exponents(x: Array, axes: tuple[int, ...], fmt: FloatFormat) -> NDArray[np.int32]:
    """Powers of two that bring the largest magnitude along `axes` to [2^13, 2^14), or as near as `fmt` allows."""
    largest = np.max(np.abs(x), axis=axes, keepdims=True, initial=0.0)
    _, e = np.frexp(largest.astype(np.float64))
    return np.where(largest == 0, 0, min(TOP, fmt.emax - 1) - e).astype(np.int32)


def _overflow(name: str, word: Word, over: Array, X: Array, on_range: str, scheme: str, *, first: bool) -> str:
    part = f"the {word.format} part {word.name}" + (f" (times 2^{word.exponent})" if word.exponent else "")
    cures = [] if first else ["a smaller residual scale keeps it in range"]
    cures += ["on_range='scale' scales the matrices by powers of two"] if on_range == "raise" else []
    cures += ["on_range='propagate' returns the result of the hardware"]
    return f"{name}: {part} of {scheme} overflows: {entries(over, X)}; {', '.join(cures)}"


def undo(T: Array, a: Prepared, b: Prepared) -> Array:
    """T without the operands' powers of two: exact in float64, then one rounding (only a subnormal result rounds)."""
    if not (a.exponents.any() or b.exponents.any()):
        return T
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(np.ldexp(T.astype(np.float64), -(a.exponents + b.exponents)).astype(np.float32))


def patch(T: Array, A: Array, B: Array, rows: Mask | None, columns: Mask | None) -> Array:
    """Give the outputs that a NaN or an Inf reaches what SGEMM and DGEMM give there.

    Every output of such a row of A or column of B is NaN or infinite, and which of these depends on the signs alone:
    so a chain of FMAs over signs decides it, and finite entries cannot overflow on the way.
    """
    if rows is None and columns is None:
        return T
    T = np.array(T)
    batch = T.shape[:-2]
    signs_a, signs_b = (np.broadcast_to(_signs(X), batch + X.shape[-2:]) for X in (A, B))
    rows = np.broadcast_to(False if rows is None else rows, batch + T.shape[-2:-1])
    columns = np.broadcast_to(False if columns is None else columns, batch + T.shape[-1:])
    for at in np.ndindex(*batch):
        for where, x, y in (
            ((rows[at], slice(None)), signs_a[at][rows[at]], signs_b[at]),
            ((slice(None), columns[at]), signs_a[at], signs_b[at][:, columns[at]]),
        ):
            if x.size and y.size:
                T[at][where] = _chain([(x, y)], None, FMA_SPECS["fp32"])
    return T


def _signs(X: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(X), np.sign(X), X).astype(np.float32)


# --- products


@dataclass(frozen=True)
class Plan:
    """Products of words, their accumulators, and the final combination.

    Parameters
    ----------
    products : tuple of (int, int)
        Index of A's word and of B's word of each product, in the order of computation; see `pairs`.
    exponent : int
        Binary exponent of the scale between a word and the next.
    accumulators : {"band", "one", "each", "none"} or groups of products
        One accumulator for the products of equal i + j (a band), for all products, for each product, or for each group
        (see `groups`). "none": the product of every step starts from zero and is added to one fp32 total.
    step : int or str, optional
        Products that share an accumulator alternate after so many k: a positive integer, "instruction" or "N
        instructions". None: each product runs over all of K before the next.
    promote : int or str, optional
        The accumulator of band 0 restarts from zero after so many k and is added to an fp32 total. None: never.
    promote_all : bool
        Whether the accumulators of the other bands do so too.
    join : {"smallest-first", "as-run"}
        Final combination: total = total / 2^exponent + next band, from the highest band; or each sum divided by its
        power of two and added in the order of computation.
    combine_in : {"fp32", "fp64"}
        Arithmetic of the combination; fp64 rounds to fp32 once, at the end.

    Raises
    ------
    InputError
        A field that has another type or value; the message states what is expected.

    Examples
    --------
    >>> plan = Plan(pairs(("rh", "hr", "hh"), "hr"), exponent=11, promote="instruction")
    >>> plan.products
    ((1, 0), (0, 1), (0, 0))
    """

    products: tuple[Product, ...]
    exponent: int = 0
    accumulators: str | tuple[tuple[Product, ...], ...] = "band"
    step: int | str | None = None
    promote: int | str | None = None
    promote_all: bool = False
    join: Join = "smallest-first"
    combine_in: Literal["fp32", "fp64"] = "fp32"

    def __post_init__(self) -> None:
        _check_products("products of a Plan", self.products)
        integer("exponent of a Plan", self.exponent, -60, 60)
        for name, known in _PLAN_NAMES.items():
            value = getattr(self, name)
            if name != "accumulators" or isinstance(value, str):
                choice(name, value, known)
            elif not isinstance(value, tuple) or not value:
                raise InputError(f"accumulators must be {', '.join(known)} or groups of products, got {shown(value)}")
            else:
                for group in value:
                    _check_products("a group of accumulators", group, distinct=False)
                if sorted(chain.from_iterable(value)) != sorted(self.products):
                    raise InputError("accumulators as groups must contain each of the products once, and no others")
        for name in ("step", "promote"):
            length_in_k(f"{name} of a Plan", getattr(self, name))
        flag("promote_all of a Plan", self.promote_all)
        if self.accumulators == "none" and self.promote is not None:
            raise InputError("accumulators='none' restart after every step: promote has no effect, leave it out")

    def groups(self) -> list[tuple[int, list[Product]]]:
        """The accumulators in the order of their first product: (smallest band, products run in it)."""
        if not isinstance(self.accumulators, str):
            owner = {p: number for number, group in enumerate(self.accumulators) for p in group}
            runs = [[p for p in self.products if owner[p] == n] for n in dict.fromkeys(map(owner.get, self.products))]
            return [(min(i + j for i, j in run), run) for run in runs]
        if self.accumulators in ("each", "none"):
            return [(i + j, [(i, j)]) for i, j in self.products]
        if self.accumulators == "one":
            return [(min(i + j for i, j in self.products), list(self.products))]
        bands = list(dict.fromkeys(i + j for i, j in self.products))
        return [(b, [p for p in self.products if sum(p) == b]) for b in bands]

    def promoted(self, band: int, spec: MmaSpec) -> int | None:
        """The promotion interval, in k, of an accumulator that holds `band`."""
        return in_k(self.promote, spec) if self.promote_all or band == 0 or self.shares_one else None

    @property
    def shares_one(self) -> bool:
        """Whether all products share one accumulator on purpose."""
        return self.accumulators == "one" if isinstance(self.accumulators, str) else len(self.accumulators) == 1


def in_k(interval: int | str | None, spec: MmaSpec) -> int | None:
    """A length in k, where "instruction" is the length of one and "N instructions" the length of N."""
    if not isinstance(interval, str):
        return interval
    return spec.k * int(interval.split()[0]) if " " in interval else spec.k


def _check_products(name: str, given: Any, *, distinct: bool = True) -> None:
    """Raise InputError unless these are distinct pairs of indices of words."""
    pair = isinstance(given, tuple) and all(
        isinstance(p, tuple) and len(p) == 2 and all(is_integer(i) and 0 <= i < 8 for i in p) for p in given
    )
    if not pair or not given or (distinct and len({*given}) < len(given)):
        raise InputError(
            f"{name} must be a tuple of distinct pairs (index of A's word, index of B's word), such as ((1, 0), (0, 0))"
            f" or pairs(('rh', 'hh'), 'hr'), got {shown(given)}"
        )


def length_in_k(name: str, value: Any, none: bool = True) -> Any:
    """A length in k: a positive integer, "instruction", "N instructions", or None."""
    if none and value is None:
        return value
    if isinstance(value, str) and (count := re.fullmatch(r"(?:([1-9]\d{0,8}) )?instructions?", value.strip())):
        return "instruction" if count[1] in (None, "1") else f"{count[1]} instructions"
    if not is_integer(value) or value < 1:
        allowed = "a length in k (a positive integer), 'instruction', 'N instructions'" + " or None" * none
        raise InputError(f"{name} must be {allowed}, got {shown(value)}")
    return int(value)


def groups(accumulators: Any, letters: str) -> Any:
    """Convert groups of products by name to groups of pairs of indices.

    Parameters
    ----------
    accumulators : str, or sequence of sequences of str
        Name of an assignment, as in `Plan`, which is returned unchanged; or the names of the products of each group.
    letters : str
        One letter for each word.

    Returns
    -------
    str, or tuple of tuples of (int, int)
        Accumulators of a `Plan`.

    Raises
    ------
    InputError
        A name that is not two of the letters.

    Examples
    --------
    >>> groups([["hh"], ["rh", "hr"]], "hr")
    (((0, 0),), ((1, 0), (0, 1)))
    """
    if isinstance(accumulators, str):
        return accumulators
    return tuple(pairs(group, letters) for group in accumulators)


def pairs(names: Sequence[str], letters: str) -> tuple[tuple[int, int], ...]:
    """Convert products by name to pairs of indices.

    Parameters
    ----------
    names : sequence of str
        Names of two letters; the first is A's word.
    letters : str
        One letter for each word.

    Returns
    -------
    tuple of (int, int)
        Products of a `Plan`.

    Raises
    ------
    InputError
        A name that is not two of the letters.

    Examples
    --------
    >>> pairs(("rh", "hr", "hh"), "hr")
    ((1, 0), (0, 1), (0, 0))
    """
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"products must be a tuple of names of two letters of {letters!r}, got {shown(names)}")
    keywords("product", names, [a + b for a in letters for b in letters])
    return tuple((letters.index(a), letters.index(b)) for a, b in names)
