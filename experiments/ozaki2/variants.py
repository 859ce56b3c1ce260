"""Ozaki scheme II: published median errors of ozIMMU and Ozaki scheme II, by the variants that the results leave open.

ozIMMU adds each product of slices in fp64, or first products of equal weight in int32 without error (the variant that
its second paper calls error-free). Ozaki scheme II scales its operands by the fast or the accurate mode of GEMMul8.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import inputs, plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import product_in_two
from .._rows import Row, in_legend
from .yardsticks import H200, PAPER, PHI, PUBLISHED, median, unit

CAPTION = """Median relative error against the exact product, n = 8192, fp64 operands (rand - 0.5)·exp(φ·randn), φ =
0.5: ozIMMU with each product of slices added in fp64 or products of equal weight first in int32, and Ozaki scheme II in
the accurate and in the fast mode of scaling. Stars: published for a GH200."""
ASSUMPTIONS = [
    """The published errors are medians over n×n×n products on a GH200. Here k is equal, but A has 64 rows and B has 64
    columns.""",
    "The published results name neither the variant of ozIMMU nor the mode of Ozaki scheme II.",
]
N = 8192
READINGS: dict[str, dict[str, dict[str, Any]]] = {
    "ozIMMU": {"each product in fp64": {"sums": "each"}, "equal weights in int32": {"sums": "group"}},
    "Ozaki II": {"accurate mode": {"scaling": "accurate"}, "fast mode": {"scaling": "fast"}},
}
METHODS: dict[str, dict[str, Any]] = {
    "ozIMMU s = 8": {"scheme": "ozimmu", "slices": 8},
    "ozIMMU s = 9": {"scheme": "ozimmu", "slices": 9},
    "Ozaki II N = 14": {"scheme": "ozaki2", "moduli": 14},
    "Ozaki II N = 15": {"scheme": "ozaki2", "moduli": 15},
    "Ozaki II N = 16": {"scheme": "ozaki2", "moduli": 16},
}
CLAIMS = {"ozIMMU": "ozimmu_medians", "Ozaki II": "ozaki2_medians"}


def _readings(method: str) -> dict[str, dict[str, Any]]:
    return next(of for name, of in READINGS.items() if method.startswith(name))


def assumptions(given: Mapping[str, Any]) -> list[str]:
    return [*ASSUMPTIONS, *unit(given, [(H200, "int8", "int32")])]


def cells(rows: int = 64, seeds: int = 20, hardware: str = H200) -> list[Row]:
    common = {"hardware": hardware, "inputs": "phi", "phi": PHI, "k": N, "rows": rows}
    return [{**common, "seed": seed} for seed in range(seeds)]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B = inputs.operands(cell["inputs"], cell["rows"], cell["rows"], cell["k"], cell["seed"], "fp64", phi=cell["phi"])
    head, tail = product_in_two(A, B, device)
    return {
        f"{method}, {reading}": median(
            schemes.gemm(A, B, hardware=cell["hardware"], device=device, **setting, **more), head, tail
        )
        for method, setting in METHODS.items()
        for reading, more in _readings(method).items()
    }


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(height=2.8)
    axis = axes[0, 0]
    looks = {
        name: (mark, color) for name, mark, color in (("ozIMMU", "o", plotting.BLUE), ("Ozaki II", "D", plotting.GREEN))
    }
    for family, readings in READINGS.items():
        lines = [(i, method) for i, method in enumerate(METHODS) if method.startswith(family)]
        for reading, filled in zip(readings, (True, False), strict=True):
            look = Series(f"{family}, {reading}", looks[family][1], looks[family][0], "none", filled=filled)
            middle = [np.median([row[f"{method}, {reading}"] for row in rows]) for _, method in lines]
            axis.plot(middle, [i for i, _ in lines], **look.line(markersize=5.5 if filled else 8.5))
    star = Series("published", plotting.VERMILION, "*", "none")
    axis.plot([PUBLISHED[method, N] for method in METHODS], range(len(METHODS)), **star.line(markersize=5, zorder=4))
    axis.set(xscale="log", ylim=(len(METHODS) - 0.5, -0.5), xlabel="median relative error")
    axis.set_yticks(range(len(METHODS)), list(METHODS))
    plotting.legend_below(figure, axis, 2, title=f"{in_legend(rows).replace(' and quartiles', '')}, $n$ = {N}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for row in rows:
        for method in METHODS:
            claim = next(name for family, name in CLAIMS.items() if method.startswith(family))
            for reading in _readings(method):
                yield Measure(claim, row[f"{method}, {reading}"] / PUBLISHED[method, N], reading, method)


def finding(rows: list[Row]) -> str:
    of = {
        method: {
            f"{r}:": np.median([row[f"{method}, {r}"] for row in rows]) / PUBLISHED[method, N]
            for r in _readings(method)
        }
        for method in METHODS
    }
    return paragraph(("the median errors divided by the published ones are", of, ".2f×"))


PAGE = Page(PAPER, CAPTION, assumptions, cells, evaluate, draw, measures, finding, quick={"seeds": 2})
