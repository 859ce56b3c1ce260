"""ISM2, figures 13 and 14: a tall matrix times a small square one, over cuBLAS, and the bandwidth."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, evaluate, line, provenance
from ._speed import GAIN, OTHER_GPU, SHARE, curves, one_run, points, quotient, ranges
from ._speed import PAPER as _PAPER

PAPER = f"{_PAPER}, section 6, figures 13 and 14"
FORMS, WIDTHS, GOAL = ("opt 1", "opt 2"), (8, 16), 85
CAPTION = f"""m×k times k×n, k = n = 8 and 16, stored by columns, over m: above, speed-up over cuBLAS; below, share
of the copy bandwidth. The kernel for Hopper is part of this project.
{provenance("tsm2/fig13")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    OTHER_GPU,
    """The speed of ISM2 is the speed of the faster of its two optimisations; fpemu selects tcf for each size.""",
    """The paper's shares refer to the bandwidth of the data sheet; the shares here refer to the bandwidth of a copy.
    The page measures n = 2 and 4 and matrices stored by rows, but does not draw them.""",
]
cells = cells_of("tsm2/fig13")


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 4, height=7.0, share_y=False)
    panels = [(fmt, n) for fmt in shapes.FORMATS for n in WIDTHS]
    for above, below, (fmt, n) in zip(axes[:2].flat, axes[2:].flat, panels, strict=True):
        curves(above, rows, (*FORMS, "V3", "hopper"), fmt, "speedup", N=n)
        curves(below, rows, (shapes.BASE, *FORMS, "V3", "hopper"), fmt, "share", 100, N=n)
        above.axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8, label="as fast as cuBLAS")
        below.axhline(GOAL, color=plotting.GREY, linestyle=":", linewidth=1, label=f"{GOAL} %, goal for $10^7$ rows")
        above.set_ylim(0)
        below.set(ylim=(0, 115), xscale="log")
    for row, label in zip(axes, (GAIN, GAIN, SHARE, SHARE), strict=True):
        row[0].set_ylabel(label)
    for axis in axes[-1]:
        axis.set_xlabel("$m$")
    plotting.panel_titles(axes, [f"{fmt}, $k$ = $n$ = {n}" for fmt, n in panels] * 2)
    plotting.legend_below(figure, axes, 2, f"m×k times k×n, by columns\n{one_run()}")
    return figure


def _best(rows: list[Row], fmt: str, n: int, what: str, times: float = 1) -> dict[int, float]:
    """The larger number of the two optimisations, by m."""
    first, second = (points(rows, form, fmt, what, times, N=n) for form in FORMS)
    return {m: max(x, second.get(m, x)) for m, x in first.items()}


def measures(rows: list[Row]) -> Iterator[Measure]:
    for fmt in shapes.FORMATS:
        gains = [x for n in WIDTHS for x in _best(rows, fmt, n, "speedup").values()]
        yield from ranges("ism2_speedup", gains, fmt)
        better = FORMS if fmt == "fp32" else FORMS[::-1]
        pairs = [quotient(*(points(rows, form, fmt, "speedup", N=n) for form in better)) for n in WIDTHS]
        text = f"{fmt}: optimisation {better[0][-1]} over {better[1][-1]}"
        yield from ranges("optimisations", [x for pair in pairs for x in pair.values()], text)
        for n in WIDTHS:
            used, base = _best(rows, fmt, n, "share", 100), points(rows, shapes.BASE, fmt, "share", 100, N=n)
            case = f"{fmt} at k = n = {n}"
            if used:
                yield Measure("ism2_bandwidth", max(used.values()), variant=case)
            more = [x - base[m] for m, x in used.items() if m in base]
            yield from ranges("ism2_over_cublas", more, case)
            if more:
                yield Measure("abstract_ism2_bandwidth", max(more), variant=case)
        for layout in ("columns", "rows"):
            if tall := line(rows, "hopper", data=f"{fmt} {layout}", M=shapes.ROWS[0]):
                least = 100 * min(row["share"] for row in tall)
                yield Measure("hopper_tall_bandwidth", least, variant=f"{fmt} by {layout}")
        if tall := line(rows, "hopper", data=f"{fmt} columns"):
            yield Measure("hopper_tall_speedup", min(row["speedup"] for row in tall), variant=fmt)


def finding(rows: list[Row]) -> str:
    speeds = {
        f"{LOOKS[name].label}, {fmt}": [
            x
            for n in shapes.COLUMNS
            for x in points(rows, name, fmt, "bandwidth", 1e-3, N=n, M=shapes.ROWS[0]).values()
        ]
        for fmt in shapes.FORMATS
        for name in (shapes.BASE, *FORMS, "hopper")
    }
    small = [1e6 * row["seconds"] for row in rows if row["M"] == shapes.ROWS[-1] and row["contender"] == "hopper"]
    return paragraph(
        ("the bandwidths in TB/s at 10^7 rows with k = n = 2, 4, 8 and 16 are", speeds),
        ("the kernel for Hopper takes {} µs at 10^4 rows", small),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
