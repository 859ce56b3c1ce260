"""DGEMM-TC, sections 4.3 and 5.2: the cells of figures 5b and 7b, slices and products found by splitting alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpemu import inputs, plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share
from fpemu.schemes import ozaki
from fpemu.schemes.errorfree.blocks import even, pieces

from ._accuracy import PAPER, PHI

__all__ = ["ASSUMPTIONS", "PAPER", "PHI", "cells", "cost", "draw_counts", "evaluate", "means", "memory", "panel"]

ASSUMPTIONS = [
    """Bits a slice are those of Algorithm 1, floor((24 - log2 n) / 2), which is also what keeps the products exact on
    the tensor cores of the Titan RTX (the Turing row of the catalog).""",
    """As in the paper A is cut into blocks of rows and B into blocks of columns, b = ceil(n / ceil(n / 3584)) of each;
    every pair of blocks has its own number of slices by Algorithm 3; shown are means over the pairs.""",
    """k = n throughout. At quick size A has 128 rows and B 128 columns, one block: with fewer rows Algorithm 3, which
    asks for the worst row, may take a slice less than with all, and CR mode too.""",
    "The sizes between 1024 and 10240 are ours.",
]
LENGTHS = (1024, 2048, 3584, 5120, 7168, 10240)
BLOCK = ozaki.BLOCK
_SIZES: dict[str, dict[str, Any]] = {"quick": {"rows": 128, "runs": 3}, "full": {"rows": None, "runs": 1}}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {"hardware": "turing", "inputs": "phi", "phi": phi, "n": n, "rows": chosen["rows"] or n, "seed": seed}
        for n in LENGTHS
        for phi in PHI
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["n"] * cell["rows"] * -(-cell["rows"] // BLOCK))


def evaluate(cell: dict[str, Any]) -> dict[str, float]:
    """Means over the blocks: slices of A, of B and products, in DP and in CR mode."""
    sizes = [i.stop - i.start for i in pieces(cell["rows"], even(cell["rows"], BLOCK))]
    fast, every = [], []
    for i, rows in enumerate(sizes):
        A = _block(cell, 0, i, (rows, cell["n"]))
        for j, columns in enumerate(sizes):
            B = _block(cell, 1, j, (cell["n"], columns))
            fast.append(ozaki.counts(A, B, hardware=cell["hardware"], slices="printed"))
            if i == j:
                every.append(ozaki.counts(A, B, hardware=cell["hardware"], mode="CR").slices)
    (a, b), (c, d) = np.mean([found.slices for found in fast], axis=0), np.mean(every, axis=0)
    return {
        "DP slices A": float(a),
        "DP slices B": float(b),
        "DP products": float(np.mean([f.products for f in fast])),
        "CR slices A": float(c),
        "CR slices B": float(d),
        "CR products": float(c * d),
    }


def _block(cell: dict[str, Any], side: int, index: int, shape: tuple[int, int]) -> Any:
    # drawn one by one, so that the whole matrices are never in memory
    return inputs.make(cell["inputs"], shape, (cell["seed"], side, index + 1), "fp64", phi=cell["phi"])


def memory(n: int, slices_a: float, slices_b: float) -> float:
    """GB of section 4.3: (s_A + s_B) k b words of fp16 and s_A s_B b² of fp32."""
    from . import model as dgemm_tc  # here: the module's imports are part of the key of every stored cell

    return dgemm_tc.memory(n, n, n, slices_a, slices_b).total / 1e9


def means(rows: list[dict[str, Any]], phi: float, *columns: str) -> list[Any]:
    """Means over the runs, for each n."""
    selected = {n: [r for r in rows if r["phi"] == phi and r["n"] == n] for n in lengths(rows)}
    return [np.array([np.mean([r[c] for r in some]) for some in selected.values()]) for c in columns]


def lengths(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["n"] for row in rows})


LOOK = {
    phi: Series(f"$\\varphi$ = {phi:g}", color, marker)
    for phi, color, marker in zip(PHI, (plotting.BLUE, plotting.VERMILION, plotting.GREEN), "o^D", strict=True)
}


def draw_counts(rows: list[dict[str, Any]], mode: str) -> tuple[Any, Any]:
    """Slices and products over n, and a third panel for the caller."""
    figure, axes = plotting.figure(3, height=2.5, share_y=False)
    for axis, label in zip(axes[0], ("slices of A and of B", "products (GEMMs)"), strict=False):
        panel(axis, rows, label)
    for phi, look in LOOK.items():
        a, b, products = means(rows, phi, f"{mode} slices A", f"{mode} slices B", f"{mode} products")
        axes[0, 0].plot(lengths(rows), a, **look.line())
        axes[0, 0].plot(lengths(rows), b, **look.line(linestyle=":", label="_B", markerfacecolor="white"))
        axes[0, 1].plot(lengths(rows), products, **look.line())
    for axis in axes[0, :2]:
        axis.margins(y=0.1)
        axis.set_ylim(bottom=0)
        axis.yaxis.get_major_locator().set_params(integer=True)
    return figure, axes


def panel(axis: Any, rows: list[dict[str, Any]], label: str) -> None:
    axis.set_ylabel(label)
    axis.set_xlabel("$n$")
    axis.set_xticks(range(2048, 10241, 2048), [str(n) for n in range(2048, 10241, 2048)])
    axis.set_xlim(500, 10800)


def slices_claim(rows: list[dict[str, Any]], mode: str) -> Claim:
    """Wider inputs take more slices."""
    slices = [means(rows, phi, f"{mode} slices A")[0] for phi in PHI]
    text = ", ".join(f"{numbers(x)} at φ = {phi:g}" for phi, x in zip(PHI, slices, strict=True))
    return share("more slices at φ = 2 than at φ = 0.1, every n", "more for wider inputs", slices[-1] > slices[0], text)


def memory_claim(rows: list[dict[str, Any]], mode: str) -> Claim:
    """A block fits into the memory of the paper."""
    pairs = [means(rows, phi, f"{mode} slices A", f"{mode} slices B") for phi in PHI]
    sizes = [[memory(n, x, y) for n, x, y in zip(lengths(rows), a, b, strict=True)] for a, b in pairs]
    text = f"{np.min(sizes):.2g} to {np.max(sizes):.3g} GB"
    return share(f"memory of a block, {mode} mode", "within 20 GB", np.array(sizes) <= 20, text)


def numbers(values: Any) -> str:
    """A range in words."""
    low, high = np.min(values), np.max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
