"""LE-GEMM, figure 12: histogram of the errors of a product of inner length 1024 on the MI210."""

from __future__ import annotations

from typing import Any

from fpemu.reproduce.claims import Claim

from . import _histogram
from ._histogram import ASSUMPTIONS, cost, evaluate

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate", "finding"]

PAPER = f"{_histogram.PAPER}, figure 12"
TITLE = "error histogram at inner length 1024, MI210"
CAPTION = """How often an entry of a product of inner length 1024, operands uniform in [-1, 1], errs by how much on the
MI210 (CDNA2): signed errors, bins half an octave wide, (a) against an fp32 chain of FMAs as in the paper and (b)
against the exact product; all seeded runs together. The middle bin holds errors below 2^-30, exact hits among them.
CDNA2 reads fp16 numbers below 2^-14 as zero, in the parts of Markidis', Ootomo's and LE-GEMM's splits too."""


def cells(size: str) -> list[dict[str, Any]]:
    return _histogram.cells(size, ("cdna2", "ampere"))  # one claim compares the two platforms


def draw(rows: list[dict[str, Any]]) -> Any:
    return _histogram.draw(rows, "cdna2")


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    return _histogram.claims(rows, "cdna2") + _histogram.compared(rows)


def finding(rows: list[dict[str, Any]]) -> str:
    return _histogram.finding(rows, "cdna2")
