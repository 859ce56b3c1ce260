"""The evaluation of cells: in this process, by local worker processes, or by the workers of a Dask cluster.

An exception in a cell is its error, and the other cells continue. A worker process that dies (out of memory, for
example) takes the submitted cells with it: these cells are evaluated again one at a time, and a cell whose worker dies
a second time has failed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from fpemu._system import cores, threads
from fpemu.errors import InputError, require
from fpemu.mma.device import Device, gpu_count, resolve
from fpemu.sweep import store
from fpemu.sweep.store import Cell, Result

Loader = tuple[Callable[..., Any], tuple[Any, ...]]
Batch = list[tuple[str, Cell, Result]]
DIED = "its worker process died twice: killed, or out of memory"
PATIENCE = 5.0
"""Seconds that a Dask scheduler, and then its first worker, have to answer."""
_BATCH_SECONDS = 0.05
"""Quick cells are stored together for this long: a transaction costs milliseconds."""
_GATHER_SECONDS = 0.02
"""The same for results of workers, which evaluate others meanwhile."""
_TASK = 5e7
"""Cost of the quick cells of a grid that a worker evaluates as one task: as long as they are stored together."""
_WINDOW = 6
"""Quick tasks that a worker has at a time; of others 2, so that the last ones are divided among the workers."""
_JOIN_SECONDS = 0.1
"""Time between two looks for workers where a cluster has none."""
_WATCH_SECONDS = 2.0
"""Time without a finished cell after which the threads of a Dask cluster are counted again: an error if it is lost."""


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


def in_grid(cell: Cell) -> bool:
    """Whether a cell is one of a `Grid`, whose sizes are those of matrices and whose cost is in nanoseconds."""
    return "metrics" in cell


# --- the evaluation
def evaluate_cell(evaluate: Callable[..., Mapping[str, Any]], cell: Cell, device: Device) -> Result:
    """Evaluate one cell; an error is returned as text, since not every exception can be pickled."""
    start, kernel = time.perf_counter(), (cell.get("scheme"), str(cell.get("hardware")), device)
    try:
        values, error = {name: float(value) for name, value in evaluate(cell, device).items()}, ""
        double = sorted(cell.keys() & values.keys())
        if double:
            raise InputError(f"{', '.join(double)} is both a parameter and a number")
    except (Exception, SystemExit) as problem:
        kind = "" if isinstance(problem, InputError) else f"{type(problem).__name__}: "
        return Result(None, " ".join(f"{kind}{problem}".split()), time.perf_counter() - start)
    first = kernel not in _COMPILED
    _COMPILED.add(kernel)
    return Result(values, error, 0.0 if first else time.perf_counter() - start)


_COMPILED: set[tuple[Any, ...]] = set()
"""Scheme, hardware and device of the cells that this process has evaluated"""


def evaluate_here(job: Job, todo: Mapping[str, Cell], device: Device) -> Generator[Batch, None, None]:
    """Evaluate one cell after another in this process."""
    batch, since = Batch(), time.perf_counter()
    try:
        for name, cell in todo.items():
            batch.append((name, cell, evaluate_cell(job.evaluate, cell, device)))
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


def _work(
    loader: Loader, cells: Sequence[Cell], device: Device, gpu: str | None
) -> tuple[tuple[str, str], list[Result]]:
    """In a worker: evaluate cells; ``gpu`` is the worker's GPU, None for all that are visible."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # CUDA reads it once, in the first task
    if device == "cuda":
        resolve("cuda")
    evaluate, versions = _loaded(loader)
    return versions, [evaluate_cell(evaluate, cell, device) for cell in cells]


def _shared_operands(item: tuple[str, Cell]) -> Any:
    """The operands of a grid's cell; the key of a page's cell, which shares none."""
    name, cell = item
    if not in_grid(cell):
        return name
    return [value for of, value in cell.items() if of in ("M", "N", "K", "seed") or of.partition(".")[0] == "inputs"]


