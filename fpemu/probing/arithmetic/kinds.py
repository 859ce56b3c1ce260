"""Kinds of operands that specs may answer differently: each draws factors and C about the places of a `Scene`.

Where a block keeps a place more or less, D shows it only if that place decides its rounding: the rest of the sum lies
on a tie, or at a number of D where it is cut. Which operands bring a sum there depends on the formats, so that there
are several ways: C brings it there, a product does, or products of a block before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.probing.arithmetic.scene import Scene, exponents

Drawn = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]  # a (n, k), b (n, k), c (n,)


def terms(scene: Scene) -> Drawn:
    """A few terms: beside the highest, about half a unit of D's last place, about the cut; some cancel."""
    fc = scene.formats[2]
    n, k, rows, rng = len(scene), scene.k, scene.rows, scene.rng
    top = scene.tops()

    def beside(shape: tuple[int, ...]) -> NDArray[np.int64]:
        t, c, m = (x.reshape(-1, *[1] * (len(shape) - 1)) for x in (top, scene.cuts(top), scene.kept))
        some = [-rng.integers(0, 3, shape), rng.integers(-1, 2, shape), rng.integers(-2, 3, shape)]
        ways = [t + some[0], t - m - 1 + some[1], c + some[2], c + some[2], t - rng.integers(0, 60, shape), t]
        return scene.choose(ways)

    first = rng.integers(0, k, n)
    e = beside((n, k))
    e[rows, first] = top
    a, b = scene.factors(e)
    few = np.minimum(rng.choice([1, 1, 2, 2, 3, 4, k], n), k)
    used = rng.permuted(np.arange(k) < few[:, None], axis=1)
    used[rows, first] = scene.chance(0.9)
    a, b = np.where(used, a * scene.signs(k), 0.0), np.where(used, b, 0.0)
    e_c = np.where((top > scene.high) | scene.chance(0.2), top, beside((n,)))
    c = np.ldexp(scene.significands(fc, (n,)), np.clip(e_c, fc.emin - fc.fraction_bits, fc.emax)) * scene.signs()
    if k > 1:  # a product that takes the first back
        undone, other = scene.chance(0.25), (first + rng.integers(1, k, n)) % k
        a[rows, other] = np.where(undone, -a[rows, first], a[rows, other])
        b[rows, other] = np.where(undone, b[rows, first], b[rows, other])
    c = np.where(scene.chance(0.15), -a[rows, first] * b[rows, first], c)
    return a, b, np.where(scene.chance(0.25), 0.0, c)


def half_and_rest(scene: Scene) -> Drawn:
    """C, half a unit of D's last place beside it, and a rest about the cut."""
    a, b, first, second = _places(scene)
    top = scene.tops()
    for q, e in ((first, top - scene.kept - 1), (second, scene.near(scene.cuts(top)))):
        _put(scene, a, b, q, e, 0.5)
    c = np.ldexp(scene.significands(scene.formats[2], (len(scene),)), np.clip(top, -1000, scene.formats[2].emax))
    return a, b, c * scene.signs()


def product_is_a_tie(scene: Scene) -> Drawn:
    """A product halfway between two numbers of D, and a rest about the cut: C or another product."""
    fa, fb, fc, fd = scene.formats
    n, rng, rows = len(scene), scene.rng, scene.rows
    a, b, first, second = _places(scene)
    bits = scene.kept + 2
    of_a = scene.between(np.maximum(1, bits - fb.precision), np.minimum(fa.precision, bits))
    of_b = np.clip(bits - of_a + rng.integers(-2, 2, n), 1, fb.precision)
    x, y = scene.odd(of_a), scene.odd(of_b)
    carried = x * y >= 2  # the product has a bit more
    lowest = np.where(of_a + of_b - 1 + carried < bits, fd.emin - bits + 1, scene.tops() - bits + 1)
    e = np.clip(lowest + of_a + of_b - 2, scene.low, scene.high)
    of_e = scene.between(np.maximum(fa.emin, e - fb.emax), np.minimum(fa.emax, e - fb.emin))
    cut = scene.near(scene.cuts(e))
    _put(scene, a, b, second, np.where(scene.chance(0.5), cut, e - rng.integers(0, 60, n)), 0.5)
    b[rows, second] = np.where(scene.chance(0.6), 0.0, b[rows, second])
    a[rows, first], b[rows, first] = np.ldexp(x, of_e) * scene.signs(), np.ldexp(y, e - of_e)
    of_c = np.where(scene.chance(0.5), cut, scene.choose([e - rng.integers(0, 60, n), fc.emin - fc.fraction_bits]))
    c = np.ldexp(scene.significands(fc, (n,)), np.clip(of_c, fc.emin - fc.fraction_bits, fc.emax)) * scene.signs()
    return a, b, np.where(scene.chance(0.2), 0.0, c)


