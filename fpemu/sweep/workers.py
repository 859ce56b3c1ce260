"""Evaluation of cells: in this process, by local worker processes, or by the workers of a Dask cluster.

An executor is one of `concurrent.futures`. With a scheduler's address an existing cluster is used, whose workers need
the same fpemu and NumPy, and a page of an experiments folder at the same path. Without one, a cluster of local
processes is started. Only the process of `fpemu.sweep.run` writes to the store.

An exception in a cell is stored as its error, and the other cells continue. A worker process that dies (out of memory,
for example) takes the submitted cells with it: these cells are evaluated again one at a time, and a cell whose worker
dies a second time has failed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fpemu.errors import InputError, require
from fpemu.mma.device import Device, resolve
from fpemu.parallel import cores, threads
from fpemu.sweep import store
from fpemu.sweep.store import Cell, Entry, Values

if TYPE_CHECKING:
    from fpemu.sweep.run import Job

Batches = Generator[list[Entry], None, None]
Evaluate = Callable[..., Mapping[str, Any]]
Loader = tuple[Callable[..., Any], tuple[Any, ...]]
DIED = "its worker process died twice: killed, or out of memory"
PATIENCE = 5.0
"""Seconds that a Dask scheduler, and then its first worker, have to answer."""
_REMINDER = 60.0
"""Seconds between two log lines about a cluster without workers."""
_BATCH_SECONDS = 0.05
"""Quick cells of this process are stored together for this long: a transaction costs milliseconds."""
_WATCH_SECONDS = 2.0
_LOG = logging.getLogger("fpemu.sweep")


class WorkerError(InputError):
    """A worker cannot evaluate any cell: its code differs, or it lacks the page or a GPU."""


def attempt(evaluate: Evaluate, name: str, cell: Cell, device: Device) -> Entry:
    """Evaluate one cell: an entry with its numbers, or the error as text, since not every exception can be pickled."""
    start = time.perf_counter()
    values: Values | None
    try:
        values, error = store.as_numbers(evaluate(cell, device)), ""
    except (Exception, SystemExit) as problem:
        kind = "" if isinstance(problem, InputError) else f"{type(problem).__name__}: "
        values, error = None, " ".join(f"{kind}{problem}".split())
    return Entry(name, cell, values, error, time.perf_counter() - start)


def here(job: Job, todo: Mapping[str, Cell], device: Device) -> Batches:
    """Evaluate one cell after another in this process."""
    batch, since = list[Entry](), time.perf_counter()
    try:
        for name, cell in todo.items():
            batch.append(attempt(job.evaluate, name, cell, device))
            if time.perf_counter() - since > _BATCH_SECONDS:
                yield batch
                batch, since = [], time.perf_counter()
    except KeyboardInterrupt:
        yield batch  # finished cells are stored before the interrupt is raised
        raise
    yield batch


@functools.lru_cache(maxsize=8)
def _loaded(loader: Loader) -> tuple[Evaluate, str]:
    """In a worker: the function of a job, and the digest of the code there."""
    load, arguments = loader
    job = load(*arguments)
    return job.evaluate, store.code(job.sources)


def _work(loader: Loader, name: str, cell: Cell, device: Device) -> tuple[str, str, Entry]:
    """In a worker: return the digest of its code, its NumPy, and a cell's entry."""
    try:
        if device == "cuda":
            resolve("cuda")
        evaluate, code = _loaded(loader)
    except Exception as problem:
        raise WorkerError(f"a worker cannot evaluate the cells: {problem}") from problem
    return code, np.__version__, attempt(evaluate, name, cell, device)


