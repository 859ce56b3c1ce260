"""Files of a map: picture (PNG, SVG, PDF), data (CSV) and provenance (JSON), the same bytes each time."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fpemu
from fpemu._system import write_atomic
from fpemu.plotting import planes
from fpemu.sweep import store, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpemu.plotting.planes import Plane
    from fpemu.schemes import Scheme
    from fpemu.sweep.grid import Grid
    from fpemu.sweep.ranges import Number

Row = dict[str, Any]
SUFFIXES = ("png", "svg", "pdf", "csv", "json")
_PACKAGES = ("numpy", "numba", "matplotlib")


@dataclass(frozen=True, eq=False)
class Map:
    """A sweep over two parameters, and the names of its axes x and y."""

    kind: str
    """"scaling" or "plane\""""
    title: str
    """Of the picture: scheme, fixed parameters, hardware"""
    words: list[str]
    """Words in the name of the files, after the kind"""
    command: list[str]
    """The command that makes the map again"""
    scheme: Scheme
    """With the first value of the swept option"""
    grid: Grid
    metric: str
    """The column that is drawn"""
    names: tuple[str, str]
    columns: tuple[str, str]
    """The columns of the rows that hold x and y"""
    labels: tuple[str, str]
    exponents: bool = False
    """y is the binary exponent of its column, not the value."""
    equation6: bool = False
    """The axes are scaling and offset exponents to which H2SGEMM's equation 6 applies."""

    def plane(self, rows: Sequence[Mapping[str, Any]]) -> Plane:
        """The rows over the two axes."""
        x, y = self.columns
        points = [
            {
                self.names[0]: row[x],
                self.names[1]: int(math.log2(row[y])) if self.exponents else row[y],
                "error": row.get(self.metric),
            }
            for row in rows
        ]
        return planes.plane(points, *self.names, "error")

    def paths(self, folder: str | os.PathLike[str]) -> list[Path]:
        """The files that `write` writes: readable words and a hash of the command."""
        words = [re.sub(r"[^A-Za-z0-9_.=-]+", "_", word) for word in (self.kind, *self.words) if word]
        digest = hashlib.sha256(shlex.join(self.command).encode()).hexdigest()[:8]
        return [Path(folder) / f"{'-'.join(words)[:150]}-{digest}.{suffix}" for suffix in SUFFIXES]


def answer(plane: Plane, factor: float) -> str:
    """One line: the single y that is within ``factor`` of the best at the most x."""
    one = planes.single(plane, factor)
    if not one.ys:
        return f"no {plane.y} has a finite error anywhere"
    left = len(plane.xs) - one.points
    values = "each of " * (len(one.ys) > 1) + f"{plane.y} = {planes.spans(one.ys, plane.ys, planes.notation(plane.ys))}"
    return (
        f"{values} is within a factor of {factor:g} of the best at {one.count} of {one.points} values of "
        f"{plane.x}" + (f"; at {left} more no {plane.y} has a finite error" if left else "")
    )


def largest(exponent: Number) -> int:
    """Offset exponent of the largest entries of inputs up to 2^exponent: half of them lie in the binade below it."""
    return int(exponent) - 1


def draw(requested: Map, plane: Plane) -> Figure:
    """The picture."""
    from fpemu import plotting

    with plotting.style():
        figure, axes = plotting.figure(height=4.2, width=5.4)
        lines = planes.bounds(plane, largest) if requested.equation6 else {}
        mesh = planes.draw(axes[0, 0], plane, lines=lines, labels=(planes.tick(plane.xs), planes.tick(plane.ys)))
        axes[0, 0].set(xlabel=requested.labels[0], ylabel=requested.labels[1])
        axes[0, 0].set_title(requested.title, loc="left")
        plotting.colour_bar(figure, mesh, axes[0, 0], planes.ERRORS[requested.metric])
        plotting.legend_below(figure, axes[0, 0], 3 if lines else 2)
    return figure


def write(requested: Map, rows: list[Row], factor: float, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the five files; each is rendered before the first is written, and each appears whole or not at all."""
    from fpemu import plotting

    data = tables.table(rows, dict.fromkeys(_parameters(requested, rows)))  # parameters are exact: all their digits
    rows = tables.parse(data, requested.paths("")[0].stem)  # the picture and the record show the data as written
    plane = requested.plane(rows)
    figure = draw(requested, plane)
    record = provenance(requested, rows, plane, factor, data)
    contents = (
        plotting.png(figure),
        plotting.svg(figure),
        plotting.pdf(figure),
        data,
        (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode(),
    )
    paths = requested.paths(folder)
    for path, content in zip(paths, contents, strict=True):
        write_atomic(path, content)
    return paths


def provenance(requested: Map, rows: list[Row], plane: Plane, factor: float, data: bytes) -> dict[str, Any]:
    """Everything needed to make the map again, and what it says."""
    spec = requested.scheme.spec(rows[0]["hardware"])
    fields = ("name", "arithmetic", "k", "block", "F", "E0", "final", "evidence", "source")
    smallest = planes.best(plane)
    record = {
        "sweep": requested.kind,
        "title": requested.title,
        "command": shlex.join(requested.command),
        "cells": len(rows),
        "failed": sum("error" in row for row in rows),
        "parameters": {
            name: list(dict.fromkeys(row.get(name) for row in rows)) for name in _parameters(requested, rows)
        },
        "metric": requested.metric,
        "hardware": None if spec is None else {name: getattr(spec, name) for name in fields},
        "best": [
            {plane.x: one.x, "error": one.error if math.isfinite(one.error) else None, plane.y: list(one.ys)}
            for one in smallest
        ],
        "tie": planes.TIE,
        "factor": factor,
        "answer": answer(plane, factor),
    }
    if requested.equation6:
        record["equation 6"] = [
            {
                plane.x: x,
                "printed": _ends(planes.equation6(largest(x), largest(x), printed=True)),
                "holds": _ends(planes.equation6(largest(x), largest(x))),
            }
            for x in plane.xs
        ]
    return record | {
        "data": {"file": f"{requested.paths('')[0].stem}.csv", "sha256": hashlib.sha256(data).hexdigest()},
        "code": {"version": fpemu.__version__, "sha256": store.code(requested.grid.sources)},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
    }


def _parameters(requested: Map, rows: list[Row]) -> list[str]:
    """The columns that are not results."""
    numbers = (*requested.grid.cells()[0]["metrics"], "error")
    return list(dict.fromkeys(name for row in rows for name in row if name not in numbers))


def _ends(allowed: range) -> list[int] | None:
    return [allowed.start, allowed.stop - 1] if allowed else None
