"""Evaluate the cells of a job that are not stored yet, and return all its rows.

Cells are evaluated in this process, by local worker processes, or by the workers of a Dask cluster: the executor is one
of `concurrent.futures`. With a scheduler's address an existing cluster is used, whose workers need the same fpemu and
NumPy, and a page of an experiments folder at the same path. Only the process of `run` writes to the store.

An exception in a cell is stored as its error, and the other cells continue. A worker process that dies (out of memory,
for example) takes the submitted cells with it: these cells are evaluated again one at a time, and a cell whose worker
dies a second time has failed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from fpemu._system import cores, threads
from fpemu.errors import InputError, require, unknown_name
from fpemu.mma.device import Device, resolve
from fpemu.sweep import store
from fpemu.sweep.store import Cell, Result, Store

if TYPE_CHECKING:
    from rich.progress import Progress

Row = dict[str, Any]
Loader = tuple[Callable[..., Any], tuple[Any, ...]]
Batch = list[tuple[str, Cell, Result]]
EXECUTORS = ("processes", "dask")
DIED = "its worker process died twice: killed, or out of memory"
PATIENCE = 5.0
"""Seconds that a Dask scheduler, and then its first worker, have to answer."""
_TRIAL = 1e9
"""Largest cost of a grid's cell that is evaluated for an estimate: at about a nanosecond each, a second."""
_START = 2e9
"""Cost of a grid's cells that takes as long as the start of a process, about two seconds."""
_BATCH_SECONDS = 0.05
"""Quick cells of this process are stored together for this long: a transaction costs milliseconds."""
_WATCH_SECONDS = 2.0
"""Time without a finished cell after which the threads of a Dask cluster are counted again: an error if it is lost."""


class CellError(RuntimeError):
    """Cells could not be evaluated; all others are stored."""


class Job(Protocol):
    """The attributes of a page or a `Grid` that a run uses.

    ``name`` stands in messages and beside the progress bar, and ``evaluator``, the name of the function that evaluates
    cells, in the keys. ``sources`` are the files and folders, beside the numeric modules of the package, whose bytes
    are part of the keys: the same in every process, and recorded by `fpemu._system.seen` before their execution.
    ``loader`` is a callable with its arguments: in a worker process it returns an object with ``sources`` and
    ``evaluate``. ``resolved`` returns a cell with the defaults of all omitted options, as it enters the key, and
    ``cost`` its relative work.
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
    results: Store | None = None,
    jobs: int = 1,
    executor: str | None = None,
    scheduler: str | None = None,
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
        if workers is None and (executor == "dask" or scheduler is not None) and todo:
            workers = stack.enter_context(DaskWorkers(jobs, scheduler))
        elif workers is None and jobs > 1 and not _is_quick(job, todo, jobs):
            workers = stack.enter_context(Workers(min(jobs, len(todo))))
        if workers is not None and todo:
            workers.connect()  # before the bar, so that an error is the only line
        advance = _bar(job, todo, progress)
        batches = _here(job, todo, device) if workers is None else workers.evaluate(job, plan.code, todo, device)
        for batch in stack.enter_context(contextlib.closing(batches)):  # ends the workers after an interrupt
            results.keep(batch)
            for name, cell, result in batch:
                plan.known[name] = result
                if result.values is not None:
                    done.add(name)
                advance(job.cost(cell))
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
    todo, stored = plan.todo, plan.stored
    work = sum(map(job.cost, todo.values()))
    if stored:
        done = sum(job.cost(plan.cells[name]) for name in stored)
        seconds, basis = sum(result.seconds for result in stored.values()), f"from {len(stored)} stored cells"
    else:
        cell = whole = min(todo.values(), key=job.cost)
        while _in_grid(cell) and job.cost(cell) > _TRIAL and cell["M"] * cell["N"] > 1:
            cell = {**cell, "M": max(1, cell["M"] // 2), "N": max(1, cell["N"] // 2)}
        _evaluate(job.evaluate, cell, device)  # compiles, and draws the operands that neighbours share
        values, error, seconds = _evaluate(job.evaluate, cell, device)
        if values is None:
            return None, f"unknown: the cell {store.canonical(cell)} failed: {error}"
        done, basis = job.cost(cell), "from one cell measured now"
        if cell is not whole:
            basis += f", with M = {cell['M']}, N = {cell['N']} instead of {whole['M']}, {whole['N']}: likely too much"
    return seconds / done * work / min(jobs, cores(), len(todo)), basis


def _in_grid(cell: Cell) -> bool:
    """Whether a cell is one of a `Grid`, whose sizes are those of matrices and whose cost is in nanoseconds."""
    return "metrics" in cell


def _is_quick(job: Job, todo: Mapping[str, Cell], jobs: int) -> bool:
    """Whether one process finishes a grid's cells before several would start and share them."""
    return all(map(_in_grid, todo.values())) and (1 - 1 / jobs) * sum(map(job.cost, todo.values())) < _START


