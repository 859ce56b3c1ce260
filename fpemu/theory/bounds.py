"""A-priori error bounds of every scheme, from its lowering on an instruction and from norms of the operands.

The parts of a split scheme:

split                 residual of the words of A and B: delta_A |A||B| + |A| delta_B |B| + ...
underflow             additional residual where a word is subnormal, or flushed to zero
products left out     products of words i and j that the plan omits
sums of <products>    a part for each accumulator: truncation, rounding, promotion, reduction of slices over K
combination           addition of the accumulators, and division by powers of two
out of range          infinite, where a word may overflow; overflow: where a sum may

`worst` holds for finite operands with these norms, alpha = 1 and beta = 0, for every result. `bias` and `deviation`
follow from `fpemu.theory.walk` and `fpemu.theory.splits`, which take the operands as independent random numbers. For
data that spread over many octaves (phi = 2, lognormal) few elements dominate, and `probable` may be loose: up to about
twenty times the error, and more than a hundred times where hardware reads subnormal words as zero (CDNA 2). With first
words rounded up or down and operands of one sign, residuals have one sign too; their products are taken as of both
signs where truncated sums add them, and `probable` may be up to three times too small.

**Corrections in 8 bits** are the additional part of `staged-int8` beside those of `staged`. With x s = h + r, q the
integer for r, h + g the integer for h, and d = r - q, a term of the sum has in stages that are not exact the error

    x_A x_B - [h_A h_B + q_A (h_B + g_B) + (h_A + g_A) q_B] = d_A h_B + h_A d_B + r_A r_B - q_A g_B - g_A q_B

|d| <= 2^-6 and |g| <= 2^6 (at the end of the 8-bit range; else half of that), |q| <= |r| + 2^-7 and |r| <= 2^-11 |x| +
2^-25, while the largest entry of a row is scaled to [t, 2^13), t = 2^13 8/9. An entry of A or B therefore loses
(2^-6 + 2^-5) / t times the largest of its row.

On random operands d, g and r are distributed as rounding errors to nearest; r is 0.41 times the unit on average over a
binade.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fpemu import simt
from fpemu._system import in_ieee
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes import words
from fpemu.schemes.base import Scheme, build
from fpemu.schemes.baselines import Baseline
from fpemu.schemes.call import Policy
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.staged import Staged
from fpemu.schemes.staged_int8 import CHUNK, StagedInt8
from fpemu.schemes.words import Product
from fpemu.theory import accumulation, splits, walk
from fpemu.theory.accumulation import Term, growth
from fpemu.theory.errorfree import bound_parts, cut_off, rounded
from fpemu.theory.norms import Norms
from fpemu.theory.parts import LEAST_TAIL, Bound, Part
from fpemu.theory.splits import Operands, Size

_SLACK = 1 + 2.0**-20
"""Covers the roundings of the norms (float64 products) and of the sums of parts"""
_FP32 = 2.0**-24
"""Unit roundoff of fp32"""
_LEAST = 2.0**13 * 8 / 9
"""Largest entry of a row under the scale of `staged-int8`"""
_LOW, _HIGH, _UNIT, _TINY = 2.0**-6, 2.0**6, 2.0**-11, 2.0**-25
_EVEN = 1 / math.sqrt(12)
"""Root mean square of a rounding error to nearest over the distance of two words"""


@dataclass(frozen=True)
class _Sum:
    """An accumulator with its terms and the error of its sum, at worst and on random operands."""

    name: str
    band: int
    terms: list[Term]
    worst: float
    drift: walk.Drift

    @property
    def size(self) -> float:
        """Largest sum of the magnitudes of its terms."""
        return sum(t.size for t in self.terms)

    @property
    def mean(self) -> float:
        """Mean of its sum on random operands."""
        return sum(t.typical.drift for t in self.terms)

    @property
    def variance(self) -> float:
        """Variance of its sum on random operands."""
        return sum(t.typical.variance for t in self.terms)


@in_ieee
def bound(
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    *,
    norms: Norms,
    M: int = 1,
    N: int = 1,
    order: KOrder | None = None,
    on_range: Policy = "raise",
    **options: Any,
) -> Bound:
    """Return the a-priori error of a product by a scheme.

    The product is ``fpemu.gemm(A, B, scheme=scheme, hardware=hardware, order=order, **options)``.

    Parameters
    ----------
    scheme : str or Scheme
        One of `fpemu.schemes.names`.
    hardware : str or MmaSpec, optional
        As for `fpemu.gemm`.
    norms : Norms
        Of A and B: `Norms.of`, or `Norms.sample` for a distribution.
    M, N : int
        Shape of the result; `Bound.probable` bounds the largest error among M N entries.
    order : KOrder, optional
        Order of addition within every product chain.
    on_range : {"raise", "propagate", "scale", "scale-rows"}
        As for `fpemu.gemm`. Where a word may overflow, which is an error with "raise", the bound is infinite.
    **options
        The scheme's options.

    Returns
    -------
    Bound
        Relative to (|A||B|)_ij. `worst` is rigorous for alpha = 1, beta = 0.

    Raises
    ------
    InputError
        As `fpemu.gemm`: unknown names and options, contradictions; also a negative M or N, and norms of matrices whose
        largest entry is no number of the scheme's operand format.

    Examples
    --------
    >>> norms = Norms.sample("uniform", 4096, rows=16)
    >>> chained, outside = (bound(s, "ampere", norms=norms, M=16, N=16) for s in ("markidis", "ootomo"))
    >>> outside.worst < chained.worst / 10
    True
    """
    built = build(scheme, options)
    if not isinstance(norms, Norms):
        raise InputError(f"bound: norms must be a theory.Norms, such as Norms.of(A, B), not {type(norms).__name__}")
    if order is not None and not isinstance(order, KOrder):
        raise InputError(f"order must be a fpemu.mma.KOrder, not {order!r}")
    policy, entries = words.policy(on_range), accumulation.entries(M, N)
    built.check_order(order, options)
    spec = built.spec(hardware)
    path = KOrder() if order is None else order
    if isinstance(built, ErrorFree):
        return Bound(tuple(bound_parts(built, spec if spec is not None else hardware, norms, order)), entries)
    if norms.is_zero:
        return Bound((Part("sums", 0.0), *_beside_zero(built, norms, policy)), entries)
    for name, largest in (("A", norms.max_A), ("B", norms.max_B)):
        if not built.operand.min_subnormal <= largest <= built.operand.max:
            raise InputError(
                f"bound: the largest entry of {name}, {largest:.3g} in magnitude, is no {built.operand} number, as "
                f"{built.name!r} multiplies: take the norms of the rounded matrices"
            )
    if isinstance(built, Baseline):
        return Bound(accumulation.chain(simt.SPECS[built.operand.name], norms, path).parts, entries)
    if not isinstance(built, SplitScheme) or spec is None:
        raise InputError(f"bound: no bound is known for the scheme {built.name!r}")
    if isinstance(built, Staged) and built.levels:
        raise InputError(
            f"bound: staged with levels={built.levels} has no bound relative to |A||B|: leave levels out, or call "
            "theory.entrywise"
        )
    built.check_policy(policy)
    parts = _Product(built, spec, norms, path, policy).parts()
    if isinstance(built, StagedInt8):
        parts += corrections(built, norms)
    return Bound(tuple(parts), entries)


def _beside_zero(scheme: Scheme, norms: Norms, on_range: str) -> list[Part]:
    """Words that overflow give NaN, or an error, even if multiplied by zero."""
    if not isinstance(scheme, SplitScheme) or not norms.K:
        return []
    rules, scales = scheme.rules(), scheme.scaling(on_range).scales
    top = min(words.TOP, rules[0].format.emax - 1)
    for name, largest, smallest in (("A", norms.max_A, norms.min_A), ("B", norms.max_B, norms.min_B)):
        by = top - math.frexp(largest)[1] if scales else 0
        size = math.ldexp(2.0, top - 1) if scales else largest
        if largest and splits.worst(words.of_operand(rules, name), size, math.ldexp(smallest, by)).overflow:
            return [Part("out of range", math.inf, 0.0, math.inf)]
    return []


class _Product:
    """The parts of the error of one product by a split scheme."""

    def __init__(self, scheme: SplitScheme, spec: MmaSpec, norms: Norms, order: KOrder, on_range: str) -> None:
        self.spec, self.norms, self.order = spec, norms, order
        self.rules, self.lowering = scheme.rules(), scheme.lowering(spec, order)
        self.scaling = scheme.scaling(on_range)
        self.data = Operands.of(norms, self.scaling, self.rules[0].format.emax)
        if isinstance(scheme, StagedInt8) and scheme.exact == 1:  # else the error of the 8-bit integers is larger
            self.data = _scaled(self.data)
        self.random = walk.Data.of(norms)
        flushed, d = spec.rules.flushes, self.data
        rules = [words.of_operand(self.rules, name) for name in "AB"]
        self.worst = [splits.worst(rules[i], d.largest[i], d.smallest[i], flushed) for i in (0, 1)]
        self.typical = [
            splits.typical(rules[i], d.mean[i], d.rms[i], d.largest[i], d.smallest[i], flushed) for i in (0, 1)
        ]
        self.terms = {(i, j): self._term(i, j) for i in range(len(self.rules)) for j in range(len(self.rules))}

    def parts(self) -> list[Part]:
        """All parts, the worst cases with their slack."""
        parts, sums = [*self._split(), *self._left_out()], self._sums()
        parts += [
            Part(f"sums of {s.name}", s.worst, *s.drift.relative, self.random.tail(s.mean, s.variance)) for s in sums
        ]
        parts += self._combination(sums)
        parts = [replace(part, worst=part.worst * _SLACK) for part in parts]
        return parts + self._out_of_range(sums, sum(p.worst for p in parts))

    def _term(self, i: int, j: int) -> Term:
        (a, b), (s, t), one = self.worst, self.typical, self.data.product
        steps = walk.Steps(
            self.random,
            s.mean[i] * t.mean[j],
            (s.rms[i] * t.rms[j]) ** 2,
            s.magnitude[i] * t.magnitude[j],
            main=i == j == 0,
        )
        return Term(one(a.words[i], b.words[j]), one(a.inflated[i], b.inflated[j]), steps)

    def _split(self) -> list[Part]:
        (a, b), (s, t), d, norms, r = self.worst, self.typical, self.data, self.norms, self.random
        x = Size(1.0)
        ra, rb = (Size(w.left.relative) for w in (a, b))
        relative = d.product(ra, x) + d.product(x, rb) + d.product(ra, rb)
        whole = d.product(a.left, x) + d.product(x, b.left) + d.product(a.left, b.left)
        bias = s.left_mean + t.left_mean
        # an error proportional to C, and a random one
        random = math.hypot(s.left_rms, t.left_rms) * norms.spread
        along = math.hypot(bias * r.whole, (s.left_drift + t.left_drift) * r.mean)
        mean = bias * r.size
        deviation = math.sqrt(max(random**2 + along**2 - mean**2, 0.0))
        parts = [Part("split", relative, mean, deviation, max(norms.uneven, LEAST_TAIL))]
        return parts if whole <= relative else [*parts, self._underflow(whole - relative)]

    def _underflow(self, worst: float) -> Part:
        """Every element loses at most T, random elements lose `small_rms`; entries with few large terms lose more."""
        (a, b), (s, t), d, K = self.worst, self.typical, self.data, self.norms.K
        S = d.mean[0] * d.mean[1] * K  # of most entries
        usual = math.hypot(s.small_rms * d.rms[1], t.small_rms * d.rms[0]) * math.sqrt(K) / S
        ratios = [rms / mean for mean, rms in zip(d.mean, d.rms, strict=True)]
        # small entries, and single elements that are lost in them
        most = math.hypot(s.small_rms * d.over_A * ratios[1], t.small_rms * d.over_B * ratios[0]) / math.sqrt(K)
        big = [min(top, 6 * rms) / mean for top, rms, mean in zip(d.largest, d.rms, d.mean, strict=True)]
        single = max(a.left.absolute * big[1] * d.over_A, b.left.absolute * big[0] * d.over_B) / K
        usual, most = min(usual, 1.0), min(most, 1.0)
        tail = max(most / usual, 1.0) + min(single, 1.0) / (4.5 * usual) if usual else 1.0
        mean = (s.small_mean / d.mean[0] + t.small_mean / d.mean[1]) * self.random.mean
        along = min((s.small_drift / d.mean[0] + t.small_drift / d.mean[1]) * self.random.mean, 1.0)
        return Part("underflow", worst, max(min(mean, 1.0), -1.0), math.hypot(usual, along), tail)

    def _left_out(self) -> list[Part]:
        pairs = [pair for pair in self.terms if pair not in self.lowering.products]
        terms = [self.terms[pair] for pair in pairs]
        if not terms:
            return []
        r = self.random
        share = sum(t.typical.mean for t in terms)
        squares = sum(t.typical.variance for t in terms) + (share * r.whole) ** 2
        s, t = self.typical
        squares += sum(s.drift[i] * t.drift[j] for i, j in pairs) ** 2
        # residuals from rounding up or down, beside first words of one sign
        squares += (sum(s.drift[i] * (j == 0) + t.drift[j] * (i == 0) for i, j in pairs if i or j) * r.mean) ** 2
        bias = share * r.size
        deviation = math.sqrt(max(squares - bias**2, 0.0))
        # an entry of one large term may err by 1.5 times what a sum of many would: the product of two residuals is at
        # most (1.4 sqrt(3))^2 times its root mean square
        tail = max(self.norms.uneven * (1.5 if self.norms.peak > 0.5 else 1.0), LEAST_TAIL)
        # entries of few terms lose the words of small elements, which are no smaller below the normal numbers
        a, b = self.worst
        whole = sum(a.words[i].relative * b.words[j].relative for i, j in pairs)
        single = min(sum(t.size for t in terms) - whole, 1.0) / math.sqrt(self.norms.K)
        if single > 4 * tail * deviation > 0:
            tail = single / (4 * deviation)
        return [Part("products left out", sum(t.size for t in terms), bias, deviation, tail)]

    def _sums(self) -> list[_Sum]:
        """The accumulators with the error of each."""
        lowering, spec = self.lowering, self.spec
        if lowering.block is not None:
            return [self._element_wise()]
        sums = []
        for acc in lowering.accumulators:
            terms = [self.terms[p] for p in acc.products]
            chains = lowering.chains(acc, self.norms.K, spec.block)
            over, turns = math.ldexp(self.data.over_D, -lowering.exponent * acc.band), acc.turn is not None
            worst = accumulation.worst(terms, spec, acc.order, chains, turns, over)
            drift = walk.drift([t.typical for t in terms], spec, acc.order, chains, turns)
            sums.append(_Sum(self._name(acc.products), acc.band, terms, worst, drift))
        return sums

    def _name(self, products: Sequence[Product]) -> str:
        return ", ".join(self.rules[i].name + self.rules[j].name for i, j in products)

    def _element_wise(self) -> _Sum:
        """Every block of every product starts from zero and is added to one total outside."""
        lowering, spec = self.lowering, self.spec
        chains = lowering.chains(lowering.accumulators[0], self.norms.K, spec.block)
        terms = [self.terms[p] for p in lowering.products]
        worst, drift = 0.0, walk.Drift(self.random)
        for (i, j), term in zip(lowering.products, terms, strict=True):
            over = math.ldexp(self.data.over_D, -lowering.exponent * (i + j))
            worst += accumulation.inside([term], spec, chains, False, over)
            drift += walk.inside([term.typical], spec, chains, False)
        result = _Sum(self._name(lowering.products), 0, terms, worst, drift)
        if lowering.exponent:  # division by a power of two rounds subnormal results only
            worst += 2.0**-150 * chains.total * len(terms) * self.data.over_D
        joins = chains.joins(self.order)
        worst += growth(chains.chains * len(terms) - 1 + joins, _FP32) * (result.size + worst)
        mean, variance, slices = result.mean, result.variance, chains.slices
        drift += walk.outside(self.random, chains.total * len(terms), mean / slices, variance / slices, _FP32)
        if slices > 1:
            drift += walk.outside(self.random, joins, mean, variance, _FP32)
        return replace(result, worst=worst, drift=drift)

    def _combination(self, sums: list[_Sum]) -> list[Part]:
        """The error of adding the accumulators in the plan's order, and of undoing the scaling of the operands."""
        lowering, norms = self.lowering, self.norms
        unit = 2.0**-53 if lowering.in_double else _FP32
        # the sums of a band are added to one another, and then to the total of the higher bands
        bands = [sums]
        if lowering.join != "as-run":
            bands = [[s for s in sums if s.band == band] for band in sorted({s.band for s in sums}, reverse=True)]
        size, mean, variance, worst, drift = 0.0, 0.0, 0.0, 0.0, walk.Drift(self.random)
        for number, members in enumerate(bands):
            inner_size, inner_mean, inner_variance = 0.0, 0.0, 0.0
            for index, s in enumerate(members):
                inner_size += s.size + s.worst
                inner_mean += s.mean
                inner_variance += s.variance
                if index:
                    worst += unit * (inner_size + worst)
                    drift += walk.rounding(self.random, inner_mean, inner_variance, unit)
                if lowering.exponent and s.band:  # division by a power of two rounds subnormal results only
                    worst += 2.0**-150 * self.data.over_D
            size, mean, variance = size + inner_size, mean + inner_mean, variance + inner_variance
            if number:
                worst += unit * (size + worst)
                drift += walk.rounding(self.random, mean, variance, unit)
        if lowering.in_double and len(sums) > 1:
            worst += _FP32 * (size + worst) + 2.0**-150 * self.data.over_D
            drift += walk.rounding(self.random, mean, variance, _FP32)
        if self.scaling.scales:
            worst += 2.0**-150 * norms.flat_AB / norms.max_A / norms.max_B / norms.K
        tail = self.random.tail(mean, 2 * variance)
        return [Part("combination", worst, *drift.relative, tail)] if worst else []

    def _out_of_range(self, sums: list[_Sum], worst: float) -> list[Part]:
        for split, operand in zip(self.worst, "AB", strict=True):
            if split.overflow:
                return [Part(f"out of range: word {split.overflow} of {operand}", math.inf, 0.0, math.inf)]
        largest = max(math.ldexp(s.size + s.worst, self.lowering.exponent * s.band) for s in sums)
        overflow = accumulation.overflow(self.spec, self.data.S * max(largest, 1.0), self.random)
        return overflow or accumulation.overflow(simt.SPECS["fp32"], self.norms.largest * (1 + worst), self.random)


