"""Inner products in narrow accumulators: rounding to nearest, stochastic rounding and truncation, and the bounds."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import formats, inputs, plotting, simt
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.theory.accumulation import growth, probable_growth

from .._rows import Row, size_axis

PAPER = "No paper"
CAPTION = """Largest relative error of 16 inner products of length n, with operands uniform in [0, 1], accumulated in
bf16, fp16 and tf32 by fused multiply-adds with rounding to nearest, stochastic rounding and truncation;
dashed: the deterministic bound n u, and the probabilistic bound of stochastic rounding."""
ASSUMPTIONS = [
    """The error is taken relative to |a||b|, which is the exact inner product of these operands. The operands are
    values of the accumulator's format, times 2^-4 in fp16, which keeps sums of 2^20 products within its range.""",
    """The deterministic bound is (1 + v)^n - 1, where v is the unit roundoff u to nearest and 2 u otherwise (Higham,
    Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).""",
    """The probabilistic bound is exp(lambda v sqrt(n) + n v^2 / (1 - v)) - 1 with v = 2 u: it holds for one inner
    product with a probability of at least 1 - 2 exp(-lambda^2 (1 - v)^2 / 2) if the roundings have mean zero (Higham
    and Mary 2019; Connolly, Higham and Mary 2021 prove the mean for stochastic rounding). lambda makes the probability
    of all 16 inner products 99 %. Random bits are finite, 32: their bias is below 2^-32 of a last place.""",
    "The inner products of all lengths are the partial sums of one chain.",
]
FORMATS = ("bf16", "fp16", "tf32")
MODES = {
    "RNE": Series("to nearest", plotting.BLACK, "o"),
    "SR": Series("stochastic", plotting.BLUE, "s"),
    "RZ": Series("truncation", plotting.GREY, "^"),
}
_COUNT = 16


def cells(longest: int = 2**20, seeds: int = 1) -> list[Row]:
    return [
        {"format": name, "rounding": mode, "longest": longest, "seed": seed}
        for name in FORMATS
        for mode in MODES
        for seed in range(seeds)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """The largest error at each length, "n = 16" and so on."""
    fmt, longest, mode, seed = formats.get(cell["format"]), cell["longest"], cell["rounding"], cell["seed"]
    exponent = -4 if cell["format"] == "fp16" else 0
    a = inputs.make("uniform", (1, longest), [seed, 1], fmt, low=0.0, high=1.0, exponent=exponent)
    B = inputs.make("uniform", (longest, _COUNT), [seed, 2], fmt, low=0.0, high=1.0, exponent=exponent)
    result: dict[str, float] = {}
    D, exact, done = np.zeros((1, _COUNT)), np.zeros(_COUNT), 0
    for n in _lengths(longest):
        # products are exact in float64, and the rounding of their sums is far below the last places of D
        exact = exact + (a[0, done:n, None].astype(float) * B[done:n]).sum(axis=0)
        words = {"seed": n + seed} if mode == "SR" else {}
        D = simt.gemm(a[:, done:n], B[done:n], D, fmt=fmt, rounding=mode, operand=fmt, **words)
        result[f"n = {n}"] = float(np.max(np.abs(D[0].astype(float) - exact) / exact))
        done = n
    return result


def _lengths(longest: int) -> list[int]:
    return [2**i for i in range(4, longest.bit_length())]


def _unit(row: Row) -> float:
    """The largest relative error of one rounding."""
    return formats.get(row["format"]).unit_roundoff * (1 if row["rounding"] == "RNE" else 2)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, len(FORMATS), height=5.4)
    lengths = _lengths(rows[0]["longest"])
    for axis, name in zip(axes[:, 0], FORMATS, strict=True):
        for mode, look in MODES.items():
            some = [row for row in rows if (row["format"], row["rounding"]) == (name, mode)]
            if some:
                errors = [max(row[f"n = {n}"] for row in some) for n in lengths]
                axis.plot(lengths, errors, **look.line())
        u = formats.get(name).unit_roundoff
        worst = [growth(n, u) for n in lengths]
        probable = [probable_growth(n, 2 * u, 0.01 / _COUNT) for n in lengths]
        axis.plot(lengths, worst, color=MODES["RNE"].color, linestyle="--", linewidth=0.8, label="deterministic bound")
        axis.plot(
            lengths, probable, color=MODES["SR"].color, linestyle="--", linewidth=0.8, label="probabilistic bound"
        )
        axis.set(yscale="log", ylim=(u / 30, 10), ylabel="relative error")
        size_axis(axis, lengths)
    axes[-1, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, list(FORMATS))
    plotting.legend_below(figure, axes[0, 0], 2, title=f"largest of {_COUNT} inner products")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for row in rows:
        ratios = [row[f"n = {n}"] / growth(n, _unit(row)) for n in _lengths(row["longest"])]
        yield Measure("worst", max(ratios), "", f"{row['format']}, {MODES[row['rounding']].label}")
        if row["rounding"] == "SR":
            bounds = [probable_growth(n, _unit(row), 0.01 / _COUNT) for n in _lengths(row["longest"])]
            errors = [row[f"n = {n}"] for n in _lengths(row["longest"])]
            yield Measure("probable", max(e / b for e, b in zip(errors, bounds, strict=True)), "", row["format"])


def finding(rows: list[Row]) -> str:
    n = rows[0]["longest"]
    errors = [
        f"{row['format']} {MODES[row['rounding']].label} {row[f'n = {n}']:.2g}" for row in rows if not row["seed"]
    ]
    return f"The largest errors at n = {n} are: {', '.join(errors)}."


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, quick={"longest": 2**16}, specs=())
