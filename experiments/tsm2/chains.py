"""A chain of FMAs against products split over tensor cores, on long sums of positive data.

TSM2's shape, k large and n small, is where an fp32 chain is at its worst: its roundings add up over k. Schemes that
split fp32 numbers for tensor cores promise "fp32 accuracy" and are judged on square products; here is what they do on
this shape. Beside them the same chain cut in blocks, which are added in order or pairwise.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, mma, plotting, reference, schemes, simt
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim

from .._findings import paragraph
from .._rows import runs_by

PAPER = """Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs
(2020); schemes as their own papers have them"""
TITLE = "a chain of FMAs against products split over tensor cores"
CAPTION = """Relative L2 error against the exact product over k, operands uniform in [0, 1], products of 4 rows and 4
columns on (a) Ampere and (b) Hopper. Black: one chain of fp32 FMAs, what TSM2 computes; grey: the same in blocks of 64
summed in order (dash-dotted) and pairwise (dotted). Colours: fp32 products from parts on tensor cores: Markidis and
LE-GEMM (on one another) leave their sums in the truncating accumulator, Ootomo's main sum is promoted after every
instruction, staged after 64; bf16x9 adds nine products of bf16 words. Lines: mean over seeded runs; bands: smallest to
largest; dotted: 2^-24."""
ASSUMPTIONS = [
    """The shape of TSM2, all of k and few rows and columns: 4 by 4. Operands are uniform in [0, 1], as in its paper,
    and rounded to fp32.""",
    """Schemes have their default options and one order of k, ascending; none is known to have been run on this shape. A
    kernel that splits k would shorten every chain.""",
    """Blocks of 64: each a chain of FMAs from zero, joined in fp32 in ascending order, or pairwise (neighbours, then
    sums of neighbours).""",
    "A scheme is better than the chain at a k if its mean error over the runs is the smaller one.",
]
CHAINS: dict[str, mma.KOrder] = {
    "chain": mma.KOrder(),
    "blocks": mma.KOrder(split=64),
    "pairwise": mma.KOrder(split=64, join="pairwise"),
}
SCHEMES = ("markidis", "legemm", "ootomo", "ootomo-tf32", "staged", "bf16x9")
SPECS = [(gpu, words, "fp32") for gpu in ("ampere", "hopper") for words in ("fp16", "tf32", "bf16")]
_SIZES: dict[str, Any] = {
    "quick": {"lengths": [2**i for i in range(6, 17, 2)], "runs": 3},
    "full": {"lengths": [2**i for i in range(6, 21)], "runs": 10},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {"hardware": hardware, "inputs": "uniform", "m": 4, "n": 4, "k": k, "seed": seed}
        for k in chosen["lengths"]
        for seed in range(chosen["runs"])
        for hardware in ("ampere", "hopper")
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["k"] + 1000)


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
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
    "markidis": plotting.SCHEMES["markidis"],
    "legemm": plotting.SCHEMES["legemm"],
    "ootomo": plotting.SCHEMES["ootomo"],
    "ootomo-tf32": Series("Ootomo, tf32", plotting.PURPLE, "d"),
    "staged": plotting.SCHEMES["staged"],
    "bf16x9": Series("bf16x9", plotting.BLUE, "P"),
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, height=3.4)
    lengths = sorted({row["k"] for row in rows})
    for axis, hardware in zip(axes[0], ("ampere", "hopper"), strict=True):
        for name, look in _LOOK.items():
            plotting.band(axis, lengths, [_runs(rows, hardware, k, name) for k in lengths], look)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("$k$")
        axis.set_xticks(lengths if len(lengths) < 9 else lengths[::2])
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.axhline(2.0**-24, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
    axes[0, 0].set_ylabel("relative $L_2$ error")
    plotting.panel_titles(axes, ["Ampere", "Hopper"])
    plotting.legend_below(figure, axes[0, 0], 3)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper says nothing about errors, and the schemes' papers nothing about this shape."""
    return []


def finding(rows: list[dict[str, Any]]) -> str:
    lengths = sorted({row["k"] for row in rows})
    statements: list[tuple[Any, ...]] = []
    for hardware in ("ampere", "hopper"):
        mean = {name: np.array([np.mean(_runs(rows, hardware, k, name)) for k in lengths]) for name in _LOOK}
        smaller = {}
        for name in SCHEMES:
            better = mean[name] < mean["chain"]
            first = next((k for i, k in enumerate(lengths) if better[i:].all()), None)
            where = "nowhere" if not better.any() else "everywhere" if better.all() else f"from k = {first}"
            if first is None and better.any():
                where = f"at {int(better.sum())} of {len(lengths)} lengths"
            smaller[_LOOK[name].label] = f"{where} ({mean[name][-1] / mean['chain'][-1]:.3g}× at the end)"
        statements.append((f"{hardware.capitalize()}, errors smaller than the chain's", smaller))
    last = {name: np.mean(_runs(rows, "hopper", lengths[-1], name)) for name in CHAINS}
    joined = {join: last[name] / last["chain"] for name, join in (("blocks", "in order"), ("pairwise", "pairwise"))}
    return paragraph(*statements, (f"blocks of 64 over the chain at k = {lengths[-1]}", joined, ".2g×"))


_runs = runs_by("hardware", "k")
