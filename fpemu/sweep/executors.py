"""Where cells are evaluated: here or by local processes; `fpemu.sweep.cluster` adds the workers of Dask.

An executor gives batches of entries as they arrive. What goes wrong in a cell is in its entry and does not stop the
others. A worker process that dies (out of memory, say) takes the cells it holds with it: those that were under way are
run again one at a time, and one that kills its worker again has failed.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from fpemu import devices
from fpemu.devices import Device
from fpemu.errors import InputError
from fpemu.mma.threads import cores
from fpemu.sweep.store import Cell, Entry, as_numbers

Batches = Generator[list[Entry], None, None]
Todo = Mapping[str, Cell]
DIED = "its worker process died twice: killed, or out of memory"
_COMPANY = 0.05
"""Seconds for which a quick cell waits for others to be stored with: a transaction costs milliseconds."""


class WorkerError(InputError):
    """A worker cannot take part: it has other code, no page or no GPU. No fault of the cell."""


@dataclass(frozen=True)
class Source:
    """What evaluates, in a form that travels to other processes: a page of an experiments folder, or the grids'; and
    on which device."""

    code: str
    root: str | None = None
    name: str | None = None
    numpy: str = np.__version__
    device: Device = "cpu"

    def load(self) -> Callable[[Cell], Mapping[str, Any]]:
        """The function, once it is sure to be the one that the results will be stored under.

        Raises
        ------
        WorkerError
            The code, or NumPy, is another one here.
        """
        if self.root is None or self.name is None:
            from fpemu.sweep import evaluate
            from fpemu.sweep.code import running_version

            function: Any = evaluate.evaluate
            code = running_version(Path(evaluate.__file__).resolve())
        else:
            from fpemu.sweep import experiments

            try:
                experiment = experiments.load(self.name, Path(self.root))
            except Exception as problem:
                raise WorkerError(f"a worker cannot load {self.name}: {problem}") from problem
            function, code = experiment.evaluate, experiment.code
        if (code, np.__version__) != (self.code, self.numpy):
            raise WorkerError(
                f"a worker has other code than this process: code {code[:12]}, NumPy {np.__version__} there, "
                f"{self.code[:12]}, {self.numpy} here; install the same versions on all machines"
            )
        return function


_load = functools.lru_cache(maxsize=8)(Source.load)


def attempt(evaluate: Callable[[Cell], Mapping[str, Any]], name: str, cell: Cell) -> Entry:
    """One cell: its numbers, or what went wrong in words (an exception need not survive the way between processes)."""
    start = time.perf_counter()
    try:
        values, error = as_numbers(evaluate(cell)), ""
    except (Exception, SystemExit) as problem:
        kind = "" if isinstance(problem, InputError) else f"{type(problem).__name__}: "
        values, error = None, " ".join(f"{kind}{problem}".split())
    return Entry(name, cell, values, error, time.perf_counter() - start)


def here(evaluate: Callable[[Cell], Mapping[str, Any]], todo: Todo, device: Device = "cpu") -> Batches:
    """One cell after another in this process."""
    batch: list[Entry] = []
    since = time.perf_counter()
    try:
        for name, cell in todo.items():
            with devices.on(device):
                batch.append(attempt(evaluate, name, cell))
            if time.perf_counter() - since > _COMPANY:
                yield batch
                batch, since = [], time.perf_counter()
    except KeyboardInterrupt:
        yield batch  # what is finished is kept; the loop that takes it comes back for the interrupt
        raise
    if batch:
        yield batch


def processes(source: Source, todo: Todo, jobs: int) -> Batches:
    """Local processes, each with its share of the cores."""
    left = dict(todo)
    while left:
        count = min(jobs, len(left))
        with _pool(count) as pool:
            under_way = yield from stream(pool, source, left, 3 * count, BrokenProcessPool, starting(count))
        yield from _one_by_one(source, left, under_way)


def _one_by_one(source: Source, left: dict[str, Cell], suspects: list[str]) -> Batches:
    """The cells that were under way when a process died, in a pool of one process that only they can end."""
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
    most: int = 1,
) -> Generator[list[Entry], None, list[str]]:
    """Evaluate the cells of ``left``, at most ``window`` tasks submitted at a time, and drop those that are done.

    Parameters
    ----------
    death : exception
        What a future raises if its worker died.
    start : callable
        Gives the context in which cells are submitted, since that may start a worker.
    most : int
        Cells of a task, where as many take `_COMPANY` seconds or less.

    Returns
    -------
    list of str
        Empty if all are done. Else a worker died: the cells that were under way then.

    Raises
    ------
    WorkerError, ConnectionError
        No worker can evaluate, or nobody is there to ask.
    """
    waiting: dict[Future[list[Entry]], list[str]] = {}
    queue, lost, together = iter(list(left.items())), list[str](), 1
    while True:
        room = (window() if callable(window) else window) - len(waiting)
        with start():
            for _ in range(0 if lost else max(0, room)):
                task = list(islice(queue, together))
                names = [name for name, _ in task]
                try:
                    if task:
                        waiting[pool.submit(_work, source, task)] = names
                except death:
                    lost += names
                    break
        if not waiting:
            return lost
        batch = []
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            names = waiting.pop(future)
            try:
                entries = future.result()
                batch += entries
                for name in names:
                    del left[name]
                pace = sum(entry.seconds for entry in entries) / len(entries)
                together = max(1, min(most, int(_COMPANY / max(pace, 1e-6))))
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
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),)
    )
    try:
        yield pool
    except BaseException:
        # Ctrl-C, or nowhere to store: do not wait for the long cells that are still running
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _check_start(pool: ProcessPoolExecutor) -> None:
    """That a process starts at all: else every cell would seem to kill its worker."""
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
    """The environment of some processes beside one another.

    Each has its share of the cores (BLAS reads that once, when loaded), and `fpemu.gpu.chains` is told that they share
    a GPU.
    """
    names = ("FPEMU_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(max(1, cores() // jobs))) | {"FPEMU_PROCESSES": str(jobs)}


def starting(jobs: int) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The context in which worker processes start: with their share of the cores, and with Ctrl-C held back.

    They inherit that, and so leave it to the parent from their first moment.
    """

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        variables, can_hold = share(jobs), hasattr(signal, "pthread_sigmask")
        before = {name: os.environ.get(name) for name in variables}
        resource_tracker.ensure_running()  # it would be started with the first worker, and let Ctrl-C through again
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_hold else None
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            if held is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)

    return context


def _prepare(parent: int) -> None:
    """In a worker: leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A parent that was killed cannot tell its workers to stop."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
