"""LE-GEMM, figure 18: the error in speed against error, for three compute modes on the A800."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fpemu import inputs, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import unit
from .._rows import Row, mean_by
from ._accuracy import CPU_RESULT, LABELS, LOOK, METRICS, READINGS, REFERENCES, Panel, draw_lines, errors, platform

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.7, figure 18"
CAPTION = """Max_error (Eq. 19) and MRED (Eq. 20) of n×n×n products on the {}, fp32 operands uniform in
[-1, 1]; (a), (c) against an
fp32 chain of FMAs as in the paper, (b), (d) against the exact product. FAST_16F: operands converted to fp16; 64F: fp64
throughout. Lines: median over seeded runs; bands: quartiles."""
FAST_16F = """FAST_16F is plain fp16 with operands rounded to nearest and one chain of {} instructions; the paper calls
it consistent with WMMA. 64F is one ascending chain of fp64 FMAs over the same fp32 operands, with an fp64 result."""
ASSUMPTIONS = [
    "The paper does not state which error measure figure 18 shows; both of its measures are computed.",
    CPU_RESULT,
]
MODES = {"FAST_16F": "fp16", "LE-GEMM": "legemm", "64F": "dgemm", "SGEMM": "sgemm"}
"""Runs of each n."""


def caption(given: Mapping[str, Any]) -> str:
    return CAPTION.format(platform(given["hardware"]))


def assumptions(given: Mapping[str, Any]) -> list[str]:
    ampere = given["hardware"] == "ampere"
    return [FAST_16F.format("Ampere" if ampere else unit(given["hardware"])), *ASSUMPTIONS]


def cells(
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048), runs: int = 20, hardware: str = "ampere"
) -> list[Row]:
    return [{"n": n, "seed": seed, "hardware": hardware} for n in lengths for seed in range(runs)]


def cost(cell: Row) -> float:
    return float(cell["n"] ** 3 + 200**3)  # the second part: what a cell costs whatever its size


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B = inputs.operands("uniform", cell["n"], cell["n"], cell["n"], cell["seed"], low=-1.0, high=1.0)
    results = {
        mode: schemes.gemm(A, B, scheme=scheme, hardware=cell["hardware"], device=device)
        for mode, scheme in MODES.items()
    }
    against = {"s": results["SGEMM"], "exact": reference.matmul(A, B, device=device)}
    return {
        f"{mode} {measure} {ref}": float(METRICS[measure](P, against[ref]))
        for mode, P in results.items()
        for measure in METRICS
        for ref in REFERENCES
        if (mode, ref) != ("SGEMM", "s")
    }


_LOOK = {
    "FAST_16F": replace(LOOK["plain"], label="FAST_16F"),
    "LE-GEMM": LOOK["LE-GEMM"],
    "64F": Series("64F", plotting.BLUE, "v", "--"),
    "SGEMM": LOOK["SGEMM"],
}


def draw(rows: list[Row]) -> Any:
    hardware = rows[0]["hardware"]
    panels = [
        [Panel(f"{platform(hardware)}\n{how}", hardware, measure, ref) for ref, how in REFERENCES.items()]
        for measure, label in LABELS.items()
    ]
    return draw_lines(rows, panels, _LOOK)


def measures(rows: list[Row]) -> Iterator[Measure]:
    for measure, label in LABELS.items():
        for ref, reading in READINGS.items():
            error = errors(rows, rows[0]["hardware"], measure, ref)
            pairs = {"FAST_16F over LE-GEMM": ("FAST_16F", "LE-GEMM"), "LE-GEMM over 64F": ("LE-GEMM", "64F")}
            for variant, (larger, smaller) in pairs.items():
                yield Measure(
                    "error_between_fast16f_and_64f", error[larger], reading, f"{label}, {variant}", error[smaller]
                )


def finding(rows: list[Row]) -> str:
    n = max(row["n"] for row in rows)
    exact = {mode: _mean(rows, n, f"{mode} mred exact") for mode in MODES}
    chain = {mode: _mean(rows, n, f"{mode} mred s") for mode in ("LE-GEMM", "64F")}
    return paragraph(
        (f"the MRED at n = {n} against the exact product is", exact, ".2g"),
        ("the ratio of FAST_16F to LE-GEMM is {}", exact["FAST_16F"] / exact["LE-GEMM"], ".3g×"),
        ("the ratio of LE-GEMM to SGEMM is {}", exact["LE-GEMM"] / exact["SGEMM"], ".2f×"),
        ("the ratio of LE-GEMM to 64F is {}", exact["LE-GEMM"] / exact["64F"], ".2g×"),
        ("the MRED against the fp32 chain s is", chain, ".2g"),
        ("the ratio of LE-GEMM to 64F there is {}", chain["LE-GEMM"] / chain["64F"], ".2f×"),
        ("the error of s is nearly the whole error of 64F there", exact["64F"] < chain["64F"] / 100),
    )


_mean = mean_by("n")


QUICK = {"lengths": (64, 128, 256, 512), "runs": 5}
PAGE = Page(PAPER, caption, assumptions, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
