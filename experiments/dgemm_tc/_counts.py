"""DGEMM-TC, sections 4.3 and 5.2: numbers of slices and products, for figures 5b and 7b."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fpemu import inputs, plotting
from fpemu.plotting import Series
from fpemu.schemes import ozaki

from .._rows import Row
from . import _record
from ._pages import TITAN, unit
from ._record import PAPER, PHI

__all__ = [
    "PAPER",
    "PHI",
    "QUICK",
    "assumptions",
    "cells",
    "cost",
    "draw_counts",
    "evaluate",
    "legend_of_counts",
    "lengths",
    "means",
    "memory",
]

ASSUMPTIONS = [
    """Slices have the number of bits of Algorithm 1, floor((24 - log2 n) / 2), with which the products are exact on the
    tensor cores of the Titan RTX.""",
    """At full size an H200 counts with all rows and columns, for 20 seeds. As in the paper, A is divided into blocks of
    b = ceil(n / ceil(n / 3584)) rows and B into blocks of b columns; Algorithm 3 determines the number of slices of
    each block of A, with all of B. The numbers are means over the pairs of blocks.""",
    """At quick size the CPU counts for 128 rows of A and 128 columns of B, in one block. The worst row determines the
    number of slices in Algorithm 3, so fewer rows may need one slice less than all rows.""",
    "The paper does not state the sizes between 1024 and 10240; this project chose them.",
]


def assumptions(given: Mapping[str, Any]) -> list[str]:
    if given["hardware"] == TITAN:
        return ASSUMPTIONS
    counted = """Slices have the number of bits with which their products are exact on this unit; Algorithm 1 has
    floor((24 - log2 n) / 2)."""
    m = given["rows"]
    rows = f"""The CPU counts for {m} rows of A and {m} columns of B, in one block. The worst row determines the number
    of slices in Algorithm 3, so fewer rows may need one slice less than all rows."""
    return [unit(given), counted, rows, *ASSUMPTIONS[3:]]


QUICK = {"recorded": False}


def cells(
    recorded: bool = True,
    lengths: tuple[int, ...] = (1024, 2048, 3584, 5120, 7168, 10240),
    rows: int = 128,
    seeds: int = 3,
    hardware: str = TITAN,
) -> list[Row]:
    """A record of a GPU holds the counts at full size; the CPU counts fewer rows, also on every other unit."""
    if recorded and hardware == TITAN:
        return _record.cells("counts", lambda row: True, "n", "phi", "seed")
    common = {"hardware": hardware, "inputs": "phi", "rows": rows}
    return [{**common, "phi": phi, "n": n, "seed": seed} for n in lengths for phi in PHI for seed in range(seeds)]


def cost(cell: Row) -> float:
    return float(cell["n"])


def evaluate(cell: Row) -> dict[str, float]:
    """Slices of A, of B and products, in DP and in CR mode."""
    if "record" in cell:
        return _record.numbers("counts", cell)
    shapes = ((cell["rows"], cell["n"]), (cell["n"], cell["rows"]))
    A, B = (
        inputs.make(cell["inputs"], shape, (cell["seed"], side, 1), "fp64", phi=cell["phi"])
        for side, shape in enumerate(shapes)
    )
    numbers = {}
    for mode, options in (("DP", {"slices": "printed"}), ("CR", {"mode": "CR"})):
        counts = ozaki.counts(A, B, hardware=cell["hardware"], **options)
        numbers[f"{mode} slices A"], numbers[f"{mode} slices B"] = map(float, counts.slices)
        numbers[f"{mode} products"] = float(counts.products)
    return numbers


def memory(n: int, slices_a: float, slices_b: float) -> float:
    """GB of section 4.3: (s_A + s_B) k b words of fp16 and s_A s_B b² of fp32."""
    from . import model  # here: the imports of a module are part of the key of every stored cell

    return model.memory(n, n, n, slices_a, slices_b).total / 1e9


def means(rows: list[Row], phi: float, *columns: str) -> list[Any]:
    """Means over the seeds, for each n."""
    selected = [[r for r in rows if r["phi"] == phi and r["n"] == n] for n in lengths(rows)]
    return [np.array([np.mean([r[c] for r in some]) for some in selected]) for c in columns]


def lengths(rows: list[Row]) -> list[int]:
    return sorted({row["n"] for row in rows})


LOOK = {
    phi: Series(f"$\\varphi$ = {phi:g}", color, marker, dash)
    for phi, color, marker, dash in zip(
        PHI, (plotting.BLUE, plotting.VERMILION, plotting.GREEN), "o^D", ("-", "--", "-."), strict=True
    )
}


def draw_counts(rows: list[Row], mode: str) -> tuple[Any, Any]:
    """Slices and products over n, and a third panel for the caller, on one axis of n."""
    figure, axes = plotting.figure(1, 3, height=5.6, share_y=False)
    for axis, label in zip(axes[:, 0], ("slices", "products (GEMMs)"), strict=False):
        axis.set_ylabel(label)
    for phi, look in LOOK.items():
        a, b, products = means(rows, phi, f"{mode} slices A", f"{mode} slices B", f"{mode} products")
        # a ring around each marker: both counts show where they are equal
        axes[0, 0].plot(lengths(rows), b, **look.line(label="_B", markersize=7.5, markerfacecolor="none"))
        axes[0, 0].plot(lengths(rows), a, **look.line())
        axes[1, 0].plot(lengths(rows), products, **look.line(label="_"))
    key = Series("", plotting.BLACK, "o", "none")
    axes[0, 0].plot([], [], **key.line(label="slices of A"))
    axes[0, 0].plot([], [], **key.line(label="slices of B", markersize=7.5, markerfacecolor="none"))
    axes[0, 0].margins(y=0.15)
    axes[0, 0].yaxis.get_major_locator().set_params(integer=True)
    axes[1, 0].set_ylim(bottom=0)
    axes[2, 0].set_xticks(lengths(rows), [str(n) for n in lengths(rows)])
    axes[2, 0].set_xlabel("$n$")
    return figure, axes


def legend_of_counts(figure: Any, axes: Any, rows: list[Row]) -> None:
    """One legend of all panels, with the number of seeds and the rows that were counted."""
    counted = "all rows and columns" if "record" in rows[0] else f"{rows[0]['rows']} rows and columns"
    seeds = len({row["seed"] for row in rows})
    plotting.legend_below(figure, axes[:, 0], 3, title=f"means over blocks and {seeds} seeds, {counted}")
