"""Evaluate the cells of an experiment or a grid that are not stored yet, and return all its rows."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from fpemu.errors import InputError, unknown_name
from fpemu.mma.device import Device, resolve
from fpemu.parallel import cores
from fpemu.sweep import executors, store
from fpemu.sweep.executors import Batches, LocalWorkers, Source, Workers

if TYPE_CHECKING:
    from rich.progress import Progress

    from fpemu.sweep.store import Cell, Known, Store, Values

Row = dict[str, Any]
EXECUTORS = ("processes", "dask")
_TRIAL = 1e9
"""Largest cost of a grid's cell that is evaluated for an estimate: at about a nanosecond each, a second."""
_START = 2e9
"""Cost of a grid's cells that takes as long as the start of a process, about two seconds."""
_LOG = logging.getLogger("fpemu.sweep")


class CellError(RuntimeError):
    """Cells could not be evaluated; all others are stored."""


class Job(Protocol):
    """The attributes of an `Experiment` or a `Grid` that a run uses."""

    @property
    def name(self) -> str: ...
    @property
    def evaluator(self) -> str: ...
    @property
    def code(self) -> str: ...
    def cells(self, size: str) -> list[Cell]: ...
    def evaluate(self, cell: Cell, device: Device = "cpu") -> Mapping[str, Any]: ...
    def cost(self, cell: Mapping[str, Any]) -> float: ...
    def memory(self, cell: Mapping[str, Any]) -> float: ...
    def source(self, device: Device) -> Source: ...


def run(
    job: Job,
    size: str = "quick",
    *,
    results: Store,
    jobs: int = 1,
    executor: str | None = None,
    scheduler: str | None = None,
    worker_timeout: float = 600.0,
    device: Device = "auto",
    progress: Progress | None = None,
    keep_failures: bool = False,
    fresh: bool = False,
    done: set[str] | None = None,
    workers: Workers | None = None,
) -> list[Row]:
    """Evaluate the missing cells and return every row, in the order of the cells.

    Parameters
    ----------
    job : Experiment or Grid
        Cells to evaluate.
    size : {"quick", "full"}
        Of an experiment; a grid has one size.
    results : Store
        Finished cells are read from it, and each new one is written to it as soon as it is evaluated. Damaged rows are
        logged and evaluated again. It must be writable only if cells are missing.
    jobs : int
        Local processes, among which the cores are divided; 1 evaluates in this process, as does a grid whose missing
        cells take less time than the start of a process.
    executor : {None, "processes", "dask"}
        None: "processes", or "dask" if there is a scheduler.
    scheduler : str, optional
        Address of a Dask scheduler; executor "dask" without one starts a local cluster of ``jobs`` workers.
    worker_timeout : float
        Seconds for which a run on Dask waits for a new worker after the last one is lost.
    device : {"auto", "cpu", "cuda"}
        Where products are computed, the same bits on either. "auto": in each process large ones on its GPU, if it has
        one that can be used, all else on the CPU. "cuda": all on the GPU, and no process without one takes part.
    progress : rich.progress.Progress, optional
        The display to which a bar is added when the evaluation starts.
    keep_failures : bool
        Return rows with the text "error" instead of numbers for failed cells, instead of raising.
    fresh : bool
        Evaluate stored cells again; each cell's old numbers stay until its new ones replace them.
    done : set of str, optional
        Keys that a fresh run does not evaluate again, since an earlier one did; the keys that it evaluates are added.
    workers : Workers, optional
        Workers that several runs share, in place of ``jobs``, ``executor`` and ``scheduler``.

    Returns
    -------
    list of dict
        A cell's parameters (without the list of a grid's metrics) and its numbers in one dict.

    Raises
    ------
    CellError
        If cells failed, after all the others have been evaluated. A later run tries them again.
    InputError
        If ``jobs`` or ``worker_timeout`` is not positive, the executor or the device is not available, the store is
        read-only although cells are missing, a cell needs more memory than this machine has, or a number has the name
        of a parameter.
    OSError
        If storing fails later, or the Dask cluster is lost. Stored cells remain; the next run continues from them.
    KeyboardInterrupt
        On Ctrl-C. Stored cells remain as well.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}: at least 1 process is needed")
    if not worker_timeout > 0:
        raise InputError(f"worker_timeout is {worker_timeout}: a positive number of seconds is needed")
    executor = _executor(executor, scheduler)
    if scheduler is None:  # the workers of a scheduler may be on other machines
        resolve(device)
    plan = survey(job, size, results)
    done = set() if done is None else done
    plan = plan.afresh(done) if fresh else plan
    todo = plan.todo
    if todo:
        results.check_writable()
    if scheduler is None:
        check_memory(job, todo.values())
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if workers is None and todo:
            workers = _workers(job, todo, jobs, executor, scheduler, worker_timeout)
            stack.enter_context(workers or contextlib.nullcontext())
        batches = _batches(job, todo, workers, device)
        stack.enter_context(contextlib.closing(batches))  # ends the workers after an interrupt
        advance = stack.enter_context(_bar(job, plan, progress))
        for batch in batches:
            for entry in batch:
                _row(job, entry.cell, entry.values or {})
            if batch:
                results.keep(job.evaluator, job.code, batch)
            else:
                advance(0.0)
            for entry in batch:
                if entry.values is None:
                    failed[entry.key] = entry.error
                else:
                    plan.stored[entry.key] = store.Known(dict(entry.values), entry.seconds)
                    done.add(entry.key)
                advance(job.cost(entry.cell))
    if failed and not keep_failures:
        raise failure(job.name, [(plan.cells[name], error) for name, error in failed.items()], len(plan.cells))
    return [
        {**_plain(plan.cells[name]), "error": failed[name]}
        if name in failed
        else _row(job, plan.cells[name], plan.stored[name].values)
        for name in plan.keys
    ]


def failure(name: str, failed: Sequence[tuple[Mapping[str, Any], str]], total: int) -> CellError:
    """The error with the number of failed cells and the error of the first."""
    cell, error = failed[0]
    return CellError(
        f"{name}: {len(failed)} of {total} cells failed; the first, {store.canonical(dict(cell))}: {error}"
    )


def check_failures(job: Job, rows: Sequence[Row]) -> None:
    """Raise CellError if rows of a run with ``keep_failures`` failed."""
    pairs = zip(job.cells("quick"), rows, strict=True)
    failed = [(cell, row["error"]) for cell, row in pairs if "error" in row]
    if failed:
        raise failure(job.name, failed, len(rows))


def default_jobs() -> int:
    """One process for each core, at most 4: a large cell can take 2 GB, and large products use several threads."""
    return min(4, cores())


def keys(job: Job, cells: list[Cell]) -> list[str]:
    """The keys of a job's cells in the store."""
    evaluator, code = job.evaluator, job.code
    return [store.key(evaluator, cell, code) for cell in cells]


