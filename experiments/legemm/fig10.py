"""LE-GEMM, figure 10: Max_error (Eq. 19) over n for plain fp16, Markidis, Ootomo and LE-GEMM, on MI210 and A800."""

from __future__ import annotations

from typing import Any

from fpemu.reproduce.claims import Claim

from . import _accuracy
from ._accuracy import ASSUMPTIONS, cells, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate"]

PAPER = f"{_accuracy.PAPER}, figure 10"
TITLE = "Max_error over n, MI210 and A800"
CAPTION = """Largest relative error |p - s| / (|p| + |s|) (Max_error, Eq. 19) of n×n×n products, operands
uniform in [-1, 1]; above against an fp32 chain of FMAs as in the paper, below against the exact product.
Lines: mean over seeded runs; bands: smallest to largest run."""


def draw(rows: list[dict[str, Any]]) -> Any:
    return _accuracy.draw(rows, "max_error", "Max_error")


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    return _accuracy.claims(rows, "max_error", "Max_error")
