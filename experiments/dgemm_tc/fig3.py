"""DGEMM-TC, figure 3: largest relative error over n of cublasDgemm and of DGEMM-TC in DP mode."""

from __future__ import annotations

from typing import Any

from fpemu.reproduce.claims import Claim

from . import _accuracy
from ._accuracy import ASSUMPTIONS, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate"]

PAPER = f"{_accuracy.PAPER}.2, figure 3"
TITLE = "error of DGEMM-TC in DP mode over n"
CAPTION = """Largest relative error against the exact product rounded to fp64, operands (rand - 0.5)·exp(φ·randn):
DGEMM as one chain of FMAs (dashed) and DGEMM-TC in DP mode on a Turing GPU (solid). Lines: mean over seeded runs;
bands: smallest to largest run. CR mode has no line: its error is zero throughout. k = n; at quick size A
has 64 rows and B 64 columns."""


def cells(size: str) -> list[dict[str, Any]]:
    return _accuracy.cells(size, "DP")


def draw(rows: list[dict[str, Any]]) -> Any:
    return _accuracy.draw(rows, "DGEMM", "DGEMM-TC", ("fp64", 53))


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    return _accuracy.claims(rows, "DGEMM", "DGEMM-TC in DP mode")
