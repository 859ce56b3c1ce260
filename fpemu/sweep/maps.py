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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fpemu
from fpemu import schemes
from fpemu._system import write_atomic
from fpemu.formats import FP16
from fpemu.plotting import planes
from fpemu.sweep import store, tables
from fpemu.sweep.grid import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpemu.plotting.planes import Plane
    from fpemu.schemes import Scheme
    from fpemu.sweep.ranges import Number

Row = dict[str, Any]
SUFFIXES = ("png", "svg", "pdf", "csv", "json")
SIZES = ("M", "N", "K")
_PACKAGES = ("numpy", "numba", "matplotlib")


class Axis(NamedTuple):
    """An axis of a map: an option of a scheme, or a parameter of its inputs or a size."""

    name: str
    values: list[Number]
    fixed: dict[str, Any]  # values of the other options or parameters
    short: str  # name in the title of the grid and in the table
    label: str  # label in the picture


@dataclass(frozen=True, eq=False)
class Map:
    """A sweep over an option of a scheme, y, and a parameter of its inputs, M, N, K or the seed, x."""

    kind: str  # "scaling" or "plane"
    name: str  # of the scheme
    y: Axis
    x: Axis
    inputs: str  # distribution
    hardware: str  # empty where no matrix instruction computes
    axes: Mapping[str, Any]  # M, N, K and seeds, unless they are parameters of x
    metric: str  # the column that is drawn
    command: list[str]  # that makes the map again

    @cached_property
    def grid(self) -> Grid:
        """The cells."""
        axes, drawn = dict(self.axes), {"name": self.inputs}
        for name, value in {**self.x.fixed, self.x.name: self.x.values}.items():
            if name == "seed":
                axes["seeds"] = value if name == self.x.name else [value]
            else:
                (axes if name in SIZES else drawn)[name] = value
        return Grid(
            title=f"{self.name} over {self.y.short} and {self.x.short}",
            inputs=[drawn],
            schemes=[{"name": self.name, **self.y.fixed, self.y.name: self.y.values}],
            hardware=self.hardware or (),
            metrics=[self.metric],
            on_range="propagate",
            **axes,
        )

    @cached_property
    def scheme(self) -> Scheme:
        """The scheme with the first value of the swept option."""
        return schemes.build(self.name, {**self.y.fixed, self.y.name: self.y.values[0]})

    @property
    def equation6(self) -> bool:
        """Whether H2SGEMM's equation 6 applies: it is about two fp16 words of the operands as given."""
        built: Any = self.scheme
        words = self.kind == "scaling" and not built.scales_rows and [(w.format, w.rounding) for w in built.rules()]
        return words == [(FP16, "RNE")] * 2

    @property
    def _fixings(self) -> list[str]:
        fixed = {**self.y.fixed, **self.x.fixed}
        return [f"{name}={value}" for name, value in fixed.items() if name not in SIZES]

    @property
    def _shape(self) -> list[str]:
        sizes = {**self.axes, **self.x.fixed, self.x.name: self.x.name}
        return [str(sizes[name]) for name in SIZES]

    @property
    def title(self) -> str:
        """Title of the picture: scheme, fixed parameters, hardware, sizes."""
        where = f" on {self.hardware}" * bool(self.hardware)
        return ", ".join([self.name, *self._fixings]) + where + f", {'×'.join(self._shape)}"

    def plane(self, rows: Sequence[Mapping[str, Any]]) -> Plane:
        """The rows over the two axes."""
        x, y, names = self.x.name, f"scheme.{self.y.name}", (self.x.short, self.y.short)
        x = x if x in (*SIZES, "seed") else f"inputs.{x}"
        exponents = self.kind == "scaling" and self.y.name != "sb"  # of the column's values
        ys = [int(math.log2(row[y])) if exponents else row[y] for row in rows]
        points = [
            dict(zip(names, (row[x], value), strict=True)) | {"error": row.get(self.metric)}
            for row, value in zip(rows, ys, strict=True)
        ]
        return planes.plane(points, *names, "error")

    def paths(self, folder: str | os.PathLike[str]) -> list[Path]:
        """The files that `write` writes: readable words and a hash of the command."""
        swept = [self.y.name, self.inputs, self.x.name, *self._fixings, self.hardware]
        if self.kind == "scaling":
            swept = [*self._fixings, self.hardware, self.inputs]
        words = [self.kind, self.name, *swept, self.metric, "x".join(self._shape)]
        words = [re.sub(r"[^A-Za-z0-9_.=-]+", "_", word) for word in words if word]
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
        axes[0, 0].set(xlabel=requested.x.label, ylabel=requested.y.label)
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
