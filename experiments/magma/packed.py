"""MAGMA batched, section 8.1: does a product that shares an instruction with others have the bits that it has alone?

Two arrangements put as many products of one size into a 16×16×16 instruction. Matrices of A below one another and
those of B beside one another give the products on the diagonal of D, in the same k. Matrices of A on a diagonal and
those of B below one another give the products below one another, each in its own k: what hardware adds up at a time, a
block of 4, 8 or 16 terms, then may cut a product elsewhere than where it starts at k = 0. The zeros beside the diagonal
meet the entries of the other products, and an infinity among those makes NaN of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, mma, plotting, reference
from fpemu.batched import hgemm
from fpemu.mma import MmaSpec
from fpemu.mma._device import Device
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), section 8.1, figure 16"""
EXPLAINS = ("magma/packed",)
TITLE = "several small products in one instruction: are they the bits of each alone?"
CAPTION = """Share of the entries of n×n×n products whose sums have other bits in a 16×16×16 instruction that
floor(16/n) products share than alone. Colours: matrices of A on a diagonal, those of B below one another, so that each
product has its own k (Turing and Ampere are one line, Hopper has no other bits); black: A below one another, B beside
one another, all in the same k, the most of any hardware. Sums in (a) fp16, (b) fp32, before they are rounded to fp16;
operands uniform in [-1, 1]. Lines: mean over seeded runs; bands: smallest to largest."""
ASSUMPTIONS = [
    """The text does not say how the products lie in figure 16: floor(16/n) of them in one instruction, as it has them,
    fit in both arrangements.""",
    "The instruction is CUDA's 16×16×16: 16 of k ascending, in as many instructions as the hardware needs for it.",
    "An infinity is one entry of B, [0, 0] of the first product of each instruction; the others stay finite.",
]
CHIPS = ("volta", "turing", "ampere", "hopper", "cdna2")
ARRANGEMENTS = ("same k", "own k")
ACCUMULATORS = ("fp16", "fp32")
SIDE = 16
_SIZES = {"quick": {"runs": 3, "groups": 40}, "full": {"runs": 10, "groups": 400}}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {"hardware": chip, "accumulate": d, "inputs": "uniform", "n": n, "groups": chosen["groups"], "seed": seed}
        for n in range(1, SIDE // 2 + 1)
        for d in ACCUMULATORS
        for chip in CHIPS
        if d == "fp32" or _has_fp16(chip)
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["groups"] * SIDE**3)


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    n, g = cell["n"], SIDE // cell["n"]
    A, B = inputs.operands(cell["inputs"], n, n, n, cell["seed"], "fp16", batch=(cell["groups"], g), low=-1.0, high=1.0)
    spec = _spec(cell["hardware"], cell["accumulate"])
    alone, exact = mma.gemm(A, B, None, spec, device=device), reference.matmul(A, B, device=device)
    options = {"hardware": cell["hardware"], "accumulate": cell["accumulate"]}
    infinite = B.copy()
    infinite[:, 0, 0, 0] = np.inf
    numbers = {"alone relative_l2": metrics.relative_l2(hgemm(A, B, **options), exact)}
    for how in ARRANGEMENTS:
        sums = together(A, B, how, lambda x, y: mma.gemm(x, y, None, spec, device=device))
        results = together(A, B, how, lambda x, y: hgemm(x, y, **options))
        others = together(A, infinite, how, lambda x, y: hgemm(x, y, **options))[:, 1:]
        numbers[f"{how} differing"] = float(np.mean(_codes(sums) != _codes(alone)))
        numbers[f"{how} relative_l2"] = metrics.relative_l2(results, exact)
        numbers[f"{how} nan"] = float(np.mean(np.isnan(others)))
    return numbers


def together(A: NDArray[Any], B: NDArray[Any], how: str, multiply: Any) -> NDArray[Any]:
    """Products (groups, g, n, n), each group in one 16×16×16 product by ``multiply``."""
    groups, g, n, _ = A.shape
    x, y = (np.zeros((groups, SIDE, SIDE), np.float16) for _ in range(2))
    places = [slice(j * n, (j + 1) * n) for j in range(g)]
    first = slice(0, n)
    selected = how == "own k"
    for j, place in enumerate(places):
        x[:, place, place if selected else first] = A[:, j]
        y[:, place if selected else first, first if selected else place] = B[:, j]
    D = multiply(x, y)
    return np.stack([D[:, place, first if selected else place] for place in places], axis=1)


