"""Evaluate the cells of a job that are not stored yet, in this process or by an executor, and return all its rows."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fpemu.errors import InputError, unknown_name
from fpemu.mma.device import Device, resolve
from fpemu.parallel import cores
from fpemu.sweep import store
from fpemu.sweep.workers import DaskWorkers, Loader, Workers, here

if TYPE_CHECKING:
    from rich.progress import Progress

    from fpemu.sweep.store import Cell, Known, Store

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
    """The attributes of a page or a `Grid` that a run uses.

    Attributes
    ----------
    name : str
        Name in messages and beside the progress bar.
    evaluator : str
        Dotted name of the function that evaluates cells: part of the keys.
    sources : tuple of Path
        Files and folders, beside the numeric modules of the package, whose bytes are part of the keys. They are the
        same in every process, and `fpemu.files.seen` has recorded them before their execution.
    loader : tuple of a callable and its arguments
        In a worker process, the call returns an object with ``sources`` and ``evaluate``.

    Methods
    -------
    cells(size)
        The parameters of every cell.
    resolved(cell)
        A cell with the defaults of all omitted options, as it enters the key.
    evaluate(cell, device)
        The numbers of one cell.
    cost(cell)
        The relative work of a cell.
    """

    @property
    def name(self) -> str: ...
    @property
    def evaluator(self) -> str: ...
    @property
    def sources(self) -> tuple[Path, ...]: ...
    @property
    def loader(self) -> Loader: ...
    def cells(self, size: str) -> list[Cell]: ...
    def resolved(self, cell: Mapping[str, Any]) -> Cell: ...
    def evaluate(self, cell: Cell, device: Device = "cpu") -> Mapping[str, Any]: ...
    def cost(self, cell: Mapping[str, Any]) -> float: ...


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
    executor = check_executor(executor, scheduler)
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
        if workers is None and executor == "dask" and todo:
            workers = stack.enter_context(DaskWorkers(jobs, scheduler, worker_timeout))
        elif workers is None and jobs > 1 and not _is_quick(job, todo, jobs):
            workers = stack.enter_context(Workers(min(jobs, len(todo))))
        advance = stack.enter_context(_bar(job, todo, progress))
        batches = here(job, todo, device) if workers is None else workers.evaluate(job, plan.code, todo, device)
        for batch in stack.enter_context(contextlib.closing(batches)):  # ends the workers after an interrupt
            for entry in batch:
                _row(job, entry.cell, entry.values or {})
            results.keep(batch)
            for entry in batch:
                if entry.values is None:
                    failed[entry.key] = entry.error
                else:
                    plan.stored[entry.key] = store.Known(dict(entry.values), None, entry.seconds)
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
    """Return the error with the number of failed cells and the error of the first."""
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
    code: str
    """The digest of the code and data that the numbers depend on"""

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
    listed, code = job.cells(size), store.code(job.sources)
    names = [store.key(job.evaluator, job.resolved(cell), code) for cell in listed]
    cells = dict(zip(names, listed, strict=True))
    known, damaged = results.read(list(cells))
    if damaged:
        _LOG.warning(
            "%s: %d of %d stored rows are damaged and count as missing; the first is of the cell %s",
            results.path,
            len(damaged),
            len(known) + len(damaged),
            store.canonical(cells[damaged[0]]),
        )
    stored = {name: row for name, row in known.items() if row.error is None}
    return Survey(names, cells, stored, {name: row.error for name, row in known.items() if row.error is not None}, code)


def check_memory(job: Job, cells: Iterable[Cell]) -> None:
    """Raise InputError if the matrices of a grid's cell do not fit into this machine's memory.

    The least that a cell needs are its operands in four bytes an entry, and the exact product in eight.
    """
    sizes = ((cell["M"], cell["N"], cell["K"]) for cell in cells if _in_grid(cell))
    needed, M, N, K = max(((4.0 * (M + N) * K + 8.0 * M * N, M, N, K) for M, N, K in sizes), default=(0.0, 0, 0, 0))
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if needed > available:
        raise InputError(
            f"{job.name}: the matrices of M×N×K = {M}×{N}×{K} take {needed / 1e9:.4g} GB, and this machine has "
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
        cell = whole = min(todo.values(), key=job.cost)
        while _in_grid(cell) and job.cost(cell) > _TRIAL and cell["M"] * cell["N"] > 1:
            cell = {**cell, "M": max(1, cell["M"] // 2), "N": max(1, cell["N"] // 2)}
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


def _in_grid(cell: Cell) -> bool:
    """Whether a cell is one of a `Grid`, whose sizes are those of matrices and whose cost is in nanoseconds."""
    return "metrics" in cell


def _is_quick(job: Job, todo: Mapping[str, Cell], jobs: int) -> bool:
    """Whether one process finishes a grid's cells before several would start and share them."""
    return all(map(_in_grid, todo.values())) and (1 - 1 / jobs) * sum(map(job.cost, todo.values())) < _START


def check_executor(executor: str | None, scheduler: str | None) -> str:
    """Return the executor's name, by default the scheduler's, or raise InputError."""
    if executor is not None and executor not in EXECUTORS:
        raise unknown_name("executor", executor, EXECUTORS)
    if executor == "processes" and scheduler is not None:
        raise InputError("a scheduler's address needs the executor dask")
    return executor or ("processes" if scheduler is None else "dask")


@contextlib.contextmanager
def _bar(job: Job, todo: Mapping[str, Cell], progress: Progress | None) -> Iterator[Callable[[float], None]]:
    """Show a bar measured in work, not in cells, so that the time left is meaningful; yield the function to advance it.

    Stored cells are left out: they would make the first estimate of the time left far too short. An error before the
    first finished cell removes the bar.
    """
    if progress is None:
        yield lambda work: None
        return
    text = job.name if todo else f"{job.name} (stored)"
    if any(getattr(column, "markup", False) for column in progress.columns):
        from rich.markup import escape

        text = escape(text)  # a title may contain brackets
    bar, total = progress.add_task(text, total=math.fsum(map(job.cost, todo.values())) or 1.0), 0.0

    def advance(work: float) -> None:
        nonlocal total
        total += work
        progress.advance(bar, work)

    try:
        yield advance
    except Exception:
        if not total:
            progress.remove_task(bar)
        raise
    if not todo:
        advance(1.0)


def _plain(cell: Mapping[str, Any]) -> Row:
    """Return a cell's parameters: the names of its metrics are columns of the row."""
    return {name: value for name, value in cell.items() if name != "metrics"}


def _row(job: Job, cell: Mapping[str, Any], values: Mapping[str, Any]) -> Row:
    row = _plain(cell)
    double = sorted(row.keys() & values.keys())
    if double:
        raise InputError(f"{job.name}: {', '.join(double)} is both a parameter and a number")
    return {**row, **values}
