"""DGEMM-TC, figure 5b: number of slices and of products in DP mode, and the speed that follows (section 4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from . import _counts
from ._counts import PHI, cells, cost, evaluate, lengths, means

__all__ = [
    "ASSUMPTIONS",
    "CAPTION",
    "EXPLAINS",
    "PAPER",
    "TITLE",
    "cells",
    "claims",
    "cost",
    "draw",
    "evaluate",
    "finding",
]

PAPER = f"{_counts.PAPER}.2, figure 5b"
TITLE = "slices and products of DGEMM-TC in DP mode"
CAPTION = """(a) Slices of A (solid) and of B (dotted, mostly covered) by Algorithm 3 and (b) products of slices over n,
operands (rand - 0.5)·exp(φ·randn), means over outer blocks; (c) the speed they allow, 0.7·92 TFLOP/s over the number of
products, and published speeds: stars, n = 7168 from section 5.2 and n = 10240 from Table 1; dashed, cublasDgemm. At
quick size A has 128 rows and B 128 columns, with the whole of k = n."""
ASSUMPTIONS = [
    *_counts.ASSUMPTIONS,
    """Expected speed: tensor cores at 92 TFLOP/s for 70 % of the time, what the paper gives for n = 7168, φ = 0.1, for
    every n and φ. A published speed is met within 10 %.""",
    """Memory counts every product, s_A·s_B, since the paper keeps all of them, in fast mode too (section 4.3); 20 GB
    are those of section 5.1.""",
]
EXPLAINS = {"dgemm_tc/fig5b": ("TFLOP/s",)}
PEAK = 92.0
PUBLISHED = {(7168, 0.1): 0.98, (10240, 0.1): 0.9724, (10240, 1.0): 0.8230, (10240, 2.0): 0.7131}
"""TFLOP/s by (n, phi)."""


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = _counts.draw_counts(rows, "DP")
    axis = axes[0, 2]
    _counts.panel(axis, rows, "TFLOP/s on fp64")
    for phi, look in _counts.LOOK.items():
        (products,) = means(rows, phi, "DP products")
        axis.plot(lengths(rows), [_speed(count) for count in products], **look.line(label="_expected"))
    for (n, phi), speed in PUBLISHED.items():
        color = _counts.LOOK[phi].color
        axis.plot(n, speed, "*", color=color, markersize=9, markeredgecolor="black", markeredgewidth=0.5, zorder=4)
    axis.axhline(0.539, color=plotting.BLACK, linestyle="--", linewidth=0.8)
    axis.annotate("cublasDgemm", (1000, 0.539), xytext=(0, 3), textcoords="offset points", fontsize=7)
    axis.set_ylim(bottom=0.4)
    plotting.panel_titles(axes, ["slices", "products", "speed expected"])
    plotting.legend_below(figure, axes[0, 0], 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    here = [row["DP products"] for row in rows if (row["n"], row["phi"]) == (7168, PHI[0])]
    text = f"{_counts.numbers(here)} with {_rows(rows, 7168)} rows" if here else ""
    mean = float(np.mean(here)) if here else None
    yield share("products at n = 7168, φ = 0.1", "66", [count == 66 for count in here], text, mean)
    products = [means(rows, phi, "DP products")[0] for phi in PHI]
    yield _counts.slices_claim(rows, "DP")
    for (n, phi), speed in PUBLISHED.items():
        count = products[PHI.index(phi)][lengths(rows).index(n)] if n in lengths(rows) else np.nan
        held = [abs(_speed(count) / speed - 1) <= 0.1] if n in lengths(rows) else []
        text = f"TFLOP/s expected at n = {n}, φ = {phi:g}"
        measured = f"{_speed(count):.3g} from {count:.4g} products" if held else ""
        yield share(text, f"{speed:g}", held, measured, _speed(count))
    yield _counts.memory_claim(rows, "DP")


def finding(rows: list[dict[str, Any]]) -> str:
    counted = {
        (n, phi): float(means(rows, phi, "DP products")[0][lengths(rows).index(n)])
        for n, phi in PUBLISHED
        if n in lengths(rows)
    }
    if not counted:
        return ""
    names = {point: f"n = {point[0]}, φ = {point[1]:g}:" for point in counted}
    return paragraph(
        (
            f"products that the published speeds imply, with the tensor cores at 70 % of {PEAK:g} TFLOP/s",
            {names[point]: _implied(PUBLISHED[point]) for point in counted},
        ),
        (
            f"products counted with {_rows(rows, max(counted)[0])} rows",
            {names[p]: x for p, x in counted.items()},
            ".4g",
        ),
        (
            "share of the peak that these would take",
            {names[p]: PUBLISHED[p] * x / PEAK for p, x in counted.items()},
            ".2g%",
        ),
        ("one slice more than d is d + 1 products more, and Algorithm 3 needs as many as the worst row", True),
        ("a claim that fails by one slice fails by the tail of the random numbers or by the share of the peak", True),
    )


def _speed(products: float) -> float:
    """TFLOP/s expected of so many products; NaN where there are no rows to count them."""
    from . import model as dgemm_tc

    return dgemm_tc.speed(products, PEAK) if np.isfinite(products) else np.nan


def _implied(speed: float) -> float:
    """The products that a speed in TFLOP/s stands for."""
    from . import model as dgemm_tc

    return dgemm_tc.implied_products(speed, PEAK)


def _rows(rows: list[dict[str, Any]], n: int) -> str:
    return " or ".join(str(r) for r in sorted({row["rows"] for row in rows if row["n"] == n}))
