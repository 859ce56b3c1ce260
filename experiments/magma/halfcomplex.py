"""Errors of MAGMA's batched HCGEMM over the layout, the accumulator and the number of real products.

The paper compares the speeds of its kernel for the interleaved layout, which accumulates both parts of an element in
fragments until the end, and of four calls of HGEMM on planar matrices, each of which reads and writes fp16. This page
compares their errors with the errors of three real products and of the kernel for tiny matrices.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import inputs, metrics, plotting
from fpemu.batched import hcgemm
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import complex_product
from .._rows import Row, in_legend, mean_by, runs_by
from ._errors import ACCUMULATORS, CHIPS, KINDS, LARGEST_SMALL, PAPER, curves, logarithmic

CAPTION = """Relative L2 error against the exact product over n, batches of half-complex n×n×n products on Volta, Ampere
and Hopper; real and imaginary parts of the operands uniform in [-1, 1] (zero mean) or in [0, 1] (positive), where the
two products of a real part nearly cancel. One kernel on both parts, the paper's for interleaved matrices; four calls of
HGEMM on planar matrices, rounded to fp16 in between; one kernel with three real products, which is not in the paper.
Summed in fp32 or in fp16; for n up to 16 also the kernel for tiny matrices in fp16."""
ASSUMPTIONS = [
    """The paper states neither errors nor the distribution of its operands. Here real and imaginary parts are uniform
    in [-1, 1], and in [0, 1].""",
    """The four calls have alpha = 1, beta = 0 in the first call of each part and beta = 1 in the second call, with C in
    fp16 between them. The one kernel has alpha = 1, beta = 0.""",
    """The three products include (Ar + Ai)(Br + Bi) with the sums rounded to fp16; the subtractions are in the format
    of the accumulator.""",
    """The error is the error of the whole complex matrix, with its real and imaginary parts as one vector. For positive
    parts the imaginary part dominates it.""",
    """The batch has 20 matrices at quick size, and 6 at n = 128. At full size it has 100 matrices up to n = 16, and
    fewer for larger n (1 at n = 256).""",
]
WAYS: dict[str, dict[str, Any]] = {
    "one kernel": {},
    "four calls": {"algorithm": "calls"},
    "three products": {"products": 3},
}
METHODS = {f"{way}, {d}": {**options, "accumulate": d} for way, options in WAYS.items() for d in ACCUMULATORS}
SMALL = "tiny kernel, fp16"
LENGTHS = [2**i for i in range(1, 8)]


_BATCHES = {n: {32: 40, 64: 10, 128: 3, 256: 1}.get(n, 100) for n in (*LENGTHS, 256)}
"""Number of products of each n at the paper's size."""


def cells(runs: int = 20, batches: Mapping[int, int] = _BATCHES) -> list[Row]:
    return [
        {"hardware": chip, "inputs": "uniform", "low": low, "n": n, "batch": batch, "seed": seed}
        for n, batch in sorted(batches.items())
        for low in KINDS.values()
        for chip in CHIPS
        for seed in range(runs)
    ]


def cost(cell: Row) -> float:
    return float(cell["batch"] * cell["n"] ** 3)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    n, batch = cell["n"], cell["batch"]
    A, B = inputs.operands(cell["inputs"], n, n, n, cell["seed"], "fp16", batch=(2, batch), low=cell["low"], high=1.0)
    exact = complex_product(A, B, device)
    A, B = (np.moveaxis(x, 0, -1) for x in (A, B))
    results = {name: hcgemm(A, B, hardware=cell["hardware"], **options) for name, options in METHODS.items()}
    results[SMALL] = hcgemm(A, B, accumulate="fp16", kernel="magma-small")
    numbers = {}
    for name, D in results.items():
        parts = np.moveaxis(D, -1, 0)
        numbers[f"{name} relative_l2"] = metrics.relative_l2(parts, exact)
        numbers[f"{name} real"] = metrics.relative_l2(parts[0], exact[0])
    numbers["once relative_l2"] = metrics.relative_l2(exact.astype(np.float16), exact)
    return numbers


