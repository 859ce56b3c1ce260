"""Probes that distinguish the remaining specifications: random operands near the exponents at which they differ.

Some properties appear only in operands that must be searched for: with blocks of one product and a D of few bits, F
matters only where a product lies halfway between two numbers of D and C decides the rounding. Operands are therefore
drawn near the halves and truncation points of the specifications, the emulator evaluates each specification, and only
operands with different results are sent to the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fpemu.formats import FloatFormat
from fpemu.mma import operand_streams as streams
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.fit import Results
from fpemu.probing.arithmetic.probes import Array, Formats, Probes, exponents
from fpemu.rounding import Rounding, round_to

PRODUCTS = 2**18  # largest number of products drawn at a time
MOST = 20_000  # largest number of operands drawn at a time
_EACH = 3  # probes for each specification that is distinguished from the first
_VERIFYING = 10  # one operand in this many is drawn like those of the verification


def separating(results: Results, specs: Sequence[MmaSpec], seed: int) -> Probes:
    """Probes for which some specifications give other results than the first; empty if none were drawn."""
    rng = np.random.default_rng(seed)
    drawn = draw(results.formats, results.k, specs, rng, min(MOST, PRODUCTS // results.k))
    pool = Results(results.formats, results.k, drawn, np.zeros(len(drawn), results.D.dtype))
    emulated = [pool.values(spec) for spec in specs]
    chosen: set[int] = set()
    order = np.argsort(drawn.terms(), kind="stable")  # few terms first
    for other in emulated[1:]:
        differ = order[((other != emulated[0]) & ~(np.isnan(other) & np.isnan(emulated[0])))[order]]
        if not chosen.intersection(differ[: 4 * _EACH].tolist()):
            chosen.update(differ[:_EACH].tolist())
            chosen.update(rng.permutation(differ)[:_EACH].tolist())
    return drawn.take(np.array(sorted(chosen), np.int64))


def draw(formats: Formats, k: int, specs: Sequence[MmaSpec], rng: np.random.Generator, n: int) -> Probes:
    """About n operands, each aimed at one of the specifications, and some like those of the verification."""
    spec, seed = specs[int(rng.integers(len(specs)))], int(rng.integers(2**63))
    each = max(1, n // _VERIFYING // len(streams.CLASSES))
    random = (streams.operands(spec, kind, seed, 0, each, 1, 1) for kind in streams.CLASSES)
    parts = [(A[:, 0], B[:, 0], C[:, 0, 0]) for A, B, C in random]
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        parts.append(_Draws(formats, k, specs, rng, n).operands())
    A, B, C = (np.concatenate(x) for x in zip(*parts, strict=True))
    return Probes.without_level(A, B, C, "aimed")


class _Draws:
    """Random numbers for n dot products, each aimed at one of several specifications, drawn at random."""

    def __init__(self, formats: Formats, k: int, specs: Sequence[MmaSpec], rng: np.random.Generator, n: int):
        self.formats, self.k, self.rng, self.n, self.rows = formats, k, rng, n, np.arange(n)
        some = rng.integers(0, len(specs), n)
        self.low, self.high = (sum(getattr(f, name) for f in formats[:2]) for name in ("emin", "emax"))
        rows = [(s.sum_fraction_bits, s.F, self.low if s.E0 is None else s.E0, s.issued.block) for s in specs]
        # fraction bits of D, alignment width, minimum alignment exponent, number of products added in one rounding
        self.kept, self.F, self.floor, self.block = np.array(rows, np.int64)[some].T
        self.columns = np.stack([s.k_order for s in specs])[some]  # position in k of each product, in order of the sums

    def operands(self) -> tuple[Array, Array, Array]:
        """Codes of A, B and C: terms near the highest exponent, half a unit of D's last place, and the truncation.

        A product or C is a tie of D, or C brings the sum of the products to a tie or near a number of D.
        """
        k, n, rng, rows, (_, _, fc, fd) = self.k, self.n, self.rng, self.rows, self.formats
        mode = rng.choice(6, n, p=[0.22, 0.15, 0.15, 0.2, 0.2, 0.08])
        # `deep`: a product with a subnormal factor, whose exponent exceeds its value, reaches the lowest
        # bits. `many`: products of one sign, whose sum exceeds each of them. `tie`: a product is a tie, `half`: C is
        deep, many, tie, half, alone = (mode == i for i in range(1, 6))
        top = np.where(deep, self.subnormal() - rng.integers(0, 4, n), self.tops())
        largest = many & self.chance(0.2)
        top = np.where(many & self.chance(0.4), self.high - rng.integers(0, 3, n), top)
        top = np.where(largest, self.high, top)
        # positions: mostly of one block, which is the first block in most products
        block = np.minimum(self.block, k)
        start = np.where(self.chance(0.3), rng.integers(0, k, n) // block * block, 0)
        first = start + rng.integers(0, block)
        second = np.where(self.chance(0.2), rng.integers(0, k, n), np.minimum(start + rng.integers(0, block), k - 1))
        few = np.where(mode == 0, np.minimum(rng.choice([1, 1, 2, 2, 3, 4, k], n), k), 1)
        few = np.where(many, np.where(self.chance(0.5), block, rng.integers(1, k + 1, n)), few)
        second = np.where(many, self.between(few, np.full(n, k)) - 1, second)
        e = self.beside(top[:, None], (n, k))
        e = np.where(many[:, None], top[:, None] - rng.integers(0, rng.integers(1, 4, n)[:, None], (n, k)), e)
        x, y, moved = self.tie(top)
        cut = self.cuts(np.where(tie, moved, np.where(many, top + rng.integers(0, 4, n), top)))
        e[rows, first] = np.where(half, self.choose([self.near(cut), self.far(top)]), top)
        e[rows, second] = np.where(second == first, e[rows, first], self.choose([*[self.near(cut)] * 4, self.far(top)]))
        a, b = self.factors(e, np.where(deep, 1.0, np.where(many, 0.05, np.where(self.chance(0.3), 0.3, 0.1)))[:, None])
        powers = (~many & self.chance(0.5))[:, None]
        a, b = (np.where(powers, np.ldexp(1.0, np.frexp(z)[1] - 1), z) for z in (a, b))
        of_largest = largest[:, None] & (rng.random((n, k)) < 0.9) & (np.arange(k) != second[:, None])
        a, b = (np.where(of_largest, f.max, z) for f, z in zip(self.formats, (a, b), strict=False))
        a[rows, first], b[rows, first] = (np.where(tie, z, w[rows, first]) for z, w in ((x, a), (y, b)))
        used = np.where(many[:, None], np.arange(k), rng.permuted(np.tile(np.arange(k), (n, 1)), axis=1)) < few[:, None]
        used &= (many | (mode == 0))[:, None]
        used[rows, second] |= many | self.chance(0.35)
        used[rows, first] |= ~many & self.chance(0.95)
        used &= ~alone[:, None]
        one_sign = many[:, None] & (np.arange(k) != second[:, None])
        sign = np.where(one_sign, self.signs()[:, None], self.signs(k))
        a, b = np.where(used, a * sign, 0.0), np.where(used, b, 0.0)
        other = rng.integers(0, k, n)
        undone = (mode == 0) & self.chance(0.2) & (other != first)  # a product that cancels the first
        a[rows, other] = np.where(undone, -a[rows, first], a[rows, other])
        b[rows, other] = np.where(undone, b[rows, first], b[rows, other])
        # C: anywhere, cancelling, a tie of D, or with the sum a tie or a number of D
        e_c = np.where((top > self.high) | self.chance(0.2), top, self.beside(top, (n,)))
        beside = self.choose([self.near(cut), self.near(cut), self.far(top), fc.emin - fc.fraction_bits])
        c = self.addends(np.where(tie, beside, e_c))
        at = np.where(alone, self.choose([self.near(self.floor, 3), fc.emin + rng.integers(0, 4, n)]), top)
        at = np.clip(at, fc.emin - 2, fc.emax)
        unit = np.maximum(at, fd.emin) - self.kept
        whole = np.floor(np.ldexp(1 + rng.random(n), np.clip(at - unit, 0, 52)))
        rest = np.where(alone & self.chance(0.7), np.ldexp(self.signs(), -rng.integers(1, 25, n)), 0.0)
        c = np.where(half | alone, np.ldexp(whole + 0.5 + rest, unit) * self.signs(), c)
        summed = (mode == 0) & self.chance(0.4)
        c = np.where(deep | summed, self.completing(a, b), c)
        c = np.where(many & self.chance(0.8), self.choose([0.0 * top, 0.0 * top, -(a * b).sum(axis=1)]), c)
        c = np.where((mode == 0) & self.chance(0.15), -(a * b)[rows, first], c)
        return self.codes(a, b, np.where(~(half | alone) & self.chance(0.15), 0.0, c))

    def tie(self, top: Array) -> tuple[Array, Array, Array]:
        """Factors of a product halfway between two numbers of D, and its exponent."""
        fa, fb, _, fd = self.formats
        bits = self.kept + 2
        of_a = self.between(np.maximum(1, bits - fb.precision), np.minimum(fa.precision, bits))
        of_b = np.clip(bits - of_a + self.rng.integers(-2, 2, self.n), 1, fb.precision)
        half = [2.0 ** (n - 1) for n in (of_a, of_b)]  # odd integers of so many bits, scaled to [1, 2)
        x, y = (np.where(h > 1, 1 + (2 * np.floor(self.rng.random(self.n) * h / 2) + 1) / h, 1.0) for h in half)
        carried = x * y >= 2  # the product has one more bit
        lowest = np.where(of_a + of_b - 1 + carried < bits, fd.emin, top) - bits + 1
        e = np.clip(lowest + of_a + of_b - 2, self.low, self.high)
        of_e = self.between(np.maximum(fa.emin, e - fb.emax), np.minimum(fa.emax, e - fb.emin))
        return np.ldexp(x, of_e), np.ldexp(y, e - of_e), e

    def completing(self, a: Array, b: Array) -> Array:
        """C that brings the sum of the truncated products to a tie or a number of D, or within a few units of C."""
        fc, n, rng = self.formats[2], self.n, self.rng
        e = exponents(a, self.formats[0]) + exponents(b, self.formats[1])
        cut = self.cuts(e.max(axis=1))
        place = np.clip(cut, -900, 900)[:, None]
        total = np.ldexp(np.trunc(np.ldexp(a * b, -place)), place).sum(axis=1)
        scale, step = np.array([(1, 0.5), (1, -0.5), (0.5, -0.5), (0.5, 0.5), (2, 0.5), (4, 0.5), (1, 0), (1, 1)]).T
        way = rng.integers(0, len(step), n)
        unit = np.ldexp(scale[way], np.maximum(np.frexp(total)[1] - 1, self.formats[3].emin) - self.kept)
        c = np.copysign((np.floor(np.abs(total) / unit) + step[way]) * unit, total) - total
        beside = np.where(self.chance(0.5), np.ldexp(1.0, self.near(cut)), np.ldexp(unit, -rng.integers(0, 40, n)))
        return np.where(c == 0, beside * self.signs(), c) * (1 + rng.integers(-2, 3, n) * 2.0**-fc.fraction_bits)

    # --- exponents
    def beside(self, top: Array, shape: tuple[int, ...]) -> Array:
        """Exponents near the highest, near half a unit of D's last place, near the truncation, or anywhere below."""
        m = self.kept.reshape(-1, *[1] * (len(shape) - 1))
        c = self.cuts(top.reshape(-1)).reshape(m.shape)
        near = self.rng.integers(-2, 3, shape)
        far = self.far(np.broadcast_to(top, shape))
        return self.choose([top - abs(near), top - m - 1 + near // 2, c + near, c + near, far, top])

    def far(self, top: Array) -> Array:
        """Exponents up to 60 below the highest."""
        return np.asarray(top - self.rng.integers(0, 60, top.shape))

    def tops(self) -> Array:
        """Highest exponents of a block: anywhere, at the ends of D, near the floor, or of a subnormal factor."""
        fd, n, low, high = self.formats[3], self.n, self.low, self.high
        top = self.choose(
            [
                self.rng.integers(low, high + 1, n),
                self.between(max(low, fd.emin - int(self.kept.max()) - 3), np.full(n, min(high, fd.emax))),
                self.near(self.floor, 3),
                self.near(self.floor - self.F, 6),
                self.near(np.full(n, fd.emin), 3),
                self.near(np.full(n, min(high, fd.emax))),
                low,
                self.near(np.zeros(n, np.int64)),
                self.subnormal() - self.between(0, self.kept),
            ]
        )
        return np.clip(top, low, max(high, fd.emax))  # C alone may reach the highest

    def subnormal(self) -> Array:
        """The highest exponent of a product with a subnormal factor."""
        fa, fb = self.formats[:2]
        return self.rng.choice([fa.emin + fb.emax, fb.emin + fa.emax], self.n)

    def cuts(self, top: Array) -> Array:
        """The exponent of the last bit kept by a block."""
        return np.asarray(np.maximum(top, self.floor) - self.F)

    # --- random numbers
    def chance(self, share: float) -> Array:
        """True with this probability, for each dot product."""
        return np.asarray(self.rng.random(self.n) < share)

    def signs(self, *shape: int) -> Array:
        """1 or -1, of shape (n, ...)."""
        return np.asarray(self.rng.choice([-1.0, 1.0], (self.n, *shape)))

    def choose(self, ways: list[Any]) -> Array:
        """Each entry from one of several arrays, with equal probability."""
        arrays = np.broadcast_arrays(*ways)
        return np.asarray(np.choose(self.rng.integers(0, len(ways), arrays[0].shape), arrays))

    def between(self, low: Any, high: Any) -> Array:
        """Integers from `low` to `high`; `low` where `high` is below it."""
        width = np.maximum(high, low) - low + 1
        return np.asarray(low + np.floor(self.rng.random(np.shape(width)) * width)).astype(np.int64)

    def near(self, x: Array, most: int = 2) -> Array:
        """Integers near others."""
        return np.asarray(x + self.rng.integers(-most, most + 1, x.shape))

    def significands(self, fmt: FloatFormat, shape: tuple[int, ...], rich: Any = False) -> Array:
        """Numbers in [1, 2): with all bits where `rich`; elsewhere also with few, powers of two, and all ones."""
        bits = np.where(rich, fmt.fraction_bits, self.rng.choice([0, 0, 1, 2, fmt.fraction_bits], shape))
        drawn = np.where(~np.asarray(rich) & (self.rng.random(shape) < 0.1), 1.0, self.rng.random(shape))
        return np.asarray(1 + np.minimum(np.floor(drawn * 2.0**bits), 2.0**bits - 1) / 2.0**bits)

    def fractions(self, fmt: FloatFormat, shape: tuple[int, ...]) -> Array:
        """Numbers in (0, 1) with the format's fraction bits, half of them of at most two units."""
        most = max(2**fmt.fraction_bits - 1, 1)
        units = self.between(1, np.where(self.rng.random(shape) < 0.5, min(2, most), most))
        return np.asarray(units / 2.0**fmt.fraction_bits)

    def factors(self, e: Array, small: Array) -> tuple[Array, Array]:
        """Positive factors of products with given exponents, clipped to the possible ones.

        A share `small` has a subnormal factor: the value of such a product lies below its exponent.
        """
        fa, fb = self.formats[:2]
        e = np.clip(e, self.low, self.high)
        x = self.between(np.maximum(fa.emin, e - fb.emax), np.minimum(fa.emax, e - fb.emin))
        drawn = self.rng.random(e.shape)
        of_a, of_b = drawn < 0.6 * small, (drawn > 0.4 * small) & (drawn < small)  # some products have both
        y = np.where(of_a, np.clip(e - fa.emin, fb.emin, fb.emax), e - x)
        x = np.where(of_b, np.clip(e - fb.emin, fa.emin, fa.emax), x)
        rich = self.chance(0.4)[:, None]
        a, b = self.significands(fa, e.shape, rich), self.significands(fb, e.shape, rich)
        a, x = np.where(of_a, self.fractions(fa, e.shape), a), np.where(of_a, fa.emin, x)
        b, y = np.where(of_b, self.fractions(fb, e.shape), b), np.where(of_b, fb.emin, y)
        return np.ldexp(a, x), np.ldexp(b, y)

    def addends(self, e: Array) -> Array:
        """Values of C with given exponents, clipped to the possible ones, of either sign."""
        fmt = self.formats[2]
        size = np.ldexp(self.significands(fmt, e.shape), np.clip(e, fmt.emin - fmt.fraction_bits, fmt.emax))
        return np.asarray(size * self.signs())

    def codes(self, a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
        """Codes of A, B and C: numbers truncated to the formats, products at their positions in k."""
        placed = [np.zeros_like(a), np.zeros_like(b)]
        for x, to in zip((a, b), placed, strict=True):
            np.put_along_axis(to, self.columns, x, axis=1)
        limited = (np.clip(x, -f.max, f.max) for x, f in zip((*placed, c), self.formats, strict=False))
        A, B, C = (f.encode(round_to(x, f, Rounding.RZ)) for x, f in zip(limited, self.formats[:3], strict=True))
        return np.asarray(A), np.asarray(B), np.asarray(C)
