"""Bounds on the speed of the Ozaki schemes by a GPU's peaks, and the n from which they can be faster than DGEMM.

The model is `fpemu.roofline.time`; slices are counted on the nominal inputs of DGEMM-TC with phi = 0.1.
"""

from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row
from . import _speed
from ._speed import evaluate as evaluate

PAPER = "Rooflines of the schemes: data sheets of GPUs and the work that each scheme does"
CAPTION = """Bounds on speed for n×n×n products in fp64, 2n^3 over the least time by the roofline, on seven
GPUs; (h) the size from which a scheme's bound is above DGEMM's. DGEMM runs on the faster of the ordinary cores and a
matrix unit for fp64. Ozaki: fp16 slices, DP mode of DGEMM-TC; ozIMMU: int8 slices, automatic number; Scheme II: 15
moduli and one further product for the scaling. Nothing is measured."""
ASSUMPTIONS = [
    """Peaks and bandwidths are the manufacturers' values at the stated clocks, without sparsity, from fpemu's table of
    GPUs, which states its sources (fpemu/roofline/gpus.toml).""",
    """Every product of slices is a call that writes its result, and another kernel adds the results, as published;
    every kernel reads its inputs and writes its outputs once.""",
    """The number of slices is counted on a few rows of (uniform - 0.5) exp(0.1 normal), the narrowest inputs of
    DGEMM-TC; operands of a wider range require more slices.""",
    "Break-even sizes are multiples of 64, eight per octave, up to 2^15; the scheme is faster from this size on.",
]

GPUS = ("Titan RTX", "V100", "A100", "H200", "B200", "MI210", "MI300X")
LOOK = {
    "dgemm": Series("DGEMM", plotting.BLACK, "s", "--", filled=False),
    "ozaki": Series("Ozaki scheme, fp16 (DGEMM-TC)", plotting.VERMILION, "o"),
    "ozimmu": Series("Ozaki scheme, int8 (ozIMMU)", plotting.BLUE, "D"),
    "ozaki2": Series("Ozaki scheme II, 15 moduli", plotting.GREEN, "^"),
}


def cells() -> list[Row]:
    listed = []
    for gpu in GPUS:
        names = ["dgemm", "ozaki", *(["ozimmu", "ozaki2"] if "int8 matrix" in gpus.get(gpu).peak else [])]
        listed += [{"gpu": gpu, "scheme": name, "precision": "fp64"} for name in names]
    return listed


def cost(cell: Row) -> float:
    return 10.0 if cell["scheme"] in ("ozaki", "ozimmu") else 1.0


def draw(rows: list[Row]) -> Any:
    return _speed.draw(rows, GPUS, LOOK, "dgemm", height=7.0)


def measures(rows: list[Row]) -> Iterator[Measure]:
    for row in rows:
        other = _speed.of(rows, row["gpu"], "ozimmu")
        if row["scheme"] == "ozaki2" and other:
            yield Measure("beats_dgemm", row["ratio"], variant=row["gpu"])
            yield Measure("residues_beat_slices", row["ratio"] / other["ratio"], variant=row["gpu"])


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for name, look in list(LOOK.items())[1:]:
        able = {
            row["gpu"]: f"n = {row['from']:.0f}, {row['ratio']:.3g}×"
            for row in rows
            if row["scheme"] == name and row["from"]
        }
        never = {row["gpu"]: row["ratio"] for row in rows if row["scheme"] == name and not row["from"]}
        statements += [(f"{look.label} can be faster than DGEMM from", able), ("it cannot be faster on", never, ".2g×")]
    leads = {}
    for gpu in dict.fromkeys(str(row["gpu"]) for row in rows):
        peak = gpus.get(gpu).peak
        if "int8 matrix" in peak:
            leads[gpu] = peak["int8 matrix"] / max(peak.get(unit, 0.0) for unit in ("fp64", "fp64 matrix"))
    return paragraph(*statements, ("the ratio of the int8 peak to the fp64 peak determines this; it is", leads, ".3g×"))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost=cost, kind="M")
