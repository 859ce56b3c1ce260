"""The interface of a verification suite, and the comparison of its cases with their references, bit by bit.

A suite declares its groups and cases as functions of a seed, the computation of a case on the GPU, and its reference on
the CPU. `fpemu.verification.runner` runs the groups.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fpemu.arguments import integer
from fpemu.digests import digest
from fpemu.gpu.runtime import device
from fpemu.verification import records
from fpemu.verification.cases import Case, Computed, Result
from fpemu.verification.paths import choose
from fpemu.verification.records import Outcome, Record

Progress = Callable[[str, float], None]
"""Called with a group's name and the number of groups completed since the last call, which may be a fraction"""
BY_PATH = ("products", "outputs", "mismatches", "failed")
"""Numbers of each path in ``facts["paths"]`` of an outcome"""
_PLACES = 3  # mismatches and errors of a group that are recorded
_MESSAGE = 300  # characters of one of them


class SkippedError(Exception):
    """Raised by a suite for a case that no kernel runs."""


class Table(NamedTuple):
    """A table of results; all columns but the first hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Suite(ABC):
    """A verification suite; its options decide the cases, are JSON values, and are part of the record."""

    name: ClassVar[str]
    about: ClassVar[str]
    code: ClassVar[tuple[str, ...]] = ()
    """Modules and subpackages besides `records.COMMON_CODE` that decide the results"""
    columns: ClassVar[dict[str, str]] = {name: name for name in ("cases", "outputs", "mismatches", "failed")}
    """Columns of the table of results: heading and count, see `Record.total`"""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.seed, self.options = integer("seed", seed, 0, 2**64 - 1), options

    @abstractmethod
    def groups(self) -> list[str]:
        """Names of the groups of this run."""

    @abstractmethod
    def run(self, group: str, progress: Progress) -> Outcome:
        """Run and compare the cases of a group."""

    def order(self) -> list[str]:
        """Names of all groups that a record of this suite can hold, in its order."""
        return self.groups()

    def sources(self, groups: Sequence[str]) -> list[str]:
        """Sources of kernels to compile in advance."""
        return []

    def runs_alone(self, group: str) -> bool:
        """Whether a group needs the GPU for itself."""
        return False

    def device(self) -> dict[str, str]:
        """Names and versions of the GPU, its driver and compiler."""
        return {**device.describe(), "driver": records.driver()}

    def facts(self) -> dict[str, Any]:
        """Facts about the run, for the record."""
        return {}

    def section(self, group: str) -> str:
        """Row of the table of results in which a group is counted."""
        return group

    def title(self, record: Record) -> str:
        """Title of the table of results."""
        return f"{record.device['gpu']} against the emulation, seed {record.seed}"

    def tables(self, record: Record) -> list[Table]:
        """Tables of a record, for the command line."""
        sections: dict[str, list[Outcome]] = {}
        for outcome in record.outcomes:
            sections.setdefault(self.section(outcome.group), []).append(outcome)
        merged = len(sections) < len(record.outcomes)
        if len(sections) > 1:
            sections["all"] = record.outcomes
        rows = []
        for name, some in sections.items():
            totals = [replace(record, outcomes=some).total(count) for count in self.columns.values()]
            numbers = [f"{x:,.2f}" if isinstance(x, float) else f"{x:,}" for x in totals]
            rows.append((name, *[str(len(some))] * merged, *numbers))
        return [Table(self.title(record), (self.name, *["groups"] * merged, *self.columns), rows)]

    def summary(self, record: Record) -> list[str]:
        """Lines that follow the tables."""
        return []

    def has_comparisons(self, record: Record) -> bool:
        """Whether anything was compared in a record."""
        return bool(record.outcomes)

    def explain(self, outcome: Outcome) -> Iterator[str]:
        """Describe the mismatches and errors of an outcome."""
        what = [f"{outcome.mismatches:,} outputs differ"] if outcome.mismatches else []
        what += [f"{outcome.failed} cases failed"] if outcome.failed else []
        yield f"{outcome.group}: {', '.join(what)}"
        yield from (f"  {place}" for place in outcome.first)

    def record(self, outcomes: Sequence[Outcome]) -> Record:
        """Return the record of some outcomes on the current GPU, in the order of `order`; other groups follow."""
        place, empty = self._place_and_empty
        return replace(
            empty, date=records.now(), outcomes=sorted(outcomes, key=lambda o: place.get(o.group, len(place)))
        )

    @cached_property
    def _place_and_empty(self) -> tuple[dict[str, int], Record]:
        code = records.code_digest(self.code)
        empty = Record(self.name, self.about, self.seed, self.options, self.device(), code, self.facts())
        return {name: i for i, name in enumerate(self.order())}, empty


class ProductSuite(Suite):
    """A suite whose cases are products, numbered in each group, and computed by several paths (`paths.PATHS`).

    Parameters
    ----------
    seed : int
        Seed of the cases.
    paths : sequence of str, optional
        Names of paths. Default: all that the suite supports and this machine can run.
    **options
        As in `Suite`.
    """

    supported: ClassVar[tuple[str, ...]] = ()
    """Paths by which the suite computes cases; none: `on_gpu` launches the kernels itself"""
    kept: ClassVar[int] = 3
    """Cases of a group whose digests are recorded: the first with at most `small` multiply-adds"""
    small: ClassVar[int] = 2**15
    seconds: float = inf
    """Time limit of a group"""

    def __init__(self, seed: int = 0, paths: Sequence[str] | None = None, **options: Any) -> None:
        self.paths, self.skipped = choose(paths, self.supported)
        super().__init__(seed, **options, **({"paths": self.paths} if self.supported else {}))

    @abstractmethod
    def numbers(self, group: str) -> Sequence[int]:
        """Numbers of the cases of a group."""

    @abstractmethod
    def case(self, group: str, number: int) -> Case:
        """Return a case; needs no GPU."""

    def paths_of(self, case: Case) -> Sequence[str]:
        """Paths by which a case is computed."""
        return self.paths or [""]

    @abstractmethod
    def on_gpu(self, case: Case, path: str) -> Computed:
        """Compute a case on the GPU by a path."""

    @abstractmethod
    def references(self, case: Case) -> dict[str, Result]:
        """Compute a case by its reference implementations; results by the implementation's name."""

    def expected(self, case: Case, path: str, references: dict[str, Result]) -> tuple[dict[str, Result], bool | None]:
        """Return the results that a path must return, and whether `fpemu.gpu.check` must raise afterwards."""
        return references, None

    @abstractmethod
    def replay(self, record: Record, outcome: Outcome, number: str) -> str | None:
        """Compute a recorded case again without a GPU; return its digest, or None if that takes too long."""

    def resolve(self, case: Case) -> Case:
        """Return the case with the choices that depend on the GPU's kernels; SkippedError if no kernel runs it."""
        return case

    def group_facts(self, group: str) -> dict[str, Any]:
        """Facts about a group, for its outcome."""
        return {}

    def run(self, group: str, progress: Progress | None = None) -> Outcome:
        """Compare all cases of a group, until its time limit; an error in one case does not stop the others."""
        outcome, digests = Outcome(group, facts=self.group_facts(group)), []
        deadline = time.monotonic() + self.seconds
        for number in self.numbers(group):
            if time.monotonic() > deadline:
                break
            outcome.cases += 1
            digests.append(self._compare(group, number, outcome))
        outcome.digest = f"{digest(np.array(digests, np.uint64)):016x}"
        return outcome

    def compare(self, group: str, number: int) -> Outcome:
        """Compute and compare one case by the paths of this suite, as a reproducer does."""
        outcome = Outcome(group, cases=1)
        outcome.digest = f"{self._compare(group, number, outcome):016x}"
        return outcome

    def _compare(self, group: str, number: int, outcome: Outcome) -> int:
        """Run one case by its paths and count its mismatches; return the digest of the first path's result."""
        case: Case | None = None
        try:
            case = self.resolve(self.case(group, number))
            with np.errstate(all="ignore"):
                references = self.references(case)
            names = self.paths_of(case)
        except SkippedError:
            _count(outcome, {"no kernel": 1})
            return 0
        except Exception as problem:
            _fail(outcome, f"{number}: {case}", problem)
            return 0
        value = None
        for path in names:
            place = f"{number}: {f'by {path}, ' if path else ''}{case}"
            try:
                with np.errstate(all="ignore"):
                    computed = self.on_gpu(case, path)
                    expected = self.expected(case, path, references)
            except Exception as problem:
                _fail(outcome, place, problem, path)
                continue
            _count_mismatches(outcome, place, path, computed, *expected)
            if value is None:
                value = self._first_path(outcome, case, computed, references)
        return value or 0

    def _first_path(self, outcome: Outcome, case: Case, computed: Computed, references: dict[str, Result]) -> int:
        """Add what an outcome holds of a case for all of its paths; return the digest of the result."""
        result = computed.result
        if computed.kernel and computed.kernel not in outcome.kernels:
            outcome.kernels.append(computed.kernel)
        _count(outcome, computed.counts)
        if isinstance(result, str):
            _count(outcome, {"errors": 1})
            return digest(np.frombuffer(result.encode(), np.uint8))
        _count(outcome, {f"against {name}": result.size for name in list(references)[1:]})
        value = digest(result)
        if len(outcome.digests) < self.kept and case.products <= self.small:
            outcome.digests[str(case.number)] = f"{value:016x}"
            if computed.facts:
                outcome.facts.setdefault("replay", {})[str(case.number)] = computed.facts
        return value

    def tables(self, record: Record) -> list[Table]:
        rows = [(path, *(f"{n:,}" for n in by_path(record.outcomes, path))) for path in self.paths]
        return super().tables(record) + [Table("by path of the caller", ("path", *BY_PATH), rows)] * bool(rows)

    def summary(self, record: Record) -> list[str]:
        unused = [path for path in self.paths if not by_path(record.outcomes, path)[0]]
        return self.skipped + [f"paths {', '.join(unused)}: no product of this run has them"] * bool(unused)

    def has_comparisons(self, record: Record) -> bool:
        return bool(record.total("outputs") + record.total("errors"))

    def explain(self, outcome: Outcome) -> Iterator[str]:
        yield from super().explain(outcome)
        number = outcome.first[0].partition(":")[0] if outcome.first else ""
        if number.isdigit():
            kind = f"{type(self).__module__}.{type(self).__name__}"
            arguments = f"{self.seed}, paths={self.paths}" if self.paths else f"{self.seed}"
            yield f"  again: {kind}({arguments}).compare({outcome.group!r}, {number})"