class Workers:
    """Local worker processes, started by the first cells and kept until `close`, each with its share of the cores.

    Parameters
    ----------
    jobs : int
        Largest number of processes.
    """

    _death: type[BaseException] = BrokenProcessPool
    """Raised by a future whose worker died."""

    def __init__(self, jobs: int) -> None:
        self.jobs = min(jobs, 61) if sys.platform == "win32" else jobs  # the limit of ProcessPoolExecutor on Windows
        self._pool: ProcessPoolExecutor | None = None

    def evaluate(self, job: Job, code: str, todo: Mapping[str, Cell], device: Device) -> Batches:
        """Evaluate cells and yield their entries as they arrive.

        Raises
        ------
        WorkerError, ConnectionError
            No worker can evaluate the cells, or the scheduler is lost.
        """
        left = dict(todo)
        try:
            while left:
                suspects = yield from self._round(job, code, left, device)
                if suspects:
                    self._restart()
                for name in suspects:
                    cell = left.pop(name)
                    if (yield from self._round(job, code, {name: cell}, device)):
                        self._restart()
                        yield [Entry(name, cell, None, DIED, 0.0)]
        except BaseException:  # on Ctrl-C, or when results cannot be stored: do not wait for long cells
            self.close(at_once=True)
            raise

    def _round(
        self, job: Job, code: str, left: dict[str, Cell], device: Device
    ) -> Generator[list[Entry], None, list[str]]:
        """Evaluate the cells of ``left`` and remove those that finish; return the keys submitted when a worker died."""
        pool, queue, lost = self._connect(), list(reversed(left.items())), list[str]()
        waiting: dict[Future[tuple[str, str, Entry]], str] = {}
        while queue or waiting:
            free = self._window() - len(waiting)
            with self._starting():
                while queue and free > 0 and not lost:
                    (name, cell), free = queue.pop(), free - 1
                    try:
                        waiting[pool.submit(_work, job.loader, name, cell, device)] = name
                    except self._death:
                        lost.append(name)
            if not waiting:
                break
            finished = wait(waiting, timeout=_WATCH_SECONDS, return_when=FIRST_COMPLETED).done
            self._watch(idle=not finished)
            batch = []
            for future in finished:
                name = waiting.pop(future)
                try:
                    batch.append(_checked(code, *future.result()))
                except self._death:
                    lost.append(name)
                except WorkerError:
                    raise
                except CancelledError as problem:
                    raise ConnectionError("the workers are gone") from problem
                except Exception as problem:
                    raise WorkerError(f"a worker cannot take a cell: {type(problem).__name__}: {problem}") from problem
                else:
                    del left[name]
            if batch:
                yield batch
        return lost

    def _connect(self) -> Executor:
        """Return the executor, started where necessary."""
        if self._pool is None:
            # spawn: a fork would copy the compiled kernels' thread pool in an unusable state
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.jobs, mp_context=context, initializer=_prepare)
        return self._pool

    def _restart(self) -> None:
        """Replace the executor after the death of a worker."""
        self.close(at_once=True)
        try:
            with self._starting():
                started = self._connect().submit(os.getpid)
            started.result()
        except BrokenProcessPool as problem:
            raise InputError(
                "worker processes end as soon as they start; a script that runs a sweep with jobs > 1 must do so under "
                "if __name__ == '__main__'"
            ) from problem

    def _window(self) -> int:
        """Return the number of cells that are submitted at a time."""
        return 3 * self.jobs

    def _watch(self, idle: bool) -> None:
        """Raise an error if no cell can finish; ``idle`` after every `_WATCH_SECONDS` in which none does."""

    def _starting(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which cells are submitted, since that may start a process."""
        return starting(self.jobs)

    def close(self, *, at_once: bool = False) -> None:
        """End the workers, with ``at_once`` in the middle of a cell; the next `evaluate` starts others."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list(pool._processes.values()) if at_once and pool._processes else ():
            process.terminate()
        pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _checked(code: str, there: str, numpy: str, entry: Entry) -> Entry:
    """Return the entry of a worker that runs the same code as this process."""
    if (there, numpy) != (code, np.__version__):
        raise WorkerError(
            f"a worker has other code than this process: code {there[:12]}, NumPy {numpy} there, "
            f"{code[:12]}, {np.__version__} here; install the same versions on all machines"
        )
    return entry


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
            self._stack.enter_context(_silent_dask())
            self._client = self._stack.enter_context(_client(distributed, self.scheduler, self.jobs))
        return self._client.get_executor(pure=False)

    def _restart(self) -> None:
        """Leave the executor: the cluster replaces a worker."""

    def _starting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self, *, at_once: bool = False) -> None:
        self._client = None
        self._stack.close()

    def _round(
        self, job: Job, code: str, left: dict[str, Cell], device: Device
    ) -> Generator[list[Entry], None, list[str]]:
        try:
            return (yield from super()._round(job, code, left, device))
        except Exception as problem:
            lost = self._client is not None and self._client.status != "running"
            if not lost and not isinstance(problem, ConnectionError):
                raise
            raise ConnectionError("lost the Dask scheduler; finished cells are stored, run again later") from problem

    def _window(self) -> int:
        """Three cells for each thread that the cluster has now: workers may join and leave."""
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
    """Connect to a scheduler, or start a cluster of local processes."""
    with contextlib.ExitStack() as stack:
        failure = "no local Dask cluster starts"
        try:
            address: Any = scheduler
            if scheduler is None:
                address = stack.enter_context(_local_cluster(distributed, jobs))
            else:
                failure = f"no Dask scheduler answers at {scheduler} within {PATIENCE:g} s"
                distributed.comm.resolve_address(scheduler)  # a client with a wrong one takes long to close
            client = stack.enter_context(distributed.Client(address, timeout=PATIENCE, set_as_default=False))
        except (RuntimeError, OSError, ValueError) as problem:
            raise InputError(f"{failure}: {problem}") from problem
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as problem:
            raise InputError(f"the Dask scheduler at {scheduler} has no worker") from problem
        yield client


def _local_cluster(distributed: Any, jobs: int) -> Any:
    import dask

    # a task whose worker dies fails at once: its cell is evaluated again alone
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), starting(jobs):
        return distributed.LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            env=share(jobs),
            silence_logs=logging.CRITICAL,
        )


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
def share(jobs: int) -> dict[str, str]:
    """Return the environment variables of ``jobs`` processes that run side by side.

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
