"""Where cells are evaluated: in this process or in local processes; `fpemu.sweep.cluster` adds the workers of Dask.

An executor yields batches of entries as they arrive; the first batch is empty and says that evaluation has started. An
exception in a cell is stored in its entry and does not stop the others. A worker process that dies (out of memory, for
example) takes its cells with it: the cells under way are evaluated again one at a time, and a cell whose worker dies a
second time has failed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import numpy as np

from fpemu import devices
from fpemu.devices import Device
from fpemu.errors import InputError
from fpemu.parallel import cores
from fpemu.sweep.store import Cell, Entry, as_numbers

Batches = Generator[list[Entry], None, None]
Todo = Mapping[str, Cell]
DIED = "its worker process died twice: killed, or out of memory"
Cost = Callable[[Mapping[str, Any]], float]
Evaluate = Callable[[Cell], Mapping[str, Any]]
_BATCH_SECONDS = 0.05
"""Quick cells are evaluated and stored together for as long as this: a task and a transaction cost milliseconds."""
_MOST_CELLS = 32
"""The largest number of cells of a task."""
_WATCH_SECONDS = 2.0


class WorkerError(InputError):
    """A worker cannot evaluate any cell: its code differs, or it lacks the page or a GPU."""


@dataclass(frozen=True)
class Source:
    """The function that evaluates cells, in a form that can be sent to other processes, and its device.

    Attributes
    ----------
    loader : callable
        Returns the function and the version of its code in the process that calls it; must be picklable.
    code : str
        Version of the code under which the results will be stored.
    """

    loader: Callable[[], tuple[Evaluate, str]]
    code: str
    numpy: str = np.__version__
    device: Device = "cpu"

    def load(self) -> Evaluate:
        """Import the function, and compare its code with the version under which the results will be stored.

        Raises
        ------
        WorkerError
            The version of the code or of NumPy differs in this process.
        """
        try:
            function, code = self.loader()
        except Exception as problem:
            raise WorkerError(f"a worker cannot load the code of the cells: {problem}") from problem
        if (code, np.__version__) != (self.code, self.numpy):
            raise WorkerError(
                f"a worker has other code than this process: code {code[:12]}, NumPy {np.__version__} there, "
                f"{self.code[:12]}, {self.numpy} here; install the same versions on all machines"
            )
        return function


_load = functools.lru_cache(maxsize=8)(Source.load)


def attempt(evaluate: Callable[[Cell], Mapping[str, Any]], name: str, cell: Cell) -> Entry:
    """Evaluate one cell: an entry with its numbers, or the error as text, since not every exception can be pickled."""
    start = time.perf_counter()
    try:
        values, error = as_numbers(evaluate(cell)), ""
    except (Exception, SystemExit) as problem:
        kind = "" if isinstance(problem, InputError) else f"{type(problem).__name__}: "
        values, error = None, " ".join(f"{kind}{problem}".split())
    return Entry(name, cell, values, error, time.perf_counter() - start)


def here(evaluate: Callable[[Cell], Mapping[str, Any]], todo: Todo, device: Device = "cpu") -> Batches:
    """Evaluate one cell after another in this process."""
    batch: list[Entry] = []
    yield batch
    since = time.perf_counter()
    try:
        for name, cell in todo.items():
            with devices.on(device):
                batch.append(attempt(evaluate, name, cell))
            if time.perf_counter() - since > _BATCH_SECONDS:
                yield batch
                batch, since = [], time.perf_counter()
    except KeyboardInterrupt:
        yield batch  # finished cells are stored before the interrupt is raised
        raise
    if batch:
        yield batch


def processes(source: Source, todo: Todo, jobs: int, cost: Cost = lambda cell: 1.0) -> Batches:
    """Evaluate cells in local processes, each with its share of the cores."""
    left = dict(todo)
    while left:
        count = min(jobs, len(left))
        with _pool(count) as pool:
            under_way = yield from stream(pool, source, left, 3 * count, BrokenProcessPool, starting(count), cost)
        yield from _one_by_one(source, left, under_way)


def _one_by_one(source: Source, left: dict[str, Cell], suspects: list[str]) -> Batches:
    """Evaluate the cells that were under way when a process died, one at a time in a pool of one process."""
    while suspects:
        with _pool(1) as pool:
            _check_start(pool)
            while suspects:
                name = suspects.pop(0)
                cell = left.pop(name)
                if (yield from stream(pool, source, {name: cell}, 1, BrokenProcessPool, starting(1))):
                    yield [Entry(name, cell, None, DIED, 0.0)]
                    break  # with a new process


def stream(
    pool: Executor,
    source: Source,
    left: dict[str, Cell],
    window: int | Callable[[], int],
    death: type[BaseException],
    start: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    cost: Cost | None = None,
    watch: Callable[[], None] | None = None,
) -> Generator[list[Entry], None, list[str]]:
    """Evaluate the cells of ``left``, at most ``window`` tasks submitted at a time, and drop those that are done.

    Parameters
    ----------
    death : exception
        Raised by a future whose worker died.
    start : callable
        Gives the context in which cells are submitted, since that may start a worker.
    cost : callable, optional
        Relative work of a cell. A task then has several cells, as many as are expected to take `_BATCH_SECONDS` at the
        pace of the last task, at most `_MOST_CELLS`; by default it has one.
    watch : callable, optional
        Called while no task finishes, every `_WATCH_SECONDS`.

    Returns
    -------
    list of str
        Empty if all cells are done. Otherwise a worker died: the keys of the cells that were under way.

    Raises
    ------
    WorkerError, ConnectionError
        No worker can evaluate the cells, or the scheduler is lost.
    """
    waiting: dict[Future[list[Entry]], list[str]] = {}
    queue, lost, pace = list(reversed(left.items())), list[str](), math.inf
    while True:
        room = (window() if callable(window) else window) - len(waiting)
        with start():
            while queue and room > 0 and not lost:
                task, room = _task(queue, cost, pace), room - 1
                names = [name for name, _ in task]
                try:
                    waiting[pool.submit(_work, source, task)] = names
                except death:
                    lost += names
        if not waiting:
            return lost
        batch: list[Entry] = []
        if pace == math.inf:
            yield batch
        done = wait(waiting, timeout=_WATCH_SECONDS if watch else None, return_when=FIRST_COMPLETED).done
        if watch is not None and not done:
            watch()
        for future in done:
            names = waiting.pop(future)
            try:
                entries = future.result()
                batch += entries
                for name in names:
                    del left[name]
                work = sum(cost(entry.cell) for entry in entries) if cost else 1.0
                pace = sum(entry.seconds for entry in entries) / max(work, 1e-9)
            except death:
                lost += names
            except WorkerError:
                raise
            except CancelledError as problem:
                raise ConnectionError("the workers are gone") from problem
            except Exception as problem:
                raise WorkerError(f"a worker cannot take a cell: {type(problem).__name__}: {problem}") from problem
        if batch:
            yield batch


def _task(queue: list[tuple[str, Cell]], cost: Cost | None, pace: float) -> list[tuple[str, Cell]]:
    """Take the cells of one task from the end of the queue; ``pace`` is in seconds per unit of cost."""
    task = [queue.pop()]
    if cost is not None:
        seconds = pace * cost(task[0][1])
        while queue and len(task) < _MOST_CELLS and (seconds := seconds + pace * cost(queue[-1][1])) <= _BATCH_SECONDS:
            task.append(queue.pop())
    return task


def _work(source: Source, task: list[tuple[str, Cell]]) -> list[Entry]:
    evaluate = _load(source)
    if source.device == "cuda":
        try:
            devices.resolve("cuda")
        except InputError as problem:
            raise WorkerError(f"a worker cannot take part: {problem}") from problem
    with devices.on(source.device):
        return [attempt(evaluate, name, cell) for name, cell in task]


# --- local processes
@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    before = set(multiprocessing.active_children())
    # spawn: a fork would copy the compiled kernels' thread pool in an unusable state
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare)
    try:
        yield pool
    except BaseException:
        # on Ctrl-C, or when results cannot be stored: do not wait for long cells that are still running
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _check_start(pool: ProcessPoolExecutor) -> None:
    """Raise InputError if no process starts, which would otherwise count as a failure of every cell."""
    try:
        with starting(1)():
            started = pool.submit(os.getpid)
        started.result()
    except BrokenProcessPool as problem:
        raise InputError(
            "worker processes end as soon as they start; a script that runs a sweep with jobs > 1 must do so under "
            "if __name__ == '__main__'"
        ) from problem


def share(jobs: int) -> dict[str, str]:
    """The environment variables of ``jobs`` processes that run side by side.

    Each process gets its share of the cores (BLAS reads the variable once, when loaded); ``FPEMU_PROCESSES`` holds the
    number of processes that share a GPU, for `fpemu.gpu.emulation.chains`.
    """
    names = ("FPEMU_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(max(1, cores() // jobs))) | {"FPEMU_PROCESSES": str(jobs)}


def starting(jobs: int) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The context in which worker processes start: with their share of the cores, and with Ctrl-C deferred to its end.

    The processes inherit a signal mask that blocks SIGINT, so that only this process handles Ctrl-C.
    """

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        variables, has_masks = share(jobs), hasattr(signal, "pthread_sigmask")
        before = {name: os.environ.get(name) for name in variables}
        with _deferred_interrupt():
            resource_tracker.ensure_running()  # started with the first worker, it would unblock SIGINT again
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if has_masks else None
            os.environ.update(variables)
            try:
                yield
            finally:
                for name, value in before.items():
                    os.environ.pop(name) if value is None else os.environ.update({name: value})
                if mask is not None:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return context


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Handle a Ctrl-C at the end of the context: an interrupt between two steps of a start leaves a process halfway.

    Blocking the signal in this thread does not suffice, since another thread (of a progress display, for example) may
    receive it, and Python then raises KeyboardInterrupt in the main thread.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


def _prepare() -> None:
    """In a worker: ignore Ctrl-C, which the parent handles, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process as soon as its parent is gone: a killed parent cannot stop its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
