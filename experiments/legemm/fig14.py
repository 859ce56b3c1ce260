"""LE-GEMM, figure 14: the measured roofline, and the schemes below it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu import ceilings, groups
from fpemu import plotting, roofline, schemes
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import Row
from ..speed._look import look, plain_ticks
from ..speed._record import RULES, at, evaluate, one_gpu, provenance
from ..speed._record import cells as _cells

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.4, figure 14"
N = groups.HEAD
SCHEME = {
    "sgemm": "sgemm",
    "fp16": "fp16",
    "fp16 mma": "fp16",
    "markidis mma": "markidis",
    "ootomo mma": "ootomo",
    "legemm mma": "legemm",
    "staged": "staged",
}
"""The scheme of each implementation."""
CAPTION = f"""Operations per second of all products of words over arithmetic intensity, n = {N}, first launches. Lines:
the bandwidth of a copy and the fastest fp16 and fp32 products, measured in the same run. Bytes are the least possible
number (every input read once, every output written once), not the count of a profiler.
{provenance("legemm/fig14", *SCHEME)}"""
ASSUMPTIONS = [
    *RULES,
    """The paper profiles the kernels with Omniperf and NCU, and prints no numbers. Here the operations and bytes are
    counted (fpemu.roofline.time, with the measured ceilings as peaks) for products whose words are in memory. The
    result is an upper bound for the speed of a kernel.""",
    """The arithmetic intensity of every scheme lies above the ridge, so all schemes are compute-bound by the roofline.
    The page shows the shares of the roofline; the paper states no threshold.""",
]


def cells() -> list[Row]:
    return _cells(
        lambda row: (
            row["kind"] == ceilings.KIND
            or (
                row["kind"] == "product"
                and (row["M"], row["N"], row["K"], row["data"]) == (N, N, N, "symmetric")
                and row["contender"] in SCHEME
            )
        )
    )


def _ceilings(rows: list[Row]) -> dict[str, float]:
    """ "bandwidth" in bytes a second; "fp16", "fp32" in operations."""
    result = {}
    for row in rows:
        if row["contender"] == "copy":
            result["bandwidth"] = row["bytes"] / row["first_s"]
    tensor = [_products(row) * row["best"] * 1e12 for row in rows if "best" in row and row["contender"] != "sgemm"]
    result |= {"fp16": max(tensor)} if tensor else {}
    sgemm = at(rows, "sgemm", N, N, N)
    return result | ({"fp32": sgemm["best"] * 1e12} if sgemm is not None and "best" in sgemm else {})


def _products(row: Row) -> int:
    plan = getattr(schemes.get(SCHEME[row["contender"]]), "plan", None) if row["contender"] in SCHEME else None
    return len(plan().products) if callable(plan) else 1


def _measured_gpu(tops: dict[str, float]) -> gpus.Gpu:
    """The GPU with the ceilings that were measured, in place of its maker's."""
    peak = {"fp16 matrix": tops["fp16"], "fp32": tops["fp32"]}
    return replace(gpus.get("H200"), peak=peak, bandwidth=tops["bandwidth"])


class _Point(NamedTuple):
    """Operations a byte and a second, the share of the roofline, and what that is bounded by."""

    intensity: float
    speed: float
    part: float
    bound: str


def _points(rows: list[Row]) -> dict[str, _Point]:
    """The point of every implementation; empty if a ceiling was not measured."""
    result: dict[str, _Point] = {}
    tops = _ceilings(rows)
    if not {"fp16", "fp32", "bandwidth"} <= set(tops):
        return result
    gpu = _measured_gpu(tops)
    for name, scheme in SCHEME.items():
        row = at(rows, name, N, N, N)
        if row is not None and "first" in row:
            job = roofline.work(scheme, None if scheme == "sgemm" else gpu, N, N, N, split="given")
            roof = roofline.time(job, gpu)
            speed = _products(row) * row["first"] * 1e12
            result[name] = _Point(job.operations / job.bytes, speed, row["first"] * 1e12 / roof.flops, roof.bound)
    return result


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(height=3.9)
    axis, tops = axes[0, 0], _ceilings(rows)
    reach = np.geomspace(8, 6000, 200)
    for unit, dash in (("fp16", "-"), ("fp32", "--")):
        if {unit, "bandwidth"} <= set(tops):
            roof = np.minimum(reach * tops["bandwidth"], tops[unit]) / 1e12
            words = f"{unit} roof: {tops['bandwidth'] / 1e12:.3g} TB/s, {tops[unit] / 1e12:.3g} TFLOP/s"
            axis.plot(reach, roof, color=plotting.GREY, linestyle=dash, linewidth=1.0, label=words)
    for name, point in _points(rows).items():
        axis.plot([point.intensity], [point.speed / 1e12], **look(name).line(linestyle="none"))
    axis.set(xscale="log", ylim=(30, 1200))
    plain_ticks(axis)
    axis.set(xlabel="arithmetic intensity, FLOP/byte", ylabel="TFLOP/s of all products")
    plotting.legend_below(figure, axis, 2, f"$n$ = {N}, {one_gpu()}; median of ten launches")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for name, point in _points(rows).items():
        yield Measure("roofline_regions", 100 * point.part, "", look(name).label)


def finding(rows: list[Row]) -> str:
    tops, points = _ceilings(rows), _points(rows)
    if not points:
        return ""
    limited = [look(name).label for name, point in points.items() if point.bound == "memory"]
    return paragraph(
        (f"the ridge of fp16 products on the {one_gpu()} is at {{}} FLOP/byte", tops["fp16"] / tops["bandwidth"]),
        (
            f"the least arithmetic intensity of the schemes at n = {N} is {{}} FLOP/byte",
            min(point.intensity for point in points.values()),
        ),
        ("the memory limits {} of the schemes", ", ".join(limited) or "none"),
        ("the shares of the rooflines are", {look(name).label: point.part for name, point in points.items()}, ".3g%"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
