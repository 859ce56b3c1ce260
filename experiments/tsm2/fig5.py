"""TSM2, figures 5, 7b and 9: the share of the memory's bandwidth that TSM2 and cuBLAS use."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._rows import Row
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, evaluate, line, provenance
from ._speed import OTHER_GPU, PANELS, SHARE, difference, findings, grid, one_run, points, ranges
from ._speed import PAPER as _PAPER

PAPER = f"{_PAPER}, sections 2.2, 4.3 and 4.4, figures 5, 7b and 9"
CAPTION = f"""m×m times m×n: bytes of A, B and the result per second, as a share of the copy bandwidth in the
same run, over m; n = 2, 4, 8 and 16. The kernel for Hopper is part of this project. {provenance("tsm2/fig5")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    OTHER_GPU,
    """The paper's shares refer to the bandwidth of the data sheet and to the loads counted by a profiler; the shares
    here refer to the bandwidth of a copy and to the least possible bytes. Improvements are differences of shares in
    percentage points. BLASX, the paper's third library, was not run.""",
    "Shares above 100 % are possible, because reads alone can be faster than a copy, which writes as much as it reads.",
]
GOAL = 90
"""Share of the copy bandwidth in percent."""
_BY_ROWS = {shapes.BASE: "+", "hopper": "x"}
cells = cells_of("tsm2/fig5", lambda row: row["contender"] in shapes.MAIN)


def draw(rows: list[Row]) -> Any:
    figure, axes = grid(rows, shapes.MAIN, "share", 100, SHARE)
    for axis, (fmt, n) in zip(axes.ravel(), PANELS, strict=True):
        for name, mark in _BY_ROWS.items():
            shares = points(rows, name, fmt, "share", 100, layout="rows", N=n)
            label = f"{LOOKS[name].label}, A and B by rows"
            axis.plot([m / 1024 for m in shares], shares.values(), mark, color=LOOKS[name].color, label=label, zorder=4)
        axis.axhline(
            GOAL, color=plotting.GREY, linestyle=":", linewidth=1, label=f"{GOAL} %, goal of the kernel for Hopper"
        )
        axis.set_ylim(0, 115)
    plotting.legend_below(figure, axes, 2, f"m×m times m×n; {one_run()}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for fmt in shapes.FORMATS:
        more = [x for n in shapes.COLUMNS for x in difference(rows, "V3", shapes.BASE, fmt, N=n)]
        for claim in ("tsm2_bandwidth", "abstract_bandwidth"):
            yield from ranges(claim, more, fmt)
        used = [x for n in shapes.COLUMNS for x in points(rows, "V3", fmt, "share", 100, N=n).values()]
        yield from ranges("v100_bandwidth", used, fmt)
        for layout in ("columns", "rows"):
            selected = line(rows, "hopper", data=f"{fmt} {layout}", M=shapes.LARGE)
            if selected:
                least = 100 * min(row["share"] for row in selected)
                yield Measure("hopper_bandwidth", least, variant=f"{fmt} by {layout}")
    for n in (shapes.COLUMNS[0], shapes.COLUMNS[-1]):
        used = [x for fmt in shapes.FORMATS for x in points(rows, shapes.BASE, fmt, "share", 100, N=n).values()]
        yield from ranges("cublas_bandwidth", used, f"n = {n}")


def finding(rows: list[Row]) -> str:
    speeds = {
        f"{LOOKS[name].label}, {fmt}": [
            x for n in shapes.COLUMNS for x in points(rows, name, fmt, "bandwidth", 1e-3, N=n, M=shapes.LARGE).values()
        ]
        for fmt in shapes.FORMATS
        for name in shapes.MAIN
    }
    copy = max((row["bandwidth"] / row["share"] for row in rows if row.get("share")), default=0.0)
    return findings(
        rows,
        shapes.LARGE,
        (f"the bandwidths in TB/s at m = {shapes.LARGE} are", speeds),
        ("the bandwidth of the copy is {} TB/s", copy / 1e3 or None),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
