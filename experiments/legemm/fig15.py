"""LE-GEMM, figure 15: whole applications with the products of each scheme, speed and accuracy."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.gpu import applications
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._rows import Row, slanted_sizes
from ..speed._look import look, plain_ticks
from ..speed._record import RULES, evaluate, one_gpu, provenance
from ..speed._record import cells as _cells

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.5, figure 15"
CAPTION = f"""Speed-up of the whole application over the application with cuBLAS SGEMM (left), and its error (right):
relative L2 error of the result against the application in fp64; for k-means the share of the points that end in another
cluster than in fp64 (none: drawn at 10^-6). k-means: {applications.CLUSTERS} clusters,
{applications.FEATURES} features, over the number of points; BERT: feed-forward layers of base and large, over tokens
(32 sequences of 128 to 512); linear: Q, K and V of 2048 tokens, over the width. {provenance("legemm/fig15")}"""
ASSUMPTIONS = [
    *RULES[:1],
    """The paper does not print the shapes. They are the shapes of figure 16's page, with 32 sequences in a batch for
    BERT, and with BERT large (1024 and 4096) in addition.""",
    """The time includes the whole application: distances, assignment and new centres of k-means; biases and GELU of
    BERT; three products of the linear layers. Weights and the points of k-means are split beforehand; every call splits
    the activations, and every iteration splits the centres. PyTorch computes everything except the products in fp32,
    and the sums of the centres in fp64.""",
    """The centres of k-means are uniform in [29, 31], and the points are normal with standard deviation 3.0 about the
    centres, so that the features are not centred. The first points are the initial centres; the iteration ends when no
    point changes its cluster, or after 60 iterations. The time is the time of an iteration on the GPU, without the test
    for convergence.""",
    """BERT has standard normal inputs, as after a layer norm, and normal weights with standard deviation 0.02. The
    linear layers have data in [0.5, 2.5], the printed range.""",
]
PANELS = {"k-means": ("k-means",), "BERT": ("BERT-base", "BERT-large"), "linear": ("linear",)}
IMPLEMENTATIONS = applications.NAMES
_NONE = 1e-6
"""Where the foot of the accuracy of k-means is."""


def cells() -> list[Row]:
    return _cells(lambda row: row["kind"] == applications.KIND)


def _over(rows: list[Row], panel: str, implementation: str) -> list[Row]:
    """The rows of an implementation in a panel with "speed-up", by size."""
    result = []
    for row in rows:
        if row["data"] in PANELS[panel] and row["contender"] == implementation:
            base = next(
                (o for o in rows if o["contender"] == "sgemm" and all(o[x] == row[x] for x in ("data", "M", "N", "K"))),
                None,
            )
            if base is not None:
                result.append({**row, "speed-up": base["first_s"] / row["first_s"], "side": _side(row)})
    return sorted(result, key=lambda row: (row["data"], row["side"]))


def _side(row: Row) -> int:
    return int(row["N"] if row["data"] == "linear" else row["M"])


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 3, height=7.0, share_x=False, share_y=False)
    for (speed, accuracy), panel in zip(axes, PANELS, strict=True):
        sides: set[int] = set()
        for name in IMPLEMENTATIONS:
            for data in PANELS[panel]:
                selected = [row for row in _over(rows, panel, name) if row["data"] == data]
                sides |= {row["side"] for row in selected}
                style = _look(name).line(linestyle="--" if data == "BERT-large" else "-")
                x = [row["side"] for row in selected]
                speed.plot(x, [row["speed-up"] for row in selected], **style)
                accuracy.plot(x, [_accuracy(row) for row in selected], **style)
        if not sides:  # nothing of it was measured
            continue
        accuracy.set_yscale("log")
        if panel == "k-means":
            plain_ticks(accuracy)
        speed.set_ylim(0)
        for axis in (speed, accuracy):
            slanted_sizes(axis, sorted(n for n in sides if n & (n - 1) == 0))
            axis.set_xlabel({"k-means": "points", "BERT": "tokens", "linear": "width"}[panel])
        speed.set_ylabel("speed-up over SGEMM")
        accuracy.set_ylabel("share elsewhere" if panel == "k-means" else "relative $L_2$ error")
    axes[1, 0].plot([], [], color=plotting.GREY, linestyle="--", label="dashed: BERT large")
    titles = {"k-means": "k-means", "BERT": "BERT", "linear": "linear layers"}
    plotting.panel_titles(axes, [f"{titles[panel]}, {what}" for panel in PANELS for what in ("speed", "error")])
    plotting.legend_below(figure, axes, 2, f"whole applications on one {one_gpu()}")
    return figure


def _look(implementation: str) -> Series:
    """The appearance of an implementation, with a distinct marker."""
    same = look(implementation)
    return replace(same, marker="v") if implementation.startswith("staged-int8") else same


def _accuracy(row: Row) -> float:
    return max(1 - float(row["equal"]), _NONE) if "equal" in row else float(row["relative_l2"])


def measures(rows: list[Row]) -> Iterator[Measure]:
    for panel in PANELS:
        if ours := [row["speed-up"] for row in _over(rows, panel, "legemm")]:
            yield Measure("application_speedups", float(np.mean(ours)), "", panel)


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, kind="G")
