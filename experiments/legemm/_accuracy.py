"""LE-GEMM, figures 10 and 11: errors of every method's product over n; `draw_lines` draws figure 18 too."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure

from .._findings import paragraph
from .._numeric import problem_with_sgemm
from .._rows import Row, in_legend, slanted_sizes

CPU_RESULT = """The paper does not describe its single-precision CPU result s of Eq. 19 and 20. Two readings bracket its
accuracy: one ascending chain of fp32 FMAs for each element, and the exact product, the limit of a more accurate CPU
code."""
GPUS = """The CDNA2 instruction of the catalogue (documented in the literature, not measured) models the MI210, and the
Ampere instruction (replayed against recordings) models the A800."""
ASSUMPTIONS = [
    GPUS,
    CPU_RESULT,
    """Markidis' and Ootomo's methods are as published on both platforms: Markidis' method adds four products in one
    chain, and Ootomo's method adds its main product in fp32 outside the matrix unit and has two corrections.""",
    "A reduction is the mean over n of the error of the other method divided by the error of LE-GEMM.",
    "The paper prints no sizes for figures 10 and 11; here n = 64 to 2048, and to 1024 at quick size.",
]
METHODS = {"plain": "fp16", "Markidis": "markidis", "Ootomo": "ootomo", "LE-GEMM": "legemm"}
NAMES = {"plain": "plain fp16", "Markidis": "Markidis", "Ootomo": "Ootomo"}
PLATFORMS = {"cdna2": "MI210 (CDNA2)", "ampere": "A800 (Ampere)"}
REFERENCES = {"s": "against SGEMM", "exact": "against the exact product"}
READINGS = {"s": "reference: fp32 chain", "exact": "reference: exact product"}
PUBLISHED = {
    "max_error": {"cdna2": (377.33, 74.82, 2.69), "ampere": (571.75, 2.78, 1.41)},
    "mred": {"cdna2": (636.92, 178.93, 1.12), "ampere": (814.87, 1.75, 1.28)},
}
"""Reductions by LE-GEMM of the errors of plain fp16, Markidis and Ootomo."""
METRICS = {"max_error": metrics.max_error_legemm, "mred": metrics.mred}


def cells(lengths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048), runs: int = 20) -> list[Row]:
    # the platforms innermost: they share the operands and both reference products
    return [
        {"n": n, "seed": seed, "hardware": hardware} for n in lengths for seed in range(runs) for hardware in PLATFORMS
    ]


def cost(cell: Row) -> float:
    return float(cell["n"] ** 3 + 200**3)  # the second part: what a cell costs whatever its size


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, against = problem_with_sgemm(cell["n"], cell["n"], cell["n"], cell["seed"], -1.0, 1.0, device)
    results = {
        name: schemes.gemm(A, B, scheme=scheme, hardware=cell["hardware"], device=device)
        for name, scheme in METHODS.items()
    }
    numbers = {
        f"{name} {measure} {ref}": float(METRICS[measure](P, against[ref]))
        for name, P in results.items()
        for measure in METRICS
        for ref in REFERENCES
    }
    numbers |= {
        f"SGEMM {measure} exact": float(METRICS[measure](against["s"], against["exact"])) for measure in METRICS
    }
    return numbers


LOOK = {
    "plain": Series("plain fp16", plotting.GREY, "x", ":"),
    "Markidis": Series("Markidis", plotting.ORANGE, "^", "-."),
    "Ootomo": Series("Ootomo", plotting.SKY, "D", "--"),
    "LE-GEMM": Series("LE-GEMM", plotting.VERMILION, "o"),
    "SGEMM": Series("SGEMM (fp32)", plotting.BLACK, "s", "--", filled=False),
}
LABELS = {"max_error": "Max_error", "mred": "MRED"}
SATURATED = 0.5
"""A Max_error above this value saturates: the error of an entry exceeds the entry, and Eq. 19 is at most 1."""


def platform(hardware: str) -> str:
    """Return the paper's GPU with its architecture, or the unit of another architecture."""
    other = plotting.HARDWARE.get(hardware)
    return PLATFORMS.get(hardware, f"{other.label if other else hardware} unit")


class Panel(NamedTuple):
    """One panel of lines over n."""

    title: str
    hardware: str
    measure: str
    ref: str


