"""ISM2, figure 11: very small inner dimensions, where TSM2 loses its bandwidth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, compared, evaluate, over_powers, ratios, span, told
from ._speed import PAPER as _PAPER
from ._speed import line, threads

__all__ = ["evaluate"]

PAPER = f"{_PAPER}, section 5.1, figure 11"
EXPLAINS = ("tsm2/fig11",)
TITLE = "very small inner dimensions"
KIND = "G"
WHO = (shapes.BASE, "V3", "opt 1", "hopper")
CAPTION = f"""15360×k times k×16, stored by columns, over k: share of a copy's bandwidth, (a) fp64 and (b) fp32;
(c) microseconds of a call, fp64 (fp32 open). {told("tsm2/fig11")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    """The paper's k is not printed but for its being very small: powers of two from 1 to 256. The bandwidth counts the
    result too, which is most of the bytes where k is below 16.""",
    """"Decreases as k decreases" is judged from each k to the next smaller one, V3.""",
]


cells = cells_of("tsm2/fig11")


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=3.0, share_y=False)
    for axis, fmt in zip(axes[0], reversed(shapes.FORMATS), strict=False):
        for name in WHO:
            here = [(row["K"], 100 * row["share"]) for row in line(rows, name, fmt, "K") if "share" in row]
            if here:
                axis.plot(*zip(*here, strict=True), **LOOKS[name].line())
        axis.set_ylim(0)
        axis.set_ylabel("share of a copy, %")
    for fmt in shapes.FORMATS:
        for name in WHO:
            here = [(row["K"], 1e6 * row["seconds"]) for row in line(rows, name, fmt, "K")]
            look = LOOKS[name]
            if here:
                faint = {"linestyle": ":", "markerfacecolor": "white", "label": None} if fmt == "fp32" else {}
                axes[0, 2].plot(*zip(*here, strict=True), **(look.line() | faint))
    axes[0, 2].set_ylim(0)
    axes[0, 2].set_ylabel("µs")
    over_powers(axes, (1, 4, 16, 64, 256), "$k$")
    plotting.panel_titles(axes, ["bandwidth, fp64", "bandwidth, fp32", "time"])
    legend(figure, axes, 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for fmt in reversed(shapes.FORMATS):
        short = [row for row in line(rows, "V3", fmt, "K") if "share" in row]
        falls = [a["share"] <= b["share"] for a, b in itertools.pairwise(short)]
        ends = [f"{100 * row['share']:.3g} % at k = {row['K']}" for row in (*short[:1], *short[-1:])]
        yield share(f"{fmt}: V3's bandwidth falls with k", "decreases", falls, ", ".join(ends))
        both = ratios(line(rows, "opt 1", fmt, "K"), line(rows, "V3", fmt, "K"), "K")
        small = [x for k, x in both.items() if k <= 16]
        yield compared(
            f"{fmt}: ISM2's optimisation 1 is faster than V3 up to k = 16", "replaces it there", small, ">", 1
        )
        over = ratios(line(rows, "hopper", fmt, "K"), line(rows, shapes.BASE, fmt, "K"), "K").values()
        yield compared(f"{fmt}: the kernel for Hopper is no slower than cuBLAS", "", over, ">=", 1)


def finding(rows: list[dict[str, Any]]) -> str:
    statements: list[tuple[Any, ...]] = []
    for fmt in reversed(shapes.FORMATS):
        for name in ("V3", "hopper"):
            selected = line(rows, name, fmt, "K")
            ends = {
                f"k = {r['K']}, {r['bytes'] / 1e6:.3g} MB:": 1e6 * r["seconds"]
                for r in selected[:: max(len(selected) - 1, 1)]
            }
            statements.append((f"µs of {LOOKS[name].label} in {fmt}", ends))
        over = ratios(line(rows, "hopper", fmt, "K"), line(rows, shapes.BASE, fmt, "K"), "K")
        first = ratios(line(rows, "opt 1", fmt, "K"), line(rows, "V3", fmt, "K"), "K")
        slow = [x for x in over.values() if x < 1]
        statements += [
            ("optimisation 1 over V3, which has a thread a row too", span(first.values())),
            (
                "the kernel for Hopper takes longer than cuBLAS at k =",
                ", ".join(str(k) for k, x in over.items() if x < 1),
            ),
            ("at most", 1 / min(slow) if slow else None, ".3g×"),
        ]
    return paragraph(*statements, *(threads(shapes.INNER) if line(rows, "V3", "fp64", "K") else ()))
