"""The likeliest cause of mismatches: deviations evaluated on a sample, and confirmed on the whole result.

Single deviations come first. If none reproduces all bits, the nearest ones are combined with every other. A deviation
that reproduces all bits is an explanation; one that only removes mismatches explains a part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.conformance.compare import distance
from fpemu.conformance.deviations import Deviation, alternatives, deviation, other_units, single_deviations
from fpemu.conformance.specification import Specification, describe_order, evaluate
from fpemu.errors import GuaranteeError, InputError
from fpemu.formats import names
from fpemu.mma import KOrder, tree
from fpemu.mma.device import Backend, Device
from fpemu.probing.callables import bits

Array = NDArray[Any]
Deviations = tuple[Deviation, ...]
_WORK = 2e6  # multiply-adds of one deviation on the sample
_LINES = (4, 12)  # least and largest number of rows and columns of the sample
_BEAM = 6  # deviations that are combined with all others
_LISTED = 8  # explanations confirmed on the whole result
_PARTS = 3  # partial explanations reported
_ALIKE = 6  # deviations of a kind that are compared with a result without mismatches


@dataclass(frozen=True)
class Cause:
    """Deviation from the specification that explains mismatches.

    Attributes
    ----------
    kinds : tuple of str
        The respects in which the specification is changed.
    text : str
        The change in words.
    left : int
        Entries of the whole result that still mismatch; 0: the change explains all.
    specification : Specification
        The changed specification.
    """

    kinds: tuple[str, ...]
    text: str
    left: int
    specification: Specification


@dataclass(frozen=True)
class Attempt:
    """Deviations with the specification they lead to, and its distance from the result on the sample."""

    deviations: Deviations
    specification: Specification
    mismatches: int
    distance: float  # mean of log2(1 + ulps)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the deviations."""
        return tuple(d.kind for d in self.deviations)

    def cause(self, left: int) -> Cause:
        """The deviations as a cause that leaves some mismatches."""
        return Cause(self.kinds, "; ".join(d.text for d in self.deviations), left, self.specification)


class Sample:
    """A result D, its operands and its specification's value `expected`, reduced to a few rows and columns."""

    def __init__(
        self,
        specification: Specification,
        A: Array,
        B: Array,
        C: Array | None,
        D: Array,
        expected: Array,
        device: Device = "cpu",
        seconds: float = 20.0,
        most: int = 20000,
    ):
        self.specification, self.A, self.B, self.C, self.D, self.device = specification, A, B, C, D, device
        self.fmt = specification.result if specification.result in names() else "fp32"
        wrong = bits(D) != bits(expected)
        self.entries = int(wrong.sum())
        self.factor = _factor(D, expected)
        self.rows, self.columns = _sample(wrong, A.shape[1])
        value = expected[self.rows][:, self.columns]
        if not np.array_equal(bits(self._evaluate(specification, value.dtype)), bits(value)):
            self.rows, self.columns = np.arange(len(D)), np.arange(D.shape[1])  # the scheme's rows are not independent
            value = expected
        self.part = D[self.rows][:, self.columns]
        self.tried = 0
        self.end, self.most = time.perf_counter() + seconds, most
        self.base = self._attempt((), specification, value)
        self._values, self._specifications = {bits(value).tobytes()}, {specification}

    def _evaluate(self, specification: Specification, dtype: Any, *, whole: bool = False) -> Array:
        rows, columns = (None, None) if whole else (self.rows, self.columns)
        # for the sample, the NumPy implementation of a rare arithmetic is faster than its compilation
        spec = specification.spec
        rare = spec is not None and (spec.rules.rank > 1 or spec.evidence == "custom")
        numpy = rare and not whole and spec != self.specification.spec
        backend: Backend = "numpy" if numpy else "compiled"
        device: Device = self.device if whole else "cpu"
        return evaluate(specification, self.A, self.B, self.C, rows, columns, device, backend).astype(dtype, copy=False)

    def attempt(self, deviations: Deviations) -> Attempt | None:
        """Evaluate deviations; None if they are impossible, repeated, or give the bits of earlier ones."""
        fields: dict[str, Any] = {}
        for d in deviations:
            fields |= d.fields
        specification = replace(self.specification, **fields)
        if specification in self._specifications:
            return None
        self._specifications.add(specification)
        self.tried += 1
        try:
            D = self._evaluate(specification, self.part.dtype)
        except (InputError, GuaranteeError):
            return None
        if D.shape != self.part.shape:
            return None
        attempt = self._attempt(deviations, specification, D)
        key = bits(D).tobytes()
        if key in self._values and attempt.mismatches:
            return None
        self._values.add(key)
        return attempt

    def over(self) -> bool:
        """Whether the budget of the search is spent."""
        return self.tried >= self.most or time.perf_counter() > self.end

    def attempts(self, combinations: Iterable[Deviations]) -> list[Attempt]:
        """The attempts of combinations of deviations, without None."""
        return [attempt for attempt in map(self.attempt, combinations) if attempt is not None]

    def mismatches(self, specification: Specification) -> int:
        """Mismatching entries of the whole result."""
        return int((bits(self._evaluate(specification, self.D.dtype, whole=True)) != bits(self.D)).sum())

    def _attempt(self, deviations: Deviations, specification: Specification, D: Array) -> Attempt:
        steps = distance(self.part, D, self.fmt)
        mean = float(np.log2(1.0 + np.minimum(steps, 2**40)).mean())
        return Attempt(deviations, specification, int((steps != 0).sum()), mean)