def same_cuts(n: int, block: int) -> bool:
    """Whether every product that starts at a multiple of n is cut by blocks as one that starts at 0 is."""
    cuts = [{k - j * n for k in range(j * n + 1, (j + 1) * n) if k % block == 0} for j in range(SIDE // n)]
    return all(cut == cuts[0] for cut in cuts)


def _spec(chip: str, accumulate: str) -> MmaSpec:
    return mma.spec(chip, "fp16", accumulate, "mma" if _has_fp16(chip) else None)


def _has_fp16(chip: str) -> bool:
    return not chip.startswith("cdna")


def _codes(x: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(x).view(np.uint16 if x.dtype == np.float16 else np.uint32)


_MARKED = {"turing": 7.0, "hopper": 6.0}  # so that they show beneath what they coincide with


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, height=2.9, share_y=True)
    lengths = sorted({row["n"] for row in rows})
    for axis, d in zip(axes[0], ACCUMULATORS, strict=True):
        for chip in CHIPS:
            selected = [n for n in lengths if _runs(rows, chip, d, n)]
            if selected:
                look, runs = plotting.HARDWARE[chip], [_runs(rows, chip, d, n) for n in selected]
                axis.plot(selected, [np.mean(x) for x in runs], **look.line(markersize=_MARKED.get(chip, 4)))
                axis.fill_between(
                    selected, [min(x) for x in runs], [max(x) for x in runs], color=look.color, alpha=0.15, linewidth=0
                )
        most = [
            max(row["same k differing"] for row in rows if (row["accumulate"], row["n"]) == (d, n))
            for n in lengths
            if any((row["accumulate"], row["n"]) == (d, n) for row in rows)
        ]
        axis.plot(
            lengths[: len(most)],
            most,
            color=plotting.BLACK,
            marker="x",
            linestyle=":",
            markersize=4,
            label="same $k$, the most",
        )
        axis.set_xticks(lengths)
        axis.set_xlabel("$n$")
    axes[0, 0].set_ylabel("share of entries with other bits")
    plotting.panel_titles(axes, ["sums in fp16", "sums in fp32"])
    plotting.legend_below(figure, axes[0, 1], 3)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Checks of our own: the paper says nothing about bits."""
    same = [row["same k differing"] for row in rows]
    cut = [
        (same_cuts(row["n"], _spec(row["hardware"], row["accumulate"]).block), row["own k differing"]) for row in rows
    ]
    kept, changed = ([x for whole, x in cut if whole is want] for want in (True, False))
    return [
        share(
            "products in the same k have the bits of each alone",
            "",
            [x == 0 for x in same],
            f"{max(same, default=0):.0%} differ at most",
        ),
        share(
            "products in their own k have them wherever a block cuts each as it cuts the first",
            "",
            [x == 0 for x in kept],
            f"{max(kept, default=0):.0%} differ at most",
        ),
        share(
            "and not where it cuts one elsewhere",
            "",
            [x > 0 for x in changed],
            f"{min(changed, default=0):.1%} to {max(changed, default=0):.1%} differ",
        ),
    ]


def finding(rows: list[dict[str, Any]]) -> str:
    other: dict[str, dict[str, str]] = {}
    for chip in CHIPS:
        for d in ACCUMULATORS:
            runs = {n: _runs(rows, chip, d, n) for n in sorted({row["n"] for row in rows})}
            sizes = [n for n, shares in runs.items() if shares and max(shares) > 0]
            if any(runs.values()):
                most = max(max(shares) for shares in runs.values() if shares)
                text = f"n = {', '.join(map(str, sizes))} (at most {most:.1%})" if sizes else "no n"
                name = f"{plotting.HARDWARE[chip].label}, blocks of {_spec(chip, 'fp32').block}"
                other.setdefault(name, {})[f"{d}:"] = text
    ratios = [row["own k relative_l2"] / row["alone relative_l2"] for row in rows]
    nan = {how: [row[f"{how} nan"] for row in rows] for how in ARRANGEMENTS}
    return paragraph(
        ("entries with other bits in products in their own k", other),
        ("their error over that of each alone", ratios, ".3f×"),
        ("entries of the others that an infinity in one product's B makes NaN, by 0 · Inf", nan, ".3g%"),
        ("a kernel that lays products along k must look for infinities and NaN first", max(nan["own k"]) > 0),
    )


def _runs(rows: list[dict[str, Any]], chip: str, d: str, n: int) -> list[float]:
    return [row["own k differing"] for row in rows if (row["hardware"], row["accumulate"], row["n"]) == (chip, d, n)]
