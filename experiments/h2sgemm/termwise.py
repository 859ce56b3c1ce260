"""H2SGEMM: the sizes at which term-wise H2SGEMM with sb = 12 is more accurate than SGEMM, and the cause."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, mma, plotting, schemes
from fpemu.mma.device import Device
from fpemu.mma.spec import MmaSpec
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.schemes import words
from fpemu.schemes.h2sgemm import H2sgemm
from fpemu.schemes.lowering import lower, run
from fpemu.schemes.words import Plan

from .._findings import paragraph
from .._rows import Row, runs_by, size_axis
from . import _methods as methods
from ._methods import KINDS, LOOKS, METHODS, means, operands

PAPER = f"{methods.PAPER}, section 4.1, figures 8 and 9"
CAPTION = """Relative L2 error against the exact product, offset exponent 0; operands uniform in (a, b) [-1, 1] and
(c, d) [0, 1]. (a, c) Over k: SGEMM in three summation orders; H2SGEMM with sb = 12, term-wise on three arithmetics and
element-wise. (b, d) Over the number L of products that are rounded together, k = 4096: term-wise with blocks summed
exactly and rounded to nearest (the cube is L = 16) or with Hopper's truncation; circle: the largest of the three sums
added first; dashed: SGEMM's chain; dotted: its error divided by the root of L. Lines: median over the seeds; bands:
quartiles. Ascend 910A cube as an assumed model."""
ASSUMPTIONS = [
    methods.CUBE,
    methods.ELEMENTWISE,
    methods.ORDERS,
    """The paper explains the advantage by the addition of smaller sums first. The addition of the largest sum first, at
    k = 4096 and offset exponents 0, -7 and -14, tests this reason.""",
    """Fewer roundings account for the advantage over one chain if the chain's error is sqrt(16) times the error of
    blocks of 16 products, within a factor of 2, and blocks of one product have the chain's error within a factor of
    1.5.""",
]

DETAIL, BLOCKS, EXPONENTS = 4096, (1, 2, 4, 8, 16, 32, 64), (0, -7, -14)
HARDWARE = {"ascend910a": "Ascend 910A", "ampere": "Ampere", "hopper": "Hopper"}


def cells(m: int = 48, lengths: tuple[int, ...] = (64, 256, 1024, DETAIL, 16384), seeds: int = 20) -> list[Row]:
    return [
        {"inputs": kind, "k": k, "exponent": exponent, "seed": seed, "m": m, "n": m}
        for kind in KINDS
        for k in lengths
        for exponent in (EXPONENTS if k == DETAIL else (0,))
        for seed in range(seeds)
    ]


def cost(cell: Row) -> float:
    return float(cell["m"] * cell["n"] * cell["k"] * (4 if cell["k"] == DETAIL else 1) + 10**6)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """SGEMM's orders, H2SGEMM on three arithmetics; at k = 4096 also other block lengths and orders of the three
    sums."""
    A, B, exact = operands(cell, device)
    results = {name: METHODS[name](A, B, device) for name in ("SGEMM", "SGEMM TSV110", "SGEMM Haswell")}
    results["element-wise"] = METHODS["sb=12 element-wise"](A, B, device)
    for hardware in HARDWARE:
        results[f"term-wise {hardware}"] = schemes.gemm(A, B, scheme="h2sgemm", hardware=hardware, device=device)
    if cell["k"] == DETAIL:
        results["largest first"] = _largest_first(A, B, mma.spec("ascend910a", "fp16"))
        for name, base in (("nearest", "ascend910a"), ("truncated", "hopper")):
            for block in BLOCKS:
                spec = mma.spec(base, "fp16").replace(k=block, block=block)
                results[f"{name} {block}"] = schemes.gemm(A, B, scheme="h2sgemm", hardware=spec, device=device)
    return {name: metrics.relative_l2(D, exact) for name, D in results.items()}


def _largest_first(A: Any, B: Any, spec: MmaSpec) -> Any:
    rules = H2sgemm(sb=12).rules()
    plan = Plan(((0, 0), (0, 1), (1, 0)), exponent=12, accumulators="each", join="as-run")
    return run(words.split(A, rules), words.split(B, rules), lower(rules, plan, spec), spec)


_LINES = {
    **{name: LOOKS[name] for name in ("SGEMM", "SGEMM TSV110", "SGEMM Haswell")},
    "term-wise ascend910a": Series("term-wise, Ascend 910A", plotting.BLUE, "o"),
    "term-wise ampere": Series("term-wise, Ampere", plotting.ORANGE, "^", "-."),
    "term-wise hopper": Series("term-wise, Hopper", plotting.SKY, "D", ":"),
    "element-wise": Series("element-wise, Ascend 910A", plotting.VERMILION, "o", "--", filled=False),
}
_BLOCKS = {
    "nearest": Series("blocks to nearest", plotting.BLUE, "p"),
    "truncated": Series("blocks truncated", plotting.SKY, "d", "-."),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.4)
    runs = runs_by("inputs", "k", "exponent")
    ks = sorted({row["k"] for row in rows})
    for (left, right), kind in zip(axes, KINDS, strict=True):
        for name, look in _LINES.items():
            plotting.band(left, ks, [runs(rows, kind, k, 0, name) for k in ks], look)
        size_axis(left, ks)
        for name, look in _BLOCKS.items():
            plotting.band(right, BLOCKS, [runs(rows, kind, DETAIL, 0, f"{name} {L}") for L in BLOCKS], look)
        first = float(np.median(runs(rows, kind, DETAIL, 0, "largest first")))
        ring = Series("largest sum first", plotting.VERMILION, "o", "", filled=False)
        right.plot([16], [first], **ring.line(markersize=8))
        chain = float(np.median(runs(rows, kind, DETAIL, 0, "SGEMM")))
        right.axhline(chain, color=plotting.BLACK, linestyle="--", linewidth=1.1, label="one FMA chain (b, d)")
        law = [chain / math.sqrt(block) for block in BLOCKS]
        right.plot(
            BLOCKS,
            law,
            color=plotting.BLACK,
            linestyle=(0, (1, 1.5)),
            linewidth=0.9,
            label=r"chain / $\sqrt{L}$ (b, d)",
        )
        size_axis(right, BLOCKS)
        left.set_ylabel("relative $L_2$ error")
    axes[0, 0].set_yscale("log")  # all panels share it
    axes[1, 0].set_xlabel("$k$")
    axes[1, 1].set_xlabel("products rounded together, $L$")
    titles = [title for text in ("$[-1,\\,1]$", "$[0,\\,1]$") for title in (text, f"{text}, $k = {DETAIL}$")]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes, 2, methods.sizes_and_runs(rows))
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for kind, interval in zip(KINDS, ("[-1, 1]", "[0, 1]"), strict=True):
        error = _detail(rows, kind)
        orders = [of["largest first"] / of["term-wise ascend910a"] for of in error.values() if "largest first" in of]
        if orders:
            yield Measure("small_first_is_the_reason", max(orders), variant=interval)
        if "nearest 16" in error.get(0, {}):
            yield Measure("fewer_roundings_explain", error[0]["SGEMM"] / error[0]["nearest 16"], variant=interval)
            yield Measure("single_products_explain", error[0]["nearest 1"] / error[0]["SGEMM"], variant=interval)
            if interval == "[0, 1]":
                hopper = error[0]["SGEMM"] / error[0]["term-wise hopper"]
                yield Measure("truncation_loses_the_advantage", hopper, variant=interval)


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for kind, interval in zip(KINDS, ("[-1, 1]", "[0, 1]"), strict=True):
        if 0 not in (error := _detail(rows, kind)):
            continue
        cube = error[0]["term-wise ascend910a"]
        statements += [
            (
                f"relative to term-wise accumulation on the cube, the errors on {interval}, k = {DETAIL}, are",
                {
                    "SGEMM's chain": error[0]["SGEMM"] / cube,
                    "OpenBLAS, Kunpeng 920": error[0]["SGEMM TSV110"] / cube,
                    "OpenBLAS, Haswell": error[0]["SGEMM Haswell"] / cube,
                    "element-wise": error[0]["element-wise"] / cube,
                    "largest sum first": error[0]["largest first"] / cube,
                    "blocks of one product": error[0]["nearest 1"] / cube,
                    "Hopper": error[0]["term-wise hopper"] / cube,
                },
                ".3g×",
            )
        ]
    return paragraph(*statements)


def _detail(rows: list[Row], kind: str) -> dict[int, dict[str, float]]:
    """Mean errors at k = 4096 by offset exponent and column."""
    chosen = [row for row in rows if (row["inputs"], row["k"]) == (kind, DETAIL)]
    columns = [name for name in (chosen[0] if chosen else ()) if " " in name or name in ("SGEMM", "element-wise")]
    of = {name: means(rows, name, "exponent", inputs=kind, k=DETAIL) for name in columns}
    return {e: {name: of[name][e] for name in columns} for e in EXPONENTS if all(e in of[name] for name in columns)}


QUICK = {"m": 24, "lengths": (64, 256, 1024, DETAIL), "seeds": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
