"""ISM2, figure 12: rows of a thread (tcf), both optimisations, ten million rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import shapes
from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend
from ..speed._shapes import RULES, TALL, cells_of, compared, evaluate, over_powers, told
from ._speed import PAPER as _PAPER
from ._speed import line

__all__ = ["evaluate"]

PAPER = f"{_PAPER}, section 5.2, figure 12"
EXPLAINS = ("tsm2/fig12",)
TITLE = "rows of a thread in ISM2"
KIND = "G"
CAPTION = f"""10^7×16 times 16×16, stored by columns, over tcf: m / tcf threads, each with tcf rows. (a) How many times
as fast as cuBLAS, (b) share of a copy's bandwidth. {told("tsm2/fig12")}"""
ASSUMPTIONS = [
    *RULES,
    TALL,
    """The paper prints n = 16 and m = 10^7; k = 16 is assumed, as in its figure 13.""",
    """"No significant decline until the threads are 1/64 of m" is judged by the speed at tcf up to 32 over the best
    with as many rows a thread or fewer: 0.8 of it or more.""",
]
KEPT = 0.8
PUBLISHED = {"fp32": 8, "fp64": 4}
"""Chosen by the paper for 10^7 rows."""
_LOOK = {
    (1, "fp32"): Series("optimisation 1, fp32", plotting.ORANGE, "P"),
    (2, "fp32"): Series("optimisation 2, fp32", plotting.PURPLE, "X"),
    (1, "fp64"): Series("optimisation 1, fp64", plotting.ORANGE, "P", ":", filled=False),
    (2, "fp64"): Series("optimisation 2, fp64", plotting.PURPLE, "X", ":", filled=False),
}


cells = cells_of("tsm2/fig12")


def _by_factor(rows: list[dict[str, Any]], form: int, fmt: str, what: str) -> dict[int, float]:
    return {
        factor: row[what] for factor in shapes.TCF for row in line(rows, shapes.tcf(form, factor), fmt) if what in row
    }


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 1, height=2.9, share_y=False)
    for axis, what, times in zip(axes[0], ("speedup", "share"), (1, 100), strict=True):
        for (form, fmt), look in _LOOK.items():
            result = _by_factor(rows, form, fmt, what)
            if result:
                axis.plot(list(result), [times * x for x in result.values()], **look.line())
        axis.set_ylim(0)
    axes[0, 0].axhline(1, color=plotting.BLACK, linestyle="--", linewidth=0.8)
    axes[0, 0].set_ylabel("times as fast as cuBLAS")
    axes[0, 1].set_ylabel("share of a copy, %")
    over_powers(axes, shapes.TCF[::2], "tcf")
    plotting.panel_titles(axes, ["speed-up", "bandwidth"])
    legend(figure, axes, 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for form, fmt in _LOOK:
        took = _by_factor(rows, form, fmt, "seconds")
        best = min(took.values(), default=float("nan"))
        name = f"optimisation {form}, {fmt}"
        early = {
            factor: min(took[few] for few in took if few <= factor) / seconds
            for factor, seconds in took.items()
            if factor < 64
        }
        yield compared(
            f"{name}: no decline before the threads are 1/64 of the rows", "at least 1/64", early.values(), ">=", KEPT
        )
        chosen = PUBLISHED[fmt]
        held = [best / took[chosen] >= 0.95] if chosen in took else []
        most = min(took, key=took.__getitem__, default=0)
        text = f"{name}: the published tcf is within 5 % of the best"
        yield share(text, f"tcf = {chosen}", held, f"the best is {most}")


def finding(rows: list[dict[str, Any]]) -> str:
    best = {}
    for form, fmt in _LOOK:
        took = _by_factor(rows, form, fmt, "seconds")
        if 1 in took:
            fastest = min(took, key=took.__getitem__)
            best[f"optimisation {form}, {fmt}:"] = f"tcf = {fastest}, {took[1] / took[fastest]:.3g}×"
    return paragraph(("fastest, over one row a thread", best))
