"""Speed in LE-GEMM's three shapes on one GPU, with the split and without it, against SGEMM."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ._look import look, over_n, plain_ticks, third_of_fp16
from ._record import RULES, RUNS, evaluate, one_gpu, products, provenance, shape_name

PAPER = "Speed on one GPU, measured here: yardsticks and goals of this project"
SHAPES = ("n×n×n", "n×4n×n", "n×n×4n")
IMPLEMENTATIONS = ("staged", groups.FRONTIER[0])
CAPTION = f"""Effective FP32 throughput over n for products M×N×K of three shapes, operands uniform in [-1, 1], first
launches: operands split beforehand (solid), and by every call (dotted).
{provenance("speed/shapes", *IMPLEMENTATIONS)}"""
ASSUMPTIONS = [*RULES, RUNS]
GOAL = 512
"""Goal: from this n on no scheme is slower than SGEMM."""


def cells() -> list[Row]:
    return products((*IMPLEMENTATIONS, "sgemm", "fp16"), lambda row: row["fmt"] == "fp32" and shape_name(row))


def _line(rows: list[Row], implementation: str, shape: str) -> list[Row]:
    selected = [
        row for row in rows if row["contender"] == implementation and shape_name(row) == shape and "first" in row
    ]
    return sorted(selected, key=lambda row: int(row["M"]))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.2)
    for axis, shape in zip(axes[:, 0], SHAPES, strict=True):
        over_n(axis, {name: _line(rows, name, shape) for name in ("sgemm", *IMPLEMENTATIONS)}, "first")
        for name in IMPLEMENTATIONS:
            whole = [row for row in _line(rows, name, shape) if "split_first" in row]
            style = look(name).line(linestyle=":", label=f"{look(name).label}, with the split", markerfacecolor="white")
            axis.plot([row["M"] for row in whole], [row["split_first"] for row in whole], **style)
        third_of_fp16(axis, _line(rows, "fp16", shape))
        axis.set_ylabel("effective throughput, TFLOP/s")
    for axis in axes[:, 0]:
        plain_ticks(axis)
    axes[-1, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, [f"{shape} ($M$×$N$×$K$)".replace("n", "$n$") for shape in SHAPES])
    plotting.legend_below(figure, axes, 2, f"{one_gpu()}, first launches, uniform in [-1, 1]")
    return figure


def _over(rows: list[Row], implementation: str, shape: str, what: str) -> dict[int, float]:
    """A speed over SGEMM's first launches, by n."""
    return {
        int(row["M"]): row[what] / row["first"] * row["first / sgemm"]
        for row in _line(rows, implementation, shape)
        if what in row and "first / sgemm" in row
    }


def measures(rows: list[Row]) -> Iterator[Measure]:
    for name in IMPLEMENTATIONS:
        for what, words in (("first", "split beforehand"), ("split_first", "with the split")):
            over = [x for shape in SHAPES for n, x in _over(rows, name, shape, what).items() if n >= GOAL]
            if over:
                yield Measure("never_slower_in_shapes", min(over), variant=f"{look(name).label}, {words}")


def finding(rows: list[Row]) -> str:
    loss, slower = {}, []
    for name in IMPLEMENTATIONS:
        for shape in SHAPES:
            selected = [row for row in _line(rows, name, shape) if "split_first" in row]
            if selected:
                last = selected[-1]
                loss[f"{look(name).label}, {shape}, n = {last['M']}:"] = 1 - last["split_first"] / last["first"]
            slower += [
                f"{look(name).label}, {shape}, n = {n} ({x:.3g}×)"
                for n, x in _over(rows, name, shape, "split_first").items()
                if x < 1
            ]
    return paragraph(("cost of the split", loss, ".2g%"), ("slower than SGEMM with the split", "; ".join(slower)))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
