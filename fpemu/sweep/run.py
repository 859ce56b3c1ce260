"""Evaluate the cells of a job that are not stored yet, and return all its rows.

Cells are evaluated in this process, by local worker processes, or by the workers of a Dask cluster: the executor is one
of `concurrent.futures`. With a scheduler's address an existing cluster is used, whose workers need the same fpemu and
NumPy, and a page of an experiments folder at the same path. Only the process of `run` writes to the store.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fpemu._system import cores
from fpemu.errors import InputError, unknown_name
from fpemu.mma.device import Device, resolve
from fpemu.sweep import store
from fpemu.sweep.store import Cell, Result, Store
from fpemu.sweep.workers import DaskWorkers, Job, Workers, evaluate_cell, evaluate_here, in_grid, visible

if TYPE_CHECKING:
    from rich.progress import Progress

Row = dict[str, Any]
EXECUTORS = ("processes", "dask")
_TRIAL = 1e9
"""Largest cost of a grid's cell that is evaluated for an estimate: at about a nanosecond each, a second."""
_START = 2e9
"""Cost of a grid's cells that takes as long as the start of a process, about two seconds."""


class CellError(RuntimeError):
    """Cells could not be evaluated; all others are stored."""


def run(
    job: Job,
    size: str = "quick",
    *,
    results: Store | None = None,
    jobs: int = 1,
    executor: str | None = None,
    scheduler: str | None = None,
    device: Device = "auto",
    gpus: Sequence[str] = (),
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
    results : Store, optional
        Finished cells are read from it, and each new one is written to it as soon as it is evaluated; default: the
        store in the folder of results.
    jobs : int
        Local processes, among which the cores are divided; 1 evaluates in this process, as does a grid whose missing
        cells take less time than the start of a process.
    executor : {None, "processes", "dask"}
        None: "processes", or "dask" if there is a scheduler.
    scheduler : str, optional
        Address of a Dask scheduler; executor "dask" without one starts a local cluster of ``jobs`` workers.
    device : {"auto", "cpu", "cuda"}
        Where products are computed, the same bits on either. "auto": in each process large ones on its GPU, if it has
        one that can be used, all else on the CPU. "cuda": all on the GPU, and no process without one takes part.
    gpus : sequence of str, optional
        GPUs over which the local processes are spread, as in ``CUDA_VISIBLE_DEVICES``; default: all that are visible.
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
        If ``jobs`` is not positive, the executor or the device is not available, or a cell needs
        more memory than this machine has.
    OSError
        If storing fails, or the Dask cluster is lost. Stored cells remain; the next run continues from them.
    KeyboardInterrupt
        On Ctrl-C. Stored cells remain as well.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}: at least 1 process is needed")
    if executor not in (None, *EXECUTORS):
        raise unknown_name("executor", executor, EXECUTORS)
    if executor == "processes" and scheduler is not None:
        raise InputError("a scheduler's address needs the executor dask")
    if scheduler is None:  # the workers of a scheduler may be on other machines
        resolve(device)
    done = set() if done is None else done
    with contextlib.ExitStack() as stack:
        results = stack.enter_context(Store()) if results is None else results
        plan = survey(job, size, results, done if fresh else None)
        todo = plan.todo
        if scheduler is None:
            check_memory(job, todo.values())
        chosen, gpus = bool(gpus), gpus or (visible(device) if scheduler is None and jobs > 1 else ())
        if workers is None and (executor == "dask" or scheduler is not None) and todo:
            workers = stack.enter_context(DaskWorkers(jobs, scheduler, gpus))
        elif workers is None and (chosen or (jobs > 1 and not _is_quick(job, todo, jobs))):
            workers = stack.enter_context(Workers(min(jobs, max(1, len(todo))), gpus))
        if workers is not None and todo:
            workers.connect()  # before the bar, so that an error is the only line
        advance = _bar(job, todo, progress)
        batches = (
            evaluate_here(job, todo, device) if workers is None else workers.evaluate(job, plan.code, todo, device)
        )
        for batch in stack.enter_context(contextlib.closing(batches)):  # ends the workers after an interrupt
            results.keep(batch)
            for name, cell, result in batch:
                plan.known[name] = result
                if result.values is not None:
                    done.add(name)
                advance(job.cost(cell), timed=result.seconds > 0)
    rows = []
    for name in plan.keys:
        cell, result = plan.cells[name], plan.known[name]
        numbers = {"error": result.error} if result.values is None else result.values
        rows.append({**{of: value for of, value in cell.items() if of != "metrics"}, **numbers})
    if not keep_failures:
        check_failures(job, rows)
    return rows


