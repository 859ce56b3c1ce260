"""DGEMM-TC, sections 3.1 and 5.1: the range of the inputs, the exponents that Algorithm 1 can split, and the sizes of
its slices."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, plotting
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend
from . import _record
from ._counts import LOOK

PAPER = f"{_record.PAPER}, sections 3.1 (Algorithm 1) and 5.1"
CAPTION = """Smallest and largest magnitude of the entries of A and B over n, operands (rand - 0.5)·exp(φ·randn), drawn
on the GPU; stars, in the colours of φ: the published ranges."""
ASSUMPTIONS = [
    "The range covers all 2n² entries of A and B together; the paper does not name the matrix.",
    """For the limits of Algorithm 1 its printed form runs in fp64, with sigma = 2^(rho + tau), on vectors of 256
    entries with tau from -1073 to 1024 and rho for n = 10240. A limit is the last tau at which the slices are finite
    and their sum is exactly the vector.""",
    """The sizes of successive slices are compared on one vector of 10240 entries for each φ and seed, split until the
    remainder is zero, at the entries at which both slices are not zero.""",
]
PUBLISHED = {0.1: (9.8e-10, 8.9e-1), 1.0: (1.4e-9, 1.6e2), 2.0: (4.4e-10, 4.8e4)}
N = 10240


def cells() -> list[Row]:
    return _record.cells("counts", lambda row: True, "n", "phi", "seed")


def evaluate(cell: Row) -> dict[str, float]:
    """The range of the inputs, the limits of tau, and the shares of the entries at which the next slice is larger."""
    numbers = _record.numbers("counts", cell)
    ends = {name: numbers[name] for name in ("smallest", "largest")}
    if cell["n"] != N:
        return ends
    x = inputs.make("phi", (N,), (cell["seed"], 0), "fp64", phi=cell["phi"])
    return ends | _growing(x) | (_limits(cell["seed"]) if cell["phi"] == _record.PHI[0] else {})


def _limits(seed: int) -> dict[str, float]:
    """The smallest and the largest tau that Algorithm 1 splits."""
    x = np.random.default_rng(seed).uniform(0.5, 1.0, 256)
    x[0] = 1.0  # tau = 0
    split = [tau for tau in range(-1073, 1025) if _splits(np.ldexp(x, tau) if tau < 1024 else _largest(x))]
    return {"lowest tau": float(min(split)), "highest tau": float(max(split))}


def _largest(x: NDArray[Any]) -> NDArray[Any]:
    """A vector whose largest entry is the largest fp64 number: tau = 1024."""
    return np.where(x == 1, np.finfo(np.float64).max, np.ldexp(x, 1023))


def _growing(x: NDArray[Any]) -> dict[str, float]:
    """The shares of the entries at which a slice is smaller than the next one, without and with the scales 2^tau."""
    slices = []
    while x.any():
        tau, high = _first_slice(x)
        slices.append((np.abs(np.ldexp(high, -tau)), np.abs(high)))
        x = x - high
    shares = {}
    for column, name in enumerate(("stored", "scaled")):
        pairs = [(one[column], following[column]) for one, following in itertools.pairwise(slices)]
        smaller = np.concatenate([(a < b)[(a > 0) & (b > 0)] for a, b in pairs])
        shares[f"{name} smaller"] = float(smaller.mean())
    return shares


def _first_slice(x: NDArray[Any]) -> tuple[int, NDArray[Any]]:
    """The exponent tau and the first slice, not scaled, of Algorithm 1 as printed."""
    rho = int(np.ceil(53 - (24 - np.log2(N)) / 2))
    mantissa, exponent = np.frexp(np.max(np.abs(x)))
    tau = int(exponent) - int(mantissa == 0.5)
    sigma = np.ldexp(1.0, rho + tau)
    return tau, (x + sigma) - sigma


def _splits(x: NDArray[Any]) -> bool:
    """Whether the first slice of Algorithm 1 as printed is finite, and exact with the remainder."""
    with np.errstate(over="ignore", invalid="ignore"):
        tau, high = _first_slice(x)
        digits = np.ldexp(high, -tau).astype(np.float16)
        return bool(np.all(np.isfinite(digits)) and np.array_equal(np.ldexp(digits.astype(np.float64), tau), high))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.4, share_y=False)
    lengths = sorted({row["n"] for row in rows})
    for axis, column, end in zip(axes[:, 0], ("largest", "smallest"), (1, 0), strict=True):
        for phi, look in LOOK.items():
            runs = [[r[column] for r in rows if (r["phi"], r["n"]) == (phi, n)] for n in lengths]
            plotting.band(axis, lengths, runs, look)
            axis.plot(N, PUBLISHED[phi][end], "*", color=look.color, markeredgecolor="black", markersize=8, zorder=4)
        axis.set(yscale="log", ylabel=f"{column} magnitude")
    axes[0, 0].plot([], [], "*", color="white", markeredgecolor="black", markersize=7, label="published")
    axes[1, 0].set_xticks(lengths, [str(n) for n in lengths])
    axes[1, 0].set_xlabel("$n$")
    plotting.panel_titles(axes, ["largest entry of A and B", "smallest entry of A and B"])
    plotting.legend_below(figure, axes[0, 0], 4, title=in_legend(rows))
    return figure


_SIZES = {"fp16 slices without their scales": "stored", "slices with their scales": "scaled"}


def measures(rows: list[Row]) -> Iterator[Measure]:
    for row in rows:
        if row["n"] == N:
            low, high = PUBLISHED[row["phi"]]
            ratio = row["largest"] / row["smallest"] / (high / low)
            yield Measure("input_range", ratio, variant=f"φ = {row['phi']:g}")
            yield Measure("input_largest", row["largest"] / high, variant=f"φ = {row['phi']:g}")
            for reading, name in _SIZES.items():
                yield Measure("slices_decrease", row[f"{name} smaller"], reading, f"φ = {row['phi']:g}")
            if "highest tau" in row:
                yield Measure("splits_large_exponents", row["highest tau"])
                yield Measure("splits_small_exponents", row["lowest tau"])


def finding(rows: list[Row]) -> str:
    ends = {name: [row[f"{name} tau"] for row in rows if f"{name} tau" in row] for name in ("lowest", "highest")}
    return paragraph(("the limits of the exponent tau that Algorithm 1 splits at n = 10240 are: {}", ends, "g"))


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding)