def _bar(job: Job, todo: Mapping[str, Cell], progress: Progress | None) -> Callable[[float], None]:
    """Show a bar measured in work, so that the time left is meaningful, and return the function to advance it.

    Stored cells are left out: they would make the first estimate of the time left far too short.
    """
    if progress is None:
        return lambda work: None
    total = math.fsum(map(job.cost, todo.values()))
    bar = progress.add_task(job.name if todo else f"{job.name} (stored)", total=total or 1.0)
    if not todo:
        progress.advance(bar)
    return lambda work: progress.advance(bar, work)


# --- the evaluation
def _evaluate(evaluate: Callable[..., Mapping[str, Any]], cell: Cell, device: Device) -> Result:
    """Evaluate one cell; an error is returned as text, since not every exception can be pickled."""
    start = time.perf_counter()
    try:
        values, error = {name: float(value) for name, value in evaluate(cell, device).items()}, ""
        double = sorted(cell.keys() & values.keys())
        if double:
            raise InputError(f"{', '.join(double)} is both a parameter and a number")
    except (Exception, SystemExit) as problem:
        kind = "" if isinstance(problem, InputError) else f"{type(problem).__name__}: "
        return Result(None, " ".join(f"{kind}{problem}".split()), time.perf_counter() - start)
    return Result(values, error, time.perf_counter() - start)


def _here(job: Job, todo: Mapping[str, Cell], device: Device) -> Generator[Batch, None, None]:
    """Evaluate one cell after another in this process."""
    batch, since = Batch(), time.perf_counter()
    try:
        for name, cell in todo.items():
            batch.append((name, cell, _evaluate(job.evaluate, cell, device)))
            if time.perf_counter() - since > _BATCH_SECONDS:
                yield batch
                batch, since = [], time.perf_counter()
    except KeyboardInterrupt:
        yield batch  # finished cells are stored before the interrupt is raised
        raise
    yield batch


@functools.lru_cache(maxsize=8)
def _loaded(loader: Loader) -> tuple[Callable[..., Mapping[str, Any]], tuple[str, str]]:
    """In a worker: the function of a job, and the versions of the code and of NumPy there."""
    load, arguments = loader
    job = load(*arguments)
    return job.evaluate, (store.code(job.sources), np.__version__)


def _work(loader: Loader, cell: Cell, device: Device) -> tuple[tuple[str, str], Result]:
    """In a worker: evaluate a cell."""
    if device == "cuda":
        resolve("cuda")
    evaluate, versions = _loaded(loader)
    return versions, _evaluate(evaluate, cell, device)


