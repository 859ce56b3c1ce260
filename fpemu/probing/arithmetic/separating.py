"""Probes that distinguish the remaining specifications: random operands near the exponents at which they differ.

Some properties appear only in operands that must be searched for: with blocks of one product and a D of few bits, F
matters only where a product lies halfway between two numbers of D and C decides the rounding. Operands are therefore
drawn near the halves and truncation points of the specifications, the emulator evaluates each specification, and only
operands with different results are sent to the instruction.

Each kind of operands brings a sum to a tie, or to a number of D at a truncation, in another way: by C, by a product, or
by the products of an earlier block. Which of them is possible depends on the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import operand_streams as streams
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.draws import Draws
from fpemu.probing.arithmetic.fit import Results
from fpemu.probing.arithmetic.probes import Formats, Probes, exponents

PRODUCTS = 2**18  # largest number of products drawn at a time
MOST = 20_000  # largest number of operands drawn at a time
_EACH = 3  # probes for each specification that is distinguished from the first
_VERIFYING = 10  # one operand in this many is drawn like those of the verification
Drawn = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]  # a (n, k), b (n, k), c (n,)


def separating(results: Results, specs: Sequence[MmaSpec], seed: int) -> Probes:
    """Probes for which some specifications give other results than the first; empty if none were drawn."""
    rng = np.random.default_rng(seed)
    drawn = draw(results.formats, results.k, specs, rng, min(MOST, PRODUCTS // results.k))
    emulated = Results(results.formats, results.k, drawn, np.zeros(len(drawn), results.D.dtype)).values(specs)
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

    def beside(shape: tuple[int, ...]) -> NDArray[np.int64]:
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


def _half_and_rest(draws: Draws) -> Drawn:
    """C, half a unit of its last place in D, and a rest near the truncation."""
    a, b, first, second = _places(draws)
    top = draws.tops()
    for q, e in ((first, top - draws.kept - 1), (second, draws.near(draws.cuts(top)))):
        _put(draws, a, b, q, e, 0.5)
    c = np.ldexp(draws.significands(draws.formats[2], (len(draws),)), np.clip(top, -1000, draws.formats[2].emax))
    return a, b, c * draws.signs()


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


def _product_to_a_tie(draws: Draws) -> Drawn:
    """C or products, some in earlier blocks, and the product that brings the sum as near to a tie as possible."""
    _, fb, _, fd = draws.formats
    n, k, rng, rows = len(draws), draws.k, draws.rng, draws.rows
    top = np.where(draws.chance(0.3), draws.high - rng.integers(0, 3, n), draws.tops())
    a, b, last, _ = _places(draws)
    start = last // draws.block * draws.block
    x, y = draws.factors(np.repeat(top[:, None], k, axis=1) - rng.integers(0, 3, (n, k)))
    used = rng.permuted(np.arange(k) < rng.integers(0, np.minimum(k, 4), n)[:, None], axis=1)
    used[rows, last] = False
    a, b = np.where(used, x * draws.signs(k), 0.0), np.where(used, y, 0.0)
    c = draws.addends(top)
    c = np.where(draws.chance(0.5) & used.any(axis=1), 0.0, c)
    before = np.arange(k) < start[:, None]
    total = c + np.where(before, a * b, 0.0).sum(axis=1)
    unit = draws.units(total)
    total = np.where(before.any(axis=1), np.round(total / unit) * unit, total)
    total += np.where(before, 0.0, a * b).sum(axis=1)
    unit = draws.units(total)
    near = np.floor(total / unit) + 0.5 + np.round(np.ldexp(draws.signs(), rng.integers(-2, fd.fraction_bits, n)))
    rest = np.ldexp(draws.signs(), draws.near(draws.cuts(np.maximum(top, exponents(total, fd)))))
    wanted = near * unit - total + np.where(draws.chance(0.3), 0.0, rest)
    _put(draws, a, b, last, np.frexp(wanted)[1].astype(np.int64) - 1, 0.0, small=0.2)
    divided = wanted / a[rows, last]
    place = np.ldexp(1.0, np.maximum(np.frexp(divided)[1] - 1, fb.emin) - fb.fraction_bits)
    b[rows, last] = (np.round(divided / place) + rng.choice([-1, 0, 0, 1], n)) * place
    return a, b, c


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


def _alike(draws: Draws) -> Drawn:
    """Products of nearly one exponent with all their bits, and C near them."""
    n, k = len(draws), draws.k
    top = np.clip(draws.tops(), draws.low, draws.high)
    a, b = draws.factors(draws.near(np.repeat(top[:, None], k, axis=1), 3, 1))
    fc = draws.formats[2]
    c = np.ldexp(1 + draws.rng.random(n), np.clip(draws.near(top, 8, 8), fc.emin - fc.fraction_bits, fc.emax))
    return a * draws.signs(k), b, np.where(draws.chance(0.4), 0.0, c * draws.signs())


_KINDS: dict[Callable[[Draws], Drawn], int] = {  # with their shares
    _terms: 3,
    _half_and_rest: 2,
    _product_is_a_tie: 2,
    _c_is_a_tie: 2,
    _c_alone: 1,
    _c_to_a_tie: 3,
    _product_to_a_tie: 1,
    _grown: 2,
    _alike: 1,
}


def _places(draws: Draws) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Zero factors, and two positions in a block, which is the first block in most dot products."""
    n, k, rng = len(draws), draws.k, draws.rng
    block = np.minimum(draws.block, k)
    start = np.where(draws.chance(0.3), rng.integers(0, k, n) // block * block, 0)
    first = rng.integers(0, block)
    second = (first + rng.integers(0, np.maximum(block - 1, 1)) + 1) % block
    elsewhere = draws.chance(0.2) | (block == 1)  # the second position in any block
    second = np.where(elsewhere, rng.integers(0, k, n), start + second)
    return np.zeros((n, k)), np.zeros((n, k)), start + first, second


def _put(
    draws: Draws,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    q: NDArray[np.int64],
    e: NDArray[np.int64],
    plain: float,
    small: Any = 0.1,
) -> None:
    """Put products of given exponents at given positions; powers of two with probability `plain`."""
    x, y = draws.factors(e, small)
    powers = draws.chance(plain)
    x, y = (np.where(powers, np.ldexp(1.0, np.frexp(z)[1] - 1), z) for z in (x, y))
    a[draws.rows, q], b[draws.rows, q] = x * draws.signs(), y
