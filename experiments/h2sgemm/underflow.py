"""H2SGEMM: the parts of the error of figure 8, at every offset exponent.

The error of a split product has three parts, computed here separately,

    A B - D = [A B - (h + r)_A (h + r)_B]   +   r_A r_B   +   [(h_A h_B + r_A h_B + h_A r_B) - D]
              loss of the two words             omitted         rounding of the sums
                                                product

with r unscaled. The paper analyses the underflow in the first part, and calls the second part negligible (Equation 7).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import metrics, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.schemes import words
from fpemu.schemes.h2sgemm import H2sgemm

from .._findings import paragraph
from .._numeric import norm
from .._rows import Row, runs_by
from . import _methods as methods
from ._methods import KINDS, LOOKS, means, operands, ratios

PAPER = f"{methods.PAPER}, sections 3.1.3 and 4.1, Eq. 7, figure 8"
CAPTION = """Term-wise H2SGEMM with sb = 0 (a, b) and sb = 12 (c, d) over the offset exponent e, operands uniform in
[-2^e, 2^e] (a, c) and [0, 2^e] (b, d). Relative L2 norms of the error; of the loss of the two words h and r; of the
omitted product r_A·r_B; and of the rounding of the sums. Circles (c, d): the error with all four products. Grey
crosses: HGEMM with an fp32 result; black: SGEMM by OpenBLAS on the paper's Kunpeng 920. Grey area: every operand is
below fp16's normal range. Lines: median over the seeds; bands: quartiles."""
ASSUMPTIONS = [
    """The parts of the error are computed from exact products of the words, each rounded once to fp64. The norms of the
    parts do not sum to the norm of the error, but the largest norm has its magnitude."""
]

SCALES, PARTS = (0, 12), ("error", "words", "left out", "sums")


