"""Three bf16 words, six products, published choices: CDNA 2 reads subnormal words as zero, CDNA 3 cuts downwards."""

from __future__ import annotations

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of bf16x6"
KIND = "M"
PAGE = _bounds.Page("bf16x6", _bounds.chips("ampere", "hopper", "cdna2", "cdna3"))
SPECS = [("ampere", "bf16", "fp32"), ("hopper", "bf16", "fp32"), ("cdna2", "bf16", "fp32"), ("cdna3", "bf16", "fp32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