def c_is_a_tie(scene: Scene) -> Drawn:
    """C halfway between two numbers of D, and a product anywhere below."""
    a, b, first, second = _places(scene)
    fc, fd = scene.formats[2:]
    top = np.clip(scene.tops(), fc.emin - 2, fc.emax)
    unit = np.maximum(top, fd.emin) - scene.kept
    whole = np.ldexp(1.0, np.clip(top - unit, 0, 52))
    c = np.ldexp(np.floor(whole * (1 + scene.rng.random(len(scene)))) + 0.5, unit)
    cut = scene.cuts(top)
    for q in (second, first):
        e = scene.choose([scene.near(cut), scene.near(cut), top - scene.rng.integers(0, 60, len(scene))])
        _put(scene, a, b, q, e, 0.5)
    a[scene.rows, second] = np.where((second != first) & scene.chance(0.5), 0.0, a[scene.rows, second])
    return a, b, c * scene.signs()


def c_alone(scene: Scene) -> Drawn:
    """C alone, halfway between two numbers of D but for a rest."""
    n, rng, (fc, fd) = len(scene), scene.rng, scene.formats[2:]
    t = fc.emin + rng.integers(0, 4, n)
    t = np.where(scene.chance(0.5), t, np.clip(scene.near(scene.floor, 3, 3), fc.emin, fc.emax))
    depth = scene.kept + 1 - np.maximum(fd.emin - t, 0)
    rest = np.ldexp(1.0, -depth) + rng.choice([-1.0, 0.0, 1.0], n) * np.ldexp(1.0, -depth - rng.integers(1, 25, n))
    return np.zeros((n, scene.k)), np.zeros((n, scene.k)), np.ldexp(1 + rest, t) * scene.signs()


def c_to_a_tie(scene: Scene) -> Drawn:
    """Products, and the C that brings their sum to a tie or to a number of D, or a few units of C beside that.

    A product with a subnormal factor goes deepest: its exponent is above its value, and C far below its own.
    """
    fa, fb, fc, _ = scene.formats
    n, rng, rows = len(scene), scene.rng, scene.rows
    a, b, first, second = _places(scene)
    top = scene.tops()
    deep = scene.chance(0.4)
    top = np.where(deep, rng.choice([fa.emin + fb.emax, fb.emin + fa.emax], n) - rng.integers(0, 4, n), top)
    _put(scene, a, b, first, top, 0.5, small=np.where(deep, 1.0, 0.2))
    x, y = scene.factors(scene.near(scene.cuts(top)))
    other = scene.chance(0.25) & (second != first)
    a[rows, second] = np.where(other, x * scene.signs(), a[rows, second])
    b[rows, second] = np.where(other, y, b[rows, second])
    total, cut = scene.summed(a, b)
    scale, step = np.array([(1, 0.5), (1, -0.5), (0.5, -0.5), (0.5, 0.5), (2, 0.5), (4, 0.5), (1, 0), (1, 1)]).T
    way = rng.integers(0, len(step), n)
    unit = scene.units(total) * scale[way]
    c = np.copysign((np.floor(np.abs(total) / unit) + step[way]) * unit, total) - total
    beside = np.where(scene.chance(0.5), np.ldexp(1.0, scene.near(cut)), np.ldexp(unit, -rng.integers(0, 40, n)))
    c = np.where(c == 0, beside * scene.signs(), c)
    return a, b, c * (1 + rng.choice([-2, -1, -1, 0, 1, 1, 2], n) * 2.0**-fc.fraction_bits)


def product_to_a_tie(scene: Scene) -> Drawn:
    """C or products, perhaps of blocks before, and the product that brings the sum as near to a tie as it can."""
    _, fb, fc, fd = scene.formats
    n, k, rng, rows = len(scene), scene.k, scene.rng, scene.rows
    top = np.where(scene.chance(0.3), scene.high - rng.integers(0, 3, n), scene.tops())
    a, b, last, _ = _places(scene)
    start = last // scene.block * scene.block
    x, y = scene.factors(np.repeat(top[:, None], k, axis=1) - rng.integers(0, 3, (n, k)))
    used = rng.permuted(np.arange(k) < rng.integers(0, np.minimum(k, 4), n)[:, None], axis=1)
    used[rows, last] = False
    a, b = np.where(used, x * scene.signs(k), 0.0), np.where(used, y, 0.0)
    c = np.ldexp(scene.significands(fc, (n,)), np.clip(top, fc.emin - fc.fraction_bits, fc.emax)) * scene.signs()
    c = np.where(scene.chance(0.5) & used.any(axis=1), 0.0, c)
    before = np.arange(k) < start[:, None]
    total = c + np.where(before, a * b, 0.0).sum(axis=1)
    unit = scene.units(total)
    total = np.where(before.any(axis=1), np.round(total / unit) * unit, total)
    total += np.where(before, 0.0, a * b).sum(axis=1)
    unit = scene.units(total)
    near = np.floor(total / unit) + 0.5 + np.round(np.ldexp(scene.signs(), rng.integers(-2, fd.fraction_bits, n)))
    rest = np.ldexp(scene.signs(), scene.near(scene.cuts(np.maximum(top, exponents(total, fd)))))
    wanted = near * unit - total + np.where(scene.chance(0.3), 0.0, rest)
    _put(scene, a, b, last, np.frexp(wanted)[1].astype(np.int64) - 1, 0.0, small=0.2)
    divided = wanted / a[rows, last]
    place = np.ldexp(1.0, np.maximum(np.frexp(divided)[1] - 1, fb.emin) - fb.fraction_bits)
    b[rows, last] = (np.round(divided / place) + rng.choice([-1, 0, 0, 1], n)) * place
    return a, b, c