def check_failures(job: Job, rows: Sequence[Row]) -> None:
    """Raise CellError with the number of failed cells and the error of the first, if rows of a run failed."""
    failed = [dict(row) for row in rows if isinstance(row.get("error"), str)]
    if failed:
        error = failed[0].pop("error")
        first = store.canonical(failed[0])
        raise CellError(f"{job.name}: {len(failed)} of {len(rows)} cells failed; the first, {first}: {error}")


def default_jobs() -> int:
    """One process for each core, at most 4: a large cell can take 2 GB, and large products use several threads."""
    return min(4, cores())


# --- missing and stored cells
@dataclass(frozen=True)
class Survey:
    """The cells of a job, and the results that are stored for them."""

    keys: list[str]
    """The key of every cell, in the job's order; a repeated cell has a repeated key"""
    cells: dict[str, Cell]
    """The distinct cells by key"""
    known: dict[str, Result]
    """The numbers or the last error of each cell that was evaluated"""
    code: str
    """The digest of the code and data that the numbers depend on"""

    @property
    def stored(self) -> dict[str, Result]:
        """The results of the finished cells."""
        return {name: result for name, result in self.known.items() if result.values is not None}

    @property
    def failed_before(self) -> set[str]:
        """The keys of the cells whose last evaluation failed."""
        return self.known.keys() - self.stored.keys()

    @property
    def todo(self) -> dict[str, Cell]:
        """The cells to evaluate, in order."""
        stored = self.stored
        return {name: cell for name, cell in self.cells.items() if name not in stored}


def survey(job: Job, size: str, results: Store, only: Collection[str] | None = None) -> Survey:
    """Look up a job's cells in the store; with ``only``, rows under other keys count as missing."""
    listed, code = job.cells(size), store.code(job.sources)
    names = [store.key(job.evaluator, job.resolved(cell), code) for cell in listed]
    cells = dict(zip(names, listed, strict=True))
    return Survey(names, cells, results.read([name for name in cells if only is None or name in only]), code)


def check_memory(job: Job, cells: Iterable[Cell]) -> None:
    """Raise InputError if the matrices of a grid's cell do not fit into this machine's memory.

    The least that a cell needs are its operands in four bytes an entry, and the exact product in eight.
    """
    sizes = ((cell["M"], cell["N"], cell["K"]) for cell in cells if in_grid(cell))
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
    todo, stored = plan.todo, plan.stored
    work = sum(map(job.cost, todo.values()))
    timed = {name: result.seconds for name, result in stored.items() if result.seconds > 0}
    if timed:
        done = sum(job.cost(plan.cells[name]) for name in timed)
        seconds, basis = sum(timed.values()), f"from {len(timed)} stored cells"
    else:
        cell = whole = min(todo.values(), key=job.cost)
        while in_grid(cell) and job.cost(cell) > _TRIAL and cell["M"] * cell["N"] > 1:
            cell = {**cell, "M": max(1, cell["M"] // 2), "N": max(1, cell["N"] // 2)}
        evaluate_cell(job.evaluate, cell, device)  # compiles, and draws the operands that neighbours share
        start = time.perf_counter()
        values, error, _ = evaluate_cell(job.evaluate, cell, device)
        seconds = time.perf_counter() - start
        if values is None:
            return None, f"unknown: the cell {store.canonical(cell)} failed: {error}"
        done, basis = job.cost(cell), "from one cell measured now"
        if cell is not whole:
            basis += f", with M = {cell['M']}, N = {cell['N']} instead of {whole['M']}, {whole['N']}: likely too much"
    return seconds / done * work / min(jobs, cores(), len(todo)), basis


def _is_quick(job: Job, todo: Mapping[str, Cell], jobs: int) -> bool:
    """Whether one process finishes a grid's cells before several would start and share them."""
    return all(map(in_grid, todo.values())) and (1 - 1 / jobs) * sum(map(job.cost, todo.values())) < _START


def _bar(job: Job, todo: Mapping[str, Cell], progress: Progress | None) -> Callable[..., None]:
    """Show a bar measured in work, so that the time left is meaningful, and return the function to advance it.

    Stored cells are left out: they would make the first estimate of the time left far too short. Cells that are not
    timed (`Result`) would make it far too long: their work is subtracted from the total.
    """
    if progress is None:
        return lambda work, timed=True: None
    total = math.fsum(map(job.cost, todo.values()))
    bar = progress.add_task(job.name if todo else f"{job.name} (stored)", total=total or 1.0)
    if not todo:
        progress.advance(bar)

    def advance(work: float, timed: bool = True) -> None:
        nonlocal total
        if timed or work >= total:
            progress.advance(bar, work)
        else:
            total -= work
            progress.update(bar, total=total)

    return advance
