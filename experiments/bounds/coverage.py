"""The a-priori bounds of all schemes against measured errors, 20 seeded products at every point."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _pages
from ._pages import ASSUMPTIONS as ASSUMPTIONS
from ._pages import PAPER as PAPER
from ._pages import cost

CAPTION = """Largest error of a product relative to |A||B|, over its a-priori bound: the probable bound (filled), which
holds for a product with a probability of 99 %, and the worst case (open; none is known from norms for the Ozaki scheme
in DP mode). Seeded products, k = 256 and 16384, the architectures and options of each scheme's figure. Operands (a)
uniform in [0, 1], (b) uniform in [-1, 1], (c) (rand - 0.5) exp(randn). Right of 1 a bound is exceeded; left of 0.1 the
bound is more than ten times the error. staged and staged-int8 are schemes of this project."""
ASSUMPTIONS = [
    *ASSUMPTIONS[:2],
    "Products have 8 rows and columns; architectures and options are as in the figure of each scheme.",
    """A probable bound is within a factor of ten if it is at most ten times the measured error of the product. Products
    without any error have no such ratio and do not count there.""",
]
LENGTHS = (256, 16384)
OURS = ("staged", "staged-int8")
DIGITS = dict.fromkeys(("measured", "probable", "worst"), 4)


def cells(seeds: int = 20) -> list[Row]:
    return [
        {"scheme": page.scheme, "hardware": curve.hardware, "options": dict(curve.options), "data": data}
        | {"k": k, "rows": 8, "seed": seed}
        for k in LENGTHS
        for data in _pages.DATA
        for seed in range(seeds)
        for page in _pages.FIGURES.values()
        for curve in page.curves
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """The measured error, its probable bound, and its worst case where norms give one."""
    numbers = _pages.evaluate(cell, device)
    return {name: numbers[name] for name in ("measured", "probable", "worst") if name in numbers}


def _ratios(rows: list[Row], scheme: str, bound: str, data: str = "") -> list[float]:
    """Measured error over bound; without the products that are exact."""
    return [
        row["measured"] / row[bound]
        for row in rows
        if row["scheme"] == scheme and row["measured"] and bound in row and data in ("", row["data"])
    ]


def _schemes(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["scheme"] for row in rows))


_LOOK = {
    "probable": Series("probable bound", plotting.BLUE, "o", "none"),
    "worst": Series("worst case", plotting.VERMILION, "D", "none", filled=False),
}


def draw(rows: list[Row]) -> Any:
    schemes = _schemes(rows)
    figure, axes = plotting.figure(len(_pages.DATA), height=0.9 + 0.2 * len(schemes))
    for axis, data in zip(axes[0], _pages.DATA, strict=True):
        for bound, look in _LOOK.items():
            drawn = {y: ratios for y, scheme in enumerate(schemes) if (ratios := _ratios(rows, scheme, bound, data))}
            for y, ratios in drawn.items():
                low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
                axis.plot([min(ratios), max(ratios)], [y, y], color=look.color, linewidth=0.6, zorder=2)
                axis.plot([low, high], [y, y], color=look.color, linewidth=2, zorder=2)
                axis.plot([middle], [y], **look.line(markersize=3.2, zorder=3, label=None))
            axis.plot([], [], **look.line(label=f"{look.label}, median"))
        axis.plot([], [], color=plotting.GREY, linewidth=2, label="quartiles")
        axis.plot([], [], color=plotting.GREY, linewidth=0.6, label="smallest to largest")
        axis.axvline(1, color=plotting.BLACK, linewidth=0.9, label="error = bound")
        axis.axvline(0.1, color=plotting.GREY, linestyle=":", linewidth=1, label="a tenth of the bound")
        axis.set_xscale("log")
    axes[0, 1].set_xlabel("measured error / bound")
    axes[0, 0].set_yticks(range(len(schemes)), [f"{s} (ours)" if s in OURS else s for s in schemes])
    axes[0, 0].set_ylim(len(schemes) - 0.4, -0.6)
    plotting.panel_titles(axes, ["[0, 1]", "[-1, 1]", r"$\varphi$ = 1"])
    seeds = len({row["seed"] for row in rows})
    title = f"8×k times k×8, k = {' and '.join(map(str, LENGTHS))}, {seeds} seed{'s' * (seeds > 1)} of each product"
    plotting.legend_below(figure, axes, 2, title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    checks: dict[str, tuple[str, Callable[[list[float]], float]]] = {
        "worst_case": ("worst", max),
        "close": ("probable", lambda ratios: 1 / min(ratios)),
    }
    for name, (bound, reduce) in checks.items():
        for scheme in _schemes(rows):
            if ratios := _ratios(rows, scheme, bound):
                yield Measure(name, reduce(ratios), variant=f"{scheme} (ours)" if scheme in OURS else scheme)
    if rows:
        yield Measure("probable", 100 * sum(row["measured"] > row["probable"] for row in rows) / len(rows))


def finding(rows: list[Row]) -> str:
    exact = sum(not row["measured"] for row in rows)
    above = [row for row in rows if row["measured"] > row["probable"]]
    loose = [row for row in rows if row["probable"] > 10 * row["measured"] > 0]
    return paragraph(
        (f"the page has {len(rows)} products, {exact} of them without any error", True),
        ("the number of products with an error above the probable bound is {}", _where(above)),
        ("the number of products with an error below a tenth of the probable bound is {}", _where(loose)),
    )


def _where(rows: list[Row]) -> str:
    places = [(row["scheme"], row["hardware"] or "ordinary cores", row["data"], f"k = {row['k']}") for row in rows]
    return f"{len(rows)}" + (f" ({'; '.join(dict.fromkeys(map(', '.join, places)))})" if rows else "")


QUICK = {"seeds": 1}
PAGE = Page(
    PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK, kind="M", digits=DIGITS
)