# --- the corrections of staged-int8


def _scaled(data: Operands) -> Operands:
    """The operands under the scale of `staged-int8` instead of "scale-rows", which brings a row to [2^13, 2^14).

    An entry is at least 4/9 as large, and its last place is up to 2^4 smaller in relation to it, since the scale is an
    integer of four bits times a power of two.
    """
    more = 2.0**13 / _LEAST
    return replace(
        data,
        smallest=(data.smallest[0] / 36, data.smallest[1] / 36),
        over_A=data.over_A * more,
        over_B=data.over_B * more,
        over_AB=data.over_AB * more**2,
        over_D=data.over_D * more**2,
    )


def corrections(scheme: StagedInt8, norms: Norms) -> tuple[Part, ...]:
    """Errors of the 8-bit integers, and of adding and unscaling their products, relative to (|A||B|)_ij.

    >>> part, _ = corrections(StagedInt8(), Norms.sample("uniform", 1024, low=-1.0))
    >>> 1e-5 < part.worst < 1e-4, part.deviation < 1e-6
    (True, True)
    """
    whole = rounded("joins and scales", norms, 2.0**-24, 2 * -(-norms.K // CHUNK) + 1, 2)
    if norms.is_zero or scheme.exact == 1:
        return (whole,)
    share = 1.0 if scheme.exact is None else 1 - 1 / scheme.exact
    one = (_LOW * (1 + _UNIT) + _TINY + _HIGH * _UNIT) / _LEAST
    both = (2 * _HIGH * (_LOW / 2 + _TINY) + 2 * _LOW * _TINY + _TINY**2) / _LEAST**2
    worst = (one * (norms.row_A + norms.row_B) + both * norms.row_AB + _UNIT**2) * _SLACK
    # over the power of two above a row's largest entry, which is scaled to 2^13 at least
    typical = math.hypot(_LOW, _HIGH * _UNIT * 0.41) * _EVEN / 2.0**13 * math.sqrt(share)
    return cut_off("corrections in 8 bits", worst, norms, (0.0, typical), (0.0, typical)), whole
