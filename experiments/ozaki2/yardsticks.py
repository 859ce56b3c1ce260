"""Ozaki scheme II: median relative errors beside those published with GEMMul8 for a GH200."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, mma, plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._numeric import product_in_two
from .._rows import Row, runs_by

PAPER = "Ozaki, Uchino, Imamura: Ozaki scheme II, arXiv:2504.08009 (2025), and the public results of GEMMul8 on a GH200"
CAPTION = """Median relative error against the exact product over its length k, operands (rand - 0.5)·exp(φ·randn),
φ = 0.5, (a) in fp64 and (b) in fp32, on models of {}, with few rows and columns. Dotted: 0.36 u, the median of one
rounding."""
ASSUMPTIONS = [
    "DGEMM and SGEMM are one ascending chain of FMAs for each element; the order of cuBLAS is not known.",
    """"Scaled fp16 with error correction" is assumed to be Ootomo and Yokota's scheme with every matrix scaled by a
    power of two; the scheme of cuBLAS is not described.""",
    """The error of an entry is |D - AB| / |AB|, with the exact product in two fp64 numbers, so the median error of a
    result that is rounded once is not zero but about 0.36 u.""",
]
H200 = "H200"
"""The GPU whose arithmetic is the arithmetic of the published results."""
SPECS = [(H200, "fp16", "fp32"), (H200, "int8", "int32")]
PHI = 0.5
"""The φ of the inputs."""
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "fp64": {
        "DGEMM": {"scheme": "dgemm"},
        "ozIMMU s = 8": {"scheme": "ozimmu", "slices": 8},
        "ozIMMU s = 9": {"scheme": "ozimmu", "slices": 9},
        "Ozaki II N = 14": {"scheme": "ozaki2", "moduli": 14},
        "Ozaki II N = 15": {"scheme": "ozaki2", "moduli": 15},
        "Ozaki II N = 16": {"scheme": "ozaki2", "moduli": 16},
        "Ozaki II N = 15 invariant": {"scheme": "ozaki2", "moduli": 15, "scaling": "invariant"},
        "DGEMM-TC DP": {"scheme": "ozaki"},
        "DGEMM-TC CR": {"scheme": "ozaki", "mode": "CR"},
    },
    "fp32": {
        "SGEMM": {"scheme": "sgemm"},
        "fp16 corrected, scaled": {"scheme": "ootomo", "on_range": "scale"},
        "Ozaki II N = 8": {"scheme": "ozaki2", "precision": "fp32", "moduli": 8},
        "SGEMM-TC SP": {"scheme": "ozaki", "mode": "SP"},
        "SGEMM-TC CR": {"scheme": "ozaki", "mode": "CR", "precision": "fp32"},
    },
}
PUBLISHED = {
    ("DGEMM", 8192): 2.5e-15,
    ("ozIMMU s = 8", 8192): 1.1e-14,
    ("ozIMMU s = 9", 8192): 1.2e-16,
    ("Ozaki II N = 14", 8192): 4.6e-15,
    ("Ozaki II N = 15", 8192): 4.6e-16,
    ("Ozaki II N = 16", 8192): 5.1e-17,
    ("SGEMM", 4096): 9.4e-7,
    ("SGEMM", 8192): 1.3e-6,
    ("fp16 corrected, scaled", 4096): 2.6e-7,
    ("fp16 corrected, scaled", 8192): 3.5e-7,
}
"""By method and n."""
LENGTHS = (1024, 4096, 8192)
_ROWS = 64


def caption(given: Mapping[str, Any]) -> str:
    return CAPTION.format("an H200" if given["hardware"] == H200 else f"the architecture {given['hardware']}")


def assumptions(given: Mapping[str, Any]) -> list[str]:
    published = """The published errors are medians over n×n×n products on a GH200, whose arithmetic is the arithmetic
    of an H200. Here k is equal, but A has 64 rows and B has 64 columns, with 2 seeds at quick size and 20 at full
    size."""
    return [published, *ASSUMPTIONS, *unit(given, SPECS)]


def unit(given: Mapping[str, Any], specs: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the statement on the instructions of another architecture and the evidence of their models."""
    if given["hardware"] == H200:
        return []
    used = [mma.spec(given["hardware"], ab, d) for _, ab, d in specs]
    return [f"The matrix unit is {' and '.join(f'{spec.name} ({spec.evidence} model)' for spec in used)}."]


