"""Cells evaluated by the workers of a Dask cluster, through its ``concurrent.futures`` interface.

With a scheduler's address an existing cluster is used: its workers need the same fpemu and NumPy (each worker compares
the versions), and a page of an experiments folder at the same path. Without one, a cluster of local processes is
started for the run. Only this process writes to the store.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from fpemu.errors import InputError
from fpemu.sweep.executors import DIED, Batches, Cost, Source, Todo, share, starting, stream
from fpemu.sweep.store import Entry

PATIENCE = 5.0
"""Seconds that a scheduler, and then its first worker, have to answer."""
WORKER_TIMEOUT = 600.0
"""Seconds for which a run waits for a worker after the last one is lost."""
_REMINDER = 60.0
_LOG = logging.getLogger("fpemu.sweep")


def workers(
    source: Source,
    todo: Todo,
    jobs: int,
    scheduler: str | None = None,
    cost: Cost = lambda cell: 1.0,
    worker_timeout: float = WORKER_TIMEOUT,
) -> Batches:
    """Evaluate cells on a cluster.

    Parameters
    ----------
    source, todo
        The function that evaluates, and the cells by key.
    jobs : int
        Local workers of one thread each, if there is no ``scheduler``.
    scheduler : str, optional
        Address such as "tcp://10.0.0.1:8786".
    cost : callable, optional
        Relative work of a cell, by which cells are grouped into tasks: a task costs the scheduler some 10 ms.
    worker_timeout : float, optional
        Seconds for which the run waits when the cluster has no worker left.

    Raises
    ------
    InputError
        Dask is not installed; no scheduler or no worker answers; a worker has other code.
    ConnectionError
        The connection to the scheduler is lost.
    TimeoutError
        The cluster had no worker for ``worker_timeout`` seconds.
    """
    distributed = _import()
    left = dict(todo)
    with _quiet(), _client(distributed, scheduler, jobs) as client, _one_line(client):
        death, window = distributed.scheduler.KilledWorker, _window(client)
        watch = _watch(client, worker_timeout)
        pool = client.get_executor(pure=False)
        while left:
            under_way = yield from stream(pool, source, left, window, death, cost=cost, watch=watch)
            for name in under_way:
                cell = left.pop(name)
                if (yield from stream(pool, source, {name: cell}, 1, death, watch=watch)):
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
            address: Any = stack.enter_context(_local(distributed, jobs))
            failure = "no local Dask cluster starts"
        else:
            address, failure = scheduler, f"no Dask scheduler answers at {scheduler} within {PATIENCE:g} s"
        try:
            if scheduler is not None:
                distributed.comm.resolve_address(scheduler)  # a client with a wrong one takes long to close
            client = stack.enter_context(distributed.Client(address, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError) as problem:
            raise InputError(f"{failure}: {problem}") from problem
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as problem:
            raise InputError(f"the Dask scheduler at {scheduler} has no worker") from problem
        yield client


@contextlib.contextmanager
def _local(distributed: Any, jobs: int) -> Iterator[Any]:
    """A cluster of local processes. A task whose worker dies fails at once: `workers` evaluates its cells again."""
    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), starting(jobs)():
        try:
            cluster = distributed.LocalCluster(
                n_workers=jobs,
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",
                env=share(jobs),
                silence_logs=logging.CRITICAL,
            )
        except (RuntimeError, OSError) as problem:
            raise InputError(f"no local Dask cluster starts: {problem}") from problem
    with cluster:
        yield cluster


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's loggers, whose errors are raised as well, and restore their levels at the end."""
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
    """Three tasks for each thread that the cluster has now: workers may join and leave."""
    updated, count = -PATIENCE, 0

    def window() -> int:
        nonlocal updated, count
        if time.monotonic() - updated > PATIENCE:
            updated, count = time.monotonic(), 3 * max(1, sum(client.nthreads().values()))
        return count

    return window


def _watch(client: Any, limit: float) -> Callable[[], None]:
    """A function that logs a line when the cluster has lost its last worker, and one a minute until ``limit``.

    Called while no task finishes, it raises TimeoutError ``limit`` seconds after the first call without a worker.
    """
    lost: float | None = None
    reminder = 0.0

    def watch() -> None:
        nonlocal lost, reminder
        if client.nthreads():
            lost = None
            return
        now = time.monotonic()
        if lost is None:
            lost = reminder = now
        if now - lost >= limit:
            raise TimeoutError(
                f"the Dask scheduler has had no worker for {now - lost:.0f} s; finished cells are stored, add workers "
                "and run again"
            )
        if now >= reminder:
            reminder += _REMINDER
            _LOG.warning(
                "the Dask scheduler has no worker; the sweep stops in %.0f s unless one joins", limit - (now - lost)
            )

    return watch


@contextlib.contextmanager
def _one_line(client: Any) -> Iterator[None]:
    """Raise one ConnectionError where the scheduler is lost, instead of the error of each future."""
    try:
        yield
    except Exception as problem:
        if client.status == "running" and not isinstance(problem, ConnectionError):
            raise
        raise ConnectionError("lost the Dask scheduler; finished cells are stored, run again later") from problem
