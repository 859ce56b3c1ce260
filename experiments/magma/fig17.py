"""MAGMA batched, figures 16 and 17: several small products in one instruction, and the share of it that they use."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, rows_by
from . import model as magma
from ._errors import PAPER

CAPTION = """Useful operations of N×N×N products over those of the instructions that compute them. (a) 16×16×16: one
product at a time, floor(16/N) on the diagonal as in figure 16, and the largest number found; dashed: peak of ordinary
fp16 arithmetic over the tensor peak of a V100, 25 %. (b) Products in one 16×16×16 instruction. (c) Other instructions,
largest number of products found: the other two of CUDA's interface, and the hardware instructions of
Volta (8×8×4) and later GPUs (16×8×8, 16×8×16)."""
ASSUMPTIONS = [
    """The formula of figure 17 is damaged in the text available here; it is read as floor(16/N) · 2N³ / 8192, which
    gives the 1.5 % and "about 6 %" of the text.""",
    """A product fits at a separate block row, column and step if no other step adds to its block of the result
    (experiments/magma/_model_packing.py). Every counted arrangement was verified by a multiplication of integers.""",
    """If the grid has at most 100 places, integer programming determines the maximum. For N = 1, 2 and 3 in 16×16×16
    the number is a lower bound, combined from smaller arrangements.""",
    """A kernel without tensor cores can be faster if the share is below 25 %, the ratio of the peaks; the costs of
    loads and packing are not included.""",
]
SHAPES = {
    "16x16x16": (16, 16, 16),
    "32x8x16": (32, 8, 16),
    "8x32x16": (8, 32, 16),
    "8x8x4": (8, 8, 4),
    "16x8x8": (16, 8, 8),
    "16x8x16": (16, 8, 16),
}
THRESHOLD = 31.25 / 125
"""Peaks of ordinary fp16 arithmetic and of the tensor cores of V100, section 1."""

DIGITS = dict.fromkeys(["single", "diagonal", "best"])
"""Shares of an instruction: binary fractions without rounding, in full, because the measures compare them exactly."""


def cells() -> list[Row]:
    return [{"shape": shape, "n": n} for shape in SHAPES for n in range(1, 17)]


def evaluate(cell: Row) -> dict[str, float]:
    """ "single", "diagonal", "best": shares; "... products": how many; "wrong": entries that came out wrong."""
    shape, n = SHAPES[cell["shape"]], cell["n"]
    best = magma.pack(n, shape, paper=False)
    printed = magma.pack(n, shape)
    return {
        "single": n**3 / (printed.instructions * shape[0] * shape[1] * shape[2]),
        "diagonal": printed.utilisation,
        "best": best.utilisation,
        "diagonal products": float(printed.products),
        "best products": float(best.products),
        "wrong": float(_wrong(best.places, n, shape)),
        "diagonal wrong": float(_wrong(printed.places, n, shape)),
    }


def _wrong(places: Any, n: int, shape: tuple[int, int, int]) -> int:
    """Entries of the products that differ when they are multiplied together, operands of small integers."""
    if any(n > side for side in shape):
        return 0  # one product in several instructions: nothing else is there to disturb it
    generator = np.random.default_rng(n)
    pairs = [(generator.integers(-8, 9, (n, n)), generator.integers(-8, 9, (n, n))) for _ in places]
    A, B = np.zeros((shape[0], shape[2]), np.int64), np.zeros((shape[2], shape[1]), np.int64)
    for (r, q, s), (a, b) in zip(places, pairs, strict=True):
        A[r * n : (r + 1) * n, s * n : (s + 1) * n] = a
        B[s * n : (s + 1) * n, q * n : (q + 1) * n] = b
    D = A @ B
    return sum(
        int(np.count_nonzero(D[r * n : (r + 1) * n, q * n : (q + 1) * n] != a @ b))
        for (r, q, _), (a, b) in zip(places, pairs, strict=True)
    )


_LOOK = {
    "single": Series("one product", plotting.GREY, "x", ":"),
    "diagonal": Series("diagonal (figure 16)", plotting.VERMILION, "o", filled=False),
    "best": Series("as many as we find", plotting.BLUE, "D", "--"),
}
_SHAPE_LOOK = {
    "32x8x16": Series("32×8×16", plotting.ORANGE, "^"),
    "8x32x16": Series("8×32×16", plotting.PURPLE, "v", ":", filled=False),
    "8x8x4": Series("8×8×4 (Volta)", plotting.GREEN, "s", "-."),
    "16x8x8": Series("16×8×8", plotting.BLACK, "P"),
    "16x8x16": Series("16×8×16", plotting.SKY, "h", "--", filled=False),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.6, share_y=False)
    main = _rows(rows, "16x16x16")
    # rings around the markers of a curve that another one covers
    sizes = {"diagonal": 6.5, "8x32x16": 6.5, "16x8x16": 6.5}
    for name, look in _LOOK.items():
        style = look.line(markersize=sizes.get(name, 3.5))
        axes[0, 0].plot([r["n"] for r in main], [100 * r[name] for r in main], **style)
        if name != "single":
            axes[1, 0].plot([r["n"] for r in main], [r[f"{name} products"] for r in main], **style)
    for shape, look in _SHAPE_LOOK.items():
        here = _rows(rows, shape)
        style = look.line(markersize=sizes.get(shape, 3.5))
        axes[2, 0].plot([r["n"] for r in here], [100 * r["best"] for r in here], **style)
    for axis in (axes[0, 0], axes[2, 0]):
        line = {"color": plotting.GREY, "linewidth": 0.8, "linestyle": "--", "zorder": 1}
        axis.axhline(100 * THRESHOLD, label="25 %, ratio of the peaks", **line)
        axis.set(ylim=(0, 105), ylabel="share, %")
    axes[1, 0].set(yscale="log", ylabel="products")
    axes[1, 0].set_yticks(counts := (1, 2, 4, 8, 16, 32, 64), [str(count) for count in counts])
    axes[1, 0].tick_params(axis="y", which="minor", left=False, labelleft=False)
    axes[2, 0].set_xticks(range(1, 17))
    axes[2, 0].set_xlabel("$N$")
    plotting.panel_titles(
        axes, ["share of 16×16×16", "products in one 16×16×16", "share of other instructions, as many as we find"]
    )
    plotting.legend_below(figure, axes, 2, title="$N×N×N$ products, counted")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    main = {row["n"]: row for row in _rows(rows, "16x16x16")}
    if 4 in main and not main[4]["diagonal wrong"]:
        yield Measure("packing_gain", 100 * main[4]["diagonal"])
    more = {n: row["best products"] / row["diagonal products"] for n, row in main.items() if not row["wrong"]}
    for variant, low, high in (*((f"N = {n}", n, n) for n in range(1, 6)), ("N from 6", 6, 16)):
        if some := [factor for n, factor in more.items() if low <= n <= high]:
            yield Measure("maximum_utilisation", max(some), variant=variant)
    for variant, factors in (
        ("N up to 10 except 8", [THRESHOLD / row["diagonal"] for n, row in main.items() if n <= 10 and n != 8]),
        ("N = 8", [THRESHOLD / row["diagonal"] for n, row in main.items() if n == 8]),
        ("N above 10", [row["diagonal"] / THRESHOLD for n, row in main.items() if n > 10]),
    ):
        if factors:
            yield Measure("threshold_10", min(factors), variant=variant)


def finding(rows: list[Row]) -> str:
    main = {row["n"]: row for row in _rows(rows, "16x16x16")}
    more = {n: row for n, row in main.items() if row["best products"] > row["diagonal products"]}
    right = bool(more) and not any(row["wrong"] for row in main.values())
    highest = max((row["best"] for row in more.values()), default=1.0)
    packed = {
        f"N = {n}:": f"{row['best products']:g}, not {row['diagonal products']:g}; {100 * row['best']:.3g} %, not "
        f"{100 * row['diagonal']:.3g} %"
        for n, row in sorted(more.items())
    }
    volta = {row["n"]: row["best"] for row in _rows(rows, "8x8x4")}
    single = main[4]["single"] if 4 in main else 0.0
    return paragraph(
        (
            "more products fit off the diagonal, in blocks that share rows and steps, verified in integers",
            packed if right else None,
        ),
        (
            "their share is at most {} and thus below 25 %, so ordinary arithmetic can be faster there",
            highest if right and highest < THRESHOLD else None,
            ".3g%",
        ),
        ("one product of 4×4×4 uses {}, slightly more than 1.5 %", single if single >= 0.015 else None, ".5g%"),
        (
            "the share is exactly 25 %, and thus not below 25 %, at N = {}",
            ", ".join(str(n) for n, row in main.items() if row["diagonal"] == THRESHOLD),
        ),
        (
            "of the instruction 8×8×4 of Volta, which the paper does not use, products use",
            {f"N = {n}:": volta[n] for n in (4, 8)} if {4, 8} <= set(volta) else None,
            ".3g%",
        ),
        (
            "these shares are below 25 % only at N = {}",
            ", ".join(str(n) for n, share_ in volta.items() if share_ < THRESHOLD),
        ),
    )


_rows = rows_by("shape", order="n")


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M", digits=DIGITS)
