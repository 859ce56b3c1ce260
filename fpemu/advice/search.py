"""The search: candidates cheapest first, their bounds, and the measurements that decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fpemu import schemes, theory
from fpemu.advice.answer import Advice, TargetError, Verdict, without_bound
from fpemu.advice.candidates import Candidate, Machine, candidates
from fpemu.advice.data import MEANS, Block, Data
from fpemu.errors import GuaranteeError, InputError
from fpemu.theory import Bound, Part

FAILURE = 1e-3
"""Probability that a bound called probable does not hold for some entry."""
MEAN_TAIL = 17.7**0.5
"""A mean over entries, each with Gaussian tails and however they depend on one another, exceeds that many standard
deviations with a probability of `FAILURE` at most: sqrt(x) exp((1 - x) / 2) <= 10^-3 for the mean of squares (Chernoff,
Jensen) at x = 17.7, and a mean is no larger than the root of the mean of squares."""
MEAN_FAILURE = 2 * math.exp(-(MEAN_TAIL**2) / 2)
"""With it `fpemu.theory.Bound.probable` takes that many for a single entry."""
BUDGET = 2**31
"""Multiply-adds that all measurements together may take, all products of a scheme counted."""
OTHERS = 5
CONFIDENCES = ("probable", "worst")
POLICIES = ("raise", "scale", "scale-rows")
RANGE = ("out of range", "overflow", "underflow")
"""Parts of a bound that a scaling can change."""


class Search:
    """One question: the candidates, their bounds, and the measurements made so far."""

    def __init__(
        self,
        data: Data,
        M: int,
        N: int,
        where: Machine,
        target: float,
        measure: str,
        confidence: str,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.data, self.M, self.N, self.where = data, M, N, where
        self.target, self.measure, self.confidence = target, measure, confidence
        self.tell = progress or (lambda what: None)
        self.left = BUDGET
        self.everything = False  # whether the last one measured was measured on all entries of the user's

    def advice(self) -> Advice:
        small = self.data.small
        found = candidates(
            self.where, self.M, self.N, self.data.K, (small.A, small.B), fp32=self.data.are_fp32, policies=POLICIES
        )
        verdicts: dict[Candidate, Verdict] = {}
        met: list[Verdict] = []
        in_range: set[Any] = set()  # forms that scaling would gain nothing for
        checked = False
        for candidate in found:
            form = candidate.scheme, candidate.options
            if form in in_range or any(m.candidate.scheme == candidate.scheme for m in met):
                continue  # the latter: a dearer form of a scheme that meets the target
            verdict = self.bound(candidate)
            if not self.gains_by_scaling(verdict):
                in_range.add(form)
            if not verdict.why:
                verdict = self.measure_on_data(verdict, thorough=not met)
                if not verdict.why:
                    checked = checked if met else self.everything
                    met.append(verdict)
            verdicts[candidate] = verdict
            if len(met) > OTHERS:
                break
        if not met:
            raise self.refusal(verdicts)
        chosen = met[0]
        return Advice(
            target=self.target,
            measure=self.measure,
            confidence=self.confidence,
            hardware=self.where.name,
            unit=self.where.unit,
            rates=self.where.gpu,
            M=self.M,
            N=self.N,
            K=self.data.K,
            data=self.data.of(chosen.tried or (0, 0)),
            chosen=chosen,
            alternatives=tuple(met[1:]),
            nearest=self.nearest(verdicts, chosen),
            considered=tuple(verdicts.values()),
            checked=checked,
            rounds=self.rounds(chosen.candidate),
            notes=tuple(self.notes(chosen, checked)),
        )

    def rounds(self, candidate: Candidate) -> bool:
        """Whether the operands must be rounded for it."""
        return candidate.operand == "fp32" and not self.data.are_fp32

    # --- bounds

    def bound(self, candidate: Candidate) -> Verdict:
        """Before anything is computed."""
        self.tell(f"the bound of {candidate.label}")
        try:
            bound = self.a_priori(candidate)
        except InputError as problem:
            return Verdict(candidate, None, math.inf, math.inf, why=str(problem))
        verdict = self.judged(candidate, bound)
        if not verdict.limit(self.confidence) <= self.target:
            return replace(verdict, why=f"its bound is {verdict.limit(self.confidence):.1e}")
        return verdict

    def judged(self, candidate: Candidate, bound: Bound) -> Verdict:
        """A bound in the measure asked for."""
        exact = dict(candidate.options).get("mode") == "CR" and not self.rounds(candidate)
        factor = 1.0 if exact else self.data.factor(self.measure)
        likely = bound.probable(FAILURE)
        if self.measure in MEANS:
            likely = min(likely, replace(bound, entries=1).probable(MEAN_FAILURE))
        worst, probable = (0.0 if b == 0 else b * factor for b in (bound.worst, likely))
        return Verdict(candidate, bound, worst, probable)

    def gains_by_scaling(self, verdict: Verdict) -> bool:
        """Whether a hundredth of the bound, or what the target lacks, is due to the range; so too without one."""
        if verdict.bound is None:
            return True
        parts = tuple(part for part in verdict.bound.parts if not part.name.startswith(RANGE))
        least = self.judged(verdict.candidate, Bound(parts, verdict.bound.entries)).limit(self.confidence)
        limit = verdict.limit(self.confidence)
        return limit > 1.01 * least or least <= self.target < limit

    def a_priori(self, candidate: Candidate) -> Bound:
        """Of theory, and what the rounding of operands to fp32 adds."""
        if self.data.zero:
            return Bound((Part("the product is zero", 0.0),), self.M * self.N)
        norms, rounding = self.data.norms, []
        if self.rounds(candidate):
            (a, x, zero_A), (b, y, zero_B) = self.data.changed()
            if math.isinf(a + b):
                raise InputError("entries beyond the largest fp32 number")
            if zero_A or zero_B:
                raise InputError(f"{'A' if zero_A else 'B'} has no entry that fp32 does not round to zero")
            deviation = norms.spread * math.hypot(x, y)
            rounding = [Part("operands rounded to fp32", a + b + a * b, 0.0, deviation, norms.uneven)]
        found = theory.bound(
            candidate.built, candidate.spec, norms=norms, M=self.M, N=self.N, on_range=candidate.on_range
        )
        return Bound((*found.parts, *rounding), self.M * self.N)

    # --- measurements

    def measure_on_data(self, verdict: Verdict, thorough: bool) -> Verdict:
        """The error on some rows and columns, and on all of them if that can be afforded."""
        self.everything = False
        tried, cost = self.try_on(verdict, self.data.small), self.M * self.N * self.data.K * verdict.candidate.products
        if self.data.small.whole:
            self.everything = self.data.given
        elif thorough and (tried.measured or 0.0) <= self.target and tried.measured is not None and cost <= self.left:
            tried = self.try_on(verdict, self.data.whole)
            self.everything = self.data.given
        return tried

    def try_on(self, verdict: Verdict, block: Block) -> Verdict:
        """The error on rows and columns. Entries elsewhere that a word cannot hold have made the bound infinite."""
        candidate, rows, columns = verdict.candidate, *block.shape
        self.tell(f"the error of {candidate.label} on {rows}×{columns} entries")
        self.left -= rows * columns * self.data.K * candidate.products
        try:
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                A, B = self.operands(candidate, block)
                D = schemes.gemm(A, B, scheme=candidate.built, hardware=candidate.spec, on_range=candidate.on_range)
        except (InputError, GuaranteeError) as problem:
            return replace(verdict, why=str(problem))
        error = block.error(D, self.measure)
        why = verdict.why
        if not error <= self.target:
            why = f"its error on the data is {error:.1e}"
        elif (
            not (block.whole and self.data.given)
            and error - 2.0**-53 > verdict.probable
            and verdict.worst > self.target
        ):
            # a few entries break a bound meant for all (beyond the rounding of the reference): no random data
            why = f"its error on a sample, {error:.1e}, is above its probable bound"
        return replace(verdict, measured=error, tried=block.shape, why=why)

    def operands(self, candidate: Candidate, block: Block) -> tuple[Any, Any]:
        """As the scheme takes them."""
        if candidate.operand != "fp32":
            return block.A, block.B
        return block.A.astype(np.float32), block.B.astype(np.float32)

    # --- what is told

    def nearest(self, verdicts: Mapping[Candidate, Verdict], chosen: Verdict) -> tuple[Verdict, ...]:
        """Cheaper schemes that fail, each in the form that misses least."""
        cheaper = [v for v in verdicts.values() if v.candidate.key < chosen.candidate.key and v.why]
        found: dict[str, Verdict] = {}
        for verdict in sorted(cheaper, key=self._miss):
            found.setdefault(verdict.candidate.scheme, verdict)
        return tuple(found.values())[:3]

    def _miss(self, verdict: Verdict) -> tuple[float, Any]:
        return max(verdict.limit(self.confidence), verdict.measured or 0.0), verdict.candidate.key

    def refusal(self, verdicts: Mapping[Candidate, Verdict]) -> TargetError:
        """The error that names the best there is."""
        tried: list[Verdict] = []
        for verdict in sorted(verdicts.values(), key=self._miss):
            made = verdict
            if verdict.measured is None and verdict.bound is not None:
                made = self.measure_on_data(verdict, thorough=False)
            if made.measured is not None:
                tried.append(made)
            if len(tried) == 3:
                break
        if not verdicts:
            raise InputError(
                f"nothing that is modelled runs on {self.where.name}: it has no matrix instruction of the catalog with "
                "a known peak, and no known peak of fp32 or fp64"
            )
        kind = "worst-case" if self.confidence == "worst" else self.confidence
        unmet = f"no scheme on {self.where.name} meets {self.target:g} ({self.measure}, {kind} bound)"
        if not tried:
            first = min(verdicts.values(), key=self._miss)
            raise InputError(f"{unmet}: none of the {len(verdicts)} considered runs on the data; {first.why}")
        best = min(tried, key=self._miss)
        bound = best.limit(self.confidence)
        if math.isinf(bound):
            unmet = "; ".join(filter(None, [unmet, without_bound(self.data.A, self.data.B, self.measure)]))
        limit, error = f"bound {bound:.1e}", f"measured {best.measured:.1e}"
        return TargetError(
            f"{unmet}; the best of {len(verdicts)} is {best.candidate.label}, "
            f"{limit if math.isfinite(bound) else 'without a finite bound'}, "
            f"{error if math.isfinite(best.measured or 0.0) else 'with an infinite or undefined error'} "
            f"on {self.data.of(best.tried or (0, 0))}",
            best,
        )

    def notes(self, chosen: Verdict, checked: bool) -> list[str]:
        """What the reader should know beside the numbers."""
        said = []
        if self.data.given and not checked:
            why = "holds for them" if self.confidence == "worst" else "supposes that they are like random ones"
            if self.data.given and not self.data.for_norms.whole:
                why = "has the range of all entries, but the norms of some rows and columns"
            said.append(f"the other entries were not compared with the exact product: their bound {why}")
        if self.rounds(chosen.candidate):
            said.append("A and B are not all fp32 numbers: rounding them is part of the error")
        return said
