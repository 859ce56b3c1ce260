"""Published facts about a scheme, and its options as fields of a frozen dataclass: check, meaning and values of each.

A check takes the option's full name ("ootomo option promote") and the value given; it returns the value to keep or
raises InputError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fpemu import arguments
from fpemu.errors import InputError, shown
from fpemu.rounding import mode_of
from fpemu.schemes.words import BALANCED, BIT_CUT, length_in_k


@dataclass(frozen=True)
class Option:
    """Choice that a scheme leaves open.

    Attributes
    ----------
    name : str
        Keyword of the option.
    default : object
        Published value.
    meaning : str
        Description in one line.
    values : str
        Accepted values.
    """

    name: str
    default: Any
    meaning: str
    values: str


@dataclass(frozen=True)
class SchemeInfo:
    """Published facts about a scheme.

    Parameters
    ----------
    name : str
        Name in this package.
    title : str, optional
        Title for figures; default: the name.
    paper : str
        Authors, venue and year; "" for a scheme without a paper.
    year : int, optional
        Year of publication.
    doi : str
        "" if there is none.
    parts : tuple of str
        The formula of every word.
    products : tuple of str
        The products of words, in the order of computation; the first letter is A's word. Default: the default of the
        scheme's option `products`.
    range : str
        Which magnitudes the words hold without loss.
    bound : str
        Error relative to |A||B|, as a formula; `fpemu.theory.bound` evaluates it.
    options : tuple of Option
        Choices that the scheme leaves open.
    """

    name: str
    title: str = ""
    paper: str = ""
    year: int | None = None
    doi: str = ""
    parts: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    range: str = ""
    bound: str = ""
    options: tuple[Option, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)


def option(default: Any, check: Callable[[str, Any], Any], meaning: str, values: str) -> Any:
    """A field of a scheme. ``check(name, value)`` returns the value to keep, or raises InputError."""
    return field(default=default, metadata={"check": check, "meaning": meaning, "values": values})


def choice(default: str | None, known: Collection[str], meaning: str) -> Any:
    """An option with a few names as values, and None if that is the default."""

    def check(name: str, value: Any) -> str | None:
        return arguments.choice(f"value for {name}", value, known, none=default is None)

    return option(default, check, meaning, " | ".join(known) + " | None" * (default is None))


def flag(meaning: str) -> Any:
    """True, False or None (the default)."""
    return option(None, partial(arguments.flag, none=True), meaning, "True | False | None")


def number(default: float, low: float, high: float, meaning: str) -> Any:
    """A real number between two bounds."""
    return option(default, partial(arguments.number, low=low, high=high), meaning, f"{low:g} to {high:g}")


def limit(meaning: str, words: tuple[str, ...]) -> Any:
    """A positive number, one of some words, or None (the default)."""

    def check(name: str, value: Any) -> float | str | None:
        if value is None or isinstance(value, str):
            return arguments.choice(f"value for {name}", value, words, none=True)
        return float(arguments.number(name, value, above=0, what=f", {' or '.join(map(repr, words))}"))

    return option(None, check, meaning, " | ".join([*words, "a positive number", "None"]))


def rounding(default: str, meaning: str, *, cut: bool = True, balanced: bool = False) -> Any:
    """A rounding mode by name, "bit-cut" where the word is fp16, and "balanced" where A and B may differ."""
    others = [BIT_CUT] * cut + [BALANCED] * balanced

    def check(name: str, value: Any) -> str:
        if isinstance(value, str) and value in others:
            return value
        mode = mode_of(value).name
        if mode == "RNZ":
            raise InputError(f"{name}: no kernel rounds words with ties toward zero: take RNE or RNA")
        return mode

    return option(default, check, meaning, " | ".join(["RNE | RNA | RZ | RU | RD | ODD | SR", *others]))


def integer(
    default: int | None, low: int, high: int, meaning: str, *, none: bool = False, words: tuple[str, ...] = ()
) -> Any:
    """An integer between two bounds; None too if `none`, and words if there are any."""
    check = partial(arguments.integer, low=low, high=high, none=none, words=words)
    return option(default, check, meaning, " | ".join([f"{low} to {high}", *words, *["None"] * none]))


def scale(
    default: float | None,
    meaning: str = "power of two that the residual is multiplied by before it is rounded",
    *,
    none: bool = False,
) -> Any:
    """A power of two as a number (2**11), not as an exponent."""

    def check(name: str, value: Any) -> float | None:
        if none and value is None:
            return None
        value = value.item() if isinstance(value, np.generic) else value  # as float16 it would overflow
        if not arguments.is_real(value) or not 0 < value < 2**1000 or np.frexp(float(value))[0] != 0.5:
            raise InputError(f"{name} must be a power of two such as 2**11, got {shown(value)}")
        if not 2.0**-60 <= float(value) <= 2.0**60:
            raise InputError(f"{name} must lie between 2^-60 and 2^60, got {shown(value)}")
        return float(value)

    return option(default, check, meaning, "a power of two such as 2**11" + " | None" * none)


def interval(default: int | str | None, meaning: str, *, none: bool = True) -> Any:
    """A length in k: a positive integer, "instruction", "N instructions", None."""

    check = partial(length_in_k, none=none)
    return option(default, check, meaning, "a length in k | instruction | N instructions" + " | None" * none)


def products(default: tuple[str, ...] | None, letters: str, meaning: str = "products of words, in this order") -> Any:
    """A tuple of two-letter names, or one string with commas; the first letter names A's word."""

    def check(name: str, value: Any) -> tuple[str, ...] | None:
        if value is None and default is None:
            return None
        given = value.replace(",", " ").split() if isinstance(value, str) else value
        known = [a + b for a in letters for b in letters]
        if not isinstance(given, tuple | list) or not all(isinstance(name, str) for name in given):
            raise InputError(f"{name} must be a tuple of names such as {known[0]!r}, got {shown(value)}")
        chosen = tuple(map(str, given))
        arguments.keywords(f"product in {name}", chosen, known)
        if not chosen or len(set(chosen)) < len(chosen):
            raise InputError(f"{name} must name each product once and at least one, got {shown(value)}")
        return chosen

    values = f"a tuple of two letters of {letters!r} each" + " | None" * (default is None)
    return option(default, check, meaning, values)


