"""DGEMM-TC, figure 9: speed of SGEMM-TC in SP mode beside SGEMM and DGEMM-TC."""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._look import plain_ticks
from . import _record, _speed
from ._speed import ASSUMPTIONS, IN_LEGEND, LOOK, PHI, draw_line, evaluate, look, ratios, speeds

PAPER = f"{_record.PAPER}, section 5.3, figure 9"
CAPTION = f"""Speed, 2n³ over the time of a call: SGEMM-TC in SP mode for three ranges of the inputs, cublasSgemm,
and DGEMM-TC in DP mode on inputs of φ = 0.1 in fp64. {_record.measured_on()}"""


def cells() -> list[Row]:
    return _speed.cells(("SGEMM", "SP", "DP"))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(height=3.3)
    for phi in PHI:
        draw_line(axes[0, 0], speeds(rows, "SP", phi), look(phi, "SGEMM-TC"))
    draw_line(axes[0, 0], speeds(rows, "SGEMM", PHI[0]), LOOK["SGEMM"])
    dp = Series("DGEMM-TC, $\\varphi$ = 0.1", plotting.GREY, "o", ":")
    draw_line(axes[0, 0], speeds(rows, "DP", PHI[0]), dp)
    plain_ticks(axes[0, 0])
    axes[0, 0].set_ylabel("GFLOP/s (2$n^3$ / time)")
    plotting.legend_below(figure, axes, 2, title=f"one H200, {IN_LEGEND}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for phi in PHI:
        yield Measure("sgemm_tc_useless", max(ratios(rows, "SP", "SGEMM", phi)), "over SGEMM", f"φ = {phi:g}")
        yield Measure("sgemm_tc_useless", min(ratios(rows, "SP", "DP", phi)), "over DGEMM-TC", f"φ = {phi:g}")
        double, single = (speeds(rows, mode, phi, "slices A") for mode in ("DP", "SP"))
        fewer = [count / single[n] for n, count in double.items() if n in single]
        yield Measure("sp_fewer_slices", min(fewer), variant=f"φ = {phi:g}")


def finding(rows: list[Row]) -> str:
    n = max(row["n"] for row in rows)
    last = {LOOK[name].label: speeds(rows, name, PHI[0])[n] for name in ("SGEMM", "SP", "DP")}
    return paragraph((f"the speeds in GFLOP/s at n = {n}, φ = 0.1 are", last, ".4g"))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
