"""The GPU's limits, measured beside the products: bandwidth of a copy, and the least time of a launch."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks import timing
from benchmarks.gpu.case import STEADY, Case
from benchmarks.gpu.steps import queued
from benchmarks.seeded import kernels
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import Buffer

KIND = "ceiling"
PAGE = "legemm/fig14"
NAMES = ("copy", "launch")
BYTES = 2**32
"""Bytes that the copy reads; it writes as many."""


def cases(quick: bool) -> list[Case]:
    """Return the cases."""
    return [Case(KIND, 0, 0, 0, "", name, STEADY, "fp32", (PAGE,)) for name in NAMES]


def copy() -> timing.Timing:
    """Time a copy of 4 GiB within the GPU's memory; both buffers have been written before."""
    source, target = Buffer.poisoned(BYTES), Buffer.poisoned(BYTES)
    cuda = device.driver()

    def queue() -> None:
        device.check(cuda.cuMemcpyDtoDAsync(target.pointer, source.pointer, BYTES, 0))

    return timing.measure(queue, timing.STEADY)


def launch() -> timing.Timing:
    """Time an empty kernel whose arguments are prepared once."""
    _, queue = queued([kernels().step("nothing", 1, 1)])
    return timing.measure(queue, timing.STEADY)


@cache
def copy_rate() -> float:
    """Return the bytes per second of `copy`, read and written; measured once."""
    return 2 * BYTES / copy().median


@cache
def launch_time() -> float:
    """Return the seconds of `launch`; measured once."""
    return launch().median


def measure(case: Case, operands: Any) -> dict[str, Any]:
    """Return the fields of a row; "bytes" are read and written."""
    if case.implementation == "launch":
        return {**timing.fields(launch()), "bytes": 0}
    return {**timing.fields(copy()), "bytes": 2 * BYTES}


def seconds(case: Case) -> float:
    """Estimate the seconds of a case."""
    return 0.2
