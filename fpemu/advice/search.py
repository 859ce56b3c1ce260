"""The search for the cheapest scheme: candidates by ascending cost, with bounds and errors measured on operands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, reference, schemes, theory
from fpemu.advice.candidates import Candidate, Machine, candidates
from fpemu.arguments import as_array, as_float64
from fpemu.errors import GuaranteeError, InputError, entries
from fpemu.mma import MmaSpec
from fpemu.schemes.call import Policy
from fpemu.theory import Bound, Norms, Part

Array = NDArray[Any]
SMALL = 2**24
"""Multiply-adds of the product on which every candidate with a sufficient bound is tried."""
LARGE = {"probable": 2**33, "worst": 2**36}
"""Largest number of multiply-adds for which norms are those of all entries, by the confidence; else of a sample."""
MEASURES = ("normwise", "relative_l2", "max_relative", "mred", "max_error_legemm")
"""Measures of a relative error."""
MEANS = ("relative_l2", "mred")
"""Measures that are means over the entries, not maxima."""
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


# --- operands: their norms, and the rows and columns on which errors are measured


class Change(NamedTuple):
    """Effect of rounding a matrix to fp32."""

    largest: float
    """Largest relative change of an entry; inf where one overflows"""
    typical: float
    """Norm of the change divided by the norm of the matrix"""
    lost: bool
    """Whether all entries become zero"""


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of A and columns of B, with the exact product rounded to fp64."""

    A: Array
    B: Array
    whole: bool
    """Whether these are all rows and columns"""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the product."""
        return self.A.shape[0], self.B.shape[1]

    def operations(self, products: int) -> int:
        """Multiply-adds of this many products of the sample."""
        return self.A.shape[0] * self.A.shape[1] * self.B.shape[1] * products

    @cached_property
    def exact(self) -> Array:
        """AB, rounded once to fp64."""
        return np.asarray(reference.matmul(self.A, self.B))

    def error(self, D: Array, measure: str) -> float:
        """The error of a result of this product."""
        if measure == "normwise":
            return metrics.normwise(D, self.exact, self.A, self.B)
        return float(metrics.get(measure)(D, self.exact))


@dataclass(frozen=True, eq=False)
class Matrices:
    """A (M, K) and B (K, N) in float64, finite and not empty: the user's, or drawn from a distribution."""

    A: Array
    B: Array
    given: bool
    text: str
    seed: int = 0
    confidence: str = "probable"

    @staticmethod
    def read(A: Any, B: Any, seed: int, confidence: str = "probable") -> Matrices:
        """The user's operands, checked."""
        a, b = (_matrix(X, name) for X, name in ((A, "A"), (B, "B")))
        if a.shape[1] != b.shape[0]:
            raise InputError(
                f"A of shape {a.shape} and B of shape {b.shape}: A has {a.shape[1]} columns and B {b.shape[0]} rows"
            )
        text = f"A {a.shape[0]}×{a.shape[1]} and B {b.shape[0]}×{b.shape[1]}"
        return Matrices(a, b, True, text, seed, confidence)

    @staticmethod
    def draw(name: str, parameters: dict[str, Any], rows: int, K: int, dtype: str, seed: int) -> Matrices:
        """Rows and columns of a named distribution."""
        A, B = inputs.operands(name, rows, rows, K, seed, dtype, **parameters)
        shown = ", ".join([f"{key}={value}" for key, value in parameters.items()])
        size = f"{rows} rows and columns" if rows > 1 else "a row and a column"
        text = f"{size} in {dtype} drawn as {name}" + (f" ({shown})" if shown else "")
        return replace(Matrices.read(A, B, seed), given=False, text=f"{text}, seed {seed}")

    @property
    def K(self) -> int:  # noqa: N802
        """Length of the sums."""
        return int(self.A.shape[1])

    @cached_property
    def whole(self) -> Sample:
        """All rows and columns."""
        return Sample(self.A, self.B, True)

    def of(self, tried: tuple[int, int]) -> str:
        """The entries tried, in words."""
        if not self.given:
            return self.text
        some = "all entries" if tried == self.whole.shape else f"{tried[0]} rows and {tried[1]} columns"
        return f"{some} of {self.text}"

    @cached_property
    def zero(self) -> bool:
        """Whether every product a_ik b_kj is zero, so that every scheme is exact."""
        return not (self.A.any(axis=0) & self.B.any(axis=1)).any()

    @cached_property
    def are_fp32(self) -> bool:
        """Whether all entries are fp32 numbers."""
        return all(np.array_equal(_as_fp32(X), X) for X in (self.A, self.B))

    @cached_property
    def changed(self) -> tuple[Change, Change]:
        """The effect of rounding A and B to fp32."""
        return _change(self.A), _change(self.B)

    @cached_property
    def small(self) -> Sample:
        """Some rows and columns, `SMALL` multiply-adds at most: see `_selected`."""
        side = max(8, int((SMALL / self.K) ** 0.5))
        rows = _selected(self.A, side, self.seed)
        columns = _selected(self.B.T, side, self.seed + 1)
        whole = len(rows) == self.A.shape[0] and len(columns) == self.B.shape[1]
        return self.whole if whole else Sample(self.A[rows], np.ascontiguousarray(self.B[:, columns]), False)

    # --- norms

    @cached_property
    def norms(self) -> Norms:
        """Norms of the operands; of large ones the norms of the sample with the range of all entries."""
        norms = Norms.of(self.for_norms.A, self.for_norms.B)
        if self.for_norms.whole:
            return norms
        (low, high), (under, over) = (_range(X) for X in (self.A, self.B))
        return replace(norms, min_A=low, max_A=high, min_B=under, max_B=over, max_S=np.inf)

    @property
    def for_norms(self) -> Sample:
        """The sample whose norms are computed."""
        M, N = self.whole.shape
        count = M * N * max(self.K, 2**10)  # the product is stored too
        return self.whole if count <= LARGE[self.confidence] else self.small

    def factor(self, measure: str) -> float:
        """Largest ratio of an error in a measure to the error relative to (|A||B|)_ij; inf for a reference of zero."""
        if measure == "normwise":
            return 1.0
        if measure == "relative_l2":
            size = self.norms.result - self.K * 2.0**-52  # the norm of a product in float64
            return 1 / size if size > 0 else np.inf
        return float(self._ratios.mean() if measure == "mred" else self._ratios.max())

    @cached_property
    def _ratios(self) -> Array:
        """Upper bounds of (|A||B|)_ij / |AB|_ij."""
        # rows and columns are scaled, so that products of small ones do not underflow
        a, b = (
            np.ldexp(X, -np.frexp(np.abs(X).max(axis=axis, keepdims=True))[1])
            for X, axis in ((self.for_norms.A, 1), (self.for_norms.B, 0))
        )
        S, R = np.abs(a) @ np.abs(b), a @ b
        sure = np.abs(R) - self.K * 2.0**-52 * S
        terms = (a != 0).astype(np.float64) @ (b != 0).astype(np.float64)
        return np.where(terms == 0, 0, np.where((sure > 0) & (S > 2.0**-900), S / np.where(sure > 0, sure, 1), np.inf))


