"""Split schemes on complex data: HCGEMM's real products, each by words of half precision.

HCGEMM multiplies half-complex matrices; schemes that split fp32 numbers into words compute fp32 products of real
matrices on the same instructions. Combined they are a complex fp32 product (CGEMM) on tensor cores. Three ways to
compute a complex product by real ones: both products of a part in the same sums, which alternate as in HCGEMM's kernel;
four products and an addition outside; three products and five additions.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, plotting
from fpemu.batched import complex_gemm
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import complex_product
from .._rows import Row, in_legend, mean_by, runs_by, size_axis
from ._errors import PAPER

CAPTION = """Complex products of 8 rows and 8 columns by schemes for real fp32 matrices, on (a, c, e) Ampere and (b, d,
f, g, h) Hopper; real and imaginary parts uniform in [-1, 1]. (a, b) Relative L2 error over k against the exact product,
four products with an addition outside; black: fused multiply-adds in fp32 (CGEMM). (c, d) The error with both products
of a part in the same sums and (e, f) of three products, relative to the error of four products. (g, h) Imaginary parts
of A and B times 2^-s, k = 256, four products (lines) and three (crosses, dotted): error of the imaginary part of the
result, and of the complex result."""
ASSUMPTIONS = [
    """No paper applies a split scheme to complex data. Here the batched kernels' combination of real products to a
    complex product is computed in fp32.""",
    """Two products of a part in the same sums double K, in alternating steps of 16 of each product, as in the fragments
    of HCGEMM. The schemes have their default options and ascending k.""",
    "For three products the sums Ar + Ai and Br + Bi are rounded to fp32, and the scheme splits the rounded sums.",
    """Operands are uniform in [-1, 1], rounded to fp32. They have 8 rows and 8 columns, which are independent of each
    other.""",
]
CHIPS = ("ampere", "hopper")
SCHEMES = ("fp16", "markidis", "ootomo", "legemm", "staged", "bf16x9", "sgemm")
SPLITS = SCHEMES[1:]
"""Without plain fp16, whose error is dominated by the rounding of its operands in all of them."""
WAYS: dict[str, dict[str, Any]] = {"fused": {}, "four": {"algorithm": "calls"}, "three": {"products": 3}}
SHOWN = ("ootomo", "staged", "bf16x9", "sgemm")
"""Schemes that are drawn over the scale."""
MIDDLE = 256
"""The k of the products whose imaginary parts are scaled."""


_LENGTHS = tuple(2**i for i in range(4, 13))


def cells(lengths: tuple[int, ...] = _LENGTHS, scales: Sequence[int] = range(0, 21, 2), runs: int = 20) -> list[Row]:
    some = [(chip, k, 0) for chip in CHIPS for k in lengths]
    some += [("hopper", MIDDLE, s) for s in scales if s or MIDDLE not in lengths]
    return [
        {"hardware": chip, "inputs": "uniform", "m": 8, "k": k, "scale": scale, "seed": seed}
        for chip, k, scale in some
        for seed in range(runs)
    ]


def cost(cell: Row) -> float:
    return float(cell["k"] + 500)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, exact = _problem(cell["inputs"], cell["m"], cell["k"], cell["scale"], cell["seed"], device=device)
    numbers = {}
    for scheme in SCHEMES:
        for way, options in WAYS.items():
            D = complex_gemm(A, B, scheme=scheme, hardware=cell["hardware"], on_range="propagate", **options)
            parts = np.stack([D.real, D.imag])
            numbers[f"{scheme} {way} relative_l2"] = metrics.relative_l2(parts, exact)
            numbers[f"{scheme} {way} imaginary"] = metrics.relative_l2(parts[1], exact[1])
    return numbers


@functools.lru_cache(maxsize=2)  # both architectures have the same problems, one after another
def _problem(name: str, m: int, k: int, scale: int, seed: int, device: Device = "cpu") -> tuple[NDArray[Any], ...]:
    """A and B, imaginary parts times 2^-scale, and both parts of the exact product, each rounded once to fp64."""
    A, B = inputs.operands(name, m, m, k, seed, "fp32", batch=2, low=-1.0, high=1.0)
    (ar, ai), (br, bi) = ((x[0], np.ldexp(x[1], -scale)) for x in (A, B))
    return ar + 1j * ai, br + 1j * bi, complex_product((ar, ai), (br, bi), device)


_LOOK = {
    **{one: plotting.SCHEMES[one] for one in ("fp16", "markidis", "ootomo", "legemm", "staged")},
    "bf16x9": Series("bf16x9", plotting.BLUE, "P"),
    "sgemm": Series("CGEMM (fp32)", plotting.BLACK, "s", "--", filled=False),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 4, height=8.4, share_x=False, share_y=False)
    lengths, scales = _lengths(rows), sorted({row["scale"] for row in rows})
    for column, chip in enumerate(CHIPS):
        for name, look in _LOOK.items():
            errors = [_runs(rows, chip, k, 0, f"{name} four relative_l2") for k in lengths]
            plotting.band(axes[0, column], lengths, errors, look)
            for axis, way in zip(axes[1:3, column], ("fused", "three"), strict=True):
                if name in SPLITS:
                    axis.plot(lengths, [_ratio(rows, chip, k, name, way) for k in lengths], **look.line(label="_"))
        for axis in axes[:3, column]:
            size_axis(axis, lengths)
            axis.set_xticks(lengths, [str(k) for k in lengths], rotation=90)
        for axis in axes[1:3, column]:
            axis.axhline(1.0, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
        axes[2, column].set_xlabel("$k$")
    for line in axes[:3]:
        line[1].sharey(line[0])
        line[1].tick_params(labelleft=False)
    for axis, measure in zip(axes[3], ("imaginary", "relative_l2"), strict=True):
        for name in SHOWN:
            for way, style in (("four", _LOOK[name]), ("three", _crossed(_LOOK[name]))):
                errors = [_runs(rows, "hopper", MIDDLE, s, f"{name} {way} {measure}") for s in scales]
                plotting.band(axis, scales, errors, style)
        axis.set_xticks(scales[::2])
        axis.set_xlabel("$s$, parts times $2^{-s}$")
    for axis in (*axes[0], *axes[3]):
        axis.set_yscale("log")
    axes[0, 0].plot([], [], color=plotting.BLACK, marker="x", linestyle=":", label="three products (g, h)")
    for axis, label in zip(
        axes[:, 0],
        ("relative $L_2$ error", "error / four products", "error / four products", "relative $L_2$ error"),
        strict=True,
    ):
        axis.set_ylabel(label)
    titles = [f"{chip}{way}" for way in ("", ", one sum", ", three") for chip in ("Ampere", "Hopper")]
    titles += ["imaginary part", "whole result"]
    plotting.panel_titles(axes, titles)
    title = f"8 × 8 entries, {in_legend(rows)};\n(c to f) ratios of means; (g, h) Hopper, $k$ = {MIDDLE}"
    plotting.legend_below(figure, axes[0, 0], 3, title=title)
    return figure


def _crossed(look: Series) -> Series:
    """The appearance of three products."""
    return Series(look.label, look.color, "x", ":", look.filled)


def measures(rows: list[Row]) -> Iterator[Measure]:
    for chip in CHIPS:
        lengths = [k for k in _lengths(rows) if _runs(rows, chip, k, 0, "sgemm four relative_l2")]
        if lengths:
            ratios = [
                _mean(rows, chip, k, 0, "ootomo four relative_l2") / _mean(rows, chip, k, 0, "sgemm four relative_l2")
                for k in lengths
            ]
            yield Measure("ootomo_complex", max(ratios), variant=chip.capitalize())
            three = [_ratio(rows, chip, k, "ootomo", "three") for k in lengths]
            yield Measure("three_products_ootomo", min(three), variant=chip.capitalize())
    if _runs(rows, "hopper", MIDDLE, 16, "sgemm three imaginary"):
        for name in ("ootomo", "sgemm"):
            four_products, three_products = (
                _mean(rows, "hopper", MIDDLE, 16, f"{name} {way} imaginary") for way in ("four", "three")
            )
            yield Measure("three_products_detected", three_products / four_products, variant=_LOOK[name].label)


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for chip in CHIPS:
        here = [k for k in _lengths(rows) if _runs(rows, chip, k, 0, "sgemm four relative_l2")]
        if not here:
            continue
        error = {name: {k: _mean(rows, chip, k, 0, f"{name} four relative_l2") for k in here} for name in SCHEMES}
        last = {_LOOK[name].label: error[name][here[-1]] / error["sgemm"][here[-1]] for name in SCHEMES[:-1]}
        worse = [k for k in here if error["ootomo"][k] > error["sgemm"][k]]
        statements += [
            (f"{chip.capitalize()}, k = {here[-1]}: the errors relative to CGEMM in fp32 are", last, ".3g×"),
            ("Ootomo's scheme has the larger error at k = {}", ", ".join(map(str, worse))),
        ]
        for way, words in (("fused", "both products of a part in the same sums"), ("three", "three real products")):
            ratios = {_LOOK[name].label: [_ratio(rows, chip, k, name, way) for k in here] for name in SPLITS}
            statements.append((f"{words}, relative to four real products, have the errors", ratios, ".2f×"))
    scales = sorted({row["scale"] for row in rows if row["k"] == MIDDLE and row["hardware"] == "hopper"})
    if scales:
        point = ("hopper", MIDDLE, scales[-1])
        lost = {
            _LOOK[name].label: _mean(rows, *point, f"{name} three imaginary")
            / _mean(rows, *point, f"{name} four imaginary")
            for name in ("ootomo", "sgemm")
        }
        statements.append(
            (
                f"with imaginary parts 2^-{scales[-1]} times as large, three products increase the imaginary error by",
                lost,
                ".3g×",
            )
        )
        if scales[0] == 0 and scales[-1] > 14:
            faded = {
                _LOOK[name].label: _mean(rows, *point, f"{name} four imaginary")
                / _mean(rows, "hopper", MIDDLE, 0, f"{name} four imaginary")
                for name in SHOWN
            }
            statements.append(
                (
                    "relative to equal sizes of the parts, the imaginary error with four products increases by",
                    faded,
                    ".3g×",
                )
            )
            statements.append(("at this scale the fp16 words of Ootomo's scheme are subnormal", True))
    return paragraph(*statements)


def _lengths(rows: list[Row]) -> list[int]:
    return sorted({row["k"] for row in rows if row["scale"] == 0})


_runs, _mean = runs_by("hardware", "k", "scale"), mean_by("hardware", "k", "scale")


def _ratio(rows: list[Row], chip: str, k: int, name: str, way: str) -> float:
    """The error of one of `WAYS` divided by the error of four products with an addition outside."""
    return _mean(rows, chip, k, 0, f"{name} {way} relative_l2") / _mean(rows, chip, k, 0, f"{name} four relative_l2")


QUICK = {"lengths": tuple(4**i for i in range(2, 7)), "scales": range(0, 17, 4), "runs": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
