"""The record of `fpemu bench gpu` on small and on tall products (beside this module), and selections from its rows.

FPEMU_SPEED names another GPU's record in its place.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import record, shapes
from benchmarks.gpu.case import Case
from fpemu import plotting
from fpemu.errors import InputError
from fpemu.plotting import Series
from fpemu.roofline import gpus

from .._rows import Row, size_axis
from ._record import measured_on, read, record_file

_PLACE = ("kind", "M", "N", "K", "data", "batch", "contender")
_PLAIN = (
    "relative_l2",
    "max_relative",
    "lost",
    "outputs",
    "checked",
    "mismatches",
    "bytes",
    "copies",
    "operations",
    "launch_s",
)
RULES = [
    """Times are GPU times: launches are queued behind a waiting kernel, so the times exclude the host. A time is the
    median of 11 samples (at least 3 of long launches) after a warm-up; a sample has the launches that fit in 0.4 ms, at
    most 160. All samples are repeated if the upper quartile exceeds 1.1 times the lower quartile, or if the waiting
    kernel was interrupted, which indicates another process on the GPU.""",
    """Errors are of a sample of the entries against the product in fp64, which is exact except for its last bits for
    fp16 and fp32 operands, or against the exact product rounded to fp64.""",
    """GPU and cuBLAS differ from the paper's, so only ratios of speeds in one run can be compared with the paper, and
    no ratio on this GPU judges a claim about another GPU.""",
]
BATCHED = """Operands are uniform in [-1, 1], stored by rows, alpha = 1, beta = 0. They stay in place between launches:
    all implementations read operands that fit into the L2 cache (50 MB on an H200) from this cache. "From memory":
    launches alternate between copies, 256 MB or 40 of them. "fpemu" is the default kernel: kernel and parameters from
    the package's table for the size, sums in fp32. A launch may begin before the end of the previous launch, unless it
    depends on it. "In a loop" is timed by the host's clock: successive calls from Python for 2 ms, prepared in advance
    as far as possible, and one synchronisation at the end; cuBLAS is called directly."""
TALL = """Operands are uniform in [0, 1]. Launches alternate between up to 64 copies of A and of the result, of 256 MB
    or more in total where possible, so that A comes from memory. The bandwidth is the number of bytes of A, B and the
    result per time; its share is relative to the bandwidth of a copy, reads and writes, in the same run."""
LOOKS = {
    "cublas": Series("cuBLAS", plotting.BLACK, "s", "--", filled=False),
    "cublas in one": Series("cuBLASLt, one call", plotting.GREY, "x", ":"),
    "cublas fp16": Series("cuBLAS, fp16 sums", plotting.GREY, "x", ":"),
    "ours": Series("fpemu", plotting.VERMILION, "o"),
    "ours fp16": Series("fpemu, fp16 sums", plotting.PURPLE, "P", ":"),
    "ours planar": Series("planar, one kernel", plotting.SKY, "v", "--"),
    "ours three products": Series("three real products", plotting.PURPLE, "P", "--"),
    "magma": Series("MAGMA's blocks", plotting.ORANGE, "v"),
    "magma-small": Series("magma-small", plotting.BLUE, "^"),
    "magma-small fp32": Series("magma-small, fp32 sums", plotting.SKY, "^", ":", filled=False),
    "tiny": Series("several / instruction", plotting.GREEN, "D"),
    "V0": Series("TSM2 V0", plotting.GREY, "x", ":"),
    "V1": Series("TSM2 V1", plotting.SKY, "^", "-."),
    "V2": Series("TSM2 V2", plotting.BLUE, "v", "--"),
    "V3": Series("TSM2 V3", plotting.VERMILION, "o"),
    "opt 1": Series("ISM2, optimisation 1", plotting.ORANGE, "s", "--", filled=False),
    "opt 2": Series("ISM2, optimisation 2", plotting.PURPLE, "X", "-."),
    "hopper": Series("kernel for Hopper", plotting.GREEN, "D"),
}
"""Appearance of an implementation on all pages."""


def _path() -> Path:
    return record_file("h200_shapes.json")


@functools.cache
def _read(path: Path) -> tuple[str, dict[str, Any], list[Row]]:
    digest, head, rows = read(path)
    kinds = (shapes.BATCHED, shapes.TALL)
    return digest, head, [{"batch": 1, **row} for row in rows if row["kind"] in kinds and "failed" not in row]


def provenance(page: str) -> str:
    """Return the GPU, its driver, the library and the dates, and the unmeasured products of a page, for its caption."""
    if not _path().is_file():
        return "No record of a measurement is here."
    _, head, rows = _read(_path())
    text = measured_on(head, {head["runs"][row["run"]]["date"] for row in rows})
    lacking = missing(page)
    return f"{text} {lacking}" if lacking else text


def _cases(page: str) -> list[Case]:
    cases = (*shapes.cases(shapes.BATCHED, shapes.batched()), *shapes.cases(shapes.TALL, shapes.tall()))
    return [case for case in cases if page in case.figures]


def _place(case: Case) -> tuple[Any, ...]:
    fields = {"batch": 1, **case.fields}
    return tuple(fields[name] for name in _PLACE)


def missing(page: str) -> str:
    """Return the products of a page that the record lacks, for some implementation."""
    have = {tuple(row[name] for name in _PLACE) for row in _read(_path())[2]}
    every: dict[tuple[str, int], set[int]] = {}
    lacking: dict[str, dict[int, set[int]]] = {}
    for case in _cases(page):
        every.setdefault((case.data, case.M), set()).add(case.N)
        if _place(case) not in have:
            form = "" if case.kind == shapes.TALL else " n×n×n" if case.M == case.K else f" n×n×{case.K}"
            lacking.setdefault(case.data + form, {}).setdefault(case.M, set()).add(case.N)
    parts = []
    for data, sizes in lacking.items():
        wide = data.split()[0] in shapes.FORMATS
        published = [
            f"{m} (n = {', '.join(map(str, sorted(columns)))})" if wide and columns != every[data, m] else str(m)
            for m, columns in sorted(sizes.items())
        ]
        name = data.replace(" ", " by ") if wide else data
        parts.append(f"{name}, {'m' if wide else 'n'} = {', '.join(published)}")
    return f"Not measured: {'; '.join(parts)}." if parts else ""


def cells_of(page: str, shown: Callable[[Row], bool] = lambda row: True) -> Callable[[], list[Row]]:
    """Return the function `cells` of a page: the rows measured for it, by place, and the record's digest."""

    def cells() -> list[Row]:
        digest, _, rows = _read(_path())
        wanted = {_place(case) for case in _cases(page)}
        return [
            {**{name: row[name] for name in _PLACE}, "record": digest}
            for row in rows
            if tuple(row[name] for name in _PLACE) in wanted and shown(row)
        ]

    return cells


