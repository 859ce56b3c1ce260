"""SGEMM, one chain of fp32 fused multiply-adds: the classical K u, and what rounding to nearest makes of it."""

from __future__ import annotations

from fpemu import plotting
from fpemu.plotting import Series

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of SGEMM"
KIND = "M"
PAGE = _bounds.Page("sgemm", (_bounds.Curve(None, look=Series("chain of fp32 FMAs", plotting.BLACK, "s")),))
SPECS = ()
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
