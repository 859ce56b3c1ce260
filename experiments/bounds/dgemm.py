"""DGEMM, one chain of fp64 fused multiply-adds: what the Ozaki family is measured against."""

from __future__ import annotations

from fpemu import plotting
from fpemu.plotting import Series

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of DGEMM"
KIND = "M"
PAGE = _bounds.Page("dgemm", (_bounds.Curve(None, look=Series("chain of fp64 FMAs", plotting.BLACK, "s")),))
SPECS = ()
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
