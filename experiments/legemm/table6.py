"""LE-GEMM, Table 6: the published speed-ups beside the ratios of roofline times on the paper's GPUs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.gpu import groups
from fpemu import plotting, roofline, schemes
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row, rows_by

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.2, Table 6 and figures 8 and 9"
CAPTION = """Speed-up of LE-GEMM over four baselines in three shapes, on the MI210 and on the A800: published (filled)
and the ratio of roofline times (hollow), the mean over n = 1024 to 8192. SGEMM's roofline is the roofline of the fp32
cores. A published value above the hollow mark means that the baseline runs at a smaller share of its roofline than
LE-GEMM."""
ASSUMPTIONS = [
    """The roofline time of a phase (fpemu.roofline) is the longer of two times: the operations divided by the peak of
    the unit, and the least number of bytes divided by the bandwidth. The split is a separate kernel before the
    product.""",
    """rocBLAS SGEMM runs on "ROCm Core" and cuBLAS SGEMM on "CUDA Core" (Table 5), so both have the fp32 peaks without
    matrix units. On the MI210 fp32 matrix instructions are twice as fast.""",
    "The paper prints no sizes; here the means are over n = 1024, 2048, 4096 and 8192.",
]
BASELINES = {"sgemm": "rocBLAS, cuBLAS", "fp16": "rocWMMA, WMMA", "markidis": "Markidis", "ootomo": "Ootomo"}
SHAPES = ("n×n×n", "n×4n×n", "n×n×4n")
PUBLISHED = {
    "MI210": {
        "sgemm": (1.31, 1.31, 1.32),
        "fp16": (1.26, 1.24, 1.45),
        "markidis": (2.81, 2.99, 3.35),
        "ootomo": (2.99, 3.10, 3.45),
    },
    "A800": {
        "sgemm": (1.37, 1.40, 1.36),
        "fp16": (1.40, 1.43, 1.81),
        "markidis": (2.77, 2.84, 4.67),
        "ootomo": (2.74, 2.80, 3.76),
    },
}


def cells() -> list[Row]:
    return [{"gpu": gpu, "shape": shape, "n": 1024 << i} for gpu in PUBLISHED for shape in SHAPES for i in range(4)]


def evaluate(cell: Row) -> dict[str, float]:
    """The roofline times in seconds of LE-GEMM and the baselines; "sgemm" on fp32 cores, "sgemm matrix" on any unit."""
    gpu, sides = gpus.get(cell["gpu"]), groups.shapes(cell["n"])[cell["shape"]]
    jobs = {name: roofline.work(name, None if name == "sgemm" else gpu, *sides) for name in ("legemm", *BASELINES)}
    cores = replace(gpu, peak={unit: peak for unit, peak in gpu.peak.items() if unit != "fp32 matrix"})
    seconds = {name: roofline.time(job, cores).seconds for name, job in jobs.items()}
    products = {f"products {name}": _products(name) for name in ("markidis", "ootomo")}
    return {**seconds, "sgemm matrix": roofline.time(jobs["sgemm"], gpu).seconds, **products}


def _products(name: str) -> float:
    scheme: Any = schemes.get(name)
    return float(len(scheme.plan().products))


def _ratio(rows: list[Row], gpu: str, shape: str, baseline: str) -> float:
    return float(np.mean([row[baseline] / row["legemm"] for row in _of(rows, gpu, shape)]))


_of = rows_by("gpu", "shape")
_LOOK = dict(zip(SHAPES, (("o", plotting.VERMILION), ("s", plotting.BLUE), ("^", plotting.GREEN)), strict=True))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.4)
    for axis, gpu in zip(axes[:, 0], PUBLISHED, strict=True):
        for shift, (shape, (marker, colour)) in zip((-0.2, 0.0, 0.2), _LOOK.items(), strict=True):
            at = np.arange(len(BASELINES)) + shift
            published = [PUBLISHED[gpu][name][SHAPES.index(shape)] for name in BASELINES]
            bound = [_ratio(rows, gpu, shape, name) for name in BASELINES]
            axis.plot(at, published, **Series(f"{shape}, published", colour, marker, "none").line())
            axis.plot(at, bound, **Series(f"{shape}, rooflines", colour, marker, "none", filled=False).line())
        axis.axhline(1, color=plotting.GREY, linestyle=":", linewidth=0.8, label="equal speed")
        axis.set_yscale("log")
        axis.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        axis.minorticks_off()
        axis.set_xticks(range(len(BASELINES)), [label.replace(", ", ",\n") for label in BASELINES.values()])
        axis.set_ylabel("speed-up of LE-GEMM")
    plotting.panel_titles(axes, list(PUBLISHED))
    sizes = sorted({row["n"] for row in rows})
    plotting.legend_below(figure, axes, 2, f"means over $n$ = {', '.join(map(str, sizes))}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for gpu, published in PUBLISHED.items():
        for name, label in _labels(gpu).items():
            values = zip(SHAPES, published[name.split()[0]], strict=True)
            ratio = max(value / _ratio(rows, gpu, shape, name) for shape, value in values)
            yield Measure("rooflines_allow_table_6", ratio, "", f"{label}, {gpu}")
    saved = 1 - rows[0]["products ootomo"] / rows[0]["products markidis"]
    yield Measure("ootomo_saves_a_product", 100 * saved)


def _labels(gpu: str) -> dict[str, str]:
    """The baselines of a GPU, with a second roofline of SGEMM where there are fp32 matrix instructions."""
    labels = {name: label.split(", ")[-1 if gpu == "A800" else 0] for name, label in BASELINES.items()}
    return labels | ({"sgemm matrix": "rocBLAS on fp32 matrix instructions"} if gpu == "MI210" else {})


def finding(rows: list[Row]) -> str:
    ratios = {
        f"on the {gpu}": {label: [_ratio(rows, gpu, s, name) for s in SHAPES] for name, label in _labels(gpu).items()}
        for gpu in PUBLISHED
    }
    return paragraph(
        ("the roofline times of the baselines divided by the roofline time of LE-GEMM are", ratios, ".3g×")
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M")
