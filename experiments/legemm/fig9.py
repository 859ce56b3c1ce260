"""LE-GEMM, figures 8 and 9 and Table 6: speed over n in three shapes, against library, plain fp16 and two schemes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._rows import Row, slanted_sizes
from ..speed import _record
from ..speed._look import over_n, plain_ticks
from ..speed._record import RULES, at, one_gpu, products, provenance, shape_name

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.2, figures 8 and 9, Table 6"
IMPLEMENTATIONS = ("sgemm", "fp16", "fp16 mma", "markidis mma", "ootomo mma", "legemm mma", "staged")
SHAPES = ("n×n×n", "n×4n×n", "n×n×4n")
CAPTION = f"""TFLOP/s (first launches, with the split) over n for products M×N×K of three shapes, operands uniform in
[-1, 1]. LE-GEMM, Markidis, Ootomo and plain fp16 run on one kernel of this package (mma.sync); beside them cuBLAS and
the staged scheme on wgmma. {provenance("legemm/fig9", *IMPLEMENTATIONS)}"""
ASSUMPTIONS = [
    *RULES,
    """The paper does not print the sizes; its text mentions 2048, 4096 and 7168.""",
    """The paper's authors implemented the baselines WMMA, Markidis and Ootomo. Here the baselines run on the kernel of
    LE-GEMM with other words and products; WMMA is this kernel with one product. The figure also shows the library's
    fp16 product.""",
    """All operands are in fp32, and the times include their split or conversion. Small products are split inside the
    kernel on mma.sync, large products in a separate kernel.""",
]
BASELINES = {
    "sgemm": ("speedup_over_the_library", ""),
    "fp16 mma": ("speedup_over_wmma", ""),
    "markidis mma": ("speedup_over_other_schemes", "Markidis, "),
    "ootomo mma": ("speedup_over_other_schemes", "Ootomo, "),
}
"""The claim and the variant of each baseline of Table 6."""


def cells() -> list[Row]:
    return products(IMPLEMENTATIONS, lambda row: 512 <= row["M"] <= 8192 and shape_name(row))


def evaluate(cell: Row) -> dict[str, float]:
    """Return the figures of speed, and the run that measured them, since ratios are of speeds in one run."""
    return _record.evaluate(cell) | {"run": float(_record.run_of(cell))}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=6.6)
    for axis, shape in zip(axes[:, 0], SHAPES, strict=True):
        lines = {
            name: sorted(
                (
                    {**r, "whole": whole}
                    for r in rows
                    if r["contender"] == name and shape_name(r) == shape and (whole := _whole(r))
                ),
                key=lambda r: r["M"],
            )
            for name in IMPLEMENTATIONS
        }
        over_n(axis, lines, "whole")
        plain_ticks(axis)
        axis.set_ylabel("TFLOP/s")
    slanted_sizes(axes[2, 0], sorted({row["M"] for row in rows}))
    axes[2, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, [f"{shape} ($M$×$N$×$K$)".replace("n", "$n$") for shape in SHAPES])
    plotting.legend_below(figure, axes, 2, f"{one_gpu()}, with the split; median of ten launches")
    return figure


def _whole(row: Row) -> float | None:
    """TFLOP/s with the split."""
    result: float | None = row.get("split_first", row.get("first"))
    return result


def _ratios(rows: list[Row], shape: str, other: str) -> dict[int, float]:
    """Speed of LE-GEMM divided by the speed of a baseline in the same run, by n."""
    ratios = {}
    for row in rows:
        if row["contender"] == "legemm mma" and shape_name(row) == shape:
            in_run = [result for result in rows if result["run"] == row["run"]]
            ours, second = (
                result and _whole(result) for result in (row, at(in_run, other, row["M"], row["N"], row["K"]))
            )
            if ours and second:
                ratios[int(row["M"])] = ours / second
    return dict(sorted(ratios.items()))


def measures(rows: list[Row]) -> Iterator[Measure]:
    for other, (claim, name) in BASELINES.items():
        for shape in SHAPES:
            if ratios := _ratios(rows, shape, other):
                yield Measure(claim, float(np.mean(list(ratios.values()))), "", f"{name}{shape}")
    for shape in SHAPES:
        to = {other: _ratios(rows, shape, other) for other in BASELINES}
        if not all(to.values()):
            continue
        yield Measure(
            "wmma_faster_at_small_n", 1 / max(to["fp16 mma"][n] for n in to["fp16 mma"] if n <= 4096), "", shape
        )
        for other, name in (("sgemm", "cuBLAS"), ("fp16 mma", "plain fp16")):
            yield Measure(
                "parity_at_small_n",
                float(np.mean([x for n, x in to[other].items() if n <= 2048])),
                "",
                f"{name}, {shape}",
            )
        both = to["markidis mma"].keys() & to["ootomo mma"].keys()
        yield Measure(
            "markidis_like_ootomo",
            float(np.mean([to["ootomo mma"][n] / to["markidis mma"][n] for n in sorted(both)])),
            "",
            shape,
        )
        speeds = {row["M"]: _whole(row) for row in rows if row["contender"] == "fp16 mma" and shape_name(row) == shape}
        before, after = (speeds.get(n) for n in (7168, 8192))
        if before and after:
            yield Measure("wmma_slows_down", after / before, "", shape)


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, kind="G")
