"""LE-GEMM, figures 12 and 13: one product of inner length 1024 by every method, its errors counted in bins.

A bin holds the errors of one sign with a magnitude in [2^x, 2^(x + 1/2)); the bin "0" holds those below `SMALLEST`,
exact results included. The last bin of either sign also holds everything above it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import plotting, schemes
from fpemu.mma.device import Device

from .._findings import paragraph
from .._numeric import problem_with_sgemm, unit
from .._rows import Row
from ._accuracy import CPU_RESULT, GPUS, LOOK, METHODS, PLATFORMS, REFERENCES, platform

ASSUMPTIONS = [
    CPU_RESULT,
    "The error of an entry is p - s, because the paper states neither the error in its histograms nor their bins.",
    """At quick size A has 128 rows and B 128 columns; the inner length is 1024 at both sizes, because the distribution
    of an entry's error depends on the inner length alone.""",
    """Three numbers describe a distribution: the largest |p - s| (range), the root mean square (width) and the median
    of |p - s|.""",
]
HALVES = range(-60, -7)
"""Twice the binary exponent of a bin's lower end."""
SMALLEST = 2.0 ** (HALVES[0] / 2)


def assumptions(given: Mapping[str, Any]) -> list[str]:
    hardware = given["hardware"]
    return [GPUS if hardware in PLATFORMS else f"The matrix unit is {unit(hardware)}.", *ASSUMPTIONS]


def cells(hardware: str, m: int = 1024, n: int = 1024, runs: int = 20) -> list[Row]:
    """The cells of a platform's figure; the data of the MI210's figure have both platforms."""
    platforms = tuple(PLATFORMS) if hardware == "cdna2" else (hardware,)
    # the platforms innermost: they share the operands and both reference products
    return [{"m": m, "n": n, "k": 1024, "seed": seed, "hardware": name} for seed in range(runs) for name in platforms]


def cost(cell: Row) -> float:
    return float(cell["m"] * cell["n"] * cell["k"])


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, against = problem_with_sgemm(cell["m"], cell["n"], cell["k"], cell["seed"], -1.0, 1.0, device)
    numbers: dict[str, float] = {}
    for name, scheme in METHODS.items():
        P = schemes.gemm(A, B, scheme=scheme, hardware=cell["hardware"], device=device)
        for ref in REFERENCES:
            numbers |= {
                f"{name} {ref} {what}": value for what, value in summary(P - against[ref].astype(np.float64)).items()
            }
    return numbers


def summary(errors: NDArray[Any]) -> dict[str, float]:
    """The bins of signed errors, and their range, width and median."""
    return sizes(errors) | counts(errors)


def sizes(errors: NDArray[Any]) -> dict[str, float]:
    """The largest, the root mean square and the median of the absolute errors."""
    absolute = np.abs(errors)
    squares = math.fsum(np.square(absolute).ravel().tolist())  # rounded once: the same on every machine
    numbers = {"range": np.max(absolute), "width": math.sqrt(squares / absolute.size), "median": np.median(absolute)}
    return {name: float(value) for name, value in numbers.items()}


def counts(errors: NDArray[Any]) -> dict[str, float]:
    """How many errors lie in each bin; from the most negative to the most positive, they sum to the entries."""
    sizes = np.abs(errors.ravel().astype(np.float64))
    edges = np.array([2.0 ** (h / 2) for h in HALVES])
    place = np.searchsorted(edges, sizes, side="right")  # 0: below all edges
    signed = np.where(errors.ravel() < 0, -place, place)
    many = np.bincount(signed + len(edges), minlength=2 * len(edges) + 1)
    return dict(zip(bins(), many.astype(float).tolist(), strict=True))


def bins() -> list[str]:
    """The names of the bins, in the order of their errors."""
    names = [f"2^{h / 2:g}" for h in HALVES]
    return [f"-{name}" for name in reversed(names)] + ["0"] + [f"+{name}" for name in names]


_DECADES = (-2, -4, -6, -8)


def draw(rows: list[Row]) -> Any:
    """Two panels, the references; the bins of either sign side by side, the smallest errors in the middle."""
    hardware = rows[0]["hardware"]  # of the MI210's figure too: its cells come first
    figure, axes = plotting.figure(1, 2, height=4.8)
    here = [row for row in rows if row["hardware"] == hardware]
    entries = sum(row["m"] * row["n"] for row in here)
    at = np.arange(2 * len(HALVES) + 2) - len(HALVES) - 0.5
    for axis, ref in zip(axes[:, 0], REFERENCES, strict=True):
        for name in METHODS:
            many = np.array([sum(row[f"{name} {ref} {bin_}"] for row in here) for bin_ in bins()])
            used = np.flatnonzero(many)
            part = slice(used[0], used[-1] + 1)
            shares = np.concatenate([[0.0], many[part] / entries, [0.0]])
            edges = at[used[0] : used[-1] + 2]
            look = LOOK[name].line(marker="none", drawstyle="steps-pre")
            axis.plot(np.append(edges, edges[-1]), shares, **look)
        places = [_place(d) for d in _DECADES]
        ticks = [*[-p for p in places], 0, *reversed(places)]
        labels = [*[f"$-10^{{{d}}}$" for d in _DECADES], "0", *[f"$10^{{{d}}}$" for d in reversed(_DECADES)]]
        axis.set_xticks(ticks, labels)
        axis.set(yscale="log", ylim=(0.6 / entries, 0.3), ylabel="share of the entries")
    axes[1, 0].set_xlabel("error of an entry, in bins half an octave wide")
    plotting.panel_titles(axes, [f"{platform(hardware)}, {how}" for how in REFERENCES.values()])
    size, seeds = f"{here[0]['m']}×{here[0]['n']}×{here[0]['k']}", len({row["seed"] for row in here})
    plotting.legend_below(figure, axes, 4, f"{size} ($M×N×K$), uniform in [-1, 1], {seeds} seeds together")
    return figure


def _place(decade: int) -> float:
    """Where 10^decade lies on the axis of bins, whose unit is half an octave and whose middle bin is one unit wide."""
    return float(2 * np.log2(10.0**decade) - HALVES[0] + 0.5)


def finding(rows: list[Row]) -> str:
    hardware = rows[0]["hardware"]
    exact, s = (_by_method(rows, hardware, ref, "width") for ref in ("exact", "s"))
    compared = ("Ootomo", "LE-GEMM")
    return paragraph(
        (
            f"the root mean square errors against the exact product on the {platform(hardware).split(' (')[0]} are",
            exact,
            ".2g",
        ),
        ("the error of LE-GEMM is {} the error of Ootomo's method", exact["LE-GEMM"] / exact["Ootomo"], ".2f×"),
        (
            "the errors against an fp32 chain s, which include the error of s, are",
            {name: s[name] for name in compared},
            ".2g",
        ),
        (
            "the shares of entries equal to s are",
            {name: _share(rows, hardware, name, "s", "0") for name in compared},
            ".3g%",
        ),
    )


def _by_method(rows: list[Row], hardware: str, ref: str, what: str) -> dict[str, float]:
    here = [row for row in rows if row["hardware"] == hardware]
    return {name: float(np.mean([row[f"{name} {ref} {what}"] for row in here])) for name in METHODS}


def _share(rows: list[Row], hardware: str, name: str, ref: str, bin_: str) -> float:
    here = [row for row in rows if row["hardware"] == hardware]
    return float(sum(row[f"{name} {ref} {bin_}"] for row in here) / sum(row["m"] * row["n"] for row in here))
