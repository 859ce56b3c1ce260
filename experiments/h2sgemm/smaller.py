"""H2SGEMM: the error over k of figure 9 at smaller offset exponents, which section 4.1 omits."""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._rows import Row, runs_by, size_axis
from . import _methods as methods
from ._methods import KINDS, LOOKS, evaluate_methods, means
from .fig9 import growth

PAPER = f"{methods.PAPER}, section 4.1"
CAPTION = """Relative L2 error against the exact product over k at the offset exponents e = 0, -8, -14 and -18, operands
uniform in [-2^e, 2^e] (left) and [0, 2^e] (right): SGEMM by OpenBLAS on the paper's Kunpeng 920 and as one chain of
FMAs, and H2SGEMM with sb = 12. Lines: median over the seeds; bands: quartiles."""
ASSUMPTIONS = [
    methods.ELEMENTWISE,
    """The paper does not print the smaller offset exponents. Below e = -14 every operand is subnormal in fp16.""",
    """The trends are the growth exponents p of error ~ k^p, fitted by least squares to the logarithms. They are
    consistent with figure 9 if they differ by at most 0.1 from those at e = 0.""",
    methods.REFERENCE,
]
COLUMNS = ("SGEMM", "SGEMM TSV110", "sb=12 element-wise", "sb=12 term-wise")
EXPONENTS = (0, -8, -14, -18)


def cells(
    m: int = 16, lengths: tuple[int, ...] = (64, 256, 1024, 4096), seeds: int = 20, hardware: str = methods.HARDWARE
) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": kind, "exponent": exponent, "seed": seed, "m": m, "n": m, "k": k}
        for kind in KINDS
        for exponent in EXPONENTS
        for k in lengths
        for seed in range(seeds)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    return evaluate_methods(cell, COLUMNS, device)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, len(EXPONENTS), height=7.0)
    runs, lengths = runs_by("inputs", "exponent", "k"), sorted({row["k"] for row in rows})
    for line, exponent in zip(axes, EXPONENTS, strict=True):
        for axis, kind in zip(line, KINDS, strict=True):
            for name in COLUMNS:
                below = {"markersize": 6, "linewidth": 2, "zorder": 1.9} if name == "sb=12 element-wise" else {}
                values = [runs(rows, kind, exponent, k, name) for k in lengths]
                plotting.band(axis, lengths, values, LOOKS[name], **below)
            axis.set_yscale("log")
            size_axis(axis, lengths)
        line[0].set_ylabel("relative $L_2$ error")
    for axis in axes[-1]:
        axis.set_xlabel("$k$")
    titles = [f"$e$ = {e}, {text}" for e in EXPONENTS for text in KINDS.values()]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes, 2, methods.sizes_and_runs(rows))
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for _, kind, variant in methods.panels():
        power = {
            e: {name: growth(means(rows, name, "k", inputs=kind, exponent=e)) for name in COLUMNS[1:]}
            for e in EXPONENTS
        }
        for e in EXPONENTS[1:]:
            apart = [power[e][name] - power[0][name] for name in COLUMNS[1:]]
            yield Measure("same_trends", max(apart, key=abs), variant=f"{variant}, e = {e}")


QUICK = {"m": 16, "lengths": (64, 256, 1024), "seeds": 3}
PAGE = Page(
    PAPER,
    lambda given: f"{CAPTION} {methods.unit(given)}",
    lambda given: [methods.cube(given), *ASSUMPTIONS],
    cells,
    evaluate,
    draw,
    measures,
    quick=QUICK,
)
