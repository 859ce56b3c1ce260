"""Random terms near the exponents at which given specifications truncate, round and flush."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.probes import Formats, exponents
from fpemu.rounding import Rounding, round_to


@dataclass(frozen=True)
class Draws:
    """Random numbers for n dot products, each aimed at one of several specifications, drawn at random."""

    formats: Formats
    k: int
    rng: np.random.Generator
    kept: NDArray[np.int64]  # (n,): fraction bits of D
    F: NDArray[np.int64]  # (n,): alignment width
    floor: NDArray[np.int64]  # (n,): minimum alignment exponent
    block: NDArray[np.int64]  # (n,): number of products added in one rounding
    columns: NDArray[np.int64]  # (n, k): position in k of each product, in the order of the sums

    @classmethod
    def of(cls, formats: Formats, k: int, specs: Sequence[MmaSpec], rng: np.random.Generator, n: int) -> Draws:
        """Draws for n dot products, aimed at these specifications."""
        some = rng.integers(0, len(specs), n)
        low = formats[0].emin + formats[1].emin
        rows = [
            (s.sum_fraction_bits, s.F, low if s.E0 is None else s.E0, k // 2 if s.arithmetic == "via-half" else s.block)
            for s in specs
        ]
        kept, F, floor, block = np.array(rows, np.int64)[some].T
        columns = np.stack([s.k_order for s in specs])[some]
        return cls(formats, k, rng, kept, F, floor, block, columns)

    def __len__(self) -> int:
        return len(self.F)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Indices of the dot products."""
        return np.arange(len(self))

    @property
    def low(self) -> int:
        """The lowest exponent of a product."""
        return self.formats[0].emin + self.formats[1].emin

    @property
    def high(self) -> int:
        """The highest exponent of a product."""
        return self.formats[0].emax + self.formats[1].emax

    def chance(self, share: float) -> NDArray[np.bool_]:
        """True with this probability, for each dot product."""
        return np.asarray(self.rng.random(len(self)) < share)

    def signs(self, *shape: int) -> NDArray[np.float64]:
        """1 or -1, of shape (n, ...)."""
        return np.asarray(self.rng.choice([-1.0, 1.0], (len(self), *shape)))

    def choose(self, ways: list[Any]) -> NDArray[np.int64]:
        """Each entry from one of several arrays, with equal probability."""
        arrays = np.broadcast_arrays(*ways)
        return np.asarray(np.choose(self.rng.integers(0, len(ways), arrays[0].shape), arrays))

    def between(self, low: Any, high: Any) -> NDArray[np.int64]:
        """Integers from `low` to `high`; `low` where `high` is below it."""
        width = np.maximum(high, low) - low + 1
        return np.asarray(low + np.floor(self.rng.random(np.shape(width)) * width)).astype(np.int64)

    def near(self, x: NDArray[np.int64], below: int = 2, above: int = 2) -> NDArray[np.int64]:
        """Integers near others."""
        return np.asarray(x + self.rng.integers(-below, above + 1, x.shape))

    def significands(self, fmt: FloatFormat, shape: tuple[int, ...], rich: Any = False) -> NDArray[np.float64]:
        """Numbers in [1, 2): with all bits where `rich`; elsewhere also with few, powers of two, and all ones."""
        bits = np.where(rich, fmt.fraction_bits, self.rng.choice([0, 0, 1, 2, fmt.fraction_bits], shape))
        drawn = np.where(~np.asarray(rich) & (self.rng.random(shape) < 0.1), 1.0, self.rng.random(shape))
        return np.asarray(1 + np.minimum(np.floor(drawn * 2.0**bits), 2.0**bits - 1) / 2.0**bits)

    def odd(self, bits: NDArray[np.int64]) -> NDArray[np.float64]:
        """Odd integers of given numbers of bits, scaled to [1, 2)."""
        half = 2.0 ** (bits - 1)
        return np.where(bits > 1, 1 + (2 * np.floor(self.rng.random(bits.shape) * half / 2) + 1) / half, 1.0)

    def fractions(self, fmt: FloatFormat, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Numbers in (0, 1) with the format's fraction bits, half of them of at most two units."""
        most = max(2**fmt.fraction_bits - 1, 1)
        units = self.between(1, np.where(self.rng.random(shape) < 0.5, min(2, most), most))
        return np.asarray(units / 2.0**fmt.fraction_bits)

    def tops(self) -> NDArray[np.int64]:
        """Highest exponents of a block: anywhere, at the ends of D, near the floor, or of a subnormal factor."""
        fa, fb, _, fd = self.formats
        n, low, high = len(self), self.low, self.high
        subnormal = self.rng.choice([fa.emin + fb.emax, fb.emin + fa.emax], n)
        top = self.choose(
            [
                self.rng.integers(low, high + 1, n),
                self.between(max(low, fd.emin - int(self.kept.max()) - 3), np.full(n, min(high, fd.emax))),
                self.near(self.floor, 3, 3),
                self.near(self.floor - self.F, 2, 7),
                self.near(np.full(n, fd.emin), 3, 3),
                self.near(np.full(n, fd.emax), 2, 0),
                low,
                self.near(np.zeros(n, np.int64)),
                subnormal - self.between(0, self.kept),
            ]
        )
        return np.clip(top, low, max(high, fd.emax))  # C alone may reach the highest

    def cuts(self, top: NDArray[np.int64]) -> NDArray[np.int64]:
        """The exponent of the last bit kept by a block."""
        return np.asarray(np.maximum(top, self.floor) - self.F)

    def factors(self, e: NDArray[np.int64], small: Any = 0.1) -> tuple[NDArray[Any], NDArray[Any]]:
        """Positive factors of products with given exponents, clipped to the possible ones.

        Some factors are subnormal: the value of such a product lies below its exponent.
        """
        fa, fb = self.formats[:2]
        e = np.clip(e, self.low, self.high)
        x = self.between(np.maximum(fa.emin, e - fb.emax), np.minimum(fa.emax, e - fb.emin))
        drawn = self.rng.random(e.shape)
        of_a, of_b = drawn < 0.6 * small, (drawn > 0.4 * small) & (drawn < small)  # some products have both
        y = np.where(of_a, np.clip(e - fa.emin, fb.emin, fb.emax), e - x)
        x = np.where(of_b, np.clip(e - fb.emin, fa.emin, fa.emax), x)
        rich = self.chance(0.4).reshape(-1, *[1] * (e.ndim - 1))
        a, b = self.significands(fa, e.shape, rich), self.significands(fb, e.shape, rich)
        a, x = np.where(of_a, self.fractions(fa, e.shape), a), np.where(of_a, fa.emin, x)
        b, y = np.where(of_b, self.fractions(fb, e.shape), b), np.where(of_b, fb.emin, y)
        return np.ldexp(a, x), np.ldexp(b, y)

    def addends(self, e: NDArray[np.int64]) -> NDArray[np.float64]:
        """Values of C with given exponents, clipped to the possible ones, of either sign."""
        fmt = self.formats[2]
        size = np.ldexp(self.significands(fmt, e.shape), np.clip(e, fmt.emin - fmt.fraction_bits, fmt.emax))
        return np.asarray(size * self.signs())

    def summed(self, a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The sums of the truncated products without C, and the exponents of the last bit kept."""
        e = exponents(a, self.formats[0]) + exponents(b, self.formats[1])
        cut = self.cuts(e.max(axis=1))
        place = np.clip(cut, -900, 900)[:, None]
        return np.ldexp(np.trunc(np.ldexp(a * b, -place)), place).sum(axis=1), cut

    def units(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """One unit of D's last place, for numbers of given values."""
        return np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, self.formats[3].emin) - self.kept)

    def codes(
        self, a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Codes of A, B and C: numbers truncated to the formats, products at their positions in k."""
        placed = [np.zeros_like(a), np.zeros_like(b)]
        for x, to in zip((a, b), placed, strict=True):
            np.put_along_axis(to, self.columns, x, axis=1)
        A, B, C = (_codes(x, f) for x, f in zip((*placed, c), self.formats[:3], strict=True))
        return A, B, C


def _codes(x: NDArray[np.float64], fmt: FloatFormat) -> NDArray[Any]:
    """Codes of numbers truncated to a format, the largest number where they exceed it."""
    return np.asarray(fmt.encode(round_to(np.clip(x, -fmt.max, fmt.max), fmt, Rounding.RZ)))
