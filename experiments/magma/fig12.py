"""MAGMA batched, figures 12 and 13: batched half-complex products against cuBLAS in planar layout, and the speed-up."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._shapes import (
    BATCHED,
    LOOKS,
    RULES,
    best,
    cells_of,
    evaluate,
    line,
    mean,
    over_powers,
    provenance,
    ratios,
    span,
)
from ._errors import PAPER
from ._speed import IN_LEGEND, extremes, factors, ranked, rates, speedups, square

CAPTION = f"""1000 complex products in a call, sums in fp32, 8 n³ operations each. (a) n×n×n and (b) n×n×16, TFLOP/s:
fpemu's kernels, interleaved, against cuBLAS in planar layout, by four real products (dashed) and by one call of
cuBLASLt (dotted). (c) Speed-up over either. (d) Speed of the same kernel in planar layout, and with three real
products, relative to the interleaved kernel with four. {provenance("magma/fig12")}"""
ASSUMPTIONS = [
    *RULES,
    BATCHED,
    """The operands of cuBLAS are planar, as in the paper; the times include neither their separation nor the merging of
    the result. The paper has four calls; the planar product of cuBLASLt in one call is a second reading.""",
]
OURS = ("ours", "magma-small", "magma-small fp32")
BASES = {shapes.BASE: "four calls (the paper's)", "cublas in one": "one call of cuBLASLt"}
GOAL = 7.0
"""Goal: the geometric mean of the speed-ups over planar cuBLAS for n = 2 to 128."""
cells = cells_of("magma/fig12")


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 4, height=8.6, share_y=False)
    rates(axes[0, 0], square(rows), (*BASES, *OURS))
    rates(axes[1, 0], ranked(rows), (*BASES, *OURS[:1]))
    colours = {shapes.BASE: (plotting.BLACK, "s"), "cublas in one": (plotting.BLUE, "x")}
    factors(
        axes[2, 0],
        (
            (speedups(some, base=base), Series(f"(c) {words}, {shape}", *colours[base], dash, filled=dash == "-"))
            for base, words in ((shapes.BASE, "four calls"), ("cublas in one", "one call"))
            for some, shape, dash in ((square(rows), "$n$×$n$×$n$", "-"), (ranked(rows), "$n$×$n$×16", ":"))
        ),
    )
    others = [(speedups(square(rows), name, "ours"), LOOKS[name]) for name in shapes.OTHERS["complex"]]
    factors(axes[3, 0], others, "times as fast as interleaved")
    axes[3, 0].set_ylim(0.3, 1.5)
    over_powers(axes, (*shapes.GOALS, 256))
    titles = [
        "1000 products $n$×$n$×$n$",
        "1000 products $n$×$n$×16",
        "fpemu over planar cuBLAS",
        "layout and products",
    ]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes, 2, title=IN_LEGEND)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    here = square(rows)
    for base, reading in BASES.items():
        of = [x for n, x in speedups(here, base=base).items() if n >= 10]
        yield from extremes("hcgemm_speedup", of, "n×n×n", reading)
        yield from extremes("hcgemm_speedup", speedups(ranked(rows), base=base).values(), "n×n×16", reading)
    fastest = best(here, tuple(BASES))
    for variant, under in (("four calls", line(here, shapes.BASE)), ("the faster of four calls and one", fastest)):
        of = [x for n, x in ratios(line(here, "ours"), under).items() if n <= 128]
        if of:
            yield Measure("hcgemm_goals", mean(of) / GOAL, variant=variant)


def finding(rows: list[Row]) -> str:
    here = square(rows)
    four = speedups(here)
    if not four:
        return ""
    rated, moved = {}, {}
    for n in (128, 256):
        of = {row["contender"]: row for row in here if row["M"] == n}
        if {"ours", *BASES} <= set(of):
            rated[f"n = {n}"] = {LOOKS[name].label: of[name]["rate"] for name in ("ours", *BASES)}
            moved[f"n = {n}:"] = of["ours"].get("share")
    return paragraph(
        (
            f"for n = {min(four)} to {max(four)} the speed-up of interleaved kernels over four planar calls is {{}}",
            span(four.values()),
        ),
        ("in a loop, including the host, it is {}", span(speedups(here, what="loop").values())),
        ("with operands in memory it is {}", span(speedups(here, what="cold").values())),
        ("the speeds in TFLOP/s are", rated),
        ("the shares of the bandwidth of a copy are", moved, ".3g%"),
        ("mma.sync is not the fastest matrix instruction of this GPU, and its disadvantage grows with n", True),
        (
            "the speed-up of one planar call of cuBLASLt, which is not in the paper, over the four calls is {}",
            span(speedups(here, "cublas in one").values()),
        ),
        (
            "the speed-up of interleaved kernels over this one call is {}",
            span(speedups(here, base="cublas in one").values()),
        ),
        (
            "the speed-up of interleaved over planar operands in one kernel, with the same number of bytes, is {}",
            span(speedups(here, base="ours planar").values()),
        ),
        (
            "the speed-up of three over four real products is {}",
            span(speedups(here, "ours three products", "ours").values()),
        ),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
