"""MAGMA's batched HCGEMM: what the layout, the accumulator and the number of real products do to errors.

The paper compares its kernel for the interleaved layout, which keeps both parts of an element in fragments until the
end, with four calls of HGEMM on planar matrices, each of which reads and writes fp16. It compares speeds; here are the
errors of the two, of three real products instead of four, and of the kernel for tiny matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import inputs, metrics, plotting
from fpemu.batched import hcgemm
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._numeric import complex_product
from .._rows import listed, runs_by

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), sections 5.5, 6.2 and 8"""
EXPLAINS = ("magma/halfcomplex",)
TITLE = "errors of batched HCGEMM: interleaved, planar, three products"
CAPTION = """Relative L2 error against the exact product over n, batches of half-complex n×n×n products on Volta, Ampere
and Hopper; real and imaginary parts of the operands uniform in (a to c) [-1, 1], (d to f) [0, 1], where the two
products of a real part nearly cancel. One kernel on both parts, as the paper has it for interleaved matrices (filled);
four calls of HGEMM that round to fp16 between, for planar ones (open); one kernel with three real products, which the
paper does not have (crosses). Summed in fp32 (solid), in fp16 (dashed); for n up to 16 also the kernel for tiny
matrices in fp16 (dotted). Lines: mean over seeded batches; bands: smallest to largest; grey line: 2^-11."""
ASSUMPTIONS = [
    """The paper gives neither errors nor the distribution of its operands: real and imaginary parts uniform in [-1, 1],
    and in [0, 1].""",
    """Four calls: alpha = 1, beta = 0 in the first call of each part, beta = 1 in the second, C in fp16 between them.
    One kernel: alpha = 1, beta = 0.""",
    """Three products: (Ar + Ai)(Br + Bi) with the sums rounded to fp16; what is subtracted, in the accumulator's
    format.""",
    """The error is that of the whole complex matrix: the real and imaginary parts as one vector. For positive parts the
    imaginary part is most of it.""",
    "The batch is 20 matrices at quick size, 6 at n = 128; 50 at full size.",
]
CHIPS = ("volta", "ampere", "hopper")
KINDS = {"zero mean": -1.0, "positive": 0.0}
WAYS: dict[str, dict[str, Any]] = {
    "one kernel": {},
    "four calls": {"algorithm": "calls"},
    "three products": {"products": 3},
}
ACCUMULATORS = ("fp32", "fp16")
METHODS = {f"{way}, {d}": {**options, "accumulate": d} for way, options in WAYS.items() for d in ACCUMULATORS}
SMALL = "tiny kernel, fp16"
_LARGEST_SMALL = 16
LENGTHS = [2**i for i in range(1, 8)]
_SIZES: dict[str, Any] = {
    "quick": {"runs": 3, "batch": {n: 6 if n == 128 else 20 for n in LENGTHS}},
    "full": {"runs": 5, "batch": dict.fromkeys([*LENGTHS, 256, *range(24, 249, 32)], 50)},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {"hardware": chip, "inputs": "uniform", "low": low, "n": n, "batch": batch, "seed": seed}
        for n, batch in sorted(chosen["batch"].items())
        for low in KINDS.values()
        for chip in CHIPS
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["batch"] * cell["n"] ** 3)


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
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


_COLORS = {"one kernel": plotting.GREEN, "four calls": plotting.VERMILION, "three products": plotting.BLUE}
_MARKERS = {"one kernel": "D", "four calls": "s", "three products": "x"}


def _look(name: str) -> Series:
    if name == SMALL:
        return Series("tiny kernel, fp16", plotting.PURPLE, "P", ":")
    way, d = name.split(", ")
    return Series(name, _COLORS[way], _MARKERS[way], "-" if d == "fp32" else "--", filled=way == "one kernel")


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 2, height=4.6, share_y=True)
    lengths = sorted({row["n"] for row in rows})
    for line, low in zip(axes, KINDS.values(), strict=True):
        for axis, chip in zip(line, CHIPS, strict=True):
            for name in [*METHODS, SMALL]:
                selected = [n for n in lengths if name != SMALL or n <= _LARGEST_SMALL]
                plotting.band(
                    axis, selected, [_runs(rows, chip, low, n, f"{name} relative_l2") for n in selected], _look(name)
                )
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks([n for n in lengths if n & (n - 1) == 0][::2])
            axis.tick_params(axis="x", which="minor", bottom=False)
            axis.axhline(2.0**-11, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
        line[0].set_ylabel("relative $L_2$ error")
    for axis in axes[1]:
        axis.set_xlabel("$n$")
    titles = [f"{chip.capitalize()}, {kind}" for kind in KINDS for chip in CHIPS]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes[0, 0], 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    """Checks of our own: the paper says nothing about errors."""
    for d in ACCUMULATORS:
        ratios = [_ratio(rows, point, "four calls", d) for point in _points(rows)]
        text = f"{min(ratios):.2f} to {max(ratios):.2f} times the error" if ratios else "no points"
        name = f"four calls that round to fp16 between err more than one kernel, summed in {d}"
        yield share(name, "", [ratio > 1 for ratio in ratios], text)


def finding(rows: list[dict[str, Any]]) -> str:
    last = max(row["n"] for row in rows)
    statements: list[tuple[Any, ...]] = []
    for kind, low in KINDS.items():
        points = [point for point in _points(rows) if point[1] == low]
        if not points:
            continue
        ratios = {way: [_ratio(rows, p, way, "fp32") for p in points] for way in ("four calls", "three products")}
        ratios["four calls, real part alone"] = [_ratio(rows, p, "four calls", "fp32", "real") for p in points]
        crossed, growth = {}, {}
        for chip in CHIPS:
            lengths = [n for c, _, n in points if c == chip]
            first = min((n for n in lengths if _ratio(rows, (chip, low, n), "four calls", "fp16") < 1), default=None)
            if last in lengths:
                crossed[chip.capitalize()] = "nowhere" if first is None else f"from n = {first}"
                growth[chip.capitalize()] = _growth(rows, (chip, low, last))
        statements += [
            (f"{kind} parts, summed in fp32, error over that of one kernel", ratios, ".2f×"),
            ("summed in fp16, one kernel, whose chain is twice as long, errs more than four calls", crossed),
            (f"its error over that in fp32 at n = {last}", growth, ".3g×"),
        ]
    excess = max(_mean(rows, p, "one kernel, fp32") / _mean(rows, p, "once") for p in _points(rows))
    return paragraph(*statements, ("one kernel with sums in fp32 over one rounding to fp16, at most", excess, ".4f×"))


Point = tuple[str, float, int]


def _points(rows: list[dict[str, Any]]) -> list[Point]:
    return sorted({(row["hardware"], row["low"], row["n"]) for row in rows})


def _ratio(rows: list[dict[str, Any]], point: Point, way: str, d: str, measure: str = "relative_l2") -> float:
    """The error of one of `WAYS` over that of one kernel."""
    return _mean(rows, point, f"{way}, {d}", measure) / _mean(rows, point, f"one kernel, {d}", measure)


def _growth(rows: list[dict[str, Any]], point: Point) -> float:
    return _mean(rows, point, "one kernel, fp16") / _mean(rows, point, "one kernel, fp32")


_runs = runs_by("hardware", "low", "n")


def _mean(rows: list[dict[str, Any]], point: Point, method: str, measure: str = "relative_l2") -> float:
    return float(np.mean(_runs(rows, *point, f"{method} {measure}")))
