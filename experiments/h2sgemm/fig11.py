"""H2SGEMM, figure 11: speed over m = n, over k, and over all three sides."""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._look import look, over_n, third_of_fp16
from ..speed._record import RULES, evaluate, products, provenance

PAPER = "H2SGEMM: Emulating FP32 GEMM on Ascend NPUs using FP16 Units, section 4.2, figure 11"
FIXED = 2816
IMPLEMENTATIONS = ("sgemm", "h2sgemm term-wise", "h2sgemm element-wise", "staged")
PANELS = {"a": "m = n, k = 2816", "b": "k, m = n = 2816", "c": "m = n = k"}
CAPTION = f"""TFLOP/s, first launches, (a) over m = n with k = {FIXED} = 64 · 44, (b) over k with m = n = {FIXED}, (c)
over all three; dotted: a third of the library's fp16 product. H2SGEMM runs on mma.sync, large products with words that
were split in memory before; staged, three products on wgmma, is shown beside it.
{provenance("h2sgemm/fig11", *IMPLEMENTATIONS)}"""
ASSUMPTIONS = [
    *RULES,
    """The paper does not print the sides; k = 64 · 44 in (a) is the value of figure 9, and m and n in (b) are
    equal.""",
    """The paper compares with SGEMM on another chip, an Ascend 910B3 with fp32 units; here SGEMM runs on the same
    GPU.""",
]


def _panels(row: Row) -> list[str]:
    M, N, K = row["M"], row["N"], row["K"]
    return [name for name, here in (("a", M == N and K == FIXED), ("b", M == N == FIXED), ("c", M == N == K)) if here]


def cells() -> list[Row]:
    return products((*IMPLEMENTATIONS, "fp16"), lambda row: row["M"] <= 8192 and _panels(row))


def _line(rows: list[Row], panel: str, implementation: str) -> list[Row]:
    selected = [row for row in rows if row["contender"] == implementation and panel in _panels(row) and "first" in row]
    return sorted(selected, key=lambda row: int(row["K" if panel == "b" else "M"]))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.2, share_x=False)
    for axis, panel in zip(axes[:, 0], PANELS, strict=True):
        side = "K" if panel == "b" else "M"
        over_n(axis, {name: _line(rows, panel, name) for name in IMPLEMENTATIONS}, "first", side)
        third_of_fp16(axis, _line(rows, panel, "fp16"), side=side)
        axis.set(xlabel={"a": "$m = n$", "b": "$k$", "c": "$m = n = k$"}[panel], ylabel="TFLOP/s")
    axes[0, 0].set_ylim(0)  # all panels share it
    plotting.panel_titles(axes, list(PANELS.values()))
    plotting.legend_below(figure, axes, 2, "H200; median of ten launches")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for panel in PANELS:
        over = [row["first / sgemm"] for row in _line(rows, panel, "h2sgemm term-wise") if "first / sgemm" in row]
        if over:
            yield Measure("surpasses_sgemm", over[-1], "H200", f"({panel}) {PANELS[panel]}")


def finding(rows: list[Row]) -> str:
    last = {look(name).label: row for name in IMPLEMENTATIONS[1:] for row in _line(rows, "c", name)[-1:]}
    shares = {f"{name}, n = {row['M']}:": row.get("first / three products") for name, row in last.items()}
    ends = _line(rows, "a", "h2sgemm term-wise")[:: max(len(_line(rows, "a", "h2sgemm term-wise")) - 1, 1)]
    return paragraph(
        ("the speeds as shares of three products of the library (published: 77 %) are", shares, ".3g%"),
        (
            "term-wise H2SGEMM divided by SGEMM, k = 2816, at the smallest and the largest m = n is",
            {f"{row['M']}:": row.get("first / sgemm") for row in ends},
            ".3g×",
        ),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
