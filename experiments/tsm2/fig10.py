"""TSM2, figure 10: inner dimensions smaller than the number of rows."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._rows import Row
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, evaluate, provenance
from ._speed import OTHER_GPU, SHARE, curves, findings, one_run, points, ranges
from ._speed import PAPER as _PAPER

PAPER = f"{_PAPER}, section 4.5, figure 10"
CAPTION = f"""15360×k times k×16, stored by columns, over k from 15360 down to an eighth of it: (a) milliseconds, fp64,
(b) share of a copy's bandwidth, fp64, and (c) fp32. The kernel for Hopper is part of this project.
{provenance("tsm2/fig10")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    OTHER_GPU,
    'For "smaller than m by some small integer factor" the page has k = 15360 divided by 1, 2, 3, 4, 5, 6 and 8.',
]
cells = cells_of("tsm2/fig10")


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=5.2, share_y=False)
    panels = ("fp64", "seconds", 1e3, "time, ms"), ("fp64", "share", 100, SHARE), ("fp32", "share", 100, SHARE)
    for axis, (fmt, what, times, label) in zip(axes[:, 0], panels, strict=True):
        curves(axis, rows, shapes.MAIN, fmt, what, times, by="K", unit=1024)
        axis.set(ylim=0, ylabel=label)
    plotting.panel_titles(axes, ["time, fp64", "bandwidth, fp64", "bandwidth, fp32"])
    sizes = sorted({row["K"] for row in rows})
    axes[-1, 0].set_xticks(
        [k / 1024 for k in sizes], [f"{k / 1024:.3g}" if i % 2 == 0 else "" for i, k in enumerate(sizes)]
    )
    axes[-1, 0].set_xlabel("$k$ / 1024")
    plotting.legend_below(figure, axes, 2, f"15360×k times k×16, by columns\n{one_run()}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for what, power, reading in (("share", 0, "bandwidth"), ("seconds", 1, "time over k")):
        ratios = []
        for fmt in shapes.FORMATS:
            by_k = points(rows, "V3", fmt, what, by="K")
            whole = by_k.pop(shapes.INNER, None)
            ratios += [x / whole * (shapes.INNER / k) ** power for k, x in by_k.items() if whole]
        yield from ranges("uneven", ratios, reading)


def finding(rows: list[Row]) -> str:
    shares = {
        f"{LOOKS[name].label}, {fmt}": points(rows, name, fmt, "share", by="K").values()
        for fmt in shapes.FORMATS
        for name in shapes.MAIN
    }
    return findings(rows, shapes.INNER, ("the shares of the bandwidth of a copy are", shares, ".3g%"))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
