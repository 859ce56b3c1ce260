"""LE-GEMM, figures 8 and 9 and Table 6: speed over n in three shapes, against library, plain fp16 and two schemes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._rows import Row
from ..speed import _record
from ..speed._look import legend, over_n, plain_ticks
from ..speed._record import RULES, at, products, provenance, shape_name

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
    figure, axes = plotting.figure(3, 1, height=3.1)
    for axis, shape in zip(axes[0], SHAPES, strict=True):
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
        axis.set_xlabel("$n$")
    plain_ticks(axes[0, 0])
    axes[0, 0].set_ylabel("TFLOP/s")
    plotting.panel_titles(axes, [f"{shape} ($M$×$N$×$K$)".replace("n", "$n$") for shape in SHAPES])
    legend(figure, axes, 4)
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


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, kind="G")
