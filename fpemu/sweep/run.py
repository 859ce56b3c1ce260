"""Evaluate the cells of an experiment or a grid that are not in the store yet, and give all its rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from fpemu import devices
from fpemu.devices import Device
from fpemu.errors import InputError
from fpemu.mma.threads import cores
from fpemu.sweep import executors, store

if TYPE_CHECKING:
    from rich.progress import Progress

    from fpemu.sweep.store import Cell, Entry, Known, Store, Values

Row = dict[str, Any]
EXECUTORS = ("processes", "dask")
_TRIAL = 1e9
"""Largest cost of a grid's cell that is evaluated for an estimate: at about a nanosecond each, a second."""


class CellError(RuntimeError):
    """Cells could not be evaluated; all others are stored."""


class Job(Protocol):
    """What can be run: an `Experiment` or a `Grid`."""

    @property
    def name(self) -> str: ...
    @property
    def evaluator(self) -> str: ...
    @property
    def code(self) -> str: ...
    def cells(self, size: str) -> list[Cell]: ...
    def evaluate(self, cell: Mapping[str, Any]) -> Values: ...
    def cost(self, cell: Mapping[str, Any]) -> float: ...


def run(
    job: Job,
    size: str = "quick",
    *,
    results: Store,
    jobs: int = 1,
    executor: str | None = None,
    scheduler: str | None = None,
    device: Device = "auto",
    progress: Progress | None = None,
    keep_failures: bool = False,
    fresh: bool = False,
    done: set[str] | None = None,
) -> list[Row]:
    """Evaluate what is missing and give every row, in the order of the cells.

    Parameters
    ----------
    job : Experiment or Grid
    size : {"quick", "full"}
        Of an experiment; a grid has one size.
    results : Store
        Finished cells are read from it, and each new one is written to it as soon as it is known.
    jobs : int
        Local processes; 1 evaluates here. The cores are shared out among them.
    executor : {None, "processes", "dask"}
        None: "processes", or "dask" if there is a scheduler.
    scheduler : str, optional
        Address of a Dask scheduler; executor "dask" without one starts a local cluster of ``jobs`` workers.
    device : {"auto", "cpu", "cuda"}
        Where products are computed, the same bits on either. "auto": in each process large ones on its GPU, if it has
        one that can be used, all else on the CPU. "cuda": all on the GPU, and no process without one takes part.
    progress : rich.progress.Progress, optional
        A running progress display to add a bar to.
    keep_failures : bool
        Give rows with the text "error" instead of numbers for the cells that failed, instead of raising.
    fresh : bool
        Evaluate again what is stored; each cell's old numbers stay until its new ones replace them.
    done : set of str, optional
        Keys that a fresh run does not evaluate again, since one before it did; those that it evaluates are added.

    Returns
    -------
    list of dict
        A cell's parameters (without the list of a grid's metrics) and its numbers in one dict.

    Raises
    ------
    CellError
        If cells failed, after all the others have been evaluated. A later run tries them again.
    InputError
        If ``jobs`` is not positive, the executor or the device cannot be had, or a number has the name of a parameter.
    OSError
        If results cannot be stored. What is stored stays, the next run goes on from there.
    KeyboardInterrupt
        On Ctrl-C: likewise.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}: at least 1 process is needed")
    if device != "auto" and not (device == "cuda" and scheduler is not None):  # whose workers are other machines
        devices.resolve(device)
    plan = survey(job, size, results)
    done = set() if done is None else done
    plan = plan.afresh(done) if fresh else plan
    failed: dict[str, str] = {}
    advance = _bar(job, plan, progress)
    # on an interrupt here too, the processes end now and not when the garbage goes
    with contextlib.closing(_batches(job, plan.todo, jobs, executor, scheduler, device)) as source:
        for batch in source:
            for entry in batch:
                _row(job, entry.cell, entry.values or {})
            results.keep(job.evaluator, job.code, batch)
            for entry in batch:
                if entry.values is None:
                    failed[entry.key] = entry.error
                else:
                    plan.stored[entry.key] = store.Known(dict(entry.values), entry.seconds)
                    done.add(entry.key)
                advance(entry)
    if failed and not keep_failures:
        raise failure(job.name, [(plan.cells[name], error) for name, error in failed.items()], len(plan.cells))
    return [
        {**_plain(cell), "error": failed[name]} if name in failed else _row(job, cell, plan.stored[name].values)
        for name, cell in zip(plan.keys, plan.listed, strict=True)
    ]


def failure(name: str, failed: Sequence[tuple[Mapping[str, Any], str]], total: int) -> CellError:
    """The error that says how many cells failed, and why the first did."""
    cell, error = failed[0]
    return CellError(
        f"{name}: {len(failed)} of {total} cells failed; the first, {store.canonical(dict(cell))}: {error}"
    )


def default_jobs() -> int:
    """A process a core, but at most 4: a large cell can take 2 GB, and large products use several threads anyway."""
    return min(4, cores())


def keys(job: Job, cells: list[Cell]) -> list[str]:
    """The keys of a job's cells in the store."""
    evaluator, code = job.evaluator, job.code
    return [store.key(evaluator, cell, code) for cell in cells]


