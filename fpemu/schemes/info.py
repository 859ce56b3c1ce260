"""What is published about a scheme, and the choices that it leaves open, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
    name, title : str
        Name in this package, and title for figures.
    paper : str
        Authors, venue and year; "" for a scheme without a paper.
    year : int, optional
        Year of publication.
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
        Choices that the scheme leaves open.
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
