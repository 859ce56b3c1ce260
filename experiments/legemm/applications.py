"""LE-GEMM, section 5.5, beyond figure 16: effect of the errors of products on the results of whole applications."""

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fpemu import inputs, metrics, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend
from ._accuracy import GPUS, PLATFORMS

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.5, applications"
CAPTION = """Errors of the results of whole applications, with products by the named scheme, against the same
application in fp64: (a) relative L2 error of a feed-forward layer of BERT (768 and 3072, with GELU between), (b)
relative L2 error of the scores Q·Kᵀ of a linear layer of language models, where Q and K are products too, (c) share of
the points that k-means assigns to another cluster; a hollow marker stands for no such point. Markers: medians over
seeds; lines: quartiles."""
ASSUMPTIONS = [
    f"{GPUS} SGEMM is one chain of fp32 FMAs on both.",
    """All steps except the products are computed in fp32, as in the applications, and the sums of centres in fp64.""",
    """BERT has 8 tokens with standard normal entries, as after a layer norm, and normal weights with standard deviation
    0.02. The language models have 16 tokens of width 1024, and data and weights uniform in [0.5, 2.5], the printed
    range. k-means has 512 points with 64 features, normal with standard deviation 3.0 about 16 centres uniform in [29,
    31], so that the features are not centred; it iterates until no point changes its cluster, at most 40 times.""",
]
METHODS = ("fp16", "markidis", "ootomo", "legemm", "staged", "sgemm")
DIGITS = {f"{method} error": 6 for method in METHODS}
"""The error function of GELU comes from the C library: its last bit shows in the tenth digit of an error of 10^-7."""
APPLICATIONS = {"BERT": "(a) BERT, feed-forward", "scores": "(b) scores of Q and K", "k-means": "(c) k-means"}
_MOST = 40
"""Largest number of iterations of k-means."""
_FOOT = 1e-4
"""Shares of zero are drawn at this height of the logarithmic axis."""


def cells(seeds: int = 20) -> list[Row]:
    sizes = {"BERT": (8, 768, 3072), "scores": (16, 1024, 1024), "k-means": (512, 64, 16)}
    return [
        {
            "application": name,
            "rows": sizes[name][0],
            "width": sizes[name][1],
            "inner": sizes[name][2],
            "seed": seed,
            "hardware": hardware,
        }
        for name in APPLICATIONS
        for seed in range(seeds)
        for hardware in PLATFORMS
    ]


def cost(cell: Row) -> float:
    repeats = 20 if cell["application"] == "k-means" else 2
    return float(repeats * cell["rows"] * cell["width"] * cell["inner"])


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """Of every scheme: its error, "moved" (share of points elsewhere), "inertia" over fp64's, "iterations"."""
    run = {"BERT": _bert, "scores": _scores, "k-means": _kmeans}[cell["application"]]
    drawn = _draw(cell["application"], cell["rows"], cell["width"], cell["inner"], cell["seed"])
    product = functools.partial(reference.matmul, device=device)  # BLAS depends on the processor
    exact = run([x.astype(np.float64) for x in drawn], product)
    numbers: dict[str, float] = {}
    for method in METHODS:
        hardware = None if method == "sgemm" else cell["hardware"]
        product = functools.partial(schemes.gemm, scheme=method, hardware=hardware, device=device)
        numbers |= {f"{method} {what}": x for what, x in _judge(run(drawn, product), exact, drawn[0]).items()}
    return numbers


def _draw(name: str, rows: int, width: int, inner: int, seed: int) -> list[Any]:
    if name == "scores":
        shapes = [(rows, width), (width, inner), (width, inner)]
        return [inputs.make("uniform", s, (seed, i), low=0.5, high=2.5) for i, s in enumerate(shapes)]
    if name == "BERT":
        shapes = [(rows, width), (width, inner), (inner, width)]
        X, *weights = (inputs.make("normal", s, (seed, i)) for i, s in enumerate(shapes))
        return [X, *(np.float32(0.02) * W for W in weights)]
    centres = inputs.make("uniform", (inner, width), (seed, 0), low=29.0, high=31.0)
    noise = inputs.make("normal", (rows, width), (seed, 1))
    return [centres[np.arange(rows) % inner] + np.float32(3) * noise]


def _bert(drawn: list[Any], product: Any) -> dict[str, Any]:
    X, first, second = drawn
    return {"result": product(_gelu(product(X, first)), second)}


def _gelu(x: Any) -> Any:
    """x Φ(x)."""
    return x * (0.5 * (1 + _erf(x / np.sqrt(2.0)))).astype(x.dtype)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _scores(drawn: list[Any], product: Any) -> dict[str, Any]:
    X, first, second = drawn
    Q, K = product(X, first), product(X, second)
    return {"result": product(Q / Q.dtype.type(4096), np.ascontiguousarray(K.T) / K.dtype.type(4096))}


