"""Appearance of the implementations in the figures of speed, lines over n, and labels beside lines."""

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
    "strassen": Series("staged in Strassen's algorithm, one level", plotting.YELLOW, "X"),
    "strassen levels=2": Series("staged in Strassen's algorithm, two levels", plotting.YELLOW, "X", "--", filled=False),
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
    """Draw a column of each line's rows over one of their sides, an axis of powers of two."""
    ticks: set[int] = set()
    for name, rows in lines.items():
        points = [(int(row[side]), row[what]) for row in rows if what in row]
        if points:
            axes.plot(*zip(*points, strict=True), **look(name).line(**more))
            ticks |= {n for n, _ in points if n & (n - 1) == 0}
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
    shown = [m for m in _MARKS if low <= m <= high]
    axis.set(**{f"{which}ticks": shown, f"{which}ticklabels": [f"{m:g}" for m in shown]})
    sides = {"left": False, "labelleft": False} if which == "y" else {"bottom": False, "labelbottom": False}
    axis.tick_params(axis=which, which="minor", **sides)


def legend(figure: Any, axes: Any, columns: int) -> None:
    """Draw one legend of all panels below them, each label once."""
    result: dict[str, Any] = {}
    for axis in np.ravel(axes):
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            result.setdefault(label, handle)
    figure.legend(list(result.values()), list(result), loc="outside lower center", ncols=columns, columnspacing=1.4)


def label_ends(axes: Any, size: float = 6.5) -> None:
    """Write each line's label at the right of its panel, in its colour, with overlapping labels moved apart.

    The logarithmic x axes, shared in a column of panels, are extended for the labels.
    """
    figure, panels = axes.flat[0].get_figure(), list(axes.flat)
    figure.draw_without_rendering()  # widths and heights of the panels
    lines = {axis: [line for line in axis.lines if not line.get_label().startswith("_")] for axis in panels}
    points = 72 / figure.dpi
    longest = max(len(line.get_label().replace("$", "")) for of in lines.values() for line in of)
    room = 0.56 * size * longest / (points * min(axis.get_window_extent().width for axis in panels)) + 0.06
    low, high = panels[0].get_xlim()
    for axis in panels:
        axis.set_xlim(low, low * (high / low) ** (1 / (1 - room)))
    for axis, of in lines.items():
        place = axis.transData + axis.transAxes.inverted()
        ends = sorted([(place.transform(line.get_xydata()[-1])[1], i) for i, line in enumerate(of)])
        gap = 1.15 * size / (points * axis.get_window_extent().height)
        for (_, i), height in zip(ends, spread([y for y, _ in ends], gap), strict=True):
            colour = of[i].get_color()
            axis.annotate(
                of[i].get_label(),
                of[i].get_xydata()[-1],
                (1 - room + 0.04, height),
                textcoords="axes fraction",
                fontsize=size,
                color=colour,
                va="center",
                arrowprops={"arrowstyle": "-", "lw": 0.4, "color": colour, "shrinkA": 0, "shrinkB": 2},
            )


def spread(positions: Sequence[float], gap: float, low: float = 0.03, high: float = 0.97) -> list[float]:
    """Return ascending positions at least ``gap`` apart, as near to the given ascending ones as two passes find.

    Examples
    --------
    >>> [round(y, 2) for y in spread([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    groups: list[tuple[float, int]] = []  # centre and number of labels that touch one another
    for y in positions:
        groups.append((y, 1))
        while len(groups) > 1:
            (a, m), (b, n) = groups[-2:]
            if b - a >= gap * (m + n) / 2:
                break
            groups[-2:] = [((a * m + b * n) / (m + n), m + n)]
    result = [centre + gap * (i - (n - 1) / 2) for centre, n in groups for i in range(n)]
    for i in range(len(result)):
        result[i] = max(result[i], low + gap * i)
    for i in reversed(range(len(result))):
        result[i] = min(result[i], high - gap * (len(result) - 1 - i))
    return result


def label_points(axis: Any, points: Sequence[tuple[float, float, str, str]], size: float = 6.5) -> None:
    """Write a label (x, y, text, colour) near each point where it covers no drawn line and no earlier label.

    The limits of the axes must be final. The nearest free place of some rings of places is taken, with a thin line to
    the point where it is not adjacent.
    """
    axis.get_figure().draw_without_rendering()
    scale = 72 / axis.get_figure().dpi
    frame = [scale * edge for edge in axis.get_window_extent().extents]
    occupied = []
    for line in axis.lines:
        drawn = scale * axis.transData.transform(line.get_xydata())
        occupied.append((*(drawn.min(axis=0) - 2), *(drawn.max(axis=0) + 2)))
    for x, y, text, colour in points:
        at, width, height = scale * axis.transData.transform((x, y)), 0.56 * size * len(text), 1.05 * size
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
