"""Mean losses of one step of a long sum, for operands with magnitudes uniform in [0, 1].

`_bias` derives them, and adds them up over the steps. Names in docstrings are its symbols.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import MmaSpec

Floats = NDArray[np.float64]


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
