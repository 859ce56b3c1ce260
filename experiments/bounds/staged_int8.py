"""Staged accumulation with corrections in int8: its bound rests on the largest entries of rows and columns."""

from __future__ import annotations

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of staged accumulation with corrections in int8"
KIND = "M"
PAGE = _bounds.Page("staged-int8", _bounds.chips("ampere", "hopper"))
SPECS = [("ampere", "fp16", "fp32"), ("hopper", "fp16", "fp32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