class Workers:
    """Local worker processes, started by `connect` and kept until `close`, each with its share of the cores.

    Parameters
    ----------
    jobs : int
        Number of processes.
    """

    _death: type[BaseException] = BrokenProcessPool
    """Raised by a future whose worker died."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def connect(self) -> Executor:
        """Return the executor, started where necessary.

        Raises
        ------
        InputError
            If no worker starts.
        """
        if self._pool is None:
            # spawn: a fork would copy the compiled kernels' thread pool in an unusable state
            context = multiprocessing.get_context("spawn")
            with _starting(self.jobs):
                self._pool = ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_end_with_parent)
                started = [self._pool.submit(os.getpid) for _ in range(self.jobs)]  # each starts a process
            try:
                started[0].result()
            except BrokenProcessPool as problem:
                raise InputError(
                    "worker processes end as soon as they start; a script that runs a sweep with jobs > 1 must do so "
                    "under if __name__ == '__main__'"
                ) from problem
        return self._pool

    def evaluate(self, job: Job, code: str, todo: Mapping[str, Cell], device: Device) -> Generator[Batch, None, None]:
        """Evaluate cells and yield their results as they arrive.

        Raises
        ------
        InputError, ConnectionError
            A worker's code differs, or it lacks the page or a GPU; the scheduler is lost.
        """
        left = dict(todo)
        try:
            while left:
                for name in (yield from self._round(job, code, left, device)):
                    cell = left.pop(name)
                    if (yield from self._round(job, code, {name: cell}, device)):
                        yield [(name, cell, Result(None, DIED, 0.0))]
        except BaseException:  # on Ctrl-C, or when results cannot be stored: do not wait for long cells
            self.close(at_once=True)
            raise

    def _round(self, job: Job, code: str, left: dict[str, Cell], device: Device) -> Generator[Batch, None, list[str]]:
        """Evaluate the cells of ``left`` and remove those that finish; return the keys submitted when a worker died."""
        pool, queue, lost = self.connect(), list(reversed(left.items())), list[str]()
        waiting: dict[Future[tuple[tuple[str, str], Result]], str] = {}
        while waiting or (queue and not lost):
            window = 3 * max(1, self._threads())  # few cells are submitted: a dying worker takes them with it
            while queue and len(waiting) < window and not lost:
                name, cell = queue.pop()
                try:
                    waiting[pool.submit(_work, job.loader, cell, device)] = name
                except self._death:
                    lost.append(name)
            batch = []
            for future in wait(waiting, timeout=_WATCH_SECONDS, return_when=FIRST_COMPLETED).done:
                name = waiting.pop(future)
                try:
                    versions, result = future.result()
                except self._death:
                    lost.append(name)
                    continue
                except Exception as problem:
                    raise InputError(f"a worker cannot evaluate the cells: {problem}") from problem
                if versions != (code, np.__version__):
                    raise InputError(
                        f"a worker has other code than this process: code {versions[0][:12]}, NumPy {versions[1]} "
                        f"there, {code[:12]}, {np.__version__} here; install the same versions on all machines"
                    )
                batch.append((name, left.pop(name), result))
            if batch:
                yield batch
        if lost:
            self._replace()
        return lost

    def _replace(self) -> None:
        """End the pool, which is of no use after the death of a worker."""
        self.close(at_once=True)

    def _threads(self) -> int:
        """The number of cells that the workers evaluate at the same time."""
        return self.jobs

    def close(self, *, at_once: bool = False) -> None:
        """End the workers, with ``at_once`` in the middle of a cell; the next `evaluate` starts others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for process in list(pool._processes.values()) if at_once and pool._processes else ():
                process.terminate()
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DaskWorkers(Workers):
    """The workers of a Dask cluster.

    Parameters
    ----------
    jobs : int
        Local workers of one thread each, if there is no ``scheduler``.
    scheduler : str, optional
        Address such as "tcp://10.0.0.1:8786".
    """

    def __init__(self, jobs: int, scheduler: str | None) -> None:
        super().__init__(jobs)
        self.scheduler = scheduler
        self._stack = contextlib.ExitStack()
        self._client: Any = None

    def connect(self) -> Any:
        require("distributed")
        import dask
        import distributed
        from distributed.scheduler import KilledWorker

        self._death = KilledWorker
        if self._client is None:
            self._stack.enter_context(_silent_dask())
            options: dict[str, Any] = {"address": self.scheduler}
            if self.scheduler is None:  # the client starts a cluster
                options = {"n_workers": self.jobs, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
                options |= {"processes": True, "env": _share(self.jobs), "silence_logs": logging.CRITICAL}
            try:
                # a task whose worker dies fails at once: its cell is evaluated again alone
                with dask.config.set({"distributed.scheduler.allowed-failures": 0}), _starting(self.jobs):
                    if self.scheduler is not None:  # a client with a wrong address takes long to close
                        distributed.comm.resolve_address(self.scheduler)
                    client = distributed.Client(**options, timeout=PATIENCE, set_as_default=False)
                self._stack.enter_context(client)
                client.wait_for_workers(1, timeout=PATIENCE)
            except (RuntimeError, OSError, ValueError) as problem:
                self.close()
                where = f"at {self.scheduler}" if self.scheduler else "on this machine"
                raise InputError(f"no Dask scheduler answers {where}, or it has no worker: {problem}") from problem
            self._client = client
        return self._client.get_executor(pure=False)

    def _round(self, job: Job, code: str, left: dict[str, Cell], device: Device) -> Generator[Batch, None, list[str]]:
        try:
            return (yield from super()._round(job, code, left, device))
        except Exception as problem:
            if self._client is None or self._client.status == "running":
                raise
            raise ConnectionError("lost the Dask scheduler; finished cells are stored, run again later") from problem

    def _replace(self) -> None:
        """The cluster itself starts a worker in place of one that died."""

    def _threads(self) -> int:
        return sum(self._client.nthreads().values())  # workers may join and leave

    def close(self, *, at_once: bool = False) -> None:
        self._client = None
        self._stack.close()


@contextlib.contextmanager
def _silent_dask() -> Iterator[None]:
    """Silence Dask's loggers, whose errors are raised as well, and restore their levels at the end."""
    packages = ("distributed", "tornado", "asyncio")
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in packages]
    before = {name: logging.getLogger(name).level for name in {*packages, *names}}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


# --- the start of processes
def _share(jobs: int) -> dict[str, str]:
    """Return the environment variables of ``jobs`` processes that run side by side.

    Each process gets its share of the cores, at most ``FPEMU_THREADS`` (BLAS reads the variable once, when loaded);
    ``FPEMU_PROCESSES`` holds the number of processes that share a GPU, for `fpemu.gpu.emulation.chains`.
    """
    names = ("FPEMU_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(max(1, min(threads(), cores() // jobs)))) | {"FPEMU_PROCESSES": str(jobs)}


@contextlib.contextmanager
def _starting(jobs: int) -> Iterator[None]:
    """Start worker processes in this context, with their share of the cores.

    They inherit that SIGINT is ignored, so that only this process handles Ctrl-C, though not within this context.
    """
    before = dict(os.environ)
    main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(_share(jobs))
    try:
        yield
    finally:
        for name in _share(jobs):
            os.environ.pop(name) if name not in before else os.environ.update({name: before[name]})
        if main:
            signal.signal(signal.SIGINT, handler)


def _end_with_parent() -> None:
    """In a worker: end as soon as the parent is gone, since a killed parent cannot stop its workers."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
