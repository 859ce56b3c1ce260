"""DGEMM-TC, figure 8: largest relative error over n of cublasSgemm and of SGEMM-TC in SP mode."""

from __future__ import annotations

from typing import Any

from fpemu.reproduce.claims import Claim

from . import _accuracy
from ._accuracy import ASSUMPTIONS, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate"]

PAPER = f"{_accuracy.PAPER}.3, figure 8"
TITLE = "error of SGEMM-TC in SP mode over n"
CAPTION = """Largest relative error against the exact product rounded to fp32, operands (rand - 0.5)·exp(φ·randn):
SGEMM as one chain of FMAs (dashed) and SGEMM-TC in SP mode on a Turing GPU (solid). Lines: mean over seeded runs;
bands: smallest to largest run. k = n; at quick size A has 64 rows and B 64 columns."""


def cells(size: str) -> list[dict[str, Any]]:
    return _accuracy.cells(size, "SP")


def draw(rows: list[dict[str, Any]]) -> Any:
    return _accuracy.draw(rows, "SGEMM", "SGEMM-TC", ("fp32", 24))


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    return _accuracy.claims(rows, "SGEMM", "SGEMM-TC in SP mode")
