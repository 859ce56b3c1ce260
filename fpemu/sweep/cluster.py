"""Evaluation of cells by the workers of a Dask cluster, through its ``concurrent.futures`` interface.

With a scheduler's address an existing cluster is used: its workers need the same fpemu and NumPy (each worker compares
the versions), and a page of an experiments folder at the same path. Without one, a cluster of local processes is
started. Only this process writes to the store.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterator
from typing import Any

from fpemu.errors import InputError, require
from fpemu.sweep.executors import Cost, Source, Workers, share, starting
from fpemu.sweep.store import Cell, Entry

PATIENCE = 5.0
"""Seconds that a scheduler, and then its first worker, have to answer."""
_REMINDER = 60.0
_LOG = logging.getLogger("fpemu.sweep")


class DaskWorkers(Workers):
    """The workers of a Dask cluster.

    Parameters
    ----------
    jobs : int
        Local workers of one thread each, if there is no ``scheduler``.
    scheduler : str, optional
        Address such as "tcp://10.0.0.1:8786".
    worker_timeout : float
        Seconds for which a run waits for a worker after the last one is lost; it then raises TimeoutError.

    Raises
    ------
    InputError
        From `evaluate`: Dask is not installed, or no scheduler or no worker answers.
    """

    def __init__(self, jobs: int, scheduler: str | None, worker_timeout: float) -> None:
        self.jobs, self.scheduler, self.worker_timeout = jobs, scheduler, worker_timeout
        self._stack = contextlib.ExitStack()
        self._client: Any = None
        self._counted, self._threads = -PATIENCE, 0
        self._lost: float | None = None
        self._reminder = 0.0

    def _connect(self) -> Any:
        require("distributed")
        import distributed
        import distributed.scheduler

        self._death = distributed.scheduler.KilledWorker
        if self._client is None:
            self._stack.enter_context(_quiet())
            self._client = self._stack.enter_context(_client(distributed, self.scheduler, self.jobs))
        return self._client.get_executor(pure=False)

    def close(self, *, at_once: bool = False) -> None:
        self._client = None
        self._stack.close()

    def _stream(
        self, source: Source, left: dict[str, Cell], cost: Cost | None = None
    ) -> Generator[list[Entry], None, list[str]]:
        try:
            return (yield from super()._stream(source, left, cost))
        except Exception as problem:
            lost = self._client is not None and self._client.status != "running"
            if not lost and not isinstance(problem, ConnectionError):
                raise
            raise ConnectionError("lost the Dask scheduler; finished cells are stored, run again later") from problem

    def _window(self) -> int:
        """Three tasks for each thread that the cluster has now: workers may join and leave."""
        if time.monotonic() - self._counted > PATIENCE:
            self._counted, self._threads = time.monotonic(), sum(self._client.nthreads().values())
        return 3 * max(1, self._threads)

    def _watch(self, idle: bool) -> None:
        """Log a line when the cluster has lost its last worker, and one a minute until ``worker_timeout``."""
        if not idle or self._client.nthreads():
            self._lost = None
            return
        now = time.monotonic()
        if self._lost is None:
            self._lost = self._reminder = now
        waited = now - self._lost
        if waited >= self.worker_timeout:
            raise TimeoutError(
                f"the Dask scheduler has had no worker for {waited:.0f} s; finished cells are stored, add workers and "
                "run again"
            )
        if now >= self._reminder:
            self._reminder += _REMINDER
            remaining = self.worker_timeout - waited
            _LOG.warning("the Dask scheduler has no worker; the sweep stops in %.0f s unless one joins", remaining)


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
    """A cluster of local processes. A task whose worker dies fails at once: its cells are evaluated again."""
    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), starting(jobs):
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
