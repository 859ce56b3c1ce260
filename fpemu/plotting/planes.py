"""Maps of an error over two parameters: the best setting at each point, the best single setting, and the picture.

The two axes are an option of a scheme (y) and a parameter of its inputs or sizes (x).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.schemes.h2sgemm import equation6

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Number = int | float
TIE = 1.05
"""Errors within this factor of the smallest count as equal: a few roundings explain the difference."""
ERRORS = {
    "relative_l2": "relative $L_2$ error",
    "max_relative": "largest relative error",
    "mred": "mean relative error",
    "max_error_legemm": "largest error over $|p|+|s|$",
    "normwise": "largest error over $|A||B|$",
    "max_absolute": "largest absolute error",
    "max_ulps": "largest error in ulps",
}
"""Labels of the metrics that are errors."""


# --- the data of a plane
@dataclass(frozen=True, eq=False)
class Plane:
    """An error over two axes: the mean over the runs; NaN or inf where any run is, or where there is none."""

    x: str
    y: str
    xs: tuple[Number, ...]
    ys: tuple[Number, ...]
    errors: NDArray[np.float64]
    """Of shape (len(ys), len(xs))"""


def plane(rows: Sequence[Row], x: str, y: str, value: str) -> Plane:
    """The plane of column ``value`` over the columns ``x`` and ``y``; a row without the value is a failed run."""
    if not rows:
        raise InputError("there are no rows to make a plane of")
    xs, ys = (tuple(sorted({row[name] for row in rows})) for name in (x, y))
    runs: dict[tuple[Number, Number], list[float]] = {}
    for row in rows:
        error = row.get(value)
        runs.setdefault((row[x], row[y]), []).append(math.nan if error is None else float(error))
    errors = np.array([[np.mean(runs.get((a, b), [math.nan])) for a in xs] for b in ys])
    return Plane(x, y, xs, ys, errors)


@dataclass(frozen=True)
class Best:
    """The best settings at one x: the smallest error and every y that reaches it (none if no error is finite)."""

    x: Number
    error: float
    ys: tuple[Number, ...]


def best(of: Plane, tie: float = TIE) -> list[Best]:
    """At each x the y with the smallest error, with all those within the factor ``tie`` of it."""
    best_of = []
    for x, column in zip(of.xs, of.errors.T, strict=True):
        smallest = float(np.min(column[np.isfinite(column)], initial=math.inf))
        tied = np.isfinite(column) & (column <= tie * smallest)
        ys = tuple(y for y, good in zip(of.ys, tied, strict=True) if good)
        best_of.append(Best(x, smallest if ys else math.nan, ys))
    return best_of


def losses(of: Plane) -> NDArray[np.float64]:
    """Error over the smallest error at the same x, of the shape of ``of.errors``; inf where the error is no number.

    1 where both are zero, and NaN where no y has a finite error.
    """
    smallest = np.array([one.error for one in best(of)])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(of.errors == smallest, 1.0, of.errors / smallest)
    return np.asarray(np.where(np.isfinite(of.errors) | np.isnan(smallest), ratio, np.inf))


@dataclass(frozen=True)
class Single:
    """The best single setting: each y of ``ys`` is near the best at ``count`` of ``points`` values of x."""

    ys: tuple[Number, ...]
    count: int
    points: int


def single(of: Plane, factor: float) -> Single:
    """The y within ``factor`` of the best at the most x, with all ties; an x without a finite error does not count."""
    ratio = losses(of)
    counts = np.count_nonzero(ratio <= factor, axis=1)
    most = int(counts.max())
    ys = tuple(y for y, count in zip(of.ys, counts.tolist(), strict=True) if count == most and most > 0)
    return Single(ys, most, int(np.count_nonzero(~np.isnan([one.error for one in best(of)]))))


def spans(chosen: Sequence[Number], every: Sequence[Number], show: Callable[[Number], str] = str) -> str:
    """Values as text, neighbours in ``every`` joined: "3, 5 to 8"; "none" if there are none."""
    groups: list[list[Number]] = []
    for position, value in enumerate(every):
        if value not in chosen:
            continue
        if groups and position and every[position - 1] == groups[-1][-1]:
            groups[-1].append(value)
        else:
            groups.append([value])
    return ", ".join(show(g[0]) if len(g) == 1 else f"{show(g[0])} to {show(g[-1])}" for g in groups) or "none"


# --- appearance
def bounds(of: Plane, offset: Callable[[Number], int]) -> dict[str, list[float]]:
    """Equation 6 as lines between the cells of a plane whose y is the scaling exponent, by label; NaN: no bound.

    ``offset(x)`` is the offset exponent of the largest entries at x.
    """
    edges = []
    for x in of.xs:
        exponent = offset(x)
        held, printed = equation6(exponent, exponent), equation6(exponent, exponent, printed=True)
        ends = (printed.start - 0.5, printed.stop - 0.5) if printed else (math.nan, math.nan)
        edges.append((*ends, held.stop - 0.5 if held else math.nan))
    names = ("Eq. 6, lower", "Eq. 6, upper, as printed", "upper bound that holds")
    return {name: list(line) for name, line in zip(names, zip(*edges, strict=True), strict=True)}


def show(value: Number) -> str:
    """A value of an axis: integers without a point.

    >>> show(12), show(0.5), show(2048.0)
    ('12', '0.5', '2048')
    """
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e9 else f"{value:g}"


def notation(values: Sequence[Number]) -> Callable[[Number], str]:
    """The function that writes the values of an axis: as powers of two if all are, and some are outside [1/8, 1024].

    >>> notation([16, 4096])(16), notation([256, 1024])(256)
    ('2^4', '256')
    """
    powers = all(value > 0 and math.frexp(value)[0] == 0.5 for value in values)
    if powers and (min(values) < 2**-3 or max(values) > 1024):
        return lambda value: f"2^{math.frexp(value)[1] - 1}"
    return show


def tick(values: Sequence[Number]) -> Callable[[Number], str]:
    """`notation` for the ticks of an axis, with superscripts."""
    write = notation(values)
    return lambda value: re.sub(r"^2\^(.+)$", r"$2^{\1}$", write(value))


def draw(
    axes: Axes,
    of: Plane,
    *,
    low: float | None = None,
    high: float | None = None,
    lines: Mapping[str, Sequence[float]] | None = None,
    labels: tuple[Callable[[Number], str], Callable[[Number], str]] = (str, str),
) -> Any:
    """The map of a plane with the best y's outlined and ``lines`` between cells; returns the mesh for a colour bar.

    ``low`` and ``high`` are the ends of the colour scale. ``lines`` has one y for every x by label, such as `bounds`,
    in the order of dash-dotted, dashed and dotted. ``labels`` write a value at x and at y where these are not equally
    spaced.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.ticker import MaxNLocator

    from fpemu import plotting

    xs, ys = (positions(values) for values in (of.xs, of.ys))
    if not np.any(np.isfinite(of.errors) & (of.errors > 0)):
        low, high = low or 1e-8, high or 1.0  # nothing has a colour, yet the bar needs two ends
    mesh = plotting.heatmap(axes, xs, ys, of.errors, low=low, high=high)
    across, up = _edges(xs), _edges(ys)
    tied = np.array([[y in one.ys for one in best(of)] for y in of.ys])
    name = f"best, within {100 * (TIE - 1):.0f} % (dotted inside)"
    edges = _outline(across, up, tied)
    axes.add_collection(LineCollection(edges, color=plotting.SKY, linewidth=1.3, label=name, zorder=3))
    rows, columns = np.nonzero(tied)  # stippled as well: a line alone has no inside
    dot = max(0.7, min(6.0, 500 / tied.size))
    axes.scatter(np.asarray(xs)[columns], np.asarray(ys)[rows], s=dot, color=plotting.SKY, linewidth=0, zorder=2)
    looks = (
        (plotting.VERMILION, (0, (6, 1.5, 1, 1.5))),
        (plotting.VERMILION, (0, (4, 1.6))),
        (plotting.BLACK, (0, (1, 1.1))),
    )
    for (name, heights), (color, dash) in zip((lines or {}).items(), looks, strict=False):
        line = np.repeat(_between(heights, of.ys, up), 2)
        if np.isfinite(line).any():
            axes.plot(
                np.repeat(across, 2)[1:-1], line, color=color, linestyle=dash, linewidth=1.3, label=name, zorder=4
            )
    if (of.errors == 0).any():
        axes.fill_between([], [], facecolor="white", edgecolor=plotting.GREY, linewidth=0.6, label="no error at all")
    if not np.isfinite(of.errors).all():
        look: dict[str, Any] = {"hatch": "xxxx", "facecolor": "none", "edgecolor": "#BBBBBB", "linewidth": 0}
        axes.fill_between([], [], **look, label="overflow or NaN")
    axes.set_xlim(across[0], across[-1])
    axes.set_ylim(up[0], up[-1])
    for values, at, axis, label in zip((of.xs, of.ys), (xs, ys), (axes.xaxis, axes.yaxis), labels, strict=True):
        if list(at) != list(values):
            every = -(-len(values) // 12)
            axis.set_ticks(list(at)[::every], [label(value) for value in values[::every]])
        elif all(isinstance(value, int) for value in values):
            axis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    return mesh


def positions(values: Sequence[Number]) -> Sequence[float]:
    """The values themselves where they are equally spaced, else 0, 1, 2 ...: a map has cells of one size."""
    gaps = np.diff(np.asarray(values, float))
    regular = len(values) > 1 and bool(np.all(np.abs(gaps - gaps[0]) <= 1e-9 * np.abs(gaps[0])))
    return list(values) if regular else list(range(len(values)))


def _edges(centres: Sequence[float]) -> NDArray[np.float64]:
    at = np.asarray(centres, float)
    half = (at[1] - at[0]) / 2 if len(at) > 1 else 0.5
    return np.concatenate([at - half, [at[-1] + half]])


def _between(heights: Sequence[float], ys: Sequence[Number], up: NDArray[Any]) -> NDArray[np.float64]:
    """The edges of cells that part the y's below each height from those above; NaN where there are none of either."""
    below = np.searchsorted(np.asarray(ys, float), np.asarray(heights, float))
    inside = (below > 0) & (below < len(ys)) & np.isfinite(heights)
    return np.where(inside, up[below], np.nan)


def _outline(across: NDArray[Any], up: NDArray[Any], inside: NDArray[np.bool_]) -> list[list[tuple[float, float]]]:
    """The edges between cells inside and cells outside, as segments; none along the rim of the map."""
    framed = np.pad(inside, 1, mode="edge")
    upright = np.argwhere(framed[1:-1, 1:] != framed[1:-1, :-1])
    level = np.argwhere(framed[1:, 1:-1] != framed[:-1, 1:-1])
    return [[(across[j], up[i]), (across[j], up[i + 1])] for i, j in upright.tolist()] + [
        [(across[j], up[i]), (across[j + 1], up[i])] for i, j in level.tolist()
    ]
