"""Probes that distinguish the remaining specifications: random operands near the exponents at which they differ.

Some properties appear only in operands that must be searched for: with blocks of one product and a D of few bits, F
matters only where a product lies halfway between two numbers of D and C decides the rounding. Operands are therefore
drawn near the halves and truncation points of the specifications, the emulator evaluates each specification, and only
operands with different results are sent to the instruction.

Each kind of operands brings a sum to a tie, or to a number of D at a truncation, in another way: by C, by a product, or
by both. Which of them is possible depends on the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
Drawn = tuple[Array, Array, Array]  # a (n, k), b (n, k), c (n,)


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
    """About n operands of all kinds, each aimed at one of the specifications."""
    spec, seed = specs[int(rng.integers(len(specs)))], int(rng.integers(2**63))
    each = max(1, n // _VERIFYING // len(streams.CLASSES))
    random = (streams.operands(spec, kind, seed, 0, each, 1, 1) for kind in streams.CLASSES)
    parts = [(A[:, 0], B[:, 0], C[:, 0, 0]) for A, B, C in random]
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        for kind, share in _KINDS.items():
            draws = Draws.of(formats, k, specs, rng, max(1, n * share // sum(_KINDS.values())))
            parts.append(draws.codes(*kind(draws)))
    A, B, C = (np.concatenate(x) for x in zip(*parts, strict=True))
    return Probes.without_level(A, B, C, "aimed")


# --- kinds of operands
def _terms(draws: Draws) -> Drawn:
    """A few terms: near the highest, near half a unit of D's last place, near the truncation; some cancel."""
    n, k, rows, rng = len(draws), draws.k, draws.rows, draws.rng
    top = draws.tops()

    def beside(shape: tuple[int, ...]) -> Array:
        t, c, m = (x.reshape(-1, *[1] * (len(shape) - 1)) for x in (top, draws.cuts(top), draws.kept))
        some = [-rng.integers(0, 3, shape), rng.integers(-1, 2, shape), rng.integers(-2, 3, shape)]
        ways = [t + some[0], t - m - 1 + some[1], c + some[2], c + some[2], t - rng.integers(0, 60, shape), t]
        return draws.choose(ways)

    first = rng.integers(0, k, n)
    e = beside((n, k))
    e[rows, first] = top
    a, b = draws.factors(e)
    few = np.minimum(rng.choice([1, 1, 2, 2, 3, 4, k], n), k)
    used = rng.permuted(np.arange(k) < few[:, None], axis=1)
    used[rows, first] = draws.chance(0.9)
    a, b = np.where(used, a * draws.signs(k), 0.0), np.where(used, b, 0.0)
    e_c = np.where((top > draws.high) | draws.chance(0.2), top, beside((n,)))
    c = draws.addends(e_c)
    if k > 1:  # a product that cancels the first
        undone, other = draws.chance(0.25), (first + rng.integers(1, k, n)) % k
        a[rows, other] = np.where(undone, -a[rows, first], a[rows, other])
        b[rows, other] = np.where(undone, b[rows, first], b[rows, other])
    c = np.where(draws.chance(0.15), -a[rows, first] * b[rows, first], c)
    return a, b, np.where(draws.chance(0.25), 0.0, c)


def _product_is_a_tie(draws: Draws) -> Drawn:
    """A product halfway between two numbers of D, and a rest near the truncation: C or another product."""
    fa, fb, fc, fd = draws.formats
    n, rng, rows = len(draws), draws.rng, draws.rows
    a, b, first, second = _places(draws)
    bits = draws.kept + 2
    of_a = draws.between(np.maximum(1, bits - fb.precision), np.minimum(fa.precision, bits))
    of_b = np.clip(bits - of_a + rng.integers(-2, 2, n), 1, fb.precision)
    x, y = draws.odd(of_a), draws.odd(of_b)
    carried = x * y >= 2  # the product has one more bit
    lowest = np.where(of_a + of_b - 1 + carried < bits, fd.emin - bits + 1, draws.tops() - bits + 1)
    e = np.clip(lowest + of_a + of_b - 2, draws.low, draws.high)
    of_e = draws.between(np.maximum(fa.emin, e - fb.emax), np.minimum(fa.emax, e - fb.emin))
    cut = draws.near(draws.cuts(e))
    _put(draws, a, b, second, np.where(draws.chance(0.5), cut, e - rng.integers(0, 60, n)), 0.5)
    b[rows, second] = np.where(draws.chance(0.6), 0.0, b[rows, second])
    a[rows, first], b[rows, first] = np.ldexp(x, of_e) * draws.signs(), np.ldexp(y, e - of_e)
    of_c = np.where(draws.chance(0.5), cut, draws.choose([e - rng.integers(0, 60, n), fc.emin - fc.fraction_bits]))
    c = draws.addends(of_c)
    return a, b, np.where(draws.chance(0.2), 0.0, c)


