"""LE-GEMM, figure 16: Max_error and MRED of LE-GEMM on the products of three applications, MI210 and A800."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fpemu import plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import problem_with_sgemm
from .._rows import Row, mean_by, rows_by
from ._accuracy import GPUS, LABELS, METRICS, PLATFORMS, READINGS

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.5, figure 16"
CAPTION = """Max_error (Eq. 19) and MRED (Eq. 20) of LE-GEMM over the inner length K of the products in
K-means (K = 128 features), BERT's feed-forward layers (768 and 3072) and linear layers of language models (the rest);
filled: against an fp32 chain of FMAs as in the paper; hollow: against the exact product; crosses: the chain against the
exact product. K is computed in full; M and N are reduced, at quick size to at most 64 and 32. Points: medians over
seeded runs. The denominator of Max_error, |p| + |s|, is about twice the denominator of MRED."""
ASSUMPTIONS = [
    GPUS,
    """The shapes are not printed. Here k-means has 8192 to 65536 points, 256 centroids and 128 features; BERT base has
    128 to 512 tokens and layers of 768 to 3072 and 3072 to 768; the language models have 2048 tokens and square weights
    of 1024 to 8192.""",
    """M and N are divided by the same number within an application (K-means: M by 1024 and N by 8 at quick size), so
    that the shapes keep their ratios; K, on which the errors depend, is computed in full.""",
    """The paper states the range [0.5, 2.5] for the data of language models only, and [-1, 1] for the experiments in
    general; here every product is computed with both.""",
    "The result s is one ascending chain of fp32 FMAs for each element; the paper does not describe its CPU code.",
]
RANGES = {"LLM": (0.5, 2.5), "general": (-1.0, 1.0)}
REFERENCES = ("s", "exact")
APPLICATIONS: dict[str, list[tuple[int, int, int]]] = {
    "K-means": [(points, 256, 128) for points in (8192, 16384, 32768, 65536)],
    "BERT": [s for tokens in (128, 256, 512) for s in ((tokens, 3072, 768), (tokens, 768, 3072))],
    "LLM": [(2048, width, width) for width in (1024, 2048, 4096, 5120, 8192)],
}
"""(M, N, K) of every product."""


def cells(
    kmeans: tuple[int, int] = (64, 1), bert: tuple[int, int] = (1, 12), llm: tuple[int, int] = (8, 32), runs: int = 20
) -> list[Row]:
    """Divisors of M and N that reduce each application, and the number of runs."""
    listed = []
    cuts = {"K-means": kmeans, "BERT": bert, "LLM": llm}
    for name, shapes in APPLICATIONS.items():
        over, along = cuts[name]
        # the platforms innermost: they share the operands and both reference products
        listed += [
            {
                "application": name,
                "M": M,
                "N": N,
                "K": K,
                "m": M // over,
                "n": N // along,
                "data": data,
                "seed": seed,
                "hardware": hardware,
            }
            for M, N, K in shapes
            for data in RANGES
            for seed in range(runs)
            for hardware in PLATFORMS
        ]
    return listed


def cost(cell: Row) -> float:
    return float(cell["K"] * (cell["m"] * cell["n"] + 200 * (cell["m"] + cell["n"])))


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, against = problem_with_sgemm(cell["m"], cell["n"], cell["K"], cell["seed"], *RANGES[cell["data"]], device)
    P = schemes.gemm(A, B, scheme="legemm", hardware=cell["hardware"], device=device)
    numbers = {
        f"{measure} {ref}": float(METRICS[measure](P, against[ref])) for measure in METRICS for ref in REFERENCES
    }
    return numbers | {f"SGEMM {name}": float(METRICS[name](against["s"], against["exact"])) for name in METRICS}


_LOOK = {
    "K-means": Series("K-means", plotting.GREEN, "s"),
    "BERT": Series("BERT", plotting.BLUE, "D"),
    "LLM": Series("language models", plotting.VERMILION, "o"),
}
_SGEMM = Series("SGEMM, to the exact product", plotting.GREY, "x", "none")
_WAYS = {"LLM": "[0.5, 2.5]", "general": "[-1, 1]"}


def draw(rows: list[Row]) -> Any:
    """Columns: platforms; rows: ranges, of each both measures. A line joins one application's products of one range."""
    figure, axes = plotting.figure(2, 4, height=7.6)
    panels = [(hardware, data, measure) for data in RANGES for measure in METRICS for hardware in PLATFORMS]
    lengths = sorted({row["K"] for row in rows})
    for axis, (hardware, data, measure) in zip(axes.ravel(), panels, strict=True):
        here = _panel(rows, hardware, data)
        for name, look in _LOOK.items():
            for ref, filled in (("s", True), ("exact", False)):
                points = _points(here, name, f"{measure} {ref}", np.median)
                style = replace(look, dash="none", filled=filled).line(zorder=2.5 if filled else 2.2)
                axis.plot(*zip(*points, strict=True), **style | ({} if filled else {"label": None}))
        shapes = [point for name in APPLICATIONS for point in _points(here, name, f"SGEMM {measure}", np.median)]
        axis.plot(*zip(*shapes, strict=True), **_SGEMM.line(zorder=1.8))
        axis.set_xscale("log", base=2)
        axis.set(yscale="log", xlim=(90, 11600))
        axis.set_xticks(lengths, [str(K) if K in (128, 768, 2048, 8192) else "" for K in lengths])
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.tick_params(axis="x", rotation=45)
    for line, measure in zip(axes, 2 * list(METRICS), strict=True):
        line[0].set_ylabel(LABELS[measure])
    for axis in axes[-1]:
        axis.set_xlabel("inner length $K$")
    plotting.panel_titles(axes, [f"{PLATFORMS[hardware].split()[0]}, {_WAYS[data]}" for hardware, data, _ in panels])
    hollow = Series("hollow: to the exact product", plotting.GREY, "o", "none", filled=False)
    axes[0, 0].plot([], [], **hollow.line())
    seeds = len({row["seed"] for row in rows})
    title = f"LE-GEMM's errors to SGEMM, medians of {seeds} seeds;\n$K$ in full, $M$ and $N$ reduced"
    plotting.legend_below(figure, axes, 2, title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for (data, way), (ref, against) in itertools.product(_WAYS.items(), READINGS.items()):
        for hardware, platform in PLATFORMS.items():
            here, reading = _panel(rows, hardware, data), f"data in {way}, {against}"
            for measure, label in LABELS.items():
                shapes: dict[int, list[float]] = {}
                for name in APPLICATIONS:
                    for K, error in _points(here, name, f"{measure} {ref}"):
                        shapes.setdefault(K, []).append(error)
                means = [float(np.mean(shapes[K])) for K in sorted(shapes)]
                apart = max(max(errors) / min(errors) for errors in shapes.values())
                variant = f"{label}, {platform.split()[0]}"
                yield Measure("error_grows_with_K", means[-1], reading, variant, means[0])
                yield Measure("K_decides_the_error", float(max(means) / min(means) / apart), reading, variant)


def finding(rows: list[Row]) -> str:
    ends = [min(row["K"] for row in rows), max(row["K"] for row in rows)]
    panels = {(hardware, data): _panel(rows, hardware, data) for data in RANGES for hardware in PLATFORMS}
    names = {point: f"{PLATFORMS[point[0]].split()[0]}, {_WAYS[point[1]]}:" for point in panels}

    def range_over_k(column: str) -> dict[str, str]:
        return {
            names[point]: " to ".join(f"{_mean(here, K, column):.2g}" for K in ends) for point, here in panels.items()
        }

    growth = {
        hardware: _mean(panels[hardware, "LLM"], ends[1], "mred exact")
        / _mean(panels[hardware, "LLM"], ends[0], "mred exact")
        for hardware in PLATFORMS
    }
    return paragraph(
        (
            f"the MRED of LE-GEMM against the exact product at K = {ends[0]} and {ends[1]} is",
            range_over_k("mred exact"),
        ),
        ("the MRED of an fp32 chain is", range_over_k("SGEMM mred")),
        (
            "on positive data the MRED grows by",
            {"A800 (truncates)": growth["ampere"], "MI210 (rounds to nearest)": growth["cdna2"]},
            ".3g×",
        ),
        ("truncation errors have one sign and accumulate over K", growth["ampere"] > max(2 * growth["cdna2"], 2)),
    )


_panel = rows_by("hardware", "data")


def _points(here: list[Row], name: str, column: str, average: Any = np.mean) -> list[tuple[int, float]]:
    shapes = sorted({(row["K"], row["M"], row["N"]) for row in here if row["application"] == name})
    return [
        (K, float(average([row[column] for row in here if (row["K"], row["M"], row["N"]) == (K, M, N)])))
        for K, M, N in shapes
    ]


_mean = mean_by("K")


QUICK = {"kmeans": (1024, 8), "bert": (8, 96), "llm": (128, 256), "runs": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
