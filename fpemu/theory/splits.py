"""The words of a split and their residual, at worst and on random operands.

**Worst case.** A rounding to a word of precision p loses at most u |x| (u = 2^-p to nearest, 2^(1-p) else), or, where
the scaled residual is below the format's smallest normal number, half of the smallest subnormal (all of it for other
roundings). After word i the residual of x is at most

    |left_i| <= max(R_i |x|, T_i)        R_i = u R_(i-1),  T_i = max(u T_(i-1), eta 2^-e_i),  R_0 = 1, T_0 = 0

with e_i the exponent of the word's scale. The residual of a number of 24 bits is a multiple of its last place: it is
zero once R_i <= 2^-24, and a subnormal word loses nothing of numbers whose last place it can represent. Hardware that
reads subnormal words as zero (CDNA2) loses up to the smallest normal number of each word.

R and T become relative to S = |A||B| by the norms: sum_k T |b_kj| <= T / max|A| · flat_A · S_ij, and for rows scaled to
a largest entry of t, T / t · row_A · S_ij.

**Typical case.** The split is applied to a few hundred numbers whose magnitudes have the mean and the root mean square
of the matrix, and the sizes of its words and residuals are measured, together with their parts along the sign of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fpemu.schemes.words import ALONG_SIGN, BIT_CUT, NEAREST, TOP, Word, steps
from fpemu.theory.norms import Norms

Floats = NDArray[np.float64]
FRACTION = 23
"""Fraction bits of fp32, the format of the operands."""
_OCTAVES, _MANY, _FEW = 40, 64, 12


@dataclass(frozen=True)
class Size:
    """A magnitude of at most relative · |x| + absolute, for every element x of an operand."""

    relative: float
    absolute: float = 0.0

    def __add__(self, other: Size) -> Size:
        return Size(self.relative + other.relative, self.absolute + other.absolute)


@dataclass(frozen=True)
class Operands:
    """A and B after the scaling of an overflow policy.

    The fields over_* convert absolute errors to relative ones: an error t of every element of A contributes at most
    over_A · t · S_ij, errors of both over_AB · t_a t_b · S_ij, an error of the result over_D · t · S_ij.
    """

    largest: tuple[float, float]
    smallest: tuple[float, float]
    mean: tuple[float, float]
    rms: tuple[float, float]
    over_A: float
    over_B: float
    over_AB: float
    over_D: float
    S: float
    """Upper bound of S_ij"""

    def product(self, a: Size, b: Size) -> float:
        """Largest sum over k of a product of two magnitudes, over S."""
        terms = (
            (a.relative * b.relative, 1.0),
            (a.absolute * b.relative, self.over_A),
            (a.relative * b.absolute, self.over_B),
            (a.absolute * b.absolute, self.over_AB),
        )
        return sum(amount * over for amount, over in terms if amount)  # tiny fp64 operands: over may be infinite

    @staticmethod
    def of(norms: Norms, scaling: str, emax: int) -> Operands:
        """The operands of a scheme whose first word has the largest exponent `emax`, under an overflow policy.

        `scaling` "scale" scales the largest entry of each matrix, "scale-rows" the largest entry of each row and
        column, to [t, 2 t) with t = 2^13 (less for formats with a smaller range).
        """
        A, B = norms.magnitudes("A"), norms.magnitudes("B")
        if scaling not in ("scale", "scale-rows"):
            a = b = 0
        else:
            top = min(TOP, emax - 1)
            a, b = top - math.frexp(norms.max_A)[1], top - math.frexp(norms.max_B)[1]
        tops = math.ldexp(norms.max_A, a), math.ldexp(norms.max_B, b)
        flat = norms.flat_A / tops[0], norms.flat_B / tops[1], norms.flat_AB / tops[0] / tops[1]
        S = math.ldexp(norms.max_S, a + b)
        if scaling == "scale-rows":
            t = 2.0 ** (top - 1)
            flat = norms.row_A / t, norms.row_B / t, norms.row_AB / t**2
            tops, S = (2 * t, 2 * t), math.inf
        return Operands(
            largest=tops,
            smallest=(math.ldexp(norms.min_A, a), math.ldexp(norms.min_B, b)),
            mean=(math.ldexp(A[0], a), math.ldexp(B[0], b)),
            rms=(math.ldexp(A[1], a), math.ldexp(B[1], b)),
            over_A=flat[0],
            over_B=flat[1],
            over_AB=flat[2],
            over_D=flat[2] / norms.K,
            S=min(S, norms.K * tops[0] * tops[1]),
        )


@dataclass(frozen=True)
class Worst:
    """Largest magnitudes of the words of a matrix and of their residual, without the words' scales."""

    words: tuple[Size, ...]
    inflated: tuple[Size, ...]
    """The same, at least the smallest normal number, whose exponent a subnormal operand has"""
    left: Size
    overflow: str
    """Name of the first word that may overflow; empty if none may"""


