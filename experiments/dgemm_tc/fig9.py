"""DGEMM-TC, figure 9: speed of SGEMM-TC in SP mode against SGEMM."""

from __future__ import annotations

from typing import Any

from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from ..speed._look import legend, look, over_n, plain_ticks
from ..speed._record import cells as _cells
from ..speed._record import evaluate, told
from ._speed import ASSUMPTIONS, line, ratios, span

__all__ = ["ASSUMPTIONS", "evaluate"]

PAPER = "DGEMM using Tensor Cores, ISC High Performance 2020, section 5.3, figure 9"
TITLE = "speed of SGEMM-TC over n"
KIND = "G"
EXPLAINS = ("dgemm_tc/fig9",)
CAPTION = f"""GFLOP/s of fp32 that it stands for, n×n×n, first launches, inputs (uniform - 1/2) exp(0.1 normal):
SGEMM-TC in SP mode, cublasSgemm, and DGEMM-TC in DP mode on the same inputs in fp64. {told("dgemm_tc/fig9")}"""
WHO = ("sgemm", "ozaki SP", "ozaki DP")


def cells(size: str) -> list[dict[str, Any]]:
    return _cells(lambda row: row["kind"] == "product" and row["data"] == "phi 0.1" and row["contender"] in WHO)


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(1, 1, width=plotting.SINGLE, height=2.9)
    over_n(axes[0, 0], {name: line(rows, name, "phi 0.1") for name in WHO}, "speed")
    plain_ticks(axes[0, 0])
    axes[0, 0].set_xlabel("$n$")
    axes[0, 0].set_ylabel("GFLOP/s")
    legend(figure, axes, 2)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    slower, faster = (ratios(rows, "ozaki SP", other, "phi 0.1") for other in ("sgemm", "ozaki DP"))
    return [
        share(
            "SGEMM-TC cannot accelerate SGEMM",
            "useless for accelerating SGEMM",
            [x < 1 for x in slower.values()],
            span(slower.values()),
        ),
        share(
            "SGEMM-TC is faster than DGEMM-TC",
            "outperformed DGEMM-TC",
            [x > 1 for x in faster.values()],
            span(faster.values()),
        ),
    ]


def finding(rows: list[dict[str, Any]]) -> str:
    last = {look(name).label: of[-1] for name in WHO if (of := line(rows, name, "phi 0.1"))}
    return paragraph(
        ("GFLOP/s at the largest n", {f"{name}, n = {row['M']}:": row["speed"] for name, row in last.items()}, ".4g"),
        ("relative L2 error", {name: row["relative_l2"] for name, row in last.items()}, ".2g"),
    )
