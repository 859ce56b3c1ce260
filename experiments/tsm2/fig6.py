"""TSM2, figures 6 and 7: n = 16 in fp64, the speed-up, the use of the cores and of the bandwidth."""

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.errors import InputError
from fpemu.reproduce import Measure, Page
from fpemu.roofline import gpus

from .._rows import Row
from ..speed._shapes import RULES, TALL, cells_of, evaluate, one_gpu, provenance
from ._speed import GAIN, OTHER_GPU, SHARE, curves, difference, findings, one_run, over_m, points, ranges
from ._speed import PAPER as _PAPER

PAPER = f"{_PAPER}, section 4.4, figures 6 and 7"
CAPTION = f"""m×m times m×16 in fp64, by columns, over m: (a) speed-up over cuBLAS, (b) operations per second over the
peak of the ordinary cores, (c) share of the copy bandwidth. The kernel for Hopper is part of this project.
{provenance("tsm2/fig6")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    OTHER_GPU,
    """An M40 has a peak of 213 GFLOP/s in fp64 and is compute-bound at n = 16; a P100 and this GPU are memory-bound.
    The peak is the peak of the ordinary fp64 cores in fpemu's table of GPUs; cuBLAS may use the matrix unit's fp64
    instructions, whose peak is twice as high on an H200.""",
]
cells = cells_of("tsm2/fig6", lambda row: row["contender"] in shapes.MAIN)


def _percent_of_peak() -> float:
    """Factor from TFLOP/s in fp64 to percent of the peak of the ordinary cores; 0 for a GPU not in the table."""
    try:
        return 100e12 / gpus.get(one_gpu()).need("fp64")
    except InputError:
        return 0.0


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=5.2, share_y=False)
    columns = ("speedup", 1.0, GAIN), ("rate", _percent_of_peak(), "share of the fp64 peak, %"), ("share", 100.0, SHARE)
    for axis, (what, times, label) in zip(axes[:, 0], columns, strict=True):
        curves(axis, rows, shapes.MAIN, "fp64", what, times, unit=1024, N=16)
        axis.set(ylim=0, ylabel=label)
    over_m(axes[-1])
    plotting.panel_titles(axes, ["speed-up", "use of the cores", "use of the bandwidth"])
    axes[0, 0].axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8, label="as fast as cuBLAS")
    plotting.legend_below(figure, axes, 2, f"m×m times m×16, fp64, by columns\n{one_run()}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    yield from ranges("fp64_speedup", points(rows, "V3", "fp64", "speedup", N=16).values())
    ours, other = (points(rows, name, "fp64", "rate", _percent_of_peak(), N=16) for name in ("V3", shapes.BASE))
    yield from ranges("fp64_use", (x - other[m] for m, x in ours.items() if m in other), "computing power")
    yield from ranges("fp64_use", difference(rows, "V3", shapes.BASE, "fp64", N=16), "bandwidth")


def finding(rows: list[Row]) -> str:
    base = points(rows, shapes.BASE, "fp64", "share", N=16).values()
    return findings(
        rows,
        shapes.LARGE,
        ("cuBLAS reaches {} of the bandwidth of a copy in fp64", base, ".3g%"),
        ("a product as fast as a copy would have a speed-up of {}", [1 / x for x in base], ".3g×"),
    )


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="G")
