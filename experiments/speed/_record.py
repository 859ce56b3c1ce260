"""The record of `fpemu bench gpu` on one GPU (beside this module), and the rows that the figures of speed show.

FPEMU_SPEED names another GPU's record in its place.
"""

import functools
import hashlib
import math
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks.gpu import groups, record, suite

from .._rows import Row

_PLACE = ("kind", "M", "N", "K", "data", "contender")
_RATES = ("first", "best", "sustained", "split_first", "split_sustained")
_PLAIN = (
    "relative_l2",
    "max_relative",
    "mred",
    "max_error",
    "lost",
    "outputs",
    "power_W",
    "clock_MHz",
    "checked",
    "mismatches",
    "products",
    "bytes",
    "total_s",
    "iterations",
    "inertia",
    "equal",
    "gemms",
    "slices_a",
    "slices_b",
)
"""Columns that are shown as measured."""
RULES = [
    """Speeds are 2·M·N·K / time. "First" is the median of ten launches after a pause, before the power limit reduces
    the clock; "sustained" is the median of the second half of a run without a pause. Launches are queued behind a
    waiting kernel, so the times exclude the host. An event between the first launches adds about 1 µs to each, so for
    n up to 1024 the sustained speed can be higher.""",
    """Some products, among them cuBLAS and the schemes of this project at n = 8192, have a pause of 1 s and a run of
    0.5 to 1 s. The others have a pause of 0.1 s and a run of at most 0.15 s, whose sustained speed is closer to the
    speed of the first launches.""",
    """Operands are generated on the GPU, A and B stored by rows. Times exclude the split of the operands unless stated.
    Errors are of all entries against the product in fp64.""",
    """The GPU is not the GPU of the papers, so only ratios of speeds in one run can be compared with the papers.""",
]
RUNS = """The lines of TFLOP/s are from several runs on one GPU. Ratios are of speeds in one run: a point without SGEMM
    or without the library's fp16 product in the same run has no ratio."""


def record_file(name: str) -> Path:
    """The record beside this module, or the file that FPEMU_SPEED names."""
    return Path(os.environ.get("FPEMU_SPEED") or Path(__file__).with_name(name))


@functools.cache
def read(path: Path) -> tuple[str, dict[str, Any], list[Row]]:
    """The digest, the head and the rows of a record."""
    result = record.read(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12], result.head, result.rows


def measured_on(head: dict[str, Any], dates: Collection[str]) -> str:
    """The GPU, its driver, the library and the dates, for captions."""
    device, ends = head["device"], dict.fromkeys((*sorted(dates)[:1], *sorted(dates)[-1:]))
    return f"Measured on one {device['gpu']} (driver {device['driver']}, {device['library']}), {' to '.join(ends)}."


def _path() -> Path:
    return record_file("h200.json")


def measured() -> list[Row]:
    """Return the rows of the record without the failed ones."""
    return [row for row in read(_path())[2] if "failed" not in row]


def provenance(page: str = "", *only: str) -> str:
    """Return the GPU, its driver, the library and the dates, for captions, with a page's replaced kernels.

    `only` names the implementations that the page shows, if these are not all that are measured for it.
    """
    if not _path().is_file():
        return "No record of a measurement is here."
    _, head, rows = read(_path())
    text = measured_on(head, {head["runs"][row["run"]]["date"] for row in measured()})
    if not page or not any(row.get("older") for row in rows):
        return text
    shown = {record.key(case.fields) for case in suite.cases([page])}
    older = [row["contender"] for row in rows if row.get("older") and record.key(row) in shown]
    older = [name for name in dict.fromkeys(older) if not only or name in only]
    implementation = ", ".join(older)
    return (
        f"{text} Kernels that have been replaced since are shown as they were then: {implementation}."
        if older
        else text
    )


def cells(shown: Callable[[Row], bool]) -> list[Row]:
    """Return the cells of a page: the place of each shown row, and the record's digest."""
    digest = read(_path())[0]
    return [{**{name: row[name] for name in _PLACE}, "record": digest} for row in measured() if shown(row)]


def products(
    names: Collection[str], shown: Callable[[Row], object], data: Collection[str] = ("symmetric",)
) -> list[Row]:
    """Return the cells of a page for products of the named implementations and kinds of data where `shown` holds."""
    return cells(
        lambda row: row["kind"] == "product" and row["data"] in data and row["contender"] in names and bool(shown(row))
    )


def is_square(row: Row) -> bool:
    """Whether a product is n × n × n."""
    return bool(row["M"] == row["N"] == row["K"])


def shape_name(row: Row) -> str | None:
    """Return the name of a product's shape in `benchmarks.gpu.groups.shapes`; None for another shape."""
    sides = row["M"], row["N"], row["K"]
    return next((name for name, known in groups.shapes(row["M"]).items() if known == sides), None)


def evaluate(cell: Row) -> dict[str, float]:
    """Return TFLOP/s of each kind, ratios to others on the same product in the same run, errors, parts of the time."""
    row = _measured(cell)
    rows = [other for other in measured() if other["run"] == row["run"]]
    numbers: dict[str, float | None] = {}
    product = row["kind"] == "product"
    numbers |= {name: record.rate(row, name) for name in _RATES if product}
    for name in _RATES[:3] if product else ():
        numbers[f"{name} / sgemm"] = record.ratio(rows, row, "sgemm", which=name)
        numbers[f"{name} / dgemm"] = record.ratio(rows, row, "dgemm", which=name)
        numbers[f"{name} / three products"] = record.ratio(rows, row, "fp16", 3, name)
        numbers[f"{name} / three calls"] = record.ratio(rows, row, "three fp16", which=name)
    numbers |= {f"{name}_s": row.get(f"{name}_s") for name in _RATES[:3]}
    kernel = str(row.get("kernel", ""))
    numbers["older"] = 1.0 if row.get("older") else None
    numbers["fused"] = float(" of words" not in kernel) if kernel.startswith("mma ") else None
    numbers |= {name: row.get(name) for name in _PLAIN} | {name: row[name] for name in row if name.startswith("part ")}
    return {name: float(x) for name, x in numbers.items() if x is not None and math.isfinite(x)}


def run_of(cell: Row) -> int:
    """Return the index of the run that measured a cell."""
    return int(_measured(cell)["run"])


def _measured(cell: Row) -> Row:
    return next(row for row in measured() if all(row[name] == cell[name] for name in _PLACE))


def squares(rows: list[Row], implementation: str, data: str = "symmetric") -> list[Row]:
    """Return an implementation's rows of n × n × n, n ascending."""
    of = [row for row in rows if row["contender"] == implementation and row["data"] == data and is_square(row)]
    return sorted(of, key=lambda row: int(row["M"]))


def at(rows: list[Row], implementation: str, M: int, N: int, K: int, data: str = "symmetric") -> Row | None:
    """Return the row of an implementation on a product; None if it was not measured."""
    place = {"contender": implementation, "M": M, "N": N, "K": K, "data": data}
    return next((row for row in rows if all(row[name] == value for name, value in place.items())), None)


def one_gpu() -> str:
    """The GPU's name in short."""
    return str(read(_path())[1]["device"]["gpu"]).removeprefix("NVIDIA ")
