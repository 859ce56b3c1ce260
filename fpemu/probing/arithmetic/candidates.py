"""Candidate specifications of an instruction: arithmetics, block lengths, floors, and the neighbours of a candidate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.mma.spec import ARITHMETICS, MmaSpec
from fpemu.probing.arithmetic.probes import Formats

NO_FLOOR = -(10**6)
ALIGNED = ("truncated", "via-half")  # the arithmetics with an alignment width F and a floor E0
_PREFERENCE = ("fma", "truncated", "exact", "via-half", "flushed", "cdna3", "cdna3-fp8")


@dataclass(frozen=True)
class Structure:
    """An arithmetic and a block length, which are decided before the other fields."""

    arithmetic: str
    block: int


def structures(formats: Formats, k: int) -> list[Structure]:
    """All structures of an instruction with these formats, the likelier first."""
    lengths = [n for n in range(min(k, 64), 0, -1) if k % n == 0]
    likely = [Structure("fma", 1)]
    likely += [Structure(name, n) for name in ("truncated", "exact") for n in lengths]
    likely += [Structure("via-half", k)]
    likely += [Structure(name, n) for name in ("flushed", "cdna3", "cdna3-fp8") for n in lengths]
    return [s for s in likely if spec_of(formats, k, s) is not None]


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
    if structure.arithmetic in ALIGNED:
        fields |= {"F": F, "E0": None if E0 == NO_FLOOR else E0, "final": final}
        fields["fraction_bits"] = None if bits in (None, d.fraction_bits) else bits
    elif structure.arithmetic == "exact":
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


def floors(formats: Formats) -> NDArray[np.int64]:
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
            _PREFERENCE.index(spec.arithmetic),
            -spec.block,
            spec.fraction_bits is not None,
            -(spec.fraction_bits or 0),
            spec.arithmetic in ALIGNED and spec.final != usual,
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
    if spec.arithmetic not in ALIGNED:
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
    for arithmetic in ARITHMETICS:
        fields = {"arithmetic": arithmetic, "F": 25 if arithmetic in ALIGNED else 24, "E0": None, "payloads": False}
        fields |= {"fraction_bits": None, "final": None}
        if arithmetic != spec.arithmetic:
            others += changed(spec, [{**fields, "block": block} for block in (spec.block, 1, spec.k)])[:1]
    return others
