"""Split schemes on complex data: HCGEMM's real products, each by words of half precision.

HCGEMM multiplies half-complex matrices; schemes that split fp32 numbers into words make fp32 products of real matrices
on the same instructions. Put together they are a complex fp32 product (CGEMM) on tensor cores, for which nobody has
published errors. Three ways to make a complex product of real ones: both products of a part in the same sums, the
kinds taking turns as in HCGEMM's kernel; four products and an addition outside; three products and five additions.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, plotting
from fpemu.batched import complex_gemm
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._numeric import complex_product

PAPER = """Abdelfattah, Tomov, Dongarra: Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), sections 5.5 and 6.2; schemes as their own papers have them"""
EXPLAINS = ("magma/splitcomplex",)
TITLE = "split schemes on complex data: one, four or three real products"
CAPTION = """Complex products of 8 rows and 8 columns by schemes for real fp32 matrices, on (a, d) Ampere and (b, e)
Hopper; real and imaginary parts uniform in [-1, 1]. (a, b) Relative L2 error over k against the exact product, four
products with an addition outside; black: fused multiply-adds in fp32 (CGEMM). (d, e) The error with both products of a
part in the same sums (lines) and of three products (crosses, dotted), over that. (c, f) Imaginary parts of A and B
times 2^-s, k = 256, Hopper, four products (lines) and three (crosses, dotted): error of the imaginary
part of the result, and of the whole, in the looks of (a). Lines: mean over seeded runs; bands: smallest to largest."""
ASSUMPTIONS = [
    """No paper has a split scheme on complex data: how the real products are made into a complex one is that of the
    batched kernels, taken to fp32.""",
    """In the same sums: K doubles, 16 of one kind and 16 of the other by turns, as in the fragments of HCGEMM. Schemes
    have their default options and one order of k, ascending.""",
    "Three products: the sums Ar + Ai and Br + Bi are rounded to fp32, which the scheme then splits.",
    "Operands are uniform in [-1, 1], rounded to fp32; rows and columns do not influence one another: 8 of each.",
]
CHIPS = ("ampere", "hopper")
SCHEMES = ("fp16", "markidis", "ootomo", "legemm", "staged", "bf16x9", "sgemm")
SPLITS = SCHEMES[1:]
"""Those whose error is not simply that of their operands rounded to fp16."""
WAYS: dict[str, dict[str, Any]] = {"fused": {}, "four": {"algorithm": "calls"}, "three": {"products": 3}}
SHOWN = ("ootomo", "staged", "bf16x9", "sgemm")
"""Those drawn over the scale."""
MIDDLE = 256
_SIZES: dict[str, Any] = {
    "quick": {"k": [2**i for i in range(4, 13, 2)], "scales": list(range(0, 17, 4)), "runs": 3},
    "full": {"k": [2**i for i in range(4, 15)], "scales": list(range(0, 21, 2)), "runs": 10},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    some = [(chip, k, 0) for chip in CHIPS for k in chosen["k"]]
    some += [("hopper", MIDDLE, s) for s in chosen["scales"] if s or MIDDLE not in chosen["k"]]
    return [
        {"hardware": chip, "inputs": "uniform", "m": 8, "k": k, "scale": scale, "seed": seed}
        for chip, k, scale in some
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["k"] + 500)


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
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
    **{name: plotting.SCHEMES[name] for name in ("fp16", "markidis", "ootomo", "legemm", "staged")},
    "bf16x9": Series("bf16x9", plotting.BLUE, "P"),
    "sgemm": Series("CGEMM (fp32)", plotting.BLACK, "s", "--", filled=False),
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 2, height=4.8, share_y=False)
    lengths, scales = _lengths(rows), sorted({row["scale"] for row in rows})
    axes[1, 1].sharey(axes[1, 0])
    for column, chip in enumerate(CHIPS):
        for name, look in _LOOK.items():
            plotting.band(axes[0, column], lengths, [_runs(rows, chip, k, 0, name, "four") for k in lengths], look)
            if name == "fp16":
                continue  # its error is that of its operands, whatever the way
            for way, marker, dash in (("fused", look.marker, "-"), ("three", "x", ":")):
                ratio = [_ratio(rows, chip, k, name, way) for k in lengths]
                style = Series(look.label, look.color, marker, dash, look.filled)
                axes[1, column].plot(lengths, ratio, **style.line(markersize=3.5))
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2)
            axis.set_xticks(lengths if len(lengths) < 7 else lengths[::3])
            axis.tick_params(axis="x", which="minor", bottom=False)
        axes[0, column].set_yscale("log")
        axes[1, column].axhline(1.0, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
        axes[1, column].set_xlabel("$k$")
    for axis, measure in zip(axes[:, 2], ("imaginary", "relative_l2"), strict=True):
        for name in SHOWN:
            look = _LOOK[name]
            for way, marker, dash in (("four", look.marker, "-"), ("three", "x", ":")):
                runs = [_runs(rows, "hopper", MIDDLE, s, name, way, measure) for s in scales]
                plotting.band(axis, scales, runs, Series(look.label, look.color, marker, dash, look.filled))
        axis.set_yscale("log")
    axes[0, 0].plot([], [], color=plotting.BLACK, marker="x", linestyle=":", markersize=3.5, label="three products")
    axes[1, 2].set_xlabel("$s$, imaginary parts times $2^{-s}$")
    axes[0, 0].set_ylabel("relative $L_2$ error")
    axes[1, 0].set_ylabel("error over that of four products")
    axes[0, 2].set_ylabel("error of the imaginary part")
    axes[1, 2].set_ylabel("relative $L_2$ error")
    titles = ["Ampere", "Hopper", "imaginary part", "Ampere, other ways", "Hopper, other ways", "whole result"]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes[0, 0], 4)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Checks of our own: nobody has published errors of these."""
    points = [(chip, k) for chip in CHIPS for k in _lengths(rows) if _has(rows, chip, k)]
    cgemm = [_mean(rows, *p, 0, "ootomo", "four") / _mean(rows, *p, 0, "sgemm", "four") for p in points]
    same, three = ([_ratio(rows, *p, name, way) for p in points for name in SPLITS] for way in ("fused", "three"))
    return [
        share(
            "Ootomo's scheme on complex data errs no more than CGEMM in fp32", "", [r <= 1 for r in cgemm], _span(cgemm)
        ),
        share(
            "both products of a part in the same sums err more than four with an addition outside",
            "",
            [r > 1 for r in same],
            _span(same),
        ),
        share(
            "three products err more than four, both with additions outside", "", [r > 1 for r in three], _span(three)
        ),
    ]


