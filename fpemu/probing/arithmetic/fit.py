"""From the answers of probes to the specs that give them: elimination, without a search over all fields at once.

Where the largest exponent of a block is e, its terms are cut below 2^U(e), U(e) = max(e, E0) - F. At one level e that
is one unknown number beside the final rounding and the fraction bits of D, and the probes of the level leave few of
these. The table of U over all levels then gives F and E0. What is left is held against all probes, those over several
blocks too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FP16
from fpemu.gpu.emulation import codes, values
from fpemu.mma import fused
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.pool import DEPTH, NO_LEVEL, Formats, Pool
from fpemu.rounding import round_to

_NO_FLOOR = -(10**6)
_ABOVE = 4  # places above a level, from where on nothing of a block is left
_MANY = 12  # candidates held against all probes together
_TERMS = 2**20  # products of candidates and probes worked on at a time


@dataclass(frozen=True)
class Fields:
    """What a truncated block has beside its length, as arrays over candidates (`fused.block` takes them for a spec)."""

    operand_formats: Formats
    F: NDArray[np.int64]
    E0: NDArray[np.int64]
    fraction_bits: NDArray[np.int64]
    final: str

    @classmethod
    def of(cls, formats: Formats, rows: NDArray[np.int64], final: str) -> Fields:
        """From rows (F, E0, fraction bits)."""
        F, E0, bits = (rows[:, i, None, None, None] for i in range(3))
        return cls(formats, F, E0, bits, final)

    def block(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        """One block for every candidate: a (n, 1, L), b (n, L, 1), c (n, 1, 1) or (candidates, n, 1, 1)."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(fused.block(a, b, c, cast(MmaSpec, self)))


@dataclass(frozen=True)
class Structure:
    """An arithmetic and a block length: what is decided before the other fields."""

    arithmetic: str
    block: int


