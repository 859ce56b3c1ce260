"""LE-GEMM, figure 13: histogram of the errors of a product of inner length 1024 on the A800."""

from __future__ import annotations

from typing import Any

from fpemu.reproduce.claims import Claim

from . import _histogram
from ._histogram import ASSUMPTIONS, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

PAPER = f"{_histogram.PAPER}, figure 13"
TITLE = "error histogram at inner length 1024, A800"
CAPTION = """How often an entry of a product of inner length 1024, operands uniform in [-1, 1], errs by how much on the
A800 (Ampere): signed errors, bins half an octave wide, (a) against an fp32 chain of FMAs as in the paper and (b)
against the exact product; all seeded runs together. The middle bin holds errors below 2^-30, exact hits among them."""


def cells(size: str) -> list[dict[str, Any]]:
    return _histogram.cells(size, ("ampere",))


def draw(rows: list[dict[str, Any]]) -> Any:
    return _histogram.draw(rows, "ampere")


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    return _histogram.claims(rows, "ampere")


def finding(rows: list[dict[str, Any]]) -> str:
    return _histogram.finding(rows, "ampere")