def evaluate(cell: Row) -> dict[str, float]:
    """ "seconds", also in a "loop" and "cold", "rate" (TFLOP/s), "bandwidth" (GB/s), "share" of a copy's, "speedup"
    over cuBLAS, errors, bits."""
    rows = _read(_path())[2]
    row = next(row for row in rows if all(row[name] == cell[name] for name in _PLACE))
    took = _seconds(row)
    numbers: dict[str, float | None] = {"seconds": took, "rate": row["operations"] / took * 1e-12}
    numbers["bandwidth"] = row["bytes"] / took * 1e-9
    numbers["share"] = numbers["bandwidth"] / row["copy_GBs"] if row.get("copy_GBs") else None
    numbers |= {"loop": row.get("loop_s"), "cold": row.get("cold_s")}
    base = record.base(rows, row, shapes.BASE)
    numbers["speedup"] = None if base is None else _seconds(base) / took
    numbers |= {name: row.get(name) for name in _PLAIN}
    return {name: float(x) for name, x in numbers.items() if x is not None and math.isfinite(x)}


def _seconds(row: Mapping[str, Any]) -> float:
    """Of a launch, on the GPU."""
    return float(row["first_s"])


# --- rows
def line(rows: Iterable[Row], implementation: str, over: str = "M", **place: Any) -> list[Row]:
    """Return an implementation's rows at a place, in the order of one of their sides."""
    place["contender"] = implementation
    selected = [row for row in rows if all(row[name] == x for name, x in place.items())]
    return sorted(selected, key=lambda row: int(row[over]))