def _matrix(X: Any, name: str) -> Array:
    x = as_array(X, name)
    if x.ndim != 2:
        more = ": advise on one product of a batch at a time" if x.ndim > 2 else ""
        raise InputError(f"{name} must be a matrix (rows, columns), not of shape {x.shape}{more}")
    if not x.size:
        raise InputError(f"{name} of shape {x.shape} has no entries")
    wide = np.ascontiguousarray(as_float64(x, name))
    bad = ~np.isfinite(wide)
    if bad.any():
        raise InputError(f"{name}: NaN or infinite: {entries(bad, wide)}; no bound holds for such a product")
    return wide


def _selected(X: Array, most: int, seed: int) -> Sequence[int]:
    """Rows of X to try: an eighth each with the largest entries, the widest ranges, the largest ratios of maximum to
    mean, the smallest entries and the smallest ratios; the rest at random."""
    count = len(X)
    if count <= most:
        return range(count)
    sizes = np.abs(X)
    high, low = sizes.max(axis=1), np.where(sizes > 0, sizes, np.inf).min(axis=1)
    mean = sizes.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        peaks = high / np.where(mean > 0, mean, np.inf)
        scores = [high, high / low, peaks, *(np.where(high > 0, -score, -np.inf) for score in (high, peaks))]
    chosen: dict[int, None] = {}
    for score in scores:
        chosen.update(dict.fromkeys(np.argsort(-score, kind="stable")[: max(1, most // 8)].tolist()))
    rest = np.random.default_rng(seed).permutation(count).tolist()
    for i in rest:
        if len(chosen) >= most:
            break
        chosen[i] = None
    return sorted(chosen)


def _range(X: Array) -> tuple[float, float]:
    """The smallest nonzero and the largest magnitude."""
    sizes = np.abs(X)
    return float(np.where(sizes > 0, sizes, np.inf).min()), float(sizes.max())


def _as_fp32(X: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return X.astype(np.float32)


def _change(X: Array) -> Change:
    x = np.abs(X[X != 0])
    near = _as_fp32(x).astype(np.float64)
    change = np.abs(near / x - 1)
    if not x.size or np.isinf(near).any():
        return Change(np.inf if x.size else 0.0, 0.0, not x.size)
    sizes = np.ldexp(x, -int(np.frexp(x.max())[1]))
    typical = np.linalg.norm(change * sizes) / np.linalg.norm(sizes)
    return Change(float(change.max()), float(typical), not near.any())


# --- verdicts


@dataclass(frozen=True)
class Verdict:
    """Bound and measured error of a candidate, against a target.

    Parameters
    ----------
    candidate : Candidate
        Scheme with its options and cost.
    bound : Bound or None
        Relative to |A||B|, with its parts; None if none can be given.
    worst, probable : float
        The bound in the requested measure; `probable` fails with a probability of `FAILURE` at most.
    measured : float or None
        The error on the data in that measure; None if it was not tried.
    tried : (int, int) or None
        Rows and columns of the data for which the error was measured.
    why : str
        Reason why it is not recommended; empty if there is none.
    """

    candidate: Candidate
    bound: Bound | None
    worst: float
    probable: float
    measured: float | None = None
    tried: tuple[int, int] | None = None
    why: str = ""

    def limit(self, confidence: str) -> float:
        """The bound for a confidence."""
        return self.worst if confidence == "worst" else self.probable

    def parts(self) -> list[tuple[str, float]]:
        """The parts of the worst-case bound relative to |A||B|, the largest first."""
        return sorted(((p.name, p.worst) for p in self.bound.parts), key=lambda p: -p[1]) if self.bound else []


class TargetError(InputError):
    """No scheme meets the target.

    The command line exits with status 1, not 2.

    Parameters
    ----------
    message : str
        Description in one line.
    best : Verdict
        Candidate with the smallest bound.
    """

    def __init__(self, message: str, best: Verdict) -> None:
        super().__init__(message)
        self.best = best


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The result of `fpemu.advise`.

    Parameters
    ----------
    target : float
        Requested relative error.
    measure, confidence : str
        Requested error measure and bound.
    hardware : str
        Requested hardware.
    unit : str, MmaSpec or None
        The hardware as `fpemu.gemm` takes it; None: ordinary cores.
    M, N, K : int
        Sizes of the product.
    data : str
        Operands to which the norms and the measured error belong.
    rates : str
        The GPU whose peaks weigh the units, "nominal" if there is none.
    chosen : Verdict
        The cheapest candidate that meets the target.
    alternatives : tuple of Verdict
        Other schemes that meet it, each in its cheapest form, cheapest first.
    nearest : tuple of Verdict
        Cheaper ones that do not, those that miss it least first.
    considered : tuple of Verdict
        All candidates that were judged, cheapest first; those that were not tried have measured=None.
    checked : bool
        Whether every entry of the user's product was compared with the exact one.
    rounds : bool
        Whether the scheme needs the operands rounded to fp32 first.
    notes : tuple of str
        Restrictions of the result, in sentences.
    """

    target: float
    measure: str
    confidence: str
    hardware: str
    unit: str | MmaSpec | None
    M: int
    N: int
    K: int
    data: str
    rates: str
    chosen: Verdict
    alternatives: tuple[Verdict, ...]
    nearest: tuple[Verdict, ...]
    considered: tuple[Verdict, ...]
    checked: bool
    rounds: bool
    notes: tuple[str, ...]

    @property
    def scheme(self) -> str:
        """Name of the scheme recommended."""
        return self.chosen.candidate.scheme

    @property
    def options(self) -> dict[str, Any]:
        """Its options, without defaults."""
        return dict(self.chosen.candidate.options)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `fpemu.gemm` beside A and B."""
        policy = self.chosen.candidate.on_range
        where = {} if self.unit is None else {"hardware": self.unit}
        return {"scheme": self.scheme, **where, **({"on_range": policy} if policy != "raise" else {}), **self.options}

    def call(self) -> str:
        """The product as a line of Python; an instruction given as MmaSpec appears as the variable spec."""
        A, B = ("A.astype(np.float32)", "B.astype(np.float32)") if self.rounds else ("A", "B")
        shown = {name: "spec" if isinstance(value, MmaSpec) else repr(value) for name, value in self.arguments.items()}
        return f"fpemu.gemm({A}, {B}, {', '.join(f'{name}={value}' for name, value in shown.items())})"

    def command(self, a: str = "A.npy", b: str = "B.npy") -> str:
        """The product as a command; an instruction given as MmaSpec appears as its architecture."""
        policy, unit = self.chosen.candidate.on_range, self.unit
        words = ["fpemu", "gemm", a, b, "--scheme", self.scheme]
        words += [] if unit is None else ["--hardware", unit.architecture if isinstance(unit, MmaSpec) else unit]
        words += [word for name, value in self.options.items() for word in ("--option", f"{name}={value}")]
        return shlex.join(words + (["--on-range", policy] if policy != "raise" else []))


@dataclass(frozen=True)
class Search:
    """The target of one search, on operands and hardware."""

    data: Matrices
    M: int
    N: int
    where: Machine
    target: float
    measure: str
    confidence: str
    report: Callable[[str], None]

    def rounds(self, candidate: Candidate) -> bool:
        """Whether the operands must be rounded to fp32."""
        return candidate.operand == "fp32" and not self.data.are_fp32

    def miss(self, verdict: Verdict) -> tuple[float, Any]:
        """Sort key, the candidate closest to the target first."""
        return max(verdict.limit(self.confidence), verdict.measured or 0.0), verdict.candidate.key


@np.errstate(all="ignore")
def cheapest(search: Search) -> Advice:
    """Return the cheapest candidate that meets the target, with the alternatives."""
    data, M, N, where = search.data, search.M, search.N, search.where
    verdicts: list[Verdict] = []
    met: list[Verdict] = []
    in_range: set[Any] = set()  # forms whose bound scaling does not improve
    spent, checked = 0, False

    for candidate in candidates(
        where, M, N, data.K, (data.small.A, data.small.B), fp32=data.are_fp32, policies=POLICIES
    ):
        form = candidate.scheme, candidate.options
        if form in in_range or any(m.candidate.scheme == candidate.scheme for m in met):
            continue  # a more expensive form of a scheme that meets the target, or a scaling without effect
        verdict = _bounded(search, candidate)
        if not _gains_by_scaling(search, verdict):
            in_range.add(form)
        if not verdict.why:
            verdict = _tried(search, verdict, data.small)
            whole, spent = data.small.whole, spent + data.small.operations(candidate.products)
            # all entries decide for the cheapest candidate, a sample for its alternatives
            if not (met or whole or verdict.measured is None) and verdict.measured <= search.target:
                cost = data.whole.operations(candidate.products)
                if spent + cost <= BUDGET:
                    verdict = _tried(search, verdict, data.whole)
                    whole, spent = True, spent + cost
            if not verdict.why:
                checked = checked if met else whole and data.given
                met.append(verdict)
        verdicts.append(verdict)
        if len(met) > OTHERS:
            break

    if not met:
        raise _refusal(search, verdicts)
    chosen = met[0]
    return Advice(
        target=search.target,
        measure=search.measure,
        confidence=search.confidence,
        hardware=where.name,
        unit=where.unit,
        rates=where.gpu,
        M=M,
        N=N,
        K=data.K,
        data=data.of(chosen.tried or (0, 0)),
        chosen=chosen,
        alternatives=tuple(met[1:]),
        nearest=_nearest(search, verdicts, chosen),
        considered=tuple(verdicts),
        checked=checked,
        rounds=search.rounds(chosen.candidate),
        notes=tuple(_notes(search, chosen, checked)),
    )


# --- bounds


def _bounded(search: Search, candidate: Candidate) -> Verdict:
    """The verdict by the a-priori bound alone."""
    search.report(f"the bound of {candidate.label}")
    try:
        bound = _a_priori(search, candidate)
    except InputError as problem:
        return Verdict(candidate, None, math.inf, math.inf, why=str(problem))
    verdict = _judged(search, candidate, bound)
    if not verdict.limit(search.confidence) <= search.target:
        return replace(verdict, why=f"its bound is {verdict.limit(search.confidence):.1e}")
    return verdict


def _judged(search: Search, candidate: Candidate, bound: Bound) -> Verdict:
    """A verdict with the bound converted to the requested measure."""
    exact = dict(candidate.options).get("mode") == "CR" and not search.rounds(candidate)
    factor = 1.0 if exact else search.data.factor(search.measure)
    likely = bound.probable(FAILURE)
    if search.measure in MEANS:
        likely = min(likely, replace(bound, entries=1).probable(MEAN_FAILURE))
    worst, probable = (0.0 if b == 0 else b * factor for b in (bound.worst, likely))
    return Verdict(candidate, bound, worst, probable)


def _gains_by_scaling(search: Search, verdict: Verdict) -> bool:
    """Whether the range of the data contributes a hundredth of the bound or keeps it above the target."""
    if verdict.bound is None:
        return True
    parts = tuple(part for part in verdict.bound.parts if not part.name.startswith(RANGE))
    least = _judged(search, verdict.candidate, Bound(parts, verdict.bound.entries)).limit(search.confidence)
    limit = verdict.limit(search.confidence)
    return limit > 1.01 * least or least <= search.target < limit


def _a_priori(search: Search, candidate: Candidate) -> Bound:
    """The bound of `fpemu.theory`, with the rounding of operands to fp32."""
    if search.data.zero:
        return Bound((Part("the product is zero", 0.0),), search.M * search.N)
    norms, rounding = search.data.norms, []
    if search.rounds(candidate):
        (a, x, zero_A), (b, y, zero_B) = search.data.changed
        if math.isinf(a + b):
            raise InputError("entries beyond the largest fp32 number")
        if zero_A or zero_B:
            raise InputError(f"{'A' if zero_A else 'B'} has no entry that fp32 does not round to zero")
        deviation = norms.spread * math.hypot(x, y)
        rounding = [Part("operands rounded to fp32", a + b + a * b, 0.0, deviation, norms.uneven)]
    bound = theory.bound(candidate.built, candidate.spec, norms=norms, on_range=candidate.on_range)
    return Bound((*bound.parts, *rounding), search.M * search.N)


# --- measurements


def _tried(search: Search, verdict: Verdict, sample: Sample) -> Verdict:
    """The verdict with the error on a sample. Other entries beyond the range of a word have an infinite bound."""
    candidate, rows, columns = verdict.candidate, *sample.shape
    search.report(f"the error of {candidate.label} on {rows}×{columns} entries")
    try:
        A, B = _operands(candidate, sample)
        D = schemes.gemm(A, B, scheme=candidate.built, hardware=candidate.spec, on_range=candidate.on_range)
    except (InputError, GuaranteeError) as problem:
        return replace(verdict, why=str(problem))
    error = sample.error(D, search.measure)
    why = verdict.why
    if not error <= search.target:
        why = f"its error on the data is {error:.1e}"
    elif (
        not (sample.whole and search.data.given)
        and error - 2.0**-53 > verdict.probable
        and verdict.worst > search.target
    ):
        # the sample exceeds a bound for all entries by more than the rounding of the reference: not random data
        why = f"its error on a sample, {error:.1e}, is above its probable bound"
    return replace(verdict, measured=error, tried=sample.shape, why=why)


def _operands(candidate: Candidate, sample: Sample) -> tuple[Any, Any]:
    """A and B in the operand format of the scheme."""
    if candidate.operand != "fp32":
        return sample.A, sample.B
    return sample.A.astype(np.float32), sample.B.astype(np.float32)


# --- reports


def _nearest(search: Search, verdicts: Iterable[Verdict], chosen: Verdict) -> tuple[Verdict, ...]:
    """Cheaper schemes that fail, each in its most accurate form."""
    cheaper = [v for v in verdicts if v.candidate.key < chosen.candidate.key and v.why]
    best: dict[str, Verdict] = {}
    for verdict in sorted(cheaper, key=search.miss):
        best.setdefault(verdict.candidate.scheme, verdict)
    return tuple(best.values())[:3]


def _refusal(search: Search, verdicts: list[Verdict]) -> TargetError:
    """The error with the best candidate, if none meets the target."""
    tried: list[Verdict] = []
    for verdict in sorted(verdicts, key=search.miss):
        if verdict.measured is None and verdict.bound is not None:
            verdict = _tried(search, verdict, search.data.small)
        if verdict.measured is not None:
            tried.append(verdict)
        if len(tried) == 3:
            break
    if not verdicts:
        raise InputError(
            f"nothing that is modelled runs on {search.where.name}: it has no matrix instruction of the catalog with "
            "a known peak, and no known peak of fp32 or fp64"
        )
    kind = "worst-case" if search.confidence == "worst" else search.confidence
    unmet = f"no scheme on {search.where.name} meets {search.target:g} ({search.measure}, {kind} bound)"
    if not tried:
        first = min(verdicts, key=search.miss)
        raise InputError(f"{unmet}: none of the {len(verdicts)} considered runs on the data; {first.why}")
    best = min(tried, key=search.miss)
    bound = best.limit(search.confidence)
    if math.isinf(bound):
        unmet = "; ".join(filter(None, [unmet, _without_bound(search.data.A, search.data.B, search.measure)]))
    limit, error = f"bound {bound:.1e}", f"measured {best.measured:.1e}"
    return TargetError(
        f"{unmet}; the best of {len(verdicts)} is {best.candidate.label}, "
        f"{limit if math.isfinite(bound) else 'without a finite bound'}, "
        f"{error if math.isfinite(best.measured or 0.0) else 'with an infinite or undefined error'} "
        f"on {search.data.of(best.tried or (0, 0))}",
        best,
    )


def _without_bound(A: NDArray[Any], B: NDArray[Any], measure: str) -> str:
    """The reason why no scheme has a finite bound on A·B in a measure; empty if there is no common reason."""
    with np.errstate(over="ignore"):
        overflow = ~np.isfinite(np.abs(A) @ np.abs(B))
    if overflow.any():
        count = f"{np.count_nonzero(overflow)} of {overflow.size} entries"
        return f"|A||B| overflows fp64 in {count}, so that no bound is finite: multiply A or B by a power of two first"
    if measure != "normwise":
        return f"entries of A B that are or may be zero leave {measure} without a bound (normwise has one)"
    return ""


def _notes(search: Search, chosen: Verdict, checked: bool) -> list[str]:
    """Restrictions of the result, in sentences."""
    notes = []
    if search.data.given and not checked:
        why = "holds for them" if search.confidence == "worst" else "assumes random entries"
        if not search.data.for_norms.whole:
            why = "has the range of all entries, but the norms of some rows and columns"
        notes.append(f"the other entries were not compared with the exact product: their bound {why}")
    if search.rounds(chosen.candidate):
        notes.append("A and B are not all fp32 numbers: rounding them is part of the error")
    return notes
