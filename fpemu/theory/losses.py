"""Mean error of one block of an instruction, given the sum to which it adds.

A block aligns its L products p and the sum c at q = 2^(E - F), E the exponent of c or of the largest product, adds
them, and rounds at the last place u of the new sum. On average (the steps are those of Fasi, Higham, Mikaitis, Pranesh
2021, the averages are ours):

* a product with last place g = 2^(e - places) loses (q - g (1 + log2(q/g) / 2)) / 2 toward zero, since x y mod 2^j has
  trailing zeros, and is lost entirely once q >= 4 · 2^e;
* the sum loses (q - u) / 2 toward zero in the alignment, and (u - q) / 2 in a final truncation; rounding to nearest has
  no mean error and a mean square of u^2 / 12. Both require bits below u: the sum is a multiple of the least of the g.

CDNA3 aligns products among themselves and floors sums to 31 and 32 bits, an error toward minus infinity. CDNA2 rounds
the sums of products too. Mantissas are distributed as 1/m, so that E[2^E] = |c| / (2 ln 2).

Sums of products of six bits (e5m2) or less are exact except for rare small terms: the model gives their mean square,
not the size of the rare errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import MmaSpec
from fpemu.theory.norms import SHARES

Floats = NDArray[np.float64]
POWER = 1 / (2 * math.log(2))
"""E[2^E / x] for x = m 2^E, m distributed as 1/m on [1, 2)"""
_POINTS = 7
_LEAST = (4.0, 1.0, 0.25, 1 / 16, 1 / 256)
"""Least last place among L products, over g of a product L times smaller than the mean; it varies."""


@dataclass(frozen=True)
class Products:
    """The products of a block: number, mean magnitude, mean square, and share along one sign."""

    count: int
    magnitude: Floats
    """(n,), as the sums"""
    square: Floats
    """(n,)"""
    sign: float
    """Expected sum of the products over the sum of their magnitudes"""
    terms: tuple[float, ...]
    """`Norms.terms`: their magnitudes over the mean magnitude, with the weights `SHARES`"""


@dataclass(frozen=True)
class Losses:
    """Arrays over the sums given."""

    mean: Floats
    """In the direction of the drift"""
    slope: Floats
    """Mean loss for each unit by which the sum exceeds its mean"""
    square: Floats
    """Mean square of the rest, independent from block to block"""
    down: Floats
    """Toward minus infinity"""


def losses(
    products: Products, spec: MmaSpec, mean: Floats, variance: Floats, step: tuple[Floats, Floats], S: float
) -> Losses:
    """Errors of blocks added to normally distributed sums of this mean and variance (n,).

    A block has the mean and the variance `step`, (n,) each. All are relative to S, whose size determines where sums of
    small variance pass powers of two (nan: unknown).
    """
    z, w = points()
    sd = np.sqrt(np.maximum(variance, 0))
    before = mean[:, None] + sd[:, None] * z
    after = (mean + step[0])[:, None] + np.sqrt(np.maximum(variance, 0) + step[1])[:, None] * z
    steady = (mean**2 > 9 * np.maximum(variance, 0))[:, None] & (0 < S < math.inf)
    into, out = _power(before, S, steady), _power(after, S, steady)
    L, sign, unit = products.count, products.sign, 2.0**-spec.sum_fraction_bits
    p, top, g, least = _products(products, spec)
    reach = np.abs(step[0]) + np.sqrt(step[1])  # typical change of the sum by a block
    truncates = spec.rules.aligned == "terms"
    q = _grid(spec, into, top)
    each, share = _aligned(q[..., None], g, p), np.array(SHARES)
    lost, lost2 = each @ share, (each * np.minimum(q[..., None] * 2 / 3, p)) @ share
    entering = np.where(into > 0, np.maximum(q - unit * into, 0) / 2, 0.0) * truncates
    left = np.maximum(q * truncates, 0.0)[..., None]
    if spec.final == "RZ" and spec.rules.rounds_once:
        rest = np.maximum(left, least)
        gap = np.maximum(unit * out[..., None] - rest, 0)
        rounded, square = gap.mean(-1) / 2, (gap * (2 * unit * out[..., None] - rest)).mean(-1) / 6
    else:
        rest = np.maximum(left, least)
        stochastic = spec.final == "SR"  # at a fraction f the mean square is f (1 - f), 1/6 on average
        square = np.maximum((unit * out[..., None]) ** 2 - rest**2, 0).mean(-1) / (6 if stochastic else 12)
        stuck = (unit * out / 2 > reach[:, None]) & (into > 0) & (not stochastic)  # the sum absorbs each block
        rounded = np.where(stuck, np.abs(step[0])[:, None], 0.0)
    if spec.rules.pairwise:
        square = square + math.log2(spec.block) * L * (POWER * unit) ** 2 / 12 * products.square[:, None]
    if spec.rules.via is not None:
        inner = reach[:, None] * 2.0**-23 * POWER / L
        lost, lost2 = lost + 0.75 * inner, lost2 + inner**2 * L / 2
    down = np.zeros_like(before)
    if spec.rules.floors:
        coarse = np.where(into < top, 2.0**-24 * top, 0.0)
        down = (2.0**-32 * np.maximum(into, top) + 2.0**-31 * out + coarse) / 2
    loss = rounded * np.sign(after) + entering * np.sign(before)
    along = loss @ w
    slope = np.divide((loss * z) @ w, sd, out=np.zeros_like(sd), where=sd > 0)
    about = np.maximum(square - rounded**2 + entering**2 / 3, 0) @ w
    return Losses(
        np.minimum(along, reach) + L * sign * (lost @ w),
        slope,
        about + L * np.maximum(lost2 - (lost * sign) ** 2, 0) @ w,
        down @ w,
    )


def _power(c: Floats, S: float, steady: NDArray[np.bool_]) -> Floats:
    """2^E of c S over S; for sums of large variance its mean over all mantissas."""
    S = math.frexp(S)[0] if 0 < S < math.inf else math.nan  # a power of two in S changes nothing
    exact = np.ldexp(1.0, np.frexp(np.where(steady, np.abs(c) * S, 1.0))[1] - 1) / np.where(steady, S, 1.0)
    return np.where(c == 0, 0.0, np.where(steady, exact, POWER * np.abs(c)))


def _grid(spec: MmaSpec, into: Floats, top: Floats) -> Floats:
    """q for each sum; 0 without alignment."""
    if spec.rules.aligned == "terms":
        return np.maximum(into, top) * 2.0**-spec.F
    return np.zeros_like(into) + (top * 2.0**-spec.F if spec.rules.aligned else 0.0)


def _products(products: Products, spec: MmaSpec) -> tuple[Floats, Floats, Floats, Floats]:
    """Magnitudes of products (n, 1, ...), the largest power of two 2^e among them, their last places, the least."""
    a, b, _, _ = spec.operand_formats
    L, average = products.count, products.magnitude[:, None, None]
    p = average * np.array(products.terms)
    place = POWER**2 * 2.0 ** -(a.precision + b.precision - 2)
    top = POWER**2 * (p @ np.diff(np.cumsum(SHARES) ** L, prepend=0.0))
    return p, top, place * p, place * average / L * np.array(_LEAST)


def _aligned(q: Floats, g: Floats, p: Floats) -> Floats:
    """Mean loss of a product p, a multiple of g, on the grid q."""
    ratio = np.maximum(np.divide(q, g, out=np.ones(np.broadcast_shapes(q.shape, g.shape)), where=g > 0), 1)
    loss = g * (ratio - 1 - np.log2(ratio) / 2) / 2
    return np.where(q >= 4 * POWER**2 * p, p, np.minimum(loss, p))


@lru_cache(maxsize=1)
def points() -> tuple[Floats, Floats]:
    """Gauss-Hermite points and weights of the standard normal distribution."""
    z, w = np.polynomial.hermite_e.hermegauss(_POINTS)
    return z, w / w.sum()