# --- missing and stored cells
@dataclass(frozen=True)
class Survey:
    """The cells of a job, and the stored ones among them."""

    keys: list[str]
    """The key of every cell, in the job's order; a repeated cell has a repeated key"""
    cells: dict[str, Cell]
    """The distinct cells by key"""
    stored: dict[str, Known]
    failed_before: dict[str, str]
    """The error of each cell whose last evaluation failed"""

    @property
    def todo(self) -> dict[str, Cell]:
        """The cells to evaluate, in order."""
        return {name: cell for name, cell in self.cells.items() if name not in self.stored}

    def afresh(self, but: Collection[str] = ()) -> Survey:
        """The plan with only the keys in ``but`` counted as stored."""
        stored = {name: known for name, known in self.stored.items() if name in but}
        return replace(self, stored=stored, failed_before={})


def survey(job: Job, size: str, results: Store) -> Survey:
    """Look up a job's cells in the store; log a line if stored rows are damaged."""
    listed = job.cells(size)
    names = keys(job, listed)
    cells = dict(zip(names, listed, strict=True))
    known, damaged = results.read(list(cells))
    stored = {name: row for name, row in known.items() if _fits(cells[name], row.values)}
    if damaged:
        _LOG.warning(
            "%s: %d of %d stored rows are damaged and count as missing; the first is of the cell %s",
            results.path,
            len(damaged),
            len(known) + len(damaged),
            store.canonical(cells[damaged[0]]),
        )
    return Survey(names, cells, stored, results.failures(list(cells)))


def _fits(cell: Mapping[str, Any], values: Values) -> bool:
    """Whether stored numbers have the names of a grid cell's metrics, and none has the name of a parameter."""
    wanted = cell.get("metrics", values)
    return not values.keys() & cell.keys() and (not isinstance(wanted, list) or values.keys() == set(wanted))


def check_memory(job: Job, cells: Iterable[Cell]) -> None:
    """Raise InputError if the matrices of a cell do not fit into this machine's memory."""
    cell = max(cells, key=job.memory, default=None)
    if cell is None or not hasattr(os, "sysconf"):
        return
    needed, available = job.memory(cell), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        sizes = "×".join(str(cell[name]) for name in ("M", "N", "K"))
        raise InputError(
            f"{job.name}: the matrices of M×N×K = {sizes} take {needed / 1e9:.4g} GB, and this machine has "
            f"{available / 1e9:.4g} GB of memory: choose smaller sizes"
        )