def _c_is_a_tie(draws: Draws) -> Drawn:
    """C halfway between two numbers of D, and products below it."""
    a, b, first, second = _places(draws)
    fc, fd = draws.formats[2:]
    top = np.clip(draws.tops(), fc.emin - 2, fc.emax)
    unit = np.maximum(top, fd.emin) - draws.kept
    whole = np.ldexp(1.0, np.clip(top - unit, 0, 52))
    c = np.ldexp(np.floor(whole * (1 + draws.rng.random(len(draws)))) + 0.5, unit)
    cut = draws.cuts(top)
    for q in (second, first):
        e = draws.choose([draws.near(cut), draws.near(cut), top - draws.rng.integers(0, 60, len(draws))])
        _put(draws, a, b, q, e, 0.5)
    a[draws.rows, second] = np.where((second != first) & draws.chance(0.5), 0.0, a[draws.rows, second])
    return a, b, c * draws.signs()


def _c_alone(draws: Draws) -> Drawn:
    """C alone, halfway between two numbers of D except for a rest."""
    n, rng, (fc, fd) = len(draws), draws.rng, draws.formats[2:]
    t = fc.emin + rng.integers(0, 4, n)
    t = np.where(draws.chance(0.5), t, np.clip(draws.near(draws.floor, 3, 3), fc.emin, fc.emax))
    depth = draws.kept + 1 - np.maximum(fd.emin - t, 0)
    rest = np.ldexp(1.0, -depth) + rng.choice([-1.0, 0.0, 1.0], n) * np.ldexp(1.0, -depth - rng.integers(1, 25, n))
    return np.zeros((n, draws.k)), np.zeros((n, draws.k)), np.ldexp(1 + rest, t) * draws.signs()


def _c_to_a_tie(draws: Draws) -> Drawn:
    """Products, and the C that brings their sum to a tie or to a number of D, or to within a few units of C of it.

    A product with a subnormal factor reaches the lowest bits: its exponent exceeds the exponent of its value.
    """
    fa, fb, fc, _ = draws.formats
    n, rng, rows = len(draws), draws.rng, draws.rows
    a, b, first, second = _places(draws)
    top = draws.tops()
    deep = draws.chance(0.4)
    top = np.where(deep, rng.choice([fa.emin + fb.emax, fb.emin + fa.emax], n) - rng.integers(0, 4, n), top)
    _put(draws, a, b, first, top, 0.5, small=np.where(deep, 1.0, 0.2))
    x, y = draws.factors(draws.near(draws.cuts(top)))
    other = draws.chance(0.25) & (second != first)
    a[rows, second] = np.where(other, x * draws.signs(), a[rows, second])
    b[rows, second] = np.where(other, y, b[rows, second])
    total, cut = draws.summed(a, b)
    scale, step = np.array([(1, 0.5), (1, -0.5), (0.5, -0.5), (0.5, 0.5), (2, 0.5), (4, 0.5), (1, 0), (1, 1)]).T
    way = rng.integers(0, len(step), n)
    unit = draws.units(total) * scale[way]
    c = np.copysign((np.floor(np.abs(total) / unit) + step[way]) * unit, total) - total
    beside = np.where(draws.chance(0.5), np.ldexp(1.0, draws.near(cut)), np.ldexp(unit, -rng.integers(0, 40, n)))
    c = np.where(c == 0, beside * draws.signs(), c)
    return a, b, c * (1 + rng.choice([-2, -1, -1, 0, 1, 1, 2], n) * 2.0**-fc.fraction_bits)


