"""What `fpemu bench gpu` measured on small and on tall products, kept beside this module, and what the pages share.

Another GPU's record takes its place where FPEMU_SPEED names it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import record, shapes
from benchmarks.gpu.case import Case
from fpemu import plotting
from fpemu.errors import InputError
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share
from fpemu.roofline import gpus

from ._record import Row, measured_on, read, record_file

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
    """Times are the GPU's own: launches queue up behind a wait, so that the host is not measured. Each is the median of
    11 samples, of 3 at least where they are long; a sample is as many launches as take 0.4 ms, 160 at most, after
    others that do not count. All are taken again where the upper quartile is more than 1.1 times the lower, or where
    the wait itself was interrupted, which tells that another process had the GPU.""",
    """Errors are those of a sample of the entries against the product in fp64, which is exact for fp16 and fp32
    operands but for its last bits, or against the exact product rounded to fp64.""",
    """Another GPU than the paper's, and another cuBLAS: what can be compared are ratios of speeds measured side by side
    in one run, and orders, not TFLOP/s. A range of speed-ups holds if every point reaches its lower end.""",
]
BATCHED = """Operands are uniform in [-1, 1], stored by rows, alpha = 1, beta = 0. They stay where they are between
    launches: what fits into the L2 cache (50 MB on an H200) is read from there, for all contenders alike. "From memory"
    is said where launches go round in copies, 256 MB or 40 of them. "fpemu" is
    what a caller gets who chooses nothing: the kernel and its parameters that the package's table has for the size,
    sums in fp32. Its launches may begin before the one before has ended, and wait by themselves where they must.
    "In a loop" is the host's clock: calls one after another from Python for 2 ms, with what can be prepared prepared
    before, and one wait for the GPU at their end; cuBLAS' functions are called as they are."""
TALL = """Operands are uniform in [0, 1]. Launches go round in up to 64 copies of A and of the result, 256 MB or more
    where that many make it, so that A comes from memory. Bandwidth counts A, B and the result once each; the copy that
    it is a share of was timed in the same run and counts what it reads and what it writes."""
LOOKS = {
    "cublas": Series("cuBLAS", plotting.BLACK, "s", "--", filled=False),
    "cublas in one": Series("cuBLASLt, planar, one call", plotting.GREY, "x", ":"),
    "cublas fp16": Series("cuBLAS, sums in fp16", plotting.GREY, "x", ":"),
    "ours": Series("fpemu", plotting.VERMILION, "o"),
    "ours fp16": Series("fpemu, sums in fp16", plotting.PURPLE, "P", ":"),
    "ours planar": Series("fpemu, planar", plotting.SKY, "v", "--"),
    "ours three products": Series("fpemu, three real products", plotting.PURPLE, "P", "--"),
    "magma": Series("blocks of MAGMA's design", plotting.ORANGE, "v"),
    "magma-small": Series("magma-small", plotting.BLUE, "^"),
    "magma-small fp32": Series("magma-small, sums in fp32", plotting.SKY, "^", ":", filled=False),
    "tiny": Series("several in one instruction", plotting.GREEN, "D"),
    "V0": Series("TSM2 V0", plotting.GREY, "x", ":"),
    "V1": Series("TSM2 V1", plotting.SKY, "^"),
    "V2": Series("TSM2 V2", plotting.BLUE, "v"),
    "V3": Series("TSM2 V3", plotting.VERMILION, "o"),
    "opt 1": Series("ISM2, optimisation 1", plotting.ORANGE, "P"),
    "opt 2": Series("ISM2, optimisation 2", plotting.PURPLE, "X"),
    "hopper": Series("kernel for Hopper", plotting.GREEN, "D"),
}
"""One look for a contender on all pages."""


def _path() -> Path:
    return record_file("h200_shapes.json")


@functools.cache
def _read(path: Path) -> tuple[str, dict[str, Any], list[Row]]:
    digest, head, rows = read(path)
    kinds = (shapes.BATCHED, shapes.TALL)
    return digest, head, [{"batch": 1, **row} for row in rows if row["kind"] in kinds and "failed" not in row]


def told(page: str) -> str:
    """The GPU, its driver, the library and the dates, and what a page lacks, for its caption."""
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
    """Which of a page's products, or some of whose contenders, the record has not got."""
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