def grown(scene: Scene) -> Drawn:
    """Products of a sign whose sum, perhaps of an earlier block, exceeds each of them; others about the cut."""
    n, k, rng, rows = len(scene), scene.k, scene.rng, scene.rows
    top = np.where(scene.chance(0.4), scene.high - rng.integers(0, 3, n), scene.tops())
    spread = rng.integers(0, rng.integers(1, 4, n)[:, None], (n, k))
    a, b = scene.factors(top[:, None] - spread, small=0.05)
    largest = scene.chance(0.2)[:, None] & (rng.random((n, k)) < 0.9)
    a, b = np.where(largest, scene.formats[0].max, a), np.where(largest, scene.formats[1].max, b)
    top = np.where(largest.any(axis=1), scene.high, top)
    many = np.where(scene.chance(0.5), np.minimum(scene.block, k), rng.integers(1, k + 1, n))
    last = scene.between(many, np.full(n, k)) - 1
    small = scene.factors(scene.near(scene.cuts(top + rng.integers(0, 4, n))), small=0.3)
    keeps = (np.arange(k) < many[:, None]) & (np.arange(k) != last[:, None])
    a, b = np.where(keeps, a, 0.0), np.where(keeps, b, 0.0)
    a *= scene.signs()[:, None]
    a[rows, last], b[rows, last] = small[0] * scene.signs(), small[1]
    total = (a * b).sum(axis=1)
    unit = np.ldexp(scene.signs(), scene.near(scene.cuts(top)))
    c = np.select([scene.chance(0.5), scene.chance(0.5)], [0.0 * total, -total], unit)
    return a, b, c


def alike(scene: Scene) -> Drawn:
    """All products of about one exponent, with all their bits, and C beside them."""
    n, k = len(scene), scene.k
    top = np.clip(scene.tops(), scene.low, scene.high)
    a, b = scene.factors(scene.near(np.repeat(top[:, None], k, axis=1), 3, 1))
    fc = scene.formats[2]
    c = np.ldexp(1 + scene.rng.random(n), np.clip(scene.near(top, 8, 8), fc.emin - fc.fraction_bits, fc.emax))
    return a * scene.signs(k), b, np.where(scene.chance(0.4), 0.0, c * scene.signs())


KINDS: dict[Callable[[Scene], Drawn], int] = {  # and how often
    terms: 3,
    half_and_rest: 2,
    product_is_a_tie: 2,
    c_is_a_tie: 2,
    c_alone: 1,
    c_to_a_tie: 3,
    product_to_a_tie: 1,
    grown: 2,
    alike: 1,
}


def _places(scene: Scene) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """No products yet; and two places in a block, the first of the blocks in most dot products."""
    n, k, rng = len(scene), scene.k, scene.rng
    block = np.minimum(scene.block, k)
    start = np.where(scene.chance(0.3), rng.integers(0, k, n) // block * block, 0)
    first = rng.integers(0, block)
    second = (first + rng.integers(0, np.maximum(block - 1, 1)) + 1) % block
    elsewhere = scene.chance(0.2) | (block == 1)  # the other one in any block
    second = np.where(elsewhere, rng.integers(0, k, n), start + second)
    return np.zeros((n, k)), np.zeros((n, k)), start + first, second


def _put(
    scene: Scene,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    q: NDArray[np.int64],
    e: NDArray[np.int64],
    plain: float,
    small: Any = 0.1,
) -> None:
    """Products of given exponents at given places; so many of them powers of two."""
    x, y = scene.factors(e, small)
    powers = scene.chance(plain)
    x, y = (np.where(powers, np.ldexp(1.0, np.frexp(z)[1] - 1), z) for z in (x, y))
    a[scene.rows, q], b[scene.rows, q] = x * scene.signs(), y
