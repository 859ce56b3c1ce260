"""ISM2, figure 12: rows of a thread (tcf), both optimisations, ten million rows."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._shapes import RULES, TALL, cells_of, evaluate, over_powers, provenance
from ._speed import GAIN, OTHER_GPU, SHARE, one_run, points
from ._speed import PAPER as _PAPER

PAPER = f"{_PAPER}, sections 5.2 and 6, figure 12"
CAPTION = f"""10^7×16 times 16×16, stored by columns, over tcf: m / tcf threads, each with tcf rows. (a)
Speed-up over cuBLAS, (b) share of the copy bandwidth. {provenance("tsm2/fig12")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    OTHER_GPU,
    """The paper states n = 16 and m = 10^7; k = 16 is assumed, as in its figure 13. A decline is significant if a
    product takes more than 1.25 times the shortest time.""",
]
DECLINE = 1.25
"""Time relative to the shortest one from which a decline is significant."""
PUBLISHED = {"fp32": 8, "fp64": 4}
"""Chosen by the paper for 10^7 rows."""
_LOOK = {
    (1, "fp32"): Series("optimisation 1, fp32", plotting.ORANGE, "P"),
    (2, "fp32"): Series("optimisation 2, fp32", plotting.PURPLE, "X"),
    (1, "fp64"): Series("optimisation 1, fp64", plotting.ORANGE, "P", ":", filled=False),
    (2, "fp64"): Series("optimisation 2, fp64", plotting.PURPLE, "X", ":", filled=False),
}
cells = cells_of("tsm2/fig12")


def _by_factor(rows: list[Row], form: int, fmt: str, what: str, times: float = 1) -> dict[int, float]:
    """A column by tcf."""
    by_factor = {factor: points(rows, shapes.tcf(form, factor), fmt, what, times) for factor in shapes.TCF}
    return {factor: x for factor, by_m in by_factor.items() for x in by_m.values()}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.0, share_y=False)
    for axis, (what, times, label) in zip(axes[:, 0], (("speedup", 1, GAIN), ("share", 100, SHARE)), strict=True):
        for (form, fmt), look in _LOOK.items():
            by_factor = _by_factor(rows, form, fmt, what, times)
            if by_factor:
                axis.plot(list(by_factor), list(by_factor.values()), **look.line())
        axis.set(ylim=0, ylabel=label)
    axes[0, 0].axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8, label="as fast as cuBLAS")
    over_powers(axes, shapes.TCF, "tcf")
    plotting.panel_titles(axes, ["speed-up", "bandwidth"])
    plotting.legend_below(figure, axes, 2, f"$10^7$×16 times 16×16, by columns\n{one_run()}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for (form, fmt), look in _LOOK.items():
        took = _by_factor(rows, form, fmt, "seconds")
        least = min(took.values(), default=0)
        late = [factor for factor, seconds in took.items() if seconds > DECLINE * least and factor > 1]
        if PUBLISHED[fmt] in took:
            yield Measure("tcf_published", took[PUBLISHED[fmt]] / least, variant=look.label)
        if late:
            yield Measure("tcf_decline", min(late), variant=look.label)


def finding(rows: list[Row]) -> str:
    best = {}
    for (form, fmt), look in _LOOK.items():
        took = _by_factor(rows, form, fmt, "seconds")
        if 1 in took:
            fastest = min(took, key=took.__getitem__)
            best[f"{look.label}:"] = f"tcf = {fastest}, {took[1] / took[fastest]:.3g}×"
    return paragraph(("the fastest tcf and its speed-up over one row per thread are", best))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