_LOOK = {
    "one kernel": (plotting.GREEN, "D"),
    "four calls": (plotting.VERMILION, "s"),
    "three products": (plotting.BLUE, "x"),
}


def _look(name: str) -> Series:
    if name == SMALL:
        return Series(name, plotting.PURPLE, "P", ":")
    way, d = name.split(", ")
    return Series(name, *_LOOK[way], "-" if d == "fp32" else "--", filled=way == "one kernel")


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 3, height=6.4, share_y=True)
    lengths = sorted({row["n"] for row in rows})
    for line, chip in zip(axes, CHIPS, strict=True):
        for axis, low in zip(line, KINDS.values(), strict=True):
            curves(
                axis,
                lengths,
                [*METHODS, SMALL],
                lambda name, n, low=low, chip=chip: (  # type: ignore[misc]
                    [] if name == SMALL and n > LARGEST_SMALL else _runs(rows, chip, low, n, f"{name} relative_l2")
                ),
                _look,
            )
            logarithmic(axis, lengths)
            axis.tick_params(axis="x", labelrotation=90)
        line[0].set_ylabel("relative $L_2$ error")
    for axis in axes[-1]:
        axis.set_xlabel("$n$")
    plotting.panel_titles(axes, [f"{chip.capitalize()}, {kind}" for chip in CHIPS for kind in KINDS])
    batches = [row["batch"] for row in rows]
    title = f"{in_legend(rows)} of {min(batches)} to {max(batches)} products"
    plotting.legend_below(figure, axes[0, 0], 2, title=title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for d in ACCUMULATORS:
        ratios = [_ratio(rows, point, "four calls", d) for point in _points(rows)]
        if ratios:
            yield Measure("one_kernel_more_accurate", min(ratios), variant=f"sums in {d}")


def finding(rows: list[Row]) -> str:
    last = max(row["n"] for row in rows)
    statements: list[tuple[Any, ...]] = []
    for kind, low in KINDS.items():
        points = [point for point in _points(rows) if point[1] == low]
        if not points:
            continue
        ratios = {way: [_ratio(rows, p, way, "fp32") for p in points] for way in ("four calls", "three products")}
        crossed = {}
        for chip in CHIPS:
            lower = [n for c, _, n in points if c == chip and _ratio(rows, (c, low, n), "four calls", "fp16") < 1]
            crossed[chip.capitalize()] = f"from n = {min(lower)}" if lower else "nowhere"
        growth = {
            chip.capitalize(): _mean(rows, chip, low, last, "one kernel, fp16 relative_l2")
            / _mean(rows, chip, low, last, "one kernel, fp32 relative_l2")
            for chip in CHIPS
            if (chip, low, last) in points
        }
        statements += [
            (f"{kind} parts: with fp32 sums, the errors relative to one kernel are", ratios, ".2f×"),
            ("with fp16 sums, one kernel, whose chain is twice as long, has a larger error than four calls", crossed),
            (f"its error with fp16 sums divided by its error with fp32 sums at n = {last} is", growth, ".3g×"),
        ]
    excess = max(
        _mean(rows, *p, "one kernel, fp32 relative_l2") / _mean(rows, *p, "once relative_l2") for p in _points(rows)
    )
    return paragraph(
        *statements,
        ("the error of one kernel with fp32 sums is at most {} the error of one rounding to fp16", excess, ".4f×"),
    )


Point = tuple[str, float, int]
_runs, _mean = runs_by("hardware", "low", "n"), mean_by("hardware", "low", "n")


def _points(rows: list[Row]) -> list[Point]:
    return sorted({(row["hardware"], row["low"], row["n"]) for row in rows})


def _ratio(rows: list[Row], point: Point, way: str, d: str) -> float:
    """The error of one of `WAYS` divided by the error of one kernel."""
    return _mean(rows, *point, f"{way}, {d} relative_l2") / _mean(rows, *point, f"one kernel, {d} relative_l2")


QUICK = {"runs": 3, "batches": {n: 6 if n == 128 else 20 for n in LENGTHS}}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