def draw_lines(rows: Sequence[Row], panels: Sequence[Sequence[Panel]], looks: Mapping[str, Series]) -> Any:
    """Draw one line for each method and panel: the median over the seeds, with a band between the quartiles.

    Parameters
    ----------
    rows : sequence of Row
        With columns "METHOD MEASURE REFERENCE".
    panels : rows of panels
        All panels of a row have one measure.
    looks : mapping of method to Series
        Methods in the order of the legend; a method without a column in a panel is left out there.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure, axes = plotting.figure(len(panels[0]), len(panels), height=4.6, share_y=False)
    lengths = sorted({row["n"] for row in rows})
    for line, of in zip(axes, panels, strict=True):
        for axis, panel in zip(line, of, strict=True):
            for name, look in looks.items():
                column = f"{name} {panel.measure} {panel.ref}"
                runs = [[row[column] for row in select(rows, panel.hardware, n) if column in row] for n in lengths]
                if all(runs):
                    plotting.band(axis, lengths, runs, look)
            if panel.measure == "max_error":
                axis.axhspan(SATURATED, 1, color=plotting.GREY, alpha=0.25, linewidth=0, label="Max_error saturates")
            over_sizes(axis, lengths)
        for axis in line[1:]:
            axis.sharey(line[0])
            axis.tick_params(labelleft=False)
        line[0].margins(y=0.1)
        line[0].autoscale(axis="y")
        line[0].set_ylabel(LABELS[of[0].measure])
    for axis in axes[-1]:
        axis.set_xlabel("$n$")
    plotting.panel_titles(axes, [panel.title for of in panels for panel in of])
    plotting.legend_below(figure, axes, 3, f"$n×n×n$, uniform in [-1, 1]; {in_legend(rows)}")
    return figure


def over_sizes(axis: Any, lengths: Sequence[int]) -> None:
    """Show errors on a logarithmic axis over sizes, whose numbers are slanted to fit into a narrow panel."""
    slanted_sizes(axis, lengths)
    axis.set_yscale("log")
    axis.minorticks_on()
    axis.tick_params(axis="x", which="minor", bottom=False)


def draw(rows: list[Row], measure: str) -> Any:
    """Two columns, the platforms; two rows, the references."""
    panels = [
        [Panel(f"{platform}\n{how}", hardware, measure, ref) for hardware, platform in PLATFORMS.items()]
        for ref, how in REFERENCES.items()
    ]
    return draw_lines(rows, panels, LOOK)


def measures(rows: list[Row]) -> Iterator[Measure]:
    """Yield the growth of LE-GEMM's errors from the smallest to the largest n, and over small and large n alone."""
    ranges = {"": (0, -1), ", n to 256": (0, 2), ", n from 512": (3, -1)}
    for (hardware, platform), (ref, reading), (sizes, ends) in itertools.product(
        PLATFORMS.items(), READINGS.items(), ranges.items()
    ):
        for measure, label in LABELS.items():
            low, high = errors(rows, hardware, measure, ref)["LE-GEMM"][list(ends)]
            yield Measure("errors_grow_with_n", high, f"{reading}{sizes}", f"{label}, {platform.split()[0]}", low)


def finding(rows: list[Row], measure: str) -> str:
    """Return the medians of every method at the largest n."""
    n = max(row["n"] for row in rows)
    statements = []
    for hardware, platform in PLATFORMS.items():
        chosen = select(rows, hardware, n)
        medians = {LOOK[name].label: np.median([row[f"{name} {measure} exact"] for row in chosen]) for name in METHODS}
        where = f"against the exact product at n = {n} on the {platform.split()[0]}"
        statements.append((f"the medians of {LABELS[measure]} {where} are", medians, ".3g"))
    return paragraph(*statements)


def errors(rows: Sequence[Row], hardware: str, measure: str, ref: str) -> dict[str, Any]:
    """Return each method's errors by n, ascending, from the rows of one seed."""
    line = sorted(select(rows, hardware), key=lambda row: row["n"])
    names = [name for name in line[0] if name.endswith(f" {measure} {ref}")] if line else []
    return {name.split()[0]: np.array([row[name] for row in line]) for name in names}


def select(rows: Sequence[Row], hardware: str, n: int | None = None) -> list[Row]:
    """Return the rows of a platform, of one n or of all."""
    return [row for row in rows if row["hardware"] == hardware and n in (None, row["n"])]
