"""DGEMM-TC, figures 4 and 6: speed over n in DP mode and in CR mode, beside DGEMM and two later schemes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend, look, over_n, plain_ticks
from ..speed._record import cells as _cells
from ..speed._record import evaluate, told
from ._speed import ASSUMPTIONS, PHIS, line, ratios, span

__all__ = ["ASSUMPTIONS", "evaluate"]

PAPER = "DGEMM using Tensor Cores, ISC High Performance 2020, section 5.2, figures 4 and 6"
TITLE = "speed of DGEMM-TC over n"
KIND = "G"
EXPLAINS = ("dgemm_tc/fig4",)
MODES = {"ozaki DP": "DP mode (figure 4)", "ozaki CR": "CR mode (figure 6)"}
OTHERS = ("ozimmu", "ozaki2", "ozaki DP words=int8")
CAPTION = f"""GFLOP/s of fp64 that it stands for, n×n×n, first launches, inputs (uniform - 1/2) exp(phi normal). (a) As
accurate as DGEMM, (b) correctly rounded; dashed: cublasDgemm. (c) Two later schemes of the family and DP mode on int8
products, phi = 0.1. {told("dgemm_tc/fig4")}"""
_COLOURS = dict(zip(PHIS, (plotting.BLUE, plotting.GREEN, plotting.VERMILION), strict=True))


def cells(size: str) -> list[dict[str, Any]]:
    return _cells(lambda row: row["kind"] == "product" and row["fmt"] == "fp64" and row["data"] in PHIS)


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=3.0)
    for axis, name in zip(axes[0], MODES, strict=False):
        for data, colour in _COLOURS.items():
            selected = line(rows, name, data)
            style = Series(f"$\\phi$ = {PHIS[data]:g}", colour, "o")
            axis.plot([row["M"] for row in selected], [row["speed"] for row in selected], **style.line())
    for axis, whose in zip(axes[0], [(), (), ("ozaki DP", *OTHERS)], strict=True):
        over_n(axis, {name: line(rows, name, "phi 0.1") for name in (*whose, "dgemm")}, "speed")
        axis.set_xlabel("$n$")
    plain_ticks(axes[0, 0])
    axes[0, 0].set_ylabel("GFLOP/s on DP")
    plotting.panel_titles(axes, ["DP mode", "CR mode", "other schemes, $\\phi$ = 0.1"])
    legend(figure, axes, 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for implementation, name in MODES.items():
        order = []
        for n in sorted({row["M"] for row in rows}):
            speeds = [row["first"] for data in PHIS for row in line(rows, implementation, data) if row["M"] == n]
            if len(speeds) == len(PHIS):
                order.append(speeds[0] >= speeds[1] >= speeds[2])
        yield share(f"{name}: a wider range of inputs is slower", "degradation arising from this range", order, "")
        selected = [row["first"] for row in line(rows, implementation, "phi 0.1")]
        grown = [b > a for a, b in itertools.pairwise(selected)]
        yield share(f"{name}: speed grows with n", "", grown, span([1e3 * x for x in selected], " GFLOP/s"))
    over = ratios(rows, "ozaki DP", "dgemm", "phi 0.1")
    yield share(
        "DP mode cannot accelerate a GPU with fast fp64 (V100)",
        "could not accelerate cublasDgemm",
        [x < 1 for x in over.values()],
        span(over.values()),
    )
    slower = ratios(rows, "ozaki CR", "ozaki DP", "phi 0.1")
    yield share("CR mode is slower than DP mode", "degraded", [x < 1 for x in slower.values()], span(slower.values()))
    exact = [row["relative_l2"] == 0 for data in PHIS for row in line(rows, "ozaki CR", data)]
    yield share("CR mode is correctly rounded", "always zero", exact, "")
    for implementation in OTHERS:
        over = ratios(rows, implementation, "dgemm", "phi 0.1")
        large = {n: x for n, x in over.items() if n >= groups.HEAD}
        yield share(
            f"{look(implementation).label}: no slower than cublasDgemm from n = {groups.HEAD} on",
            "",
            [x >= 1 for x in large.values()],
            span(over.values()),
        )


def finding(rows: list[dict[str, Any]]) -> str:
    n = max((row["M"] for row in rows), default=0)
    last = {row["contender"]: row for name in ("dgemm", *MODES, *OTHERS) for row in line(rows, name, "phi 0.1")[-1:]}
    last = {name: row for name, row in last.items() if row["M"] == n}
    labels = {name: look(name).label for name in last}
    DP, CR = last.get("ozaki DP", {}), last.get("ozaki CR", {})
    products = {"DP": DP.get("gemms"), "CR": CR.get("gemms")} if {"gemms"} <= set(DP) & set(CR) else {}
    least = next(iter(line(rows, "ozaki DP", "phi 0.1")), {})
    parts = {}
    if "part products" in least:
        parts = {"call": 2e-6 * least["M"] ** 3 / least["speed"], "products": 1e3 * least["part products"]}
    return paragraph(
        (f"GFLOP/s at n = {n}, φ = 0.1", {labels[name]: row["speed"] for name, row in last.items()}, ".4g"),
        ("relative L2 error", {labels[name]: row["relative_l2"] for name, row in last.items()}, ".2g"),
        ("products: slices in fp16 in DP mode, residues in int8 in CR mode", products, "g"),
        ("CR mode is faster than DP mode", bool(products) and CR["first"] > DP["first"]),
        (f"milliseconds of a call in DP mode at n = {least.get('M')}", parts, ".2g"),
        ("the rest is splitting and waiting for the number of slices", bool(parts)),
    )
