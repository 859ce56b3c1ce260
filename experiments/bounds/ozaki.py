"""The Ozaki scheme on the paper's hardware.

Algorithm 3 (DP), exact sums (CR), four fp16 slices, nine int8 slices. Norms give Algorithm 3 no worst case; few
slices show what a split leaves.
"""

from __future__ import annotations

from fpemu import plotting
from fpemu.plotting import Series

from . import _bounds
from ._bounds import ASSUMPTIONS, PAPER, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

TITLE = "bounds and errors of the Ozaki scheme"
KIND = "M"
PAGE = _bounds.Page(
    "ozaki",
    (
        _bounds.Curve("turing", {"mode": "DP"}, Series("Turing, DP", plotting.PURPLE, "p")),
        _bounds.Curve("turing", {"mode": "CR"}, Series("Turing, CR", plotting.GREEN, "D")),
        _bounds.Curve("turing", {"mode": "DP", "slices": 4}, Series("Turing, 4 slices", plotting.VERMILION, "o")),
        _bounds.Curve("ampere", {"words": "int8", "slices": 9}, Series("Ampere int8, 9 slices", plotting.ORANGE, "^")),
    ),
)
SPECS = [("turing", "fp16", "fp32"), ("ampere", "int8", "int32")]
CAPTION = PAGE.caption
cells, draw, claims, finding = PAGE.cells, PAGE.draw, PAGE.claims, PAGE.finding
