"""What is published about a scheme, and the choices that it leaves open, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One choice that a scheme leaves open: its name, the published value, what it means, the values it takes."""

    name: str
    default: Any
    meaning: str
    values: str


@dataclass(frozen=True)
class SchemeInfo:
    """What is published about a scheme.

    Parameters
    ----------
    name, title : str
    paper : str
        Authors, venue and year; "" for a scheme without a paper.
    year : int or None
    doi : str
        "" if there is none.
    parts : tuple of str
        The formula of every word.
    products : tuple of str
        The products of words, in the order run; the first letter is A's word.
    range : str
        Which magnitudes the words hold without loss.
    bound : str
        Error relative to |A||B|, as a formula; `error_bound` evaluates it.
    options : tuple of Option
    """

    name: str
    title: str
    paper: str = ""
    year: int | None = None
    doi: str = ""
    parts: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    range: str = ""
    bound: str = ""
    options: tuple[Option, ...] = ()
