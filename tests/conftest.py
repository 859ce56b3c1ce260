"""Settings shared by all tests: reproducible hypothesis runs without a deadline (the first call compiles)."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.hostile import FACTOR, examples

# pytest-xdist sets it in its workers, and commands would wrap their tables
os.environ.pop("COLUMNS", None)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, in which the command also stores its results, without another folder of pages."""
    monkeypatch.chdir(tmp_path)
    for name in ("FPEMU_CACHE", "FPEMU_EXPERIMENTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def papers(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory whose subfolder ``papers`` is the folder of pages."""
    monkeypatch.setenv("FPEMU_EXPERIMENTS", str(workdir / "papers"))
    return workdir


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
