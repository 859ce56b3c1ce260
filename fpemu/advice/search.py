"""The search for the cheapest scheme: candidates in ascending cost, their bounds and measured errors."""

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
from fpemu.schemes.call import Policy
from fpemu.theory import Bound, Part

FAILURE = 1e-3
"""Probability that some entry exceeds the probable bound."""
MEAN_TAIL = 17.7**0.5
"""Standard deviations that a mean over entries with Gaussian tails exceeds with a probability of `FAILURE` at most, for
any dependence between the entries: sqrt(x) exp((1 - x) / 2) <= 10^-3 for the mean of squares (Chernoff, Jensen) at
x = 17.7, and a mean is no larger than the root of the mean of squares."""
MEAN_FAILURE = 2 * math.exp(-(MEAN_TAIL**2) / 2)
"""Probability with which `fpemu.theory.Bound.probable` takes as many deviations for a single entry."""
BUDGET = 2**31
"""Largest number of multiply-adds of all measurements, with all products of a scheme."""
OTHERS = 5
"""Number of alternatives listed."""
POLICIES: tuple[Policy, ...] = ("raise", "scale", "scale-rows")
RANGE = ("out of range", "overflow", "underflow")
"""Parts of a bound that a scaling can change."""


class Search:
    """The state of one search: bounds and errors measured so far, and the remaining budget."""

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
        self.report = progress or (lambda line: None)
        self.left = BUDGET
        self.everything = False  # whether the last measurement covered all entries of the user's data

    @np.errstate(all="ignore")
    def advice(self) -> Advice:
        """The cheapest candidate that meets the target, with the alternatives."""
        sizes, sample = (self.M, self.N, self.data.K), (self.data.small.A, self.data.small.B)
        listed = candidates(self.where, *sizes, sample, fp32=self.data.are_fp32, policies=POLICIES)
        verdicts: dict[Candidate, Verdict] = {}
        met: list[Verdict] = []
        in_range: set[Any] = set()  # forms whose bound scaling does not improve
        checked = False
        for candidate in listed:
            form = candidate.scheme, candidate.options
            if form in in_range or any(m.candidate.scheme == candidate.scheme for m in met):
                continue  # a more expensive form of a scheme that meets the target, or a scaling without effect
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
        """Whether the operands must be rounded to fp32."""
        return candidate.operand == "fp32" and not self.data.are_fp32

    # --- bounds

    def bound(self, candidate: Candidate) -> Verdict:
        """The verdict by the a-priori bound alone."""
        self.report(f"the bound of {candidate.label}")
        try:
            bound = self.a_priori(candidate)
        except InputError as problem:
            return Verdict(candidate, None, math.inf, math.inf, why=str(problem))
        verdict = self.judged(candidate, bound)
        if not verdict.limit(self.confidence) <= self.target:
            return replace(verdict, why=f"its bound is {verdict.limit(self.confidence):.1e}")
        return verdict

    def judged(self, candidate: Candidate, bound: Bound) -> Verdict:
        """A verdict with the bound converted to the requested measure."""
        exact = dict(candidate.options).get("mode") == "CR" and not self.rounds(candidate)
        factor = 1.0 if exact else self.data.factor(self.measure)
        likely = bound.probable(FAILURE)
        if self.measure in MEANS:
            likely = min(likely, replace(bound, entries=1).probable(MEAN_FAILURE))
        worst, probable = (0.0 if b == 0 else b * factor for b in (bound.worst, likely))
        return Verdict(candidate, bound, worst, probable)

    def gains_by_scaling(self, verdict: Verdict) -> bool:
        """Whether the range of the data contributes a hundredth of the bound or keeps it above the target."""
        if verdict.bound is None:
            return True
        parts = tuple(part for part in verdict.bound.parts if not part.name.startswith(RANGE))
        least = self.judged(verdict.candidate, Bound(parts, verdict.bound.entries)).limit(self.confidence)
        limit = verdict.limit(self.confidence)
        return limit > 1.01 * least or least <= self.target < limit

    def a_priori(self, candidate: Candidate) -> Bound:
        """The bound of `fpemu.theory`, with the rounding of operands to fp32."""
        if self.data.zero:
            return Bound((Part("the product is zero", 0.0),), self.M * self.N)
        norms, rounding = self.data.norms, []
        if self.rounds(candidate):
            (a, x, zero_A), (b, y, zero_B) = self.data.changed
            if math.isinf(a + b):
                raise InputError("entries beyond the largest fp32 number")
            if zero_A or zero_B:
                raise InputError(f"{'A' if zero_A else 'B'} has no entry that fp32 does not round to zero")
            deviation = norms.spread * math.hypot(x, y)
            rounding = [Part("operands rounded to fp32", a + b + a * b, 0.0, deviation, norms.uneven)]
        bound = theory.bound(candidate.built, candidate.spec, norms=norms, on_range=candidate.on_range)
        return Bound((*bound.parts, *rounding), self.M * self.N)

    # --- measurements

    def measure_on_data(self, verdict: Verdict, thorough: bool) -> Verdict:
        """The verdict with the error on some rows and columns, or on all entries within the budget."""
        self.everything = False
        tried, cost = self.try_on(verdict, self.data.small), self.M * self.N * self.data.K * verdict.candidate.products
        if self.data.small.whole:
            self.everything = self.data.given
        elif thorough and (tried.measured or 0.0) <= self.target and tried.measured is not None and cost <= self.left:
            tried = self.try_on(verdict, self.data.whole)
            self.everything = self.data.given
        return tried

    def try_on(self, verdict: Verdict, block: Block) -> Verdict:
        """The verdict with the error on a block. Other entries beyond the range of a word have an infinite bound."""
        candidate, rows, columns = verdict.candidate, *block.shape
        self.report(f"the error of {candidate.label} on {rows}×{columns} entries")
        self.left -= rows * columns * self.data.K * candidate.products
        try:
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
            # the sample exceeds a bound for all entries by more than the rounding of the reference: not random data
            why = f"its error on a sample, {error:.1e}, is above its probable bound"
        return replace(verdict, measured=error, tried=block.shape, why=why)

    def operands(self, candidate: Candidate, block: Block) -> tuple[Any, Any]:
        """A and B in the operand format of the scheme."""
        if candidate.operand != "fp32":
            return block.A, block.B
        return block.A.astype(np.float32), block.B.astype(np.float32)

    # --- reports

    def nearest(self, verdicts: Mapping[Candidate, Verdict], chosen: Verdict) -> tuple[Verdict, ...]:
        """Cheaper schemes that fail, each in its most accurate form."""
        cheaper = [v for v in verdicts.values() if v.candidate.key < chosen.candidate.key and v.why]
        best: dict[str, Verdict] = {}
        for verdict in sorted(cheaper, key=self._miss):
            best.setdefault(verdict.candidate.scheme, verdict)
        return tuple(best.values())[:3]

    def _miss(self, verdict: Verdict) -> tuple[float, Any]:
        return max(verdict.limit(self.confidence), verdict.measured or 0.0), verdict.candidate.key

    def refusal(self, verdicts: Mapping[Candidate, Verdict]) -> TargetError:
        """The error with the best candidate, if none meets the target."""
        tried: list[Verdict] = []
        for verdict in sorted(verdicts.values(), key=self._miss):
            if verdict.measured is None and verdict.bound is not None:
                verdict = self.measure_on_data(verdict, thorough=False)
            if verdict.measured is not None:
                tried.append(verdict)
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
        """Restrictions of the result, in sentences."""
        notes = []
        if self.data.given and not checked:
            why = "holds for them" if self.confidence == "worst" else "assumes random entries"
            if not self.data.for_norms.whole:
                why = "has the range of all entries, but the norms of some rows and columns"
            notes.append(f"the other entries were not compared with the exact product: their bound {why}")
        if self.rounds(chosen.candidate):
            notes.append("A and B are not all fp32 numbers: rounding them is part of the error")
        return notes