def difference(result: Result, reference: Result) -> tuple[int, str]:
    """Count the mismatches of a result, and describe the first."""
    if isinstance(result, str) or isinstance(reference, str):
        texts = [x[:_MESSAGE] if isinstance(x, str) else f"a result of shape {x.shape}" for x in (result, reference)]
        equal = isinstance(result, str) and isinstance(reference, str) and result == reference
        return (0, "") if equal else (1, " in place of ".join(texts))
    if result.shape != reference.shape or result.dtype != reference.dtype:
        count = max(result.size, reference.size, 1)
        return count, f"{result.dtype} {result.shape} in place of {reference.dtype} {reference.shape}"
    wrong = np.argwhere(result != reference)
    if not len(wrong):
        return 0, ""
    at = tuple(int(i) for i in wrong[0])
    first = f"{result[at]:#x} in place of {reference[at]:#x}"
    return len(wrong), f"{len(wrong)} of {result.size} differ, the first at {at}: {first}"


def _count_mismatches(
    outcome: Outcome, place: str, path: str, computed: Computed, references: Mapping[str, Result], deferred: bool | None
) -> None:
    """Compare a result with its references and add the counts to an outcome."""
    result, wrong = computed.result, 0
    for name, reference in references.items():
        count, where = difference(result, reference)
        wrong = max(wrong, count)
        if count:
            _note(outcome, f"{place}: against {name}: {where}")
    if computed.outside:
        _note(outcome, f"{place}: {computed.outside} elements outside the result changed")
    if computed.deferred != deferred:
        _note(outcome, f"{place}: a range error was {'deferred' if computed.deferred else 'lost'}")
    outputs = 0 if isinstance(result, str) or not references else result.size
    mismatches = wrong + computed.outside + (computed.deferred != deferred)
    outcome.outputs += outputs
    outcome.mismatches += mismatches
    _count_path(outcome, path, [1, outputs, mismatches, 0])


def _count_path(outcome: Outcome, path: str, numbers: Sequence[int]) -> None:
    if path:
        before = by_path([outcome], path)
        outcome.facts.setdefault("paths", {})[path] = [n + m for n, m in zip(before, numbers, strict=True)]


def by_path(outcomes: Sequence[Outcome], path: str) -> list[int]:
    """Return the sums of `BY_PATH` of a path."""
    rows = [outcome.facts.get("paths", {}).get(path, [0] * len(BY_PATH)) for outcome in outcomes]
    return [sum(column) for column in zip([0] * len(BY_PATH), *rows, strict=True)]


def _fail(outcome: Outcome, place: str, problem: Exception, path: str = "") -> None:
    outcome.failed += 1
    _count_path(outcome, path, [1, 0, 0, 1])
    _note(outcome, f"{place}: {type(problem).__name__}: {problem}")


def _count(outcome: Outcome, counts: Mapping[str, int]) -> None:
    outcome.counts = dict(Counter(outcome.counts) + Counter(counts))


def _note(outcome: Outcome, text: str) -> None:
    if len(outcome.first) < _PLACES:
        outcome.first.append(" ".join(text.split())[: 2 * _MESSAGE])