def _kmeans(drawn: list[Any], product: Any) -> dict[str, Any]:
    X = drawn[0]
    count = 16 if len(X) >= 16 else 2
    C, points, rounds = X[:count].copy(), np.full(len(X), -1), 0
    while rounds < _MOST:
        rounds += 1
        closest = ((C * C).sum(axis=1) - 2 * product(X, np.ascontiguousarray(C.T))).argmin(axis=1)
        if np.array_equal(closest, points):
            break
        points = closest
        sums = np.zeros(C.shape)
        np.add.at(sums, points, X.astype(np.float64))
        many = np.maximum(np.bincount(points, minlength=count), 1)
        C = (sums / many[:, None]).astype(X.dtype)
    return {"points": points, "centres": C, "rounds": rounds}


def _judge(got: dict[str, Any], exact: dict[str, Any], X: Any) -> dict[str, float]:
    if "result" in got:
        return {"error": float(metrics.relative_l2(got["result"], exact["result"]))}
    inertia = [float(((X - result["centres"][result["points"]]) ** 2).sum(dtype=np.float64)) for result in (got, exact)]
    moved = float(np.mean(got["points"] != exact["points"]))
    return {"moved": moved, "inertia": inertia[0] / inertia[1], "iterations": float(got["rounds"])}


def _values(rows: list[Row], name: str, hardware: str, method: str) -> list[float]:
    what = "moved" if name == "k-means" else "error"
    return [row[f"{method} {what}"] for row in rows if row["application"] == name and row["hardware"] == hardware]


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.0, share_y=False)
    labels = [plotting.SCHEMES[method].label.replace(" (fp32)", "") for method in METHODS]
    looks = {
        hardware: Series(platform, colour, marker, "none")
        for (hardware, platform), colour, marker in zip(
            PLATFORMS.items(), (plotting.ORANGE, plotting.BLUE), "so", strict=True
        )
    }
    for axis, name in zip(axes[:, 0], APPLICATIONS, strict=True):
        for shift, (hardware, look) in zip((-0.15, 0.15), looks.items(), strict=True):
            runs = [_values(rows, name, hardware, method) for method in METHODS]
            low, middle, high = (np.quantile(runs, q, axis=1) for q in (0.25, 0.5, 0.75))
            at = np.arange(len(METHODS)) + shift
            axis.vlines(at, np.maximum(low, _FOOT * (name == "k-means")), high, color=look.color, linewidth=1)
            axis.plot(at, np.where(middle > 0, middle, np.nan), **look.line())
            if not middle.all():
                none = replace(look, label=f"{look.label}: no point", filled=False)
                axis.plot(at, np.where(middle > 0, np.nan, _FOOT), **none.line())
        axis.set_yscale("log")
        axis.set_xticks(range(len(METHODS)), labels, rotation=30, ha="right", rotation_mode="anchor")
        axis.grid(False, axis="x")
        axis.set_ylabel("share of points elsewhere" if name == "k-means" else "relative $L_2$ error")
        axis.set_title(APPLICATIONS[name], loc="left")
    plotting.legend_below(figure, axes, 2, f"whole applications; {in_legend(rows)}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for hardware, platform in PLATFORMS.items():
        for name in ("BERT", "scores"):
            ours, sgemm = (_values(rows, name, hardware, method) for method in ("legemm", "sgemm"))
            yield Measure("application_error_near_sgemm", ours[0] / sgemm[0], "", f"{name}, {platform.split()[0]}")


def finding(rows: list[Row]) -> str:
    compared = ("fp16", "legemm", "sgemm")
    means = {
        f"{name} on the {platform.split()[0]}": {
            plotting.SCHEMES[method].label: float(np.mean(errors))
            for method in compared
            if (errors := _values(rows, name, hardware, method))
        }
        for hardware, platform in PLATFORMS.items()
        for name in ("BERT", "scores")
    }
    moved = {
        plotting.SCHEMES[method].label: max(shares)
        for method in compared
        if (shares := [x for hardware in PLATFORMS for x in _values(rows, "k-means", hardware, method)])
    }
    return paragraph(
        ("the mean errors of the results are", means, ".2g"),
        ("the largest shares of points in another cluster than with fp64 are", moved, ".2g%"),
        (
            "rounding errors change the iterations of k-means, also with SGEMM",
            bool(moved) and moved["SGEMM (fp32)"] > 0,
        ),
    )


PAGE = Page(
    PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick={"seeds": 3}, digits=DIGITS
)
