"""A suite's products in processes side by side, of one thread each: kernels take longer to compile than to run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes; an interrupt is this process's business, and does not wait for what is under way."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _one_thread) as made:
        try:
            yield made
        except BaseException:
            processes = list(made._processes.values())
            made.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            raise


def side_by_side(
    one: Callable[..., Found],
    tasks: Sequence[Task],
    given: tuple[Any, ...],
    jobs: int,
    ended: Callable[[Task, str], Found],
) -> Iterator[Found]:
    """``one(task, *given)`` of each task, as they are done; ``ended(task, why)`` for one whose process died."""
    if jobs < 2:
        for task in tasks:
            yield one(task, *given)
        return
    with pool(jobs) as processes:
        waiting = {processes.submit(one, task, *given): task for task in tasks}
        for future in as_completed(waiting):
            try:
                yield future.result()
            except BrokenExecutor as problem:  # a process died of it, or beside it
                yield ended(waiting[future], f"its process ended: {problem}")


def _one_thread() -> None:
    os.environ["FPEMU_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
