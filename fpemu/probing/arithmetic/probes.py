"""Probes of a matrix instruction: dot products in codes, built from exact values.

A probe is one entry of D: a row of A, a column of B, an entry of C. Its `level` e is the largest exponent of its terms:
the position below which terms are truncated is then one unknown number, whatever F and E0 are. The products lie at the
last positions of k, so that the last block of the instruction is probed and the earlier blocks add zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import codes, values
from fpemu.mma.spec import MmaSpec

Array = NDArray[Any]
DEPTH = 37  # positions below a level that are probed: F is at most 35
NO_LEVEL = 10**6
_ZERO = -(10**6)  # the exponent of a zero
Pair = tuple[float, float]
Formats = tuple[FloatFormat, FloatFormat, FloatFormat, FloatFormat]


@dataclass(frozen=True, eq=False)
class Probes:
    """Probes as codes."""

    A: Array  # (n, k)
    B: Array  # (n, k)
    C: Array  # (n,)
    kinds: Array  # (n,): the kind of each probe in words
    levels: Array  # (n,): `NO_LEVEL` for a probe without a level
    spans: Array  # (n,): the products lie at this many last positions of k

    @classmethod
    def without_level(cls, A: Array, B: Array, C: Array, kinds: Any) -> Probes:
        """Probes of mixed exponents; `kinds` is one word or a sequence of words."""
        n = len(C)
        return cls(
            A, B, C, np.broadcast_to(np.array(kinds, object), (n,)), np.full(n, NO_LEVEL), np.full(n, A.shape[1])
        )

    def __len__(self) -> int:
        return len(self.C)

    def take(self, some: Array) -> Probes:
        """Some of the probes."""
        return Probes(*(getattr(self, f.name)[some] for f in fields(self)))

    def join(self, other: Probes) -> Probes:
        """These probes, then the others."""
        return Probes(*(np.concatenate([getattr(x, f.name) for x in (self, other)]) for f in fields(self)))

    def without(self, other: Probes) -> Probes:
        """The probes that are not among others."""
        known = {row.tobytes() for row in other._rows()}
        return self.take(np.flatnonzero([row.tobytes() not in known for row in self._rows()]))

    def values(self, formats: Formats) -> list[Array]:
        """The values of A, B and C."""
        return [values(x, f) for x, f in zip((self.A, self.B, self.C), formats[:3], strict=True)]

    def terms(self) -> Array:
        """The number of terms of each probe, C included."""
        return np.asarray(((self.A != 0) & (self.B != 0)).sum(axis=1) + (self.C != 0))

    def _rows(self) -> Array:
        return np.concatenate([self.A, self.B, self.C[:, None]], axis=1).astype(np.uint64)


class Builder:
    """Collects probes of an instruction of given formats and k; probes with numbers outside the formats are skipped.

    `product(e, s, t)` returns the factors of s · 2^e, or s · (1 + 2^-t) · 2^e, with the exponent e where possible, or
    None; if t exceeds the bits of either factor, of s · (m + 2^-t) · 2^e with some odd m. `full(e, s)` returns factors
    of all ones with the same exponents, almost 4 · 2^e.
    """

    def __init__(self, formats: Formats, k: int) -> None:
        self.formats, self.k = formats, k
        self.rows: list[tuple[str, int, dict[int, Pair], float]] = []
        self._seen: set[Any] = set()
        self.product = cache(self._product)
        self.full = cache(self._full)

    def _product(self, e: int, s: int = 1, t: int | None = None) -> Pair | None:
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
                u, v = _factors(t, fa.precision, fb.precision)
                shift = x - u.bit_length() + 1
                a, b = math.ldexp(float(s * u), shift), math.ldexp(float(v), e - t - shift)
            elif t <= fa.fraction_bits:
                a += math.ldexp(float(s), x - t)
            else:
                b += math.ldexp(1.0, e - x - t)
        return (float(a), float(b)) if holds(fa, a) and holds(fb, b) and a != 0 and b != 0 else None

    def _full(self, e: int, s: int = 1) -> Pair | None:
        powers = self.product(e, s)
        if powers is None:
            return None
        fa, fb = self.formats[:2]
        a, b = (x * (2 - 2.0**-f.fraction_bits) for x, f in zip(powers, (fa, fb), strict=True))
        if not (holds(fa, a) and holds(fb, b)):  # the largest number of e4m3 is not all ones
            a, b = powers[0] * 1.5, powers[1] * 1.5
        return (a, b) if holds(fa, a) and holds(fb, b) else None

    def number(self, e: int, s: int = 1, t: int | None = None) -> float | None:
        """s · 2^e or s · (1 + 2^-t) · 2^e, if C's format has it."""
        if abs(e) > 1020:
            return None
        c = math.ldexp(float(s), e) + (0.0 if t is None else math.ldexp(float(s), e - t))
        return float(c) if c != 0 and holds(self.formats[2], float(c)) else None

    def add(
        self, kind: str, terms: Sequence[tuple[int, Pair | None]], c: float | None = 0.0, level: int = NO_LEVEL
    ) -> None:
        """Add a probe with products at positions counted from the end (0 is the last), if all its numbers exist."""
        if c is None or any(pair is None or not 0 <= q < self.k for q, pair in terms):
            return
        fc, fd = self.formats[2:]
        if fc != fd and isinstance(c, float) and math.isfinite(c) and not holds(fc, c):
            return
        at = {self.k - 1 - q: pair for q, pair in terms if pair is not None}
        key = repr((sorted(at), *at.values(), c))  # zeros of both signs
        if key not in self._seen and len(at) == len(terms):
            self._seen.add(key)
            self.rows.append((kind, level, at, c))

    def probes(self) -> Probes:
        """The collected probes; the builder is empty afterwards."""
        rows, self.rows = self.rows, []
        n = len(rows)
        given: list[Any] = []  # numbers that are given as codes
        numbers = [np.zeros((n, self.k)), np.zeros((n, self.k)), np.zeros(n)]
        for i, (_, _, at, c) in enumerate(rows):
            factors = [(operand, (i, q), x) for q, pair in at.items() for operand, x in enumerate(pair)]
            for operand, place, x in [*factors, (2, (i,), c)]:
                if isinstance(x, float):
                    numbers[operand][place] = x
                else:
                    given.append((operand, place, x))
        codes = [np.asarray(f.encode(x)) for f, x in zip(self.formats, numbers, strict=False)]
        for operand, place, code in given:
            codes[operand][place] = code
        of_a, of_b, of_c = (exponents(x, f) for x, f in zip(numbers, self.formats, strict=False))
        highest = np.maximum((of_a + of_b).max(axis=1), of_c)  # a subnormal factor may bring a product above its level
        spans = np.array([self.k - min(at, default=self.k) for _, _, at, _ in rows], np.int64)
        levels = np.array([e for _, e, *_ in rows], np.int64)
        levels = np.where(highest == levels, levels, NO_LEVEL)
        return Probes(codes[0], codes[1], codes[2], np.array([kind for kind, *_ in rows], object), levels, spans)


