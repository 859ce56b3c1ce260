"""DGEMM-TC, figure 7b: number of slices and of products in CR mode, and the memory they take (section 4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._rows import listed
from . import _counts
from ._counts import PHI, cells, cost, evaluate, lengths, means, memory

__all__ = ["ASSUMPTIONS", "CAPTION", "PAPER", "TITLE", "cells", "claims", "cost", "draw", "evaluate"]

PAPER = f"{_counts.PAPER}.2, figure 7b"
TITLE = "slices and products of DGEMM-TC in CR mode"
CAPTION = """(a) Slices of A (solid) and of B (dotted) until nothing is left and (b) products of slices over n, operands
(rand - 0.5)·exp(φ·randn), means over outer blocks; (c) memory of a block, (s_A + s_B)·k·b words of fp16 and
s_A·s_B·b² of fp32, in CR mode (solid) and in DP mode (dotted), b = ceil(n / ceil(n / 3584)); dashed: the 20 GB
of the paper. At quick size A has 128 rows and B 128 columns, with the whole of k = n."""
ASSUMPTIONS = [
    *_counts.ASSUMPTIONS,
    """The share of the time that products take is the published speed of Table 1 times our number of products over 92
    TFLOP/s, the speed of cublasGemmEx that the paper gives for n = 7168 in DP mode. It must be below the 70 % of DP
    mode, since NearSum costs more than a sum in fp64.""",
]
PUBLISHED = dict(zip(PHI, (0.2204, 0.1935, 0.1731), strict=True))
"""TFLOP/s at n = 10240."""


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = _counts.draw_counts(rows, "CR")
    axis = axes[0, 2]
    _counts.panel(axis, rows, "GB")
    for phi, look in _counts.LOOK.items():
        for mode, style in (("CR", {}), ("DP", {"linestyle": ":", "markerfacecolor": "white"})):
            a, b = means(rows, phi, f"{mode} slices A", f"{mode} slices B")
            sizes = [memory(n, x, y) for n, x, y in zip(lengths(rows), a, b, strict=True)]
            axis.plot(lengths(rows), sizes, **look.line(label="_memory", **style))
    axis.axhline(20, color=plotting.BLACK, linestyle="--", linewidth=0.8)
    axis.annotate("20 GB", (1000, 20), xytext=(0, -9), textcoords="offset points", fontsize=7)
    axis.set_ylim(bottom=0)
    plotting.panel_titles(axes, ["slices", "products", "memory of a block"])
    plotting.legend_below(figure, axes[0, 0], 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    fast, every = ([means(rows, phi, f"{mode} products")[0] for phi in PHI] for mode in ("DP", "CR"))
    ratio = np.array(every) / np.array(fast)
    text = f"{np.min(ratio):.2g} to {np.max(ratio):.2g} × as many"
    yield share("CR mode takes more products than DP mode", "more", ratio > 1, text)
    yield _counts.slices_claim(rows, "CR")
    for phi, speed in PUBLISHED.items():
        selected = lengths(rows)[-1] == 10240
        last = every[PHI.index(phi)][-1] if selected else np.nan
        part = speed * last / 92
        held = [part < 0.7] if selected else []
        text = f"time in products at n = 10240, φ = {phi:g}"
        measured = f"{part:.0%} from {last:.4g} products" if selected else ""
        yield share(text, "below DP's 70 %", held, measured, part)
    yield _counts.memory_claim(rows, "CR")
