"""Selections, panels and measures that the pages on the speed of batches share."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure

from .._rows import Row
from ..speed._look import plain_ticks
from ..speed._shapes import LOOKS, line, mean, ratios

IN_LEGEND = "one H200, medians of 3 to 11 samples"
NAMES = {"real": "HGEMM", "complex": "HCGEMM"}


def square(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of n×n×n products of the figures' sizes."""
    return [row for row in rows if row["M"] == row["K"] <= max(shapes.LARGEST.values())]


def ranked(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of updates of rank 16."""
    return [row for row in rows if row["K"] == shapes.RANK]


def speedups(
    rows: Iterable[Row], implementation: str = "ours", base: str = shapes.BASE, what: str = "seconds", **place: Any
) -> dict[int, float]:
    """Return the time of the second implementation divided by the time of the first, by n."""
    known = list(rows)
    return ratios(line(known, implementation, **place), line(known, base, **place), what=what)


def curve(axis: Any, rows: list[Row], name: str, what: str) -> None:
    """Draw a column of an implementation over n, with rings around markers that other curves cover."""
    if points := [(int(row["M"]), row[what]) for row in line(rows, name) if what in row]:
        rings = {"markersize": 5.5, "zorder": 1.9} if name in (shapes.BASE, "magma-small fp32") else {}
        axis.plot(*zip(*points, strict=True), **LOOKS[name].line(**rings))


def rates(axis: Any, rows: list[Row], names: Iterable[str]) -> None:
    """Draw TFLOP/s over n."""
    for name in names:
        curve(axis, rows, name, "rate")
    plain_ticks(axis)
    axis.set_ylabel("TFLOP/s")


def factors(
    axis: Any, curves: Iterable[tuple[Mapping[int, float], Series]], label: str = "times as fast as cuBLAS"
) -> None:
    """Draw factors over n, and a line at 1."""
    for points, look in curves:
        if points:
            axis.plot(list(points), list(points.values()), **look.line())
    axis.axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
    plain_ticks(axis)
    axis.set_ylabel(label)


def extremes(name: str, values: Iterable[float], variant: str = "", reading: str = "") -> Iterator[Measure]:
    """Yield the least value, the geometric mean and the largest value as variants of a claim."""
    if known := list(values):
        for word, value in (("least", min(known)), ("mean", mean(known)), ("largest", max(known))):
            yield Measure(name, value, reading, ", ".join(filter(None, (variant, word))))
