"""MAGMA batched, figures 12 and 13: batched half-complex products against cuBLAS in planar layout, and the speed-up."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from ..speed._look import legend, plain_ticks
from ..speed._shapes import (
    BATCHED,
    LOOKS,
    RULES,
    best,
    cells_of,
    compared,
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


cells = cells_of("magma/fig12")


def _square(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["M"] == row["K"]]


def _ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["K"] == shapes.RANK]


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.2, share_y=False)
    for axis, some, shown in zip(axes[0], (_square(rows), _ranked(rows)), (OURS, OURS[:1]), strict=True):
        for name in (*BASES, *shown):
            plot(axis, line(some, name), "rate", "M", LOOKS[name])
        plain_ticks(axis)
        axis.set_ylabel("TFLOP/s")
    for base in BASES:
        for some, dash in ((_square(rows), "-"), (_ranked(rows), ":")):
            points = ratios(line(some, "ours"), line(some, base))
            if points:
                label = f"over {LOOKS[base].label}, $n$×$n$×{'$n$' if dash == '-' else '16'}"
                style = plotting.Series(label, LOOKS[base].color, LOOKS[base].marker, dash, filled=dash == "-")
                axes[1, 0].plot(list(points), list(points.values()), **style.line())
    for name in shapes.OTHERS["complex"]:
        points = ratios(line(_square(rows), name), line(_square(rows), "ours"))
        if points:
            axes[1, 1].plot(list(points), list(points.values()), **LOOKS[name].line())
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
    square, judged = _square(rows), []
    for base, how in BASES.items():
        points = ratios(line(square, "ours"), line(square, base))
        judged.append(
            reaches(
                f"speed-up over planar cuBLAS by {how}, n×n×n, n = 10 to 256 (figure 13)",
                1.7,
                7,
                [x for n, x in points.items() if n >= 10],
            )
        )
        ranked = ratios(line(_ranked(rows), "ours"), line(_ranked(rows), base))
        judged.append(reaches(f"the same over {how}, n×n×16", 1.7, 7, ranked.values()))
    fastest = best(square, tuple(BASES))
    for under, how in ((line(square, shapes.BASE), "four calls"), (fastest, "the faster of the two")):
        points = {n: x for n, x in ratios(line(square, "ours"), under).items() if n <= 128}
        text = f"{GOAL:g} times as fast as planar cuBLAS, {how}, in the mean of the n that are measured, 2 to 128"
        judged.append(
            share(
                text,
                "",
                [mean(points.values()) >= GOAL] if points else [],
                f"{span(points.values())}, {len(points)} sizes",
            )
        )
    for what, how in (("loop", "in a loop, the host's time included"), ("cold", "operands from memory")):
        points = ratios(line(square, "ours"), line(square, shapes.BASE), what=what)
        judged.append(compared(f"{how}: faster than planar cuBLAS by four calls", "", points.values(), ">", 1))
    layouts = ratios(line(square, "ours"), line(square, "ours planar"))
    judged.append(
        compared(
            "interleaved is faster than planar, the same kernel",
            "higher operational intensity",
            layouts.values(),
            ">",
            1,
        )
    )
    real = {n: x for n, x in _complex_over_planar(rows).items()}
    judged.append(compared("one call of cuBLASLt is faster than four of cuBLAS", "", real.values(), ">", 1))
    ratio = errors(square, "ours", shapes.BASE)
    judged.append(compared("no less accurate than four calls of cuBLAS", "", ratio.values(), "<=", 1))
    return judged


def _complex_over_planar(rows: list[dict[str, Any]]) -> dict[int, float]:
    return ratios(line(_square(rows), "cublas in one"), line(_square(rows), shapes.BASE))


def finding(rows: list[dict[str, Any]]) -> str:
    square = _square(rows)
    four = ratios(line(square, "ours"), line(square, shapes.BASE))
    if not four:
        return ""

    def speed(who: str, base: str, what: str = "seconds") -> str:
        return span(ratios(line(square, who), line(square, base), what=what).values())

    rates, moved = {}, {}
    for n in (128, 256):
        here = {row["contender"]: row for row in square if row["M"] == n}
        if {"ours", *BASES} <= set(here):
            rates[f"n = {n}"] = {LOOKS[who].label: here[who]["rate"] for who in ("ours", *BASES)}
            moved[f"n = {n}:"] = here["ours"].get("share")
    return paragraph(
        (f"interleaved kernels over four planar calls of cuBLAS, n = {min(four)} to {max(four)}", span(four.values())),
        ("in a loop, host included", speed("ours", shapes.BASE, "loop")),
        ("TFLOP/s", rates),
        ("share of a copy's bandwidth", moved, ".3g%"),
        ("mma.sync is not this GPU's fastest instruction, which counts the more the larger n", True),
        ("one planar call of cuBLASLt, not in the paper, over the four", span(_complex_over_planar(rows).values())),
        ("interleaved kernels over it", speed("ours", "cublas in one")),
        ("interleaved over planar on one kernel, which moves the same bytes", speed("ours", "ours planar")),
        ("three real products over four", speed("ours three products", "ours")),
    )
