"""A verification suite: groups of cases from a seed, compared bit by bit, run in processes and continued from a file.

A suite declares its groups, their cases, and the product of each case with the results that the emulation expects.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fpemu._system import digest, digest_text, write_atomic
from fpemu.arguments import integer
from fpemu.errors import InputError
from fpemu.gpu import batched
from fpemu.gpu.runtime import device
from fpemu.verification import records
from fpemu.verification.cases import Case, Computed, Product, Result
from fpemu.verification.paths import PATHS, choose
from fpemu.verification.records import Outcome, Record

_PLACES = 3  # mismatches and errors of a group that are recorded
_MESSAGE = 600  # characters of one of them
_PROCESSES = 16  # at most: each holds a context of the GPU


class SkippedError(Exception):
    """Raised by a suite for a case that no kernel runs; the message is the name of its count."""


class Group(NamedTuple):
    """Cases that a suite compares and records together."""

    numbers: Sequence[int] = ()  # of the cases
    section: str = ""  # row of the table of results; default: its own
    alone: bool = False  # it needs the GPU for itself


@dataclass
class Suite(ABC):
    """A verification suite. The fields in `decisive` decide the cases, and are options of the record."""

    name: ClassVar[str]
    about: ClassVar[str]
    decisive: ClassVar[tuple[str, ...]] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self.seed = integer("seed", self.seed, 0, 2**64 - 1)
        self.options = {name: getattr(self, name) for name in self.decisive}

    @cached_property
    @abstractmethod
    def groups(self) -> dict[str, Group]:
        """The groups of this run by name."""

    @abstractmethod
    def run(self, group: str) -> Outcome:
        """Compare all cases of a group."""

    def device(self) -> dict[str, str]:
        """Names and versions of the GPU, its driver and compiler."""
        return {**device.describe(), "driver": records.driver()}

    def facts(self) -> dict[str, Any]:
        """Facts about the run, for the record."""
        return {}

    # --- report
    def record(self, outcomes: Sequence[Outcome]) -> Record:
        """Return the record of some outcomes on the current GPU, in the order of `groups`; other groups follow."""
        place = {group: i for i, group in enumerate(self.groups)}
        ordered = sorted(outcomes, key=lambda o: place.get(o.group, len(place)))
        return replace(self._empty, date=records.now(), outcomes=ordered)

    @cached_property
    def _empty(self) -> Record:
        code = records.code_digest()
        return Record(self.name, self.about, self.seed, self.options, self.device(), code, self.facts())

    def table(self, record: Record) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
        """Return title, columns and rows of the table of results; all columns but the first hold numbers."""
        sections: dict[str, list[Outcome]] = {}
        for outcome in record.outcomes:
            sections.setdefault(self.groups[outcome.group].section or outcome.group, []).append(outcome)
        if len(sections) > 1:
            sections["all"] = record.outcomes
        counts = dict.fromkeys(name for o in record.outcomes for name in o.counts if name not in PATHS)
        columns = ("cases", "outputs", *counts, "mismatches", "failed")
        parts = {name: replace(record, outcomes=some) for name, some in sections.items()}
        rows = [(name, *(f"{part.total(column):,}" for column in columns)) for name, part in parts.items()]
        return f"{record.device['gpu']} against the emulation, seed {record.seed}", (self.name, *columns), rows

    def summary(self, record: Record) -> list[str]:
        """Return the lines that follow the table."""
        return []

    def explain(self, outcome: Outcome) -> Iterator[str]:
        """Describe the mismatches and errors of an outcome."""
        yield f"{outcome.group}: {outcome.mismatches:,} outputs differ, {outcome.failed} cases failed"
        yield from (f"  {place}" for place in outcome.first)


@dataclass
class ProductSuite(Suite):
    """A suite of products, which are compared case by case, by all paths or those named."""

    supported: ClassVar[tuple[str, ...]] = ()
    """Paths by which the suite computes products; none: the product has one way only"""
    kept: ClassVar[int] = 3
    """Cases of a group whose digests are recorded: the first with at most `small` multiply-adds"""
    small: ClassVar[int] = 2**15
    paths: Sequence[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.paths, self.skipped = choose(self.paths, self.supported)
        super().__post_init__()
        self.options |= {"paths": self.paths} if self.supported else {}

    @abstractmethod
    def case(self, group: str, number: int) -> Case:
        """Return a case; needs no GPU."""

    @abstractmethod
    def product(self, case: Case, hardware: Any, recorded: Any = None) -> Product:
        """Return the product of a case on an architecture of the catalogue; SkippedError if no kernel runs it.

        With `recorded`, the recorded `Product.replay`, no GPU is needed.
        """

    def facts(self) -> dict[str, Any]:
        """Architecture of the current GPU, as the catalogue names it."""
        return {"architecture": str(batched.arguments()["hardware"])}

    def replay(self, record: Record, outcome: Outcome, number: str) -> str:
        """Compute a recorded case again without a GPU; return its digest."""
        case, recorded = self.case(outcome.group, int(number)), outcome.facts.get("replay", {}).get(number, {})
        with np.errstate(all="ignore"):
            result = self.product(case, record.facts.get("architecture"), recorded).emulate()
        return digest_text(np.asarray(result))

    def run(self, group: str) -> Outcome:
        """Compare all cases of a group; an error in one case does not stop the others."""
        outcome = Outcome(group)
        values = [int(self.compare(group, number, outcome).digest, 16) for number in self.groups[group].numbers]
        outcome.digest = f"{digest(np.array(values, np.uint64)):016x}"
        return outcome

    def compare(self, group: str, number: int, outcome: Outcome | None = None) -> Outcome:
        """Compute and compare one case by the paths of this suite, and add it to an outcome, by default a new one.

        `outcome.digest` becomes the digest of the result of the first path, or "0" if no path returns a result.
        """
        outcome = Outcome(group) if outcome is None else outcome
        outcome.cases += 1
        outcome.digest, path, case = "0", "", None
        try:
            case = self.case(group, number)
            product = self.product(case, self.facts().get("architecture"))
            case = product.case  # with the choices of its kernel
            for path in self.paths or product.paths:
                if path not in product.paths:
                    continue
                with np.errstate(all="ignore"):
                    expected, deferred = product.expected(path)
                    computed = product.compute(path)
                for mismatch in _compare(outcome, path, computed, expected, deferred):
                    _note(outcome, f"{number}: {path}: {mismatch}; {case}")
                if outcome.digest == "0":
                    self._keep(outcome, case, product, computed.result, list(expected)[1:])
        except SkippedError as reason:
            _count(outcome, str(reason))
        except Exception as problem:
            outcome.failed += 1
            _note(outcome, f"{number}: {path}: {type(problem).__name__}: {problem}; {case}")
        return outcome

    def _keep(self, outcome: Outcome, case: Case, product: Product, result: Result, others: Sequence[str]) -> None:
        """Add what an outcome holds of a case for all of its paths."""
        for name in product.counts:
            _count(outcome, name)
        if product.kernel is not None and product.kernel not in outcome.kernels:
            outcome.kernels.append(product.kernel)
        if isinstance(result, str):
            _count(outcome, "errors")
            outcome.digest = f"{digest(np.frombuffer(result.encode(), np.uint8)):016x}"
            return
        for name in others:
            _count(outcome, f"against {name}", result.size)
        outcome.digest = f"{digest(result):016x}"
        if len(outcome.digests) < self.kept and case.products <= self.small:
            outcome.digests[str(case.number)] = outcome.digest
            if product.replay is not None:
                outcome.facts.setdefault("replay", {})[str(case.number)] = product.replay

    def summary(self, record: Record) -> list[str]:
        """Return the paths that were skipped, and the outputs by path."""
        numbers = ", ".join(f"{path} {record.total(path):,}" for path in self.paths or ())
        return [*self.skipped, *([f"outputs by path: {numbers}"] if numbers else [])]

    def explain(self, outcome: Outcome) -> Iterator[str]:
        """Describe the mismatches and errors of an outcome, and the call that computes the first again."""
        yield from super().explain(outcome)
        number = outcome.first[0].partition(":")[0] if outcome.first else ""
        if number.isdigit():
            arguments = f"{self.seed}, paths={self.paths}" if self.paths else f"{self.seed}"
            kind = f"{type(self).__module__}.{type(self).__name__}"
            yield f"  again: {kind}({arguments}).compare({outcome.group!r}, {number})"


def difference(result: Result, reference: Result) -> tuple[int, str]:
    """Count the mismatches of a result, and describe the first."""
    if isinstance(result, str) or isinstance(reference, str):
        if isinstance(result, str) and isinstance(reference, str) and result == reference:
            return 0, ""
        return 1, " in place of ".join(x if isinstance(x, str) else f"shape {x.shape}" for x in (result, reference))
    if result.shape != reference.shape or result.dtype != reference.dtype:
        count = max(result.size, reference.size, 1)
        return count, f"{result.dtype} {result.shape} in place of {reference.dtype} {reference.shape}"
    wrong = np.argwhere(result != reference)
    if not len(wrong):
        return 0, ""
    at = tuple(int(i) for i in wrong[0])
    first = f"{result[at]:#x} in place of {reference[at]:#x}"
    return len(wrong), f"{len(wrong)} of {result.size} differ, the first at {at}: {first}"


def _compare(
    outcome: Outcome, path: str, computed: Computed, expected: dict[str, Result], deferred: bool | None
) -> Iterator[str]:
    """Compare a result with the expected ones, add the counts to an outcome, and describe each mismatch."""
    differences = {name: difference(computed.result, reference) for name, reference in expected.items()}
    yield from (f"against {name}: {where}" for name, (count, where) in differences.items() if count)
    if computed.outside:
        yield f"{computed.outside} bytes outside the result changed"
    if computed.deferred != deferred:
        yield f"a range error was {'deferred' if computed.deferred else 'lost'}"
    wrong = max((count for count, _ in differences.values()), default=0)
    outcome.mismatches += wrong + computed.outside + (computed.deferred != deferred)
    size = 0 if isinstance(computed.result, str) else computed.result.size
    outcome.outputs += size
    if path:
        _count(outcome, path, size)


def _count(outcome: Outcome, name: str, by: int = 1) -> None:
    outcome.counts[name] = outcome.counts.get(name, 0) + by


def _note(outcome: Outcome, message: str) -> None:
    if len(outcome.first) < _PLACES:
        outcome.first.append(" ".join(message.split())[:_MESSAGE])


# --- runs
class Run:
    """A run of a suite, saved after every group in a file beside its record, from which the next run continues.

    `outcomes` includes those of earlier runs with equal seed, options, GPU and code; groups of this run with mismatches
    or errors are run again. `fresh` ignores earlier runs.
    """

    def __init__(self, suite: Suite, path: str | os.PathLike[str] | None = None, *, fresh: bool = False) -> None:
        self.suite, self.fresh, self.groups = suite, fresh, suite.groups
        self.path = None if path is None else Path(path)
        self.partial = None if path is None else Path(f"{path}.partial")
        self.outcomes: dict[str, Outcome] = {}
        self.saved: Path | None = None  # the file that holds the outcomes
        # the partial record holds the outcomes of the record too, unless its run was a fresh one
        for file in () if fresh else (self.partial, self.path):
            with suppress(InputError):  # no such file, another file, or one that was changed
                if file is not None and self.saved is None:
                    earlier = Record.read(file)
                    if earlier.continues(suite.record([])):
                        self.outcomes, self.saved = {o.group: o for o in earlier.outcomes}, file

    @property
    def missing(self) -> list[str]:
        """Groups that have to be run."""
        return [group for group in self.groups if group not in self.outcomes or not self.outcomes[group].ok]

    @property
    def failed_elsewhere(self) -> list[str]:
        """Groups outside this run whose saved outcomes have mismatches or errors."""
        return [o.group for o in self.outcomes.values() if not o.ok and o.group not in self.groups]

    def run_missing(
        self, jobs: int | None = None, progress: Callable[[str], None] = lambda group: None, gpus: Sequence[str] = ()
    ) -> Record:
        """Run the missing groups, save the outcomes as the record, and return the record of this run's groups.

        `jobs` processes share the GPU, since kernels take longer to compile than to run; default: one for each core, at
        most 16. `gpus` are those of the processes in turn, as in ``CUDA_VISIBLE_DEVICES``; default: each uses the
        first. The file also keeps groups of earlier runs with the same options.
        """
        for outcome in _outcomes(self.suite, self.missing, jobs, gpus):
            self.outcomes[outcome.group] = outcome
            if self.partial is not None:
                write_atomic(self.partial, self.suite.record(list(self.outcomes.values())).text().encode())
                self.saved = self.partial
            progress(outcome.group)
        if self.path is not None and self.partial is not None and self.saved == self.partial:
            self.saved = self.partial.replace(self.path)
        return self.suite.record([self.outcomes[group] for group in self.groups if group in self.outcomes])

    def __str__(self) -> str:
        return f"{len(self.groups) - len(self.missing)} of {len(self.groups)} groups are saved in {self.saved}"

    def interrupted(self) -> str:
        """Describe in one line what an interrupt has left."""
        if self.saved is None:
            return "interrupted; nothing is saved" + (" without --record" if self.path is None else " yet")
        command = "the same command without --fresh" if self.fresh else "the same command"
        return f"interrupted; {self}, and {command} continues from there"


def _outcomes(suite: Suite, groups: Sequence[str], jobs: int | None, gpus: Sequence[str]) -> Iterator[Outcome]:
    """Run groups in processes side by side, then one after another those that need the GPU for themselves."""
    shared = [group for group in groups if not suite.groups[group].alone]
    jobs = min(os.cpu_count() or 1, _PROCESSES, len(shared)) if jobs is None else jobs
    if jobs > 1:
        groups = [group for group in groups if suite.groups[group].alone]
        context = get_context("spawn")
        names: Any = context.SimpleQueue() if gpus else None
        for i in range(jobs if gpus else 0):
            names.put(gpus[i % len(gpus)])
        with ProcessPoolExecutor(jobs, context, _start, (names,)) as processes:
            futures = {processes.submit(suite.run, group): group for group in shared}
            try:
                for future in as_completed(futures):
                    yield _outcome(futures[future], future.result)
            except BaseException:  # an interrupt does not wait for running cases
                for process in list(processes._processes.values()):
                    process.terminate()
                processes.shutdown(cancel_futures=True)
                raise
    for group in groups:
        yield _outcome(group, lambda group=group: suite.run(group))  # type: ignore[misc]


def _outcome(group: str, run: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of a group; if its run or its process fails, an outcome that says so."""
    try:
        return run()
    except Exception as problem:
        outcome = Outcome(group, failed=1)
        _note(outcome, f"{type(problem).__name__}: {problem}")
        return outcome


def _start(gpus: Any = None) -> None:
    """Set up a process: one thread, the next GPU of a queue, and the parent handles interrupts."""
    os.environ["FPEMU_THREADS"] = "1"
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus.get()  # before the first use of CUDA
    signal.signal(signal.SIGINT, signal.SIG_IGN)