def _grown(draws: Draws) -> Drawn:
    """Products of one sign, so that their sum exceeds each of them, and a product near the truncation."""
    n, k, rng, rows = len(draws), draws.k, draws.rng, draws.rows
    top = np.where(draws.chance(0.4), draws.high - rng.integers(0, 3, n), draws.tops())
    spread = rng.integers(0, rng.integers(1, 4, n)[:, None], (n, k))
    a, b = draws.factors(top[:, None] - spread, small=0.05)
    largest = draws.chance(0.2)[:, None] & (rng.random((n, k)) < 0.9)
    a, b = np.where(largest, draws.formats[0].max, a), np.where(largest, draws.formats[1].max, b)
    top = np.where(largest.any(axis=1), draws.high, top)
    many = np.where(draws.chance(0.5), np.minimum(draws.block, k), rng.integers(1, k + 1, n))
    last = draws.between(many, np.full(n, k)) - 1
    small = draws.factors(draws.near(draws.cuts(top + rng.integers(0, 4, n))), small=0.3)
    keeps = (np.arange(k) < many[:, None]) & (np.arange(k) != last[:, None])
    a, b = np.where(keeps, a, 0.0), np.where(keeps, b, 0.0)
    a *= draws.signs()[:, None]
    a[rows, last], b[rows, last] = small[0] * draws.signs(), small[1]
    total = (a * b).sum(axis=1)
    unit = np.ldexp(draws.signs(), draws.near(draws.cuts(top)))
    c = np.select([draws.chance(0.5), draws.chance(0.5)], [0.0 * total, -total], unit)
    return a, b, c


_KINDS: dict[Callable[[Draws], Drawn], int] = {  # with their shares
    _terms: 3,
    _product_is_a_tie: 2,
    _c_is_a_tie: 2,
    _c_alone: 1,
    _c_to_a_tie: 3,
    _grown: 2,
}


