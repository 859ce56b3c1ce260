"""ISM2, figure 11: very small inner dimensions, where TSM2 loses its bandwidth."""

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._rows import Row
from ..speed._shapes import RULES, TALL, cells_of, evaluate, over_powers, provenance
from ._speed import OTHER_GPU, SHARE, curves, findings, one_run, points, quotient, ranges
from ._speed import PAPER as _PAPER

PAPER = f"{_PAPER}, section 5.1, figure 11"
CAPTION = f"""15360×k times k×16, stored by columns, over k: above, share of a copy's bandwidth; below, microseconds of
a call; left fp64, right fp32. The kernel for Hopper is part of this project. {provenance("tsm2/fig11")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    OTHER_GPU,
    """The paper states only "very small" k; the page has the powers of two from 1 to 256. The bandwidth includes the
    result, which is the larger part of the bytes for k below 16.""",
]
_FORMATS = ("fp64", "fp32")
cells = cells_of("tsm2/fig11")


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 2, height=4.6, share_y=False)
    for column, fmt in enumerate(_FORMATS):
        for axis, (what, times) in zip(axes[:, column], (("share", 100), ("seconds", 1e6)), strict=True):
            curves(axis, rows, (shapes.BASE, "V3", "opt 1", "hopper"), fmt, what, times, by="K")
    for row, label, most in zip(axes, (SHARE, "time, µs"), (65, 45), strict=True):
        row[0].set_ylabel(label)
        for axis in row:
            axis.set_ylim(0, most)
    over_powers(axes, sorted({row["K"] for row in rows}), "$k$")
    plotting.panel_titles(axes, [f"{what}, {fmt}" for what in ("bandwidth", "time") for fmt in _FORMATS])
    plotting.legend_below(figure, axes, 2, f"15360×k times k×16, by columns\n{one_run()}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for fmt in _FORMATS:
        shares = points(rows, "V3", fmt, "share", by="K").values()
        yield from ranges("short_k", (below / above for below, above in itertools.pairwise(shares)), fmt)


def finding(rows: list[Row]) -> str:
    gains = {fmt: points(rows, "hopper", fmt, "speedup", by="K").values() for fmt in _FORMATS}
    first = {
        fmt: quotient(*(points(rows, one, fmt, "speedup", by="K") for one in ("opt 1", "V3"))).values()
        for fmt in _FORMATS
    }
    return findings(
        rows,
        shapes.INNER,
        ("the speed-ups of the kernel for Hopper over cuBLAS are", gains, ".3g×"),
        ("the speed-ups of optimisation 1 of ISM2, here with tcf = 1, over V3 are", first, ".3g×"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
