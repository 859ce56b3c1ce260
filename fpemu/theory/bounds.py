"""A-priori error bounds of every scheme: from its words, its plan of products, an instruction and an order over K.

The parts of a split scheme:

split                 what the words leave of A and B: delta_A |A||B| + |A| delta_B |B| + ...
underflow             what they leave besides because a word is subnormal, or flushed
products left out     words i and j whose product the plan does not run
sums of <products>    a part for each accumulator: truncation, rounding, promotion, splits over K, joins of these
combination           the accumulators added, and powers of two undone
out of range          infinite, where a word may overflow; overflow: where a sum may

worst holds for finite operands with these norms, alpha = 1 and beta = 0, whatever the result is. bias and deviation
are the model of `fpemu.theory.walk` and of `fpemu.theory.splits`: operands as independent random numbers. For data
that spread over many octaves (phi = 2, lognormal) a few elements decide, and `probable` may be loose: up to about
twenty times the error, and more than a hundred times where hardware reads subnormal words as zero (CDNA 2).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fpemu import simt
from fpemu.arguments import checked
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes import ranges, words
from fpemu.schemes.base import Scheme, SplitScheme, build
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.sgemm import Baseline
from fpemu.schemes.staged_int8 import StagedInt8
from fpemu.schemes.words import growth
from fpemu.theory import accumulation, eightbits, splits, walk
from fpemu.theory.accumulation import Chains, Term
from fpemu.theory.norms import Norms
from fpemu.theory.parts import LEAST_TAIL, Bound, Part
from fpemu.theory.splits import Operands, Size, Typical, Worst

_SLACK = 1 + 2.0**-20
"""The norms come from float64 products, and terms of higher order from float64 sums"""
Sum = tuple[str, int, list[Term], float, walk.Drift]
"""An accumulator: its name, band and terms, what it loses at worst and on average"""


@checked
def bound(
    scheme: str | Scheme,
    hardware: str | MmaSpec | None = None,
    *,
    norms: Norms,
    M: int = 1,
    N: int = 1,
    order: KOrder | None = None,
    on_range: str = "raise",
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
        Shape of the result: among how many entries `Bound.probable` looks for the largest error.
    order : KOrder, optional
        Order of addition within every product chain.
    on_range : {"raise", "propagate", "scale", "scale-rows"}
        As for `fpemu.gemm`. Where a word may overflow, which "raise" refuses, the bound is infinite.
    **options
        The scheme's choices.

    Returns
    -------
    Bound
        Relative to (|A||B|)_ij. `worst` is rigorous for alpha = 1, beta = 0.

    Raises
    ------
    InputError
        What `fpemu.gemm` refuses: unknown names and options, contradictions; a negative M or N.

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
    policy, entries = ranges.policy(on_range), accumulation.entries(M, N)
    built.check_order(order, options)
    spec = built.spec(hardware)
    path = KOrder() if order is None else order
    if isinstance(built, ErrorFree):
        from fpemu.theory.errorfree import bound_parts

        return Bound(tuple(bound_parts(built, spec if spec is not None else hardware, norms, order)), entries)
    if norms.is_zero:
        return Bound((Part("sums", 0.0), *_beside_zero(built, norms, policy)), entries)
    if isinstance(built, Baseline):
        found = accumulation.chain(simt.SPECS[built.operand.name], norms, path)
        return Bound(found.parts, entries)
    if not isinstance(built, SplitScheme) or spec is None:
        raise InputError(f"bound: no bound is known for the scheme {built.name!r}")
    parts = _Product(built, spec, norms, path, policy).parts()
    if isinstance(built, StagedInt8):
        parts += eightbits.corrections(built, norms)
    return Bound(tuple(parts), entries)


def _beside_zero(scheme: Scheme, norms: Norms, on_range: str) -> list[Part]:
    """Words that overflow give NaN even times zero."""
    if not isinstance(scheme, SplitScheme) or scheme.scales_rows or on_range in ("scale", "scale-rows"):
        return []
    tops = ((norms.max_A, norms.min_A), (norms.max_B, norms.min_B))
    over = [splits.worst(scheme.rules(), *sizes).overflow for sizes in tops if norms.K and sizes[0]]
    return [Part("out of range", math.inf, 0.0, math.inf)] if any(over) else []


class _Product:
    """A product by a split scheme: its words, and what their sums lose."""

    def __init__(self, scheme: SplitScheme, spec: MmaSpec, norms: Norms, order: KOrder, on_range: str) -> None:
        self.scheme, self.spec, self.norms, self.order = scheme, spec, norms, order
        self.rules, self.plan = scheme.rules(), scheme.plan()
        self.scaling = "scale-rows" if scheme.scales_rows else on_range
        if getattr(scheme, "accumulator_format", "fp32") == "fp16" and on_range in ("scale", "scale-rows"):
            scheme.refuse(f"on_range={on_range!r} brings products to 2^26, above what an fp16 accumulator holds")
        self.data = Operands.of(norms, self.scaling, self.rules[0].format.emax)
        self.random = walk.Data.of(norms)
        self.worst = [self._worst(i) for i in (0, 1)]
        self.typical = [self._typical(i) for i in (0, 1)]
        self.terms = {(i, j): self._term(i, j) for i in range(len(self.rules)) for j in range(len(self.rules))}

    def parts(self) -> list[Part]:
        """Every part, worst cases with their slack."""
        found = [*self._split(), *self._left_out()]
        sums = self._sums()
        found += [
            Part(f"sums of {name}", lost, *drift.relative, self._tail(terms)) for name, _, terms, lost, drift in sums
        ]
        found += self._combination(sums)
        found = [replace(part, worst=part.worst * _SLACK) for part in found]
        return found + self._out_of_range(sums, sum(p.worst for p in found))

    def _tail(self, terms: list[Term]) -> float:
        return self.random.tail(sum(t.typical.drift for t in terms), sum(t.typical.variance for t in terms))

    def _worst(self, side: int) -> Worst:
        flushed = self.spec.arithmetic == "flushed"
        return splits.worst(self.rules, self.data.largest[side], self.data.smallest[side], flushed)

    def _typical(self, side: int) -> Typical:
        d, flushed = self.data, self.spec.arithmetic == "flushed"
        return splits.typical(self.rules, d.mean[side], d.rms[side], d.largest[side], d.smallest[side], flushed)

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
        (a, b), (s, t), d, norms = self.worst, self.typical, self.data, self.norms
        x = Size(1.0)
        ra, rb = (Size(w.left.relative) for w in (a, b))
        relative = d.product(ra, x) + d.product(x, rb) + d.product(ra, rb)
        whole = d.product(a.left, x) + d.product(x, b.left) + d.product(a.left, b.left)
        r = self.random
        bias = s.left_mean + t.left_mean
        # a loss in proportion to C, and one that is random
        random = math.hypot(s.left_rms, t.left_rms) * norms.spread
        along = math.hypot(bias * r.whole, (s.left_drift + t.left_drift) * r.mean)
        mean = bias * r.size
        parts = [
            Part(
                "split",
                relative,
                mean,
                math.sqrt(max(random**2 + along**2 - mean**2, 0.0)),
                max(norms.uneven, LEAST_TAIL),
            )
        ]
        if whole > relative:
            parts.append(self._underflow(whole - relative))
        return parts

    def _underflow(self, worst: float) -> Part:
        """Lost of every element at most T, of random ones `small_rms`; of the entries that suffer most, more."""
        (a, b), (s, t), d, K = self.worst, self.typical, self.data, self.norms.K
        S = d.mean[0] * d.mean[1] * K  # of most entries
        usual = math.hypot(s.small_rms * d.rms[1], t.small_rms * d.rms[0]) * math.sqrt(K) / S
        ratios = [rms / mean for mean, rms in zip(d.mean, d.rms, strict=True)]
        # entries that are small, and single elements that are lost in them
        most = math.hypot(s.small_rms * d.over_A * ratios[1], t.small_rms * d.over_B * ratios[0]) / math.sqrt(K)
        big = [min(top, 3 * rms) / mean for top, rms, mean in zip(d.largest, d.rms, d.mean, strict=True)]
        single = max(a.left.absolute * big[1] * d.over_A, b.left.absolute * big[0] * d.over_B) / K
        usual, most = min(usual, 1.0), min(most, 1.0)
        tail = max(most / usual, 1.0) + min(single, 1.0) / (4.5 * usual) if usual else 1.0
        mean = (s.small_mean / d.mean[0] + t.small_mean / d.mean[1]) * self.random.mean
        return Part("underflow", worst, max(min(mean, 1.0), -1.0), usual, tail)

    def _left_out(self) -> list[Part]:
        out = [pair for pair in self.terms if pair not in self.plan.products]
        lost = [self.terms[pair] for pair in out]
        if not lost:
            return []
        r = self.random
        share = sum(t.typical.mean for t in lost)
        squares = sum(t.typical.variance for t in lost) + (share * r.whole) ** 2
        squares += sum(self.typical[0].drift[i] * self.typical[1].drift[j] for i, j in out) ** 2
        bias = share * r.size
        return [
            Part(
                "products left out",
                sum(t.size for t in lost),
                bias,
                math.sqrt(max(squares - bias**2, 0.0)),
                max(self.norms.uneven, LEAST_TAIL),
            )
        ]

    def _sums(self) -> list[Sum]:
        """For each accumulator: name, band, terms, what it loses at worst and on average."""
        plan, spec = self.plan, self.spec
        if plan.accumulators == "none":
            return [self._blocks()]
        found = []
        for band, products in plan.groups():
            terms = [self.terms[p] for p in products]
            promote = plan.promoted(band, spec)
            order = self.order if promote is None else replace(self.order, promote=self.order.promote or promote)
            step = words.in_k(plan.step, spec) if len(terms) > 1 else None
            chains = Chains.of(order, self.norms.K, spec, step)
            over = math.ldexp(self.data.over_D, -plan.exponent * band)
            lost = accumulation.worst(terms, spec, order, chains, step is not None, over)
            drift = walk.drift([t.typical for t in terms], spec, order, chains, step is not None)
            found.append((self._name(products), band, terms, lost, drift))
        return found

    def _name(self, products: list[tuple[int, int]]) -> str:
        return ", ".join(self.rules[i].name + self.rules[j].name for i, j in products)

    def _blocks(self) -> Sum:
        """Every step of every product from zero, added to one total outside."""
        plan, spec, K = self.plan, self.spec, self.norms.K
        if self.order.promote is not None:
            raise InputError("no chain outlives a step here (element-wise), so order takes a KOrder without promote")
        step = words.in_k(plan.step or "instruction", spec)
        chains = Chains.of(self.order, K, spec, step, fresh=True)
        terms = [self.terms[p] for p in plan.products]
        lost, drift = 0.0, walk.Drift(self.random)
        for (i, j), term in zip(plan.products, terms, strict=True):
            over = math.ldexp(self.data.over_D, -plan.exponent * (i + j))
            lost += accumulation.inside([term], spec, chains, False, over)
            drift += walk.inside([term.typical], spec, chains, False)
        size, unit = sum(t.size for t in terms), 2.0**-24
        if plan.exponent:  # a power of two undone: only a subnormal rounds
            lost += 2.0**-150 * chains.total * len(terms) * self.data.over_D
        lost += growth(chains.chains * len(terms) - 1 + chains.joins(self.order), unit) * (size + lost)
        mean, variance = sum(t.typical.drift for t in terms), sum(t.typical.variance for t in terms)
        slices = chains.slices
        drift += walk.outside(self.random, chains.total * len(terms), mean / slices, variance / slices, unit)
        if slices > 1:
            drift += walk.outside(self.random, chains.joins(self.order), mean, variance, unit)
        return self._name(list(plan.products)), 0, terms, lost, drift

    def _combination(self, sums: list[Sum]) -> list[Part]:
        """The accumulators joined in the plan's order, and the scaling of the operands undone."""
        plan, norms = self.plan, self.norms
        unit = 2.0**-53 if plan.combine_in == "fp64" else 2.0**-24
        if plan.join != "as-run":
            sums = sorted(sums, key=lambda s: -s[1])
        size, mean, variance, lost, drift = 0.0, 0.0, 0.0, 0.0, walk.Drift(self.random)
        for index, (_, band, terms, error, _) in enumerate(sums):
            size += sum(t.size for t in terms) + error
            mean += sum(t.typical.drift for t in terms)
            variance += sum(t.typical.variance for t in terms)
            if index:
                lost += unit * (size + lost)
                drift += walk.rounding(self.random, mean, variance, unit)
            if plan.exponent and band:  # a power of two undone: only a subnormal rounds
                lost += 2.0**-150 * self.data.over_D
        if plan.combine_in == "fp64" and len(sums) > 1:
            lost += 2.0**-24 * (size + lost) + 2.0**-150 * self.data.over_D
            drift += walk.rounding(self.random, mean, variance, 2.0**-24)
        if self.scaling in ("scale", "scale-rows"):
            lost += 2.0**-150 * norms.flat_AB / norms.max_A / norms.max_B / norms.K
        tail = self.random.tail(mean, 2 * variance)
        return [Part("combination", lost, *drift.relative, tail)] if lost else []

    def _out_of_range(self, sums: list[Sum], lost: float) -> list[Part]:
        for w, who in zip(self.worst, "AB", strict=True):
            if w.overflow:
                return [Part(f"out of range: word {w.overflow} of {who}", math.inf, 0.0, math.inf)]
        largest = max(
            math.ldexp(sum(t.size for t in terms) + error, self.plan.exponent * band)
            for _, band, terms, error, _ in sums
        )
        data = self.random
        found = accumulation.overflow(self.spec, self.data.S * max(largest, 1.0), data)
        return found or accumulation.overflow(simt.SPECS["fp32"], self.norms.largest * (1 + lost), data)