def finding(rows: list[dict[str, Any]]) -> str:
    statements: list[tuple[Any, ...]] = []
    for chip in CHIPS:
        here = [k for k in _lengths(rows) if _has(rows, chip, k)]
        if not here:
            continue
        error = {name: {k: _mean(rows, chip, k, 0, name, "four") for k in here} for name in SCHEMES}
        last = {_LOOK[name].label: error[name][here[-1]] / error["sgemm"][here[-1]] for name in SCHEMES[:-1]}
        worse = [k for k in here if error["ootomo"][k] > error["sgemm"][k]]
        statements += [
            (f"{chip.capitalize()}, k = {here[-1]}, error over that of CGEMM in fp32", last, ".3g×"),
            ("Ootomo's is the larger one at k =", ", ".join(map(str, worse))),
        ]
        for way, words in (("fused", "both products of a part in the same sums"), ("three", "three products")):
            ratios = {_LOOK[name].label: [_ratio(rows, chip, k, name, way) for k in here] for name in SPLITS}
            statements.append((f"{words} over four products", ratios, ".2f×"))
    scales = sorted({row["scale"] for row in rows if row["k"] == MIDDLE and row["hardware"] == "hopper"})
    if scales:
        point = ("hopper", MIDDLE, scales[-1])
        lost = {
            _LOOK[name].label: _mean(rows, *point, name, "three", "imaginary")
            / _mean(rows, *point, name, "four", "imaginary")
            for name in ("ootomo", "sgemm")
        }
        statements.append(
            (f"imaginary parts 2^-{scales[-1]} times as large: its error with three products over four", lost, ".3g×")
        )
        if scales[0] == 0 and scales[-1] > 14:
            faded = {_LOOK[name].label: _faded(rows, scales[-1], name) for name in SHOWN}
            statements.append(("over that with parts of one size, four products", faded, ".3g×"))
            statements.append(("Ootomo's fp16 words of parts so small are subnormal", True))
    return paragraph(*statements)


def _faded(rows: list[dict[str, Any]], scale: int, name: str) -> float:
    """The error of the imaginary part where it is small over that where it is not, four products."""
    small, whole = (_mean(rows, "hopper", MIDDLE, s, name, "four", "imaginary") for s in (scale, 0))
    return small / whole


def _span(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f} times the error" if ratios else "no points"


def _lengths(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["k"] for row in rows if row["scale"] == 0})


def _has(rows: list[dict[str, Any]], chip: str, k: int) -> bool:
    return any((row["hardware"], row["k"], row["scale"]) == (chip, k, 0) for row in rows)


def _runs(
    rows: list[dict[str, Any]], chip: str, k: int, scale: int, name: str, way: str, measure: str = "relative_l2"
) -> list[float]:
    point = (chip, k, scale)
    return [row[f"{name} {way} {measure}"] for row in rows if (row["hardware"], row["k"], row["scale"]) == point]


def _mean(rows: list[dict[str, Any]], *point: Any) -> float:
    return float(np.mean(_runs(rows, *point)))


def _ratio(rows: list[dict[str, Any]], chip: str, k: int, name: str, way: str) -> float:
    """The error of one of `WAYS` over that of four products with an addition outside."""
    return _mean(rows, chip, k, 0, name, way) / _mean(rows, chip, k, 0, name, "four")
