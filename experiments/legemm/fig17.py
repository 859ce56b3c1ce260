"""LE-GEMM, figure 17: gains by the tile that the model selects and by the pipeline."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._rows import Row, slanted_sizes
from ..speed._record import RULES, evaluate, is_square, one_gpu, products, provenance, squares

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.6, figure 17"
CAPTION = f"""TFLOP/s of LE-GEMM (first launches) over n, operands split as they are loaded: with the tile that the
model of section 4.2 selects for the GPU among the tiles of the kernel, with a manually chosen tile of 64×64, and with
the model's tile and alternating loads and products, without the double buffer of section 4.3. Dotted: words split in
memory beforehand, which is not timed, and two or three buffers. {provenance("legemm/fig17", *groups.ABLATION)}"""
ASSUMPTIONS = [
    *RULES,
    """The paper does not print the manually chosen tile; here it is 64×64, four fragments per side. The plain
    implementation is the kernel of this project without its second buffer, and not a call of the API.""",
]
PUBLISHED = {"legemm 64x64": ("the tile model", 1.78), "legemm plain": ("the pipeline", 2.72)}
"""Gains on A800."""
_LOOK = {
    "legemm fused": Series("the model's tile", plotting.VERMILION, "o"),
    "legemm 64x64": Series("64×64, by hand", plotting.ORANGE, "^", "--"),
    "legemm plain": Series("the model's tile, no pipeline", plotting.GREY, "x", "-."),
    "legemm mma": Series("words in memory", plotting.SKY, "D", ":", filled=False),
}


def cells() -> list[Row]:
    return products(groups.ABLATION, is_square)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(height=3.0)
    axis = axes[0, 0]
    for name, style in _LOOK.items():
        selected = _line(rows, name)
        axis.plot([row["M"] for row in selected], [row["first"] for row in selected], **style.line())
    slanted_sizes(axis, sorted({row["M"] for row in rows}))
    axis.set(ylim=0, xlabel="$n$", ylabel="TFLOP/s")
    plotting.legend_below(figure, axis, 2, f"$n×n×n$, {one_gpu()}; median of ten launches")
    return figure


def _line(rows: list[Row], line: str) -> list[Row]:
    """Rows by n; "legemm fused" includes the sizes at which "legemm mma" splits the operands in its loads."""
    names = ("legemm fused", "legemm mma") if line == "legemm fused" else (line,)
    result = {
        row["M"]: row
        for name in reversed(names)
        for row in squares(rows, name)
        if "first" in row and row.get("fused", 1.0) == float(line != "legemm mma")
    }
    return [result[n] for n in sorted(result)]


def _gains(rows: list[Row], other: str) -> dict[int, float]:
    ours = {row["M"]: row["first"] for row in _line(rows, "legemm fused")}
    return {row["M"]: ours[row["M"]] / row["first"] for row in _line(rows, other) if row["M"] in ours}


def measures(rows: list[Row]) -> Iterator[Measure]:
    for other, (name, _) in PUBLISHED.items():
        if gains := _gains(rows, other):
            yield Measure("gains_of_model_and_pipeline", float(np.mean(list(gains.values()))), "", name)


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, kind="G")
