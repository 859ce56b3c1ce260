"""DGEMM-TC, figures 5a and 7a, and the right panels of 5b and 7b: the parts of the time, and the speed of GEMM."""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _record, _speed
from ._speed import ASSUMPTIONS, PHI, evaluate, look, speeds

PAPER = f"{_record.PAPER}, section 5.2, figures 5 and 7"
CAPTION = f"""GPU time of one call by its parts. (a) DP mode and (b) CR mode of the published algorithm: share of
SplitA (with Algorithm 3 in DP mode), SplitB, the products and the sum, which is NearSum in CR mode; three bars for each
n, φ = 0.1, 1 and 2 from left to right. (c) Speed of the calls of GEMM, operations over their time.
{_record.measured_on()}"""
PARTS = {
    "split A": (plotting.GREEN, "////"),
    "split B": (plotting.VERMILION, "...."),
    "products": (plotting.BLUE, ""),
    "sums": (plotting.ORANGE, "\\\\\\\\"),
}
"""Colour and hatch of each part."""
MODES = {"DP": "DP mode", "CR": "CR mode"}


def cells() -> list[Row]:
    return _speed.cells(MODES)


def _share(row: Row, part: str) -> float:
    return float(row[part] / sum(row[name] for name in PARTS))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.4, share_y=False)
    lengths = sorted({row["n"] for row in rows})
    for axis, mode in zip(axes[:, 0], MODES, strict=False):
        for row in (row for row in rows if row["implementation"] == mode):
            foot, place = 0.0, lengths.index(row["n"]) + 0.29 * (PHI.index(row["phi"]) - 1)
            for part, (color, hatch) in PARTS.items():
                height = 100 * _share(row, part)
                axis.bar(place, height, 0.26, bottom=foot, color=color, hatch=hatch, edgecolor="white", linewidth=0)
                foot += height
        axis.set_xticks(range(len(lengths)), [str(n) for n in lengths])
        axis.grid(False, axis="x")
        axis.set(ylabel="share of the time, %", ylim=(0, 100))
    for part, (color, hatch) in PARTS.items():
        axes[0, 0].bar([0], [0], color=color, hatch=hatch, edgecolor="white", linewidth=0, label=part)
    # beside one another: the speeds of all six nearly coincide
    for number, (mode, phi) in enumerate((mode, phi) for mode in MODES for phi in PHI):
        points = {n: x / 1e3 for n, x in speeds(rows, mode, phi, "GEMM GFLOP/s").items()}
        places = [lengths.index(n) + 0.13 * (number - 2.5) for n in points]
        style = look(phi, MODES[mode], filled=mode == "DP").line(linestyle="none")
        axes[2, 0].plot(places, list(points.values()), **style)
    axes[2, 0].set(xlabel="$n$", ylabel="TFLOP/s of GEMM", ylim=(0, None))
    titles = [f"{name}, bars of each $n$: $\\varphi$ = 0.1, 1, 2" for name in MODES.values()]
    plotting.panel_titles(axes, [*titles, "calls of GEMM"])
    plotting.legend_below(figure, axes, 2, title="one H200, one execution")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for mode, name in MODES.items():
        of = [row for row in rows if row["implementation"] == mode]
        large = [row for row in of if row["n"] >= 5120]  # several blocks: SplitB is repeated
        yield Measure("products_dominate", min(_share(row, "products") for row in of), variant=name)
        yield Measure("split_b_costlier", min(row["split B"] / row["split A"] for row in large), variant=name)
        yield Measure("gemm_speed", max(row["GEMM GFLOP/s"] for row in of) / 1e3, variant=name)
    shares = {(r["implementation"], r["n"], r["phi"]): _share(r, "sums") for r in rows}
    pairs = [(share, shares["DP", n, phi]) for (mode, n, phi), share in shares.items() if mode == "CR"]
    yield Measure("near_sum_costlier", min(cr / dp for cr, dp in pairs))
    stated = [row for row in rows if (row["implementation"], row["n"], row["phi"]) == ("DP", 7168, 0.1)]
    for row in stated:
        yield Measure("share_of_products", 100 * _share(row, "products"))


def finding(rows: list[Row]) -> str:
    last = max(row["n"] for row in rows)
    shares = {
        f"{MODES[row['implementation']]}, n = {row['n']}": {part: _share(row, part) for part in PARTS}
        for row in rows
        if row["n"] in (1024, last) and row["phi"] == PHI[0]
    }
    return paragraph(("the shares of the time at φ = 0.1 are", shares, ".3g%"))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
