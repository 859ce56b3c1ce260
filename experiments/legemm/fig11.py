"""LE-GEMM, figure 11: MRED (Eq. 20) over n for plain fp16, Markidis, Ootomo and LE-GEMM, on MI210 and A800."""

from __future__ import annotations

from typing import Any

from fpemu.reproduce.claims import Claim

from . import _accuracy
from ._accuracy import ASSUMPTIONS, cells, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate"]

PAPER = f"{_accuracy.PAPER}, figure 11"
TITLE = "MRED over n, MI210 and A800"
CAPTION = """Mean relative error |s - p| / |s| (MRED, Eq. 20) of n×n×n products, operands
uniform in [-1, 1]; above against an fp32 chain of FMAs as in the paper, below against the exact product.
Lines: mean over seeded runs; bands: smallest to largest run."""


def draw(rows: list[dict[str, Any]]) -> Any:
    return _accuracy.draw(rows, "mred", "MRED")


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    return _accuracy.claims(rows, "mred", "MRED")
