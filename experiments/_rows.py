"""Selections from a figure's rows, ranges in words and axes of sizes, for the pages of all papers."""

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

    def select(rows: Sequence[Row], *values: Any) -> list[Row]:
        selected = [row for row in rows if all(row[p] == x for p, x in zip(parameters, values, strict=True))]
        return sorted(selected, key=lambda row: row[order]) if order else selected

    return select


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
    """Show sizes as numbers on a logarithmic x axis without minor ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.tick_params(axis="x", which="minor", bottom=False)