def worst(rules: Sequence[Word], largest: float, smallest: float, flushed: bool = False) -> Worst:
    """The largest words and residual of zeros and fp32 numbers with magnitudes from `smallest` to `largest`.

    `flushed`: the hardware reads subnormal words as zero.

    >>> from fpemu.formats import FP16
    >>> halves = (Word("h", FP16), Word("r", FP16, exponent=11))
    >>> worst(halves, 1.0, 0.25).left.relative == 2.0**-22, worst(halves, 1.0, 0.25).left.absolute
    (True, 0.0)
    """
    left, flush, tiny = Size(1.0), 0.0, _last_place(smallest)
    words, inflated, overflow = [], [], ""
    for index, word in enumerate(rules):
        fmt, scale = word.format, 2.0**-word.exponent
        if not overflow and _overflows(word, largest, left, first=index == 0):
            overflow = word.name
        step, least = fmt.min_subnormal * scale, smallest if index == 0 else tiny
        # without rounding no nonzero word is smaller than `least`
        normal = fmt.min_normal * scale if least < fmt.min_normal * scale else 0.0
        eta = (step / 2 if word.rounding in NEAREST else step) if normal and tiny < step else 0.0
        grow = 1 + word.unit * (word.rounding not in ("RZ", BIT_CUT))  # neither lifts a number
        size = Size(left.relative * grow, max(left.absolute * grow, left.absolute + eta))
        words.append(size)
        inflated.append(size + Size(0.0, normal))
        flush += normal * flushed
        left = Size(left.relative * word.unit, max(left.absolute * word.unit, eta, left.absolute * 2.0**-52))
        if left.relative <= 2.0 ** -(FRACTION + 1):
            left = Size(0.0, left.absolute)
    return Worst(tuple(words), tuple(inflated), left + Size(0.0, flush), overflow)


def _last_place(x: float) -> float:
    """The unit in the last place of an fp32 number, scaled by any power of two; too small for subnormal numbers."""
    return math.inf if math.isinf(x) else math.ldexp(1.0, math.frexp(x)[1] - 1 - FRACTION)


def _overflows(word: Word, largest: float, left: Size, first: bool) -> bool:
    word = replace(word, rounding="RU", random_bits=None, seed=None) if word.rounding == "SR" else word
    if first:
        return bool(word.overflows(np.array([largest]))[0])
    # a residual is at most `relative` times the power of two at or below its number
    most = max(left.relative * 2.0 ** math.frexp(largest)[1] / 2, left.absolute) * 2.0**word.exponent
    return bool(word.overflows(np.array([most]))[0])


@dataclass(frozen=True)
class Typical:
    """The words of random numbers and their residual, relative to the numbers' size.

    mean: E[word · sign(x)] / E|x|, the part along the sign of x; magnitude: E|word| / E|x|; rms: root mean squares.
    """

    mean: tuple[float, ...]
    magnitude: tuple[float, ...]
    rms: tuple[float, ...]
    drift: tuple[float, ...]
    """|E[word]| / E|x|: offset of the words after the first from rounding up or down"""
    left_mean: float
    left_rms: float
    left_drift: float
    """|E[left]| / E|x| from rounding up or down"""
    small_mean: float
    """Additional absolute loss of subnormal words, along the sign of x"""
    small_rms: float
    small_drift: float
    """|E[loss]| of subnormal words, from rounding up or down"""


