"""Ootomo's scheme on tf32 words, published choices: the exponent range of fp32, so nothing underflows here."""

from __future__ import annotations

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of Ootomo's scheme, tf32"
KIND = "M"
PAGE = _bounds.Page("ootomo-tf32", _bounds.chips("ampere", "hopper", "cdna3"))
SPECS = [("ampere", "tf32", "fp32"), ("hopper", "tf32", "fp32"), ("cdna3", "tf32", "fp32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
