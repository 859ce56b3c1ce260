"""Plain fp16 with fp32 sums.

The split's 2^-11 first, until truncated sums outgrow it. Look where the lines of Volta bend.
"""

from __future__ import annotations

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of plain fp16"
KIND = "M"
PAGE = _bounds.Page("fp16", _bounds.chips("volta", "ampere", "hopper", "cdna2"))
SPECS = [("volta", "fp16", "fp32"), ("ampere", "fp16", "fp32"), ("hopper", "fp16", "fp32"), ("cdna2", "fp16", "fp32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
