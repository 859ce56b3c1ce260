"""ozIMMU on int8 instructions: the automatic number of slices, eight, and four, whose split is the whole error."""

from __future__ import annotations

from fpemu import plotting
from fpemu.plotting import Series

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of ozIMMU"
KIND = "M"
PAGE = _bounds.Page(
    "ozimmu",
    (
        _bounds.Curve("ampere", {}, Series("Ampere, automatic", plotting.ORANGE, "^")),
        _bounds.Curve("ampere", {"slices": 8}, Series("Ampere, 8 slices", plotting.BLUE, "s")),
        _bounds.Curve("ampere", {"slices": 4}, Series("Ampere, 4 slices", plotting.VERMILION, "o")),
    ),
)
SPECS = [("ampere", "int8", "int32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
