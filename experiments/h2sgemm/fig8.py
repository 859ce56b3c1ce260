"""H2SGEMM, figure 8: error over the offset exponent of the operands."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._rows import Row, runs_by
from . import _methods as methods
from ._methods import HGEMMS, KINDS, LOOKS, METHODS, SGEMMS, evaluate_methods, farthest, means, ratios

PAPER = f"{methods.PAPER}, section 4.1, figure 8"
CAPTION = """Relative L2 error against the exact product over the offset exponent e of the operands, uniform in
(a) [-2^e, 2^e] and (b) [0, 2^e]; sb: scaling exponent of H2SGEMM's residuals. Grey area: every operand is below fp16's
normal range. Lines: mean over the seeds; bands: smallest to largest error. Black and green: SGEMM by OpenBLAS on the
paper's Kunpeng 920 and on an x86 processor (Haswell), and as one chain of FMAs. Ascend 910A cube as an assumed
model."""
ASSUMPTIONS = [
    methods.CUBE,
    methods.ELEMENTWISE,
    "HGEMM rounds the operands to fp16 and accumulates one product in fp32; its result is fp32 or fp16.",
    methods.ORDERS,
    """The paper does not print the sizes of figure 8; here m = 176, n = 32 and k = 64·44, as in figure 9, at full size,
    and m = n = 48 at quick size.""",
    """The paper does not print the offset exponents of figure 8 either; here they are -20 to 0, because the text
    mentions non-positive exponents, at full size only every second or fourth exponent.""",
    methods.REFERENCE,
]


def cells(
    m: int = 176,
    n: int = 32,
    k: int = 64 * 44,
    seeds: int = 20,
    exponents: Sequence[int] = (-20, -18, -16, -14, -12, -8, -4, 0),
) -> list[Row]:
    return [
        {"hardware": methods.HARDWARE, "inputs": kind, "exponent": exponent, "seed": seed, "m": m, "n": n, "k": k}
        for kind in KINDS
        for exponent in exponents
        for seed in range(seeds)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    return evaluate_methods(cell, METHODS, device)


_NAMED = {"SGEMM": "SGEMM, one chain", "SGEMM TSV110": "SGEMM, Kunpeng", "SGEMM Haswell": "SGEMM, Haswell"}
"""Lines that are named directly, at the right of a panel."""


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, height=4.2)
    runs = runs_by("inputs", "exponent")
    for axis, kind in zip(axes[0], KINDS, strict=True):
        exponents = sorted({row["exponent"] for row in rows})
        axis.axvspan(-21, -14.5, color=plotting.GREY, alpha=0.1, linewidth=0)
        for name, look in LOOKS.items():
            if name != "SGEMM cuBLAS":
                named = {"label": "_", "marker": ""} if name in _NAMED else {}
                # HGEMM on top: where sb = 0 has lost every residual, their lines coincide
                order = 3.0 if name == "HGEMM" else 2.0
                values = [runs(rows, kind, e, name) for e in exponents]
                plotting.band(axis, exponents, values, look, zorder=order, **named)
        for name, text in _NAMED.items():
            point = (1.01, means(rows, name, "exponent", inputs=kind)[0])
            axis.annotate(
                text, point, xycoords=("axes fraction", "data"), va="center", fontsize=6.5, color=LOOKS[name].color
            )
        axis.set(yscale="log", xlim=(-20.8, 0.8), ylim=(4e-8, 2), xlabel="offset exponent $e$")
        axis.set_xticks(range(-20, 1, 4))
    axes[0, 0].set_ylabel("relative $L_2$ error")
    plotting.panel_titles(axes, [f"uniform in {text}" for text in KINDS.values()])
    plotting.legend_below(figure, axes[0, 0], 4)
    return figure


_WINDOWS = {
    "normal": (-14, 0),
    "low": (-14, -7),
    "near": (-6, 0),
    "below": (-20, -15),
    "deep": (-14, -11),
    "rest": (-10, 0),
    "top": (0, 0),
}
"""Offset exponents; fp16 has normal numbers from -14."""
_STATEMENTS: tuple[tuple[str, str, str, Any, tuple[str, ...]], ...] = (
    ("termwise_beats_sgemm", "SGEMM", "sb=12 term-wise", min, ("low", "below")),
    ("unscaled_worse_than_sgemm", "sb=0", "SGEMM", min, ("near", "low")),
    ("elementwise_matches_sgemm", "sb=12 element-wise", "SGEMM", max, ("normal", "below")),
    ("scaling_gain", "sb=0 term-wise", "sb=12 term-wise", max, ("normal",)),
    ("sb6_poor", "sb=6 term-wise", "sb=12 term-wise", min, ("deep", "rest")),
    ("unscaled_alike", "sb=0 element-wise", "sb=0 term-wise", farthest, ("normal",)),
    ("termwise_beats_elementwise", "sb=0 element-wise", "sb=0 term-wise", min, ("top",)),
    ("termwise_beats_elementwise", "sb=12 element-wise", "sb=12 term-wise", min, ("normal",)),
)
"""Claim, numerator, denominator, worst case over the offset exponents, and the windows of these."""

_GROUPS = {
    "SGEMM, all orders": tuple(SGEMMS.values()),
    "H2SGEMM, all variants": tuple(name for name in METHODS if name.startswith("sb=")),
    **{f"HGEMM, {reading}": (column,) for reading, column in HGEMMS.items()},
}
"""The methods whose errors for both distributions are compared."""


def measures(rows: list[Row]) -> Iterator[Measure]:
    errors = {kind: {name: means(rows, name, "exponent", inputs=kind) for name in METHODS} for kind in KINDS}
    for _, kind, variant in methods.panels():
        error = dict(errors[kind])
        rest = [of for name, of in error.items() if name not in HGEMMS.values()]
        unscaled = [error[f"sb=0 {combine}"] for combine in ("element-wise", "term-wise")]
        error["sb=0"] = {e: min(of[e] for of in unscaled) for e in unscaled[0]}
        for name, over, under, worst, windows in _STATEMENTS:
            for reading, column in SGEMMS.items() if "SGEMM" in (over, under) else [("", "")]:
                top, bottom = (column if of == "SGEMM" else of for of in (over, under))
                for window in windows:
                    points = _within(ratios(error[top], error[bottom]), window)
                    if points:
                        label = f"{variant}, {_text(points)}" + ", sb = 0" * (window == "top")
                        yield Measure(name, float(worst(points.values())), reading, label)
        for reading, column in HGEMMS.items():
            for window in ("near", "low"):
                if points := _within(error[column], window):
                    yield Measure(
                        "hgemm_error", farthest(points.values(), 10**-3.5), reading, f"{variant}, {_text(points)}"
                    )
            for window in ("near", "low", "below"):
                if points := _within(error[column], window):
                    larger = [value / max(of[e] for of in rest if e in of) for e, value in points.items()]
                    yield Measure("hgemm_largest", min(larger), reading, f"{variant}, {_text(points)}")
    symmetric, positive = errors.values()
    for group, names in _GROUPS.items():
        for window in ("normal", "below"):
            series = [_within(ratios(symmetric[name], positive[name]), window) for name in names]
            if factors := [factor for points in series for factor in points.values()]:
                label = f"{group}, {_text(next(filter(None, series)))}"
                yield Measure("cancellation_amplifies", min(factors), variant=label)


def _within(series: dict[int, float], window: str) -> dict[int, float]:
    low, high = _WINDOWS[window]
    return {e: value for e, value in series.items() if low <= e <= high and np.isfinite(value)}


def _text(points: dict[int, float]) -> str:
    return f"e = {min(points)} to {max(points)}" if len(points) > 1 else f"e = {min(points)}"


QUICK = {"m": 48, "n": 48, "seeds": 3, "exponents": range(-20, 1)}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, quick=QUICK)
