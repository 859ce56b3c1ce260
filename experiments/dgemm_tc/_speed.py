"""Rows of the speed figures of DGEMM-TC: implementations, their looks, and speeds in GFLOP/s."""

from collections.abc import Collection
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series

from .._rows import Row
from . import _record
from ._counts import LOOK as _LOOK
from ._record import ASSUMPTIONS, PAPER, PHI

__all__ = [
    "ASSUMPTIONS",
    "IN_LEGEND",
    "LOOK",
    "PAPER",
    "PHI",
    "cells",
    "draw_line",
    "evaluate",
    "look",
    "ratios",
    "speeds",
]

IN_LEGEND = "means of 3 to 10 executions"
LOOK = {
    "DGEMM": Series("cublasDgemm", plotting.BLACK, "s", ":", filled=False),
    "SGEMM": Series("cublasSgemm", plotting.BLACK, "s", ":", filled=False),
    "DP": Series("DGEMM-TC, DP mode", plotting.VERMILION, "o"),
    "SP": Series("SGEMM-TC, SP mode", plotting.BLUE, "D"),
    "CR": Series("DGEMM-TC, CR mode", plotting.VERMILION, "o"),
    "CR, DGEMM": Series("DGEMM-DP-CR", plotting.GREY, "x"),
    "CR, int8 residues": Series("int8 residues (ours)", plotting.PURPLE, "P", "--"),
    "DP, int8 slices": Series("int8 slices, DP (ours)", plotting.ORANGE, "s", "--"),
    "ozIMMU": Series("ozIMMU", plotting.SKY, "v", "-."),
    "Ozaki II": Series("Ozaki scheme II", plotting.GREY, "h"),
}


def look(phi: float, label: str = "", filled: bool = True) -> Series:
    """The look of a range of inputs, as in the other figures."""
    like = _LOOK[phi]
    return Series(f"{label}, {like.label}" if label else like.label, like.color, like.marker, like.dash, filled)


def cells(names: Collection[str], n: int | None = None) -> list[Row]:
    """The cells of some implementations, at one n or all."""

    def shown(row: Row) -> bool:
        return row["implementation"] in names and n in (None, row["n"])

    return _record.cells("speeds", shown, "n", "phi", "implementation")


def evaluate(cell: Row) -> dict[str, float]:
    """The record's numbers, and the speeds in GFLOP/s: of the whole call and of its calls of GEMM."""
    numbers, operations = _record.numbers("speeds", cell), 2e-9 * cell["n"] ** 3
    numbers["GFLOP/s"] = operations / numbers["seconds"]
    if "products" in numbers:  # the parts of the time
        numbers["GEMM GFLOP/s"] = operations * numbers["products of a block"] / numbers["products"]
    return numbers


def speeds(rows: list[Row], name: str, phi: float, column: str = "GFLOP/s") -> dict[int, float]:
    """A column of an implementation by n, ascending."""
    of = {row["n"]: row[column] for row in rows if (row["implementation"], row["phi"]) == (name, phi) and column in row}
    return dict(sorted(of.items()))


def ratios(rows: list[Row], name: str, other: str, phi: float) -> list[float]:
    """Speed of one implementation over another's, at every n with both."""
    ours, theirs = (speeds(rows, one, phi) for one in (name, other))
    return [ours[n] / theirs[n] for n in ours if n in theirs]


def draw_line(axis: Any, points: dict[int, float], look: Series) -> None:
    if points:
        axis.plot(list(points), list(points.values()), **look.line())
        axis.set_xticks(list(points), [str(n) for n in points], rotation=45)
    axis.set_xlabel("$n$" if axis.get_subplotspec().is_last_row() else "")
