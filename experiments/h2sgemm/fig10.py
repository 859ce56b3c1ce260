"""H2SGEMM, figure 10: speed over the shape of blocks, with one buffer and with two."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._record import RULES, at, evaluate, is_square, products, provenance

PAPER = "H2SGEMM: Emulating FP32 GEMM on Ascend NPUs using FP16 Units, section 4.2, figure 10"
N = 4096
CAPTION = f"""TFLOP/s of H2SGEMM (element-wise, first launches), n = {N}, by the block of the result that a thread block
computes, with one buffer (loads and products alternate) and with two buffers. Line: a third of the measured speed of
the library's fp16 product. {provenance("h2sgemm/fig10")}"""
ASSUMPTIONS = [
    *RULES,
    """The paper's blocks fit the L1 and L0 buffers of an Ascend 910A, and (176, 64, 176) is the best block; here a
    block is the result of one thread block of a kernel on mma.sync. The page compares the gain by the second buffer and
    the share of the peak.""",
    """The peak of three products is a third of the measured speed of the library's fp16 product of the same size.""",
    """The kernel splits the operands while it loads them; the kernel of other figures, which reads words from memory,
    has other buffers and is faster.""",
]
SINGLE, DOUBLE = 41.7, 65.3
"""TFLOP/s on an Ascend 910A with one buffer and with two."""


def cells() -> list[Row]:
    return products((*groups.BLOCKS, "fp16"), lambda row: row["M"] == N and is_square(row))


def _speeds(rows: list[Row]) -> dict[str, tuple[float | None, float | None]]:
    """By block: one buffer, two."""
    result = {}
    for tile in groups.TILES:
        pair = [at(rows, f"h2sgemm element-wise {tile}{how}", N, N, N) for how in (" plain", "")]
        if any(row is not None for row in pair):
            result[tile] = tuple(None if row is None else row.get("first") for row in pair)
    return result  # type: ignore[return-value]


def _peak(rows: list[Row]) -> float | None:
    row = at(rows, "fp16", N, N, N)
    return None if row is None or "first" not in row else float(row["first"]) / 3


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(height=2.8)
    axis, speeds = axes[0, 0], _speeds(rows)
    places = np.arange(len(speeds))
    for which, label, look in (
        (0, "one buffer", {"color": plotting.ORANGE, "hatch": "////"}),
        (1, "two buffers", {"color": plotting.BLUE}),
    ):
        heights = [pair[which] or 0.0 for pair in speeds.values()]
        axis.bar(places + 0.38 * (which - 0.5), heights, 0.36, edgecolor="white", linewidth=0, label=label, **look)
    peak = _peak(rows)
    if peak is not None:
        axis.axhline(peak, color=plotting.GREY, linestyle="--", linewidth=0.9, label="fp16 (cuBLAS) / 3")
    axis.set_xticks(places, [tile.replace("x", "×") for tile in speeds])
    axis.grid(False, axis="x")
    axis.set(xlabel="block of the result", ylabel="TFLOP/s")
    plotting.legend_below(figure, axes, 3, f"H200, $m = n = k$ = {N}; median of ten launches")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    both = [pair for pair in _speeds(rows).values() if None not in pair]
    if both:
        one, two = (max(pair[which] or 0.0 for pair in both) for which in (0, 1))
        yield Measure("double_buffer_gain", two / one, "H200")
        yield Measure("small_blocks_slow", two / min(pair[1] or 0.0 for pair in both), "H200")
        if peak := _peak(rows):
            yield Measure("peak_share", two / peak, "H200")


def finding(rows: list[Row]) -> str:
    both = {tile: pair for tile, pair in _speeds(rows).items() if None not in pair}
    if not both:
        return ""
    best = max(both, key=lambda tile: both[tile][1] or 0)
    one, two = both[best]
    return paragraph(
        ("the fastest block is {}", best.replace("x", "×")),
        ("its speeds in TFLOP/s are", {"one buffer": one, "two buffers": two}),
        (f"the gain by the second buffer is {{}} (published: {DOUBLE / SINGLE:.3g}×)", (two or 0) / (one or 1), ".3g×"),
        ("thread blocks on one multiprocessor also hide loads, so the gain depends on their number", True),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
