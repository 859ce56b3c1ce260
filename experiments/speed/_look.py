"""How contenders look in the figures of speed, and lines over n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series

from .._rows import size_axis
from ._record import Row

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
"""One look for a contender in all figures."""


def look(who: str) -> Series:
    """A contender's look; one that is not listed has its name, in orange."""
    return SERIES.get(who) or Series(who, plotting.ORANGE, "*")


def over_n(axes: Any, lines: Mapping[str, Sequence[Row]], what: str, side: str = "M", **more: Any) -> None:
    """Lines of a number of the rows over one of their sides, which axes have as powers of two."""
    ticks: set[int] = set()
    for name, rows in lines.items():
        points = [(int(row[side]), row[what]) for row in rows if what in row]
        if points:
            axes.plot(*zip(*points, strict=True), **look(name).line(**more))
            ticks |= {n for n, _ in points if n & (n - 1) == 0}
    size_axis(axes, sorted(ticks))


_MARKS = [m * 10.0**e for e in range(-3, 7) for m in (1, 2, 5)]


def plain_ticks(axis: Any, which: str = "y") -> None:
    """Numbers as they are on a logarithmic axis of speeds: 1, 2, 5, 10 and so on, where they lie within it."""
    axis.set(**{f"{which}scale": "log"})
    low, high = axis.get_ylim() if which == "y" else axis.get_xlim()
    shown = [m for m in _MARKS if low <= m <= high]
    axis.set(**{f"{which}ticks": shown, f"{which}ticklabels": [f"{m:g}" for m in shown]})
    sides = {"left": False, "labelleft": False} if which == "y" else {"bottom": False, "labelbottom": False}
    axis.tick_params(axis=which, which="minor", **sides)


def legend(figure: Any, axes: Any, columns: int) -> None:
    """One legend of all panels, each label once, below them."""
    result: dict[str, Any] = {}
    for axis in np.ravel(axes):
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            result.setdefault(label, handle)
    figure.legend(list(result.values()), list(result), loc="outside lower center", ncols=columns, columnspacing=1.4)
