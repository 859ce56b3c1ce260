"""What the pages on the speed of TSM2 and ISM2 share."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import shapes
from fpemu.roofline import gpus

from ..speed._shapes import Row, multiprocessors, ratios
from ..speed._shapes import line as _line

PAPER = "Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs (2020)"
COLUMNS, ROWS = "columns", "rows"


def threads(m: int) -> list[tuple[Any, ...]]:
    """Why the published versions are slow here: how few loads are under way with m rows."""
    here, selected = multiprocessors(), gpus.get("K40c").need("sms")
    if here is None:
        return []
    warps = {"here": m / here / 32, "K40c": m / selected / 32}
    return [
        (f"warps of a multiprocessor, TSM2 giving each of {m} rows of A a thread", warps),
        ("so few warps have too few loads under way for this memory", True),
    ]


def line(rows: list[Row], who: str, fmt: str, over: str = "M", layout: str = COLUMNS, **place: Any) -> list[Row]:
    """A contender's rows of one format and layout, by one of their sides."""
    return _line(rows, who, over, data=f"{fmt} {layout}", **place)


def gains(rows: list[Row], who: str, base: str = shapes.BASE, fmt: str = "fp32", **place: Any) -> dict[int, float]:
    """How many times as fast a contender is as another, by M."""
    return ratios(line(rows, who, fmt, **place), line(rows, base, fmt, **place))


def every(rows: list[Row], who: str, base: str, formats: tuple[str, ...] = shapes.FORMATS) -> list[float]:
    """The same over all formats and numbers of columns."""
    widths = sorted({int(row["N"]) for row in rows})
    return [x for fmt in formats for n in widths for x in gains(rows, who, base, fmt, N=n).values()]


def points(rows: list[Row], who: str, base: str, fmt: str, **place: Any) -> dict[int, float]:
    """Percentage points of a copy's bandwidth that a contender has more than another, by M."""
    least = {int(row["M"]): row["share"] for row in line(rows, base, fmt, **place) if "share" in row}
    return {
        int(row["M"]): 100 * (row["share"] - least[int(row["M"])])
        for row in line(rows, who, fmt, **place)
        if int(row["M"]) in least and "share" in row
    }


def percent(values: Any) -> str:
    """ "12 to 34 points, mean 20"; nothing of none."""
    known = list(values)
    return f"{min(known):.3g} to {max(known):.3g} points, mean {sum(known) / len(known):.3g}" if known else ""
