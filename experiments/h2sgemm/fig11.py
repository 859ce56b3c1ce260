"""H2SGEMM, figure 11: speed over m = n, over k, and over all three sides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend, look, over_n
from ..speed._record import RULES, evaluate, products, told

__all__ = ["evaluate"]

PAPER = "H2SGEMM: Emulating FP32 GEMM on Ascend NPUs using FP16 Units, section 4.2, figure 11"
TITLE = "speed of H2SGEMM over the sides of a product"
KIND = "G"
EXPLAINS = ("h2sgemm/fig11",)
FIXED = 2816
WHO = ("sgemm", "h2sgemm term-wise", "h2sgemm element-wise", "staged")
PANELS = {"a": "m = n, k = 2816", "b": "k, m = n = 2816", "c": "m = n = k"}
CAPTION = f"""TFLOP/s, first launches, (a) over m = n with k = {FIXED} = 64 · 44, (b) over k with m = n = {FIXED}, (c)
over all three; dotted: a third of the library's fp16 product. H2SGEMM runs on mma.sync, large products with words that
were split in memory before; staged, three products on wgmma, is shown beside it. {told("h2sgemm/fig11", *WHO)}"""
ASSUMPTIONS = [
    *RULES,
    """The sides are not printed: k = 64 · 44 in (a) is that of figure 9, and (b) takes the same for m and n.""",
    """The paper compares with SGEMM on another chip, an Ascend 910B3 with fp32 units: here it is the same chip's.""",
    """"Steady": within 15 % of the mean from 1024 on. "Drops": slower at the largest size than at some smaller one by
    more than 5 %.""",
]


def _panels(row: dict[str, Any]) -> list[str]:
    M, N, K = row["M"], row["N"], row["K"]
    return [name for name, here in (("a", M == N and K == FIXED), ("b", M == N == FIXED), ("c", M == N == K)) if here]


def cells(size: str) -> list[dict[str, Any]]:
    return products((*WHO, "fp16"), lambda row: row["M"] <= 8192 and _panels(row))


def _line(rows: list[dict[str, Any]], panel: str, who: str) -> list[dict[str, Any]]:
    selected = [row for row in rows if row["contender"] == who and panel in _panels(row) and "first" in row]
    return sorted(selected, key=lambda row: int(row["K" if panel == "b" else "M"]))


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 1, height=2.9)
    for axis, panel in zip(axes[0], PANELS, strict=True):
        side = "K" if panel == "b" else "M"
        over_n(axis, {name: _line(rows, panel, name) for name in WHO}, "first", side)
        third = [(row[side], row["first"] / 3) for row in _line(rows, panel, "fp16")]
        if third:
            axis.plot(*zip(*third, strict=True), **look("fp16").line(label="fp16 (cuBLAS) / 3"))
        axis.set_xlabel({"a": "$m = n$", "b": "$k$", "c": "$m = n = k$"}[panel])
    axes[0, 0].set_ylim(0)  # all panels share it
    axes[0, 0].set_ylabel("TFLOP/s")
    plotting.panel_titles(axes, list(PANELS.values()))
    legend(figure, axes, 5)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    ours = {panel: [row["first"] for row in _line(rows, panel, "h2sgemm term-wise")] for panel in PANELS}
    yield share(
        "(a) speed grows with m and n",
        "steadily improves",
        [y >= 0.97 * x for x, y in itertools.pairwise(ours["a"])],
        _ends(ours["a"]),
    )
    long = [row["first"] for row in _line(rows, "b", "h2sgemm term-wise") if row["K"] >= 1024]
    mean = sum(long) / len(long) if long else 0.0
    yield share("(b) speed is steady over k", "steady", [abs(x / mean - 1) <= 0.15 for x in long], _ends(long))
    last = [row["first"] for row in _line(rows, "c", "sgemm")]
    drop = [last[-1] < 0.95 * max(last)] if len(last) > 1 else []
    yield share("(c) the library's SGEMM drops as all sides grow", "drop-off", drop, _ends(last))
    stable = [ours["c"][-1] >= 0.95 * max(ours["c"])] if ours["c"] else []
    yield share("(c) H2SGEMM remains stable", "stable", stable, _ends(ours["c"]))
    over = [row["first / sgemm"] for row in _line(rows, "c", "h2sgemm term-wise") if "first / sgemm" in row]
    yield share(
        "(c) H2SGEMM surpasses SGEMM at last", "eventually surpasses", [x > 1 for x in over[-1:]], _ends(over, "×")
    )
    pairs = [
        (a["first"], b["first"])
        for panel in PANELS
        for a, b in zip(
            _line(rows, panel, "h2sgemm term-wise"), _line(rows, panel, "h2sgemm element-wise"), strict=False
        )
    ]
    yield share(
        "term-wise sums cost no more than a tenth of the speed of element-wise ones",
        "",
        [a >= 0.9 * b for a, b in pairs],
        _ends([a / b for a, b in pairs], "×"),
    )


def _ends(values: list[float], unit: str = " TFLOP/s") -> str:
    return f"{min(values):.3g} to {max(values):.3g}{unit}" if values else ""


def finding(rows: list[dict[str, Any]]) -> str:
    last = {look(name).label: row for name in WHO[1:] for row in _line(rows, "c", name)[-1:]}
    shares = {f"{name}, n = {row['M']}:": row.get("first / three products") for name, row in last.items()}
    ends = _line(rows, "a", "h2sgemm term-wise")[:: max(len(_line(rows, "a", "h2sgemm term-wise")) - 1, 1)]
    return paragraph(
        ("share of three products of the library (published: 77 %)", shares, ".3g%"),
        (
            "term-wise H2SGEMM over SGEMM, k = 2816, smallest and largest m = n",
            {f"{row['M']}:": row.get("first / sgemm") for row in ends},
            ".3g×",
        ),
    )
