"""Appearance of the implementations in the figures of speed, lines over n, and labels of points."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series

from .._rows import Row, size_axis

SERIES: dict[str, Series] = {
    "sgemm": Series("SGEMM (cuBLAS)", plotting.BLACK, "s", "--", filled=False),
    "dgemm": Series("DGEMM (cuBLAS)", plotting.BLACK, "v", "--", filled=False),
    "tf32": Series("TF32 (cuBLAS)", plotting.GREY, "+", ":"),
    "fp16": Series("fp16 (cuBLAS)", plotting.GREY, "x", ":"),
    "three fp16": Series("three fp16 calls (cuBLAS)", plotting.GREY, "1", "-."),
    "fp16 mma": Series("fp16, mma.sync", plotting.GREY, "d", ":"),
    "markidis mma": Series("Markidis, mma.sync", plotting.ORANGE, "^"),
    "ootomo mma": Series("Ootomo, mma.sync", plotting.SKY, "D", "--", filled=False),
    "legemm mma": Series("LE-GEMM, mma.sync", plotting.VERMILION, "o"),
    "markidis": plotting.SCHEMES["markidis"],
    "ootomo": plotting.SCHEMES["ootomo"],
    "legemm": plotting.SCHEMES["legemm"],
    "h2sgemm term-wise": Series("H2SGEMM, term-wise", plotting.BLUE, "P"),
    "h2sgemm element-wise": Series("H2SGEMM, element-wise", plotting.BLUE, "P", "--", filled=False),
    "staged": plotting.SCHEMES["staged"],
    "staged-int8": Series("staged-int8", plotting.PURPLE, "v", ":", filled=False),
    "staged-int8 exact=8": Series("staged-int8, each 8th stage exact", plotting.PURPLE, "o"),
    "staged-int8 exact=4": Series("staged-int8, each 4th stage exact", plotting.PURPLE, "^", "--", filled=False),
    "strassen": Series("staged in Strassen's algorithm, one level", plotting.BLUE, "X"),
    "strassen levels=2": Series("staged in Strassen's algorithm, two levels", plotting.BLUE, "X", "--", filled=False),
    "ootomo-tf32": Series("Ootomo, tf32 words", plotting.SKY, "p", "--", filled=False),
    "bf16x9": Series("bf16, nine products", plotting.BLUE, "*"),
    "bf16x6": Series("bf16, six products", plotting.BLUE, ">", filled=False),
    "bf16x3": Series("bf16, three products", plotting.BLUE, "<", filled=False),
    "egemm": plotting.SCHEMES["egemm"],
    "ape": Series("APE (Ma)", plotting.ORANGE, "d", filled=False),
    "ozaki DP": Series("DGEMM-TC, DP", plotting.VERMILION, "o"),
    "ozaki DP words=int8": Series("DGEMM-TC, DP, int8 slices", plotting.ORANGE, "s"),
    "ozaki CR": Series("DGEMM-TC, CR", plotting.VERMILION, "o", "--", filled=False),
    "ozaki SP": Series("SGEMM-TC, SP", plotting.SKY, "D"),
    "ozaki2": Series("Ozaki scheme II", plotting.GREEN, "h"),
    "ozimmu": Series("ozIMMU", plotting.BLUE, "P"),
}
"""Appearance of an implementation in all figures."""


def look(implementation: str) -> Series:
    """Return an implementation's appearance; orange, with its name, where it is not listed."""
    return SERIES.get(implementation) or Series(implementation, plotting.ORANGE, "*")


def over_n(axes: Any, lines: Mapping[str, Sequence[Row]], what: str, side: str = "M", **more: Any) -> None:
    """Draw a column of each line's rows over one of their sides, a logarithmic axis."""
    ticks: set[int] = set()
    for name, rows in lines.items():
        points = [(int(row[side]), row[what]) for row in rows if what in row]
        if points:
            axes.plot(*zip(*points, strict=True), **look(name).line(**more))
            ticks |= {n for n, _ in points}
    size_axis(axes, sorted(ticks))


def third_of_fp16(axis: Any, rows: Sequence[Row], what: str = "first", side: str = "M") -> None:
    """Draw a third of the speed of the library's fp16 product, the least cost of three products."""
    points = [(row[side], row[what] / 3) for row in rows if what in row]
    if points:
        axis.plot(*zip(*points, strict=True), **look("fp16").line(label="fp16 (cuBLAS) / 3"))


_MARKS = [m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5)]


def plain_ticks(axis: Any, which: str = "y") -> None:
    """Label a logarithmic axis with plain numbers: 1, 2, 5, 10 and so on."""
    axis.set(**{f"{which}scale": "log"})
    low, high = axis.get_ylim() if which == "y" else axis.get_xlim()
    marks = _MARKS if high < 5000 * low else _MARKS[::3]  # over many decades only 0.1, 1, 10
    shown = [m for m in marks if low <= m <= high]
    axis.set(**{f"{which}ticks": shown, f"{which}ticklabels": [f"{m:g}" for m in shown]})
    sides = {"left": False, "labelleft": False} if which == "y" else {"bottom": False, "labelbottom": False}
    axis.tick_params(axis=which, which="minor", **sides)


def label_points(axis: Any, points: Sequence[tuple[float, float, str, str]], size: float = 6.5) -> None:
    """Write a label (x, y, text, colour) near each point where it covers no drawn line and no earlier label.

    The limits of the axes must be final. The nearest free place of some rings of places is taken, with a thin line to
    the point where it is not adjacent.
    """
    for _ in range(3):  # the layout converges
        axis.get_figure().draw_without_rendering()
    scale = 72 / axis.get_figure().dpi
    frame = [scale * edge for edge in axis.get_window_extent().extents]
    occupied = []
    for line in (line for line in axis.lines if len(line.get_xydata())):
        drawn = scale * axis.transData.transform(line.get_xydata())
        occupied.append((*(drawn.min(axis=0) - 2), *(drawn.max(axis=0) + 2)))
    for x, y, text, colour in points:
        at, width, height = scale * axis.transData.transform((x, y)), 0.7 * size * len(text), 1.35 * size
        for radius in (6, 10, 14, 20, 26, 34, 42, 52, 64, 78):
            for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False):
                dx, dy = radius * np.cos(angle), radius * np.sin(angle)
                left, low = at[0] + dx - width * (dx < -1e-9), at[1] + dy - height / 2
                box = (left, low, left + width, low + height)
                inside = frame[0] < box[0] and frame[1] < box[1] and box[2] < frame[2] and box[3] < frame[3]
                if inside and not any(_overlap(box, other) for other in occupied):
                    break
            else:
                continue
            break
        occupied.append(box)
        style = {"arrowstyle": "-", "lw": 0.4, "color": colour, "shrinkA": 0, "shrinkB": 2} if radius > 6 else None
        axis.annotate(
            text,
            (x, y),
            (dx, dy),
            textcoords="offset points",
            fontsize=size,
            color=colour,
            ha="right" if dx < -1e-9 else "left",
            va="center",
            arrowprops=style,
            bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"},
            zorder=4,
        )


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
