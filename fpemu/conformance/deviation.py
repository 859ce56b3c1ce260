"""A deviation from a specification: a change in one respect that may explain the mismatches of a product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from fpemu.conformance.specification import Specification
from fpemu.mma import MmaSpec
from fpemu.mma.spec import EVIDENCE


@dataclass(frozen=True)
class Deviation:
    """Change of a specification in one respect."""

    kind: str  # the respect: "order", "promotion", "inputs", "epilogue", "accumulator", "hardware", "scheme" ...
    text: str  # the change in words
    fields: dict[str, Any]  # the changed fields

    def apply(self, specification: Specification) -> Specification:
        """The changed specification."""
        return replace(specification, **self.fields)


def deviation(kind: str, text: str, **fields: Any) -> Deviation:
    """A deviation that sets these fields."""
    return Deviation(kind, text, fields)


def applied(deviations: tuple[Deviation, ...], specification: Specification) -> Specification:
    """A specification with several deviations."""
    return reduce(lambda s, d: d.apply(s), deviations, specification)


def other_instructions(spec: MmaSpec, rows: list[MmaSpec]) -> Iterator[Deviation]:
    """One deviation for each arithmetic among catalogue rows other than the spec's, with all hardware that has it."""
    evidence = list(EVIDENCE)
    groups: dict[Any, list[MmaSpec]] = {}
    for row in sorted(rows, key=lambda r: (r.architecture != spec.architecture, evidence.index(r.evidence))):
        groups.setdefault(_arithmetic(row), []).append(row)
    groups.pop(_arithmetic(spec), None)
    for first, *same in groups.values():
        others = [arch for arch in dict.fromkeys(row.architecture for row in same) if arch != first.architecture]
        text = f"the instruction is {first.name}" + (f" (or an equal one of {', '.join(others)})" if others else "")
        yield deviation("hardware", text, spec=first)


def _arithmetic(spec: MmaSpec) -> tuple[Any, ...]:
    """The fields that determine the bits of a chain."""
    k = spec.k if spec.rules.via is not None else 0
    rounding = (spec.F, spec.E0, spec.final, spec.fraction_bits, spec.nan_code)
    return spec.a_format, spec.d_format, spec.arithmetic, spec.block, *rounding, k
