"""Evaluation of cells in this process or in local worker processes; `fpemu.sweep.cluster` adds the workers of Dask.

An executor yields batches of entries as they arrive; an empty first batch announces that evaluation has started. An
exception in a cell is stored in its entry, and the other cells continue. A worker process that dies (out of memory, for
example) takes its cells with it: these cells are evaluated again one at a time, and a cell whose worker dies a second
time has failed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any, Self

import numpy as np

from fpemu.errors import InputError
from fpemu.mma.device import Device, resolve
from fpemu.parallel import cores, threads
from fpemu.sweep.store import Cell, Entry, as_numbers

Batches = Generator[list[Entry], None, None]
Cost = Callable[[Mapping[str, Any]], float]
Evaluate = Callable[[Cell, Device], Mapping[str, Any]]
DIED = "its worker process died twice: killed, or out of memory"
_BATCH_SECONDS = 0.05
"""Quick cells are evaluated and stored together for this long: a task and a transaction cost milliseconds."""
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
    load : callable
        ``load(*arguments)`` returns the function and the version of its code in the process that calls it.
    arguments : tuple
    code : str
        Version of the code under which the results will be stored.
    """

    load: Callable[..., tuple[Evaluate, str]]
    arguments: tuple[Any, ...]
    code: str
    device: Device = "cpu"
    numpy: str = np.__version__


@functools.lru_cache(maxsize=8)
def _function(source: Source) -> Evaluate:
    """Load the function of a source in this process, and compare the versions of its code and of NumPy."""
    try:
        if source.device == "cuda":
            resolve("cuda")
        function, code = source.load(*source.arguments)
    except Exception as problem:
        raise WorkerError(f"a worker cannot evaluate the cells: {problem}") from problem
    if (code, np.__version__) != (source.code, source.numpy):
        raise WorkerError(
            f"a worker has other code than this process: code {code[:12]}, NumPy {np.__version__} there, "
            f"{source.code[:12]}, {source.numpy} here; install the same versions on all machines"
        )
    return function


def attempt(evaluate: Evaluate, name: str, cell: Cell, device: Device) -> Entry:
    """Evaluate one cell: an entry with its numbers, or the error as text, since not every exception can be pickled."""
    start = time.perf_counter()
    try:
        values, error = as_numbers(evaluate(cell, device)), ""
    except (Exception, SystemExit) as problem:
        kind = "" if isinstance(problem, InputError) else f"{type(problem).__name__}: "
        values, error = None, " ".join(f"{kind}{problem}".split())
    return Entry(name, cell, values, error, time.perf_counter() - start)


def here(evaluate: Evaluate, todo: Mapping[str, Cell], device: Device = "cpu") -> Batches:
    """Evaluate one cell after another in this process."""
    batch: list[Entry] = []
    yield batch
    since = time.perf_counter()
    try:
        for name, cell in todo.items():
            batch.append(attempt(evaluate, name, cell, device))
            if time.perf_counter() - since > _BATCH_SECONDS:
                yield batch
                batch, since = [], time.perf_counter()
    except KeyboardInterrupt:
        yield batch  # finished cells are stored before the interrupt is raised
        raise
    if batch:
        yield batch


