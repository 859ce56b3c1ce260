"""Selections, panels and sentences that the pages on the speed of TSM2 and ISM2 share."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce import Measure
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row
from ..speed._shapes import LOOKS, line, multiprocessors, one_gpu

PAPER = "Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs (2020)"
GAIN, SHARE = "times as fast as cuBLAS", "share of a copy, %"
OTHER_GPU = """The paper's speeds were measured on a K40c, an M40, a P100 and a V100 with cuBLAS 9.0. The speeds of this
    GPU and its library are shown for information and judge no claim of the paper."""
PANELS = [(fmt, n) for n in shapes.COLUMNS for fmt in shapes.FORMATS]


def points(
    rows: Iterable[Row],
    name: str,
    fmt: str,
    what: str,
    times: float = 1,
    by: str = "M",
    layout: str = "columns",
    **at: Any,
) -> dict[int, float]:
    """A column of an implementation's rows of one format and layout, by one of the sides."""
    selected = line(rows, name, by, data=f"{fmt} {layout}", **at)
    return {int(row[by]): times * row[what] for row in selected if what in row}


def quotient(over: Mapping[int, float], under: Mapping[int, float]) -> dict[int, float]:
    """The ratio at the points that both have.

    >>> quotient({8: 3.0, 16: 1.0}, {8: 2.0})
    {8: 1.5}
    """
    return {x: y / under[x] for x, y in over.items() if x in under}


def difference(rows: Iterable[Row], name: str, base: str, fmt: str, **at: Any) -> list[float]:
    """Percentage points of a copy's bandwidth that an implementation has more than another."""
    known = list(rows)
    over, under = (points(known, one, fmt, "share", 100, **at) for one in (name, base))
    return [y - under[x] for x, y in over.items() if x in under]


def ranges(claim: str, values: Iterable[float], reading: str = "") -> Iterator[Measure]:
    """The least and the largest value."""
    known = list(values)
    if known:
        yield Measure(claim, min(known), reading, "least")
        yield Measure(claim, max(known), reading, "largest")


def curves(
    axis: Any,
    rows: list[Row],
    names: Iterable[str],
    fmt: str,
    what: str,
    times: float = 1,
    by: str = "M",
    unit: int = 1,
    **at: Any,
) -> None:
    """A line for each implementation over one of the sides, in multiples of ``unit``."""
    for name in names:
        selected = points(rows, name, fmt, what, times, by, **at)
        if selected:
            look = LOOKS[name].line()
            if name == "opt 1":  # with one row of A per thread it is V3: larger and beneath, both show
                look |= {"markersize": 6, "zorder": 1.9}
            axis.plot([x / unit for x in selected], list(selected.values()), **look)


def over_m(axes: Iterable[Any]) -> None:
    """The axis of m of large matrices."""
    for axis in axes:
        axis.set_xlabel("$m$ / 1024")
        axis.set_xticks([m // 1024 for m in shapes.SQUARE])
        axis.set_xlim(shapes.SQUARE[0] / 1024 - 1, shapes.SQUARE[-1] / 1024 + 1)


def grid(rows: list[Row], names: Iterable[str], what: str, times: float, label: str) -> tuple[Any, Any]:
    """A panel for each format and n, over m."""
    figure, axes = plotting.figure(2, len(shapes.COLUMNS), height=6.6)
    for axis, (fmt, n) in zip(axes.ravel(), PANELS, strict=True):
        curves(axis, rows, names, fmt, what, times, unit=1024, N=n)
    over_m(axes[-1])
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    plotting.panel_titles(axes, [f"{fmt}, $n$ = {n}" for fmt, n in PANELS])
    return figure, axes


def one_run() -> str:
    """Where the speeds were measured, for the title of a legend."""
    return f"{one_gpu()}, medians of 11 samples in one run"


def findings(rows: list[Row], m: int, *statements: tuple[Any, ...]) -> str:
    """Sentences, and why the published versions are slow on this GPU: the warps that load with m rows of A."""
    if not rows:
        return ""
    sms = {"K40c": gpus.get("K40c").need("sms"), one_gpu(): multiprocessors()}
    warps = {gpu: m / count / 32 for gpu, count in sms.items() if count}
    text = f"with one thread of TSM2 for each of {m} rows of A, a multiprocessor has these numbers of loading warps"
    return paragraph(*statements, (text, warps))
