"""TSM2, figure 10: inner dimensions shorter than the matrix is tall."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, compared, evaluate, ratios, span, told
from ._speed import PAPER as _PAPER
from ._speed import line, threads

__all__ = ["evaluate"]

PAPER = f"{_PAPER}, section 4.5, figure 10"
EXPLAINS = ("tsm2/fig10",)
TITLE = "inner dimensions shorter than the matrix is tall"
KIND = "G"
CAPTION = f"""15360×k times k×16, stored by columns, over k from 15360 down to an eighth of it: (a) milliseconds, fp64,
(b) share of a copy's bandwidth, fp64, and (c) fp32. {told("tsm2/fig10")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    """"Shorter by some small integer factor": k = 15360 over 1, 2, 3, 4, 5, 6 and 8. The bandwidth "remains similar" if
    it is within 20 % of that at k = 15360; speed "scales linearly" if milliseconds over k are, both for V3.""",
]
NEAR = 0.2


cells = cells_of("tsm2/fig10")


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=3.0, share_y=False)
    for axis, fmt, what, times in zip(
        axes[0], ("fp64", "fp64", "fp32"), ("seconds", "share", "share"), (1e3, 100, 100), strict=True
    ):
        for name in shapes.MAIN:
            here = [(row["K"] / 1024, times * row[what]) for row in line(rows, name, fmt, "K") if what in row]
            if here:
                axis.plot(*zip(*here, strict=True), **LOOKS[name].line())
        axis.set_ylim(0)
        axis.set_xlabel("$k$ / 1024")
        axis.set_xticks(range(0, 16, 3))
        axis.set_ylabel("ms" if what == "seconds" else "share of a copy, %")
    plotting.panel_titles(axes, ["time, fp64", "bandwidth, fp64", "bandwidth, fp32"])
    legend(figure, axes, 3)
    return figure


def _against_largest(rows: list[dict[str, Any]], who: str, fmt: str, what: str) -> dict[int, float]:
    """A number over that at k = m, by k."""
    result = {int(row["K"]): row[what] for row in line(rows, who, fmt, "K") if what in row}
    return {k: x / result[shapes.INNER] for k, x in result.items() if shapes.INNER in result and k != shapes.INNER}


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for fmt in reversed(shapes.FORMATS):
        kept = _against_largest(rows, "V3", fmt, "share")
        yield share(
            f"{fmt}: V3's bandwidth is that of k = m",
            "remains similar",
            [abs(x - 1) <= NEAR for x in kept.values()],
            span(kept.values()),
        )
        slope = {k: x * shapes.INNER / k for k, x in _against_largest(rows, "V3", fmt, "seconds").items()}
        yield share(
            f"{fmt}: V3's time over k is that of k = m",
            "scales linearly",
            [abs(x - 1) <= NEAR for x in slope.values()],
            span(slope.values()),
        )
        over = ratios(line(rows, "hopper", fmt, "K"), line(rows, shapes.BASE, fmt, "K"), "K").values()
        yield compared(f"{fmt}: the kernel for Hopper is no slower than cuBLAS", "", over, ">=", 1)


def finding(rows: list[dict[str, Any]]) -> str:
    shares = {}
    for fmt in reversed(shapes.FORMATS):
        for name in shapes.MAIN:
            selected = [row for row in line(rows, name, fmt, "K") if "share" in row]
            ends = {f"k = {row['K']}:": row["share"] for row in selected[:: max(len(selected) - 1, 1)]}
            shares[f"{LOOKS[name].label}, {fmt}"] = ends
    return paragraph(
        ("share of a copy's bandwidth", shares, ".3g%"), *(threads(shapes.INNER) if any(shares.values()) else ())
    )
