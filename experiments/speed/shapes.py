"""Speed in LE-GEMM's three shapes on one GPU, with the split and without it, against SGEMM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ._look import legend, look, over_n, plain_ticks
from ._record import RULES, at, evaluate, products, told

__all__ = ["evaluate"]

PAPER = "Speed on one GPU, measured here: yardsticks and goals of our own"
TITLE = "speed over n in three shapes"
KIND = "G"
EXPLAINS = ("speed/shapes",)
SHAPES = ("n×n×n", "n×4n×n", "n×n×4n")
WHO = ("staged", groups.FRONTIER[0])
CAPTION = f"""TFLOP/s over n for products M×N×K of three shapes, operands uniform in [-1, 1], first launches: words made
before (solid), and made by every call (dotted). {told("speed/shapes", *WHO)}"""
ASSUMPTIONS = RULES
GOAL = 512
"""From this n on no scheme is to be slower than SGEMM."""


def _shape(row: dict[str, Any]) -> str | None:
    return next(
        (name for name, sides in groups.shapes(row["M"]).items() if sides == (row["M"], row["N"], row["K"])), None
    )


def cells(size: str) -> list[dict[str, Any]]:
    return products((*WHO, "sgemm", "fp16"), lambda row: row["fmt"] == "fp32" and _shape(row))


def _line(rows: list[dict[str, Any]], who: str, shape: str) -> list[dict[str, Any]]:
    selected = [row for row in rows if row["contender"] == who and _shape(row) == shape and "first" in row]
    return sorted(selected, key=lambda row: int(row["M"]))


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=3.2)
    for axis, shape in zip(axes[0], SHAPES, strict=True):
        over_n(axis, {name: _line(rows, name, shape) for name in ("sgemm", *WHO)}, "first")
        for name in WHO:
            whole = [row for row in _line(rows, name, shape) if "split_first" in row]
            style = look(name).line(linestyle=":", label=f"{look(name).label}, with the split", markerfacecolor="white")
            axis.plot([row["M"] for row in whole], [row["split_first"] for row in whole], **style)
        third = [(row["M"], row["first"] / 3) for row in _line(rows, "fp16", shape)]
        if third:
            axis.plot(*zip(*third, strict=True), **look("fp16").line(label="fp16 (cuBLAS) / 3"))
        axis.set_xlabel("$n$")
    plain_ticks(axes[0, 0])
    axes[0, 0].set_ylabel("TFLOP/s")
    plotting.panel_titles(axes, [f"{shape} ($M$×$N$×$K$)".replace("n", "$n$") for shape in SHAPES])
    legend(figure, axes, 3)
    return figure


def _over(rows: list[dict[str, Any]], who: str, shape: str, what: str) -> dict[int, float]:
    """A speed over SGEMM's first launches, by n."""
    result = {}
    for row in _line(rows, who, shape):
        base = at(rows, "sgemm", row["M"], row["N"], row["K"])
        if base is not None and "first" in base and what in row:
            result[int(row["M"])] = row[what] / base["first"]
    return result


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for name in WHO:
        for shape in SHAPES:
            for what, published in (("first", "words made before"), ("split_first", "words made by every call")):
                over = {n: x for n, x in _over(rows, name, shape, what).items() if n >= GOAL}
                claim = f"{look(name).label}, {shape}, {published}: never slower than SGEMM from n = {GOAL} on"
                yield share(claim, "", [x >= 1 for x in over.values()], _span(list(over.values())))


def _span(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}×" if values else ""


def finding(rows: list[dict[str, Any]]) -> str:
    loss, slower = {}, []
    for name in WHO:
        for shape in SHAPES:
            selected = [row for row in _line(rows, name, shape) if "split_first" in row]
            if selected:
                last = selected[-1]
                loss[f"{look(name).label}, {shape}, n = {last['M']}:"] = 1 - last["split_first"] / last["first"]
            slower += [
                f"{look(name).label}, {shape}, n = {n} ({x:.3g}×)"
                for n, x in _over(rows, name, shape, "split_first").items()
                if x < 1
            ]
    return paragraph(("cost of the split", loss, ".2g%"), ("slower than SGEMM with the split", "; ".join(slower)))
