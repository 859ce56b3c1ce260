"""TSM2, figures 4 and 8: four versions and one for Hopper, a large square matrix times a narrow one, over cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend, plain_ticks
from ..speed._shapes import LOOKS, RULES, TALL, cells_of, compared, errors, evaluate, mean, reaches, span, told
from ._speed import PAPER as _PAPER
from ._speed import every, gains, line, threads

__all__ = ["evaluate"]

PAPER = f"{_PAPER}, sections 4.2 and 4.4, figures 4 and 8"
EXPLAINS = ("tsm2/fig4",)
TITLE = "four versions of TSM2 over cuBLAS"
KIND = "G"
WHO = (*shapes.VERSIONS, "hopper")
CAPTION = f"""m×m times m×n, stored by columns: how many times as fast as cuBLAS are V0 (inner products), V1 (outer
products), V2 (B in shared memory), V3 (prefetches) and a kernel for Hopper, over m. Above fp32, below fp64; n = 2, 4, 8
and 16. Figure 4 is a K40c's, figure 8 a V100's, where V3 is the version shown. {told("tsm2/fig4")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    """The sizes are those of section 4.1, 10240 to 30720. The first three versions are measured at the least, the
    middle and the largest.""",
    """Ratios of one version to the one before are over all sizes, formats and n at which both were measured.""",
]
STEPS = {("V1", "V0"): (2.2, 4.7), ("V2", "V1"): (1.1, 2.1), ("V3", "V2"): (1.3, 3.5)}
"""Published ratios of one version to the one before, K40c."""


cells = cells_of("tsm2/fig4")


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(len(shapes.COLUMNS), 2, height=4.6)
    for some, fmt in zip(axes, shapes.FORMATS, strict=True):
        for axis, n in zip(some, shapes.COLUMNS, strict=True):
            for name in WHO:
                result = gains(rows, name, fmt=fmt, N=n)
                if result:
                    axis.plot([m / 1024 for m in result], list(result.values()), **LOOKS[name].line())
            axis.axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8)
    plain_ticks(axes[0, 0])
    for axis in axes[-1]:
        axis.set_xlabel("$m$ / 1024")
        axis.set_xticks([m // 1024 for m in shapes.SQUARE])
        axis.set_xlim(shapes.SQUARE[0] / 1024 - 1, shapes.SQUARE[-1] / 1024 + 1)
    for axis in axes[:, 0]:
        axis.set_ylabel("times as fast as cuBLAS")
    plotting.panel_titles(axes, [f"{fmt}, $n$ = {n}" for fmt in shapes.FORMATS for n in shapes.COLUMNS])
    legend(figure, axes, 5)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for (new, old), (low, high) in STEPS.items():
        yield reaches(f"{new} over {old} (figure 4, K40c)", low, high, every(rows, new, old))
    yield reaches("V3 over cuBLAS (abstract)", 1.1, 3, every(rows, "V3", shapes.BASE))
    for fmt, published in zip(shapes.FORMATS, (1.35, 3.2), strict=True):
        values = every(rows, "V3", shapes.BASE, (fmt,))
        yield share(
            f"{fmt}: V3 over cuBLAS, the largest (figure 8, V100)",
            f"up to {published:g}×",
            [max(values) >= published] if values else [],
            f"{max(values, default=0):.3g}×",
        )
    slow = gains(rows, "V3", fmt="fp32", N=16)
    yield compared("fp32, n = 16: V3 is slower than cuBLAS (figure 8, V100)", "slower", slow.values(), "<", 1)
    for fmt, text in zip(shapes.FORMATS, ("faster than", "no slower than"), strict=True):
        values = every(rows, "hopper", shapes.BASE, (fmt,))
        held = [x > 1 if fmt == "fp32" else x >= 1 for x in values]
        yield share(f"{fmt}: the kernel for Hopper is {text} cuBLAS", "", held, span(values))
    over = every(rows, "hopper", "V3")
    yield compared("the kernel for Hopper is faster than V3", "", over, ">", 1)
    for fmt in shapes.FORMATS:
        values = _errors(rows, fmt)
        yield compared(f"{fmt}: V3 is no less accurate than cuBLAS", "", values, "<=", 1)


def _errors(rows: list[dict[str, Any]], fmt: str) -> list[float]:
    """V3's errors over cuBLAS', all sizes."""
    return [x for n in shapes.COLUMNS for x in errors(rows, "V3", shapes.BASE, data=f"{fmt} columns", N=n).values()]


def finding(rows: list[dict[str, Any]]) -> str:
    steps = {
        f"{new} over {old} (K40c: {low:g} to {high:g}):": span(every(rows, new, old))
        for (new, old), (low, high) in STEPS.items()
    }
    if not any(steps.values()):
        return ""
    statements: list[tuple[Any, ...]] = [("speed", steps), *threads(shapes.LARGE)]
    for fmt in shapes.FORMATS:
        base = [row["share"] for n in shapes.COLUMNS for row in line(rows, shapes.BASE, fmt, N=n) if "share" in row]
        fast = every(rows, "hopper", shapes.BASE, (fmt,))
        statements += [
            (f"{fmt}: V3 over cuBLAS", span(every(rows, "V3", shapes.BASE, (fmt,)))),
            ("cuBLAS' share of a copy's bandwidth", base, ".3g%"),
            ("the kernel for Hopper over cuBLAS, mean", mean(fast) if fast else None, ".3g×"),
            ("error of one chain over all of k over that of cuBLAS, which adds shorter sums", span(_errors(rows, fmt))),
        ]
    return paragraph(*statements)
