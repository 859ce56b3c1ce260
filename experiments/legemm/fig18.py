"""LE-GEMM, figure 18: the error half of speed against error, for three compute modes on the A800."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import inputs, plotting, reference, schemes
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed, runs_by, size_axis
from ._accuracy import METRICS, REFERENCES

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.7, figure 18"
TITLE = "error of FAST_16F, LE-GEMM and 64F, A800"
CAPTION = """The error half of a trade-off between speed and error, the speeds being no matter of an emulator: Max_error
(Eq. 19) and MRED (Eq. 20) of n×n×n products on the A800 (Ampere), operands fp32 uniform in [-1, 1]; (a), (c) against an
fp32 chain of FMAs as in the paper, (b), (d) against the exact product. FAST_16F: operands converted to fp16; 64F: fp64
throughout. Lines: mean over seeded runs; bands: smallest to largest run."""
ASSUMPTIONS = [
    """FAST_16F is the scheme of plain fp16, operands rounded to nearest, one chain of Ampere instructions: the paper
    calls it the same as WMMA. 64F is one ascending chain of fp64 FMAs over the same fp32 operands, its result kept in
    fp64.""",
    """Which error measure figure 18 shows is not said: both of the paper's are computed. The result s is one ascending
    chain of fp32 FMAs for each element.""",
    """"Significant errors" of FAST_16F: more than 100 times LE-GEMM's. "Single-precision results": an error against the
    exact product of at most twice SGEMM's.""",
]
MODES = {"FAST_16F": "fp16", "LE-GEMM": "legemm", "64F": "dgemm", "SGEMM": "sgemm"}
_RUNS = {
    "quick": dict.fromkeys((64, 128, 256, 512), 5),
    "full": {**dict.fromkeys((64, 128, 256, 512, 1024, 2048), 10), 4096: 3},
}
"""Runs of each n."""


def cells(size: str) -> list[dict[str, Any]]:
    return [{"n": n, "seed": seed, "hardware": "ampere"} for n, runs in _RUNS[size].items() for seed in range(runs)]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["n"] ** 3 + 200**3)  # the second part: what a cell costs whatever its size


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
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
    "FAST_16F": Series("FAST_16F", plotting.GREY, "x"),
    "LE-GEMM": plotting.SCHEMES["legemm"],
    "64F": Series("64F", plotting.BLUE, "v"),
    "SGEMM": plotting.SCHEMES["sgemm"],
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=4.4)
    lengths = sorted({row["n"] for row in rows})
    for line, measure in zip(axes, METRICS, strict=True):
        for axis, ref in zip(line, REFERENCES, strict=True):
            for mode, look in _LOOK.items():
                if (mode, ref) != ("SGEMM", "s"):
                    plotting.band(axis, lengths, [_runs(rows, n, f"{mode} {measure} {ref}") for n in lengths], look)
            size_axis(axis, lengths)
            axis.set_yscale("log")
        line[0].set_ylabel({"max_error": "Max_error", "mred": "MRED"}[measure])
    for axis in axes[-1]:
        axis.set_xlabel("$n$ (product of $n\\times n$ by $n\\times n$)")
    plotting.panel_titles(axes, [f"{label}, {how}" for label in ("Max_error", "MRED") for how in REFERENCES.values()])
    plotting.legend_below(figure, axes[0, 1], 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    lengths = sorted({row["n"] for row in rows})
    for measure, label in (("max_error", "Max_error"), ("mred", "MRED")):
        for ref, how in REFERENCES.items():
            error = {
                mode: np.array([np.mean(_runs(rows, n, f"{mode} {measure} {ref}")) for n in lengths])
                for mode in MODES
                if (mode, ref) != ("SGEMM", "s")
            }
            fast, ours, wide = error["FAST_16F"], error["LE-GEMM"], error["64F"]
            statements = [
                ("FAST_16F errs significantly more than LE-GEMM", "significant", fast / ours > 100, fast / ours),
                ("64F errs less than LE-GEMM", "higher precision", wide < ours, ours / wide),
            ]
            if ref == "exact":
                ratio = ours / error["SGEMM"]
                statements.append(("LE-GEMM comes to single precision", "single precision", ratio <= 2, ratio))
            for text, published, held, ratio in statements:
                span = f"{np.min(ratio):.3g} to {np.max(ratio):.3g}×" if len(ratio) else ""
                yield share(f"{label} {how}: {text}", published, held, span)


def finding(rows: list[dict[str, Any]]) -> str:
    n = max(row["n"] for row in rows)
    exact = {mode: float(np.mean(_runs(rows, n, f"{mode} mred exact"))) for mode in MODES}
    chain = {mode: float(np.mean(_runs(rows, n, f"{mode} mred s"))) for mode in ("LE-GEMM", "64F")}
    return paragraph(
        (f"MRED at n = {n} against the exact product", exact, ".2g"),
        ("FAST_16F over LE-GEMM", exact["FAST_16F"] / exact["LE-GEMM"], ".3g×"),
        ("LE-GEMM over SGEMM", exact["LE-GEMM"] / exact["SGEMM"], ".2f×"),
        ("LE-GEMM over 64F", exact["LE-GEMM"] / exact["64F"], ".2g×"),
        ("MRED against the fp32 chain s", chain, ".2g"),
        ("LE-GEMM over 64F there", chain["LE-GEMM"] / chain["64F"], ".2f×"),
        ("the error of s itself is nearly all of 64F's", exact["64F"] < chain["64F"] / 100),
    )


_runs = runs_by("n")