class Workers:
    """Workers behind the interface of `concurrent.futures`, started by the first cells and kept until `close`."""

    _death: type[BaseException]
    """Raised by a future whose worker died."""

    def _connect(self) -> Executor:
        """Return the executor, started where necessary."""
        raise NotImplementedError

    def _restart(self) -> None:
        """Replace the executor after the death of a worker, if it cannot do so by itself."""

    def close(self, *, at_once: bool = False) -> None:
        """End the workers, with ``at_once`` in the middle of a cell; the next `evaluate` starts others."""
        raise NotImplementedError

    def _window(self) -> int:
        """Return the number of tasks that are submitted at a time."""
        raise NotImplementedError

    def _watch(self, idle: bool) -> None:
        """Raise an error if no task can finish.

        Called whenever tasks finish, and with ``idle`` after every `_WATCH_SECONDS` in which none does.
        """

    def _submitting(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which tasks are submitted, since that may start a worker."""
        return contextlib.nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def evaluate(self, source: Source, todo: Mapping[str, Cell], cost: Cost = lambda cell: 1.0) -> Batches:
        """Evaluate cells.

        Parameters
        ----------
        source : Source
        todo : mapping of key to cell
        cost : callable
            Relative work of a cell. A task has as many cells as are expected to take `_BATCH_SECONDS` at the pace of
            the last task, at most `_MOST_CELLS`; it ends early if they take longer.

        Raises
        ------
        WorkerError, ConnectionError
            No worker can evaluate the cells, or the scheduler is lost.
        """
        left = dict(todo)
        try:
            while left:
                suspects = yield from self._stream(source, left, cost)
                if suspects:
                    self._restart()
                for name in suspects:
                    cell = left.pop(name)
                    if (yield from self._stream(source, {name: cell})):
                        self._restart()
                        yield [Entry(name, cell, None, DIED, 0.0)]
        except BaseException:  # on Ctrl-C, or when results cannot be stored: do not wait for long cells
            self.close(at_once=True)
            raise

    def _stream(
        self, source: Source, left: dict[str, Cell], cost: Cost | None = None
    ) -> Generator[list[Entry], None, list[str]]:
        """Evaluate the cells of ``left`` and remove those that are done; a task has one cell if there is no ``cost``.

        Returns the keys of the cells that were under way when a worker died.
        """
        pool = self._connect()
        waiting: dict[Future[list[Entry]], list[str]] = {}
        queue, lost, pace = list(reversed(left.items())), list[str](), math.inf
        while True:
            free = self._window() - len(waiting)
            with self._submitting():
                while queue and free > 0 and not lost:
                    task, free = _task(queue, cost, pace), free - 1
                    names = [name for name, _ in task]
                    try:
                        waiting[pool.submit(_work, source, task)] = names
                    except self._death:
                        lost += names
            if not waiting:
                return lost
            batch: list[Entry] = []
            if pace == math.inf:
                yield batch
            done = wait(waiting, timeout=_WATCH_SECONDS, return_when=FIRST_COMPLETED).done
            self._watch(idle=not done)
            for future in done:
                names = waiting.pop(future)
                try:
                    entries = future.result()
                except self._death:
                    lost += names
                except WorkerError:
                    raise
                except CancelledError as problem:
                    raise ConnectionError("the workers are gone") from problem
                except Exception as problem:
                    raise WorkerError(f"a worker cannot take a cell: {type(problem).__name__}: {problem}") from problem
                else:
                    batch += entries
                    for entry in entries:
                        del left[entry.key]
                    queue += [(name, left[name]) for name in reversed(names) if name in left]
                    work = sum(cost(entry.cell) for entry in entries) if cost else 1.0
                    pace = sum(entry.seconds for entry in entries) / max(work, 1e-9)
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
    """Evaluate the cells of a task until `_BATCH_SECONDS` have passed: the others may take longer than expected."""
    evaluate, entries, start = _function(source), list[Entry](), time.perf_counter()
    for name, cell in task:
        entries.append(attempt(evaluate, name, cell, source.device))
        if time.perf_counter() - start > _BATCH_SECONDS:
            break
    return entries


class LocalWorkers(Workers):
    """Local worker processes, at most ``jobs``, each with its share of the cores."""

    _death = BrokenProcessPool

    def __init__(self, jobs: int) -> None:
        self.jobs = min(jobs, 61) if sys.platform == "win32" else jobs  # the limit of ProcessPoolExecutor on Windows
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[Any] = set()

    def _connect(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._others = set(multiprocessing.active_children())
            # spawn: a fork would copy the compiled kernels' thread pool in an unusable state
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_prepare)
        return self._pool

    def _restart(self) -> None:
        self.close(at_once=True)
        try:
            with self._submitting():
                started = self._connect().submit(os.getpid)
            started.result()
        except BrokenProcessPool as problem:
            raise InputError(
                "worker processes end as soon as they start; a script that runs a sweep with jobs > 1 must do so under "
                "if __name__ == '__main__'"
            ) from problem

    def _window(self) -> int:
        return 3 * self.jobs

    def _submitting(self) -> contextlib.AbstractContextManager[None]:
        return starting(self.jobs)

    def close(self, *, at_once: bool = False) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for child in set(multiprocessing.active_children()) - self._others if at_once else ():
            child.terminate()
        pool.shutdown(cancel_futures=True)  # the first call of shutdown alone can wait for the pool's thread


def share(jobs: int) -> dict[str, str]:
    """The environment variables of ``jobs`` processes that run side by side.

    Each process gets its share of the cores, at most ``FPEMU_THREADS`` (BLAS reads the variable once, when loaded);
    ``FPEMU_PROCESSES`` holds the number of processes that share a GPU, for `fpemu.gpu.emulation.chains`.
    """
    names = ("FPEMU_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(max(1, min(threads(), cores() // jobs)))) | {"FPEMU_PROCESSES": str(jobs)}


@contextlib.contextmanager
def starting(jobs: int) -> Iterator[None]:
    """Start worker processes in this context: with their share of the cores, and with Ctrl-C deferred to its end.

    The processes inherit a signal mask that blocks SIGINT, so that only this process handles Ctrl-C.
    """
    variables, has_masks = share(jobs), hasattr(signal, "pthread_sigmask")
    before = {name: os.environ.get(name) for name in variables}
    with _deferred_interrupt():
        mask = None
        if has_masks:  # not on Windows, which has no resource tracker either
            resource_tracker.ensure_running()  # started with the first worker, it would unblock SIGINT again
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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
