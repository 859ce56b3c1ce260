"""Directed probes: each shows one property of an instruction, with few bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np

from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.probes import DEPTH, Builder, Formats, Probes, holds


@lru_cache(maxsize=16)
def first_round(formats: Formats, k: int) -> Probes:
    """Sums at several levels, every power of two alone, and the positions that are added in one rounding."""
    probes = Builder(formats, k)
    fa, fb, _, fd = formats
    for e in _levels(formats):
        _level(probes, e)
    _alone(probes)
    low, high = fa.emin + fb.emin, min(fa.emax + fb.emax, fd.emax - 2)
    _blocks(probes, sorted({fd.precision, fd.precision - 1, 11, 14}), [(high, max(low, high - 40)), (0, max(low, -9))])
    _patterns(probes, (low, high))
    return probes.probes()


def next_round(formats: Formats, k: int, specs: Sequence[MmaSpec]) -> Probes:
    """Probes that distinguish the remaining specifications and their neighbours."""
    probes = Builder(formats, k)
    fa, fb, fc, fd = formats
    low, high = fa.emin + fb.emin, min(fa.emax + fb.emax, fd.emax - 2)
    least = fd.emin - fd.fraction_bits
    for kept in sorted({s.sum_fraction_bits for s in specs}):
        for e in range(fd.emin - kept - 1, fd.emin - kept + 2):  # near D's smallest number
            if e >= low and kept != fd.fraction_bits:
                _level(probes, e)
        floors = {s.E0 + d for s in specs if s.E0 is not None for d in (-1, 0, 1)}
        ends = {low, least, fd.emin, fd.emin + 1, 0, high, fd.emax - 1, fd.emax}
        for e in sorted(e for e in ends | set(sorted(floors)[:6]) if fc.emin <= e <= max(fa.emax + fb.emax, fd.emax)):
            around(probes, e, kept)
    for s in specs[:: max(1, len(specs) // 4)]:
        kept = s.sum_fraction_bits
        tops = {high, 0, min(high, max(low, (s.E0 or low) + 1))} & set(range(low, high + 1))
        for e in sorted(tops | {e for e in (-kept // 2, least + kept // 2, high - 6) if low <= e <= high}):
            _growth(probes, e, max(e, e if s.E0 is None else s.E0) - s.F)
        for unit in sorted({0, max(low, fc.emin - s.F), high - 1}):
            _carries(probes, max(unit + s.F, -1000 if s.E0 is None else s.E0), unit)
        _blocks(probes, [kept + 1], [(e, e - s.F - d) for e in sorted(tops) for d in (-1, 0, 1)])
    return probes.probes()


def _level(probes: Builder, e: int) -> None:
    """The truncation of terms and the rounding of sums at the largest exponent e."""
    add, product, full, number = probes.add, probes.product, probes.full, probes.number
    fa, fb, fc, fd = probes.formats
    normal_c = fc.emin <= e  # C does not raise the largest exponent

    def c(j: int, s: int = 1, t: int | None = None) -> float | None:
        return number(j, s, t) if normal_c else None

    for f in range(1, fc.fraction_bits + 1):
        add("C alone", [], c(e, 1 - 2 * (f % 2), f), e)
    if e < fa.emin + fb.emin:  # every product has a higher exponent
        return
    M = product(e)
    for f in range(1, max(fa.fraction_bits, fb.fraction_bits) + 1):
        add("one product", [(0, product(e, 1 - 2 * (f % 2), f))], 0.0, e)
        add("a product less another", [(0, product(e, 1, f)), (1, product(e, -1))], 0.0, e)
        add("C and a product that cancel", [(0, product(e, 1, f))], c(e, -1), e)
        add("C and a product that cancel", [(0, M)], c(e, -1, f), e)
    for f in range(1, fd.precision + 2):
        rest = product(e - f - 2)
        add("half and rest", [(0, product(e - f)), (1, rest)], c(e), e)
        add("half and rest", [(0, M), (1, product(e - f)), (2, rest)], 0.0, e)
        add("half and rest", [(0, product(e - f, 1, 2))], c(e), e)
        add("half and rest", [(0, M)], c(e - f, 1, 2), e)
        add("half", [(0, product(e - f))], c(e, 1, f - 1 if f > 1 else None), e)
    for d in range(DEPTH, -2, -1):
        j = e - d
        s = 1 - 2 * (d % 2)
        small = product(j, s)
        if j <= e:
            add("cancelled M beside C", [(0, M), (1, product(e, -1))], c(j, s), e)
            add("cancelled M", [(0, M), (1, product(e, -1)), (2, small)], 0.0, e)
            add("cancelled M", [(0, M), (1, product(e, -1)), (4, small)], 0.0, e)
        if j < e:
            add("C less a product", [(0, product(j, -1))], c(e), e)
            add("a product less C", [(0, M)], c(j, -1), e)
            add("a product less another", [(0, M), (1, product(j, -1))], 0.0, e)
            add("two products", [(0, M), (1, product(j))], 0.0, e)
            add("full products", [(0, full(e))], c(j, s), e)
            add("full products", [(0, full(e)), (1, full(e)), (2, small)], c(e), e)
            add("full products", [(0, full(e)), (1, small)], 0.0, e)
        if 0 < d <= fc.fraction_bits:
            add("half and rest in C", [(0, M)], c(e - fd.precision, s, d), e)


def _alone(probes: Builder) -> None:
    """Every power of two alone: it vanishes F positions below the floor."""
    add, product, number = probes.add, probes.product, probes.number
    fa, fb, fc, fd = probes.formats
    least = fd.emin - fd.fraction_bits
    for j in range(least - 1, fa.emax + fb.emax + 1):
        add("one product", [(0, product(j, 1 - 2 * (j % 2)))])
    for j in range(fc.emin - fc.fraction_bits, fc.emax + 1):
        add("C alone", [], number(j, 1 - 2 * (j % 2)))


def around(probes: Builder, e: int, kept: int) -> None:
    """Small terms beside half a unit of the last of `kept` fraction bits, at level e."""
    add, product, number = probes.add, probes.product, probes.number
    for j in range(e - kept - 2, e - DEPTH - 1, -1):
        for s in (1, -1):
            alone = 2.0**e + 2.0 ** (e - kept - 1) + s * 2.0**j
            if probes.formats[2].emin <= e and holds(probes.formats[2], alone):
                add("half and rest in C alone", [], s * alone, e)
    if e < probes.formats[0].emin + probes.formats[1].emin:  # every product has a higher exponent
        return
    c = number(e) if probes.formats[2].emin <= e else None
    half = product(e - kept - 1)
    for j in range(e - kept - 2, e - DEPTH - 1, -1):
        for s in (1, -1):
            add("half and rest", [(0, half), (1, product(j, s))], c, e)
            add("half and rest", [(0, product(e)), (1, half), (2, product(j, s))], 0.0, e)
            if c is not None:
                add("half and rest in C", [(0, product(e, 1, kept + 1))], number(j, s))
                add("half in C and rest", [(0, product(j, s))], number(e, 1, kept + 1))
            add("half and rest", [(0, product(e)), (1, half), (4, product(j, s))], 0.0, e)
        if c is not None:
            rest = number(e - kept - 1, 1, e - kept - 1 - j)
            add("half and rest in C", [(0, product(e))], rest, e)
            add("half and rest", [(0, product(e - kept - 1, 1, e - kept - 1 - j))], c, e)


def _carries(probes: Builder, e: int, unit: int) -> None:
    """C one unit below 2^(e+1), or 2^e, and two units: if the first is added in its own rounding, the grid changes."""
    add, product = probes.add, probes.product
    if not -1000 < unit <= e < 1000:
        return
    c, low = 2.0 ** (e + 1) - 2.0**unit, 2.0**e
    places = _places(probes.k)
    up, down = (product(unit),) * 2, (product(unit, -1), product(unit - 1, -1))
    for value, at in ((c, up), (low, down)):
        for s in (1, -1):
            first, second = (None if pair is None else (s * pair[0], pair[1]) for pair in at)
            held = s * value if holds(probes.formats[2], value) else None
            for q, p in combinations(places, 2):
                add("a carry, then a unit", [(p, first), (q, second)], held)


def _growth(probes: Builder, e: int, unit: int) -> None:
    """Many full products, with more bits in their sum than in one, and a term near the last bit kept."""
    add, product, full, number = probes.add, probes.product, probes.full, probes.number
    for many in sorted({n for n in (2, 3, 4, 5, 7, 8, 12, 15, 16, 31, 32, probes.k - 1, probes.k) if n <= probes.k}):
        for j in range(unit, unit + 4):
            for s in (1, -1):
                terms = [(q, full(e, 1)) for q in range(many)]
                add("full products", [*terms, (many, product(j, s))])
                add("full products", terms, number(j, s))
                c = number(e) if probes.formats[2].emin <= e else None
                add("full products", [*terms[:-1], (many - 1, product(j, s))], c)


def _places(k: int) -> list[int]:
    """Positions in k, counted from the end, at which blocks may begin or end."""
    marks = {0, 1, 2, 3, 4, 5}
    for length in range(1, k + 1):
        if k % length == 0:
            marks |= {length - 1, length, length + 1, k - length, k - length - 1}
    return sorted(q for q in marks if 0 <= q < k)


def _blocks(probes: Builder, halves: Iterable[int], grids: Iterable[tuple[int, int]]) -> None:
    """The positions that are added in one rounding.

    `halves`: exponents, below C's, of two products that change the sum only together. `grids`: exponents of M and of a
    unit that vanishes beside M, with -M.
    """
    add, product, number = probes.add, probes.product, probes.number
    fc = probes.formats[2]
    places = _places(probes.k)
    for half in halves:
        e = min(max(half, 0), fc.emax)  # C = 2^e, so that the products have moderate exponents
        at = [(number(e, s), product(e - half, s)) for s in (1, -1)]
        for q, p in combinations(places, 2):
            add("two halves", [(q, at[0][1]), (p, at[0][1])], at[0][0])
        add("two halves", [(q, at[1][1]) for q in places], at[1][0])
        for s in (0, 1):
            add("all halves", [(q, at[s][1]) for q in range(probes.k)], at[s][0])
    for e, j in grids:
        M, less = product(e), product(e, -1)
        for q, p in combinations(places, 2):
            for x in {0, q, p, probes.k - 1, (q + p) // 2, max(q - 1, 0), min(p + 1, probes.k - 1)} - {q, p}:
                add("M, -M and a unit", [(q, M), (p, less), (x, product(j))])
            add("M, -M and C", [(q, M), (p, less)], number(j))
        for q in places:
            add("C = M", [(q, product(j)), (probes.k - 1 if q == 0 else 0, less)], number(e))


def _patterns(probes: Builder, span: tuple[int, int]) -> None:
    """All positions at once: falling exponents, alternating signs, cancellation except for the last."""
    add, product, full, number = probes.add, probes.product, probes.full, probes.number
    fa, fb, _, fd = probes.formats
    tops = (fa.emin + fb.emin, fd.emin - fd.fraction_bits, -26, -8, 0, span[1] - 4)
    for top in sorted({max(span[0], e) for e in tops}):
        for fall in (0, 1, 2, 3, 5):
            for sign in (1, 3, probes.k):
                for up in (False, True):
                    terms = []
                    for q in range(probes.k):
                        e = max(top - fall * (probes.k - 1 - q if up else q), fa.emin + fb.emin)
                        s = -1 if q // max(sign // 2, 1) % 2 else 1
                        terms.append((q, full(e, s) if q % 3 else product(e, s, 1 + q % 2)))
                    for c in (None, top + 1, top - 12, top - 23):
                        value = 0.0 if c is None else number(c, -1 if c % 2 else 1, 2)
                        add("a pattern over k", [(q, p) for q, p in terms if p is not None], value)


def _levels(formats: Formats) -> list[int]:
    """The probed levels: over the range of the products, at the ends of D and C, and where only C lies."""
    fa, fb, fc, fd = formats
    low, high = fa.emin + fb.emin, fa.emax + fb.emax
    least = fd.emin - fd.fraction_bits
    wanted = {low, low + 1, high, least, least - 1, least + 1, fd.emin, fc.emin, fc.emin + 30, 0}
    wanted.add(min(high, fd.emax) - 4)
    wanted |= {int(e) for e in np.linspace(max(low, least - 40), min(high, fd.emax - 2), 7)}
    wanted |= {int(e) for e in np.linspace(min(high, fd.emax - 2), high, 4)}  # D is Inf, or every term vanishes
    shared = {e for e in wanted if low <= e <= high}
    alone = {fc.emin, (fc.emin + low) // 2, low - 1, high + 8, (fc.emax + high) // 2, fc.emax - 3}
    return sorted(shared | {e for e in alone if fc.emin <= e < fc.emax - 2})
