"""TSM2, figures 4 and 8: four versions and one for Hopper, a large square matrix times a narrow one, over cuBLAS."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce import Measure, Page

from .._rows import Row
from ..speed._look import plain_ticks
from ..speed._shapes import RULES, TALL, cells_of, evaluate, provenance
from ._speed import GAIN, OTHER_GPU, PANELS, findings, grid, one_run, points, quotient, ranges
from ._speed import PAPER as _PAPER

PAPER = f"{_PAPER}, sections 4.2 and 4.4, figures 4 and 8"
CAPTION = f"""m×m times m×n, stored by columns: speed-up over cuBLAS of V0 (inner products), V1 (outer products), V2 (B
in shared memory), V3 (prefetches) and a kernel of this project for Hopper, over m. n = 2, 4, 8 and 16. The paper's
figure 4 is from a K40c, its figure 8 from a V100. {provenance("tsm2/fig4")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    OTHER_GPU,
    """The sizes are 10240 to 30720 as in section 4.1. The first three versions are measured at the smallest, the middle
    and the largest size.""",
]
cells = cells_of("tsm2/fig4")


def draw(rows: list[Row]) -> Any:
    figure, axes = grid(rows, (*shapes.VERSIONS, "hopper"), "speedup", 1, GAIN)
    for axis in axes.ravel():
        axis.axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8, label="as fast as cuBLAS")
    plain_ticks(axes[0, 0])
    plotting.legend_below(figure, axes, 3, f"m×m times m×n, by columns\n{one_run()}")
    return figure


def _gains(rows: list[Row], name: str, fmt: str, *widths: int) -> list[float]:
    return [x for n in widths or shapes.COLUMNS for x in points(rows, name, fmt, "speedup", N=n).values()]


def measures(rows: list[Row]) -> Iterator[Measure]:
    for old, new in zip(shapes.VERSIONS[:-1], shapes.VERSIONS[1:], strict=True):
        steps = [quotient(*(points(rows, v, fmt, "speedup", N=n) for v in (new, old))) for fmt, n in PANELS]
        yield from ranges("versions", [x for step in steps for x in step.values()], f"{new} over {old}")
    for fmt in shapes.FORMATS:
        yield from ranges("tsm2_speedup", _gains(rows, "V3", fmt), fmt)
        for n in shapes.COLUMNS:
            if gains := _gains(rows, "hopper", fmt, n):
                yield Measure("hopper_speedup", min(gains), variant=f"{fmt} at n = {n}")
    yield from ranges("v100_speedup", _gains(rows, "V3", "fp32", *shapes.COLUMNS[:-1]), "fp32, n = 2, 4, 8")
    yield from ranges("v100_speedup", _gains(rows, "V3", "fp32", shapes.COLUMNS[-1]), "fp32, n = 16")
    yield from ranges("v100_speedup", _gains(rows, "V3", "fp64"), "fp64")


def finding(rows: list[Row]) -> str:
    errors = {
        fmt: [
            x
            for n in shapes.COLUMNS
            for x in quotient(*(points(rows, one, fmt, "relative_l2", N=n) for one in ("V3", shapes.BASE))).values()
        ]
        for fmt in shapes.FORMATS
    }
    gains = {fmt: _gains(rows, "hopper", fmt) for fmt in shapes.FORMATS}
    text = "relative to cuBLAS, which adds shorter sums, TSM2's one chain over all of k has the errors"
    return findings(
        rows,
        shapes.LARGE,
        ("the speed-ups of the kernel for Hopper over cuBLAS are", gains, ".3g×"),
        (text, errors, ".3g×"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
