"""Makes directed probes of one matrix instruction from exact values: a product is given by its two factors.

Products lie at the last positions of k, so that a block at the end of the instruction is asked and the blocks before it
add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from fpemu.formats import FloatFormat
from fpemu.probing.arithmetic.pool import DEPTH, NO_LEVEL, Formats, Pair, Pool
from fpemu.probing.arithmetic.scene import exponents


@dataclass
class Maker:
    """Collects probes of an instruction of the given formats and k; what the formats do not hold is left out."""

    formats: Formats
    k: int
    seen: set[Any] = field(default_factory=set)
    known: dict[Any, Pair | None] = field(default_factory=dict)
    rows: list[tuple[str, int, dict[int, Pair], float]] = field(default_factory=list)

    # --- values
    def product(self, e: int, s: int = 1, t: int | None = None) -> Pair | None:
        """Factors of s · 2^e, or s · (1 + 2^-t) · 2^e, with the exponent e where it can have it; None if none.

        Where t is more than one factor has: s · (m + 2^-t) · 2^e with some odd m.
        """
        if (e, s, t) not in self.known:
            self.known[e, s, t] = self._product(e, s, t)
        return self.known[e, s, t]

    def _product(self, e: int, s: int, t: int | None) -> Pair | None:
        fa, fb = self.formats[:2]
        if not -1000 < e < 1020:
            return None
        if e >= fa.emin + fb.emin:
            x = min(max(e // 2, fa.emin, e - fb.emax), fa.emax, e - fb.emin)
        else:
            x = max(e - fb.emin, fa.emin - fa.fraction_bits)
        a, b = math.ldexp(float(s), x), math.ldexp(1.0, e - x)
        if t is not None:
            if t > max(fa.fraction_bits, fb.fraction_bits):
                u, v = factors(t, fa.precision, fb.precision)
                shift = x - u.bit_length() + 1
                a, b = math.ldexp(float(s * u), shift), math.ldexp(float(v), e - t - shift)
            elif t <= fa.fraction_bits:
                a += math.ldexp(float(s), x - t)
            else:
                b += math.ldexp(1.0, e - x - t)
        held = holds(fa, a) and holds(fb, b) and a != 0 and b != 0
        return (float(a), float(b)) if held else None

    def full(self, e: int, s: int = 1) -> Pair | None:
        """Factors of all ones with the exponents of `product`: almost 4 · 2^e."""
        if (e, s, "full") not in self.known:
            self.known[e, s, "full"] = self._full(e, s)
        return self.known[e, s, "full"]

    def _full(self, e: int, s: int) -> Pair | None:
        plain = self.product(e, s)
        if plain is None:
            return None
        a, b = (x * (2 - 2.0**-f.fraction_bits) for x, f in zip(plain, self.formats[:2], strict=True))
        fa, fb = self.formats[:2]
        if not (holds(fa, a) and holds(fb, b)):  # the largest number of e4m3 is not all ones
            a, b = plain[0] * 1.5, plain[1] * 1.5
        return (a, b) if holds(fa, a) and holds(fb, b) else None

    def number(self, e: int, s: int = 1, t: int | None = None) -> float | None:
        """s · 2^e or s · (1 + 2^-t) · 2^e in C's format; None if that has no such number."""
        if abs(e) > 1020:
            return None
        c = math.ldexp(float(s), e) + (0.0 if t is None else math.ldexp(float(s), e - t))
        return float(c) if c != 0 and holds(self.formats[2], float(c)) else None

    # --- probes
    def add(
        self, kind: str, terms: Sequence[tuple[int, Pair | None]], c: float | None = 0.0, level: int | None = None
    ) -> None:
        """A probe with products at positions counted from the end (0 is the last), if all its numbers exist."""
        if c is None or any(pair is None or not 0 <= q < self.k for q, pair in terms):
            return
        at = {self.k - 1 - q: pair for q, pair in terms if pair is not None}
        key = (tuple(sorted(at.items())), c)
        if key not in self.seen and len(at) == len(terms):
            self.seen.add(key)
            self.rows.append((kind, NO_LEVEL if level is None else level, at, c))

    def pool(self) -> Pool:
        """The probes collected, as codes; the list is empty afterwards."""
        rows, self.rows = self.rows, []
        n = len(rows)
        A, B, C = np.zeros((n, self.k)), np.zeros((n, self.k)), np.array([c for *_, c in rows], np.float64)
        for i, (_, _, at, _) in enumerate(rows):
            for q, (a, b) in at.items():
                A[i, q], B[i, q] = a, b
        codes = [np.asarray(f.encode(x)) for f, x in zip(self.formats[:3], (A, B, C), strict=True)]
        of_a, of_b, of_c = (exponents(x, f) for x, f in zip((A, B, C), self.formats[:3], strict=True))
        highest = np.maximum((of_a + of_b).max(axis=1), of_c)  # a subnormal factor may bring a product above its level
        spans = np.array([self.k - min(at, default=self.k) for _, _, at, _ in rows], np.int64)
        levels = np.array([e for _, e, *_ in rows], np.int64)
        levels = np.where(highest == levels, levels, NO_LEVEL)
        return Pool(codes[0], codes[1], codes[2], tuple(kind for kind, *_ in rows), levels, spans, C != 0)

    # --- what is asked
    def level(self, e: int) -> None:
        """Where terms are cut, and how sums are rounded, if the largest exponent is e."""
        fa, fb, fc, fd = self.formats
        low = fc.emin <= e  # whether C may stand beside without raising the largest exponent

        def c(j: int, s: int = 1, t: int | None = None) -> float | None:
            return self.number(j, s, t) if low else None

        for f in range(1, fc.fraction_bits + 1):
            self.add("C alone", [], c(e, 1 - 2 * (f % 2), f), e)
        if e < fa.emin + fb.emin:  # every product has a higher exponent
            return
        M = self.product(e)
        for f in range(1, max(fa.fraction_bits, fb.fraction_bits) + 1):
            self.add("one product", [(0, self.product(e, 1 - 2 * (f % 2), f))], 0.0, e)
            self.add("a product less another", [(0, self.product(e, 1, f)), (1, self.product(e, -1))], 0.0, e)
            self.add("C and a product that cancel", [(0, self.product(e, 1, f))], c(e, -1), e)
            self.add("C and a product that cancel", [(0, M)], c(e, -1, f), e)
        for f in range(1, fd.precision + 2):
            rest = self.product(e - f - 2)
            self.add("half and rest", [(0, self.product(e - f)), (1, rest)], c(e), e)
            self.add("half and rest", [(0, M), (1, self.product(e - f)), (2, rest)], 0.0, e)
            self.add("half and rest", [(0, self.product(e - f, 1, 2))], c(e), e)
            self.add("half and rest", [(0, M)], c(e - f, 1, 2), e)
            self.add("half", [(0, self.product(e - f))], c(e, 1, f - 1 if f > 1 else None), e)
        for d in range(DEPTH, -2, -1):
            j = e - d
            s = 1 - 2 * (d % 2)
            small = self.product(j, s)
            if j <= e:
                self.add("cancelled M beside C", [(0, M), (1, self.product(e, -1))], c(j, s), e)
                self.add("cancelled M", [(0, M), (1, self.product(e, -1)), (2, small)], 0.0, e)
                self.add("cancelled M", [(0, M), (1, self.product(e, -1)), (4, small)], 0.0, e)
            if j < e:
                self.add("C less a product", [(0, self.product(j, -1))], c(e), e)
                self.add("a product less C", [(0, M)], c(j, -1), e)
                self.add("a product less another", [(0, M), (1, self.product(j, -1))], 0.0, e)
                self.add("two products", [(0, M), (1, self.product(j))], 0.0, e)
                self.add("full products", [(0, self.full(e))], c(j, s), e)
                self.add("full products", [(0, self.full(e)), (1, self.full(e)), (2, small)], c(e), e)
                self.add("full products", [(0, self.full(e)), (1, small)], 0.0, e)
            if 0 < d <= fc.fraction_bits:
                self.add("half and rest in C", [(0, M)], c(e - fd.precision, s, d), e)

    def alone(self) -> None:
        """Every power of two by itself: gone where it lies F places below the floor."""
        fa, fb, fc, fd = self.formats
        least = fd.emin - fd.fraction_bits
        for j in range(least - 1, fa.emax + fb.emax + 1):
            self.add("one product", [(0, self.product(j, 1 - 2 * (j % 2)))])
        for j in range(fc.emin - fc.fraction_bits, fc.emax + 1):
            self.add("C alone", [], self.number(j, 1 - 2 * (j % 2)))

    def around(self, e: int, kept: int) -> None:
        """What lies beside half a unit of the last of `kept` fraction bits, at level e."""
        for j in range(e - kept - 2, e - DEPTH - 1, -1):
            for s in (1, -1):
                alone = 2.0**e + 2.0 ** (e - kept - 1) + s * 2.0**j
                if self.formats[2].emin <= e and holds(self.formats[2], alone):
                    self.add("half and rest in C alone", [], s * alone, e)
        if e < self.formats[0].emin + self.formats[1].emin:  # every product has a higher exponent
            return
        c = self.number(e) if self.formats[2].emin <= e else None
        half = self.product(e - kept - 1)
        for j in range(e - kept - 2, e - DEPTH - 1, -1):
            for s in (1, -1):
                self.add("half and rest", [(0, half), (1, self.product(j, s))], c, e)
                self.add("half and rest", [(0, self.product(e)), (1, half), (2, self.product(j, s))], 0.0, e)
                if c is not None:
                    self.add("half and rest in C", [(0, self.product(e, 1, kept + 1))], self.number(j, s))
                    self.add("half in C and rest", [(0, self.product(j, s))], self.number(e, 1, kept + 1))
                self.add("half and rest", [(0, self.product(e)), (1, half), (4, self.product(j, s))], 0.0, e)
            if c is not None:
                rest = self.number(e - kept - 1, 1, e - kept - 1 - j)
                self.add("half and rest in C", [(0, self.product(e))], rest, e)
                self.add("half and rest", [(0, self.product(e - kept - 1, 1, e - kept - 1 - j))], c, e)

    def carries(self, e: int, unit: int) -> None:
        """C one unit below 2^(e+1), or 2^e: once one unit is added in a rounding of its own, the grid is another."""
        if not -1000 < unit <= e < 1000:
            return
        c, low = 2.0 ** (e + 1) - 2.0**unit, 2.0**e
        places = self.places()
        up, down = (self.product(unit),) * 2, (self.product(unit, -1), self.product(unit - 1, -1))
        for value, at in ((c, up), (low, down)):
            for s in (1, -1):
                first, second = (None if pair is None else (s * pair[0], pair[1]) for pair in at)
                held = s * value if holds(self.formats[2], value) else None
                for q, p in combinations(places, 2):
                    self.add("a carry, then a unit", [(p, first), (q, second)], held)

    def growth(self, e: int, unit: int) -> None:
        """Many full products, whose sum has more bits than one, beside a few of the last places that are kept."""
        for many in sorted({n for n in (2, 3, 4, 5, 7, 8, 12, 15, 16, 31, 32, self.k - 1, self.k) if n <= self.k}):
            for j in range(unit, unit + 4):
                for s in (1, -1):
                    full = [(q, self.full(e, 1)) for q in range(many)]
                    self.add("full products", [*full, (many, self.product(j, s))])
                    self.add("full products", full, self.number(j, s))
                    c = self.number(e) if self.formats[2].emin <= e else None
                    self.add("full products", [*full[:-1], (many - 1, self.product(j, s))], c)

    def places(self) -> list[int]:
        """Positions in k, counted from the end, at which blocks may begin or end."""
        marks = {0, 1, 2, 3, 4, 5}
        for length in range(1, self.k + 1):
            if self.k % length == 0:
                marks |= {length - 1, length, length + 1, self.k - length, self.k - length - 1}
        return sorted(q for q in marks if 0 <= q < self.k)

    def blocks(self, halves: Iterable[int], grids: Iterable[tuple[int, int]]) -> None:
        """Which positions are added in one rounding.

        halves: exponents below C's, of two products that only count where they meet; grids: exponents of M and of a
        unit that vanishes beside M, which is cancelled again.
        """
        fc = self.formats[2]
        places = self.places()
        for half in halves:
            e = min(max(half, 0), fc.emax)  # C = 2^e makes the products those of moderate exponents
            at = [(self.number(e, s), self.product(e - half, s)) for s in (1, -1)]
            for q, p in combinations(places, 2):
                self.add("two halves", [(q, at[0][1]), (p, at[0][1])], at[0][0])
            self.add("two halves", [(q, at[1][1]) for q in places], at[1][0])
            for s in (0, 1):
                self.add("all halves", [(q, at[s][1]) for q in range(self.k)], at[s][0])
        for e, j in grids:
            M, less = self.product(e), self.product(e, -1)
            for q, p in combinations(places, 2):
                for x in {0, q, p, self.k - 1, (q + p) // 2, max(q - 1, 0), min(p + 1, self.k - 1)} - {q, p}:
                    self.add("M, -M and a unit", [(q, M), (p, less), (x, self.product(j))])
                self.add("M, -M and C", [(q, M), (p, less)], self.number(j))
            for q in places:
                self.add("C = M", [(q, self.product(j)), (self.k - 1 if q == 0 else 0, less)], self.number(e))

    def patterns(self, span: tuple[int, int]) -> None:
        """All positions at once: falling exponents, alternating signs, what cancels but for the last."""
        fa, fb, _, fd = self.formats
        tops = (fa.emin + fb.emin, fd.emin - fd.fraction_bits, -26, -8, 0, span[1] - 4)
        for top in sorted({max(span[0], e) for e in tops}):
            for fall in (0, 1, 2, 3, 5):
                for sign in (1, 3, self.k):
                    for up in (False, True):
                        terms = []
                        for q in range(self.k):
                            e = max(top - fall * (self.k - 1 - q if up else q), fa.emin + fb.emin)
                            s = -1 if q // max(sign // 2, 1) % 2 else 1
                            terms.append((q, self.full(e, s) if q % 3 else self.product(e, s, 1 + q % 2)))
                        for c in (None, top + 1, top - 12, top - 23):
                            value = 0.0 if c is None else self.number(c, -1 if c % 2 else 1, 2)
                            self.add("a pattern over k", [(q, p) for q, p in terms if p is not None], value)


@cache
def factors(t: int, left: int, right: int) -> tuple[int, int]:
    """Numbers of at most `left` bits (and 11) and `right` bits with the product m · 2^t + 1, m odd and small.

    Zeros where there are none.
    """
    found = [(0, 0, 0)]
    for u in range(1, 1 << min(left, 11), 2):
        for v in range(pow(u, -1, 1 << t), 1 << right, 1 << t):
            if u * v >> t & 1:
                found.append((u * v >> t, u, v))
    return min(found[1:], default=found[0])[1:]


def holds(fmt: FloatFormat, x: float) -> bool:
    """Whether a finite number is a value of the format."""
    if not math.isfinite(x) or abs(x) > fmt.max:
        return False
    low = max(math.frexp(x)[1] - 1, fmt.emin) - fmt.fraction_bits
    return math.ldexp(x, -low).is_integer()


def levels(formats: Formats) -> list[int]:
    """Exponents to ask at: over all that products have, at the ends of D and of C, and where only C is."""
    fa, fb, fc, fd = formats
    low, high = fa.emin + fb.emin, fa.emax + fb.emax
    least = fd.emin - fd.fraction_bits
    wanted = {low, low + 1, high, least, least - 1, least + 1, fd.emin, fc.emin, fc.emin + 30, 0}
    wanted.add(min(high, fd.emax) - 4)
    wanted |= {int(e) for e in np.linspace(max(low, least - 40), min(high, fd.emax - 2), 7)}
    wanted |= {int(e) for e in np.linspace(min(high, fd.emax - 2), high, 4)}  # D is Inf, or nothing is left
    found = {e for e in wanted if low <= e <= high}
    alone = {fc.emin, (fc.emin + low) // 2, low - 1, high + 8, (fc.emax + high) // 2, fc.emax - 3}
    return sorted(found | {e for e in alone if fc.emin <= e < fc.emax - 2})
