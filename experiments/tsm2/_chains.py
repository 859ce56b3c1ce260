"""Chains of fused multiply-adds: their expected error, and how it is drawn.

Growth model for positive data: the sum after t steps is t/4, and each rounding to nearest has an error uniform in half
a unit in the last place either way, of variance ulp(c_t)^2 / 12, independent of the others. Hence for a chain of k

    rms relative error = sqrt(sum_t ulp(c_t)^2 / 12) / c_k,

which is 0.22 to 0.26 u sqrt(k), with u the unit roundoff; the classical bound is k u. A chain of k in s slices has s
chains of length k / s, whose errors are independent, and a chain of s - 1 additions. The model contains only the mean
of c_t: for fewer than about 16 steps, where the sums spread over several binades, it is too large.
"""

from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.plotting import Series

PAPER = """Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs
(2020), Algorithms 1 to 4, 6 and 7; the paper states no errors"""
FORMATS = {"fp32": 24, "fp64": 53}
NEAR = 0.1
"""Largest relative deviation of a measured error that agrees with the expected one."""
LOOK = {
    "fp32": Series("fp32", plotting.VERMILION, "o", "none"),
    "fp64": Series("fp64", plotting.BLUE, "s", "none", filled=False),
}


def expected(k: int, bits: int, slices: int = 1) -> float:
    """Return the rms relative error that the growth model gives for k products in a number of slices.

    >>> f"{expected(10240, 24) * 2**24:.1f}, {expected(10240, 24, 16) * 2**24:.1f} units of the roundoff"
    '26.2, 2.0 units of the roundoff'
    """
    chain = np.arange(1, -(-k // slices) + 1) / 4
    joined = np.arange(2, slices + 1) * k / (4 * slices)
    squares = [np.sum(np.ldexp(1.0, np.frexp(sums)[1] - bits) ** 2) / 12 for sums in (chain, joined)]
    return float(np.sqrt(slices * squares[0] + squares[1]) / (k / 4))


def relative_l2(D: Any, head: Any, tail: Any) -> float:
    """Return the relative L2 error of D against the exact product head + tail."""
    error = (np.asarray(D, np.float64) - head) - tail
    return float(np.sqrt(np.sum(error**2) / np.sum(head**2)))


def farthest(ratios: Any) -> float | None:
    """Return the ratio farthest from 1 on a logarithmic scale; None without ratios."""
    return max(ratios, key=lambda ratio: abs(np.log(ratio)), default=None)


def on_powers(axis: Any, name: str, base: int = 2) -> None:
    """Make both axes logarithmic, x with the powers of ``base`` only."""
    axis.set_xscale("log", base=base)
    axis.set(yscale="log", xlabel=name)
    axis.tick_params(axis="x", which="minor", bottom=False)