def name(meaning: str, values: str) -> Any:
    """A name that is checked where it is used, or None (the default)."""

    def check(name: str, value: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            raise InputError(f"{name} must be a name or None, got {shown(value)}")
        return value

    return option(None, check, meaning, f"{values} | None")


def accumulators(default: str) -> Any:
    """Which products share an accumulator: a name, or groups of products as tuples or as text "hh; rh, hr"."""
    names = ("one", "band", "each")

    def check(name: str, value: Any) -> str | tuple[tuple[str, ...], ...]:
        if isinstance(value, str) and ";" not in value:
            return str(arguments.choice(f"value for {name}", value, names))
        groups = value.split(";") if isinstance(value, str) else value
        if not isinstance(groups, tuple | list):
            raise InputError(f"{name} must be {', '.join(names)} or groups of products, got {shown(value)}")
        words = [group.replace(",", " ").split() if isinstance(group, str) else group for group in groups]
        if not all(isinstance(w, tuple | list) and w and all(isinstance(p, str) for p in w) for w in words):
            raise InputError(f"{name}: each group must name at least one product, got {shown(value)}")
        return tuple(tuple(group) for group in words)

    meaning = (
        "one for all products; one for the products of equal scale (hh; rh and hr; rr); one for each product; or "
        "groups of products"
    )
    return option(default, check, meaning, " | ".join([*names, "groups of products such as 'hh; rh, hr'"]))


def combine_in() -> Any:
    """Arithmetic of the last combination."""
    return choice("fp32", ("fp32", "fp64"), "arithmetic of the sum of the accumulators; fp64 rounds once, at the end")


def turns(default: int | str | None) -> Any:
    """The interval after which the products that share an accumulator alternate."""
    return interval(default, "length in k after which the products in one accumulator alternate (None: all of K)")


def promotion(default: int | str | None, which: str = "the accumulator of hh") -> Any:
    """The interval after which an accumulator restarts."""
    return interval(default, f"length in k after which {which} is added to an fp32 sum and restarts (None: one chain)")