def cells(m: int = 32, k: int = 64 * 44, seeds: int = 20, step: int = 1, hardware: str = methods.HARDWARE) -> list[Row]:
    return [
        {"hardware": hardware, "inputs": kind, "exponent": exponent, "seed": seed, "m": m, "n": m, "k": k}
        for kind in KINDS
        for exponent in range(-20, 1, step)
        for seed in range(seeds)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, exact = operands(cell, device)
    size = norm(exact)
    numbers = {}
    for name in ("HGEMM", "SGEMM", "SGEMM TSV110"):
        numbers[name] = metrics.relative_l2(methods.methods_on(cell["hardware"])[name](A, B, device), exact)
    for sb in SCALES:
        scheme = H2sgemm(sb=sb)
        D = schemes.gemm(A, B, scheme=scheme, hardware=cell["hardware"], device=device)
        (ha, ra), (hb, rb) = (unscaled(X, scheme) for X in (A, B))
        held, left_out = reference.matmul(ha + ra, hb + rb, device=device), reference.matmul(ra, rb, device=device)
        parts = {"words": exact - held, "left out": left_out, "sums": held - left_out - D}
        numbers[f"sb={sb} error"] = metrics.relative_l2(D, exact)
        numbers |= {f"sb={sb} {name}": norm(part) / size for name, part in parts.items()}
    four = H2sgemm(sb=12, products=("rr", "rh", "hr", "hh"))
    D = schemes.gemm(A, B, scheme=four, hardware=cell["hardware"], device=device)
    return numbers | {"sb=12 four": metrics.relative_l2(D, exact)}


def unscaled(X: NDArray[Any], scheme: H2sgemm) -> list[NDArray[np.float64]]:
    """The words of X in units of X, as float64."""
    pairs = zip(words.split(X, scheme.rules()), scheme.rules(), strict=True)
    return [np.ldexp(word.astype(np.float64), -rule.exponent) for word, rule in pairs]


_LOOK = {
    "error": Series("H2SGEMM, three products", plotting.BLUE, "o", "-"),
    "words": Series("loss of the words h and r", plotting.ORANGE, "^", "--"),
    "left out": Series("omitted product $r_A\\cdot r_B$", plotting.VERMILION, "v", "--"),
    "sums": Series("rounding of the sums", plotting.GREEN, "D", ":"),
    "four": Series("H2SGEMM, four products", plotting.PURPLE, "o", "", filled=False),
}

_BELOW = {"error": {"linewidth": 2.4, "zorder": 1.8}, "four": {"markersize": 5.5, "zorder": 1.9}}
"""Series that lie below others with the same values."""


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.2)
    runs, exponents = runs_by("inputs", "exponent"), sorted({row["exponent"] for row in rows})
    for line, sb in zip(axes, SCALES, strict=True):
        for axis, kind in zip(line, KINDS, strict=True):
            axis.axvspan(-20.8, -14.5, color=plotting.GREY, alpha=0.12, linewidth=0, label="operands subnormal in fp16")
            for name in ("SGEMM TSV110", "HGEMM"):
                values = [runs(rows, kind, e, name) for e in exponents]
                plotting.band(axis, exponents, values, LOOKS[name], markersize=2.5)
            for name, look in _LOOK.items():
                if name == "four" and not sb:
                    continue  # unscaled, r_A r_B never decides
                values = [runs(rows, kind, e, f"sb={sb} {name}") for e in exponents]
                plotting.band(axis, exponents, values, look, **{"markersize": 2.5} | _BELOW.get(name, {}))
            axis.set(yscale="log", ylim=(1e-10, 0.2), xlim=(-20.8, 0.8))
            axis.set_xticks(range(-20, 1, 4))
        line[0].set_ylabel("relative $L_2$ norm")
    for axis in axes[-1]:
        axis.set_xlabel("offset exponent $e$")
    plotting.panel_titles(axes, [f"sb = {sb}, {text}" for sb in SCALES for text in KINDS.values()])
    plotting.legend_below(figure, axes, 2, methods.sizes_and_runs(rows))
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for _, kind, variant in methods.panels():
        three, four = (means(rows, f"sb=12 {name}", "exponent", inputs=kind) for name in ("error", "four"))
        for low, high in ((-13, 0), (-20, -14)):
            if values := [x for e, x in ratios(three, four).items() if low <= e <= high]:
                yield Measure("fourth_product_negligible", max(values), variant=f"{variant}, e = {low} to {high}")


def finding(rows: list[Row]) -> str:
    statements: list[tuple[Any, ...]] = []
    for _, kind, variant in methods.panels():
        error = {name: means(rows, name, "exponent", inputs=kind) for name in ("HGEMM", "SGEMM TSV110", "sb=0 error")}
        part = {name: means(rows, f"sb=12 {name}", "exponent", inputs=kind) for name in (*PARTS, "four")}
        better = [e for e, x in error["sb=0 error"].items() if x < error["SGEMM TSV110"][e]]
        low = min(part["error"])
        statements += [
            (
                f"{variant}: the error of HGEMM with an fp32 result at e = {max(error['HGEMM'])} is {{}}",
                error["HGEMM"][max(error["HGEMM"])],
            ),
            (
                "unscaled H2SGEMM has a smaller error than OpenBLAS on a Kunpeng 920 from e = {}",
                min(better, default=None),
                "d",
            ),
            (
                f"with sb = 12 at e = {low} the parts are",
                {
                    "error": part["error"][low],
                    "omitted product": part["left out"][low],
                    "loss of the words": part["words"][low],
                    "error with the fourth product": part["four"][low],
                },
                ".2g",
            ),
        ]
    return paragraph(*statements)


PAGE = Page(
    PAPER,
    lambda given: f"{CAPTION} {methods.unit(given)}",
    lambda given: [methods.cube(given), *ASSUMPTIONS, methods.sizes(given)],
    cells,
    evaluate,
    draw,
    measures,
    finding,
    quick={"m": 16, "seeds": 3, "step": 2},
)
