"""LE-GEMM, figures 10 to 13: errors over n, and histograms of errors, by four methods on two GPUs.

`PAGES` has an entry for each figure; the code of figures 10 and 11 is in `_accuracy`, of figures 12 and 13 in
`_histogram`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .._rows import Row
from . import _accuracy, _histogram

CAPTION_OVER_N = """{} of n×n×n products, operands uniform in [-1, 1]; above against an fp32 chain of FMAs as in the
paper, below against the exact product. Lines: mean over seeded runs; bands: smallest to largest run."""
CAPTION_HISTOGRAM = """Signed errors of the entries of a product of inner length 1024 on the {}, operands uniform in
[-1, 1], in bins half an octave wide: (a) against an fp32 chain of FMAs as in the paper, (b) against the exact product,
all seeded runs together. The middle bin holds errors below 2^-30 and exact results.{}"""
FLUSHED = " CDNA2 reads fp16 numbers below 2^-14 as zero, in the words of Markidis', Ootomo's and LE-GEMM's splits too."


@dataclass(frozen=True)
class Figure:
    """A figure of section 5.3.

    Attributes
    ----------
    title, number, caption
        As on the page.
    shared : mapping
        The page's attributes that do not depend on the subject.
    functions : mapping of functions
        The page's functions, which take the subject as their last argument.
    subject : str
        The error measure, or the platform.
    """

    title: str
    number: int
    caption: str
    shared: Mapping[str, Any]
    functions: Mapping[str, Callable[..., Any]]
    subject: str

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the page's module."""
        paper = f"LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.3, figure {self.number}"
        functions = {
            name: functools.partial(_call, function, self.subject) for name, function in self.functions.items()
        }
        return {"PAPER": paper, "TITLE": self.title, "CAPTION": self.caption, **self.shared, **functions}


def _call(function: Callable[..., Any], subject: str, argument: Any) -> Any:
    return function(argument, subject)


_OVER_N: dict[str, Any] = {
    "ASSUMPTIONS": _accuracy.ASSUMPTIONS,
    "cells": _accuracy.cells,
    "cost": _accuracy.cost,
    "evaluate": _accuracy.evaluate,
}
_LINES: dict[str, Callable[..., Any]] = {"draw": _accuracy.draw, "measures": _accuracy.measures}
_AT_1024: dict[str, Any] = {
    "ASSUMPTIONS": _histogram.ASSUMPTIONS,
    "cost": _histogram.cost,
    "evaluate": _histogram.evaluate,
}
_BINS: dict[str, Callable[..., Any]] = {
    "cells": _histogram.cells,
    "draw": _histogram.draw,
    "measures": _histogram.measures,
    "finding": _histogram.finding,
}
PAGES = {
    "fig10": Figure(
        "Max_error over n, MI210 and A800",
        10,
        CAPTION_OVER_N.format("Largest relative error |p - s| / (|p| + |s|) (Max_error, Eq. 19)")
        + " Grey: Max_error above 1/2, where the error of an entry exceeds the entry; Eq. 19 cannot exceed 1.",
        _OVER_N,
        _LINES,
        "max_error",
    ),
    "fig11": Figure(
        "MRED over n, MI210 and A800",
        11,
        CAPTION_OVER_N.format("Mean relative error |s - p| / |s| (MRED, Eq. 20)"),
        _OVER_N,
        _LINES,
        "mred",
    ),
    "fig12": Figure(
        "error histogram at inner length 1024, MI210",
        12,
        CAPTION_HISTOGRAM.format("MI210 (CDNA2)", FLUSHED),
        _AT_1024,
        _BINS,
        "cdna2",
    ),
    "fig13": Figure(
        "error histogram at inner length 1024, A800",
        13,
        CAPTION_HISTOGRAM.format("A800 (Ampere)", ""),
        _AT_1024,
        _BINS,
        "ampere",
    ),
}


def draw(rows: list[Row], name: str) -> Any:
    """Draw the picture of a page, with all the code that it reaches."""
    return PAGES[name].attributes["draw"](rows)
