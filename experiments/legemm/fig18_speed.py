"""LE-GEMM, figure 18, with measured speeds: speed against error of FAST_16F, LE-GEMM and 64F."""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._rows import Row, slanted_sizes
from ..speed._look import look, over_n, plain_ticks
from ..speed._record import RULES, evaluate, is_square, one_gpu, products, provenance, squares

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.7, figure 18"
IMPLEMENTATIONS = ("fp16", "legemm mma", "staged", "sgemm", "dgemm")
CAPTION = f"""(a) TFLOP/s over n, n×n×n, first launches with the split (FAST_16F, cuBLAS: with the conversion to fp16).
(b) MRED against the product in fp64. (c) MRED against TFLOP/s. {provenance("legemm/fig18_speed", *IMPLEMENTATIONS)}"""
ASSUMPTIONS = [
    *RULES[:3],
    """FAST_16F is measured as the fp16 product of the library after a kernel of this project has converted the fp32
    operands to fp16. 64F is cublasDgemm on operands converted to fp64 beforehand.""",
    """MRED is Eq. 20 with the product in fp64 as reference; the MRED of DGEMM has the exact product as reference, on a
    sample of the entries. Max_error, Eq. 19, is 1 for all methods at these sizes, because some of the 10^6 to 10^8
    entries are near zero and have the wrong sign.""",
]
_NAMES = {"fp16": Series("FAST_16F", plotting.GREY, "x", ":"), "dgemm": Series("64F", plotting.BLUE, "v")}


def cells() -> list[Row]:
    return products(IMPLEMENTATIONS, lambda row: is_square(row) and row["M"] >= 1024)


def _timed(row: Row) -> float | None:
    """TFLOP/s with the split."""
    return row.get("split_first", row.get("first"))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.6, share_y=False, share_x=False)
    over_sizes, over_size, over_speed = axes[:, 0]
    for name in IMPLEMENTATIONS:
        selected = [{**row, "speed": speed} for row in squares(rows, name) if (speed := _timed(row))]
        style = (_NAMES.get(name) or look(name)).line()
        over_n(over_sizes, {name: selected}, "speed", **style)
        over_n(over_size, {name: selected}, "mred", **style)
        points = [(row["speed"], row["mred"]) for row in selected if row.get("mred")]
        if points:
            over_speed.plot(*zip(*points, strict=True), **style | {"linestyle": "none"})
    for axis in (over_sizes, over_size):
        slanted_sizes(axis, sorted({row["M"] for row in rows}))
        axis.set_xlabel("$n$")
    plain_ticks(over_sizes)
    plain_ticks(over_speed, "x")
    over_sizes.set_ylabel("TFLOP/s")
    over_speed.set_xlabel("TFLOP/s")
    for axis in (over_size, over_speed):
        axis.set(yscale="log", ylabel="MRED")
    plotting.panel_titles(axes, ["speed", "error", "error over speed"])
    plotting.legend_below(figure, over_sizes, 2, f"$n×n×n$, {one_gpu()}; median of ten launches")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    pairs = {"FAST_16F over LE-GEMM": ("fp16", "legemm mma"), "LE-GEMM over 64F": ("legemm mma", "dgemm")}
    for variant, (faster, slower) in pairs.items():
        speeds = [
            {row["M"]: speed for row in squares(rows, name) if (speed := _timed(row))} for name in (faster, slower)
        ]
        if shared := sorted(speeds[0].keys() & speeds[1].keys()):
            yield Measure(
                "speed_between_fast16f_and_64f", min(speeds[0][n] / speeds[1][n] for n in shared), "", variant
            )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, kind="G")
