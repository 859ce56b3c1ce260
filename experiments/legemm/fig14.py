"""LE-GEMM, figure 14: the measured roofline, and where the schemes lie under it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu import ceilings, groups
from fpemu import plotting, roofline, schemes
from fpemu.reproduce.claims import Claim, share
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend, look, plain_ticks
from ..speed._record import RULES, at, evaluate, one_gpu, told
from ..speed._record import cells as _cells

__all__ = ["evaluate"]

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.4, figure 14"
TITLE = "measured roofline"
KIND = "G"
EXPLAINS = ("legemm/fig14",)
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
"""Which scheme's work a contender does."""
CAPTION = f"""Operations of all products of words a second over operations a byte, n = {N}, first launches. Lines: the
bandwidth of a copy and the fastest products of fp16 and of fp32, measured in the same run. Bytes are the least there
can be (every input read once, every output written once), not those that a profiler counts.
{told("legemm/fig14", *SCHEME)}"""
ASSUMPTIONS = [
    *RULES,
    """The paper profiles the kernels with Omniperf and NCU, and prints no numbers. Work is counted here
    (fpemu.roofline.time, with the measured ceilings as peaks), of products whose words are in memory: it says
    where a kernel could lie.""",
    """"Compute-bound" is judged by the measured speed: more than half of a roofline that memory does not bound.""",
]


def cells(size: str) -> list[dict[str, Any]]:
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


def _ceilings(rows: list[dict[str, Any]]) -> dict[str, float]:
    """ "bandwidth" in bytes a second; "fp16", "fp32" in operations."""
    result = {}
    for row in rows:
        if row["contender"] == "copy":
            result["bandwidth"] = row["bytes"] / row["first_s"]
    tensor = [_products(row) * row["best"] * 1e12 for row in rows if "best" in row and row["contender"] != "sgemm"]
    result |= {"fp16": max(tensor)} if tensor else {}
    sgemm = at(rows, "sgemm", N, N, N)
    return result | ({"fp32": sgemm["best"] * 1e12} if sgemm is not None and "best" in sgemm else {})


def _products(row: dict[str, Any]) -> int:
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


def _points(rows: list[dict[str, Any]]) -> dict[str, _Point]:
    """Where every contender lies; none where a ceiling was not measured."""
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


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(1, 1, width=plotting.SINGLE * 1.4, height=3.6)
    axis, tops = axes[0, 0], _ceilings(rows)
    reach = np.geomspace(8, 6000, 200)
    for unit, dash in (("fp16", "-"), ("fp32", "--")):
        if {unit, "bandwidth"} <= set(tops):
            roof = np.minimum(reach * tops["bandwidth"], tops[unit]) / 1e12
            axis.plot(reach, roof, color=plotting.GREY, linestyle=dash, linewidth=1.0)
            axis.annotate(
                f"{unit}: {tops[unit] / 1e12:.3g} TFLOP/s",
                (300, tops[unit] / 1e12),
                fontsize=6.5,
                xytext=(0, 3),
                textcoords="offset points",
                color=plotting.GREY,
            )
    if "bandwidth" in tops:
        axis.annotate(
            f"{tops['bandwidth'] / 1e12:.3g} TB/s",
            (40, 40 * tops["bandwidth"] / 1e12),
            fontsize=6.5,
            xytext=(6, -6),
            textcoords="offset points",
            color=plotting.GREY,
        )
    for name, point in _points(rows).items():
        axis.plot([point.intensity], [point.speed / 1e12], **look(name).line(linestyle="none"))
    axis.set_xscale("log")
    axis.set_ylim(30, 1200)
    plain_ticks(axis)
    axis.set_xlabel("operations a byte")
    axis.set_ylabel("TFLOP/s of all products")
    legend(figure, axes, 3)
    return figure


_SAID = {"sgemm": "compute-bound", "legemm mma": "compute-bound"} | dict.fromkeys(
    ("fp16 mma", "markidis mma", "ootomo mma"), "not compute-bound"
)


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    points = _points(rows)
    for name, point in points.items():
        published = _SAID.get(name, "")
        limited = point.bound != "memory" and point.part > 0.5
        text = f"{100 * point.part:.3g} % of the roofline, which {point.bound} bounds"
        claim = f"{look(name).label} is {published or 'compute-bound'}"
        yield share(claim, published, [limited is (published != "not compute-bound")], text, point.part)
    if {"legemm mma", "sgemm"} <= set(points):
        rate = points["legemm mma"].speed / _products({"contender": "legemm mma"}) / points["sgemm"].speed
        yield share("LE-GEMM is faster than SGEMM", "better performance", [rate > 1], f"{rate:.3g}×", rate)


def finding(rows: list[dict[str, Any]]) -> str:
    tops, points = _ceilings(rows), _points(rows)
    if not points:
        return ""
    limited = [look(name).label for name, point in points.items() if point.bound == "memory"]
    return paragraph(
        (f"ridge of fp16 products on the {one_gpu()}, operations a byte", tops["fp16"] / tops["bandwidth"]),
        (f"least operational intensity of the schemes at n = {N}", min(point.intensity for point in points.values())),
        ("limited by memory", ", ".join(limited) or "none"),
        ("share of its roofline", {look(name).label: point.part for name, point in points.items()}, ".3g%"),
    )
