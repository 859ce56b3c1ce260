"""Speed over n on one GPU: three products of words against SGEMM and against the library's fp16 product."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ._look import look, over_n, third_of_fp16
from ._record import RULES, RUNS, evaluate, is_square, one_gpu, products, provenance, squares

PAPER = "Speed on one GPU, measured here: yardsticks and goals of this project"
IMPLEMENTATIONS = ("sgemm", "staged", groups.FRONTIER[0], *groups.STRASSEN)
CAPTION = f"""Products n×n×n, operands uniform in [-1, 1]. (a) First launches after a pause, (b) sustained, (c) first
launches with the split, relative to three products of the library (three times the time of its fp16 product, operands
already in fp16). {provenance("speed/sizes", *IMPLEMENTATIONS)}"""
ASSUMPTIONS = [*RULES, RUNS]
FIRST = {2048: 237.0, 4096: 263.0}
"""Goals for the first launches of the staged scheme, TFLOP/s."""
KEPT = 0.97
"""Goal for the sustained speed with the split over that without it."""


def cells() -> list[Row]:
    return products((*IMPLEMENTATIONS, "fp16"), lambda row: row["fmt"] == "fp32" and is_square(row))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.2, share_y=False)
    for axis, what in zip(axes[:, 0], ("first", "sustained"), strict=False):
        over_n(axis, {name: squares(rows, name) for name in IMPLEMENTATIONS}, what)
        third_of_fp16(axis, squares(rows, "fp16"), what)
        axis.set_ylabel("effective throughput, TFLOP/s")
    over_n(axes[2, 0], {name: _with_split(rows, name) for name in IMPLEMENTATIONS if name != "sgemm"}, "ratio")
    axes[2, 0].axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8, label="three fp16 products (cuBLAS)")
    axes[2, 0].set_ylabel("speed / three fp16 products")
    for axis in axes[:, 0]:
        axis.set_ylim(0)
    axes[-1, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, ["first launches", "sustained", "first launches, with the split"])
    plotting.legend_below(figure, axes, 2, f"{one_gpu()}, n×n×n, uniform in [-1, 1]")
    return figure


def _with_split(rows: list[Row], implementation: str) -> list[Row]:
    """The rows with "ratio": first launches with the split over three products of the library."""
    return [
        {**row, "ratio": row["split_first"] / row["first"] * row["first / three products"]}
        for row in squares(rows, implementation)
        if {"split_first", "first", "first / three products"} <= set(row)
    ]


def measures(rows: list[Row]) -> Iterator[Measure]:
    for name in IMPLEMENTATIONS[1:]:
        over = {r["M"]: r["first / sgemm"] for r in squares(rows, name) if "first / sgemm" in r}
        if over:
            sizes = f"{len(over)} sizes from n = {min(over)} to {max(over)}"
            yield Measure("never_slower_over_n", min(over.values()), variant=f"{look(name).label}, {sizes}")
    for row in squares(rows, "staged"):
        if row["M"] in FIRST and "first" in row:
            goal = FIRST[row["M"]]
            yield Measure("sizes_goals", row["first"] / goal, variant=f"{goal:g} TFLOP/s at n = {row['M']}")
        if row["M"] == groups.HEAD and {"split_sustained", "sustained"} <= set(row):
            kept = row["split_sustained"] / row["sustained"]
            variant = f"{KEPT:g} of the sustained speed with the split, n = {groups.HEAD}"
            yield Measure("sizes_goals", kept / KEPT, variant=variant)


def finding(rows: list[Row]) -> str:
    first = [row for row in squares(rows, "staged") if "first" in row]
    ends = sorted(first, key=lambda row: row["first"])[:: max(len(first) - 1, 1)]
    selected = [row for row in first if "split_first" in row]
    three = {f"n = {row['M']}:": row.get("sustained / three products") for row in selected}
    return paragraph(
        ("staged, first launches, slowest and fastest, TFLOP/s", {f"n = {row['M']}:": row["first"] for row in ends}),
        ("cost of the split", {f"n = {row['M']}:": 1 - row["split_first"] / row["first"] for row in selected}, ".2g%"),
        ("sustained, without the split, over three products of the library", three, ".3g×"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
