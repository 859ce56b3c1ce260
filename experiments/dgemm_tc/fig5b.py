"""DGEMM-TC, figure 5b: number of slices and of products in DP mode, and the speed that follows (section 4.3)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _counts
from ._counts import PHI, QUICK, cells, cost, evaluate, lengths, means

PAPER = f"{_counts.PAPER}, section 5.2, figure 5b"
CAPTION = """(a) Slices of A and of B by Algorithm 3 and (b) products of slices over n, operands
(rand - 0.5)·exp(φ·randn), means over blocks and seeds; (c) the speed that the products allow, 0.7·92 TFLOP/s over their
number, and published speeds of a Titan RTX (stars, in the colours of φ) and of its cublasDgemm."""
SPEED = """The expected speed assumes 92 TFLOP/s of the tensor cores in 70 % of the time. The paper states both numbers
for n = 7168 and φ = 0.1 only; for other n and φ they may differ."""
PEAK = 92.0
"""TFLOP/s of the calls of GEMM, as in `model.THROUGHPUT`."""
PUBLISHED = {(7168, 0.1): 0.98, (10240, 0.1): 0.9724, (10240, 1.0): 0.8230, (10240, 2.0): 0.7131}
"""TFLOP/s by (n, phi)."""
STATED = (7168, 0.1)
"""The n and φ for which the paper states its numbers."""


def draw(rows: list[Row]) -> Any:
    figure, axes = _counts.draw_counts(rows, "DP")
    axis = axes[2, 0]
    axis.set_ylabel("TFLOP/s (2$n^3$ / time)")
    for phi, look in _counts.LOOK.items():
        (products,) = means(rows, phi, "DP products")
        axis.plot(lengths(rows), [_speed(count) for count in products], **look.line(label="_expected"))
    star = {"marker": "*", "linestyle": "none", "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.5}
    for (n, phi), speed in PUBLISHED.items():
        axis.plot(n, speed, color=_counts.LOOK[phi].color, zorder=4, **star)
        name = {"fontsize": 6.5, "ha": "right", "textcoords": "offset points"}
        axis.annotate(_counts.LOOK[phi].label, (n, speed), xytext=(-6, 4), **name)
    axis.plot([], [], color="white", label="published, Titan RTX", **star)
    axis.axhline(0.539, color=plotting.BLACK, linestyle=":", linewidth=0.9, label="cublasDgemm, Titan RTX")
    axis.set_ylim(bottom=0.4)
    plotting.panel_titles(axes, ["slices", "products", "expected speed, 0.7 · 92 TFLOP/s / products"])
    _counts.legend_of_counts(figure, axes, rows)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    count = _count(rows, *STATED)
    if count:
        yield Measure("dp_products", count)
    for (n, phi), speed in PUBLISHED.items():
        if (n, phi) != STATED and (counted := _count(rows, n, phi)):
            yield Measure("expected_speed", _speed(counted) / speed, variant=f"φ = {phi:g}")
    narrow, wide = (means(rows, phi, "DP slices A")[0] for phi in (PHI[0], PHI[-1]))
    yield Measure("wider_more_slices", float(np.min(wide - narrow)))


def finding(rows: list[Row]) -> str:
    counted = {f"n = {n}, φ = {phi:g}:": _count(rows, n, phi) for n, phi in PUBLISHED}
    implied = {f"n = {n}, φ = {phi:g}:": _implied(speed) for (n, phi), speed in PUBLISHED.items()}
    return paragraph(
        ("the numbers of products, means over blocks and seeds, are", counted, ".4g"),
        (f"the published speeds, with {PEAK:g} TFLOP/s in 70 % of the time, imply these numbers of products", implied),
        ("one slice more than d adds d + 1 products, and the worst row determines d in Algorithm 3", True),
    )


def _count(rows: list[Row], n: int, phi: float) -> float:
    """Products in DP mode, the mean over the seeds; 0 without rows."""
    counts = [row["DP products"] for row in rows if (row["n"], row["phi"]) == (n, phi)]
    return float(np.mean(counts)) if counts else 0.0


def _speed(products: float) -> float:
    """TFLOP/s expected of so many products."""
    from . import model

    return model.speed(products, PEAK)


def _implied(speed: float) -> float:
    """The products that a speed in TFLOP/s corresponds to."""
    from . import model

    return model.implied_products(speed, PEAK)


PAGE = Page(
    PAPER,
    CAPTION,
    lambda given: [*_counts.assumptions(given), SPEED],
    cells,
    evaluate,
    draw,
    measures,
    finding,
    cost,
    QUICK,
)
