"""Errors of MAGMA's batched HGEMM over the size of its matrices.

The paper has no error figure. The tensor-core kernel accumulates in the fragments of its instruction, in fp32 or in
fp16, over k in steps of the instruction; the kernel for tiny matrices has a thread for each output, which runs a chain
of fused multiply-adds in fp16.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import formats, inputs, metrics, mma, plotting, reference, round_to, simt
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend, rows_by, runs_by
from ._errors import CHIPS, KINDS, LARGEST_SMALL, METHODS, PAPER, RINGS, SMALL, curves, logarithmic

CAPTION = """Error against the exact product over n, batches of n×n×n products of fp16 matrices uniform in (a) [-1, 1]
and (b) [0, 1]: relative L2 error of a batch; (c) largest error relative to |A||B| in a batch, operands as in (a). The
result is fp16: accumulated in fp16, or in fp32 and rounded once, where the three GPUs coincide; for n up to 16 also as
chains of FMAs in fp16, one thread for each output."""
ASSUMPTIONS = [
    """The paper states neither errors nor the distribution of its operands. Here they are uniform in [-1, 1], and in
    [0, 1], where the sums grow.""",
    """Each output is one chain over ascending k in steps of the instruction, because the tiles of the kernel do not
    change the order of its main loop. k is padded with zeros to whole instructions.""",
    """C of HGEMM is fp16. With fp32 accumulation the fragment is rounded to nearest fp16 once, at the end; alpha = 1
    and beta = 0.""",
    "The kernel for tiny matrices is assumed to accumulate in fp16 by fused multiply-adds in ascending k.",
    """The batch has 20 matrices at quick size, and fewer if n is 128 or 256. At full size it has 1000 matrices up to
    n = 8, as in the paper, and fewer for larger n (2 at n = 256).""",
]
SPECS = [(options["hardware"], "fp16", options["accumulate"]) for options in METHODS.values()]
LENGTHS = [2**i for i in range(1, 9)]


_BATCHES = {n: {16: 300, 32: 60, 64: 12, 128: 4, 256: 2}.get(n, 1000) for n in LENGTHS}
"""Number of products of each n at the paper's size."""


def cells(runs: int = 20, batches: Mapping[int, int] = _BATCHES) -> list[Row]:
    return [
        {"hardware": "volta", "inputs": "uniform", "low": low, "n": n, "batch": batch, "seed": seed}
        for n, batch in sorted(batches.items())
        for low in KINDS.values()
        for seed in range(runs)
    ]


def cost(cell: Row) -> float:
    return float(cell["batch"] * cell["n"] ** 3)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    n = cell["n"]
    A, B = inputs.operands(
        cell["inputs"], n, n, n, cell["seed"], "fp16", batch=cell["batch"], low=cell["low"], high=1.0
    )
    exact = reference.matmul(A, B, device=device)
    results = {}
    for name, options in METHODS.items():
        D = mma.gemm(A, B, spec=mma.spec(options["hardware"], "fp16", options["accumulate"]), device=device)
        results[name] = D if options["accumulate"] == "fp16" else round_to(D, formats.FP16)
    # rows have the same columns at every n: the kernel for tiny matrices is evaluated beyond its range, and not drawn
    results[SMALL] = simt.gemm(A, B, fmt="fp16", device=device)
    results["once"] = round_to(exact, formats.FP16)
    numbers = {}
    for name, D in results.items():
        numbers[f"{name} relative_l2"] = metrics.relative_l2(D, exact)
        numbers[f"{name} normwise"] = metrics.normwise(D, exact, A, B)
    return numbers


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.4)
    lengths = sorted({row["n"] for row in rows})
    panels = ((-1.0, "relative_l2"), (0.0, "relative_l2"), (-1.0, "normwise"))
    for axis, (low, measure) in zip(axes[:, 0], panels, strict=True):
        curves(
            axis,
            lengths,
            [*METHODS, SMALL],
            lambda name, n, low=low, measure=measure: (  # type: ignore[misc]
                [] if name == SMALL and n > LARGEST_SMALL else _runs(rows, low, n, f"{name} {measure}")
            ),
        )
        logarithmic(axis, lengths)
        axis.set(ylim=(8e-5, 2.4e-3), ylabel="relative $L_2$ error" if measure == "relative_l2" else "largest error")
    axes[-1, 0].set_xlabel("$n$")
    titles = ["operands in [-1, 1]", "operands in [0, 1]", "operands in [-1, 1], error relative to $|A||B|$"]
    plotting.panel_titles(axes, titles)
    batches = [row["batch"] for row in rows]
    title = f"{in_legend(rows)} of {min(batches)} to {max(batches)} products;\n{RINGS}"
    plotting.legend_below(figure, axes[0, 0], 2, title=title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    last = max((row["n"] for row in rows), default=0)
    for kind, low in KINDS.items():
        excess = [
            row[f"{chip} fp32 relative_l2"] / row["once relative_l2"] for row in _rows(rows, low) for chip in CHIPS
        ]
        loss = [
            row[f"{chip} fp16 relative_l2"] / row[f"{chip} fp32 relative_l2"]
            for row in _rows(rows, low)
            if row["n"] == last
            for chip in CHIPS
        ]
        if excess:
            yield Measure("fp32_sums_round_once", max(excess), variant=kind)
        if loss:
            yield Measure("fp16_sums_detected", min(loss), variant=f"{kind}, n = {last}")


def finding(rows: list[Row]) -> str:
    lengths = sorted({row["n"] for row in rows})
    last = lengths[-1]
    statements: list[tuple[Any, ...]] = []
    for kind, low in KINDS.items():
        error = {name: np.mean(_runs(rows, low, last, f"{name} relative_l2")) for name in [*METHODS, "once"]}
        ratio = {
            f"{chip.capitalize()}, a rounding for every {mma.spec(chip, 'fp16', 'fp16').block} products:": (
                error[f"{chip} fp16"] / error[f"{chip} fp32"]
            )
            for chip in CHIPS
        }
        excess = max(error[f"{chip} fp32"] / error["once"] for chip in CHIPS)
        statements += [
            (
                f"{kind}, n = {last}: the errors of fp16 accumulation divided by the errors of fp32 accumulation are",
                ratio,
                ".3g×",
            ),
            ("the error of fp32 accumulation is at most {} the error of one rounding to fp16", excess, ".4f×"),
        ]
    tiny = {
        f"n = {n}:": np.mean(_runs(rows, -1.0, n, f"{SMALL} relative_l2"))
        / np.mean(_runs(rows, -1.0, n, "volta fp16 relative_l2"))
        for n in lengths
        if n <= LARGEST_SMALL
    }
    return paragraph(
        *statements,
        (
            "the errors of the tiny kernel's FMA chain divided by the errors of fp16 accumulation on Volta are",
            tiny,
            ".2f×",
        ),
    )


_rows, _runs = rows_by("low"), runs_by("low", "n")


QUICK = {"runs": 3, "batches": {n: {128: 8, 256: 3}.get(n, 20) for n in LENGTHS}}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK, specs=SPECS)
