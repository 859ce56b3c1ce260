"""Markidis' scheme, published choices: four products in one accumulator, so the sums decide from short lengths on."""

from __future__ import annotations

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of Markidis' scheme"
KIND = "M"
PAGE = _bounds.Page("markidis", _bounds.chips("volta", "ampere", "hopper", "cdna2"))
SPECS = [("volta", "fp16", "fp32"), ("ampere", "fp16", "fp32"), ("hopper", "fp16", "fp32"), ("cdna2", "fp16", "fp32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
