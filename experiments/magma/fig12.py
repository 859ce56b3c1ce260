"""MAGMA batched, figures 12 and 13: batched half-complex products against cuBLAS in planar layout, and the speed-up."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from ..speed._look import legend, plain_ticks
from ..speed._shapes import (
    BATCHED,
    LOOKS,
    RULES,
    best,
    errors,
    evaluate,
    line,
    mean,
    over_powers,
    plot,
    ratios,
    reaches,
    span,
    told,
)
from ..speed._shapes import cells as _cells

__all__ = ["evaluate"]

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), section 7.3, figures 12 and 13"""
EXPLAINS = ("magma/fig12",)
TITLE = "batched HCGEMM over n, against cuBLAS in planar layout"
KIND = "G"
CAPTION = f"""1000 complex products in a call, sums in fp32, 8 n³ operations each. (a) n×n×n and (b) n×n×16, TFLOP/s:
fpemu's kernels, interleaved, against cuBLAS in planar layout, by four real products (dashed) and by one call of
cuBLASLt (dotted). (c) How many times as fast as either. (d) The same kernel in planar layout and
with three real products, over the interleaved one with four. {told("magma/fig12")}"""
ASSUMPTIONS = [
    *RULES,
    BATCHED,
    """cuBLAS is given planar operands, as the paper does: neither separating them nor merging the result counts. The
    paper has four calls; cuBLASLt's planar product in one call is shown and judged beside.""",
]
OURS = ("ours", "magma-small", "magma-small fp32")
BASES = {shapes.BASE: "four calls", "cublas in one": "one call"}
GOAL = 7.0
"""The speed-up over planar cuBLAS that is aimed at in the mean of n = 2 to 128."""


def cells(size: str) -> list[dict[str, Any]]:
    return _cells("magma/fig12")


def _square(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["M"] == row["K"]]


def _ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["K"] == shapes.RANK]


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.2, share_y=False)
    for axis, some, shown in zip(axes[0], (_square(rows), _ranked(rows)), (OURS, OURS[:1]), strict=True):
        for who in (*BASES, *shown):
            plot(axis, line(some, who), "rate", "M", LOOKS[who])
        plain_ticks(axis)
        axis.set_ylabel("TFLOP/s")
    for base in BASES:
        for some, dash in ((_square(rows), "-"), (_ranked(rows), ":")):
            points = ratios(line(some, "ours"), line(some, base))
            if points:
                label = f"over {LOOKS[base].label}, $n$×$n$×{'$n$' if dash == '-' else '16'}"
                style = plotting.Series(label, LOOKS[base].color, LOOKS[base].marker, dash, filled=dash == "-")
                axes[1, 0].plot(list(points), list(points.values()), **style.line())
    for who in shapes.OTHERS["complex"]:
        points = ratios(line(_square(rows), who), line(_square(rows), "ours"))
        if points:
            axes[1, 1].plot(list(points), list(points.values()), **LOOKS[who].line())
    for axis, what in zip(axes[1], ("times as fast as cuBLAS", "times as fast as interleaved"), strict=True):
        axis.axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
        axis.set_ylabel(what)
    plain_ticks(axes[1, 0])
    axes[1, 1].set_ylim(0)
    over_powers(axes, (*shapes.GOALS, 256))
    plotting.panel_titles(axes, ["$n$×$n$×$n$", "$n$×$n$×16", "speed-up", "layout and products"])
    legend(figure, axes, 3)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    square, found = _square(rows), []
    for base, how in BASES.items():
        points = ratios(line(square, "ours"), line(square, base))
        found.append(
            reaches(
                f"speed-up over planar cuBLAS by {how}, n×n×n, n = 10 to 256 (figure 13)",
                1.7,
                7,
                [x for n, x in points.items() if n >= 10],
            )
        )
        ranked = ratios(line(_ranked(rows), "ours"), line(_ranked(rows), base))
        found.append(reaches(f"the same over {how}, n×n×16", 1.7, 7, ranked.values()))
    fastest = best(square, tuple(BASES))
    for under, how in ((line(square, shapes.BASE), "four calls"), (fastest, "the faster of the two")):
        points = {n: x for n, x in ratios(line(square, "ours"), under).items() if n <= 128}
        text = f"{GOAL:g} times as fast as planar cuBLAS, {how}, in the mean of the n that are measured, 2 to 128"
        found.append(
            share(
                text,
                "",
                [mean(points.values()) >= GOAL] if points else [],
                f"{span(points.values())}, {len(points)} sizes",
            )
        )
    for what, how in (("loop", "in a loop, the host's time included"), ("cold", "operands from memory")):
        points = ratios(line(square, "ours"), line(square, shapes.BASE), what=what)
        found.append(
            share(
                f"{how}: faster than planar cuBLAS by four calls",
                "",
                [x > 1 for x in points.values()],
                span(points.values()),
            )
        )
    layouts = ratios(line(square, "ours"), line(square, "ours planar"))
    found.append(
        share(
            "interleaved is faster than planar, the same kernel",
            "higher operational intensity",
            [x > 1 for x in layouts.values()],
            span(layouts.values()),
        )
    )
    real = {n: x for n, x in _complex_over_planar(rows).items()}
    found.append(
        share(
            "one call of cuBLASLt is faster than four of cuBLAS",
            "",
            [x > 1 for x in real.values()],
            span(real.values()),
        )
    )
    ratio = errors(square, "ours", shapes.BASE)
    found.append(
        share("no less accurate than four calls of cuBLAS", "", [x <= 1 for x in ratio.values()], span(ratio.values()))
    )
    return found


def _complex_over_planar(rows: list[dict[str, Any]]) -> dict[int, float]:
    return ratios(line(_square(rows), "cublas in one"), line(_square(rows), shapes.BASE))


def finding(rows: list[dict[str, Any]]) -> str:
    """What of the speed-up is the layout's, and what is that of fewer calls."""
    square = _square(rows)
    four = ratios(line(square, "ours"), line(square, shapes.BASE))
    if not four:
        return ""
    text = (
        f"The interleaved kernels are {span(four.values())} as fast as four planar calls of cuBLAS, n = {min(four)} to "
        f"{max(four)}. "
    )
    loop = ratios(line(square, "ours"), line(square, shapes.BASE), what="loop")
    if loop:
        text += f"In a loop, where the host counts four calls against one, they are {span(loop.values())} as fast. "
    for n in (128, 256):
        here = {row["contender"]: row for row in square if row["M"] == n}
        if {"ours", *BASES} <= set(here):
            text += (
                f"At n = {n} they move {100 * here['ours'].get('share', math.nan):.3g} % of what a copy does and do "
                f"{here['ours']['rate']:.3g} TFLOP/s, four calls {here[shapes.BASE]['rate']:.3g}, one call "
                f"{here['cublas in one']['rate']:.3g}. "
            )
    text += "They run mma.sync alone, which is not this GPU's fastest instruction: the larger n, the more that counts. "
    one = ratios(line(square, "ours"), line(square, "cublas in one"))
    if one:
        both = _complex_over_planar(rows).values()
        text += (
            f"One planar call of cuBLASLt, which the paper does not show, is {span(both)} as fast as the four; over it "
            f"they are {span(one.values())}. "
        )
    layouts = ratios(line(square, "ours"), line(square, "ours planar"))
    if layouts:
        text += (
            f"The layout alone, on one kernel, makes {span(layouts.values())}: the bytes are the same where one kernel "
            "does all four products, and what differs is how they are read. "
        )
    three = ratios(line(square, "ours three products"), line(square, "ours"))
    if three:
        text += f"Three real products in place of four are {span(three.values())} as fast. "
    return text
