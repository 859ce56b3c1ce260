"""Error against speed on one GPU: from plain fp16 to DGEMM, every scheme that has a kernel here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import groups
from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ._look import legend, look
from ._record import RULES, at, evaluate, is_square, one_gpu, products, told

__all__ = ["evaluate"]

PAPER = "Speed on one GPU, measured here: yardsticks and goals of our own"
TITLE = "error against speed"
KIND = "G"
EXPLAINS = ("speed/frontier",)
N = groups.HEAD
DATA = {
    "symmetric": "uniform [-1, 1]",
    "positive": "uniform [0, 1]",
    "phi 0.5": "(u - 0.5) exp(0.5 g)",
    "normal": "normal",
}
UNIFORM = ("symmetric", "positive")
CAPTION = f"""Relative L2 error over speed, n = {N}, operands as the panels say (u uniform in [0, 1), g normal). Filled
or dark: the first ten launches after a pause; the line goes to the sustained speed. A scheme that was timed on one kind
of data alone stands at that speed in the other panels. Splits are not counted. {told("speed/frontier")}"""
ASSUMPTIONS = [
    *RULES,
    """Three products of the library with nothing added: its fp16 product by 3, the least that three products cost.""",
    """SGEMM's error is that of the kernel which cuBLAS takes for this shape; with other shapes it takes others, whose
    errors differ.""",
]
GOAL, SUSTAINED = 264.0, 1.08
"""First launches in TFLOP/s, and sustained speed over three products of the library, at SGEMM's accuracy."""
CHEAPER, LOOSE = 1.35, 1e-5
"""Sustained speed over three products of the library at SGEMM's accuracy on uniform data, the error elsewhere."""
LEAST = 2e-8
"""Where the figure ends; DGEMM lies far below."""
PUBLISHED = 72.6
"""TFLOP/s: the best published fp16 SGEMM with corrections on a Hopper (GH200, n = 16384)."""


