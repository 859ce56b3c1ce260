"""MAGMA batched, figure 7: the number of warps of a thread block, 64×64 matrices and blocks."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from ..speed._shapes import BATCHED, RULES, cells_of, evaluate, line, provenance, span
from . import model as magma
from ._errors import PAPER

CAPTION = f"""HGEMM, 500 products of 64×64×64, blocks (BLK_M, BLK_N, BLK_K) of 64, instructions of 16×16×16, DIM_X = 16
and 32, DIM_Y = 32 · warps / DIM_X: TFLOP/s over the number of warps. Dashed: cuBLAS; dotted: the default kernel of
fpemu for this size. {provenance("magma/fig7")}"""
ASSUMPTIONS = [*RULES, BATCHED]
_LOOK = {16: Series("DIM_X = 16", plotting.VERMILION, "o"), 32: Series("DIM_X = 32", plotting.BLUE, "s", filled=False)}


cells = cells_of("magma/fig7")


def _rates(rows: list[Row], dim_x: int) -> dict[int, float]:
    """TFLOP/s by the number of warps."""
    return {count: row["rate"] for count in shapes.WARPS for row in line(rows, shapes.warps(dim_x, count))}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(height=3.1)
    axis = axes[0, 0]
    for dim_x, look in _LOOK.items():
        result = _rates(rows, dim_x)
        if result:
            axis.plot(list(result), list(result.values()), **look.line())
    for name, dash, label in ((shapes.BASE, "--", "cuBLAS"), ("ours", ":", "fpemu's choice")):
        for row in line(rows, name):
            axis.axhline(row["rate"], color=plotting.BLACK, linestyle=dash, linewidth=0.9, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(shapes.WARPS, [str(count) for count in shapes.WARPS])
    axis.set(ylim=0, xlabel="warps of a thread block", ylabel="TFLOP/s")
    title = "500 products of 64×64×64, blocks of 64, one H200, medians"
    plotting.legend_below(figure, axis, 2, title=title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    every = [rates for dim_x in shapes.DIM_X if (rates := _rates(rows, dim_x))]
    for dim_x in shapes.DIM_X:
        rates = _rates(rows, dim_x)
        for count in {1, shapes.WARPS[-1]} & set(rates):
            words = "warp" if count == 1 else "warps"
            yield Measure("warps", max(rates.values()) / rates[count], variant=f"DIM_X = {dim_x}, {count} {words}")
    for row in line(rows, "ours") if every else ():
        yield Measure("chosen_kernel", row["rate"] / max(max(rates.values()) for rates in every))


def finding(rows: list[Row]) -> str:
    rates = {dim_x: of for dim_x in shapes.DIM_X if (of := _rates(rows, dim_x))}
    if not rates:
        return ""
    best = {dim_x: max(of, key=of.__getitem__) for dim_x, of in rates.items()}
    fastest = {f"DIM_X = {x}:": f"{best[x]} warps, {of[best[x]]:.3g} TFLOP/s" for x, of in rates.items()}
    idle = magma.idle_warps(magma.Kernel((16, 16, 16), (64, 64, 64), (32, 32)))
    base = [row["rate"] for row in line(rows, shapes.BASE)[:1]]
    most = max(x for of in rates.values() for x in of.values())
    return paragraph(
        ("the fastest numbers of warps are", fastest),
        (
            "the speeds of all numbers of warps relative to the fastest are",
            {f"DIM_X = {x}:": span(y / of[best[x]] for y in of.values()) for x, of in rates.items()},
        ),
        ("of 32 warps, {} have no tile of the result", idle, "g"),
        ("cuBLAS reaches {} TFLOP/s", base),
        ("the speed-up of the fastest over cuBLAS is {}", [most / rate for rate in base], ".3g×"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