def _places(draws: Draws) -> tuple[Array, Array, Array, Array]:
    """Zero factors, and two positions in a block, which is the first block in most dot products."""
    n, k, rng = len(draws), draws.k, draws.rng
    block = np.minimum(draws.block, k)
    start = np.where(draws.chance(0.3), rng.integers(0, k, n) // block * block, 0)
    first = rng.integers(0, block)
    second = (first + rng.integers(0, np.maximum(block - 1, 1)) + 1) % block
    elsewhere = draws.chance(0.2) | (block == 1)  # the second position in any block
    second = np.where(elsewhere, rng.integers(0, k, n), start + second)
    return np.zeros((n, k)), np.zeros((n, k)), start + first, second


def _put(draws: Draws, a: Array, b: Array, q: Array, e: Array, plain: float, small: Any = 0.1) -> None:
    """Put products of given exponents at given positions; powers of two with probability `plain`."""
    x, y = draws.factors(e, small)
    powers = draws.chance(plain)
    x, y = (np.where(powers, np.ldexp(1.0, np.frexp(z)[1] - 1), z) for z in (x, y))
    a[draws.rows, q], b[draws.rows, q] = x * draws.signs(), y


# --- random terms near the exponents at which specifications truncate, round and flush


@dataclass(frozen=True)
class Draws:
    """Random numbers for n dot products, each aimed at one of several specifications, drawn at random."""

    formats: Formats
    k: int
    rng: np.random.Generator
    kept: Array  # (n,): fraction bits of D
    F: Array  # (n,): alignment width
    floor: Array  # (n,): minimum alignment exponent
    block: Array  # (n,): number of products added in one rounding
    columns: Array  # (n, k): position in k of each product, in the order of the sums

    @classmethod
    def of(cls, formats: Formats, k: int, specs: Sequence[MmaSpec], rng: np.random.Generator, n: int) -> Draws:
        """Draws for n dot products, aimed at these specifications."""
        some = rng.integers(0, len(specs), n)
        low = formats[0].emin + formats[1].emin
        rows = [(s.sum_fraction_bits, s.F, low if s.E0 is None else s.E0, s.issued.block) for s in specs]
        kept, F, floor, block = np.array(rows, np.int64)[some].T
        columns = np.stack([s.k_order for s in specs])[some]
        return cls(formats, k, rng, kept, F, floor, block, columns)

    def __len__(self) -> int:
        return len(self.F)

    @property
    def rows(self) -> Array:
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

    def chance(self, share: float) -> Array:
        """True with this probability, for each dot product."""
        return np.asarray(self.rng.random(len(self)) < share)

    def signs(self, *shape: int) -> Array:
        """1 or -1, of shape (n, ...)."""
        return np.asarray(self.rng.choice([-1.0, 1.0], (len(self), *shape)))

    def choose(self, ways: list[Any]) -> Array:
        """Each entry from one of several arrays, with equal probability."""
        arrays = np.broadcast_arrays(*ways)
        return np.asarray(np.choose(self.rng.integers(0, len(ways), arrays[0].shape), arrays))

    def between(self, low: Any, high: Any) -> Array:
        """Integers from `low` to `high`; `low` where `high` is below it."""
        width = np.maximum(high, low) - low + 1
        return np.asarray(low + np.floor(self.rng.random(np.shape(width)) * width)).astype(np.int64)

    def near(self, x: Array, below: int = 2, above: int = 2) -> Array:
        """Integers near others."""
        return np.asarray(x + self.rng.integers(-below, above + 1, x.shape))

    def significands(self, fmt: FloatFormat, shape: tuple[int, ...], rich: Any = False) -> Array:
        """Numbers in [1, 2): with all bits where `rich`; elsewhere also with few, powers of two, and all ones."""
        bits = np.where(rich, fmt.fraction_bits, self.rng.choice([0, 0, 1, 2, fmt.fraction_bits], shape))
        drawn = np.where(~np.asarray(rich) & (self.rng.random(shape) < 0.1), 1.0, self.rng.random(shape))
        return np.asarray(1 + np.minimum(np.floor(drawn * 2.0**bits), 2.0**bits - 1) / 2.0**bits)

    def odd(self, bits: Array) -> Array:
        """Odd integers of given numbers of bits, scaled to [1, 2)."""
        half = 2.0 ** (bits - 1)
        return np.where(bits > 1, 1 + (2 * np.floor(self.rng.random(bits.shape) * half / 2) + 1) / half, 1.0)

    def fractions(self, fmt: FloatFormat, shape: tuple[int, ...]) -> Array:
        """Numbers in (0, 1) with the format's fraction bits, half of them of at most two units."""
        most = max(2**fmt.fraction_bits - 1, 1)
        units = self.between(1, np.where(self.rng.random(shape) < 0.5, min(2, most), most))
        return np.asarray(units / 2.0**fmt.fraction_bits)

    def tops(self) -> Array:
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

    def cuts(self, top: Array) -> Array:
        """The exponent of the last bit kept by a block."""
        return np.asarray(np.maximum(top, self.floor) - self.F)

    def factors(self, e: Array, small: Any = 0.1) -> tuple[Array, Array]:
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

    def addends(self, e: Array) -> Array:
        """Values of C with given exponents, clipped to the possible ones, of either sign."""
        fmt = self.formats[2]
        size = np.ldexp(self.significands(fmt, e.shape), np.clip(e, fmt.emin - fmt.fraction_bits, fmt.emax))
        return np.asarray(size * self.signs())

    def summed(self, a: Array, b: Array) -> tuple[Array, Array]:
        """The sums of the truncated products without C, and the exponents of the last bit kept."""
        e = exponents(a, self.formats[0]) + exponents(b, self.formats[1])
        cut = self.cuts(e.max(axis=1))
        place = np.clip(cut, -900, 900)[:, None]
        return np.ldexp(np.trunc(np.ldexp(a * b, -place)), place).sum(axis=1), cut

    def units(self, x: Array) -> Array:
        """One unit of D's last place, for numbers of given values."""
        return np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, self.formats[3].emin) - self.kept)

    def codes(self, a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
        """Codes of A, B and C: numbers truncated to the formats, products at their positions in k."""
        placed = [np.zeros_like(a), np.zeros_like(b)]
        for x, to in zip((a, b), placed, strict=True):
            np.put_along_axis(to, self.columns, x, axis=1)
        A, B, C = (_codes(x, f) for x, f in zip((*placed, c), self.formats[:3], strict=True))
        return A, B, C


def _codes(x: Array, fmt: FloatFormat) -> Array:
    """Codes of numbers truncated to a format, the largest number where they exceed it."""
    return np.asarray(fmt.encode(round_to(np.clip(x, -fmt.max, fmt.max), fmt, Rounding.RZ)))