def cells(size: str) -> list[dict[str, Any]]:
    return products(
        (*groups.LIBRARY, *groups.SPEEDS), lambda row: row["M"] == N and is_square(row) and row["fmt"] == "fp32", DATA
    )


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=7.0)
    for axis, data in zip(axes.ravel(), DATA, strict=True):
        for row in rows:
            if row["data"] != data or not row.get("relative_l2"):
                continue
            timed = row if "first" in row else at(rows, row["contender"], N, N, N)
            if timed is None or "first" not in timed:
                continue
            style = look(row["contender"])
            slow = timed.get("sustained", timed["first"])
            axis.plot([slow, timed["first"]], [row["relative_l2"]] * 2, color=style.color, linewidth=0.8)
            axis.plot([timed["first"]], [row["relative_l2"]], **style.line(linestyle="none"))
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks([50, 100, 200, 400, 800], ["50", "100", "200", "400", "800"])
        axis.tick_params(axis="x", which="minor", labelbottom=False)
    below = at(rows, "dgemm", N, N, N)
    if below is not None and "first" in below:
        axes[0, 0].annotate(
            f"DGEMM: {below['relative_l2']:.1g}",
            (below["first"], LEAST),
            xytext=(0, 10),
            fontsize=6.5,
            ha="left",
            textcoords="offset points",
            arrowprops={"arrowstyle": "->", "lw": 0.6},
        )
    axes[0, 0].set_ylim(LEAST, 2e-3)
    for axis in axes[:, 0]:
        axis.set_ylabel("relative L2 error")
    for axis in axes[1]:
        axis.set_xlabel("TFLOP/s (fp32 that it stands for)")
    plotting.panel_titles(axes, list(DATA.values()))
    legend(figure, axes, 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    errors = {(row["contender"], row["data"]): row["relative_l2"] for row in rows}
    staged = at(rows, "staged", N, N, N)
    if staged is not None and "first" in staged:
        speeds = [row for data in DATA if (row := at(rows, "staged", N, N, N, data)) is not None and "first" in row]
        better = [
            errors["staged", data] <= errors["sgemm", data]
            for data in DATA
            if ("sgemm", data) in errors and ("staged", data) in errors
        ]
        yield from [
            share("three products, staged: no less accurate than SGEMM", "", better, ""),
            share(
                f"staged: {GOAL:g} TFLOP/s or more in the first launches",
                "",
                [r["first"] >= GOAL for r in speeds],
                _span([r["first"] for r in speeds], " TFLOP/s"),
                staged["first"],
            ),
            share(
                f"staged: {SUSTAINED:g} times three products of the library or more, sustained",
                "",
                [r["sustained / three products"] >= SUSTAINED for r in speeds if "sustained / three products" in r],
                _span([r.get("sustained / three products") for r in speeds], "×"),
            ),
            share(
                f"staged: faster than the best published on a Hopper, {PUBLISHED:g} TFLOP/s",
                "",
                [staged["first"] > PUBLISHED],
                f"{staged['first'] / PUBLISHED:.3g}×",
            ),
        ]
    for name in groups.FRONTIER:
        selected = [row for data in DATA if (row := at(rows, name, N, N, N, data)) is not None]
        fast = [row["sustained / three products"] for row in selected if "sustained / three products" in row]
        if fast:
            yield share(
                f"{look(name).label}: {CHEAPER:g} times three products of the library or more, sustained",
                "",
                [x >= CHEAPER for x in fast],
                _span(fast, "×"),
            )
            bars = {data: errors.get(("sgemm", data), 0.0) if data in UNIFORM else LOOSE for data in DATA}
            good = [row["relative_l2"] <= bars[row["data"]] for row in selected]
            yield share(
                f"{look(name).label}: SGEMM's accuracy on uniform data, {LOOSE:g} on the rest",
                "",
                good,
                _span([row["relative_l2"] for row in selected], ""),
            )
    for name in groups.STRASSEN:
        pairs = [
            (errors[name, data], errors["sgemm", data])
            for data in DATA
            if {(name, data), ("sgemm", data)} <= set(errors)
        ]
        yield share(
            f"{look(name).label}: no less accurate than SGEMM",
            "",
            [a <= b for a, b in pairs],
            _span([a / b for a, b in pairs], "× its error"),
        )
        ours = at(rows, name, N, N, N)
        if ours is not None and staged is not None and {"sustained"} <= set(ours) & set(staged):
            gain = ours["sustained"] / staged["sustained"]
            yield share(f"{look(name).label}: faster than staged, sustained", "", [gain > 1], f"{gain:.3g}×", gain)
    bits = [row["mismatches"] == 0 for row in rows if "mismatches" in row]
    count = sum(int(row["checked"]) for row in rows if "checked" in row)
    yield share("kernels return the bits of the emulation", "", bits, f"{count} outputs compared")


def _span(values: list[Any], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    ends = dict.fromkeys(f"{value:.3g}" for value in (min(known), max(known)))
    return " to ".join(ends) + unit


def finding(rows: list[dict[str, Any]]) -> str:
    selected = [row for row in rows if row["data"] == "symmetric" and "first" in row and row.get("relative_l2")]
    best = [
        row
        for row in selected
        if not any(o["first"] > row["first"] and o["relative_l2"] < row["relative_l2"] for o in selected)
    ]
    best.sort(key=lambda row: -row["first"])
    frontier = [
        f"{look(row['contender']).label} ({row['first']:.3g} TFLOP/s, error {row['relative_l2']:.2g})" for row in best
    ]
    staged, plain = at(rows, "staged", N, N, N) or {}, at(rows, "fp16", N, N, N) or {}
    rates = {}
    if "sustained" in staged and "sustained" in plain:
        rates["first launches"] = {"staged": 3 * staged["first"], "library": plain["first"]}
        rates["sustained"] = {"staged": 3 * staged["sustained"], "library": plain["sustained"]}
    power = f"{staged['power_W']:.3g} W at {staged['clock_MHz']:.4g} MHz" if "power_W" in staged else ""
    return paragraph(
        ("neither faster nor more accurate on uniform [-1, 1] is any other than", "; ".join(frontier)),
        ("TFLOP/s of the tensor cores, three products of staged and one of the library", rates),
        (f"staged, sustained, on the {one_gpu()}, where power limits it", power),
    )
