"""H2SGEMM, published choices, on the paper's Ascend 910A (its bits are assumed) and three more.

An accumulator a product.
"""

from __future__ import annotations

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of H2SGEMM"
KIND = "M"
PAGE = _bounds.Page("h2sgemm", _bounds.chips("volta", "ampere", "hopper", "ascend910a"))
SPECS = [
    ("volta", "fp16", "fp32"),
    ("ampere", "fp16", "fp32"),
    ("hopper", "fp16", "fp32"),
    ("ascend910a", "fp16", "fp32"),
]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
