"""H2SGEMM: rounding to nearest against truncation, in the words and in the sums, and operands above 2^15."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import metrics, mma, plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.schemes import words
from fpemu.schemes.h2sgemm import H2sgemm

from .._findings import paragraph
from .._numeric import problem
from .._rows import Row, mean_by, runs_by
from . import _methods as methods

PAPER = f"{methods.PAPER}, sections 3.1.3 and 3.2"
CAPTION = """Relative L2 error of term-wise H2SGEMM against the exact product, operands uniform in (a) [-x, x] and (b)
[0, x], over x: with words and sums rounded to nearest, sb = 12, 11, 6 and 0, and with sb = 12 with truncated words and
with a cube that truncates its sums. Below 60000 the exponents reach 15, the largest of fp16; no marker: a residual
overflows in some run. Lines: median over the seeds; bands: quartiles."""
ASSUMPTIONS = [
    """The paper does not state which rounding to nearest is compared with truncation. The page has two readings: both
    words of the operands, and the sums of the cube.""",
    """The smallest error of any sb is the smallest of sb = 0, 6, 11, 12 and 13. A product with an infinite
    residual has an infinite error.""",
    "A has 176 rows, as the blocks of section 4.2; B has 4 columns.",
]

BOUNDS = {"2^-13": 2.0**-13, "2^-8": 2.0**-8, "2^0": 1.0, "2^15": 2.0**15, "60000": 60000.0}
"""Above 2^-13 every entry is subnormal in fp16; 60000 has the offset exponent 15."""
INTERVALS = {"symmetric": "[-x, x]", "nonnegative": "[0, x]"}
SCALES = (0, 6, 11, 12, 13)
TRUNCATED = {"words": "words RZ", "sums of the cube": "sums RZ"}


def cells(
    m: int = 176,
    n: int = 4,
    k: int = 64 * 44,
    seeds: int = 20,
    bounds: tuple[str, ...] = tuple(BOUNDS),
    hardware: str = methods.HARDWARE,
) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": kind, "bound": bound, "seed": seed, "m": m, "n": n, "k": k}
        for kind in INTERVALS
        for bound in bounds
        for seed in range(seeds)
    ]


def operands(cell: Mapping[str, Any], device: Device) -> Any:
    """Return a cell's operands and their exact product."""
    x = BOUNDS[cell["bound"]]
    low = -x if cell["inputs"] == "symmetric" else 0.0
    return problem("uniform", cell["m"], cell["n"], cell["k"], cell["seed"], device, low=low, high=x)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """Errors by column, and the number of infinite residuals of A and of rows that have one."""
    A, B, exact = operands(cell, device)
    spec = mma.spec(cell["hardware"], "fp16")
    runs = {f"sb={sb}": (H2sgemm(sb=sb), spec) for sb in SCALES}
    runs["words RZ"] = (H2sgemm(high_rounding="RZ", residual_rounding="RZ"), spec)
    runs["sums RZ"] = (H2sgemm(), spec.replace(final="RZ"))
    numbers = {}
    for name, (scheme, unit) in runs.items():
        D = schemes.gemm(A, B, scheme=scheme, hardware=unit, on_range="propagate", device=device)
        numbers[name] = metrics.relative_l2(D, exact) if np.isfinite(D).all() else float("inf")
    for sb in (11, 12):
        _, residual = words.split(A, H2sgemm(sb=sb).rules())
        infinite = ~np.isfinite(residual.astype(np.float64))
        numbers |= {f"infinite sb={sb}": float(infinite.sum()), f"rows sb={sb}": float(infinite.any(1).sum())}
    return numbers


_LOOK = {
    "sb=12": Series("sb = 12", plotting.BLUE, "o"),
    "sb=11": Series("sb = 11", plotting.SKY, "D", "--", filled=False),
    "sb=6": Series("sb = 6", plotting.ORANGE, "d", "-."),
    "sb=0": Series("sb = 0", plotting.GREEN, "^", ":"),
    "words RZ": Series("sb = 12, truncated words", plotting.VERMILION, "v", "--"),
    "sums RZ": Series("sb = 12, truncated sums", plotting.BLACK, "s", ":", filled=False),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=5.2)
    runs, bounds = runs_by("inputs", "bound"), [b for b in BOUNDS if any(row["bound"] == b for row in rows)]
    for axis, kind in zip(axes[:, 0], INTERVALS, strict=True):
        for name, look in _LOOK.items():
            large = {"markersize": 6.5, "zorder": 1.9} if name == "sb=11" else {}
            plotting.band(axis, range(len(bounds)), [runs(rows, kind, b, name) for b in bounds], look, **large)
        axis.set(yscale="log", ylabel="relative $L_2$ error")
        axis.set_xticks(range(len(bounds)), [f"${b.replace('^', '^{')}}}$" if "^" in b else b for b in bounds])
    axes[-1, 0].set_xlabel("$x$")
    plotting.panel_titles(axes, [f"uniform in {text}" for text in INTERVALS.values()])
    plotting.legend_below(figure, axes, 2, methods.sizes_and_runs(rows))
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    mean = mean_by("inputs", "bound")
    for kind, interval in INTERVALS.items():
        for bound in dict.fromkeys(row["bound"] for row in rows):
            error = {name: mean(rows, kind, bound, name) for name in (*(f"sb={sb}" for sb in SCALES), *_LOOK)}
            variant = f"{interval}, x = {bound}"
            if np.isfinite(error["sb=12"]):
                for reading, column in TRUNCATED.items():
                    yield Measure("rn_beats_rz", error[column] / error["sb=12"], reading, variant)
            yield Measure("sb12_robust", error["sb=12"] / min(error[f"sb={sb}"] for sb in SCALES), variant=variant)


def finding(rows: list[Row]) -> str:
    large = [row for row in rows if row["bound"] == "60000"]
    size = f"{large[0]['m']} × {large[0]['k']}" if large else ""
    return paragraph(
        *(
            (
                f"for x = 60000 and sb = {sb}, infinite residuals of {size}, and rows with one",
                {name: [row[f"{column} sb={sb}"] for row in large] for name, column in _COUNTS.items()}
                if large
                else None,
                "g",
            )
            for sb in (12, 11)
        )
    )


_COUNTS = {"residuals": "infinite", "rows": "rows"}


QUICK = {"m": 48, "k": 512, "seeds": 3}
PAGE = Page(
    PAPER,
    lambda given: f"{CAPTION} {methods.unit(given)}",
    lambda given: [methods.cube(given), *ASSUMPTIONS],
    cells,
    evaluate,
    draw,
    measures,
    finding,
    quick=QUICK,
)
