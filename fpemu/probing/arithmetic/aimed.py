"""Probes that tell the specs still possible apart: operands about the places where they cut, round and stop.

A directed probe is made for one question, with few bits. Some questions take operands that have to be looked for: with
blocks of one and a D of few bits, F shows only where a product lies halfway between two numbers of D and C is all that
decides. So operands are drawn about the halves and cuts of the specs in play, the emulator answers for each spec, and
only operands that two specs answer differently are put to the instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.fit import Answers
from fpemu.probing.arithmetic.pool import NO_LEVEL, Formats, Pool
from fpemu.rounding import Rounding, round_to

DRAWN = 6000  # operands drawn at a time
_EACH = 3  # of them asked for each spec that is told from the first


def separating(answers: Answers, specs: Sequence[MmaSpec], seed: int) -> Pool:
    """Probes that some of the specs would answer other than the first of them; none where none was met."""
    rng = np.random.default_rng(seed)
    drawn = draw(answers.formats, answers.k, specs, rng, DRAWN)
    given = Answers(answers.formats, answers.k, drawn, np.zeros(len(drawn), answers.D.dtype))
    results = given.predicted(specs)
    chosen: set[int] = set()
    terms = ((drawn.A != 0) & (drawn.B != 0)).sum(axis=1) + (drawn.C != 0)
    order = np.argsort(terms, kind="stable")  # the plainest first
    for result in results[1:]:
        apart = order[(result != results[0])[order]]
        if not chosen.intersection(apart[: 4 * _EACH].tolist()):
            chosen.update(apart[:_EACH].tolist())
            chosen.update(rng.permutation(apart)[:_EACH].tolist())
    return drawn.take(np.array(sorted(chosen), np.int64))


def draw(formats: Formats, k: int, specs: Sequence[MmaSpec], rng: np.random.Generator, n: int) -> Pool:
    """Operands about the highest exponents, the halves of D's last place, and the cuts of the specs."""
    fa, fb, fc, fd = formats
    some = rng.integers(0, len(specs), n)

    def each(values: list[int]) -> NDArray[np.int64]:
        return np.array(values, np.int64)[some]

    kept = each([fd.fraction_bits if s.fraction_bits is None else s.fraction_bits for s in specs])
    low, high = fa.emin + fb.emin, fa.emax + fb.emax
    F, floor = each([s.F for s in specs]), each([low if s.E0 is None else s.E0 for s in specs])
    top = _choose(rng, [
        rng.integers(low, high + 1, n), rng.integers(max(low, fd.emin - kept.max() - 3), min(high, fd.emax) + 1, n),
        floor + rng.integers(-3, 4, n), floor - F + rng.integers(-2, 8, n), fd.emin + rng.integers(-3, 4, n),
        fd.emax - rng.integers(0, 3, n), np.full(n, low), rng.integers(-2, 3, n),
    ])  # fmt: skip
    top = np.clip(top, low, max(high, fd.emax))  # C alone may reach the highest
    cut = np.maximum(top, floor) - F

    def exponents(shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Exponents of terms beside the highest."""
        t, c, m = (x.reshape(-1, *[1] * (len(shape) - 1)) for x in (top, cut, kept))
        return np.asarray(_choose(rng, [
            t - rng.integers(0, 3, shape), t - m - 1 + rng.integers(-1, 2, shape), c + rng.integers(-2, 3, shape),
            c + rng.integers(-2, 3, shape), t - rng.integers(0, 60, shape), t + 0 * rng.integers(0, 1, shape),
        ]))  # fmt: skip

    e = exponents((n, k))
    first = rng.integers(0, k, n)
    rows = np.arange(n)
    e[rows, first] = top
    few = np.minimum(rng.choice([1, 1, 2, 2, 3, 4, k], n), k)
    used = rng.permuted(np.arange(k) < few[:, None], axis=1)
    used[rows, first] = rng.random(n) < 0.9
    half = rng.random(n) < 0.25  # C, half a unit of D's last place beside it, and a rest about the cut
    second = (first + rng.integers(1, k, n)) % k if k > 1 else first
    e[rows, second] = np.where(half, cut + rng.integers(-2, 3, n), e[rows, second])
    e[rows, first] = np.where(half, top - kept - 1, e[rows, first])
    used[rows, first] |= half
    used[rows, second] |= half
    e = np.clip(e, low, high)
    split = _between(rng, np.maximum(fa.emin, e - fb.emax), np.minimum(fa.emax, e - fb.emin))
    a, b = _significands(rng, fa, (n, k)), _significands(rng, fb, (n, k))
    tie = rng.random(n) < 0.4  # a product of kept + 2 bits, the last of them half a unit of D
    bits_a = _between(rng, np.maximum(1, kept + 2 - fb.precision), np.minimum(fa.precision, kept + 2))
    bits_b = np.clip(kept + 2 - bits_a + rng.integers(0, 2, n), 1, fb.precision)
    for q in (first, second):
        a[rows, q], b[rows, q] = (np.where(half, 1.0, x[rows, q]) for x in (a, b))
    tie &= ~half
    a[rows, first] = np.where(tie, _odd(rng, bits_a), a[rows, first])
    b[rows, first] = np.where(tie, _odd(rng, bits_b), b[rows, first])
    a, b = np.ldexp(a, split), np.ldexp(b, e - split)
    small = rng.random((n, k)) < 0.08  # a subnormal: its product has a high exponent and a small value
    a = np.where(small, np.ldexp(rng.integers(1, 4, (n, k)), fa.emin - fa.fraction_bits), a)
    b = np.where(small, np.ldexp(np.ones((n, k)), np.minimum(e - fa.emin, fb.emax)), b)
    a = np.where(used, a * rng.choice([-1.0, 1.0], (n, k)), 0.0)
    b = np.where(used, b, 0.0)
    c_exponents = np.where(half | (top > high) | (rng.random(n) < 0.2), top, exponents((n,)))
    c_exponents = np.clip(c_exponents, fc.emin - fc.fraction_bits, fc.emax)
    c = np.ldexp(_significands(rng, fc, (n,)), c_exponents) * rng.choice([-1.0, 1.0], n)
    if k > 1:  # a product that takes the first back
        undone, other = ~half & (rng.random(n) < 0.25), (first + rng.integers(1, k, n)) % k
        a[rows, other] = np.where(undone, -a[rows, first], a[rows, other])
        b[rows, other] = np.where(undone, b[rows, first], b[rows, other])
    with np.errstate(over="ignore", invalid="ignore"):
        c = np.where(rng.random(n) < 0.15, -a[rows, first] * b[rows, first], c)
    c = np.where(rng.random(n) < 0.25, 0.0, c)
    alone = rng.random(n) < 0.15  # C alone, halfway between two numbers of D but for a rest
    t = fc.emin + rng.integers(0, 4, n)
    t = np.where(rng.random(n) < 0.5, t, np.clip(floor + rng.integers(-3, 4, n), fc.emin, fc.emax))
    depth = kept + 1 - np.maximum(fd.emin - t, 0)
    rest = np.ldexp(1.0, -depth) + rng.choice([-1.0, 0.0, 1.0], n) * np.ldexp(1.0, -depth - rng.integers(1, 25, n))
    c = np.where(alone, np.ldexp(1 + rest, t) * rng.choice([-1.0, 1.0], n), c)
    a = np.where(alone[:, None], 0.0, a)
    A, B, C = (_codes(x, f) for x, f in zip((a, b, c), (fa, fb, fc), strict=True))
    return Pool(A, B, C, ("aimed",) * n, np.full(n, NO_LEVEL), np.full(n, k), C != 0)


def _choose(rng: np.random.Generator, ways: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Each entry from one of some arrays."""
    which = rng.integers(0, len(ways), ways[0].shape)
    return np.asarray(np.choose(which, ways))


def _between(rng: np.random.Generator, low: Any, high: Any) -> NDArray[np.int64]:
    return np.asarray(low + np.floor(rng.random(np.shape(low)) * (np.maximum(high, low) - low + 1))).astype(np.int64)


def _odd(rng: np.random.Generator, bits: NDArray[np.int64]) -> NDArray[np.float64]:
    """Odd integers of so many bits, divided by their highest: in [1, 2)."""
    half = 2.0 ** (bits - 1)
    return np.where(bits > 1, 1 + (2 * np.floor(rng.random(len(bits)) * half / 2) + 1) / half, 1.0)


def _significands(rng: np.random.Generator, fmt: FloatFormat, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Numbers in [1, 2): some with all bits, some with few, some powers of two."""
    bits = rng.choice([0, 0, 1, 2, fmt.fraction_bits], shape)
    scale = 2.0**bits
    return np.asarray(1 + np.floor(rng.random(shape) * scale) / scale)


def _codes(x: NDArray[np.float64], fmt: FloatFormat) -> NDArray[Any]:
    """Codes of numbers cut to a format, the largest number where they are beyond it."""
    return np.asarray(fmt.encode(round_to(np.clip(x, -fmt.max, fmt.max), fmt, Rounding.RZ)))
