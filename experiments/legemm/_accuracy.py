"""LE-GEMM, section 5.3: the cells that figures 10 and 11 share, one product by every method and every error of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, reduction, share

from .._numeric import problem_with_sgemm
from .._rows import listed, runs_by, size_axis

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.3"
ASSUMPTIONS = [
    """The matrix cores of the MI210 are the CDNA2 rows of the catalog (claimed in the literature, not measured),
    those of the A800 the Ampere rows (recordings reproduced).""",
    """The single-precision result s of Eq. 19 and 20 is one ascending chain of fp32 FMAs for each element; the paper's
    CPU code is not described.""",
    """Markidis' and Ootomo's methods are those of their own papers (four products in one chain; three products, the
    main one added outside in fp32), on either platform.""",
    "A mean reduction is the mean over n of (the method's error / LE-GEMM's error), each error the mean over the runs.",
    """A published reduction holds if ours is above 1 and within a factor of 2 of it, in part if it is above 1 and of
    another size.""",
    "Means of 10 runs as in the paper up to n = 2048 and of 5 at 4096; at quick size of 5 runs, up to n = 1024.",
]
METHODS = {"plain": "fp16", "Markidis": "markidis", "Ootomo": "ootomo", "LE-GEMM": "legemm"}
PLATFORMS = {"cdna2": "MI210 (CDNA2)", "ampere": "A800 (Ampere)"}
REFERENCES = {"s": "against SGEMM", "exact": "against the exact product"}
METRICS = {"max_error": metrics.max_error_legemm, "mred": metrics.mred}
PUBLISHED = {
    "max_error": {"cdna2": (377.33, 74.82, 2.69), "ampere": (571.75, 2.78, 1.41)},
    "mred": {"cdna2": (636.92, 178.93, 1.12), "ampere": (814.87, 1.75, 1.28)},
}
_RUNS: dict[str, dict[int, int]] = {
    "quick": dict.fromkeys((64, 128, 256, 512, 1024), 5),
    "full": {**dict.fromkeys((64, 128, 256, 512, 1024, 2048), 10), 4096: 5},
}
"""Runs of each n."""


def cells(size: str) -> list[dict[str, Any]]:
    # the platforms innermost: they share the operands and both reference products
    return [
        {"n": n, "seed": seed, "hardware": hardware}
        for n, runs in _RUNS[size].items()
        for seed in range(runs)
        for hardware in PLATFORMS
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["n"] ** 3 + 200**3)  # the second part: what a cell costs whatever its size


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
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


_LOOK = {
    "plain": Series("plain fp16 (rocWMMA, WMMA)", plotting.GREY, "x"),
    "Markidis": Series("Markidis", plotting.ORANGE, "^"),
    "Ootomo": Series("Ootomo", plotting.SKY, "D"),
    "LE-GEMM": Series("LE-GEMM", plotting.VERMILION, "o"),
    "SGEMM": Series("SGEMM (fp32)", plotting.BLACK, "s", "--", filled=False),
}


def draw(rows: list[dict[str, Any]], measure: str, label: str) -> Any:
    """Two columns, the platforms; two rows, the references."""
    figure, axes = plotting.figure(2, 2, height=4.8, share_y=True)
    lengths = sorted({row["n"] for row in rows})
    for line, ref in zip(axes, REFERENCES, strict=True):
        for axis, hardware in zip(line, PLATFORMS, strict=True):
            for name, look in _LOOK.items():
                if name == "SGEMM" and ref == "s":
                    continue
                column = f"{name} {measure} {ref}"
                plotting.band(axis, lengths, [_runs(rows, hardware, n, column) for n in lengths], look)
            size_axis(axis, lengths)
            axis.set_yscale("log")
            axis.minorticks_on()
        line[0].set_ylabel(label)
    for axis in axes[-1]:
        axis.set_xlabel("$n$ (product of $n\\times n$ by $n\\times n$)")
    titles = [f"{platform}, {how}" for how in REFERENCES.values() for platform in PLATFORMS.values()]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes[-1, 0], 5)
    return figure


@listed
def claims(rows: list[dict[str, Any]], measure: str, label: str) -> Iterator[Claim]:
    lengths = sorted({row["n"] for row in rows})
    for ref in REFERENCES:
        for letter, (hardware, platform) in zip("ab" if ref == "s" else "cd", PLATFORMS.items(), strict=True):
            error = {
                name: np.array([np.mean(_runs(rows, hardware, n, f"{name} {measure} {ref}")) for n in lengths])
                for name in METHODS
            }
            ours = error["LE-GEMM"]
            where = f"({letter}) {platform.split()[0]}{'' if ref == 's' else ', exact'}:"
            for name, published in zip(("plain", "Markidis", "Ootomo"), PUBLISHED[measure][hardware], strict=True):
                yield reduction(f"{where} {label}, {name} / LE-GEMM", published, float(np.mean(error[name] / ours)))
            least = np.min([error[name] for name in METHODS if name != "LE-GEMM"], axis=0)
            span = f"{np.min(ours / least):.2g} to {np.max(ours / least):.2g} × the others' least"
            yield share(f"{where} LE-GEMM errs least of the four", "at every n", ours <= least, span)
            growth = ours[1:] / ours[:-1]
            span = f"{np.min(growth):.2g} to {np.max(growth):.2g} × for twice n" if len(growth) else ""
            yield share(f"{where} LE-GEMM's error grows with n", "grows", growth > 1, span)


_runs = runs_by("hardware", "n")
