"""MAGMA batched, figure 7: the number of warps of a thread block, 64×64 matrices and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._shapes import BATCHED, RULES, cells_of, evaluate, line, span, told
from . import model as magma

__all__ = ["evaluate"]

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), section 5.4, figure 7"""
EXPLAINS = ("magma/fig7",)
TITLE = "the number of warps of a thread block"
KIND = "G"
CAPTION = f"""HGEMM, 500 products of 64×64×64, blocks (BLK_M, BLK_N, BLK_K) of 64, instructions of 16×16×16, DIM_X = 16
and 32, DIM_Y = 32 · warps / DIM_X: TFLOP/s over the number of warps. Dashed: cuBLAS; dotted: what fpemu
chooses for this size. {told("magma/fig7")}"""
ASSUMPTIONS = [*RULES, BATCHED, """"Drops if too many warps are used" is judged by 32 warps against the best number."""]
_LOOK = {16: Series("DIM_X = 16", plotting.VERMILION, "o"), 32: Series("DIM_X = 32", plotting.BLUE, "s", filled=False)}


cells = cells_of("magma/fig7")


def _rates(rows: list[dict[str, Any]], dim_x: int) -> dict[int, float]:
    """TFLOP/s by the number of warps."""
    return {count: row["rate"] for count in shapes.WARPS for row in line(rows, shapes.warps(dim_x, count))}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(width=plotting.SINGLE, height=2.9)
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
    axis.set_ylim(0)
    axis.set_xlabel("warps of a thread block")
    axis.set_ylabel("TFLOP/s")
    plotting.legend_below(figure, axis, 2)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for dim_x in shapes.DIM_X:
        rates = _rates(rows, dim_x)
        known = {1, shapes.WARPS[-1]} <= set(rates)
        best = max(rates, key=rates.__getitem__, default=0)
        gain = rates[best] / rates[1] if known else float("nan")
        yield share(
            f"DIM_X = {dim_x}: more warps are faster than one",
            "significant gains",
            [gain >= 1.2] if known else [],
            f"{gain:.3g}× with {best}",
        )
        loss = rates[shapes.WARPS[-1]] / rates[best] if known else float("nan")
        yield share(
            f"DIM_X = {dim_x}: 32 warps are slower than the best number",
            "drops",
            [loss < 1] if known else [],
            f"{loss:.3g}×",
        )
        yield share(
            f"DIM_X = {dim_x}: the best number is neither the least nor the most",
            "",
            [best not in (1, shapes.WARPS[-1])] if known else [],
            f"{best} warps",
        )
    table = [row["rate"] for row in line(rows, "ours")]
    every = [x for dim_x in shapes.DIM_X for x in _rates(rows, dim_x).values()]
    yield share(
        "what fpemu chooses is as fast as the best of these or faster",
        "",
        [table[0] >= max(every)] if table and every else [],
        f"{table[0] / max(every):.3g}×" if table and every else "",
    )


def finding(rows: list[dict[str, Any]]) -> str:
    rates = {dim_x: of for dim_x in shapes.DIM_X if (of := _rates(rows, dim_x))}
    if not rates:
        return ""
    best = {dim_x: max(of, key=of.__getitem__) for dim_x, of in rates.items()}
    fastest = {f"DIM_X = {x}:": f"{best[x]} warps, {of[best[x]]:.3g} TFLOP/s" for x, of in rates.items()}
    idle = magma.idle_warps(magma.Kernel((16, 16, 16), (64, 64, 64), (32, 32)))
    base = [row["rate"] for row in line(rows, shapes.BASE)[:1]]
    most = max(x for of in rates.values() for x in of.values())
    return paragraph(
        ("fastest", fastest),
        (
            "the others over that",
            {f"DIM_X = {x}:": span(y / of[best[x]] for y in of.values()) for x, of in rates.items()},
        ),
        ("of 32 warps without a tile of the result", idle, "g"),
        ("TFLOP/s of cuBLAS", base),
        ("the best of these over cuBLAS", [most / rate for rate in base], ".3g×"),
    )
