"""TSM2, figures 5, 7b and 9: the share of the memory's bandwidth that TSM2 and cuBLAS use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, evaluate, told
from ._speed import PAPER as _PAPER
from ._speed import ROWS, line, percent, points, threads

__all__ = ["evaluate"]

PAPER = f"{_PAPER}, sections 4.3 and 4.4, figures 5, 7b and 9"
EXPLAINS = ("tsm2/fig5",)
TITLE = "bandwidth of TSM2 and of cuBLAS"
KIND = "G"
CAPTION = f"""m×m times m×n: bytes of A, B and the result a second, over those of a copy in the same run, over m. Above
fp32, below fp64; n = 2, 4, 8 and 16. Stored by columns; small open marks without a line: by rows, at m = 20480, cuBLAS
(squares) and the kernel for Hopper (diamonds). {told("tsm2/fig5")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    """The paper's shares are of the data sheet's bandwidth, by a profiler's count of loads; ours are of a copy, by the
    bytes that must move. Improvements are differences of shares in points. BLASX, its third contender, is not here.""",
    "Reading alone can be faster than a copy, which writes as much as it reads: shares above 100 % are possible.",
]
GOAL = 0.9
"""The share that is aimed at, fp32."""
K40C, P100 = (12.5, 26.6), (17.0, 47.6)
"""Published improvements over cuBLAS in points: all of figure 5, and n = 16 in fp64 on a P100."""
_MARKS = {shapes.BASE: "s", "hopper": "D"}


cells = cells_of("tsm2/fig5", lambda row: row["contender"] in shapes.MAIN)


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(len(shapes.COLUMNS), 2, height=4.6)
    for some, fmt in zip(axes, shapes.FORMATS, strict=True):
        for axis, n in zip(some, shapes.COLUMNS, strict=True):
            for name in shapes.MAIN:
                here = [(row["M"] / 1024, 100 * row["share"]) for row in line(rows, name, fmt, N=n) if "share" in row]
                if here:
                    axis.plot(*zip(*here, strict=True), **LOOKS[name].line())
            for name, mark in _MARKS.items():
                for row in line(rows, name, fmt, layout=ROWS, N=n):
                    axis.plot(
                        [row["M"] / 1024],
                        [100 * row["share"]],
                        marker=mark,
                        markersize=3,
                        linestyle="",
                        color=LOOKS[name].color,
                        markerfacecolor="white",
                        zorder=4,
                    )
            axis.axhline(100 * GOAL, color=plotting.GREY, linestyle=":", linewidth=0.8)
            axis.set_ylim(0, 115)
    for axis in axes[-1]:
        axis.set_xlabel("$m$ / 1024")
        axis.set_xticks([m // 1024 for m in shapes.SQUARE])
        axis.set_xlim(shapes.SQUARE[0] / 1024 - 1, shapes.SQUARE[-1] / 1024 + 1)
    for axis in axes[:, 0]:
        axis.set_ylabel("share of a copy, %")
    plotting.panel_titles(axes, [f"{fmt}, $n$ = {n}" for fmt in shapes.FORMATS for n in shapes.COLUMNS])
    legend(figure, axes, 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    more = [
        x for fmt in shapes.FORMATS for n in shapes.COLUMNS for x in points(rows, "V3", shapes.BASE, fmt, N=n).values()
    ]
    wide = list(points(rows, "V3", shapes.BASE, "fp64", N=16).values())
    yield from [
        share(
            "V3 has more bandwidth than cuBLAS (figure 5, K40c)",
            f"{K40C[0]:g} to {K40C[1]:g} points",
            [x >= K40C[0] for x in more],
            percent(more),
        ),
        share(
            "the same, n = 16, fp64 (figure 7b, P100)",
            f"{P100[0]:g} to {P100[1]:g} points",
            [x >= P100[0] for x in wide],
            percent(wide),
        ),
    ]
    for fmt in shapes.FORMATS:
        for layout in ("columns", ROWS):
            here = {
                n: row["share"]
                for n in shapes.COLUMNS
                for row in line(rows, "hopper", fmt, layout=layout, N=n, M=shapes.LARGE)
                if "share" in row
            }
            if layout == ROWS and not here:
                continue
            text = f"{fmt}, by {layout}: the kernel for Hopper has 90 % of a copy's bandwidth, m = {shapes.LARGE}"
            yield share(
                text,
                "",
                [x >= GOAL for x in here.values()],
                ", ".join(f"{100 * x:.3g} % at n = {n}" for n, x in here.items()),
            )


def finding(rows: list[dict[str, Any]]) -> str:
    speeds = {}
    for fmt in shapes.FORMATS:
        for name in shapes.MAIN:
            selected = [
                row["bandwidth"] / 1e3 for n in shapes.COLUMNS for row in line(rows, name, fmt, N=n, M=shapes.LARGE)
            ]
            speeds[f"{LOOKS[name].label}, {fmt}:"] = ", ".join(f"{x:.3g}" for x in selected)
    if not any(speeds.values()):
        return ""
    copy = [row["bandwidth"] / row["share"] for row in rows if row.get("share")]
    return paragraph(
        (f"TB/s at m = {shapes.LARGE} with n = 2, 4, 8 and 16", speeds),
        ("of the copy", max(copy, default=0.0) / 1e3 or None),
        *threads(shapes.LARGE),
        *_beyond(rows),
    )


def _beyond(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Where a product is faster than a copy."""
    above = {row["M"]: row["share"] for row in line(rows, shapes.BASE, "fp64") if row.get("share", 0) > 1}
    return [
        (
            f"largest share of cuBLAS in fp64, m = {', '.join(map(str, above))}",
            max(above.values(), default=None),
            ".4g%",
        ),
        ("A is only read, while a copy changes between reading and writing", bool(above)),
    ]
