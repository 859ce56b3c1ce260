"""Settings shared by all tests: reproducible hypothesis runs without a deadline (the first call compiles)."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.hostile import FACTOR, examples

# pytest-xdist sets it in its workers, and commands would wrap their tables
os.environ.pop("COLUMNS", None)

settings.register_profile(
    "fpemu",
    deadline=None,
    derandomize=FACTOR == 1,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("fpemu")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts its background jobs like that, and the commands that the tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The workers of ``-n auto``: one more than cores, since some tests wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the modules and the collected tests from garbage collection: one pass over them takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
