"""The rounds of directed probes: what is asked of every instruction, and what of one whose fields are nearly known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.maker import Maker, levels
from fpemu.probing.arithmetic.pool import Formats, Pool


@lru_cache(maxsize=16)
def first(formats: Formats, k: int) -> Pool:
    """Sums at levels of exponents, every power of two alone, and the positions that are added in one rounding."""
    maker = Maker(formats, k)
    fa, fb, _, fd = formats
    for e in levels(formats):
        maker.level(e)
    maker.alone()
    low, high = fa.emin + fb.emin, min(fa.emax + fb.emax, fd.emax - 2)
    maker.blocks(sorted({fd.precision, fd.precision - 1, 11, 14}), [(high, max(low, high - 40)), (0, max(low, -9))])
    maker.patterns((low, high))
    return maker.pool()


def second(formats: Formats, k: int, found: Sequence[MmaSpec]) -> Pool:
    """What separates the specs that are left, and their neighbours."""
    maker = Maker(formats, k)
    fa, fb, fc, fd = formats
    low, high = fa.emin + fb.emin, min(fa.emax + fb.emax, fd.emax - 2)
    least = fd.emin - fd.fraction_bits
    for kept in sorted({fd.fraction_bits if s.fraction_bits is None else s.fraction_bits for s in found}):
        for e in range(fd.emin - kept - 1, fd.emin - kept + 2):  # about D's smallest number
            if e >= low and kept != fd.fraction_bits:
                maker.level(e)
        floors = {s.E0 + d for s in found if s.E0 is not None for d in (-1, 0, 1)}
        ends = {low, least, fd.emin, fd.emin + 1, 0, high, fd.emax - 1, fd.emax}
        for e in sorted(e for e in ends | set(sorted(floors)[:6]) if fc.emin <= e <= max(fa.emax + fb.emax, fd.emax)):
            maker.around(e, kept)
    for s in found[:: max(1, len(found) // 4)]:
        kept = fd.fraction_bits if s.fraction_bits is None else s.fraction_bits
        tops = {high, 0, min(high, max(low, (s.E0 or low) + 1))} & set(range(low, high + 1))
        for e in sorted(tops | {e for e in (-kept // 2, least + kept // 2, high - 6) if low <= e <= high}):
            maker.growth(e, max(e, e if s.E0 is None else s.E0) - s.F)
        for unit in sorted({0, max(low, fc.emin - s.F), high - 1}):
            maker.carries(max(unit + s.F, -1000 if s.E0 is None else s.E0), unit)
        maker.blocks([kept + 1], [(e, e - s.F - d) for e in sorted(tops) for d in (-1, 0, 1)])
    return maker.pool()
