"""Ozaki scheme II on int8 instructions.

15, 12 and 8 moduli. Fewer moduli leave fewer bits to the integers of the scaling.
"""

from __future__ import annotations

from fpemu import plotting
from fpemu.plotting import Series

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of Ozaki scheme II"
KIND = "M"
PAGE = _bounds.Page(
    "ozaki2",
    (
        _bounds.Curve("ampere", {"moduli": 15}, Series("Ampere, 15 moduli", plotting.ORANGE, "^")),
        _bounds.Curve("ampere", {"moduli": 12}, Series("Ampere, 12 moduli", plotting.BLUE, "s")),
        _bounds.Curve("ampere", {"moduli": 8}, Series("Ampere, 8 moduli", plotting.VERMILION, "o")),
    ),
)
SPECS = [("ampere", "int8", "int32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