@cache
def _factors(t: int, left: int, right: int) -> tuple[int, int]:
    """Factors of at most `left` (and 11) and `right` bits of m · 2^t + 1 with the least odd m; zeros if none exist."""
    products = [
        (u * v >> t, u, v)
        for u in range(1, 1 << min(left, 11), 2)
        for v in range(pow(u, -1, 1 << t), 1 << right, 1 << t)
        if u * v >> t & 1
    ]
    return min(products, default=(0, 0, 0))[1:]


def holds(fmt: FloatFormat, x: float) -> bool:
    """Whether a finite number is a value of the format."""
    if not math.isfinite(x) or abs(x) > fmt.max:
        return False
    low = max(math.frexp(x)[1] - 1, fmt.emin) - fmt.fraction_bits
    return math.ldexp(x, -low).is_integer()


def exponents(x: Array, fmt: FloatFormat) -> Array:
    """Exponents in the instruction's sums: emin for a subnormal number, far below all others for zero."""
    return np.where(x == 0, _ZERO, np.maximum(np.frexp(x)[1].astype(np.int64) - 1, fmt.emin))


# --- the instruction under test

Execute = Callable[[Any, Any, Any], Any]
_TILE = (16, 8)  # M, N of the random products
_KEPT = 8  # mismatching outputs kept of each class


