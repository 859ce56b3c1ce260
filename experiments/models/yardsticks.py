"""Published and measured speeds as shares of the roofline of their GPU.

A share above one means that the roofline is wrong, or that the GPU exceeds the rates of its data sheet.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpemu import plotting, roofline
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus
from fpemu.schemes import ozaki

from .._findings import paragraph
from .._rows import Row

PAPER = "Rooflines of the schemes, and the speeds that were published or measured"
CAPTION = """Speeds as shares of the roofline for the same work on the same GPU: filled where published, open where
measured on one H200 (CUDA 13.0). "Bytes" marks products of a large matrix with a narrow one, whose speed was given in
bytes per second. Beside each share the effective throughput (2MNK / time) in TFLOP/s. The staged kernel is of this
project."""
ASSUMPTIONS = [
    """Peaks and bandwidths are the manufacturers' values at the stated clocks, from fpemu's table of GPUs, which states
    its sources (fpemu/roofline/gpus.toml).""",
    """If the publication states no size, the page uses n = 16384 (Ootomo, Ma, H2SGEMM) or n = 8192 (DGEMM on an H200),
    where the roofline is flat. If it states a range (DGEMM on an H200), the page uses the upper end.""",
    """The rooflines of DGEMM-TC and of the staged kernel with its split include the time of the split. For the other
    speeds it is not known whether they include a split; their roofline is the highest, with words already in
    memory.""",
    """The slices of DGEMM-TC are counted on a few rows of its inputs, (uniform - 0.5) exp(phi normal). The count can
    only be too small, and the roofline too high. The speeds of LE-GEMM are 1.37 times cuBLAS on an A800 and 1.31 times
    rocBLAS on an MI210, on the assumption that these libraries ran at their rooflines, rocBLAS on the ordinary cores
    that the paper states.""",
]


class Known(NamedTuple):
    """A speed: who, on which GPU, M, N, K (or n), the scheme and its split, and operations (or bytes) a second."""

    label: str
    gpu: str
    scheme: str
    sides: int | tuple[int, int, int]
    speed: float
    split: str = "given"
    measured: bool = False
    unit: str = "operations"
    phi: float = 0.0
    """Of the inputs of DGEMM-TC in DP mode"""
    mode: str = ""


_T, _G = 1e12, 1e9
KNOWN = (
    Known("Ootomo, fp16", "A100", "ootomo", 16384, 51 * _T),
    Known("Ootomo, tf32", "A100", "ootomo-tf32", 16384, 33 * _T),
    Known("Ma (APE)", "A100", "ape", 16384, 64.15 * _T),
    Known("LE-GEMM at 1.37 SGEMM", "A800", "legemm", 8192, 1.37 * 19.5 * _T),
    Known("LE-GEMM at 1.31 SGEMM", "MI210", "legemm", 8192, 1.31 * 22.6 * _T),
    Known("H2SGEMM, double buffer", "Ascend 910A", "h2sgemm", 16384, 65.3 * _T),
    Known("H2SGEMM, single buffer", "Ascend 910A", "h2sgemm", 16384, 41.7 * _T),
    Known("cublasDgemm", "Titan RTX", "dgemm", 10240, 534.1 * _G),
    Known("DGEMM-TC, φ = 0.1", "Titan RTX", "ozaki", 10240, 972.4 * _G, "kernel", phi=0.1),
    Known("DGEMM-TC, φ = 1", "Titan RTX", "ozaki", 10240, 823.0 * _G, "kernel", phi=1.0),
    Known("DGEMM-TC, φ = 2", "Titan RTX", "ozaki", 10240, 713.1 * _G, "kernel", phi=2.0),
    Known("DGEMM-TC CR, φ = 0.1", "Titan RTX", "ozaki", 10240, 220.4 * _G, "kernel", mode="CR"),
    Known("cublasGemmEx, fp16", "Titan RTX", "fp16", 7168, 92 * _T),
    Known("cublasDgemm", "V100", "dgemm", 10240, 6761 * _G),
    Known("DGEMM-TC, φ = 0.1", "V100", "ozaki", 10240, 1064 * _G, "kernel", phi=0.1),
    Known("DGEMM-TC, φ = 1", "V100", "ozaki", 10240, 914.3 * _G, "kernel", phi=1.0),
    Known("DGEMM-TC, φ = 2", "V100", "ozaki", 10240, 790.8 * _G, "kernel", phi=2.0),
    Known("DGEMM-TC CR, φ = 0.1", "V100", "ozaki", 10240, 255.0 * _G, "kernel", mode="CR"),
    Known("corrected fp16 SGEMM", "GH200", "ootomo", 16384, 72.6 * _T),
    *(
        Known(f"SGEMM, n = {n}", "H200", "sgemm", n, v * _T, measured=True)
        for n, v in ((4096, 51.2), (8192, 50.9), (16384, 53.2))
    ),
    *(
        Known(f"fp16, n = {n}", "H200", "fp16", n, v * _T, measured=True)
        for n, v in ((4096, 751), (8192, 711), (16384, 653))
    ),
    *(
        Known(f"three fp16 calls, n = {n}", "H200", "ape", n, v * _T, measured=True)
        for n, v in ((4096, 232), (8192, 228), (16384, 214))
    ),
    *(
        Known(f"staged kernel, best, n = {n}", "H200", "staged", n, v * _T, measured=True)
        for n, v in ((4096, 263.8), (8192, 268.7))
    ),
    *(
        Known(f"staged kernel and split, n = {n}", "H200", "staged", n, v * _T, "kernel", measured=True)
        for n, v in ((4096, 230.9), (8192, 227.2))
    ),
    Known("DGEMM", "H200", "dgemm", 8192, 63 * _T, measured=True),
    *(
        Known(f"SGEMM, bytes, 20480² × {n}", "H200", "sgemm", (20480, n, 20480), v * _T, measured=True, unit="bytes")
        for n, v in ((2, 1.00), (4, 1.21), (8, 1.95), (16, 1.97))
    ),
    Known("DGEMM, bytes, 20480² × 16", "H200", "dgemm", (20480, 16, 20480), 4.1 * _T, measured=True, unit="bytes"),
    Known("SGEMM, bytes, 10⁷ × 16 × 16", "H200", "sgemm", (10**7, 16, 16), 1.87 * _T, measured=True, unit="bytes"),
    Known("DGEMM, bytes, 10⁷ × 16 × 16", "H200", "dgemm", (10**7, 16, 16), 2.28 * _T, measured=True, unit="bytes"),
)


def cells() -> list[Row]:
    listed = []
    for known in KNOWN:
        M, N, K = (known.sides,) * 3 if isinstance(known.sides, int) else known.sides
        listed.append(
            {
                "label": known.label,
                "gpu": known.gpu,
                "scheme": known.scheme,
                "M": M,
                "N": N,
                "K": K,
                "split": known.split,
                "phi": known.phi,
                "mode": known.mode,
            }
        )
    return listed


def evaluate(cell: Row) -> dict[str, float]:
    """The roofline in operations a second, the operations for a byte that the result is worth, and slices of A."""
    options: dict[str, Any] = {"mode": cell["mode"]} if cell["mode"] else {}
    if cell["phi"]:
        rng, K = np.random.default_rng(0), cell["K"]
        A, B = ((rng.random(s) - 0.5) * np.exp(cell["phi"] * rng.standard_normal(s)) for s in ((12, K), (K, 12)))
        options["slices"] = ozaki.counts(A, B, hardware=cell["gpu"]).d
    job = roofline.work(cell["scheme"], cell["gpu"], cell["M"], cell["N"], cell["K"], split=cell["split"], **options)
    numbers = roofline.time(job, cell["gpu"])
    return {
        "bound": numbers.flops,
        "per byte": job.nominal / job.bytes,
        "slices": float(job.words[0]),
        "products": float(job.products),
    }


def _shares(rows: list[Row]) -> list[tuple[Known, float, dict[str, Any]]]:
    """The known speeds of the rows, each with its share of the roofline."""
    result = []
    for known in KNOWN:
        row = next((row for row in rows if row["label"] == known.label and row["gpu"] == known.gpu), None)
        if row is not None:
            result.append((known, _flops(known, row) / row["bound"], row))
    return result


def _flops(known: Known, row: Row) -> float:
    return known.speed * (float(row["per byte"]) if known.unit == "bytes" else 1.0)


_WORDS = Series("fp32 from words", plotting.BLUE, "o")
_NATIVE = Series("native format", plotting.BLACK, "s")
_LOOK = {
    "sgemm": _NATIVE,
    "dgemm": _NATIVE,
    "fp16": Series("plain fp16", plotting.GREY, "D"),
    "ozaki": Series("fp64 from slices", plotting.VERMILION, "^"),
}


def draw(rows: list[Row]) -> Any:
    shares = _shares(rows)
    figure, axes = plotting.figure(1, 1, height=0.9 + 0.155 * len(shares))
    axis = axes[0, 0]
    for height, (known, part, row) in enumerate(shares):
        look = _LOOK.get(known.scheme, _WORDS)
        face = "white" if known.measured else look.color
        axis.plot([0, part], [height, height], color=look.color, linewidth=0.6)
        axis.plot([part], [height], **look.line(markerfacecolor=face, label=None))
        text = f"{_flops(known, row) / 1e12:.3g}"
        axis.annotate(
            text,
            (part, height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
    axis.axvline(1, color=plotting.GREY, linestyle="--", linewidth=0.9, zorder=1)
    names = [f"{known.gpu}: {known.label}{' (ours)' * (known.scheme == 'staged')}" for known, _, _ in shares]
    axis.set_yticks(range(len(shares)), names, fontsize=6.5)
    axis.set_ylim(len(shares) - 0.4, -0.6)
    axis.set_xlim(0, 1.4)
    axis.set_xlabel("share of the roofline")
    for look in (*dict.fromkeys(_LOOK.values()), _WORDS):
        axis.plot([], [], **look.line(linewidth=0.6))
    axis.plot([], [], "o", color=plotting.GREY, markerfacecolor="white", label="open: measured on an H200")
    plotting.legend_below(figure, axis, 2, "numbers: effective throughput, TFLOP/s; filled: published")
    return figure


SPEEDUPS = (
    ("LE-GEMM over cuBLAS", "A800", "legemm", "sgemm", 1.37),
    ("LE-GEMM over WMMA", "A800", "legemm", "fp16", 1.40),
    ("LE-GEMM over rocBLAS", "MI210", "legemm", "sgemm", 1.31),
    ("LE-GEMM over rocWMMA", "MI210", "legemm", "fp16", 1.26),
    ("EGEMM-TC over cuBLAS", "T4", "egemm", "sgemm", 3.13),
)
"""Published in Table 6 of LE-GEMM's paper and section 2 of H2SGEMM's: name, GPU, both schemes, speed-up."""


def measures(rows: list[Row]) -> Iterator[Measure]:
    shares = _shares(rows)
    for measured, variant in ((False, "published"), (True, "measured on an H200")):
        selected = [part for known, part, _ in shares if known.measured == measured]
        if selected:
            yield Measure("below_roofline", max(selected), variant=variant)
    by = {(known.gpu, known.label): (known.speed, row["bound"]) for known, _, row in shares}
    for gpu in ("Titan RTX", "V100"):
        pair = [by.get((gpu, label)) for label in ("DGEMM-TC, φ = 0.1", "cublasDgemm")]
        if pair[0] and pair[1]:
            gain, allowed = (x / y for x, y in zip(*pair, strict=True))
            yield Measure("published_gains", gain / allowed, variant=f"DGEMM-TC over cuBLAS, {gpu}")
    for text, gpu, *schemes, gain in SPEEDUPS if shares else ():
        # SGEMM on ordinary cores, as in Table 6
        cores = replace(gpus.get(gpu), peak={u: x for u, x in gpus.get(gpu).peak.items() if u != "fp32 matrix"})
        jobs = [roofline.work(scheme, cores, *(8192,) * 3, split="given") for scheme in schemes]
        first, second = (roofline.time(job, cores).flops for job in jobs)
        yield Measure("published_gains", gain * second / first, variant=f"{text}, {gpu}")


def finding(rows: list[Row]) -> str:
    shares = _shares(rows)
    words = [(part, k) for k, part, _ in shares if k.scheme not in ("sgemm", "dgemm", "fp16", "ozaki")]
    ends = [pick(words, key=lambda pair: pair[0]) for pick in (min, max)] if words else []
    slices = {
        gpu: [part for known, part, _ in shares if known.phi and known.gpu == gpu] for gpu in ("Titan RTX", "V100")
    }
    above = {}
    for known, part, row in shares:
        if part > 1:
            clocks = [(gpus.get(known.gpu).clock or 0.0) * factor / 1e9 for factor in (1, part)]
            above[f"{known.label} on the {known.gpu}"] = (
                f"{100 * (part - 1):.3g} % above {row['bound'] / 1e12:.4g} TFLOP/s, the peak at {clocks[0]:.4g} GHz: "
                f"the GPU ran at {clocks[1]:.4g} GHz or more"
            )
    return paragraph(
        (
            "products of words reach these smallest and largest shares of their rooflines",
            {f"{k.label}, {k.gpu}:": part for part, k in ends},
            ".3g%",
        ),
        (
            "DGEMM-TC reaches these shares for all φ, because its speed is determined by the number of products",
            slices,
            ".3g%",
        ),
        ("these speeds are above the roofline", above),
        (
            "Ma's 64.15 TFLOP/s, 61.7 % in H2SGEMM's paper, are {} of the fp16 peak and of a third of it",
            [64.15 * _T / gpus.get("A100").need("fp16 matrix") * factor for factor in (1, 3)] if shares else None,
            ".3g%",
        ),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