@lru_cache(maxsize=4096)
def typical(
    rules: tuple[Word, ...], mean: float, rms: float, largest: float, smallest: float, flushed: bool = False
) -> Typical:
    """The split of fp32 numbers of either sign whose magnitudes have this mean and root mean square."""
    x, weight = _sample(mean, rms, smallest, largest)
    sign, weight = np.sign(x), weight / weight.sum()
    base, square = float(weight @ np.abs(x)), math.sqrt(float(weight @ x**2))
    words, left, free = [], x, x
    with np.errstate(all="ignore"):
        for word, _, value, _ in steps(x, rules):
            size = value.astype(np.float64)
            if flushed:
                size = np.where(np.abs(size) < word.format.min_normal, 0, size)
            words.append(np.ldexp(size, -word.exponent))
            left = left - words[-1]
            free = free - word.unbounded(free)
    small = left - free
    if not np.isfinite(left).all():
        words, small = [np.zeros_like(x) for _ in words], np.zeros_like(x)
    # rounding to nearest and to odd has no mean error; the mean of a finite sample would add up over K
    # the error of rounding up and down depends on the sign of x, and the sample has both signs
    fair = [word.rounding not in ALONG_SIGN for word in rules]
    loss = 0.0 if fair[-1] else float(weight @ (free * sign)) / base
    drift = abs(float(weight @ free)) / base
    if all(fair):
        lost = np.where(np.abs(x) < rules[0].format.min_normal, x, 0) if flushed else np.zeros_like(x)
    else:
        lost = small
    return Typical(
        tuple(0.0 if i and fair[i - 1] else float(weight @ (w * sign)) / base for i, w in enumerate(words)),
        tuple(float(weight @ np.abs(w)) / base for w in words),
        tuple(math.sqrt(float(weight @ w**2)) / square for w in words),
        tuple(abs(float(weight @ w)) / base for w in words),
        loss,
        math.sqrt(float(weight @ free**2)) / square,
        drift if rules[-1].rounding in ("RU", "RD") else 0.0,
        float(weight @ (lost * sign)),
        math.sqrt(float(weight @ small**2)),
        abs(float(weight @ small)) if rules[0].rounding in ("RU", "RD") else 0.0,
    )


def _sample(mean: float, rms: float, smallest: float, largest: float) -> tuple[Floats, Floats]:
    """fp32 numbers of both signs in a range, distributed as `_power_of_uniform`, and their weights."""
    s, v = _power_of_uniform(max((rms / mean) ** 2, 1.0))
    u, z, weight = _points()
    with np.errstate(over="ignore", under="ignore"):
        x = u**s * np.exp(math.sqrt(v) * z)
        x = (x * (mean / float(weight @ x))).astype(np.float32).astype(np.float64)
    within = (x >= smallest) & (x <= largest)
    if not within.any():
        x, weight, within = np.array([largest]), np.ones(1), np.array([True])
    x, weight = x[within], weight[within]
    return np.concatenate([x, -x]), np.concatenate([weight, weight])


def _power_of_uniform(ratio: float) -> tuple[float, float]:
    """(s, v) of a magnitude U^s e^(sqrt(v) Z) with this ratio of mean square to squared mean.

    U is uniform in [0, 1] and Z normal. Uniform data have s = 1, v = 0 (ratio 4/3); wider data have a lognormal factor,
    as `fpemu.inputs` "phi"; narrower data have s < 1 with (1 + s)^2 / (1 + 2 s) = ratio.
    """
    if ratio >= 4 / 3:
        return 1.0, math.log(ratio * 3 / 4)
    more = max(ratio - 1, 0.0)
    return more + math.sqrt(more**2 + more), 0.0


@lru_cache(maxsize=1)
def _points() -> tuple[Floats, Floats, Floats]:
    """Uniform numbers in 40 octaves, normal numbers, and weights: numbers near zero are rare, but a word loses them."""
    u, weight = [], []
    for octave in range(1, _OCTAVES + 1):
        count = _MANY if octave <= 4 else _FEW
        # equidistributed, and unrelated to the grid of any format
        u.append(np.ldexp(1 + (np.arange(1, count + 1) * math.sqrt(2) + octave / _OCTAVES) % 1.0, -octave))
        weight.append(np.full(count, 2.0**-octave / count))
    normal = NormalDist()
    golden = (math.sqrt(5) - 1) / 2
    z = [normal.inv_cdf((i * golden + 0.5) % 1.0) for i in range(sum(map(len, u)))]
    every = np.concatenate(weight)
    return np.concatenate(u), np.array(z), every / every.sum()
