"""Cells evaluated by the workers of a Dask cluster, through its ``concurrent.futures`` interface.

With a scheduler's address the cluster is somebody's: scheduler and workers need the same fpemu and NumPy (each worker
checks), and a page of an experiments folder at the same path. Without one, a cluster of local processes is started for
the run. Only this process writes to the store.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from fpemu.errors import InputError
from fpemu.sweep.executors import DIED, Batches, Source, Todo, share, starting, stream
from fpemu.sweep.store import Entry

PATIENCE = 5.0
"""Seconds that a scheduler, and then its first worker, have to answer."""
_MOST = 32
"""Cells of a task: a task costs the scheduler some 10 ms, whatever it holds."""


def workers(source: Source, todo: Todo, jobs: int, scheduler: str | None = None) -> Batches:
    """Evaluate cells on a cluster.

    Parameters
    ----------
    source, todo
        What evaluates, and the cells by key.
    jobs : int
        Local workers of one thread each, if there is no ``scheduler``.
    scheduler : str, optional
        Address such as "tcp://10.0.0.1:8786".

    Raises
    ------
    InputError
        Dask is not installed; no scheduler or no worker answers; a worker has other code.
    ConnectionError
        The scheduler went away.
    """
    distributed = _import()
    left = dict(todo)
    with _quiet(), _client(distributed, scheduler, jobs) as client, _told(client):
        death, window = distributed.scheduler.KilledWorker, _window(client)
        pool = client.get_executor(pure=False)
        while left:
            under_way = yield from stream(pool, source, left, window, death, most=_MOST)
            for name in under_way:
                cell = left.pop(name)
                if (yield from stream(pool, source, {name: cell}, 1, death)):
                    yield [Entry(name, cell, None, DIED, 0.0)]


def _import() -> Any:
    try:
        import distributed
        import distributed.scheduler
    except ImportError as problem:
        raise InputError("a sweep on Dask needs the package distributed: pip install 'fpemu[dask]'") from problem
    return distributed


@contextlib.contextmanager
def _client(distributed: Any, scheduler: str | None, jobs: int) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            where: Any = stack.enter_context(_local(distributed, jobs))
            silent = "no local Dask cluster starts"
        else:
            where, silent = scheduler, f"no Dask scheduler answers at {scheduler} within {PATIENCE:g} s"
        try:
            if scheduler is not None:
                distributed.comm.resolve_address(scheduler)  # a client with a wrong one takes long to close
            client = stack.enter_context(distributed.Client(where, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError) as problem:
            raise InputError(f"{silent}: {problem}") from problem
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as problem:
            raise InputError(f"the Dask scheduler at {scheduler} has no worker") from problem
        yield client


@contextlib.contextmanager
def _local(distributed: Any, jobs: int) -> Iterator[Any]:
    """A cluster of local processes. A worker's death is reported at once: who caused it is found out here."""
    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), starting(jobs)():
        try:
            cluster = distributed.LocalCluster(
                n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", env=share(jobs),
                silence_logs=logging.CRITICAL,
            )  # fmt: skip
        except (RuntimeError, OSError) as problem:
            raise InputError(f"no local Dask cluster starts: {problem}") from problem
    with cluster:
        yield cluster


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No log of Dask's on the terminal: what matters is raised. Levels are put back as they were."""
    heads = ("distributed", "tornado", "asyncio")
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in heads]
    before = {name: logging.getLogger(name).level for name in {*heads, *names}}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _window(client: Any) -> Callable[[], int]:
    """Three cells for each thread that the cluster has now: workers come and go."""
    asked, count = -PATIENCE, 0

    def window() -> int:
        nonlocal asked, count
        if time.monotonic() - asked > PATIENCE:
            asked, count = time.monotonic(), 3 * max(1, sum(client.nthreads().values()))
        return count

    return window


@contextlib.contextmanager
def _told(client: Any) -> Iterator[None]:
    """One line where the scheduler is lost, rather than what each of its futures says."""
    try:
        yield
    except Exception as problem:
        if client.status == "running" and not isinstance(problem, ConnectionError):
            raise
        raise ConnectionError("the Dask scheduler went away; what is finished is stored, run again then") from problem
