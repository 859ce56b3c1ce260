"""MAGMA's batched HGEMM: what its arithmetic does to errors over the size of the matrices.

The paper is about speed and has no error figure; this is the numerical side of its kernels. The tensor-core kernel
accumulates in the fragments of its instruction, in fp32 or in fp16, over k in steps of the instruction; the kernel for
tiny matrices has a thread for each output, which runs a chain of fused multiply-adds in fp16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpemu import formats, inputs, metrics, mma, plotting, reference, round_to, simt
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim

from .._findings import paragraph
from .._rows import runs_by

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), sections 3, 4 and 8"""
TITLE = "errors of batched HGEMM over the size of its matrices"
CAPTION = """Error against the exact product over n, batches of n×n×n products of fp16 matrices uniform in (a) [-1, 1]
and (b) [0, 1]: relative L2 error of a batch; (c) the largest error over |A||B| in a batch, operands as in (a). The
result is fp16 in all of them: accumulated in fp16, or in fp32 and rounded once, on Volta (filled), Ampere and Hopper
(open), three lines that lie on one another; for n up to 16 also as chains of FMAs in fp16, one thread for each output.
Lines: mean over seeded batches; bands: smallest to largest. Emulated is the arithmetic of the kernels, a chain over k
in steps of the instruction; complex products are not in this figure."""
ASSUMPTIONS = [
    """The paper gives neither errors nor the distribution of its operands: uniform in [-1, 1], and in [0, 1] where sums
    grow.""",
    """Each output is one chain over k, ascending, in steps of the instruction: what the kernel's main loop does,
    whatever its tiles. k is padded with zeros to whole instructions.""",
    """HGEMM's C is fp16. With fp32 accumulation the fragment is rounded to it once, to nearest, at the end; alpha = 1
    and beta = 0.""",
    "The kernel for tiny matrices is taken to accumulate in fp16 by fused multiply-adds, k ascending.",
    "The batch is 20 matrices at quick size, fewer where n is 128 or 256; 50 at full size.",
]
METHODS: dict[str, tuple[str, str]] = {
    f"{gpu} {d}": (gpu, d) for gpu in ("volta", "ampere", "hopper") for d in ("fp32", "fp16")
}
"""Hardware and the format of the accumulator."""
SPECS = [(chip, "fp16", accumulator) for chip, accumulator in METHODS.values()]
SMALL = "small"
_LARGEST_SMALL = 16
KINDS = {"zero mean": -1.0, "positive": 0.0}
LENGTHS = [2**i for i in range(1, 9)]
_SIZES: dict[str, Any] = {
    "quick": {"runs": 3, "batch": {n: {128: 8, 256: 3}.get(n, 20) for n in LENGTHS}},
    "full": {"runs": 5, "batch": dict.fromkeys([*LENGTHS, *range(24, 249, 32)], 50)},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {"hardware": "volta", "inputs": "uniform", "low": low, "n": n, "batch": batch, "seed": seed}
        for n, batch in sorted(chosen["batch"].items())
        for low in KINDS.values()
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["batch"] * cell["n"] ** 3)


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    n = cell["n"]
    A, B = inputs.operands(
        cell["inputs"], n, n, n, cell["seed"], "fp16", batch=cell["batch"], low=cell["low"], high=1.0
    )
    exact = reference.matmul(A, B, device=device)
    results = {}
    for name, (hardware, d) in METHODS.items():
        D = mma.gemm(A, B, spec=mma.spec(hardware, "fp16", d), device=device)
        results[name] = D if d == "fp16" else round_to(D, formats.FP16)
    # beyond its range the kernel for tiny matrices is emulated too, not drawn: rows have the same columns
    results[SMALL] = simt.gemm(A, B, fmt="fp16", device=device)
    results["once"] = round_to(exact, formats.FP16)
    numbers = {}
    for name, D in results.items():
        numbers[f"{name} relative_l2"] = metrics.relative_l2(D, exact)
        numbers[f"{name} normwise"] = metrics.normwise(D, exact, A, B)
    return numbers


_SIZE = {"volta": 6.0, "ampere": 4.5, "hopper": 3.0}  # so that all three show where they coincide


def _look(name: str) -> Series:
    if name == SMALL:
        return Series("tiny kernel, fp16 FMAs", plotting.PURPLE, "P", ":")
    hardware, d = METHODS[name]
    base = plotting.HARDWARE[hardware]
    return Series(
        f"{base.label}, {d}", base.color, base.marker, "-" if d == "fp32" else "--", filled=hardware == "volta"
    )


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, height=3.2, share_y=False)
    panels = ((-1.0, "relative_l2"), (0.0, "relative_l2"), (-1.0, "normwise"))
    lengths = sorted({row["n"] for row in rows})
    for axis, (low, measure) in zip(axes[0], panels, strict=True):
        for name in [*METHODS, SMALL]:
            selected = [n for n in lengths if name != SMALL or n <= _LARGEST_SMALL]
            runs = [_runs(rows, low, n, f"{name} {measure}") for n in selected]
            plotting.band(axis, selected, runs, _look(name), markersize=_SIZE.get(name.split()[0], 4))
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("$n$")
        axis.set_xticks([n for n in lengths if n & (n - 1) == 0][::2])
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.set_ylim(8e-5, 1.6e-3)
        axis.axhline(2.0**-11, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
    (label,) = plotting.U16  # at the left, where no line passes
    axes[0, 0].annotate(
        label, (2, 2.0**-11), xytext=(-2, 3), textcoords="offset points", fontsize=7, color=plotting.GREY
    )
    axes[0, 0].set_ylabel("relative $L_2$ error")
    axes[0, 2].set_ylabel("largest error over $|A||B|$")
    plotting.panel_titles(axes, ["zero mean", "positive", "zero mean, largest"])
    plotting.legend_below(figure, axes[0, 0], 4)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper says nothing about errors."""
    return []


def finding(rows: list[dict[str, Any]]) -> str:
    lengths, gpus = sorted({row["n"] for row in rows}), ("volta", "ampere", "hopper")
    last = lengths[-1]
    blocks = {gpu: mma.spec(gpu, "fp16", "fp16").block for gpu in gpus}
    statements: list[tuple[Any, ...]] = []
    for kind, low in KINDS.items():
        error = {name: np.mean(_runs(rows, low, last, f"{name} relative_l2")) for name in [*METHODS, "once"]}
        ratio = {
            f"{gpu.capitalize()}, a rounding for every {blocks[gpu]} products:": error[f"{gpu} fp16"]
            / error[f"{gpu} fp32"]
            for gpu in gpus
        }
        excess = max(error[f"{gpu} fp32"] / error["once"] for gpu in gpus)
        statements += [
            (f"{kind}, n = {last}: error accumulated in fp16 over fp32", ratio, ".3g×"),
            ("accumulated in fp32 over one rounding to fp16, at most", excess, ".4f×"),
            ("that rounding is nearly all of the error", excess < 1.05),
        ]
    tiny = {
        f"n = {n}:": np.mean(_runs(rows, -1.0, n, f"{SMALL} relative_l2"))
        / np.mean(_runs(rows, -1.0, n, "volta fp16 relative_l2"))
        for n in lengths
        if n <= _LARGEST_SMALL
    }
    return paragraph(*statements, ("FMA chain of the tiny kernel over Volta's fp16 accumulation", tiny, ".2f×"))


_runs = runs_by("low", "n")
