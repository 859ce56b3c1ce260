"""TSM2, figures 6 and 7: n = 16 in fp64, the speed-up, the use of the cores and of the bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.errors import InputError
from fpemu.reproduce.claims import Claim, share
from fpemu.roofline import gpus

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, compared, evaluate, mean, one_gpu, reaches, span, told
from ._speed import PAPER as _PAPER
from ._speed import gains, line, percent, points, threads

__all__ = ["evaluate"]

PAPER = f"{_PAPER}, section 4.4, figures 6 and 7"
EXPLAINS = ("tsm2/fig6",)
TITLE = "n = 16 in fp64: speed-up, use of the cores and of the bandwidth"
KIND = "G"
CAPTION = f"""m×m times m×16, by columns, over m: (a) how many times as fast as cuBLAS, fp64 and, open, fp32; (b) fp64
operations a second over the peak of the ordinary cores; (c) bandwidth over that of a copy, fp64. {told("tsm2/fig6")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    """An M40 does 213 GFLOP/s in fp64 and is bound by them at n = 16; a P100 and this GPU are bound by memory. The peak
    is that of the ordinary fp64 cores in fpemu's table of GPUs; cuBLAS may use the matrix unit's fp64 instructions,
    whose peak is twice that on an H200.""",
]
WHO = ("V3", "hopper")


cells = cells_of("tsm2/fig6", lambda row: row["contender"] in shapes.MAIN)


def _peak() -> float | None:
    """fp64 operations a second of the current GPU in the table, None if it is not there."""
    try:
        return float(gpus.get(one_gpu()).need("fp64"))
    except InputError:
        return None


def _use(rows: list[dict[str, Any]], who: str) -> dict[int, float]:
    """Percent of the peak, by m."""
    peak = _peak()
    return {} if peak is None else {row["M"]: 100e12 * row["rate"] / peak for row in line(rows, who, "fp64")}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=3.0, share_y=False)
    first, second, third = axes[0]
    for implementation in WHO:
        for fmt in reversed(shapes.FORMATS):
            result = gains(rows, implementation, fmt=fmt)
            look = LOOKS[implementation]
            if fmt == "fp32":
                look = plotting.Series(f"{look.label}, fp32", look.color, look.marker, ":", filled=False)
            if result:
                first.plot([m / 1024 for m in result], list(result.values()), **look.line())
    first.axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8)
    for implementation in (shapes.BASE, *WHO):
        use = _use(rows, implementation)
        if use:
            second.plot([m / 1024 for m in use], list(use.values()), **LOOKS[implementation].line())
        moved = {row["M"]: 100 * row["share"] for row in line(rows, implementation, "fp64") if "share" in row}
        if moved:
            third.plot([m / 1024 for m in moved], list(moved.values()), **LOOKS[implementation].line())
    names = ("times as fast as cuBLAS", "share of the fp64 peak, %", "share of a copy, %")
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_ylim(0)
        axis.set_ylabel(name)
        axis.set_xlabel("$m$ / 1024")
        axis.set_xticks([m // 1024 for m in shapes.SQUARE])
        axis.set_xlim(shapes.SQUARE[0] / 1024 - 1, shapes.SQUARE[-1] / 1024 + 1)
    plotting.panel_titles(axes, ["speed-up", "use of the cores", "use of the bandwidth"])
    legend(figure, axes, 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    over = gains(rows, "V3", fmt="fp64").values()
    for name, low, high, average in (("M40 (figure 6)", 1.1, 1.9, 1.47), ("P100 (figure 7)", 1.1, 3.0, 2.15)):
        yield reaches(f"V3 over cuBLAS, {name}", low, high, over)
        text = f"V3 over cuBLAS in the mean, {name}: as large or larger"
        yield share(text, f"{average:g}×", [mean(over) >= average] if over else [], f"{mean(over):.3g}×")
    ours, other = (_use(rows, implementation) for implementation in ("V3", shapes.BASE))
    more = [ours[m] - other[m] for m in ours if m in other]
    yield share(
        "V3 uses more of the cores than cuBLAS (figure 6b)", "7 to 37.3 points", [x >= 7 for x in more], percent(more)
    )
    wide = points(rows, "V3", shapes.BASE, "fp64").values()
    yield share(
        "V3 uses more of the bandwidth than cuBLAS (figure 7b)",
        "17 to 47.6 points",
        [x >= 17 for x in wide],
        percent(wide),
    )
    best = gains(rows, "hopper", fmt="fp64").values()
    yield compared("the kernel for Hopper is no slower than cuBLAS, fp64", "", best, ">=", 1)


def finding(rows: list[dict[str, Any]]) -> str:
    base = [row["share"] for row in line(rows, shapes.BASE, "fp64") if "share" in row]
    if not base:
        return ""
    return paragraph(
        ("cuBLAS' share of a copy's bandwidth in fp64", base, ".3g%"),
        ("of the cores' peak", [x / 100 for x in _use(rows, shapes.BASE).values()], ".3g%"),
        ("a product as fast as a copy over cuBLAS", [1 / x for x in base], ".3g×"),
        *threads(shapes.LARGE),
        ("over cuBLAS", {LOOKS[name].label: span(gains(rows, name, fmt="fp64").values()) for name in WHO}),
    )
