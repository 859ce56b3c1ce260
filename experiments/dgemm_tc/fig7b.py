"""DGEMM-TC, figure 7b: number of slices and of products in CR mode, and the memory that they take (section 4.3)."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _counts
from ._counts import PHI, QUICK, assumptions, cells, cost, evaluate, lengths, means, memory

PAPER = f"{_counts.PAPER}, section 5.2, figure 7b"
CAPTION = """(a) Slices of A and of B until the remainder is zero and (b) products of slices over n, operands
(rand - 0.5)·exp(φ·randn), means over blocks and seeds; (c) memory of a block with the mean numbers of slices, (s_A +
s_B)·k·b words of fp16 and s_A·s_B·b² of fp32, in CR mode and in DP mode, b = ceil(n / ceil(n / 3584)). The largest
block takes more."""


def draw(rows: list[Row]) -> Any:
    figure, axes = _counts.draw_counts(rows, "CR")
    axis = axes[2, 0]
    axis.set_ylabel("GB")
    modes: dict[str, dict[str, Any]] = {"CR": {}, "DP": {"markerfacecolor": "white", "linewidth": 0.6}}
    for mode, style in modes.items():
        for phi, look in _counts.LOOK.items():
            axis.plot(lengths(rows), _memory(rows, phi, mode), **look.line(label="_memory", **style))
        axis.plot([], [], **Series("", plotting.BLACK, "s", "none").line(label=f"memory, {mode} mode", **style))
    axis.axhline(20, color=plotting.BLACK, linestyle=":", linewidth=0.9, label="20 GB of the paper")
    axis.set_ylim(0, 22)
    plotting.panel_titles(axes, ["slices, CR mode", "products, CR mode", "memory of a mean block"])
    _counts.legend_of_counts(figure, axes, rows)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    ratios = [means(rows, phi, "CR products")[0] / means(rows, phi, "DP products")[0] for phi in PHI]
    yield Measure("cr_more_products", float(np.min(ratios)))
    for mode in ("DP", "CR"):
        largest = max(_largest_block(row, mode) for row in rows)
        for unit, size in (("10^9", 1e9), ("2^30", 2.0**30)):
            yield Measure("memory", largest * 1e9 / size, f"GB of {unit} bytes", f"{mode} mode")


def finding(rows: list[Row]) -> str:
    last = {f"φ = {phi:g}:": float(means(rows, phi, "CR products")[0][-1]) for phi in PHI}
    return paragraph(
        (
            f"CR mode computes these numbers of products at n = {lengths(rows)[-1]}, means over blocks and seeds",
            last,
            ".4g",
        )
    )


def _largest_block(row: Row, mode: str) -> float:
    """GB at least of the largest block: some block has the mean number of slices, rounded up, of A and of B."""
    return memory(row["n"], *(math.ceil(row[f"{mode} slices {matrix}"]) for matrix in "AB"))


def _memory(rows: list[Row], phi: float, mode: str) -> list[float]:
    """GB of a block with the mean numbers of slices, at every n."""
    a, b = means(rows, phi, f"{mode} slices A", f"{mode} slices B")
    return [memory(n, x, y) for n, x, y in zip(lengths(rows), a, b, strict=True)]


PAGE = Page(PAPER, CAPTION, assumptions, cells, evaluate, draw, measures, finding, cost, QUICK)
