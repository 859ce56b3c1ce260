"""MAGMA batched, figure 5: reduction of the memory traffic by blocks, by the printed formula and by counted reads."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import model as magma
from ._errors import PAPER

CAPTION = """Reads of A and B with tiles of the instruction's size over reads with blocks of BLK_M×BLK_N, instruction
(a) 16×16 and (b) 32×8, large matrices: the printed formula, with contours; circles: the printed 4 and 5 times for
blocks of 64×64. (c) The same for square matrices of size n, counted. No block can read less than every element
once."""
ASSUMPTIONS = [
    """The matrices of the figure are large, with M and N multiples of the blocks. In (c) a block at the edge reads only
    existing elements and is padded with zeros, as in section 5.3.""",
    "Every read of a thread block counts as a read of memory, without caches.",
    """The count is the sum of the reads of A and B of all thread blocks, for matrices of two by two blocks (a, b) or of
    size n (c). The formula agrees if it equals the count.""",
]
TENSOR = {"16x16": (16, 16), "32x8": (32, 8)}
LARGEST = 128
SQUARES = (32, 64, 128)
LENGTHS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)


def cells(step: int = 1) -> list[Row]:
    """`step` is the step of the widths, in units of 8."""
    listed = []
    for name, (tm, tn) in TENSOR.items():
        for m in range(tm, LARGEST + 1, tm):
            # the quick map takes every other width of 8, but all that are multiples of 16
            listed += [
                {"tensor": name, "blk_m": m, "blk_n": n}
                for n in range(tn, LARGEST + 1, tn)
                if tn == 16 or n % (8 * step) == 0 or n == 8
            ]
    return listed


def evaluate(cell: Row) -> dict[str, float]:
    """ "formula", "counted" (two blocks each way), and for square blocks "at n", counted at the size n."""
    tensor, block = TENSOR[cell["tensor"]], (cell["blk_m"], cell["blk_n"])
    M, N = 2 * block[0], 2 * block[1]
    numbers = {
        "formula": float(magma.traffic_reduction(block, tensor)),
        "counted": _reads(M, N, tensor) / _reads(M, N, block),
    }
    for n in LENGTHS:
        numbers[f"at {n}"] = _reads(n, n, tensor) / _reads(n, n, block)
    return numbers


def _reads(M: int, N: int, block: tuple[int, int]) -> int:
    """Elements of A and B that all thread blocks read for one column of A and one row of B, block by block."""
    A, B = np.zeros(M, np.int64), np.zeros(N, np.int64)
    for i in range(0, M, block[0]):
        for j in range(0, N, block[1]):
            A[i : i + block[0]] += 1
            B[j : j + block[1]] += 1
    return int(A.sum() + B.sum())


_LOOK = {
    32: Series("BLK = 32", plotting.ORANGE, "^"),
    64: Series("BLK = 64", plotting.BLUE, "o"),
    128: Series("BLK = 128", plotting.GREEN, "s"),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=7.6, share_x=False, share_y=False)
    highest = max(row["formula"] for row in rows)
    for axis, name in zip(axes[:, 0], TENSOR, strict=False):
        here = [row for row in rows if row["tensor"] == name]
        ms, ns = (sorted({row[side] for row in here if row[side] % 16 == 0}) for side in ("blk_m", "blk_n"))
        value = {(row["blk_m"], row["blk_n"]): row["formula"] for row in here}
        grid = np.array([[value.get((m, n), np.nan) for m in ms] for n in ns])
        image = plotting.heatmap(axis, ms, ns, grid, low=1.0, high=highest)
        lines = axis.contour(ms, ns, grid, levels=[2, 3, 4, 5, 6, 8], colors="white", linewidths=0.7)
        axis.clabel(lines, [x for x in (2, 3, 4, 5, 6, 8) if x != value.get((64, 64))], fmt="%g×", fontsize=6.5)
        axis.set(xlabel="BLK_M", ylabel="BLK_N")
        axis.set_xticks(ms)
        axis.set_yticks(ns[1::2])
        if (64, 64) in value:
            axis.plot([64], [64], color="white", marker="o", markersize=5, markeredgecolor="black", linestyle="")
            style = {"textcoords": "offset points", "fontsize": 7, "color": "white"}
            axis.annotate(f"{value[64, 64]:g}× at 64×64", (64, 64), xytext=(4, 4), **style)
    plotting.colour_bar(figure, image, axes[:2, 0].tolist(), "times fewer reads, formula")
    ticks = [1, 2, 3, 4, 6, 8, 10]
    image.colorbar.set_ticks(ticks, labels=[str(tick) for tick in ticks])
    image.colorbar.minorticks_off()
    last = axes[2, 0]
    for name in TENSOR:
        for side, look in _LOOK.items():
            selected = [r for r in rows if r["tensor"] == name and (r["blk_m"], r["blk_n"]) == (side, side)]
            for row in selected:
                first = name == "16x16"
                dash = "-" if first else "--"
                line = Series(f"BLK = {side}, {name.replace('x', '×')}", look.color, look.marker, dash, filled=first)
                last.plot(LENGTHS, [row[f"at {n}"] for n in LENGTHS], **line.line(markersize=3))
                if first:
                    formula = {"label": "formula for 16×16"} if side == SQUARES[0] else {}
                    last.axhline(row["formula"], color=plotting.GREY, linestyle=":", linewidth=1.0, zorder=1, **formula)
    point = {"color": "white", "marker": "o", "markersize": 5, "markeredgecolor": "black", "linestyle": ""}
    last.plot([], [], label="64×64, as printed", **point)
    last.set_xlabel("$n$")
    last.set_xticks([8, 32, 64, 96, 128, 160, 192, 224, 256])
    last.set_ylabel("times fewer reads, counted")
    plotting.panel_titles(axes, ["instruction 16×16", "instruction 32×8", "matrices of size $n$, blocks of BLK×BLK"])
    plotting.legend_below(figure, last, 2)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for name, factor in (("16x16", 4.0), ("32x8", 5.0)):
        here, variant = [row for row in rows if row["tensor"] == name], f"instruction {name.replace('x', '×')}"
        for row in here:
            if (row["blk_m"], row["blk_n"]) == (64, 64):
                yield Measure("traffic_factors", row["counted"] / factor, variant=variant)
        if here:
            worst = max(abs(row["formula"] / row["counted"] - 1) for row in here)
            yield Measure("traffic_formula", worst, variant=variant)


def finding(rows: list[Row]) -> str:
    small = [
        (row["formula"], row[f"at {n}"]) for row in rows if row["tensor"] == "16x16" for n in LENGTHS if n <= LARGEST
    ]
    if not small:
        return ""
    large = next((r for r in rows if r["tensor"] == "16x16" and (r["blk_m"], r["blk_n"]) == (128, 128)), None)
    saved = {f"n = {n}:": large[f"at {n}"] for n in (32, 64, 128)} | {"formula": large["formula"]} if large else None
    return paragraph(
        ("the formula is exact for matrices of whole blocks", True),
        (
            f"for the instruction 16×16 it is exact for {{}} pairs of a block and a size up to {LARGEST}",
            f"{sum(formula == counted for formula, counted in small)} of {len(small)}",
        ),
        (
            "for the other pairs the formula is at most {} the count",
            max(formula / counted for formula, counted in small),
            ".3g×",
        ),
        ("a block as large as the matrix reads every element once, the minimum", True),
        ("blocks of 128 reduce the traffic by", saved, "g×"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, quick={"step": 2}, kind="M")