def cells_of(page: str, shown: Callable[[Row], bool] = lambda row: True) -> Callable[[str], list[Row]]:
    """The function `cells` of a page: the rows that were measured for it, by place, and the record's digest."""

    def cells(size: str) -> list[Row]:
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
def line(rows: Iterable[Row], who: str, over: str = "M", **place: Any) -> list[Row]:
    """A contender's rows at a place, by one of their sides."""
    of = [row for row in rows if row["contender"] == who and all(row[name] == x for name, x in place.items())]
    return sorted(of, key=lambda row: int(row[over]))


def best(rows: Iterable[Row], who: Sequence[str], over: str = "M", **place: Any) -> list[Row]:
    """The fastest of some contenders at each point of a line."""
    result: dict[int, Row] = {}
    for row in (row for one in who for row in line(rows, one, over, **place)):
        old = result.get(int(row[over]))
        result[int(row[over])] = row if old is None or row["seconds"] < old["seconds"] else old
    return [result[x] for x in sorted(result)]


def ratios(over: Iterable[Row], under: Iterable[Row], by: str = "M", what: str = "seconds") -> dict[int, float]:
    """How many times as fast the first are as the second, where both are; by the GPU's time, "loop" or "cold".

    >>> ratios([{"M": 8, "seconds": 2.0}], [{"M": 8, "seconds": 3.0}, {"M": 16, "seconds": 5.0}])
    {8: 1.5}
    """
    slow = {int(row[by]): row[what] for row in under if what in row}
    return {int(row[by]): slow[int(row[by])] / row[what] for row in over if what in row and int(row[by]) in slow}


def mean(values: Iterable[float]) -> float:
    """Geometric; NaN of none.

    >>> round(mean([1.0, 4.0]), 12)
    2.0
    """
    known = list(values)
    return math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan


def errors(rows: Iterable[Row], who: str, base: str, over: str = "M", **place: Any) -> dict[int, float]:
    """A contender's error over another's, where both are and the other has one.

    >>> rows = [{"contender": who, "M": 8, "relative_l2": error} for who, error in (("ours", 3.0), ("cublas", 2.0))]
    >>> errors(rows, "ours", "cublas")
    {8: 1.5}
    """
    known = list(rows)
    under = {int(row[over]): row.get("relative_l2", 0.0) for row in line(known, base, over, **place)}
    return {
        int(row[over]): row["relative_l2"] / under[int(row[over])]
        for row in line(known, who, over, **place)
        if "relative_l2" in row and under.get(int(row[over]))
    }


def span(values: Iterable[float], unit: str = "×") -> str:
    """ "1.2 to 3.4×, mean 2.1×"; nothing of none.

    >>> span([1.0, 4.0])
    '1 to 4×, mean 2×'
    """
    known = list(values)
    if not known:
        return ""
    ends = " to ".join(dict.fromkeys(f"{x:.3g}" for x in (min(known), max(known))))
    return f"{ends}{unit}" + (f", mean {mean(known):.3g}{unit}" if len(known) > 1 else "")


def compared(claim: str, published: str, ratios: Iterable[float], relation: str, limit: float) -> Claim:
    """The verdict on a relation (">", ">=", "<" or "<=") of every ratio to a limit.

    >>> compared("faster", "", [1.5, 2.0], ">", 1).verdict
    'holds'
    """
    known, holds = list(ratios), {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}[relation]
    return share(claim, published, [holds(x, limit) for x in known], span(known))


def reaches(claim: str, low: float, high: float | None, values: Iterable[float]) -> Claim:
    """The verdict on a published range of speed-ups: whether each point reaches its lower end."""
    known = list(values)
    published = f"{low:g}×" if high is None else f"{low:g} to {high:g}×"
    return share(claim, published, [x >= low for x in known], span(known))


# --- figures
def plot(axes: Any, rows: Sequence[Row], what: str, over: str, look: Series, times: float = 1.0) -> None:
    """A line of a number of the rows."""
    points = [(int(row[over]), times * row[what]) for row in rows if what in row]
    if points:
        axes.plot(*zip(*points, strict=True), **look.line())


def over_powers(axes: Any, ticks: Sequence[int], name: str = "$n$") -> None:
    """A logarithmic axis of sizes below all panels."""
    for axis in axes.ravel():
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(n) for n in ticks])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    for axis in axes[-1]:
        axis.set_xlabel(name)


def multiprocessors() -> int | None:
    """Of the GPU of the record, None where the table of GPUs has not got it."""
    try:
        return int(gpus.get(one_gpu()).need("sms"))
    except InputError:
        return None


def one_gpu() -> str:
    """The GPU's name in short, as `fpemu.roofline.gpus` may have it."""
    return str(_read(_path())[1]["device"]["gpu"]).removeprefix("NVIDIA ").split()[0]
