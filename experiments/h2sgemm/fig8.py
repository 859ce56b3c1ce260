"""H2SGEMM, figure 8: error over the offset exponent of the operands."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.mma.device import Device
from fpemu.reproduce import Measure, Page

from .._rows import Row, runs_by
from . import _methods as methods
from ._methods import (
    CUBES,
    HGEMMS,
    KINDS,
    LOOKS,
    METHODS,
    PUBLISHED_ORDER,
    SGEMMS,
    TRUNCATED,
    evaluate_methods,
    farthest,
    means,
    ratios,
)

PAPER = f"{methods.PAPER}, section 4.1, figure 8"
CAPTION = """Relative L2 error against the exact product over the offset exponent e of the operands, uniform in
(a) [-2^e, 2^e] and (b) [0, 2^e]; sb: scaling exponent of H2SGEMM's residuals. Grey area: every operand is below fp16's
normal range. Lines: median over the seeds; bands: quartiles. Where sb = 0 has lost every residual, its lines (wide)
coincide with HGEMM's with an fp32 result. SGEMM by OpenBLAS on the paper's Kunpeng 920 and on an x86 processor
(Haswell), by cuBLAS on an H200, and as one chain of FMAs."""
ASSUMPTIONS = [
    """The claims are also judged with a cube that rounds its exact sums toward zero ("sums truncated"); the picture
    shows sums rounded to nearest.""",
    methods.ELEMENTWISE,
    "HGEMM rounds the operands to fp16 and accumulates one product in fp32; its result is fp32 or fp16.",
    methods.ORDERS,
    methods.REFERENCE,
]


def assumptions(given: Mapping[str, Any]) -> list[str]:
    m, n, k, exponents = (given[name] for name in ("m", "n", "k", "exponents"))
    sizes = f"""The paper does not print the sizes of figure 8. Here m = {m}, n = {n} and k = {k}; figure 9 has m = 176,
    n = 32 and k = 64·44."""
    offsets = f"""The paper does not print the offset exponents of figure 8 either. Its text mentions non-positive
    exponents; here are {len(exponents)} from {min(exponents)} to {max(exponents)}."""
    return [methods.cube(given), *ASSUMPTIONS, sizes, offsets]


def cells(
    m: int = 176,
    n: int = 32,
    k: int = 64 * 44,
    seeds: int = 20,
    exponents: Sequence[int] = (-20, -18, -16, -14, -12, -8, -4, 0),
    hardware: str = methods.HARDWARE,
) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": kind, "exponent": exponent, "seed": seed, "m": m, "n": n, "k": k}
        for kind in KINDS
        for exponent in exponents
        for seed in range(seeds)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    truncated = list(TRUNCATED) if cell["hardware"] == methods.HARDWARE else []
    return evaluate_methods(cell, [*METHODS, *truncated], device)


_SPARSE = {"SGEMM Haswell": slice(0, None, 2), "SGEMM cuBLAS": slice(1, None, 2)}
"""Markers of nearly equal lines, at alternate points."""


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=6.0)
    runs = runs_by("inputs", "exponent")
    exponents = sorted({row["exponent"] for row in rows})
    for axis, kind in zip(axes[:, 0], KINDS, strict=True):
        axis.axvspan(-1074, -14.5, color=plotting.GREY, alpha=0.12, linewidth=0, label="operands subnormal in fp16")
        for name, look in LOOKS.items():
            points = [e for e in exponents if runs(rows, kind, e, name)]
            if points:
                values = [runs(rows, kind, e, name) for e in points]
                # below HGEMM, whose line they meet
                wide = {"linewidth": 2.6, "zorder": 1.8} if name.startswith("sb=0") else {}
                plotting.band(axis, points, values, look, markevery=_SPARSE.get(name), **wide)
        axis.set(
            yscale="log",
            xlim=(min(exponents) - 0.8, max(exponents) + 0.8),
            ylim=(4e-8, 2),
            ylabel="relative $L_2$ error",
        )
        axis.set_xticks(exponents if len(exponents) < 10 else exponents[::4])
    axes[-1, 0].set_xlabel("offset exponent $e$")
    plotting.panel_titles(axes, [f"uniform in {text}" for text in KINDS.values()])
    plotting.legend_below(figure, axes, 2, methods.sizes_and_runs(rows))
    return figure


_WINDOWS = {
    "normal": (-14, 0),
    "low": (-14, -7),
    "near": (-6, 0),
    "below": (-20, -15),
    "deep": (-14, -11),
    "top": (0, 0),
}
"""Offset exponents; fp16 has normal numbers from -14."""
_STATEMENTS: tuple[tuple[str, str, str, Any, tuple[str, ...]], ...] = (
    ("termwise_beats_sgemm", "SGEMM", "sb=12 term-wise", min, ("low", "below")),
    ("unscaled_worse_than_sgemm", "sb=0", "SGEMM", min, ("near", "low")),
    ("elementwise_matches_sgemm", "sb=12 element-wise", "SGEMM", max, ("normal", "below")),
    ("sb6_poor", "sb=6 term-wise", "sb=12 term-wise", min, ("deep", "below")),
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
    for cube, end in CUBES.items():
        columns = {name: f"{name}{end}" if f"{name}{end}" in TRUNCATED else name for name in METHODS}
        errors = {
            kind: {name: means(rows, column, "exponent", inputs=kind) for name, column in columns.items()}
            for kind in KINDS
        }
        if not errors["offset_symmetric"]["HGEMM"]:
            continue
        for _, kind, variant in methods.panels():
            yield from _of_one_kind(errors[kind], variant, cube)
        symmetric, positive = errors.values()
        for group, names in _GROUPS.items():
            for window in ("normal", "below"):
                series = [_within(ratios(symmetric[name], positive[name]), window) for name in names]
                if factors := [factor for points in series for factor in points.values()]:
                    label = f"{group}, {_text(next(filter(None, series)))}"
                    yield Measure("cancellation_amplifies", min(factors), cube, label)


def _of_one_kind(error: dict[str, Any], variant: str, cube: str) -> Iterator[Measure]:
    """Measure the claims on one distribution and one rounding of the cube."""
    rest = [of for name, of in error.items() if name not in HGEMMS.values()]
    unscaled = [error[f"sb=0 {combine}"] for combine in ("element-wise", "term-wise")]
    error = error | {"sb=0": {e: min(of[e] for of in unscaled) for e in unscaled[0]}}
    for name, over, under, worst, windows in _STATEMENTS:
        for order, column in SGEMMS.items() if "SGEMM" in (over, under) else [("", "")]:
            top, bottom = (column if of == "SGEMM" else of for of in (over, under))
            for window in windows:
                points = _within(ratios(error[top], error[bottom]), window)
                if points:
                    label = f"{variant}, {_text(points)}" + ", sb = 0" * (window == "top")
                    value = float(worst(points.values()))
                    if order in ("", PUBLISHED_ORDER):
                        yield Measure(name, value, cube, label)
                    elif not CUBES[cube]:  # the orders are compared with the cube as assumed
                        yield Measure(f"{name}_other_orders", value, order, label)
    for e, gain in _within(ratios(error["sb=0 term-wise"], error["sb=12 term-wise"]), "low").items():
        yield Measure("scaling_gain", gain, cube, f"{variant}, e = {e}")
    for result, column in HGEMMS.items():
        reading = f"{result}, {cube}"
        for window in ("near", "low"):
            if points := _within(error[column], window):
                value = farthest(points.values(), 10**-3.5)
                yield Measure("hgemm_error", value, reading, f"{variant}, {_text(points)}")
        for window in ("near", "low", "below"):
            if points := _within(error[column], window):
                larger = [value / max(of[e] for of in rest if e in of) for e, value in points.items()]
                yield Measure("hgemm_largest", min(larger), reading, f"{variant}, {_text(points)}")


def _within(series: dict[int, float], window: str) -> dict[int, float]:
    low, high = _WINDOWS[window]
    return {e: value for e, value in series.items() if low <= e <= high and np.isfinite(value)}


def _text(points: dict[int, float]) -> str:
    return f"e = {min(points)} to {max(points)}" if len(points) > 1 else f"e = {min(points)}"


QUICK = {"m": 48, "n": 48, "seeds": 3, "exponents": range(-20, 1)}
PAGE = Page(
    PAPER, lambda given: f"{CAPTION} {methods.unit(given)}", assumptions, cells, evaluate, draw, measures, quick=QUICK
)
