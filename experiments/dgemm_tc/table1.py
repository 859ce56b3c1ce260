"""DGEMM-TC, Table 1: DP mode, CR mode and DGEMM at n = 10240, as ratios to cublasDgemm."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from ..speed._look import legend
from ..speed._record import at, evaluate, is_square, one_gpu, products, told
from ._speed import ASSUMPTIONS, PHIS, TABLE

__all__ = ["ASSUMPTIONS", "evaluate"]

PAPER = "DGEMM using Tensor Cores, ISC High Performance 2020, section 5.2, Table 1"
TITLE = "DGEMM-TC against DGEMM at n = 10240"
KIND = "G"
EXPLAINS = ("dgemm_tc/table1",)
N = 10240
GOAL = 3.0
"""CR mode: its ratio to cublasDgemm over that of the paper's V100."""
CAPTION = f"""Speed over cublasDgemm of the same GPU, n = {N}, for three ranges of the inputs: as published for a Titan
RTX and a V100, and here. The numbers are GFLOP/s. {told("dgemm_tc/table1", "ozaki DP", "ozaki CR")}"""
MODES = {"ozaki DP": "DP mode", "ozaki CR": "CR mode"}


def cells(size: str) -> list[dict[str, Any]]:
    return products((*MODES, "dgemm"), lambda row: row["fmt"] == "fp64" and row["M"] == N and is_square(row), PHIS)


def _speeds(rows: list[dict[str, Any]], who: str) -> list[float]:
    """GFLOP/s by phi; NaN where it was not measured."""
    result = [at(rows, who, N, N, N, data) for data in PHIS]
    return [1e3 * row["first"] if row is not None and "first" in row else float("nan") for row in result]


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 1, height=2.8, share_y=False)
    looks = {"Titan RTX": plotting.ORANGE, "V100": plotting.SKY, "here": plotting.VERMILION}
    for axis, name in zip(axes[0], MODES, strict=True):
        for number, (gpu, colour) in enumerate(looks.items()):
            selected, base = ((_speeds(rows, x) if gpu == "here" else list(TABLE[gpu, x])) for x in (name, "dgemm"))
            places = np.arange(len(PHIS)) + 0.27 * (number - 1)
            heights = [a / b for a, b in zip(selected, base, strict=True)]
            axis.bar(places, heights, 0.25, color=colour, label=one_gpu() if gpu == "here" else gpu)
            for x, height, speed in zip(places, heights, selected, strict=True):
                if np.isfinite(height):
                    axis.annotate(
                        f"{speed:.3g}" if speed < 1e3 else f"{speed:.0f}",
                        (x, height),
                        xytext=(0, 2),
                        textcoords="offset points",
                        ha="center",
                        fontsize=5.5,
                    )
        axis.set_yscale("log")
        axis.axhline(1, color=plotting.GREY, linestyle="--", linewidth=0.8)
        axis.set_xticks(range(len(PHIS)), [f"$\\phi$ = {phi:g}" for phi in PHIS.values()])
        axis.grid(False, axis="x")
        axis.margins(y=0.15)
    axes[0, 0].set_ylabel("over cublasDgemm")
    plotting.panel_titles(axes, list(MODES.values()))
    legend(figure, axes, 3)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    judged, base = [], _speeds(rows, "dgemm")
    for implementation, name in MODES.items():
        ours = [a / b for a, b in zip(_speeds(rows, implementation), base, strict=True)]
        other = [a / b for a, b in zip(TABLE["V100", implementation], TABLE["V100", "dgemm"], strict=True)]
        pairs = [(a, b) for a, b in zip(ours, other, strict=True) if np.isfinite(a)]
        both = ", ".join(f"{a:.3g}" for a, _ in pairs)
        published = ", ".join(f"{x:.3g}" for x in other)
        judged.append(
            share(
                f"{name}: the ratio to cublasDgemm that the V100 has, within a factor of 2",
                published,
                [b / 2 <= a <= 2 * b for a, b in pairs],
                both,
            )
        )
        falling = [a > b for a, b in itertools.pairwise(ours) if np.isfinite(a) and np.isfinite(b)]
        printed = ", ".join(f"{x:.4g}" for x in TABLE["Titan RTX", implementation])
        judged.append(share(f"{name}: slower with a wider range of inputs", printed, falling, both))
        if implementation == "ozaki CR":
            judged.append(
                share(
                    f"{name}: at least {GOAL:g} times the V100's ratio",
                    "",
                    [a >= GOAL * b for a, b in pairs],
                    ", ".join(f"{a / b:.3g}×" for a, b in pairs),
                )
            )
    return judged


def finding(rows: list[dict[str, Any]]) -> str:
    speeds = {
        MODES.get(name, "cublasDgemm"): ", ".join(f"{x:.4g}" for x in _speeds(rows, name) if np.isfinite(x))
        for name in ("dgemm", *MODES)
    }
    return paragraph((f"GFLOP/s at n = {N} for φ = 0.1, 1 and 2 on the {one_gpu()}", speeds))
