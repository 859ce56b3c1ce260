"""Selections from a figure's rows, ranges in words and axes of sizes, for the pages of all papers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]


def rows_by(*parameters: str, order: str = "") -> Callable[..., list[Row]]:
    """Return a function of rows and values of the parameters that selects the rows with these values.

    Examples
    --------
    >>> rows_by("n", "phi")([{"n": 8, "phi": 1.0}, {"n": 8, "phi": 2.0}], 8, 2.0)
    [{'n': 8, 'phi': 2.0}]
    """

    latest: tuple[Sequence[Row], int, dict[Any, list[Row]] | None] = ((), 0, None)

    def select(rows: Sequence[Row], *values: Any) -> list[Row]:
        # a page selects thousands of times from the same rows: the second selection builds an index of them
        nonlocal latest
        if latest[0] is not rows or latest[1] != len(rows):
            latest = rows, len(rows), None
        elif latest[2] is None:
            latest = rows, len(rows), _index(rows, parameters)
        index = latest[2]
        if index and len(values) == len(parameters):
            selected = list(index.get(values, ()))
        else:
            selected = [row for row in rows if all(row[p] == x for p, x in zip(parameters, values, strict=True))]
        return sorted(selected, key=lambda row: row[order]) if order else selected

    return select


def _index(rows: Sequence[Row], parameters: Sequence[str]) -> dict[Any, list[Row]]:
    """The rows by the values of the parameters; empty if a row lacks one or a value has no hash."""
    index: dict[Any, list[Row]] = {}
    try:
        for row in rows:
            index.setdefault(tuple(row[p] for p in parameters), []).append(row)
    except (KeyError, TypeError):
        return {}
    return index


def runs_by(*parameters: str) -> Callable[..., list[float]]:
    """Return a function of rows, values of the parameters and a column that lists the column in rows that have it.

    Examples
    --------
    >>> runs_by("n")([{"n": 8, "error": 1e-7}, {"n": 8, "error": 2e-7}, {"n": 16, "error": 0.0}], 8, "error")
    [1e-07, 2e-07]
    """
    select = rows_by(*parameters)

    def runs(rows: Sequence[Row], *point: Any) -> list[float]:
        *values, column = point
        return [row[column] for row in select(rows, *values) if column in row]

    return runs


def mean_by(*parameters: str) -> Callable[..., float]:
    """Return a function as by `runs_by` that takes the mean."""
    runs = runs_by(*parameters)
    return lambda rows, *point: float(np.mean(runs(rows, *point)))


def in_legend(rows: Sequence[Row]) -> str:
    """Return the curve, the band and the number of runs in words, for the title of a legend.

    Examples
    --------
    >>> in_legend([{"n": 8, "seed": 0}, {"n": 8, "seed": 1}])
    'median and quartiles of 2 seeds'
    """
    return f"median and quartiles of {len({row['seed'] for row in rows})} seeds"


def span(values: Any, form: str = ".2g", unit: str = "") -> str:
    """Return the least and the largest value in words; empty without values.

    Examples
    --------
    >>> span([1.0, 4.0, 2.0], ".3g", "×")
    '1 to 4×'
    """
    known = list(values)
    return f"{min(known):{form}} to {max(known):{form}}{unit}" if known else ""


def size_axis(axis: Any, sizes: Sequence[int]) -> None:
    """Show ascending sizes as numbers on a logarithmic x axis without minor ticks; a tick too close has no number."""
    place = axis.get_subplotspec()
    characters = 44 if place is None or place.get_gridspec().ncols == 1 else 34 / place.get_gridspec().ncols
    width = math.log2(sizes[-1] / sizes[0]) / characters if sizes else 0.0
    labels: list[str] = []
    end = -math.inf
    for n in sizes:
        half = width * len(str(n)) / 2
        shown = math.log2(n) - half > end
        labels.append(str(n) if shown else "")
        end = math.log2(n) + half + width if shown else end
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, labels)
    axis.tick_params(axis="x", which="minor", bottom=False)


def slanted_sizes(axis: Any, sizes: Sequence[int]) -> None:
    """Show ascending sizes as `size_axis`, each with its number, slanted so that neighbours fit."""
    size_axis(axis, sizes)
    axis.set_xticks(sizes, [str(n) for n in sizes], rotation=45)
