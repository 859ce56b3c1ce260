"""Candidate specifications of an instruction, and their elimination by the results of probes, level by level.

At a level e, terms are truncated below 2^U(e), U(e) = max(e, E0) - F. This is one unknown number beside the final
rounding and the fraction bits of D, and the probes of the level leave few of its values. The table of U over all levels
gives F and E0; the remaining candidates are compared with all probes, those over several blocks included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FP16
from fpemu.mma import reference
from fpemu.mma.arithmetic import ARITHMETICS, DEFAULTS
from fpemu.mma.codes import codes, values
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.probes import DEPTH, NO_LEVEL, Array, Formats, Probes
from fpemu.rounding import round_to

NO_FLOOR = -(10**6)


@dataclass(frozen=True)
class Structure:
    """An arithmetic and a block length, which are decided before the other fields."""

    arithmetic: str
    block: int


def structures(formats: Formats, k: int) -> list[Structure]:
    """All structures of an instruction with these formats, the likelier first."""
    lengths = [n for n in range(min(k, 64), 0, -1) if k % n == 0]
    likely = [row for row in sorted(ARITHMETICS.values(), key=lambda row: row.rank) if not row.integer]
    every = [Structure(row.name, n) for row in likely for n in lengths]
    return [s for s in every if spec_of(formats, k, s) is not None]


def spec_of(
    formats: Formats,
    k: int,
    structure: Structure,
    final: str | None = None,
    F: int = 24,
    E0: int = NO_FLOOR,
    bits: int | None = None,
) -> MmaSpec | None:
    """The specification with these fields, if there is one."""
    a, b, c, d = formats
    fields: dict[str, Any] = {"arithmetic": structure.arithmetic}
    rules = ARITHMETICS[structure.arithmetic]
    if rules.truncates:
        fields |= {"F": F, "E0": None if E0 == NO_FLOOR else E0, "final": final}
        fields["fraction_bits"] = None if bits in (None, d.fraction_bits) else bits
    elif "final" in rules.parameters:
        fields["final"] = final
    elif final == "RZ":
        return None
    try:
        return MmaSpec(a, b, d, k=k, block=structure.block, c_format=c, **fields)
    except InputError:
        return None


def top_of(formats: Formats) -> int:
    """The highest exponent of a term."""
    return min(max(formats[0].emax + formats[1].emax, formats[2].emax), 299)


def floors(formats: Formats) -> Array:
    """The values of E0 with different results for some F.

    A floor at or below every exponent has no effect. Above every exponent only E0 - F matters, so that E0 at the top
    suffices, or F = 1 with a higher one; a few positions further every term vanishes.
    """
    bottom = min(formats[0].emin + formats[1].emin, formats[2].emin)
    last = min(top_of(formats) + 4, 300)
    return np.array([NO_FLOOR, *range(max(bottom + 1, -300), last + 1)])


def preferred(specs: Iterable[MmaSpec]) -> MmaSpec:
    """The simplest of several specifications: all fraction bits, the usual rounding, no floor, the least F."""

    def rank(spec: MmaSpec) -> tuple[Any, ...]:
        usual = "RZ" if str(spec.d_format) == "fp32" else "RNE"
        return (
            spec.rules.rank,
            -spec.block,
            spec.fraction_bits is not None,
            -(spec.fraction_bits or 0),
            spec.rules.truncates and spec.final != usual,
            spec.E0 is not None,
            spec.F,
            spec.E0 or 0,
        )

    return min(specs, key=rank)


def changed(spec: MmaSpec, changes: Iterable[dict[str, Any]]) -> list[MmaSpec]:
    """The specification with each change that gives a valid one."""
    valid = []
    for change in changes:
        try:
            valid.append(spec.replace(**change))
        except InputError:
            continue
    return valid


def other_fraction_bits(spec: MmaSpec) -> list[dict[str, Any]]:
    """One fraction bit more or fewer in a result of fp32."""
    bits = spec.sum_fraction_bits
    near = [n for n in (bits - 1, bits + 1) if 1 <= n <= 23] if str(spec.d_format) == "fp32" else []
    return [{"fraction_bits": None if n == 23 else n} for n in near]


def neighbours(spec: MmaSpec) -> list[MmaSpec]:
    """Specifications with slightly different F, E0, fraction bits or final rounding."""
    if not spec.rules.truncates:
        return []
    changes: list[dict[str, Any]] = [{"final": "RZ" if spec.final == "RNE" else "RNE"}]
    changes += [{"F": spec.F + d} for d in (-2, -1, 1, 2, 5, 9)]
    if spec.E0 is not None:
        changes += [{"E0": spec.E0 + d} for d in (-5, -2, -1, 1, 2, 5)] + [{"E0": None}]
        changes += [{"E0": spec.E0 + d, "F": spec.F + d} for d in (-3, -1, 1, 3)]
    return changed(spec, [*changes, *other_fraction_bits(spec)])


def other_blocks(spec: MmaSpec) -> list[MmaSpec]:
    """Specifications with other block lengths, the nearest first."""
    lengths = [n for n in range(1, min(spec.k, 64) + 1) if spec.k % n == 0 and n != spec.block]
    return changed(spec, [{"block": n} for n in sorted(lengths, key=lambda n: abs(np.log2(n / spec.block)))])


def other_arithmetics(spec: MmaSpec) -> list[MmaSpec]:
    """Specifications with the same formats in other arithmetics, with the same block length if possible."""
    others = []
    for arithmetic, rules in ARITHMETICS.items():
        fields = {**DEFAULTS, "arithmetic": arithmetic, "final": None} | ({"F": 25} if rules.truncates else {})
        if arithmetic != spec.arithmetic:
            others += changed(spec, [{**fields, "block": block} for block in (spec.block, 1, spec.k)])[:1]
    return others


# --- elimination of candidates
_ABOVE = 4  # positions above a level from which on every term of a block vanishes
_PLAIN, _MANY = 8, 12  # candidates compared with all probes together: the simplest, and some of all
_ENOUGH = 32  # consistent candidates from which on only the simplest of the others are tried
_TRIES = 4  # rounds in which others are tried while there are fewer
_ELIMINATING = 16  # eliminating probes that are applied to all other candidates at once
_TERMS = 2**20  # products of candidates and probes processed at a time
Rows = Array  # int64, candidates: F, E0, fraction bits


class Results:
    """Probes with the codes D that an instruction returned, and the specifications consistent with them."""

    def __init__(self, formats: Formats, k: int, probes: Probes, D: Array, possible: Iterable[Structure] = ()) -> None:
        self.formats, self.k, self.probes, self.D = formats, k, probes, D
        a, b, c = probes.values(formats)
        self.a, self.b, self.c = a[:, None, :], b[:, :, None], c[:, None, None]
        with np.errstate(invalid="ignore"):
            self.wide = [x.astype(np.float64) for x in (self.a, self.b, self.c)]
            self.d = values(D, formats[3]).astype(np.float64)
        self.order = np.random.default_rng(0).permutation(len(probes))  # a few probes of each kind eliminate most
        # candidates that no probe has eliminated so far, and those that are consistent with all probes
        self._rows: dict[tuple[Structure, str], tuple[Rows, Rows]] = {}
        self.by_structure = {s: self._fit(s) for s in possible}

    @property
    def specs(self) -> list[MmaSpec]:
        """The consistent specifications; of those that differ in F and E0 alone, a few."""
        return [spec for specs in self.by_structure.values() for spec in specs]

    def rivals(self) -> list[MmaSpec]:
        """The specifications beside the preferred one, and its consistent neighbours."""
        if not self.specs:
            return []
        spec = preferred(self.specs)
        rivals = [s for s in self.specs if s != spec]
        return rivals + [s for s in neighbours(spec) if s not in rivals and self.fits(s)]

    def extended(self, more: Probes, D: Array) -> Results:
        """With the results of further probes, which have no level."""
        results = Results(self.formats, self.k, self.probes.join(more), np.concatenate([self.D, D]))
        new = np.arange(len(self.probes), len(results.probes))
        results._rows = {
            key: (results._filter(*key, rest, new)[0], results._filter(*key, consistent, new)[0])
            for key, (rest, consistent) in self._rows.items()
        }
        results.by_structure = {s: results._fit(s) for s, specs in self.by_structure.items() if specs}
        return results

    # --- one specification
    def codes(self, spec: MmaSpec, some: Array | slice = slice(None)) -> Array:
        """The codes that a specification gives."""
        D = mma.execute(self.a[some], self.b[some], self.c[some], spec, backend="numpy")
        return codes(D, self.formats[3]).reshape(-1)

    def mismatches(self, spec: MmaSpec, some: Array | slice = slice(None)) -> Array:
        """The results that a specification does not reproduce; all NaN count as equal."""
        expected = self.codes(spec, some)
        both_nan = np.isnan(np.asarray(values(expected, self.formats[3]))) & np.isnan(self.d[some])
        return np.asarray((expected != self.D[some]) & ~both_nan)

    def fits(self, spec: MmaSpec) -> bool:
        """Whether a specification reproduces all results."""
        return not any(self.mismatches(spec, some).any() for some in np.split(self.order, [64, 64 * 9]))

    def reach(self, spec: MmaSpec) -> int | None:
        """The highest floor with the same results as the specification's; None if there is none above it.

        Without a floor: at least the lowest exponent of a term.
        """
        low, high = (int(floors(self.formats)[1]) - 1 if spec.E0 is None else spec.E0), top_of(self.formats) + 1
        start = low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(spec.replace(E0=middle)) else (low, middle)
        return None if low == start and spec.E0 is not None else low

    # --- all fields of one structure
    def _fit(self, structure: Structure) -> list[MmaSpec]:
        """The consistent specifications of a structure; of several floors with the same results, some."""
        if not ARITHMETICS[structure.arithmetic].truncates:
            both = [spec_of(self.formats, self.k, structure, final) for final in ("RNE", "RZ")]
            return [spec for spec in both if spec is not None and self.fits(spec)]
        out: list[MmaSpec] = []
        for final in ("RNE", "RZ"):
            candidates = [
                spec_of(self.formats, self.k, structure, final, *row) for row in self._eliminate(structure, final)
            ]
            specs = [spec for spec in candidates if spec is not None]
            if specs and self.fits(preferred(specs)):  # signs of zeros too, which depend on the structure alone
                out += specs
        return out

    def _from_levels(self, structure: Structure, final: str) -> Rows:
        """The candidates that every level admits."""
        full = self.formats[3].fraction_bits
        bits = np.arange(full, 0, -1) if self.formats[3].name == "fp32" else np.array([full])
        offsets = np.arange(-_ABOVE, DEPTH - 1)  # e - U
        admitted: dict[int, Array] = {}  # per level: offsets x bits
        levels, counts = np.unique(self.probes.levels, return_counts=True)
        possible = np.ones(len(bits), bool)
        for e in levels[np.argsort(-counts)].tolist():
            if e == NO_LEVEL:
                continue
            table = np.zeros((len(offsets), len(bits)), bool)
            rows = [(o, e, bit) for o in offsets.tolist() for bit in bits[possible].tolist()]
            # with E0 = e a candidate F is an offset e - U
            fitting, _ = self._filter(structure, final, np.array(rows, np.int64), self._at_level(structure, e))
            table[fitting[:, 0] + _ABOVE, bits[0] - fitting[:, 2]] = True
            admitted[e] = table
            possible &= table.any(axis=0)
            if not possible.any():
                return np.empty((0, 3), np.int64)
        F, lows = np.arange(1, DEPTH - 1), floors(self.formats)
        candidates = []
        for n in np.flatnonzero(possible):
            good = np.ones((len(F), len(lows)), bool)
            good[1:, lows > top_of(self.formats)] = False
            for e, table in admitted.items():
                offset = np.clip(e - np.maximum(e, lows) + F[:, None], -_ABOVE, DEPTH - 2)
                good &= table[offset + _ABOVE, n]
            f, floor = np.nonzero(good)
            candidates.append(np.stack([F[f], lows[floor], np.full(len(f), bits[n])], axis=1))
        return np.concatenate(candidates)

    def _at_level(self, structure: Structure, e: int) -> Array:
        """The probes of a level whose products lie in one block, or in the second half of k with C = 0."""
        if ARITHMETICS[structure.arithmetic].via is None:
            chosen = (self.probes.levels == e) & (self.probes.spans <= min(structure.block, 5))
        else:
            first = np.flatnonzero(np.arange(self.k) % 4 < 2)
            chosen = (self.probes.levels == e) & (self.probes.spans <= 5) & (self.probes.C == 0)
            chosen &= (self.wide[0][:, 0, first] == 0).all(axis=1)
        return self.order[chosen[self.order]]

    def _eliminate(self, structure: Structure, final: str) -> list[list[int]]:
        """The consistent candidates: the simplest and some of all others are compared with all probes, and the next
        ones if few remain."""
        key, order = (structure, final), self.order
        if key not in self._rows:
            self._rows[key] = self._from_levels(structure, final), np.empty((0, 3), np.int64)
        rows, consistent = self._rows[key]
        for turn in range(len(rows)):
            some = _selection(rows, len(consistent) < _ENOUGH)
            kept, eliminating = self._filter(*key, rows[some], order)
            consistent = np.concatenate([consistent, kept])
            rows, _ = self._filter(*key, np.delete(rows, some, axis=0), eliminating[:_ELIMINATING])
            if not len(rows) or len(consistent) >= _ENOUGH or (len(consistent) and turn + 1 >= _TRIES):
                break
            front = np.isin(order, eliminating)
            order = np.concatenate([order[front], order[~front]])
        self._rows[key] = rows, consistent
        return consistent.tolist()

    def _filter(self, structure: Structure, final: str, rows: Rows, order: Array) -> tuple[Rows, Array]:
        """The candidates consistent with some probes, and the probes that eliminated the others."""
        eliminating = [order[:0]]
        # few probes eliminate most candidates; later groups are larger, as far as memory allows
        first, size = 0, 16
        while len(rows) and first < len(order):
            some = order[first : first + size]
            first, size = first + size, max(16, min(2 * size, _TERMS // (len(rows) * self.k)))
            expected = self._emulated(structure, final, rows, some).reshape(-1, len(some))
            # signs of zeros aside
            equal = (expected == self.d[some]) | (np.isnan(expected) & np.isnan(self.d[some]))
            eliminating.append(some[~equal.all(axis=0)])
            rows = rows[equal.all(axis=1)]
        return rows, np.concatenate(eliminating)

    def _emulated(self, structure: Structure, final: str, rows: Rows, some: Array) -> Array:
        """The values that candidates give for some probes."""
        half = ARITHMETICS[structure.arithmetic].via is not None
        formats = (FP16, FP16, *self.formats[2:]) if half else self.formats
        ks, block = np.arange(self.k), structure.block
        if half:
            ks, block = np.concatenate([ks[ks % 4 < 2], ks[ks % 4 >= 2]]), self.k // 2
        F, E0, bits = (rows[:, i, None, None, None] for i in range(3))
        # the fields that `reference.truncated` reads from a specification, as arrays over candidates
        spec: Any = SimpleNamespace(operand_formats=formats, F=F, E0=E0, sum_fraction_bits=bits, final=final)
        a, b, c = (x[some] for x in self.wide)
        d = np.zeros_like(c) if half else c
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, self.k, block):
                at = ks[start : start + block]
                d = np.asarray(reference.truncated(a[..., at], b[..., at, :], d, spec))
            return np.asarray(round_to(c + d, self.formats[3])).astype(np.float64) if half else d

    def values(self, spec: MmaSpec) -> Array:
        """The values that a specification gives, up to signs of zeros."""
        if spec.rules.truncates:  # without the checks and codes of an executed instruction
            row = np.array([[spec.F, NO_FLOOR if spec.E0 is None else spec.E0, spec.sum_fraction_bits]], np.int64)
            structure = Structure(spec.arithmetic, spec.block)
            return self._emulated(structure, str(spec.final), row, np.arange(len(self.probes))).reshape(-1)
        with np.errstate(invalid="ignore"):
            return values(self.codes(spec), self.formats[3]).astype(np.float64)


def _selection(rows: Rows, many: bool) -> Array:
    """Indices of candidates to try: the simplest, and if `many`, some of all, with both ends of each range of E0."""
    simple = np.lexsort((rows[:, 1], rows[:, 0], rows[:, 1] != NO_FLOOR, -rows[:, 2]))
    if not many or len(rows) <= _PLAIN:
        return simple[:_PLAIN]
    order = np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))
    same = (np.diff(rows[order][:, 0]) == 0) & (np.diff(rows[order][:, 2]) == 0)
    ends = order[np.append(True, ~same) | np.append(~same, True)]
    spread = (x[np.linspace(0, len(x) - 1, _MANY).astype(int)] for x in (ends, simple))
    return np.unique(np.concatenate([simple[:_PLAIN], *spread]))
