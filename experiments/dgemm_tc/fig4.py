"""DGEMM-TC, figures 4 and 6: speed over n in DP mode and in CR mode, beside DGEMM and later schemes."""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._look import plain_ticks
from . import _record, _speed
from ._speed import ASSUMPTIONS, IN_LEGEND, LOOK, PHI, draw_line, evaluate, look, ratios, speeds

PAPER = f"{_record.PAPER}, section 5.2, figures 4 and 6"
CAPTION = f"""Speed, 2n³ over the time of a call, for three ranges of the inputs. (a) DP mode and (b) CR mode of the
published algorithm, beside cublasDgemm; in (b) also the same correctly rounded result by Ozaki scheme II with int8
residues, our method. (c) Schemes on int8 products, φ = 0.1. {_record.measured_on()}"""
MODES = {"DP": "DP mode (fig. 4)", "CR": "CR mode (fig. 6)"}
RESIDUES = "CR, int8 residues"
OTHERS = ("DP, int8 slices", "ozIMMU", "Ozaki II")


def cells() -> list[Row]:
    return _speed.cells(("DGEMM", *MODES, RESIDUES, *OTHERS))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.4)
    for axis, mode in zip(axes[:, 0], MODES, strict=False):
        for phi in PHI:
            draw_line(axis, speeds(rows, mode, phi), look(phi, "published algorithm"))
    draw_line(axes[1, 0], speeds(rows, RESIDUES, PHI[0]), LOOK[RESIDUES])
    for name in OTHERS:
        draw_line(axes[2, 0], speeds(rows, name, PHI[0]), LOOK[name])
    for axis in axes[:, 0]:
        draw_line(axis, speeds(rows, "DGEMM", PHI[0]), LOOK["DGEMM"])
        axis.set_ylabel("GFLOP/s (2$n^3$ / time)")
    plain_ticks(axes[0, 0])
    plotting.panel_titles(axes, [*MODES.values(), "later schemes, $\\varphi$ = 0.1"])
    plotting.legend_below(figure, axes, 2, title=f"one H200, {IN_LEGEND}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for phi in PHI:
        label = f"φ = {phi:g}"
        yield Measure("dp_peak", max(speeds(rows, "DP", phi).values()), variant=label)
        yield Measure("dp_beats_dgemm", max(ratios(rows, "DP", "DGEMM", phi)), variant=label)
        yield Measure("cr_slower", max(ratios(rows, "CR", "DP", phi)), variant=label)
        yield Measure("residues_faster", min(ratios(rows, RESIDUES, "CR", phi)), variant=label)
    same = [_equal(row) for row in _record.read()["speeds"] if row["implementation"] == RESIDUES]
    yield Measure("residues_equal", float(sum(not equal for equal in same)))


def _equal(row: Row) -> bool:
    """Whether residues and the published algorithm have the same digest of D."""
    place = {"n": row["n"], "phi": row["phi"], "implementation": "CR"}
    other = next(r for r in _record.read()["speeds"] if all(r[name] == value for name, value in place.items()))
    return bool(row["digest"] == other["digest"])


def finding(rows: list[Row]) -> str:
    n = max(row["n"] for row in rows)
    last = {LOOK[name].label: speeds(rows, name, PHI[0]).get(n) for name in ("DGEMM", *MODES, RESIDUES, *OTHERS)}
    return paragraph(
        (f"the speeds in GFLOP/s at n = {n}, φ = 0.1 are", {name: x for name, x in last.items() if x}, ".4g")
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