class Answers:
    """Probes with what the instruction returned, and the specs that agree with them."""

    def __init__(self, formats: Formats, k: int, pool: Pool, D: NDArray[Any]) -> None:
        self.formats, self.k, self.pool, self.D = formats, k, pool, D
        a, b, c = (values(x, f) for x, f in zip((pool.A, pool.B, pool.C), formats[:3], strict=True))
        self.a, self.b, self.c = a[:, None, :], b[:, :, None], c[:, None, None]
        with np.errstate(invalid="ignore"):
            self.wide = [x.astype(np.float64) for x in (self.a, self.b, self.c)]
            self.d = values(D, formats[3]).astype(np.float64)
        self.order = np.random.default_rng(0).permutation(len(pool))  # a few of any kind settle most

    # --- one spec against all
    def differ(self, spec: MmaSpec, some: NDArray[Any] | slice = slice(None)) -> NDArray[np.bool_]:
        """Which answers the emulation of a spec does not give; any NaN is as good as another."""
        D = mma.execute(self.a[some], self.b[some], self.c[some], spec, backend="numpy")
        mine, theirs = codes(D, self.formats[3]).reshape(-1), self.D[some]
        both = np.isnan(D.reshape(-1)) & np.isnan(self.d[some])
        return np.asarray((mine != theirs) & ~both)

    def fits(self, spec: MmaSpec) -> bool:
        """Whether all answers are those of a spec."""
        step, n = 64, len(self.order)
        first = 0
        while first < n:
            if self.differ(spec, self.order[first : first + step]).any():
                return False
            first, step = first + step, 8 * step
        return True

    def reach(self, spec: MmaSpec) -> int | None:
        """The highest floor that gives the same answers as the spec's; None if there is none above it.

        Without a floor: at least the lowest exponent that a term has.
        """
        low, high = (int(_floors(self.formats)[1]) - 1 if spec.E0 is None else spec.E0), _top(self.formats) + 1
        start = low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(spec.replace(E0=middle)) else (low, middle)
        return None if low == start and spec.E0 is not None else low

    # --- all fields of one structure
    def fit(self, structure: Structure) -> list[MmaSpec]:
        """The specs of a structure that agree with all answers; of floors that do alike, the lowest and the highest."""
        if structure.arithmetic not in ("truncated", "via-half"):
            found = [_spec(self.formats, self.k, structure, final) for final in ("RNE", "RZ")]
            return [spec for spec in found if spec is not None and self.fits(spec)]
        if _spec(self.formats, self.k, structure) is None:
            return []
        out: list[MmaSpec] = []
        for final in ("RNE", "RZ"):
            rows = self._from_levels(structure, final)
            kept, order = self._some(structure, final, _ends(rows), self.order)
            if not len(kept):  # a floor may lie between the lowest and the highest
                kept = _ends(self._some(structure, final, rows, order)[0])
            found = [_spec(self.formats, self.k, structure, final, *row) for row in kept.tolist()]
            specs = [spec for spec in found if spec is not None]
            if specs and self.fits(preferred(specs)):  # signs of zeros too, which are those of the structure
                out += specs
        return out

    def _bits(self) -> list[int]:
        """Fraction bits that D may have."""
        full = self.formats[3].fraction_bits
        return list(range(full, 0, -1)) if self.formats[3].name == "fp32" else [full]

    def _from_levels(self, structure: Structure, final: str) -> NDArray[np.int64]:
        """Rows (F, E0, fraction bits) that every level allows."""
        bits = np.array(self._bits())
        offsets = np.arange(-_ABOVE, DEPTH - 1)  # e - U
        allowed: dict[int, NDArray[np.bool_]] = {}  # per level: offsets x bits
        level_list, counts = np.unique(self.pool.levels, return_counts=True)
        alive = np.ones(len(bits), bool)
        for e in level_list[np.argsort(-counts)].tolist():
            if e == NO_LEVEL:
                continue
            table = np.zeros((len(offsets), len(bits)), bool)
            rows = [(o, e, bit) for o in offsets.tolist() for bit in bits[alive].tolist()]
            kept = self._one_level(structure, final, e, np.array(rows, np.int64).reshape(-1, 3))
            for o, _, bit in kept.tolist():
                table[o + _ABOVE, bits[0] - bit] = True
            allowed[e] = table
            alive &= table.any(axis=0)
            if not alive.any():
                return np.empty((0, 3), np.int64)
        F, floors = np.arange(1, DEPTH - 1), _floors(self.formats)
        found = []
        for n in np.flatnonzero(alive):
            good = np.ones((len(F), len(floors)), bool)
            good[1:, floors > _top(self.formats)] = False
            for e, table in allowed.items():
                offset = np.clip(e - np.maximum(e, floors) + F[:, None], -_ABOVE, DEPTH - 2)
                good &= table[offset + _ABOVE, n]
            f, floor = np.nonzero(good)
            found.append(np.stack([F[f], floors[floor], np.full(len(f), bits[n])], axis=1))
        return np.concatenate(found)

    def _one_level(self, structure: Structure, final: str, e: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The candidates (e - U, E0 = e, fraction bits) that the probes of one level leave."""
        half = structure.arithmetic == "via-half"
        length = min(structure.block, 5)
        chosen = (self.pool.levels == e) & (self.pool.spans <= (5 if half else length))
        if half:  # in the second half, from zero; C is added outside
            first = np.flatnonzero(np.arange(self.k) % 4 < 2)
            chosen &= ~self.pool.with_c & (self.wide[0][:, 0, first] == 0).all(axis=1)
        formats = (FP16, FP16, *self.formats[2:]) if half else self.formats
        columns = slice(max(self.k - 5, 0) if half else self.k - length, None)
        order = self.order[chosen[self.order]]
        for some in _chunks(order, 8):
            a, b, c = (x[some] for x in self.wide)
            fields = Fields.of(formats, rows, final)
            if self.k > structure.block:  # blocks of zeros pass C through
                c = fields.block(a[..., :1] * 0, b[..., :1, :] * 0, c)
            d = fields.block(a[..., columns], b[..., columns, :], c)
            rows = rows[self._equal(d, some).all(axis=1)]
        return rows

    def _some(
        self, structure: Structure, final: str, rows: NDArray[np.int64], order: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """What all probes leave of the plainest candidates; of the next ones where that is nothing; and so on.

        And the order of the probes with those first that took candidates away.
        """
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 1] != _NO_FLOOR, -rows[:, 2]))]
        rows, told = self._filter(structure, final, rows, order[:256])
        front = np.isin(order, told)
        order = np.concatenate([order[front], order[~front]])
        for first in range(0, len(rows), _MANY):
            kept, told = self._filter(structure, final, rows[first : first + _MANY], order)
            if len(kept):
                return kept, order
            front = np.isin(order, told)
            order = np.concatenate([order[front], order[~front]])
        return rows[:0], order

    def _filter(
        self, structure: Structure, final: str, rows: NDArray[np.int64], order: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The candidates (F, E0, fraction bits) that all probes leave, and the probes that took the others away."""
        half = structure.arithmetic == "via-half"
        formats = (FP16, FP16, *self.formats[2:]) if half else self.formats
        block = self.k // 2 if half else structure.block
        ks = np.arange(self.k)
        if half:
            ks = np.concatenate([ks[ks % 4 < 2], ks[ks % 4 >= 2]])
        told = [order[:0]]
        first, size = 0, 16
        while len(rows) and first < len(order):
            some = order[first : first + size]
            first, size = first + size, max(16, min(2 * size, _TERMS // (len(rows) * self.k)))
            a, b, c = (x[some] for x in self.wide)
            fields = Fields.of(formats, rows, final)
            d = np.zeros_like(c) if half else c
            for start in range(0, self.k, block):
                at = ks[start : start + block]
                d = fields.block(a[..., at], b[..., at, :], d)
            if half:
                with np.errstate(invalid="ignore"):
                    d = np.asarray(round_to(c + d, self.formats[3])).astype(np.float64)
            equal = self._equal(d, some)
            told.append(some[~equal.all(axis=0)])
            rows = rows[equal.all(axis=1)]
        return rows, np.concatenate(told)

    def _equal(self, d: NDArray[Any], some: NDArray[Any]) -> NDArray[np.bool_]:
        """Which answers (candidates, n, 1, 1) are those given, (candidates, n); signs of zeros aside."""
        mine, theirs = d.reshape(-1, len(some)), self.d[some]
        return np.asarray((mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))


def structures(formats: Formats, k: int) -> list[Structure]:
    """All that an instruction of these formats may be, the likelier first."""
    lengths = [n for n in range(min(k, 64), 0, -1) if k % n == 0]
    found = [Structure("fma", 1)]
    found += [Structure(name, n) for name in ("truncated", "exact") for n in lengths]
    found += [Structure("via-half", k)]
    found += [Structure(name, n) for name in ("flushed", "cdna3", "cdna3-fp8") for n in lengths]
    return [s for s in found if _spec(formats, k, s) is not None]


def _spec(
    formats: Formats, k: int, structure: Structure, final: str | None = None, F: int = 24, E0: int = _NO_FLOOR,
    bits: int | None = None,
) -> MmaSpec | None:  # fmt: skip
    """The spec of these fields, if there is one."""
    a, b, c, d = formats
    fields: dict[str, Any] = {}
    if structure.arithmetic in ("truncated", "via-half"):
        fields = {"F": F, "E0": None if E0 == _NO_FLOOR else E0, "final": final}
        fields["fraction_bits"] = None if bits in (None, d.fraction_bits) else bits
    elif structure.arithmetic == "exact":
        fields = {"final": final}
    elif final == "RZ":
        return None
    try:
        fields["arithmetic"] = structure.arithmetic
        return MmaSpec(a, b, d, k=k, block=structure.block, c_format=c, **fields)
    except InputError:
        return None


def _top(formats: Formats) -> int:
    """The highest exponent that a term can have."""
    return min(max(formats[0].emax + formats[1].emax, formats[2].emax), 299)


def _floors(formats: Formats) -> NDArray[np.int64]:
    """The values of E0 that can be told apart by some F.

    A floor at or below every exponent is none. One above them all leaves E0 - F alone, so that E0 at the top will do,
    or F = 1 with a higher one; a few places further nothing of any term is left.
    """
    bottom = min(formats[0].emin + formats[1].emin, formats[2].emin)
    last = min(_top(formats) + 4, 300)
    return np.array([_NO_FLOOR, *range(max(bottom + 1, -300), last + 1)])


def _ends(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the candidates that differ in E0 alone, those with the lowest and the highest."""
    if not len(rows):
        return rows
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))]
    same = (np.diff(rows[:, 0]) == 0) & (np.diff(rows[:, 2]) == 0)
    first, last = np.append(True, ~same), np.append(~same, True)
    return rows[first | last]


def _chunks(order: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    first = 0
    while first < len(order):
        yield order[first : first + size]
        first, size = first + size, 2 * size


def preferred(found: Iterable[MmaSpec]) -> MmaSpec:
    """Of specs that no probe tells apart the plainest: all fraction bits, the usual rounding, no floor, the least F."""

    def rank(spec: MmaSpec) -> tuple[Any, ...]:
        usual = "RZ" if str(spec.d_format) == "fp32" else "RNE"
        order = ("fma", "truncated", "exact", "via-half", "flushed", "cdna3", "cdna3-fp8")
        return (
            order.index(spec.arithmetic), -spec.block, spec.fraction_bits is not None, -(spec.fraction_bits or 0),
            spec.arithmetic in ("truncated", "via-half") and spec.final != usual,
            spec.E0 is not None, spec.F, spec.E0 or 0,
        )  # fmt: skip

    return min(found, key=rank)
