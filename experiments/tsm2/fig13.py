"""ISM2, figures 13 and 14: a tall matrix times a small square one, over cuBLAS, and the bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend
from ..speed._shapes import LOOKS, RULES, TALL, best, cells_of, compared, evaluate, ratios, reaches, span, told
from ._speed import PAPER as _PAPER
from ._speed import ROWS, every, line

__all__ = ["evaluate"]

PAPER = f"{_PAPER}, section 6, figures 13 and 14"
EXPLAINS = ("tsm2/fig13",)
TITLE = "ISM2: speed-up over cuBLAS and bandwidth"
KIND = "G"
FORMS = ("opt 1", "opt 2")
WHO = (*FORMS, "V3", "hopper")
WIDTHS = (8, 16)
CAPTION = f"""m×k times k×n, k = n = 8 and 16, stored by columns, over m: above, how many times as fast as cuBLAS;
below, share of a copy's bandwidth. {told("tsm2/fig13")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    """ISM2 is the faster of its two optimisations, as the paper compares them; tcf is what fpemu chooses for a
    size.""",
    """The paper's shares are of the data sheet's bandwidth; ours are of a copy. n = 2 and 4, and matrices stored by
    rows, are judged and not drawn.""",
]
GOAL = 0.85
"""The share that is aimed at with 10^7 rows."""


cells = cells_of("tsm2/fig13")


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(4, 2, height=4.8, share_y=False)
    panels = [(fmt, n) for fmt in shapes.FORMATS for n in WIDTHS]
    for (above, below), (fmt, n) in zip(axes.T, panels, strict=True):
        base = line(rows, shapes.BASE, fmt, N=n)
        for name in WHO:
            result = ratios(line(rows, name, fmt, N=n), base)
            if result:
                above.plot(list(result), list(result.values()), **LOOKS[name].line())
        for name in (shapes.BASE, *WHO):
            here = [(row["M"], 100 * row["share"]) for row in line(rows, name, fmt, N=n) if "share" in row]
            if here:
                below.plot(*zip(*here, strict=True), **LOOKS[name].line())
        above.axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8)
        below.axhline(100 * GOAL, color=plotting.GREY, linestyle=":", linewidth=0.8)
        above.set_ylim(0)
        below.set_ylim(0, 115)
        below.set_xscale("log")
        below.set_xlabel("$m$")
    axes[0, 0].set_ylabel("times as fast as cuBLAS")
    axes[1, 0].set_ylabel("share of a copy, %")
    plotting.panel_titles(axes, [f"{fmt}, $k$ = $n$ = {n}" for fmt, n in panels] * 2)
    legend(figure, axes, 5)
    return figure


def _ism2(rows: list[dict[str, Any]], fmt: str, n: int) -> dict[int, float]:
    """The faster of the two optimisations over cuBLAS, by m."""
    return ratios(best(rows, FORMS, data=f"{fmt} columns", N=n), line(rows, shapes.BASE, fmt, N=n))


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for fmt, low, high in (("fp32", 1.1, 3.5), ("fp64", 1.0, 1.7)):
        values = [x for n in WIDTHS for x in _ism2(rows, fmt, n).values()]
        yield reaches(f"{fmt}: ISM2 over cuBLAS (figure 13, V100)", low, high, values)
    for fmt, form, words in (("fp32", "opt 1", "generally"), ("fp64", "opt 2", "in several cases")):
        other = FORMS[1 - FORMS.index(form)]
        over = every([row for row in rows if row["N"] in WIDTHS], form, other, (fmt,))
        yield compared(f"{fmt}: optimisation {form[-1]} is faster than optimisation {other[-1]}", words, over, ">", 1)
    used = [
        row["share"]
        for fmt in shapes.FORMATS
        for n in WIDTHS
        for name in FORMS
        for row in line(rows, name, fmt, N=n)
        if "share" in row
    ]
    yield share(
        "ISM2's share of the bandwidth, the largest (figure 14)",
        "up to 55 %",
        [max(used) >= 0.55] if used else [],
        f"{100 * max(used, default=0):.3g} %",
    )
    for fmt in shapes.FORMATS:
        for layout in ("columns", ROWS):
            here = {
                n: row["share"]
                for n in shapes.COLUMNS
                for row in line(rows, "hopper", fmt, layout=layout, N=n, M=shapes.ROWS[0])
                if "share" in row
            }
            if layout == ROWS and not here:
                continue
            text = f"{fmt}, by {layout}: the kernel for Hopper has 85 % of a copy's bandwidth, 10^7 rows"
            yield share(
                text,
                "",
                [x >= GOAL for x in here.values()],
                ", ".join(f"{100 * x:.3g} % at n = {n}" for n, x in here.items()),
            )
        over = every([row for row in rows if row["K"] == row["N"]], "hopper", shapes.BASE, (fmt,))
        yield compared(f"{fmt}: the kernel for Hopper is faster than cuBLAS", "", over, ">", 1)


def finding(rows: list[dict[str, Any]]) -> str:
    speeds = {}
    for fmt in shapes.FORMATS:
        for name in (shapes.BASE, *FORMS, "hopper"):
            selected = [row for n in shapes.COLUMNS for row in line(rows, name, fmt, N=n, M=shapes.ROWS[0])]
            speeds[f"{LOOKS[name].label}, {fmt}:"] = ", ".join(f"{row['bandwidth'] / 1e3:.3g}" for row in selected)
    if not any(speeds.values()):
        return ""
    gain = {f"{fmt}, n = {n}:": span(_ism2(rows, fmt, n).values()) for fmt in shapes.FORMATS for n in WIDTHS}
    small = [1e6 * r["seconds"] for r in rows if r["M"] == shapes.ROWS[-1] and r["contender"] == "hopper"]
    return paragraph(
        ("TB/s at 10^7 rows with k = n = 2, 4, 8 and 16", speeds),
        ("ISM2 over this cuBLAS, all m", gain),
        ("µs of the kernel for Hopper at 10^4 rows", small),
    )
