"""The verification runner: run the groups of a suite, save every finished group, and continue an interrupted run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.files import write_atomic
from fpemu.gpu.runtime import compiler, device
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import Progress, Suite

_PROCESSES = 16
_FRESH = "fresh"  # fact of a partial record: the outcomes in the record beside it are ignored


class Run:
    """A run of a suite, saved after every group in a file beside its record, from which the next run continues.

    `outcomes` includes those of earlier runs with equal seed, options, GPU and code; groups of this run with mismatches
    or errors are run again. `fresh` ignores earlier runs, and so do the runs that continue it.
    """

    def __init__(self, suite: Suite, path: str | os.PathLike[str] | None = None, *, fresh: bool = False) -> None:
        self.suite, self.fresh = suite, fresh
        self.path = None if path is None else Path(path)
        self.partial = None if path is None else Path(f"{path}.partial")
        self.groups = suite.groups()
        self.outcomes: dict[str, Outcome] = {}
        empty = suite.record([])
        self._from_fresh = fresh  # whether the outcomes in `path` are ignored
        for file in (self.partial, self.path):
            if file is not None and file.exists() and not self._from_fresh:
                with suppress(InputError):  # another file, or one that was changed
                    earlier = Record.read(file)
                    if earlier.continues(empty):
                        self.outcomes = {o.group: o for o in earlier.outcomes} | self.outcomes
                        self._from_fresh = _FRESH in earlier.facts
        self._source = self.partial if self.partial is not None and self.partial.exists() else self.path

    @property
    def missing(self) -> list[str]:
        """Groups that have to be run."""
        return [group for group in self.groups if group not in self.outcomes or not self.outcomes[group].ok]

    @property
    def failed_elsewhere(self) -> list[str]:
        """Groups outside this run whose saved outcomes have mismatches or errors."""
        return [o.group for o in self.outcomes.values() if not o.ok and o.group not in self.groups]

    def record(self) -> Record:
        """Return the record of the groups of this run."""
        return self.suite.record([self.outcomes[group] for group in self.groups if group in self.outcomes])

    def finish(self, jobs: int | None = None, progress: Progress = lambda group, done: None) -> Record:
        """Run the missing groups, write the record unless all groups are in it already, and return it.

        `jobs` processes share the GPU, since kernels take longer to compile than to run; default: one for each core, at
        most 16. The file also keeps groups of earlier runs with the same options.
        """
        missing = self.missing
        if self.fresh and self.partial is not None:
            self.partial.unlink(missing_ok=True)
        sources = self.suite.sources(missing) if missing else []
        if sources:
            compiler.compile_all(sources, device.arch())
        for outcome, share in _outcomes(self.suite, missing, jobs, progress):
            self.outcomes[outcome.group] = outcome
            if self.partial is not None:
                write_atomic(self.partial, self._text({_FRESH: True} if self._from_fresh else {}))
                self._source = self.partial
            progress(outcome.group, share)
        if self.path is not None and self.partial is not None and (missing or self.partial.exists()):
            write_atomic(self.path, self._text())
            self.partial.unlink(missing_ok=True)
        return self.record()

    def _text(self, facts: dict[str, Any] | None = None) -> bytes:
        record = self.suite.record(list(self.outcomes.values()))
        return replace(record, facts=record.facts | (facts or {})).text().encode()

    def __str__(self) -> str:
        saved = sum(group in self.outcomes and self.outcomes[group].ok for group in self.groups)
        return f"{saved} of {len(self.groups)} groups are saved in {self._source}"

    def interrupted(self) -> str:
        """Describe in one line what an interrupt has left."""
        if self.partial is None or not self.partial.exists():
            return "interrupted; nothing is saved" + (" without --record" if self.path is None else " yet")
        command = "the same command without --fresh" if self.fresh else "the same command"
        return f"interrupted; {self}, and {command} continues from there"


def _outcomes(
    suite: Suite, groups: Sequence[str], jobs: int | None, progress: Progress
) -> Iterator[tuple[Outcome, float]]:
    """Run groups in processes side by side, then one after another those that need the GPU for themselves.

    Yields each outcome with the share of its group that `progress` has not been called for.
    """
    shared = [group for group in groups if not suite.runs_alone(group)]
    alone = [group for group in groups if suite.runs_alone(group)]
    jobs = min(os.cpu_count() or 1, _PROCESSES, len(shared)) if jobs is None else jobs
    if jobs < 2:
        alone = list(groups)
    else:
        with _pool(jobs) as processes:
            futures = {processes.submit(_run, suite, group): group for group in shared}
            for future in as_completed(futures):
                try:
                    yield future.result(), 1.0
                except BrokenExecutor as problem:
                    yield Outcome(futures[future], failed=1, first=[f"its process ended: {problem}"]), 1.0
    reported: dict[str, float] = {}

    def advance(group: str, done: float) -> None:
        reported[group] = reported.get(group, 0.0) + done
        progress(group, done)

    for group in alone:
        yield suite.run(group, advance), 1.0 - reported.get(group, 0.0)


def _run(suite: Suite, group: str) -> Outcome:
    return suite.run(group, lambda group, done: None)


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each. The parent handles an interrupt, and does not wait for running cases."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _one_thread) as processes:
        try:
            yield processes
        except BaseException:
            for process in list(processes._processes.values()):
                process.terminate()
            processes.shutdown(cancel_futures=True)
            raise


def _one_thread() -> None:
    os.environ["FPEMU_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
