"""Enumeration of all mantissas of an exponent, split in two words: the check of `_underflow`.

No formula is used. x = 1.M · 2^E is rounded by the rules of the schemes (`fpemu.schemes.words`), in chunks, and the
results are counted. The formulas must reproduce these integers exactly. All 2^23 mantissas of an fp32 exponent take a
second.

One period of the mantissas represents all. Where h is normal it is a multiple of 2^(E - p + 1), and of
2^(emin - p + 1) below. In units of x's last place x is 2^(P-1) + M, and h a multiple of 2^D. The residual x - h depends
on M modulo 2^D and, in a tie that rounds to even, on the next bit, the parity of the lower multiple. It therefore has
the period 2^(D+1) in M (fp32 into fp16: 2^14 from E = -14 up), as long as h does not overflow, and shares over one
period are those over all M. The exponent of h after a carry has no such period, nor has the overflow of h.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from fpemu.schemes.words import Word, steps

from ._residuals import Choice, Split

_CHUNK = 1 << 16
"""Numbers that are evaluated at a time, which bounds the memory."""


@dataclass(frozen=True)
class Residuals:
    """Distribution of the residuals d = x - h of the mantissas of one exponent, as numbers of mantissas."""

    mantissas: int
    down: Counter[int] = field(default_factory=Counter)
    """With d >= 0 by N, where E - (p + 1) - N is the exponent of d; N = P - p - 1 is d = 0"""
    up: Counter[int] = field(default_factory=Counter)
    """As `down`, where d < 0"""
    carried: Counter[int] = field(default_factory=Counter)
    """Of both signs, with N counted from the exponent of h, which a carry has raised (E where h is 0)"""
    below_normal: int = 0
    """With abs(d · 2^sb) < 2^emin, d = 0 included"""
    below_least: int = 0
    """With abs(d · 2^sb) below the smallest number of the format, d = 0 included"""
    gone: int = 0
    """Whose word of d is 0 although d is not"""
    exact: int = 0
    """With d = 0"""
    h_overflows: int = 0
    """Whose high word overflows; they are left out of all other counts."""


@dataclass(frozen=True)
class Kept:
    """Accuracy of two words over the mantissas of one exponent, as numbers of mantissas."""

    mantissas: int
    bits: Counter[int] = field(default_factory=Counter)
    """By the largest b with abs(x - h - r / 2^sb) <= 2^(E - b), 0 to P; only where no word overflows"""
    h_overflows: int = 0
    r_overflows: int = 0
    """Whose residual overflows and whose high word does not"""

    @property
    def worst(self) -> int:
        """The fewest bits; 0 where every number overflows."""
        return min(self.bits, default=0)

    @property
    def mean(self) -> float:
        """Mean number of bits over the mantissas whose words are finite; 0.0 if there are none."""
        finite = self.bits.total()
        return sum(b * count for b, count in self.bits.items()) / finite if finite else 0.0


def residuals(exponent: int, *, sb: int = 0, mantissas: int | None = None, **split: Unpack[Choice]) -> Residuals:
    """Split the numbers of an exponent and count their residuals.

    >>> counts = residuals(-12, mantissas=14)
    >>> counts.gone / counts.mantissas, counts.down[0] / counts.mantissas
    (0.25, 0.25)
    """
    setup = Split.of(**split)
    narrow, rules = setup.narrow, _rules(setup, sb)
    every, chunks = _numbers(setup, exponent, mantissas)
    counts = Residuals(every)
    tally: dict[str, Any] = Counter()
    offset, zero_is = exponent - narrow.precision - 1, setup.wide.precision - narrow.precision - 1
    normal, least = np.ldexp([narrow.min_normal, narrow.min_subnormal], -sb)
    for x in chunks:
        (high, _, h, d), (_, _, r, _) = steps(x, rules)
        over = high.overflows(x)
        if count := int(np.count_nonzero(over)):
            tally["h_overflows"] += count
            d, h, r = d[~over], h[~over], r[~over]
        zero, size = d == 0, np.abs(d)
        place = np.frexp(size)[1]
        n = np.where(zero, zero_is, offset + 1 - place)
        _add(counts.up, n[d < 0])
        _add(counts.down, n[d >= 0])
        after = np.where(h == 0, exponent + 1, np.frexp(h)[1])
        _add(counts.carried, np.where(zero, zero_is, after - narrow.precision - 1 - place))
        tally["below_normal"] += int(np.count_nonzero(size < normal))
        tally["below_least"] += int(np.count_nonzero(size < least))
        tally["gone"] += int(np.count_nonzero((r == 0) & ~zero))
        tally["exact"] += int(np.count_nonzero(zero))
    return replace(counts, **tally)


def kept(exponent: int, sb: int = 0, *, mantissas: int | None = None, **split: Unpack[Choice]) -> Kept:
    """Split the numbers of an exponent and count the bits that the two words keep.

    >>> counts = kept(15, 12)
    >>> counts.worst, counts.r_overflows, counts.h_overflows
    (23, 3070, 4096)
    """
    setup = Split.of(**split)
    rules, P = _rules(setup, sb), setup.wide.precision
    every, chunks = _numbers(setup, exponent, mantissas)
    counts = Kept(every)
    tally: dict[str, Any] = Counter()
    for x in chunks:
        (high, _, _, _), (low, scaled, _, left) = steps(x, rules)
        over = high.overflows(x)
        lost = low.overflows(np.where(over, 0, scaled)) if over.any() else low.overflows(scaled)
        if over.any() or lost.any():
            tally["h_overflows"] += int(np.count_nonzero(over))
            tally["r_overflows"] += int(np.count_nonzero(lost))
            left = left[~(over | lost)]
        # the error is at most 2^(power of the next power of two)
        half, power = np.frexp(np.abs(left))
        bits = np.where(left == 0, P, exponent - (power - (half == 0.5)))
        _add(counts.bits, np.maximum(bits, 0))
    return replace(counts, **tally)


def _rules(setup: Split, sb: int) -> list[Word]:
    return [Word("h", setup.narrow, setup.rounding), Word("r", setup.narrow, setup.residual_rounding, sb)]


def _numbers(setup: Split, exponent: int, mantissas: int | None) -> tuple[int, Iterator[NDArray[Any]]]:
    """The number of values and the values themselves, in chunks: those of the low bits of the mantissa, or all."""
    unit, one = setup.unit(exponent), setup.mantissas()
    every = 1 << (setup.wide.fraction_bits if mantissas is None else mantissas)
    return every, ((float(one) + np.arange(i, min(i + _CHUNK, every))) * 2.0**unit for i in range(0, every, _CHUNK))


def _add(into: Counter[int], values: NDArray[Any]) -> None:
    """Count integers, which lie close together."""
    if values.size:
        least = int(values.min())
        for i, count in enumerate(np.bincount(values - least).tolist()):
            if count:
                into[least + i] += count