def cells(
    phi: float = PHI, rows: int = _ROWS, lengths: tuple[int, ...] = LENGTHS, seeds: int = 20, hardware: str = H200
) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": "phi", "phi": phi, "precision": precision, "k": k, "rows": rows, "seed": seed}
        for k in lengths
        for precision in METHODS
        for seed in range(seeds)
    ]


def cost(cell: Row) -> float:
    return float(cell["k"] * cell["rows"] * (cell["rows"] + 2000))


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    rows, precision = cell["rows"], cell["precision"]
    A, B = inputs.operands(cell["inputs"], rows, rows, cell["k"], cell["seed"], precision, phi=cell["phi"])
    head, tail = product_in_two(A, B, device)
    return {
        name: median(schemes.gemm(A, B, hardware=cell["hardware"], device=device, **setting), head, tail)
        for name, setting in METHODS[precision].items()
    }


def median(D: NDArray[Any], head: NDArray[Any], tail: NDArray[Any]) -> float:
    """Return the median relative error; the exact product is head + tail, and D - head is exact where D is near it."""
    return float(np.median(np.abs((D - head) - tail) / np.abs(head)))


_LOOK = dict(zip(LENGTHS, (("o", plotting.SKY), ("^", plotting.BLUE), ("s", plotting.BLACK)), strict=True))


def draw(rows: list[Row]) -> Any:
    counts = [len(methods) for methods in METHODS.values()]
    figure, axes = plotting.figure(1, 2, height=4.6, share_x=False, share_y=False, height_ratios=counts)
    for axis, (precision, bits, published) in zip(axes[:, 0], (("fp64", 53, 8192), ("fp32", 24, 4096)), strict=True):
        names = list(METHODS[precision])
        for k, (marker, color) in _LOOK.items():
            look = Series(f"$k$ = {k}", color, marker, "none", filled=False)
            axis.plot([np.median(_runs(rows, k, name)) for name in names], range(len(names)), **look.line())
        selected = [(i, PUBLISHED[name, published]) for i, name in enumerate(names) if (name, published) in PUBLISHED]
        look = Series("published", plotting.VERMILION, "*", "none")
        axis.plot([x for _, x in selected], [i for i, _ in selected], **look.line(markersize=8, zorder=1.5))
        line = {"color": plotting.GREY, "linestyle": (0, (1, 1.5)), "linewidth": 0.9, "zorder": 1}
        axis.axvline(0.36 * 2.0**-bits, label="0.36 $u$, one rounding", **line)
        axis.set(xscale="log", ylim=(len(names) - 0.5, -0.5), xlabel="median relative error")
        axis.set_yticks(range(len(names)), names)
    plotting.panel_titles(axes, ["fp64, published for $k$ = 8192", "fp32, published for $k$ = 4096"])
    title = f"median of {_ROWS} × {_ROWS} entries and of {len({row['seed'] for row in rows})} seeds"
    plotting.legend_below(figure, axes[0, 0], 2, title=title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for (name, n), published in PUBLISHED.items():
        if name.startswith(("ozIMMU", "Ozaki II")):  # judged by variants, with the readings that they leave open
            continue
        for here in _runs(rows, n, name):
            yield Measure("medians", here / published, variant=f"{name}, n = {n}")
    for here, other in zip(_runs(rows, 8192, "Ozaki II N = 15"), _runs(rows, 8192, "DGEMM"), strict=True):
        yield Measure("moduli_15", here / other)


_runs = runs_by("k")


PAGE = Page(PAPER, caption, assumptions, cells, evaluate, draw, measures, None, cost, quick={"seeds": 2}, specs=SPECS)
