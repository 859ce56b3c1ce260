"""The bias of truncating accumulation in long sums, predicted from the fields of an instruction.

No product is computed here. Operands have magnitudes uniform in [0, 1] and one sign ("positive") or both ("zero mean");
for others `fpemu.theory.bound` has a bias that follows from norms, less exactly. A product has exponent
e = e_a + e_b, a mean magnitude m(e), and is a multiple of its last place g = 2^(e - (p_a - 1) - (p_b - 1)).

**One step.** An instruction adds L products to a running sum c. E is the largest exponent of c and the products; all
terms are truncated to multiples of q = 2^(E - F). Let E' be the exponent of the new sum.

*Alignment.* A product of two integers has trailing zeros: x y mod 2^j, x and y uniform, is (2^j - 2^v)/2 on average if
x has v of them, hence (2^j - 1 - j/2)/2. With q = 2^j g each product loses

    l(E) = g (2^j - 1 - j/2) / 2,   nothing for j <= 0,   all of m(e) for q >= 4·2^e,

about q/2. The sum itself loses (q - u)/2 where its unit in the last place u is below q.

*Final rounding.* The new sum is a multiple of q and is rounded to u = 2^(E' - f), f fraction bits: to zero (RZ) it
loses r = (u - q)/2, nothing for u <= q; to nearest it loses nothing on average. (Where all products are coarser than q,
in the first steps of formats with few bits, it loses less than that.) A sum so large that u exceeds twice the standard
deviation of a step's sum b of products, modelled as normal, loses E[b - u rint(b / u)] if it is rounded to nearest: all
of b once b < u/2. Positive sums of fp16 do so from a few thousand products on.

A step loses L l + r. With q <= u that is, in units in the last place of the sum and per product,

    beta = q/(2u) + (u - q)/(2u L),   q/u = 2^(f - F):

1/2 for L = 4, F = f = 23 (Volta), 9/32 for L = 8, F = 24 (Ampere), 19/128 for L = 16, F = 25 (Hopper).

**Positive data.** c after t steps is modelled as normal, with the mean t L E[p] minus the previous losses and the
variance of t L products; the loss of k products is the sum over the steps. c is proportional to k and u to c, so the
relative loss is proportional to k.

**Zero mean.** A loss has the opposite sign of the truncated number: r of the new sum, l of each product. The component
along the sign of the final sum S counts. c is normal with variance t L s^2, and independent of the later products:

    E[r sign(c') sign(S)] = E[r erf(|c'| / sqrt(2 v))],   v = (T - t - 1) L s^2, the variance of S - c', T steps in all,
    E[l sign(p) sign(S)] = 2 E[l |p|] E[phi(c)],   phi the density of S - c: how often p decides the sign of S.

Both are averaged over c at quantiles, and divided by the root mean square of S, s sqrt(k). The first is proportional to
k again (each c loses the same fraction), the second to sqrt(k).

**CDNA 3** truncates products 24 bits below their largest exponent, then rounds downwards: the sum of products to
2^(E - 32), everything to 2^(E' - 31), and rounds to nearest. Downwards is a loss for positive data; for others it is a
drift to minus infinity that is the same for either sign of S.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import MmaSpec

Floats = NDArray[np.float64]
_QUANTILES, _BLOCKS, _STRETCHES = 301, 15, 120
_MEAN, _SQUARE = 1 / 4, 1 / 9
"""Of a product of two magnitudes uniform in [0, 1]."""


def positive(spec: MmaSpec, k: int) -> float:
    """Return the expected relative loss of a sum of products of operands uniform in [0, 1].

    The loss is (exact - computed) / exact for one chain of k products.

    >>> import fpemu
    >>> [f"{positive(fpemu.mma.spec(gpu, 'fp16', 'fp32'), 4096):.1e}" for gpu in ("V100", "A100", "H200")]
    ['8.1e-05', '4.5e-05', '2.3e-05']
    """
    products, lost, L = Products.of(spec), 0.0, min(spec.block, k)
    block = _MEAN * L + _deviation(_SQUARE - _MEAN**2, L) * _quantiles(_BLOCKS)
    for steps, t in _walk(k, L):
        spread = _deviation(_SQUARE - _MEAN**2, t * L) * _quantiles(_QUANTILES)
        # a sum of positive products is not negative, as the normal approximation has it in the first steps
        c = np.abs(t * L * _MEAN - lost + spread)[:, None]
        lost += steps * float(np.mean(L * products.alignment(c) + products.entering(c) + products.final(c, c + block)))
        if spec.final == "RNE":
            lost += steps * _absorbed(c, spec, L)
    return min(lost / (k * _MEAN), 1.0)


def towards_zero(spec: MmaSpec, k: int) -> float:
    """Return the expected loss toward zero of a sum of products of operands uniform in [-1, 1].

    The loss is -(computed - exact) sign(exact), relative to the root mean square of the exact sum.

    >>> import fpemu
    >>> [f"{towards_zero(fpemu.mma.spec(gpu, 'fp16', 'fp32'), 4096):.1e}" for gpu in ("V100", "A100", "H200")]
    ['5.7e-07', '4.5e-06', '3.3e-06']
    """
    from scipy.special import erf  # slow to import

    products, lost, L = Products.of(spec), 0.0, min(spec.block, k)
    whole = -(-k // L)
    for steps, t in _walk(k, L):
        c = _deviation(_SQUARE, t * L) * _quantiles(_QUANTILES)[:, None]
        ahead = _deviation(_SQUARE, (whole - t) * L)
        density = np.exp(-0.5 * (c / ahead) ** 2) / (math.sqrt(2 * math.pi) * ahead)
        along = 2 * L * products.alignment(np.abs(c), by_size=True) * density
        if not spec.rules.floors:
            after = c + _deviation(_SQUARE, L) * _quantiles(_BLOCKS)
            later = max(_deviation(_SQUARE, (whole - t - 1) * L), 1e-9)
            along = along + products.entering(np.abs(c)) * erf(np.abs(c) / (math.sqrt(2) * ahead))
            along = along + products.final(np.abs(c), np.abs(after)) * erf(np.abs(after) / (math.sqrt(2) * later))
        lost += steps * float(np.mean(along))
    return min(lost / math.sqrt(k * _SQUARE), math.sqrt(2 / math.pi))  # all of the sum is lost


def downwards(spec: MmaSpec, k: int) -> float:
    """Return the expected loss toward -infinity of a sum of products of operands uniform in [-1, 1].

    The loss is exact - computed, relative to the root mean square of the exact sum. Only CDNA 3 rounds downward.

    >>> import fpemu
    >>> f"{downwards(fpemu.mma.spec('MI300X', 'fp16', 'fp32'), 4096):.1e}"
    '6.2e-13'
    """
    products, lost, L = Products.of(spec), 0.0, min(spec.block, k)
    for steps, t in _walk(k, L) if spec.rules.floors else ():
        c = _deviation(_SQUARE, t * L) * _quantiles(_QUANTILES)[:, None]
        after = c + _deviation(_SQUARE, L) * _quantiles(_BLOCKS)
        lost += steps * float(np.mean(products.final(np.abs(c), np.abs(after))))
    return lost / math.sqrt(k * _SQUARE)


# --- the mean losses of one step
@dataclass(frozen=True)
class Products:
    """The products of an instruction by exponent, and the mean losses of the products and of the sum c in a step.

    The methods take magnitudes of sums.
    """

    spec: MmaSpec
    kept: int
    """f"""
    classes: tuple[tuple[int, float, float], ...]
    """Exponent, probability and mean magnitude."""
    places: int
    """A product is a multiple of 2^(its exponent - places)."""
    top: int
    """The largest exponent that the products of a block usually have."""

    @staticmethod
    @functools.cache
    def of(spec: MmaSpec) -> Products:
        a, b = spec.operand_formats[:2]
        sums: dict[int, tuple[float, float]] = {}
        for ea, pa, ma in _magnitudes(a.emin):
            for eb, pb, mb in _magnitudes(b.emin):
                p, total = sums.get(ea + eb, (0.0, 0.0))
                sums[ea + eb] = (p + pa * pb, total + pa * pb * ma * mb)
        classes = tuple((e, p, total / p) for e, (p, total) in sums.items())
        usual = (e for e, p, _ in classes if p * spec.block >= 0.5)
        top = max(usual, default=max(classes, key=lambda c: c[1])[0])
        return Products(spec, spec.sum_fraction_bits, classes, a.precision + b.precision - 2, top)

    def grid(self, c: Floats) -> Floats:
        """q; 0 without truncation."""
        if self.spec.rules.aligned != "terms":
            return np.full_like(c, 2.0 ** (self.top - self.spec.F) if self.spec.rules.aligned else 0.0)
        return np.ldexp(1.0, np.maximum(exponent(c), self.top) - self.spec.F)

    def alignment(self, c: Floats, by_size: bool = False) -> Floats:
        """l, the mean loss of a product; by_size: E[l |p|]."""
        grids, where = np.unique(self.grid(c), return_inverse=True)
        return np.array([self._lost(q, by_size) for q in grids.tolist()])[where].reshape(c.shape)

    def entering(self, c: Floats) -> Floats:
        """Mean loss of the sum in the alignment, (q - u) / 2."""
        if self.spec.rules.aligned != "terms":
            return np.zeros_like(c)
        return np.where(c > 0, np.maximum(self.grid(c) - np.ldexp(1.0, exponent(c) - self.kept), 0.0) / 2, 0.0)

    def final(self, c: Floats, after: Floats) -> Floats:
        """r, the mean loss of the final rounding."""
        if self.spec.rules.floors:
            low = np.ldexp(1.0, np.maximum(exponent(c), self.top) - 32)
            high = np.ldexp(1.0, exponent(after) - 31)
            return (np.maximum(low - self.grid(c), 0.0) + np.maximum(high - np.maximum(low, self.grid(c)), 0.0)) / 2
        if self.spec.final == "RNE":
            return np.zeros_like(after)
        return np.maximum(np.ldexp(1.0, exponent(after) - self.kept) - self.grid(c), 0.0) / 2

    def _lost(self, q: float, by_size: bool) -> float:
        total = 0.0
        for e, p, mean in self.classes:
            last = 2.0 ** (e - self.places)
            j = math.log2(q / last) if q > last else 0.0
            loss = mean if q >= 4 * 2.0**e else last * (2.0**j - 1 - j / 2) / 2
            total += p * loss * (mean if by_size else 1.0)
        return total


def _magnitudes(emin: int) -> list[tuple[int, float, float]]:
    """Exponent, probability and mean of a magnitude uniform in [0, 1]; the last class includes all smaller ones."""
    least = max(emin, -30)
    normal = [(e, 2.0**e, 1.5 * 2.0**e) for e in range(-1, least, -1)]
    return [*normal, (least, 2.0 ** (least + 1), 2.0**least)]


def exponent(c: Floats) -> NDArray[Any]:
    """floor(log2 c); for 0 a value below the exponent of every product."""
    return np.where(c > 0, np.frexp(c)[1] - 1, -80)


def _absorbed(c: Floats, spec: MmaSpec, L: int) -> float:
    """Mean loss of sums to which blocks are added and rounded to nearest, the blocks less scattered than u."""
    mean, deviation = _MEAN * L, _deviation(_SQUARE - _MEAN**2, L)
    u = np.ldexp(1.0, exponent(c + mean) - spec.sum_fraction_bits)
    u = u[u > 2 * deviation]  # below, the errors have a mean of less than a hundredth of the deviation
    block = mean + deviation * _quantiles(_QUANTILES)[:, None]
    return float(np.sum(np.mean(block - u * np.rint(block / u), axis=0))) / c.size


def _walk(k: int, L: int) -> Iterator[tuple[int, float]]:
    """Stretches of steps: how many, and the steps before the middle one."""
    steps = -(-k // L)
    edges = np.unique(np.rint(np.linspace(0, steps, min(steps, _STRETCHES) + 1)).astype(int)).tolist()
    for start, stop in pairwise(edges):
        yield stop - start, (start + stop - 1) / 2


def _deviation(square: float, count: float) -> float:
    return math.sqrt(max(square * count, 0.0))


@functools.cache
def _quantiles(count: int) -> Any:
    """Of the standard normal distribution, in the middles of equally likely parts."""
    from scipy.special import ndtri  # slow to import

    return ndtri((np.arange(count) + 0.5) / count)
