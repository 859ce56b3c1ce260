"""A claim changed in one respect, and which instructions differ in their arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fpemu.conformance.claim import Claim
from fpemu.mma import MmaSpec
from fpemu.mma.spec import EVIDENCE


@dataclass(frozen=True)
class Change:
    """A claim changed in one respect.

    Attributes
    ----------
    kind : str
        The respect: "order", "promotion", "inputs", "epilogue", "accumulator", "hardware", "scheme" ...
    text : str
        The change in words.
    claim : Claim
        What it leads to.
    """

    kind: str
    text: str
    claim: Claim


def distinct(spec: MmaSpec, rows: list[MmaSpec]) -> Iterator[tuple[str, MmaSpec]]:
    """The instructions whose arithmetic is not the spec's, one of each, with a text that names the others' hardware."""
    known = list(EVIDENCE)
    groups: dict[Any, list[MmaSpec]] = {}
    for row in sorted(rows, key=lambda r: (r.architecture != spec.architecture, known.index(r.evidence))):
        groups.setdefault(arithmetic(row), []).append(row)
    groups.pop(arithmetic(spec), None)
    for first, *same in groups.values():
        others = [arch for arch in dict.fromkeys(row.architecture for row in same) if arch != first.architecture]
        yield f"the instruction is {first.name}" + (f" (or that of {', '.join(others)})" if others else ""), first


def arithmetic(spec: MmaSpec) -> tuple[Any, ...]:
    """What decides about the bits of a chain."""
    return (
        str(spec.a_format),
        str(spec.d_format),
        spec.arithmetic,
        spec.block,
        spec.F,
        spec.E0,
        spec.final,
        spec.fraction_bits,
        spec.nan_code,
        spec.k if spec.arithmetic == "via-half" else 0,
    )
