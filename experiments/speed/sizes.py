"""Speed over n on one GPU: three products of words against SGEMM and against the library's fp16 product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ._look import legend, look, over_n
from ._record import RULES, at, evaluate, is_square, products, squares, told

__all__ = ["evaluate"]

PAPER = "Speed on one GPU, measured here: yardsticks and goals of our own"
TITLE = "speed over n"
KIND = "G"
EXPLAINS = ("speed/sizes",)
WHO = ("sgemm", "staged", groups.FRONTIER[0], *groups.STRASSEN)
CAPTION = f"""Products n×n×n, operands uniform in [-1, 1]. (a) First launches after a pause, (b) sustained, (c) first
launches with the split, over three products of the library with nothing added (its fp16 product by 3, its operands in
fp16 already). {told("speed/sizes", *WHO)}"""
ASSUMPTIONS = RULES
FIRST = {2048: 237.0, 4096: 263.0}
"""Goals for the first launches of the staged scheme, TFLOP/s."""


def cells(size: str) -> list[dict[str, Any]]:
    return products((*WHO, "fp16"), lambda row: row["fmt"] == "fp32" and is_square(row))


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=2.9, share_y=False)
    panels = ("first", "sustained")
    for axis, what in zip(axes[0], panels, strict=False):
        lines = {name: squares(rows, name) for name in WHO}
        lines["fp16 / 3"] = [{**row, what: row[what] / 3} for row in squares(rows, "fp16") if what in row]
        over_n(axis, {name: line for name, line in lines.items() if name != "fp16 / 3"}, what)
        points = [(row["M"], row[what]) for row in lines["fp16 / 3"]]
        if points:
            axis.plot(*zip(*points, strict=True), **look("fp16").line(label="fp16 (cuBLAS) / 3"))
        axis.set_ylabel("TFLOP/s")
        axis.set_ylim(0)
    last = {name: _with_split(rows, name) for name in WHO if name != "sgemm"}
    over_n(axes[0, 2], last, "ratio")
    axes[0, 2].axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
    axes[0, 2].set_ylabel("over three fp16 products")
    axes[0, 2].set_ylim(0)
    for axis in axes[0]:
        axis.set_xlabel("$n$")
    plotting.panel_titles(axes, ["first launches", "sustained", "first launches, with the split"])
    legend(figure, axes, 3)
    return figure


def _with_split(rows: list[dict[str, Any]], who: str) -> list[dict[str, Any]]:
    """The rows with "ratio": first launches with the split over three products of the library."""
    result = []
    for row in squares(rows, who):
        plain = at(rows, "fp16", row["M"], row["N"], row["K"])
        if plain is not None and "first" in plain and "split_first" in row:
            result.append({**row, "ratio": 3 * row["split_first"] / plain["first"]})
    return result


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for name in WHO[1:]:
        over = {r["M"]: r["first / sgemm"] for r in squares(rows, name) if "first / sgemm" in r}
        yield share(
            f"{look(name).label}: never slower than SGEMM",
            "",
            [x >= 1 for x in over.values()],
            ", ".join(f"{x:.3g}× at {n}" for n, x in over.items()),
        )
    selected = {row["M"]: row["first"] for row in squares(rows, "staged") if "first" in row}
    for n, least in FIRST.items():
        reached = [selected[n] >= least] if n in selected else []
        text = f"{selected[n]:.4g} TFLOP/s" if n in selected else ""
        yield share(f"staged: {least:g} TFLOP/s or more at n = {n}, first launches", "", reached, text)
    kept = [
        row["split_sustained"] / row["sustained"]
        for row in squares(rows, "staged")
        if row["M"] == groups.HEAD and {"split_sustained", "sustained"} <= set(row)
    ]
    yield share(
        f"staged: with the split 0.97 of the speed or more, n = {groups.HEAD}, sustained",
        "",
        [x >= 0.97 for x in kept],
        f"{kept[0]:.3g}" if kept else "",
    )
    better = [
        row["relative_l2"] <= base["relative_l2"]
        for row in squares(rows, "staged")
        if (base := at(rows, "sgemm", row["M"], row["N"], row["K"])) is not None
    ]
    yield share("staged: no less accurate than SGEMM", "", better, "")


def finding(rows: list[dict[str, Any]]) -> str:
    selected = [row for row in squares(rows, "staged") if {"first", "sustained", "split_first"} <= set(row)]
    ends = sorted(selected, key=lambda row: row["first"])[:: max(len(selected) - 1, 1)]
    three = {f"n = {row['M']}:": row.get("sustained / three products") for row in selected}
    return paragraph(
        ("staged, first launches, slowest and fastest, TFLOP/s", {f"n = {row['M']}:": row["first"] for row in ends}),
        ("cost of the split", {f"n = {row['M']}:": 1 - row["split_first"] / row["first"] for row in selected}, ".2g%"),
        ("sustained, without the split, over three products of the library", three, ".3g×"),
    )