def best(rows: Iterable[Row], implementations: Sequence[str], over: str = "M", **place: Any) -> list[Row]:
    """Return the fastest of some implementations at each point of a line."""
    result: dict[int, Row] = {}
    for row in (row for one in implementations for row in line(rows, one, over, **place)):
        old = result.get(int(row[over]))
        result[int(row[over])] = row if old is None or row["seconds"] < old["seconds"] else old
    return [result[x] for x in sorted(result)]


def ratios(over: Iterable[Row], under: Iterable[Row], by: str = "M", what: str = "seconds") -> dict[int, float]:
    """Return the times of the second divided by the times of the first, where both exist; on the GPU, in a "loop" or
    "cold".

    >>> ratios([{"M": 8, "seconds": 2.0}], [{"M": 8, "seconds": 3.0}, {"M": 16, "seconds": 5.0}])
    {8: 1.5}
    """
    slow = {int(row[by]): row[what] for row in under if what in row}
    return {int(row[by]): slow[int(row[by])] / row[what] for row in over if what in row and int(row[by]) in slow}


def mean(values: Iterable[float]) -> float:
    """Return the geometric mean; NaN without values.

    >>> round(mean([1.0, 4.0]), 12)
    2.0
    """
    known = list(values)
    return math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan


def errors(rows: Iterable[Row], implementation: str, base: str, over: str = "M", **place: Any) -> dict[int, float]:
    """Return the error of an implementation divided by the error of another, where both exist.

    >>> rows = [{"contender": x, "M": 8, "relative_l2": error} for x, error in (("ours", 3.0), ("cublas", 2.0))]
    >>> errors(rows, "ours", "cublas")
    {8: 1.5}
    """
    known = list(rows)
    under = {int(row[over]): row.get("relative_l2", 0.0) for row in line(known, base, over, **place)}
    return {
        int(row[over]): row["relative_l2"] / under[int(row[over])]
        for row in line(known, implementation, over, **place)
        if "relative_l2" in row and under.get(int(row[over]))
    }


def span(values: Iterable[float], unit: str = "×") -> str:
    """Return the range and the geometric mean in words; empty without values.

    >>> span([1.0, 4.0])
    '1 to 4×, mean 2×'
    """
    known = list(values)
    if not known:
        return ""
    ends = " to ".join(dict.fromkeys(f"{x:.3g}" for x in (min(known), max(known))))
    return f"{ends}{unit}" + (f", mean {mean(known):.3g}{unit}" if len(known) > 1 else "")


# --- figures
def plot(axes: Any, rows: Sequence[Row], what: str, over: str, look: Series, times: float = 1.0) -> None:
    """Draw a column of the rows over one of their sides."""
    points = [(int(row[over]), times * row[what]) for row in rows if what in row]
    if points:
        axes.plot(*zip(*points, strict=True), **look.line())


def over_powers(axes: Any, ticks: Sequence[int], name: str = "$n$") -> None:
    """Set a logarithmic axis of sizes below all panels."""
    for axis in axes.ravel():
        size_axis(axis, ticks)
    for axis in axes[-1]:
        axis.set_xlabel(name)


def multiprocessors() -> int | None:
    """Return the number of multiprocessors of the record's GPU; None if the table of GPUs lacks it."""
    try:
        return int(gpus.get(one_gpu()).need("sms"))
    except InputError:
        return None


def one_gpu() -> str:
    """Return the GPU's short name, as in `fpemu.roofline.gpus`."""
    return str(_read(_path())[1]["device"]["gpu"]).removeprefix("NVIDIA ").split()[0]
