"""From the answers of probes to the specs that give them: elimination, without a search over all fields at once.

Where the largest exponent of a block is e, its terms are cut below 2^U(e), U(e) = max(e, E0) - F. At one level e that
is one unknown number beside the final rounding and the fraction bits of D, and the probes of the level leave few of
these. The table of U over all levels then gives F and E0. What is left is held against all probes, those over several
blocks too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.formats import FP16
from fpemu.mma import fused
from fpemu.mma.codes import codes, values
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.candidates import NO_FLOOR, Structure, floors, preferred, spec_of, top_of
from fpemu.probing.arithmetic.pool import DEPTH, NO_LEVEL, Formats, Pool
from fpemu.rounding import round_to

_ABOVE = 4  # places above a level, from where on nothing of a block is left
_PLAIN, _MANY = 8, 12  # candidates held against all probes together: the plainest, and some of all
_ENOUGH = 32  # candidates that agree with all probes, from where on only the plainest of the others are tried
_TRIES = 4  # times that others are tried where there are fewer
_TOLD = 16  # of the probes that took some away, held against all the others at once
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
        self.open: dict[tuple[Structure, str], NDArray[np.int64]] = {}  # candidates that no probe took away so far
        self.proven: dict[tuple[Structure, str], NDArray[np.int64]] = {}  # and those that agree with all

    def extended(self, more: Pool, D: NDArray[Any]) -> Answers:
        """With the answers of further probes."""
        made = Answers(self.formats, self.k, self.pool.join(more), np.concatenate([self.D, D]))
        if (more.levels == NO_LEVEL).all():
            new = np.arange(len(self.pool), len(made.pool))
            made.open = {key: made._filter(*key, rows, new)[0] for key, rows in self.open.items()}
            made.proven = {key: made._filter(*key, rows, new)[0] for key, rows in self.proven.items()}
        return made

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
        low, high = (int(floors(self.formats)[1]) - 1 if spec.E0 is None else spec.E0), top_of(self.formats) + 1
        start = low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(spec.replace(E0=middle)) else (low, middle)
        return None if low == start and spec.E0 is not None else low

    # --- all fields of one structure
    def fit(self, structure: Structure) -> list[MmaSpec]:
        """The specs of a structure that agree with all answers; of floors that do alike, the lowest and the highest."""
        if structure.arithmetic not in ("truncated", "via-half"):
            found = [spec_of(self.formats, self.k, structure, final) for final in ("RNE", "RZ")]
            return [spec for spec in found if spec is not None and self.fits(spec)]
        if spec_of(self.formats, self.k, structure) is None:
            return []
        out: list[MmaSpec] = []
        for final in ("RNE", "RZ"):
            if (structure, final) not in self.open:
                self.open[structure, final] = self._from_levels(structure, final)
                self.proven[structure, final] = np.empty((0, 3), np.int64)
            self._prove(structure, final)
            kept = self.proven[structure, final]
            found = [spec_of(self.formats, self.k, structure, final, *row) for row in kept.tolist()]
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
        F, lows = np.arange(1, DEPTH - 1), floors(self.formats)
        found = []
        for n in np.flatnonzero(alive):
            good = np.ones((len(F), len(lows)), bool)
            good[1:, lows > top_of(self.formats)] = False
            for e, table in allowed.items():
                offset = np.clip(e - np.maximum(e, lows) + F[:, None], -_ABOVE, DEPTH - 2)
                good &= table[offset + _ABOVE, n]
            f, floor = np.nonzero(good)
            found.append(np.stack([F[f], lows[floor], np.full(len(f), bits[n])], axis=1))
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

    def _prove(self, structure: Structure, final: str) -> None:
        """Hold the plainest candidates and some of all the others against all probes, and the next if few agree."""
        rows, proven, order = self.open[structure, final], self.proven[structure, final], self.order
        for turn in range(len(rows)):
            some = _some(rows, len(proven) < _ENOUGH)
            kept, told = self._filter(structure, final, rows[some], order)
            proven = np.concatenate([proven, kept])
            rows, _ = self._filter(structure, final, np.delete(rows, some, axis=0), told[:_TOLD])
            if not len(rows) or len(proven) >= _ENOUGH or (len(proven) and turn + 1 >= _TRIES):
                break
            order = _forward(order, told)
        self.open[structure, final], self.proven[structure, final] = rows, proven

    def _filter(
        self, structure: Structure, final: str, rows: NDArray[np.int64], order: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The candidates (F, E0, fraction bits) that all probes leave, and the probes that took the others away."""
        told = [order[:0]]
        first, size = 0, 16
        while len(rows) and first < len(order):
            some = order[first : first + size]
            first, size = first + size, max(16, min(2 * size, _TERMS // (len(rows) * self.k)))
            equal = self._equal(self._results(structure, final, rows, some), some)
            told.append(some[~equal.all(axis=0)])
            rows = rows[equal.all(axis=1)]
        return rows, np.concatenate(told)

    def _results(
        self, structure: Structure, final: str, rows: NDArray[np.int64], some: NDArray[Any]
    ) -> NDArray[np.float64]:
        """What candidates (F, E0, fraction bits) give for some probes."""
        half = structure.arithmetic == "via-half"
        formats = (FP16, FP16, *self.formats[2:]) if half else self.formats
        block = self.k // 2 if half else structure.block
        ks = np.arange(self.k)
        if half:
            ks = np.concatenate([ks[ks % 4 < 2], ks[ks % 4 >= 2]])
        a, b, c = (x[some] for x in self.wide)
        fields = Fields.of(formats, rows, final)
        d = np.zeros_like(c) if half else c
        for start in range(0, self.k, block):
            at = ks[start : start + block]
            d = fields.block(a[..., at], b[..., at, :], d)
        if half:
            with np.errstate(invalid="ignore"):
                d = np.asarray(round_to(c + d, self.formats[3])).astype(np.float64)
        return d

    def predicted(self, specs: Sequence[MmaSpec]) -> NDArray[Any]:
        """The codes that each spec gives for all probes."""
        return np.stack(
            [
                codes(mma.execute(self.a, self.b, self.c, spec, backend="numpy"), self.formats[3]).reshape(-1)
                for spec in specs
            ]
        )

    def values(self, specs: Sequence[MmaSpec]) -> NDArray[np.float64]:
        """The values that each spec gives for all probes, (specs, n); those of a structure are worked out together."""
        out = np.empty((len(specs), len(self.pool)))
        groups: dict[tuple[Structure, str], list[int]] = {}
        for i, s in enumerate(specs):
            groups.setdefault((Structure(s.arithmetic, s.block), str(s.final)), []).append(i)
        for (structure, final), some in groups.items():
            if structure.arithmetic in ("truncated", "via-half"):
                rows = [(s.F, NO_FLOOR if s.E0 is None else s.E0, s.fraction_bits) for s in (specs[i] for i in some)]
                full = self.formats[3].fraction_bits
                fields = np.array([(F, E0, full if bits is None else bits) for F, E0, bits in rows], np.int64)
                out[some] = self._results(structure, final, fields, np.arange(len(self.pool))).reshape(len(some), -1)
            else:
                with np.errstate(invalid="ignore"):
                    out[some] = values(self.predicted([specs[i] for i in some]), self.formats[3])
        return out

    def _equal(self, d: NDArray[Any], some: NDArray[Any]) -> NDArray[np.bool_]:
        """Which answers (candidates, n, 1, 1) are those given, (candidates, n); signs of zeros aside."""
        mine, theirs = d.reshape(-1, len(some)), self.d[some]
        return np.asarray((mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))


def _some(rows: NDArray[np.int64], many: bool) -> NDArray[np.int64]:
    """Which candidates to try: the plainest; and some of all, of those that differ in E0 alone the ends, if `many`."""
    plain = np.lexsort((rows[:, 1], rows[:, 0], rows[:, 1] != NO_FLOOR, -rows[:, 2]))
    if not many or len(rows) <= _PLAIN:
        return plain[:_PLAIN]
    order = np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))
    same = (np.diff(rows[order][:, 0]) == 0) & (np.diff(rows[order][:, 2]) == 0)
    ends = order[np.append(True, ~same) | np.append(~same, True)]
    spread = (x[np.linspace(0, len(x) - 1, _MANY).astype(int)] for x in (ends, plain))
    return np.unique(np.concatenate([plain[:_PLAIN], *spread]))


def _forward(order: NDArray[Any], told: NDArray[Any]) -> NDArray[Any]:
    """Some of the probes before the others."""
    front = np.isin(order, told)
    return np.concatenate([order[front], order[~front]])


def _chunks(order: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    first = 0
    while first < len(order):
        yield order[first : first + size]
        first, size = first + size, 2 * size
