"""H2SGEMM: the error over the whole plane of scaling exponents and offset exponents."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import planes
from fpemu.plotting.planes import Plane
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _methods as methods
from ._methods import KINDS, means, operands, sizes_and_runs

PAPER = f"{methods.PAPER}, section 3.1.3, equation 6"
CAPTION = """Relative L2 error of term-wise H2SGEMM over the offset exponent e of the operands, uniform in [-2^e, 2^e]
or [0, 2^e], and the scaling exponent sb; mean over the seeds. Outlined: the best sb of each e with all within 5 % of
it. Hatched: the result of a seed overflowed. Equation 6 for the largest entries, whose offset exponent is e - 1: its
lower bound, its upper bound as printed, and the upper bound that holds, one less, since the residual of a number
midway between two fp16 numbers is twice the value that the paper allows for."""
ASSUMPTIONS = [
    """The paper has no such plane. sb from -2 to 24 and e from -20 to 15 include every binade of fp16 except the
    smallest subnormal binades, and the values of sb that Equation 6 allows there.""",
    """Half of the entries have magnitudes in [2^(e-1), 2^e), so Equation 6 is evaluated at their offset exponent e - 1.
    Smaller entries have no larger absolute errors. The bounds end at e = -13, because below it no entry is normal in
    fp16 and no sb keeps 22 bits.""",
    """The plane ends at e = 15. Entries stay below 2^15 and exclude the numbers midway between two fp16 numbers above
    2^15, whose residual overflows with sb = 12.""",
    """SGEMM is one chain of fp32 FMAs. "With rr" also computes the product of the two residuals, which H2SGEMM omits,
    at sb = 12.""",
]

SCALES, OFFSETS, RECOMMENDED = range(-2, 25), range(-20, 16), 12


def cells(m: int = 24, n: int = 24, k: int = 64 * 44, seeds: int = 20, hardware: str = methods.HARDWARE) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": kind, "exponent": exponent, "seed": seed, "m": m, "n": n, "k": k}
        for kind in KINDS
        for exponent in OFFSETS
        for seed in range(seeds)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, exact = operands(cell, device)
    cube: Any = {"scheme": "h2sgemm", "hardware": cell["hardware"], "on_range": "propagate", "device": device}
    results = {
        "SGEMM": schemes.gemm(A, B, scheme="sgemm", device=device),
        "with rr": schemes.gemm(A, B, sb=RECOMMENDED, products=("rr", "rh", "hr", "hh"), **cube),
        **{f"sb={sb}": schemes.gemm(A, B, sb=sb, **cube) for sb in SCALES},
    }
    return {name: metrics.relative_l2(D, exact) for name, D in results.items()}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=5.6)
    maps = [plane(rows, kind) for kind in KINDS]
    shown = np.concatenate([one.errors[np.isfinite(one.errors)] for one in maps])
    mesh = None
    for axis, one in zip(axes[:, 0], maps, strict=True):
        lines = planes.bounds(one, lambda e: int(e) - 1)
        mesh = planes.draw(axis, one, low=shown.min(), high=shown.max(), lines=lines)
        label = f"sb = {RECOMMENDED}"
        axis.axhline(RECOMMENDED, color=plotting.PURPLE, linestyle="-.", linewidth=1.1, label=label, zorder=2.5)
        axis.set_xticks(range(-20, 16, 5))
        axis.set_yticks(range(0, 25, 4))
        axis.set_ylabel("scaling exponent sb")
    axes[-1, 0].set_xlabel("offset exponent $e$")
    plotting.colour_bar(figure, mesh, axes, "relative $L_2$ error")
    plotting.panel_titles(axes, [f"uniform in {text}" for text in KINDS.values()])
    plotting.legend_below(figure, axes, 2, sizes_and_runs(rows).replace("median and quartiles", "mean"))
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for _, kind, variant in methods.panels():
        one = plane(rows, kind)
        where = [
            i for i, e in enumerate(one.xs) if RECOMMENDED in planes.equation6(int(e) - 1, int(e) - 1, printed=True)
        ]
        if where:
            yield Measure("sb12_near_best", float(loss(one, RECOMMENDED)[where].max()), variant=variant)


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for _, kind, variant in methods.panels():
        one = plane(rows, kind)
        near = planes.single(one, 1.5)
        column = {name: means(rows, name, "exponent", inputs=kind) for name in ("SGEMM", "with rr", "sb=0", "sb=12")}
        best = {b.x: b.error for b in planes.best(one)}
        low = {e: best[e] / column["SGEMM"][e] for e in best if e < -13}
        statements += [
            (
                f"{variant}: the error with sb = {planes.spans(near.ys, one.ys)} is within a factor of 1.5 of the "
                "smallest error at the largest number of offset exponents, {}",
                f"{near.count} of {near.points} (sb = 12: {np.count_nonzero(loss(one, RECOMMENDED) <= 1.5)})",
            ),
            (
                "where h is subnormal (e < -13), the error with the best sb is {} the error of the chain of SGEMM",
                low.values(),
                ".3g×",
            ),
            (
                f"the errors at e = {min(best)} are",
                {
                    "without the product of the residuals": column["sb=12"][min(best)],
                    "with it": column["with rr"][min(best)],
                },
                ".2g",
            ),
        ]
    return paragraph(*statements)


def plane(rows: list[Row], kind: str) -> Plane:
    """The mean error over e and sb."""
    return planes.plane(
        [
            {"exponent": row["exponent"], "sb": sb, "error": row[f"sb={sb}"]}
            for row in rows
            if row["inputs"] == kind
            for sb in SCALES
        ],
        "exponent",
        "sb",
        "error",
    )


def loss(one: Plane, sb: int) -> Any:
    """Error with one sb over the smallest error, at each e."""
    return planes.losses(one)[one.ys.index(sb)]


PAGE = Page(
    PAPER,
    lambda given: f"{CAPTION} {methods.unit(given)}",
    lambda given: [methods.cube(given), *ASSUMPTIONS, methods.sizes(given)],
    cells,
    evaluate,
    draw,
    measures,
    finding,
    quick={"k": 256, "seeds": 2},
)