def estimate(job: Job, plan: Survey, jobs: int, device: Device = "cpu") -> tuple[float | None, str]:
    """Estimate the seconds that the missing cells of a plan, at least one, will take; also name the basis.

    The estimate scales the seconds of stored cells of the same job, or of its cheapest cell evaluated now on
    ``device``, with `cost`. Of a large cell of a grid, some rows and columns are evaluated. The number is None if the
    cell fails.
    """
    todo = plan.todo
    work = sum(job.cost(cell) for cell in todo.values())
    if plan.stored:
        done = sum(job.cost(plan.cells[name]) for name in plan.stored)
        seconds = sum(known.seconds for known in plan.stored.values())
        basis = f"from {len(plan.stored)} stored cells"
    else:
        whole = min(todo.values(), key=job.cost)
        cell = _trial(job, whole)
        try:
            job.evaluate(cell, device)  # compiles, and draws the operands that neighbours share
            start = time.perf_counter()
            job.evaluate(cell, device)
        except (Exception, SystemExit) as problem:
            return None, f"unknown: the cell {store.canonical(cell)} failed: {problem}"
        done, seconds = job.cost(cell), time.perf_counter() - start
        basis = "from one cell measured now"
        if cell is not whole:
            basis += f", with M = {cell['M']}, N = {cell['N']} instead of {whole['M']}, {whole['N']}: likely too much"
    return seconds / done * work / min(jobs, cores(), len(todo)), basis


def _trial(job: Job, cell: Cell) -> Cell:
    """A grid's cell with M and N halved until it is cheap; an experiment's cell, whose cost has no unit, unchanged."""
    while "metrics" in cell and job.cost(cell) > _TRIAL and cell["M"] * cell["N"] > 1:
        cell = {**cell, "M": max(1, cell["M"] // 2), "N": max(1, cell["N"] // 2)}
    return cell


def _executor(executor: str | None, scheduler: str | None) -> str:
    if executor is None:
        return "processes" if scheduler is None else "dask"
    if executor not in EXECUTORS:
        raise unknown_name("executor", executor, EXECUTORS)
    if executor == "processes" and scheduler is not None:
        raise InputError("a scheduler's address needs the executor dask")
    return executor


def _workers(
    job: Job, todo: Mapping[str, Cell], jobs: int, executor: str, scheduler: str | None, worker_timeout: float
) -> Workers | None:
    """Return the workers that evaluate the cells; None: this process."""
    if executor == "dask":
        from fpemu.sweep.cluster import DaskWorkers

        return DaskWorkers(jobs, scheduler, worker_timeout)
    return None if jobs == 1 or _is_quick(job, todo, jobs) else LocalWorkers(min(jobs, len(todo)))


def _batches(job: Job, todo: Mapping[str, Cell], workers: Workers | None, device: Device) -> Batches:
    if not todo:
        yield []
    elif workers is None:
        yield from executors.here(job.evaluate, todo, device)
    else:
        yield from workers.evaluate(job.source(device), todo, job.cost)


def _is_quick(job: Job, todo: Mapping[str, Cell], jobs: int) -> bool:
    """Whether one process finishes a grid's cells before several would start and share them.

    False for an experiment, whose cost has no unit.
    """
    saved = 1 - 1 / jobs
    return all("metrics" in cell for cell in todo.values()) and saved * sum(map(job.cost, todo.values())) < _START


@contextlib.contextmanager
def _bar(job: Job, plan: Survey, progress: Progress | None) -> Iterator[Callable[[float], None]]:
    """A bar measured in work, not in cells, so that the time left is meaningful; yields the function that advances it.

    The bar is added by the first call of that function, and removed if an error ends the run without progress. Stored
    cells are left out: they would make the first estimate of the time left far too short.
    """
    if progress is None:
        yield lambda work: None
        return
    todo, tasks, total = plan.todo, list[Any](), 0.0

    def advance(work: float) -> None:
        nonlocal total
        if not tasks:
            name = _description(job.name if todo else f"{job.name} (stored)", progress)
            tasks.append(progress.add_task(name, total=math.fsum(map(job.cost, todo.values())) or 1.0))
        progress.advance(tasks[0], work if todo else 1.0)
        total += work

    try:
        yield advance
    except Exception:
        if tasks and not total:
            progress.remove_task(tasks[0])
        raise


def _description(text: str, progress: Progress) -> str:
    """A text that the columns of a display show as it is: a title may contain brackets."""
    from rich.markup import escape

    return escape(text) if any(getattr(column, "markup", False) for column in progress.columns) else text


def _plain(cell: Mapping[str, Any]) -> Row:
    """A cell's parameters: the names of its metrics are columns of the row."""
    return {name: value for name, value in cell.items() if name != "metrics"}


def _row(job: Job, cell: Mapping[str, Any], values: Values | Mapping[str, Any]) -> Row:
    row = _plain(cell)
    double = sorted(set(row) & set(values))
    if double:
        raise InputError(f"{job.name}: {', '.join(double)} is both a parameter and a number")
    return {**row, **values}