Verification = tuple[int, int, str]
"""Numbers of compared outputs and of mismatches, and the first mismatch in words"""


class Instruction:
    """A callable (A, B, C) -> D with operands and results of four formats; `shape`: the only shape (M, N) of D."""

    def __init__(self, execute: Execute, formats: Any, shape: tuple[int, int] | None) -> None:
        self.execute, self.formats, self.shape = execute, formats, shape

    def results(self, probes: Probes) -> Array:
        """One code of D for each probe."""
        A, B, C = probes.values(self.formats)
        if self.shape is None:
            return self.run(A[:, None, :], B[:, :, None], C[:, None, None]).reshape(-1)
        M, N = self.shape
        many, out = min(M, N), []
        for first in range(0, len(A), many):  # probes on the diagonal of D
            some = slice(first, first + many)
            i = np.arange(len(A[some]))
            a, b, c = np.zeros((M, A.shape[1]), A.dtype), np.zeros((B.shape[1], N), B.dtype), np.zeros((M, N), C.dtype)
            a[i], b[:, i], c[i, i] = A[some], B[some].T, C[some]
            out.append(self.run(a, b, c)[i, i])
        return np.concatenate(out)

    def run(self, A: Array, B: Array, C: Array) -> Array:
        """Codes of D."""
        D = np.asarray(self.execute(A.copy(), B.copy(), C.copy()))  # the callable may overwrite its operands
        fmt = self.formats[3]
        dtype = np.dtype(fmt) if isinstance(fmt, str) else fmt.dtype
        if D.shape != C.shape or D.dtype != dtype:
            raise InputError(f"the instruction returned {D.dtype} of shape {D.shape}, not {dtype} of {C.shape}")
        return codes(D, fmt)

    def verify(self, spec: MmaSpec, outputs: int, seed: int) -> tuple[Verification, list[Probes]]:
        """Compare at least so many outputs with the emulation, on random operands of all classes.

        Also a few mismatching dot products of each class.
        """
        M, N = self.shape or _TILE
        count, mismatches, first = 0, 0, ""
        examples: list[Probes] = []
        compile_it = str(spec.d_format) == "fp64" and outputs > 10_000  # the NumPy implementation uses fractions
        tests = -(-outputs // (M * N * len(streams.CLASSES)))
        for kind in streams.CLASSES if outputs else ():
            A, B, C = streams.operands(spec, kind, seed, 0, tests, M, N)
            a, b, c = (values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
            b = b.swapaxes(-1, -2)
            D = mma.execute(a, b, c, spec, backend="compiled" if compile_it else "numpy")
            expected = codes(D, spec.d_format)
            stacked = self.shape is None
            returned = self.run(a, b, c) if stacked else np.stack([self.run(*x) for x in zip(a, b, c, strict=True)])
            differ = expected != returned
            count, mismatches = count + differ.size, mismatches + int(differ.sum())
            if not differ.any():
                continue
            where = np.argwhere(differ)
            if not first:
                t, i, j = where[0].tolist()
                where_first = f"test {t}, row {i}, column {j}, seed {seed}"
                values_first = f"returned 0x{int(returned[t, i, j]):X}, the row gives 0x{int(expected[t, i, j]):X}"
                first = f"random operands of the class {kind!r} differ: {where_first}: {values_first}"
            t, i, j = where[:: max(1, len(where) // _KEPT)][:_KEPT].T
            examples.append(Probes.without_level(A[t, i], B[t, j], C[t, i, j], "random operands"))
        return (count, mismatches, first), examples


# --- directed probes: each shows one property of an instruction, with few bits
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
    return probes.probes()


def at_the_smallest(formats: Formats, k: int, specs: Sequence[MmaSpec]) -> Probes:
    """Sums near the smallest number of a D that keeps fewer fraction bits than its format; without levels."""
    probes, fd = Builder(formats, k), formats[3]
    for kept in sorted({s.sum_fraction_bits for s in specs} - {fd.fraction_bits}):
        for e in range(fd.emin - kept - 1, fd.emin - kept + 2):
            if e >= formats[0].emin + formats[1].emin:
                _level(probes, e)
    found = probes.probes()
    return replace(found, levels=np.full(len(found), NO_LEVEL))


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