# --- what there is to do
@dataclass(frozen=True)
class Plan:
    """The cells of a job, and which of them are stored."""

    listed: list[Cell]
    """As the job lists them"""
    keys: list[str]
    """Their keys, in the same order"""
    cells: dict[str, Cell]
    """Each once, by key"""
    stored: dict[str, Known]
    failed_before: dict[str, str]
    """The error of cells that failed the last time"""

    @property
    def todo(self) -> dict[str, Cell]:
        """The cells to evaluate, in order."""
        return {name: cell for name, cell in self.cells.items() if name not in self.stored}

    def afresh(self, but: Collection[str] = ()) -> Plan:
        """As if nothing were stored but these."""
        stored = {name: known for name, known in self.stored.items() if name in but}
        return replace(self, stored=stored, failed_before={})


def survey(job: Job, size: str, results: Store) -> Plan:
    """What a run would do."""
    listed = job.cells(size)
    names = keys(job, listed)
    cells = dict(zip(names, listed, strict=True))
    found = results.find(list(cells)).items()
    stored = {name: known for name, known in found if _fits(cells[name], known.values)}
    return Plan(listed, names, cells, stored, results.failures(list(cells)))


def _fits(cell: Mapping[str, Any], values: Values) -> bool:
    """Whether stored numbers can be this cell's: those that a grid asks for, and none in the place of a parameter."""
    wanted = cell.get("metrics", values)
    return not values.keys() & cell.keys() and (not isinstance(wanted, list) or values.keys() == set(wanted))


def estimate(job: Job, plan: Plan, jobs: int) -> tuple[float | None, str]:
    """Seconds that the missing cells of a plan will take, at least one, and what that rests on.

    The seconds of stored cells of the same job, or those of its cheapest cell measured now (on the device that
    `fpemu.devices.on` says), grow as `cost` does. Of a large cell of a grid a part of the rows and columns is measured.
    The number is None if that fails.
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
            job.evaluate(cell)  # compiles, and draws the operands that neighbours share
            start = time.perf_counter()
            job.evaluate(cell)
        except (Exception, SystemExit) as problem:
            return None, f"unknown: the cell {store.canonical(cell)} failed: {problem}"
        done, seconds = job.cost(cell), time.perf_counter() - start
        basis = "from one cell measured now"
        if cell is not whole:
            basis += f", with M = {cell['M']}, N = {cell['N']} instead of {whole['M']}, {whole['N']}: likely too much"
    return seconds / done * work / min(jobs, cores(), len(todo)), basis


def _trial(job: Job, cell: Cell) -> Cell:
    """A cell of a grid with M and N halved until it is cheap; a page's, whose cost has no unit, as it is."""
    while "metrics" in cell and job.cost(cell) > _TRIAL and cell["M"] * cell["N"] > 1:
        cell = {**cell, "M": max(1, cell["M"] // 2), "N": max(1, cell["N"] // 2)}
    return cell


def _batches(
    job: Job, todo: dict[str, Cell], jobs: int, executor: str | None, scheduler: str | None, device: Device
) -> Any:
    if executor is None:
        executor = "processes" if scheduler is None else "dask"
    if executor not in EXECUTORS:
        raise InputError(f"unknown executor {executor!r}: known: {', '.join(EXECUTORS)}")
    if executor == "processes" and scheduler is not None:
        raise InputError("a scheduler's address needs the executor dask")
    if not todo:
        return _nothing()
    if executor == "processes" and jobs == 1:
        return executors.here(job.evaluate, todo, device)
    root = getattr(job, "root", None)
    folder, page = (None, None) if root is None else (str(root), job.name)
    source = executors.Source(job.code, folder, page, device=device)
    if executor == "processes":
        return executors.processes(source, todo, jobs)
    from fpemu.sweep import cluster

    return cluster.workers(source, todo, jobs, scheduler)


def _nothing() -> executors.Batches:
    yield from ()


def _bar(job: Job, plan: Plan, progress: Progress | None) -> Callable[[Entry], None]:
    """A bar measured in work, not in cells, so that the time left means something; gives the function to advance it.

    Stored cells are left out: they would make the first estimate of the time left far too short.
    """
    if progress is None:
        return lambda entry: None
    todo = plan.todo
    task = progress.add_task(
        job.name if todo else f"{job.name} (stored)", total=sum(job.cost(cell) for cell in todo.values()) or 1.0
    )
    if not todo:
        progress.advance(task, 1.0)
    return lambda entry: progress.advance(task, job.cost(entry.cell))


def _plain(cell: Mapping[str, Any]) -> Row:
    """A cell without what is no parameter of it: the names of the metrics are columns."""
    return {name: value for name, value in cell.items() if name != "metrics"}


def _row(job: Job, cell: Mapping[str, Any], values: Values | Mapping[str, Any]) -> Row:
    row = _plain(cell)
    double = sorted(set(row) & set(values))
    if double:
        raise InputError(f"{job.name}: {', '.join(double)} is both a parameter and a number")
    return {**row, **values}
