"""The specs that an instruction may have: arithmetics and block lengths, floors, and which of some is the plainest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.pool import Formats

NO_FLOOR = -(10**6)


@dataclass(frozen=True)
class Structure:
    """An arithmetic and a block length: what is decided before the other fields."""

    arithmetic: str
    block: int


def structures(formats: Formats, k: int) -> list[Structure]:
    """All that an instruction of these formats may be, the likelier first."""
    lengths = [n for n in range(min(k, 64), 0, -1) if k % n == 0]
    found = [Structure("fma", 1)]
    found += [Structure(name, n) for name in ("truncated", "exact") for n in lengths]
    found += [Structure("via-half", k)]
    found += [Structure(name, n) for name in ("flushed", "cdna3", "cdna3-fp8") for n in lengths]
    return [s for s in found if spec_of(formats, k, s) is not None]


def spec_of(
    formats: Formats,
    k: int,
    structure: Structure,
    final: str | None = None,
    F: int = 24,
    E0: int = NO_FLOOR,
    bits: int | None = None,
) -> MmaSpec | None:
    """The spec of these fields, if there is one."""
    a, b, c, d = formats
    fields: dict[str, Any] = {}
    if structure.arithmetic in ("truncated", "via-half"):
        fields = {"F": F, "E0": None if E0 == NO_FLOOR else E0, "final": final}
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


def top_of(formats: Formats) -> int:
    """The highest exponent that a term can have."""
    return min(max(formats[0].emax + formats[1].emax, formats[2].emax), 299)


def floors(formats: Formats) -> NDArray[np.int64]:
    """The values of E0 that can be told apart by some F.

    A floor at or below every exponent is none. One above them all leaves E0 - F alone, so that E0 at the top will do,
    or F = 1 with a higher one; a few places further nothing of any term is left.
    """
    bottom = min(formats[0].emin + formats[1].emin, formats[2].emin)
    last = min(top_of(formats) + 4, 300)
    return np.array([NO_FLOOR, *range(max(bottom + 1, -300), last + 1)])


def preferred(found: Iterable[MmaSpec]) -> MmaSpec:
    """Of specs that no probe tells apart the plainest: all fraction bits, the usual rounding, no floor, the least F."""

    def rank(spec: MmaSpec) -> tuple[Any, ...]:
        usual = "RZ" if str(spec.d_format) == "fp32" else "RNE"
        order = ("fma", "truncated", "exact", "via-half", "flushed", "cdna3", "cdna3-fp8")
        return (
            order.index(spec.arithmetic),
            -spec.block,
            spec.fraction_bits is not None,
            -(spec.fraction_bits or 0),
            spec.arithmetic in ("truncated", "via-half") and spec.final != usual,
            spec.E0 is not None,
            spec.F,
            spec.E0 or 0,
        )

    return min(found, key=rank)