class _Queues:
    """The cells of a run, which a worker takes from one set of operands before it begins another.

    Operands and their exact product are then computed once for a set. At the end, a worker without cells takes half of
    the longest queue.
    """

    def __init__(self, job: Job, todo: Mapping[str, Cell]) -> None:
        self._cost = job.cost
        self._sets = deque(deque(cells) for _, cells in itertools.groupby(todo.items(), _shared_operands))
        self._of: dict[Any, deque[tuple[str, Cell]]] = {}

    def __bool__(self) -> bool:
        return bool(self._sets) or any(self._of.values())

    def task(self, slot: Any) -> list[tuple[str, Cell]]:
        """Return the next cells of a worker: one, or some quick cells of a grid; none at the end."""
        queue = self._of.setdefault(slot, deque())
        if not queue and self._sets:
            queue = self._of[slot] = self._sets.popleft()
        elif not queue:
            longest = max(self._of.values(), key=len)
            queue.extendleft(longest.pop() for _ in range((len(longest) + 1) // 2))
        cells, cost = list[tuple[str, Cell]](), 0.0
        while queue and (not cells or (cost < _TASK and in_grid(queue[0][1]))):
            cells.append(queue.popleft())
            cost += self._cost(cells[-1][1])
        return cells


class Workers:
    """Local worker processes, started by `connect` and kept until `close`, each with its share of the cores.

    Parameters
    ----------
    jobs : int
        Number of processes.
    gpus : sequence of str
        GPUs of the processes in turn; empty: all processes use the visible ones.
    """

    _death: type[BaseException] = BrokenProcessPool
    """Raised by a future whose worker died."""

    def __init__(self, jobs: int, gpus: Sequence[str] = ()) -> None:
        self.jobs, self.gpus = jobs, tuple(gpus)
        self._pools: list[ProcessPoolExecutor] = []

    def connect(self) -> None:
        """Start the processes where necessary.

        Raises
        ------
        InputError
            If no worker starts.
        """
        if not self._pools:
            # spawn: a fork would copy the compiled kernels' thread pool in an unusable state
            context = multiprocessing.get_context("spawn")
            with _starting(self.jobs, self.gpus):
                for _ in range(self.jobs):  # a pool for each, since the tasks of a pool go to any of its processes
                    self._pools.append(ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent))
                started = [pool.submit(os.getpid) for pool in self._pools]  # each starts a process
            try:
                started[0].result()
            except BrokenProcessPool as problem:
                raise InputError(
                    "worker processes end as soon as they start; a script that runs a sweep with jobs > 1 must do so "
                    "under if __name__ == '__main__'"
                ) from problem

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
        self.connect()
        queues, lost, batch, since = _Queues(job, left), list[str](), Batch(), time.perf_counter()
        waiting: dict[Future[tuple[tuple[str, str], list[Result]]], tuple[Any, list[str]]] = {}
        window = 2  # few cells are submitted: a dying worker takes them with it
        while True:
            slots = [(slot, pool, number) for number, (slot, pool) in enumerate(self._slots().items())]
            for count, (slot, pool, number) in itertools.product(range(window), slots):  # in turn
                if lost or sum(of == slot for of, _ in waiting.values()) > count or not (task := queues.task(slot)):
                    continue
                gpu, names = self.gpus[number % len(self.gpus)] if self.gpus else None, [name for name, _ in task]
                try:
                    future = pool.submit(_work, job.loader, [cell for _, cell in task], device, gpu)
                    waiting[future] = slot, names
                except self._death:
                    lost += names
            if not waiting:
                if lost or not queues:
                    break
                if batch:
                    yield batch
                    batch = []
                time.sleep(_JOIN_SECONDS)  # for example after the death of the last worker of a cluster
                continue
            for future in wait(waiting, _GATHER_SECONDS if batch else _WATCH_SECONDS, FIRST_COMPLETED).done:
                _, names = waiting.pop(future)
                try:
                    versions, results = future.result()
                except self._death:
                    lost += names
                    continue
                except Exception as problem:
                    raise InputError(f"a worker cannot evaluate the cells: {problem}") from problem
                if versions != (code, np.__version__):
                    raise InputError(
                        f"a worker has other code than this process: code {versions[0][:12]}, NumPy {versions[1]} "
                        f"there, {code[:12]}, {np.__version__} here; install the same versions on all machines"
                    )
                batch += [(name, left.pop(name), result) for name, result in zip(names, results, strict=True)]
                window = _WINDOW if 0 < results[-1].seconds < _GATHER_SECONDS else 2
            if batch and time.perf_counter() - since > _GATHER_SECONDS:
                yield batch
                batch, since = [], time.perf_counter()
        if batch:
            yield batch
        if lost:
            self._replace()
        return lost

    def _replace(self) -> None:
        """End the pools, which are of no use after the death of a worker."""
        self.close(at_once=True)

    def _slots(self) -> Mapping[Any, Executor]:
        """The executor of each cell that the workers can evaluate at the same time."""
        return dict(enumerate(self._pools))

    def close(self, *, at_once: bool = False) -> None:
        """End the workers, with ``at_once`` in the middle of a cell; the next `evaluate` starts others."""
        pools, self._pools = self._pools, []
        for pool in pools:
            for process in list(pool._processes.values()) if at_once and pool._processes else ():
                process.terminate()
        for pool in pools:
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
    gpus : sequence of str
        As in `Workers`, for local workers.
    """

    def __init__(self, jobs: int, scheduler: str | None, gpus: Sequence[str] = ()) -> None:
        super().__init__(jobs, gpus)
        self.scheduler = scheduler
        self._stack = contextlib.ExitStack()
        self._client: Any = None
        self._executors: dict[tuple[str, int], Executor] = {}

    def connect(self) -> None:
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
                options |= {"processes": True, "env": _share(self.jobs, self.gpus), "silence_logs": logging.CRITICAL}
            try:
                # a task whose worker dies fails at once: its cell is evaluated again alone
                with dask.config.set({"distributed.scheduler.allowed-failures": 0}), _starting(self.jobs, self.gpus):
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

    def _round(self, job: Job, code: str, left: dict[str, Cell], device: Device) -> Generator[Batch, None, list[str]]:
        try:
            return (yield from super()._round(job, code, left, device))
        except Exception as problem:
            if self._client is None or self._client.status == "running":
                raise
            raise ConnectionError("lost the Dask scheduler; finished cells are stored, run again later") from problem

    def _replace(self) -> None:
        """The cluster itself starts a worker in place of one that died."""

    def _slots(self) -> Mapping[Any, Executor]:
        threads = [(address, i) for address, count in self._client.nthreads().items() for i in range(count)]
        for slot in threads:  # workers may join and leave
            if slot not in self._executors:
                where = {"workers": [slot[0]], "allow_other_workers": True}
                self._executors[slot] = self._client.get_executor(pure=False, **where)
        return {slot: self._executors[slot] for slot in threads}

    def close(self, *, at_once: bool = False) -> None:
        self._client = None
        self._executors.clear()
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
def visible(device: Device) -> tuple[str, ...]:
    """Return the GPUs of this process, as in ``CUDA_VISIBLE_DEVICES``; none for the CPU."""
    if resolve(device) == "cpu":
        return ()
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(names or map(str, range(gpu_count())))


def chosen_gpus(text: str, device: Device) -> tuple[str, ...]:
    """Return the GPUs of a list of their numbers among `visible`, such as "0,2".

    Raises
    ------
    InputError
        For a number that is no visible GPU.
    """
    have = visible(device)
    for number in (numbers := [word.strip() for word in text.split(",")]):
        if not number.isdecimal() or int(number) >= len(have):
            raise InputError(f"--gpus {text}: {number!r} is none of the {len(have)} visible GPUs, counted from 0")
    return tuple(have[int(number)] for number in dict.fromkeys(numbers))


def _share(jobs: int, gpus: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment variables of ``jobs`` processes that run side by side.

    Each process gets its share of the cores, at most ``FPEMU_THREADS`` (BLAS reads the variable once, when loaded);
    ``FPEMU_PROCESSES`` holds the number of processes that share a GPU, for `fpemu.gpu.emulation.chains`.
    """
    names = ("FPEMU_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    share = {"FPEMU_PROCESSES": str(-(-jobs // max(1, len(gpus))))}
    return dict.fromkeys(names, str(max(1, min(threads(), cores() // jobs)))) | share


@contextlib.contextmanager
def _starting(jobs: int, gpus: Sequence[str] = ()) -> Iterator[None]:
    """Start worker processes in this context, with their share of the cores.

    They inherit that SIGINT is ignored, so that only this process handles Ctrl-C, though not within this context.
    """
    before = dict(os.environ)
    main = threading.current_thread() is threading.main_thread()  # no other thread may set a handler
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(share := _share(jobs, gpus))
    try:
        yield
    finally:
        for name in share:
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
