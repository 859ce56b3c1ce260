"""Evaluate the cells of an experiment that are not in the store yet, one after another or by local processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpemu.errors import InputError
from fpemu.mma.threads import cores
from fpemu.sweep import experiments, store

if TYPE_CHECKING:
    from rich.progress import Progress

    from fpemu.sweep.experiments import Experiment
    from fpemu.sweep.store import Cell, Store, Values

Row = dict[str, Any]


class CellError(RuntimeError):
    """A cell could not be evaluated; the cells finished before it are kept."""


def run(
    experiment: Experiment,
    size: str = "quick",
    *,
    results: Store,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Row]:
    """Evaluate what is missing and give every row of the experiment, in the order of its cells.

    Parameters
    ----------
    experiment : Experiment
    size : {"quick", "full"}
    results : Store
        Finished cells are read from it, and each new one is written to it as soon as it is known.
    jobs : int
        Local processes; 1 evaluates here. The cores are shared out among them.
    progress : rich.progress.Progress, optional
        A running progress display to add a bar to.

    Returns
    -------
    list of dict
        A cell's parameters and its numbers in one dict.

    Raises
    ------
    CellError
        If a cell fails.
    InputError
        If ``jobs`` is not positive or a number has the name of a parameter.
    KeyboardInterrupt
        On Ctrl-C: what is finished is in the store, the next run goes on from there.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}: at least 1 process is needed")
    cells = experiment.cells(size)
    names = keys(experiment, cells)
    values: dict[str, Values] = {}
    todo: dict[str, Cell] = {}
    for name, cell in zip(names, cells, strict=True):
        known = results.get(name)
        if known is None:
            todo[name] = cell
        else:
            values[name] = known

    def keep(name: str, numbers: Values, seconds: float) -> None:
        results.put(name, experiment.evaluator, todo[name], experiment.code, numbers, seconds)
        values[name] = results.get(name) or {}

    advance = _bar(experiment, todo, progress)
    source = _sequential(experiment, todo) if jobs == 1 else _parallel(experiment, todo, jobs)
    with contextlib.closing(source):  # on an interrupt here too, the processes end now and not when the garbage goes
        for name, numbers, seconds in source:
            keep(name, numbers, seconds)
            advance(name)
    rows = []
    for name, cell in zip(names, cells, strict=True):
        double = sorted(set(cell) & set(values[name]))
        if double:
            raise InputError(f"{experiment.name}: {', '.join(double)} is both a parameter and a number")
        rows.append({**cell, **values[name]})
    return rows


def default_jobs() -> int:
    """A process a core, but at most 4: a large cell can take 2 GB, and large products use several threads anyway."""
    return min(4, cores())


def keys(experiment: Experiment, cells: list[Cell]) -> list[str]:
    """The keys of an experiment's cells in the store."""
    return [store.key(experiment.evaluator, cell, experiment.code) for cell in cells]


def _bar(experiment: Experiment, todo: dict[str, Cell], progress: Progress | None) -> Callable[[str], None]:
    """A bar measured in work, not in cells, so that the time left means something; gives the function to advance it.

    Stored cells are left out: they would make the first estimate of the time left far too short.
    """
    if progress is None:
        return lambda name: None
    costs = {name: experiment.cost(cell) for name, cell in todo.items()}
    task = progress.add_task(
        experiment.name if todo else f"{experiment.name} (stored)", total=sum(costs.values()) or 1.0
    )
    if not todo:
        progress.advance(task, 1.0)
    return lambda name: progress.advance(task, costs[name])


def _sequential(experiment: Experiment, todo: dict[str, Cell]) -> Generator[tuple[str, Values, float], None, None]:
    for name, cell in todo.items():
        start = time.perf_counter()
        try:
            numbers = experiment.evaluate(cell)
        except Exception as problem:
            raise CellError(f"{experiment.name}: the cell {store.canonical(cell)} failed: {problem}") from problem
        yield name, numbers, time.perf_counter() - start


def _parallel(
    experiment: Experiment, todo: dict[str, Cell], jobs: int
) -> Generator[tuple[str, Values, float], None, None]:
    if not todo:
        return
    jobs = min(jobs, len(todo))
    threads = max(1, cores() // jobs)
    before = set(multiprocessing.active_children())
    # spawn: a fork would copy the compiled kernels' thread pool in an unusable state
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),)
    )
    try:
        with _interrupts_held(), _threads(threads):
            futures: dict[Future[tuple[Values, float]], str] = {
                pool.submit(_work, str(experiment.root), experiment.name, cell): name for name, cell in todo.items()
            }
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    numbers, seconds = future.result()
                except Exception as problem:
                    cell = store.canonical(todo[futures[future]])
                    raise CellError(f"{experiment.name}: the cell {cell} failed: {problem}") from problem
                yield futures[future], numbers, seconds
    except BaseException:
        # Ctrl-C or a failed cell: do not wait for the long cells that are still running
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while workers start: they inherit that, and leave it to the parent from their first moment."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Give workers that start now their share of the cores; they load BLAS, which reads these once, before any code."""
    names = ("FPEMU_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _prepare(parent: int) -> None:
    """In a worker: leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A parent that was killed cannot tell its workers to stop."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(root: str, name: str, cell: Cell) -> tuple[Values, float]:
    experiment = experiments.load(name, Path(root))
    start = time.perf_counter()
    return experiment.evaluate(cell), time.perf_counter() - start
