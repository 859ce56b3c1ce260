"""MAGMA's batched HGEMM over k, over the batch, and in updates of rank 16 one after another.

The paper's two shapes are square products and updates C <- C + A B with k = 16, as in a batched LU factorisation. In a
factorisation many such updates follow one another, and each writes its C in fp16. A batch is as wrong as its worst
product, so the largest error is drawn over the number of products too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, plotting, reference
from fpemu.batched import hgemm
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), sections 5.6, 7 and 8"""
TITLE = "errors of batched HGEMM over k, the batch, and updates of rank 16"
CAPTION = """Batched HGEMM of 16×16×k products, operands uniform in [-1, 1], against the exact product. (a) Relative L2
error over k. (b) Largest error over |A||B| in a batch over the number of its products, k = 16, which Hopper adds up in
one block: there its fp16 sums err as its fp32 sums do. (c) Relative L2 error of C after so many updates C <- C + A B of
rank 16, C in fp16 between them (beta = 1); grey: the same sum as one product accumulated in fp32. Summed in fp32
(filled; the three GPUs lie on one another) or in fp16 (open, dashed) on Volta, Ampere and Hopper, or by the kernel for
tiny matrices in fp16. Lines: mean over seeded runs; bands: smallest to largest; grey dots: 2^-11."""
ASSUMPTIONS = [
    "The paper gives neither errors nor the distribution of its operands: uniform in [-1, 1].",
    """(a) and (c): batches of 20 products at quick size, 100 at full size. The kernel for tiny matrices is made for
    n <= 32; its chain is drawn for k up to 64.""",
    """An update reads C in fp16, adds it in the accumulator's format to the product (alpha = beta = 1) and writes it in
    fp16, as the paper's post-processing does.""",
]
CHIPS = ("volta", "ampere", "hopper")
METHODS: dict[str, dict[str, Any]] = {
    f"{chip} {d}": {"hardware": chip, "accumulate": d} for chip in CHIPS for d in ("fp32", "fp16")
}
SMALL = "small"
ONE = "one product"
_OPTIONS: dict[str, dict[str, Any]] = METHODS | {SMALL: {"kernel": "magma-small", "accumulate": "fp16"}}
_LONGEST_SMALL = 64
RANK = 16
_SIZES: dict[str, Any] = {
    "quick": {
        "runs": 3,
        "batch": 20,
        "k": [2**i for i in range(0, 13, 2)],
        "batches": [1, 10, 100, 1000],
        "updates": [2**i for i in range(7)],
    },
    "full": {
        "runs": 10,
        "batch": 100,
        "k": [2**i for i in range(14)],
        "batches": [1, 10, 100, 1000, 10000],
        "updates": [2**i for i in range(9)],
    },
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    some = [("k", chosen["batch"], k, 1) for k in chosen["k"]]
    some += [("batch", batch, RANK, 1) for batch in chosen["batches"]]
    some += [("updates", chosen["batch"], RANK, updates) for updates in chosen["updates"]]
    return [
        {"panel": panel, "inputs": "uniform", "n": 16, "k": k, "batch": batch, "updates": updates, "seed": seed}
        for panel, batch, k, updates in some
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["batch"] * cell["n"] ** 2 * cell["k"] * cell["updates"])


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    n, K = cell["n"], cell["k"] * cell["updates"]
    A, B = inputs.operands(cell["inputs"], n, n, K, cell["seed"], "fp16", batch=cell["batch"], low=-1.0, high=1.0)
    exact = reference.matmul(A, B, device=device)
    results = {name: updated(A, B, cell["k"], options) for name, options in _OPTIONS.items()}
    results[ONE] = hgemm(A, B, hardware="ideal")
    numbers = {}
    for name, D in results.items():
        numbers[f"{name} relative_l2"] = metrics.relative_l2(D, exact)
        numbers[f"{name} normwise"] = metrics.normwise(D, exact, A, B)
    return numbers


def updated(A: NDArray[Any], B: NDArray[Any], k: int, options: dict[str, Any]) -> NDArray[np.float16]:
    """C after the updates of rank k that A and B are made of."""
    C = hgemm(A[..., :k], B[..., :k, :], **options)
    for at in range(k, A.shape[-1], k):
        C = hgemm(A[..., at : at + k], B[..., at : at + k, :], C, beta=1.0, **options)
    return C


_MARKED = {"volta": 6.0, "ampere": 4.5, "hopper": 3.0}  # so that all three show where they coincide


def _look(name: str) -> Series:
    if name == SMALL:
        return Series("tiny kernel, fp16", plotting.PURPLE, "P", ":")
    if name == ONE:
        return Series("one product, fp32", plotting.GREY, "x", "-.")
    chip, d = name.split()
    base = plotting.HARDWARE[chip]
    return Series(f"{base.label}, {d}", base.color, base.marker, "-" if d == "fp32" else "--", filled=d == "fp32")


PANELS = {"k": "relative_l2", "batch": "normwise", "updates": "relative_l2"}
_NAMES = {"k": "$k$", "batch": "products in the batch", "updates": "updates of rank 16"}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, height=3.2, share_y=False)
    for axis, (panel, measure) in zip(axes[0], PANELS.items(), strict=True):
        points = _points(rows, panel)
        names = [*METHODS, SMALL] + ([ONE] if panel == "updates" else [])
        for name in names:
            selected = [x for x in points if not (panel == "k" and name == SMALL and x > _LONGEST_SMALL)]
            runs = [_runs(rows, panel, x, f"{name} {measure}") for x in selected]
            plotting.band(axis, selected, runs, _look(name), markersize=_MARKED.get(name.split()[0], 4))
        axis.set_xscale("log", base=10 if panel == "batch" else 2)
        axis.set_yscale("log")
        axis.set_xlabel(_NAMES[panel])
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.axhline(2.0**-11, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
    axes[0, 0].set_ylabel("relative $L_2$ error")
    axes[0, 1].set_ylabel("largest error over $|A||B|$")
    axes[0, 2].set_ylabel("relative $L_2$ error")
    plotting.panel_titles(axes, ["over $k$", "over the batch", "over updates"])
    plotting.legend_below(figure, axes[0, 2], 4)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """A check of our own: the paper says nothing about errors."""
    points = [x for x in _points(rows, "updates") if x > 1]
    held = [_mean(rows, "updates", x, "volta fp16") > _mean(rows, "updates", x, "volta fp32") for x in points]
    ratios = [_mean(rows, "updates", x, "volta fp16") / _mean(rows, "updates", x, "volta fp32") for x in points]
    text = f"{min(ratios):.2f} to {max(ratios):.2f} times the error" if points else "no points"
    return [share("updates of rank 16 on Volta err more summed in fp16 than in fp32", "", held, text)]


def finding(rows: list[dict[str, Any]]) -> str:
    lengths, batches = _points(rows, "k"), _points(rows, "batch")
    updates = [x for x in _points(rows, "updates") if x > 1]
    statements: list[tuple[Any, ...]] = []
    if lengths:
        last = lengths[-1]
        statements += [
            (
                f"error summed in fp32, one rounding to fp16, k = {lengths[0]} to {last}",
                [_mean(rows, "k", k, f"{chip} fp32") for chip in CHIPS for k in lengths],
            ),
            (
                f"summed in fp16 at k = {last}",
                {chip.capitalize(): _mean(rows, "k", last, f"{chip} fp16") for chip in CHIPS},
                ".2g",
            ),
        ]
    if batches:
        worst = {
            f"{batch} product{'s' * (batch > 1)}": {
                d: _mean(rows, "batch", batch, f"volta {d}", "normwise") for d in ("fp32", "fp16")
            }
            for batch in (batches[0], batches[-1])
        }
        statements.append(("largest error relative to |A||B| on Volta, summed in fp32 and in fp16", worst, ".2g"))
    if updates:
        last = updates[-1]
        once = _mean(rows, "updates", last, ONE)
        ratio = {_look(name).label: _mean(rows, "updates", last, name) / once for name in METHODS}
        errors = [_mean(rows, "updates", x, "hopper fp32") for x in updates]
        growth = float(np.polyfit(np.log2(updates), np.log2(errors), 1)[0]) if len(updates) > 1 else None
        statements += [
            (f"error after {last} updates, C in fp16 between them, over that of one product", ratio, ".3g×"),
            ("power of the number of updates with which it grows, fp32 sums", growth, ".2f"),
        ]
    return paragraph(*statements)


def _points(rows: list[dict[str, Any]], panel: str) -> list[int]:
    return sorted({row[panel] for row in rows if row["panel"] == panel})


def _runs(rows: list[dict[str, Any]], panel: str, x: int, column: str) -> list[float]:
    return [row[column] for row in rows if row["panel"] == panel and row[panel] == x]


def _mean(rows: list[dict[str, Any]], panel: str, x: int, name: str, measure: str = "relative_l2") -> float:
    return float(np.mean(_runs(rows, panel, x, f"{name} {measure}")))
