"""The suite of `fpemu bench gpu`: the cases behind each figure, each once, in the order of their importance.

Figures share rows: a product by one implementation is measured once, by the most careful method that a figure requires.
Each kind of case has a module (`MODULES`) with

* ``cases(quick) -> iterable of Case``: the most important first, fewer with `quick`;
* ``measure(case, operands) -> dict``: the fields of a row: "first_s", "best_s" and others; "operations" where a call
  does not perform 2·M·N·K·batch of them, "bytes" where bandwidth counts;
* ``seconds(case) -> float``: the estimated time, for a budget;

and optionally

* ``make(case)``: the operands, shared by consecutive cases of equal `Case.operands`;
* ``sources(case) -> list of str``: the sources of its kernels, so that many compile side by side beforehand;
* ``BASE``: the implementation whose speed the command's table divides by, if not "sgemm".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.gpu.case import RANK, Case
from benchmarks.gpu.record import base as row_of
from benchmarks.gpu.record import key, rate, ratio
from fpemu.errors import InputError, unknown_name

MODULES = {
    "product": "products",
    "ceiling": "ceilings",
    "application": "applications",
    "batched": "batched",
    "tall": "tallskinny",
}
"""Modules by kind, in the order in which cases are measured."""


def module(kind: str) -> Any:
    """Return the module of a kind."""
    return importlib.import_module(f"benchmarks.gpu.{MODULES[kind]}")


def make(case: Case) -> Any:
    """Return the operands of a case."""
    return getattr(module(case.kind), "make", lambda case: None)(case)


def measure(case: Case, operands: Any) -> dict[str, Any]:
    """Return the fields of a case's row."""
    return dict(module(case.kind).measure(case, operands))


def sources(case: Case) -> list[str]:
    """Return the sources of a case's kernels."""
    return list(getattr(module(case.kind), "sources", lambda case: [])(case))


def base(kind: str) -> str:
    """Return the implementation whose speed the others' are divided by."""
    return str(getattr(module(kind), "BASE", "sgemm"))


def figures() -> list[str]:
    """Return the pages that have cases."""
    return sorted({page for case in cases() for page in case.figures})


def cases(pages: Sequence[str] | None = None, quick: bool = False) -> list[Case]:
    """Return the cases to measure, each once, in the order of their importance; fewer sizes if `quick`.

    `pages` are pages or papers ("legemm/fig9", "dgemm_tc"), default all. A page without cases raises InputError.
    """
    merged: dict[object, Case] = {}
    for case in (case for kind in MODULES for case in module(kind).cases(quick)):
        old = merged.get(key(case.fields), case)
        shown = tuple(dict.fromkeys((*old.figures, *case.figures)))
        merged[key(case.fields)] = replace(old, figures=shown, rules=min(old.rules, case.rules, key=_rank))
    if pages is None:
        return list(merged.values())
    known = figures()
    for page in pages:
        if not any(_belongs(name, [page]) for name in known):
            raise unknown_name("figure", page, known)
    return [case for case in merged.values() if any(_belongs(page, pages) for page in case.figures)]


def chosen(shape: str, names: Sequence[str] = (), data: str = "symmetric") -> list[Case]:
    """Return cases of one product that need not belong to any figure.

    `shape` is "8192x8192x8192", M by N by K, or n alone; `names` are as in `benchmarks.gpu.implementations.find`, by
    default the library's and the fastest of the package. Unknown names and invalid sizes raise InputError.
    """
    from benchmarks.gpu import implementations
    from benchmarks.gpu.groups import FRONTIER
    from benchmarks.gpu.operands import DATA

    sides = shape.replace("×", "x").split("x")
    if len(sides) not in (1, 3) or not all(side.isdecimal() and len(side) <= 10 and int(side) for side in sides):
        raise InputError(f"{shape!r} is no shape: give n, or M, N and K as in 4096x16384x4096")
    if data not in DATA:
        raise unknown_name("kind of data", data, DATA)
    M, N, K = (int(side) for side in sides * (3 // len(sides)))
    given = [implementations.find(name) for name in names or ("sgemm", "fp16", "three fp16", "staged", FRONTIER[0])]
    fp64 = any(one.scheme is not None and one.operand == "fp64" for one in given)
    # the library multiplies the others' operands; its SGEMM reads fp32
    formats = [one.operand if one.scheme or (fp64 and one.name == "dgemm") else "fp32" for one in given]
    return [Case("product", M, N, K, data, one.name, "brief", fmt, ()) for one, fmt in zip(given, formats, strict=True)]


def seconds(cases: Iterable[Case]) -> float:
    """Estimate how long some cases take."""
    return sum(module(case.kind).seconds(case) for case in cases)


Number = float | None
_PRODUCTS = ("M×N×K, data", "implementation", "first", "sustained", "with split", "/ SGEMM", "/ fp16÷3", "error")
_CALLS = ("product", "implementation", "ms", "TFLOP/s", "GB/s", "/ library", "error", "bits")


def tables(
    rows: Sequence[dict[str, Any]], cases: Iterable[Case], show: Callable[[Number], str]
) -> list[tuple[str, tuple[str, ...], list[list[str]], int]]:
    """Return tables of the rows of some cases: title, columns, lines, and the number of columns of numbers.

    ``show`` formats a number. Ratios divide by the speed of the library on the same product.
    """
    wanted = {key(case.fields) for case in cases}
    rows = [row for row in rows if key(row) in wanted]
    products: list[list[str]] = []
    calls: list[list[str]] = []
    for row in rows:
        many = f" times {row['batch']}" if row.get("batch", 1) > 1 else ""
        product = f"{row['M']}×{row['N']}×{row['K']}{many} {row['data']}".strip() if row["M"] else row["kind"]
        line = [product, row["contender"]]
        (products if row["kind"] == "product" else calls).append(line)
        if "failed" in row:
            line.append(row["failed"][:60])
            continue
        numbers: list[Number]
        if row["kind"] == "product":
            numbers = [rate(row, name) for name in ("first", "sustained", "split_first")]
            numbers += [ratio(rows, row, "sgemm"), ratio(rows, row, "fp16", 3)]
            numbers += [row.get(name) for name in ("relative_l2", "power_W", "clock_MHz")]
        else:
            library = row_of(rows, row, base(row["kind"]))
            moved = row["bytes"] / row["first_s"] * 1e-9 if row.get("bytes") else None
            speedup = None if library is None else library["first_s"] / row["first_s"]
            throughput = rate(row) if row.get("operations") or many else None
            numbers = [1e3 * row["first_s"], throughput, moved, speedup, row.get("relative_l2")]
        bits = "" if "checked" not in row else f"{row['checked'] - row['mismatches']} / {row['checked']}"
        line += [*map(show, numbers), bits]
    title = "effective throughput (2MNK / time), TFLOP/s; relative L2 error against fp64"
    made = [(title, (*_PRODUCTS, "W", "MHz", "bits"), products, 9), ("whole calls", _CALLS, calls, 5)]
    return [table for table in made if table[2]]


def _rank(rules: str) -> int:
    """Return the position in `RANK`; methods of one kind only come last."""
    return RANK.index(rules) if rules in RANK else len(RANK)


def _belongs(page: str, pages: Iterable[str]) -> bool:
    return any(page == one or page.startswith(f"{one}/") for one in pages)
