"""A chain of FMAs against products split over tensor cores, on long sums of positive data.

On TSM2's shape, with large k and small n, the error of an fp32 chain is largest, because its rounding errors accumulate
over k. The papers of schemes that split fp32 numbers for tensor cores claim fp32 accuracy for square products. This
page shows the errors of these schemes on TSM2's shape, with the errors of the same chain divided into blocks, whose
sums are added in order or pairwise.
"""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, mma, plotting, reference, schemes, simt
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend, mean_by, runs_by, size_axis
from ._chains import on_powers

PAPER = """Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs
(2020), which states no errors; schemes as published"""
CAPTION = """Relative L2 error against the exact product over k, operands uniform in [0, 1], products of 4 rows and 4
columns on (a) Ampere and (b) Hopper. TSM2 computes one chain of fp32 FMAs; blocks of 64 are the same chain divided,
with their sums added in order or pairwise. Of the fp32 products from words, Markidis and LE-GEMM (whose lines
coincide) keep their sums in the truncating accumulator; Ootomo's main sum is promoted after every instruction, the sum
of staged accumulation, a scheme of this project, after 64 products; bf16x9 adds nine products of bf16 words in the
accumulator."""
ASSUMPTIONS = [
    """The products have the full k of TSM2 and only 4 rows and 4 columns. Operands are uniform in [0, 1], as in its
    paper, and rounded to fp32.""",
    """The schemes have their default options and ascending k; their papers do not use this shape. A kernel that splits
    k would shorten every chain.""",
    """Each block of 64 products is a chain of FMAs from zero. The sums of the blocks are added in fp32 in ascending
    order, or pairwise (neighbours, then sums of neighbours).""",
    "A scheme is better than the chain at a k if its mean error over the runs is the smaller one.",
]
CHAINS: dict[str, mma.KOrder] = {
    "chain": mma.KOrder(),
    "blocks": mma.KOrder(split=64),
    "pairwise": mma.KOrder(split=64, join="pairwise"),
}
SCHEMES = ("markidis", "legemm", "ootomo", "ootomo-tf32", "staged", "bf16x9")
SPECS = [(gpu, words, "fp32") for gpu in ("ampere", "hopper") for words in ("fp16", "tf32", "bf16")]


_LENGTHS = tuple(2**i for i in range(6, 17))


def cells(lengths: tuple[int, ...] = _LENGTHS, runs: int = 20) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": "uniform", "m": 4, "n": 4, "k": k, "seed": seed}
        for k in lengths
        for seed in range(runs)
        for hardware in ("ampere", "hopper")
    ]


def cost(cell: Row) -> float:
    return float(cell["k"] + 1000)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, exact = _problem(cell["inputs"], cell["m"], cell["n"], cell["k"], cell["seed"], device=device)
    results = {name: simt.gemm(A, B, fmt="fp32", order=order, device=device) for name, order in CHAINS.items()}
    results |= {name: schemes.gemm(A, B, scheme=name, hardware=cell["hardware"], device=device) for name in SCHEMES}
    return {name: metrics.relative_l2(D, exact) for name, D in results.items()}


@functools.lru_cache(maxsize=2)  # both architectures have the same problems, one after another
def _problem(name: str, m: int, n: int, k: int, seed: int, device: Device = "cpu") -> tuple[NDArray[Any], ...]:
    A, B = inputs.operands(name, m, n, k, seed, "fp32", low=0.0, high=1.0)
    return A, B, reference.matmul(A, B, device=device)


_LOOK = {
    "chain": Series("chain of FMAs (TSM2)", plotting.BLACK, "s", "--", filled=False),
    "blocks": Series("blocks of 64", plotting.GREY, "^", "-.", filled=False),
    "pairwise": Series("blocks of 64, pairwise", plotting.GREY, "v", ":", filled=False),
    "markidis": replace(plotting.SCHEMES["markidis"], filled=False),
    "legemm": replace(plotting.SCHEMES["legemm"], dash="--"),
    "ootomo": replace(plotting.SCHEMES["ootomo"], dash="-."),
    "ootomo-tf32": Series("Ootomo, tf32", plotting.PURPLE, "d", "--"),
    "staged": replace(plotting.SCHEMES["staged"], label="staged (ours)", dash=":"),
    "bf16x9": Series("bf16x9", plotting.BLUE, "P"),
}
_GPUS = {"ampere": "Ampere", "hopper": "Hopper"}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=5.6)
    lengths = sorted({row["k"] for row in rows})
    for axis, hardware in zip(axes[:, 0], _GPUS, strict=True):
        for name, look in _LOOK.items():
            runs = [_runs(rows, hardware, k, name) for k in lengths]
            plotting.band(axis, lengths, runs, look, markersize=6 if name == "markidis" else 3.5)  # LE-GEMM lies on it
        on_powers(axis, "")
        axis.axhline(2.0**-24, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=1, zorder=1, label="$2^{-24}$")
        axis.set_ylabel("relative $L_2$ error")
    size_axis(axes[-1, 0], lengths)
    axes[-1, 0].set_xlabel("$k$")
    plotting.panel_titles(axes, list(_GPUS.values()))
    plotting.legend_below(figure, axes, 2, f"4×k times k×4; {in_legend(rows)}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    k = max(row["k"] for row in rows)
    checks = {"promoted_sums": ("ootomo", "ootomo-tf32", "staged"), "truncated_sums": ("markidis", "legemm", "bf16x9")}
    for check, names in checks.items():
        for hardware in dict.fromkeys(row["hardware"] for row in rows if row["k"] == k):
            chain = _mean(rows, hardware, k, "chain")
            for name in names:
                ratio = _mean(rows, hardware, k, name) / chain
                yield Measure(check, ratio, variant=f"{_LOOK[name].label}, {_GPUS[hardware]}")


def finding(rows: list[Row]) -> str:
    lengths = sorted({row["k"] for row in rows})
    statements: list[tuple[Any, ...]] = []
    for hardware, title in _GPUS.items():
        mean = {name: np.array([_mean(rows, hardware, k, name) for k in lengths]) for name in _LOOK}
        smaller = {}
        for name in SCHEMES:
            better = mean[name] < mean["chain"]
            first = next((k for i, k in enumerate(lengths) if better[i:].all()), None)
            where = "nowhere" if not better.any() else "everywhere" if better.all() else f"from k = {first}"
            if first is None and better.any():
                where = f"at {int(better.sum())} of {len(lengths)} lengths"
            smaller[_LOOK[name].label] = f"{where} ({mean[name][-1] / mean['chain'][-1]:.3g}× at the end)"
        statements.append((f"{title}: errors are smaller than the error of the chain as follows", smaller))
    last = {name: _mean(rows, "hopper", lengths[-1], name) for name in CHAINS}
    joined = {join: last[name] / last["chain"] for name, join in (("blocks", "in order"), ("pairwise", "pairwise"))}
    return paragraph(
        *statements,
        (f"the errors of blocks of 64 divided by the error of the chain at k = {lengths[-1]} are", joined, ".2g×"),
    )


_runs, _mean = runs_by("hardware", "k"), mean_by("hardware", "k")


QUICK = {"lengths": tuple(4**i for i in range(3, 9)), "runs": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK, specs=SPECS)