def _factor(D: Array, expected: Array) -> float:
    """The factor between all of a result and the expected one, to 1 %; 1 if there is none."""
    usable = np.isfinite(D) & np.isfinite(expected) & (D != 0) & (expected != 0)
    if usable.sum() < 4:
        return 1.0
    ratio = D[usable].astype(np.float64) / expected[usable].astype(np.float64)
    low, middle, high = np.quantile(ratio, (0.1, 0.5, 0.9))
    return float(middle) if high - low < 0.01 * abs(middle) else 1.0


def _sample(wrong: NDArray[np.bool_], K: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns: half of them with the most mismatches, the others spread over the matrix."""
    lines = int(np.clip(np.sqrt(_WORK / K), *_LINES))
    chosen = []
    for axis in (1, 0):
        length = wrong.shape[1 - axis]
        worst = np.argsort(-wrong.sum(axis=axis), kind="stable")[: (lines + 1) // 2]
        spread = np.linspace(0, length - 1, min(lines, length)).astype(np.int64)
        rest = spread[~np.isin(spread, worst)]
        keep = np.linspace(0, max(len(rest) - 1, 0), min(lines // 2, len(rest))).astype(np.int64)
        chosen.append(np.sort(np.concatenate([worst, rest[keep]])))
    rows, columns = chosen
    if not wrong[rows][:, columns].any():
        i, j = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        rows, columns = np.union1d(rows, [i]), np.union1d(columns, [j])
    return rows, columns


def search(
    sample: Sample, reveal: Callable[[Specification], Any] | None, progress: Callable[[str, int], None] | None
) -> tuple[tuple[Cause, ...], bool]:
    """The deviations that reproduce a result, the likeliest first, or otherwise partial explanations.

    Also returned is whether the search ended before its budget. `reveal` returns the order of the user's callable from
    probes; it is used if no single deviation suffices. `progress` is called with a description and the number of
    evaluations.
    """

    def report(what: str) -> None:
        if progress is not None:
            progress(what, sample.tried)

    report("one change")
    single = _extended(sample, ())
    causes = _confirmed(sample, single)
    if not causes and reveal is not None:
        report("probes")
        single += _probed(sample, single, reveal)
        causes = _confirmed(sample, single)
    if not causes:
        report("other units")
        single += sample.attempts((d,) for d in other_units(sample.specification) if not sample.over())
        causes = _confirmed(sample, single)
    double: list[Attempt] = []
    starts = [] if causes else _starts(sample, single)
    for orders, start in product((False, True), starts):  # the many orders last
        if sample.over():
            break
        report(f"{start.deviations[-1].text}, and")
        double += _extended(sample, start.deviations, orders)
        causes = _confirmed(sample, double)
        if causes:
            break
    complete = not sample.over()
    return tuple(causes or _partial(sample, single + double)), complete


def indistinguishable(sample: Sample) -> tuple[tuple[str, ...], int]:
    """Other orders, instructions and schemes that give a result without mismatches, and the number tried."""
    original, K = sample.specification, sample.A.shape[1]
    unchanged = cache(lambda: _key(replace(original, scheme=None), K))
    texts, tried = [], 0
    for deviations in alternatives(original, sample.A, sample.D):
        for d in islice(deviations, _ALIKE):
            if tried >= sample.most or time.perf_counter() > sample.end:
                break
            attempt = sample.attempt((d,))
            tried += 1
            if attempt is None or attempt.mismatches:
                continue
            other = attempt.specification
            if other.scheme == original.scheme and _key(replace(other, scheme=None), K) == unchanged():
                tried -= 1  # the same additions in other words
            elif sample.mismatches(other) == 0:
                texts.append(d.text)
    return tuple(texts), tried


def _extended(sample: Sample, start: Deviations, orders: bool | None = None) -> list[Attempt]:
    """Every further deviation of another kind; only orders (`orders` True), or none of them (False)."""
    kinds = {d.kind for d in start}
    specification = replace(sample.specification, **{name: value for d in start for name, value in d.fields.items()})

    def combinations() -> Iterator[Deviations]:
        for d in single_deviations(specification, sample.A, sample.B, sample.C, sample.D, sample.factor):
            if sample.over():
                return
            if d.kind not in kinds and orders in (None, d.kind == "order"):
                yield (*start, d)

    with np.errstate(all="ignore"):
        return sample.attempts(combinations())


def _promising(sample: Sample, single: Iterable[Attempt]) -> list[Attempt]:
    """The deviations nearest to the result, at most two of a kind."""
    chosen: list[Attempt] = []
    for attempt in sorted(single, key=lambda t: (t.distance, t.mismatches)):
        if len(chosen) < _BEAM and sum(t.kinds == attempt.kinds for t in chosen) < 2:
            chosen.append(attempt)
    base = sample.base
    return [t for t in chosen if t.distance < base.distance or t.mismatches < base.mismatches]


def _starts(sample: Sample, single: list[Attempt]) -> list[Attempt]:
    """The deviations to combine with all others.

    First those that bring the result nearer, except orders and instructions, of which many do so by chance; then
    promotions, accumulators and conversions, whose effect may not show alone; then the excepted ones.
    """
    near = _promising(sample, single)
    chance = [t for t in near if t.kinds in (("order",), ("hardware",))]
    hidden = [t for t in single if t.kinds in (("promotion",), ("accumulator",), ("result",), ("inputs",))]
    starts = [t for t in near if t not in chance] + hidden + chance
    return [t for i, t in enumerate(starts) if t not in starts[:i]]


def _probed(sample: Sample, single: list[Attempt], reveal: Callable[[Specification], Any]) -> list[Attempt]:
    """The order from probes of the callable, alone and combined with the nearest deviations."""
    try:
        order = tree.order_of(reveal(sample.specification))
    except (InputError, GuaranteeError):
        return []
    revealed = deviation("order", f"{describe_order(order)}, found by probes", order=order)
    starts = [(), *(t.deviations for t in _promising(sample, single))]
    fitting = [s for s in starts if not s or s[-1].kind not in ("order", "promotion", "scheme")]
    return sample.attempts((*start, revealed) for start in fitting)


def _confirmed(sample: Sample, attempts: list[Attempt]) -> list[Cause]:
    """The attempts that reproduce the sample, confirmed on the whole result; at least one, even after the budget.

    Specifications that add the same numbers in the same places count as one.
    """
    causes: dict[Any, Cause | None] = {}
    for attempt in sorted((t for t in attempts if t.mismatches == 0), key=lambda t: len(t.deviations)):
        key = _key(attempt.specification, sample.A.shape[1])
        if key not in causes and len(causes) < _LISTED and not (causes and sample.over()):
            left = sample.mismatches(attempt.specification)
            causes[key] = attempt.cause(left) if left == 0 else None
            continue
        same = causes.get(key)
        if same is not None and ", or " not in same.text and same.kinds != attempt.kinds:
            causes[key] = replace(same, text=f"{same.text}, or {attempt.cause(0).text}, which is the same")
    return [cause for cause in causes.values() if cause is not None]


def _partial(sample: Sample, attempts: list[Attempt]) -> list[Cause]:
    """The attempts that remove most mismatches, if they remove a third of them: fewer can be chance."""
    causes = []
    for attempt in sorted(attempts, key=lambda t: (t.mismatches, t.distance))[: 3 * _PARTS]:
        if attempt.mismatches < sample.base.mismatches:
            causes.append(attempt.cause(sample.mismatches(attempt.specification)))
            if sample.over():
                break
    causes.sort(key=lambda cause: cause.left)
    return [cause for cause in causes if cause.left <= 0.67 * sample.entries][:_PARTS]


def _key(specification: Specification, K: int) -> Any:
    """Equal for specifications that add the same numbers in the same places."""
    order: Any = specification.order
    spec, plain = specification.spec, specification.scheme is None
    if spec is not None and plain and (order is None or isinstance(order, KOrder)):
        order = tree.from_order(order or KOrder(), K, spec)
    if not plain and isinstance(order, KOrder):
        order = str(order.segments(K)) + order.join
    elif spec is not None and order is not None:
        order = tree.canonical(order, tree.exact_products(spec))
    return replace(specification, order=None), order
