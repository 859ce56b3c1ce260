"""DGEMM-TC, Table 1: DP mode, CR mode, DGEMM-DP-CR and DGEMM at n = 10240, as ratios to cublasDgemm."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _record, _speed
from ._speed import ASSUMPTIONS, IN_LEGEND, LOOK, PHI, evaluate, speeds

PAPER = f"{_record.PAPER}, section 5.2, Table 1"
N = 10240
CAPTION = f"""Speed over cublasDgemm of the same GPU, n = {N}, for three ranges of the inputs: published for a Titan RTX
and a V100, and measured on an H200. The numbers are GFLOP/s. (a) DP mode, (b) CR mode, (c) DGEMM-DP-CR, the scheme with
fp64 slices and cublasDgemm. {_record.measured_on()}"""
TABLE = {
    "Titan RTX": {
        "DGEMM": (534.1,) * 3,
        "DP": (972.4, 823.0, 713.1),
        "CR": (220.4, 193.5, 173.1),
        "CR, DGEMM": (24.75, 21.17, 21.17),
    },
    "V100": {
        "DGEMM": (6761.0,) * 3,
        "DP": (1064.0, 914.3, 790.8),
        "CR": (255.0, 222.5, 198.5),
        "CR, DGEMM": (293.1, 250.7, 250.7),
    },
}
"""GFLOP/s for φ = 0.1, 1 and 2."""
MODES = ("DP", "CR", "CR, DGEMM")


def cells() -> list[Row]:
    return _speed.cells((*MODES, "DGEMM"), N)


def _here(rows: list[Row], name: str) -> tuple[float, ...]:
    """GFLOP/s by φ."""
    return tuple(speeds(rows, name, phi)[N] for phi in PHI)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=5.6)
    looks = {"Titan RTX": (plotting.ORANGE, "////"), "V100": (plotting.SKY, "...."), "H200": (plotting.VERMILION, "")}
    for axis, mode in zip(axes[:, 0], MODES, strict=True):
        for number, (gpu, (color, hatch)) in enumerate(looks.items()):
            speed, base = (TABLE[gpu][x] if gpu in TABLE else _here(rows, x) for x in (mode, "DGEMM"))
            places = np.arange(len(PHI)) + 0.3 * (number - 1)
            heights = np.array(speed) / base
            label = f"{gpu}, {'published' if gpu in TABLE else 'measured'}"
            axis.bar(places, heights, 0.28, color=color, hatch=hatch, edgecolor="white", linewidth=0, label=label)
            for x, height, value in zip(places, heights, speed, strict=True):
                text = f"{value:.3g}" if value < 1e3 else f"{value:.0f}"
                style = {"textcoords": "offset points", "ha": "center", "fontsize": 6.5}
                axis.annotate(text, (x, height), xytext=(0, 2), **style)
        axis.set(yscale="log", ylabel="speed over cublasDgemm")
        axis.axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8, label="cublasDgemm of the same GPU")
        axis.set_xticks(range(len(PHI)), [f"$\\varphi$ = {phi:g}" for phi in PHI])
        axis.grid(False, axis="x")
        axis.margins(y=0.15)
    plotting.panel_titles(axes, ["DP mode", "CR mode", "DGEMM-DP-CR"])
    plotting.legend_below(figure, axes, 2, title=f"$n$ = {N}; numbers above the bars: GFLOP/s\nH200: {IN_LEGEND}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for mode in MODES:
        for phi, speed in zip(PHI, _here(rows, mode), strict=True):
            yield Measure("table1", speed, variant=f"{LOOK[mode].label}, φ = {phi:g}")


def finding(rows: list[Row]) -> str:
    shown = {LOOK[name].label: ", ".join(f"{x:.4g}" for x in _here(rows, name)) for name in ("DGEMM", *MODES)}
    return paragraph((f"the speeds in GFLOP/s at n = {N} for φ = 0.1, 1 and 2 on the H200 are", shown))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
