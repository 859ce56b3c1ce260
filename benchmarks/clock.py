"""The GPU's events, a kernel that waits, and the host's clock."""

from __future__ import annotations

import time
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.seeded import kernels
from benchmarks.sensors import Watch
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.plan import queue


class Clock:
    """The GPU's events and waiting kernel, and the host's clock; tests pass a simulation in its place."""

    now, sleep, watch = staticmethod(time.perf_counter), staticmethod(time.sleep), Watch

    def hold(self, seconds: float) -> None:
        """Let the GPU wait; subsequent launches queue up."""
        queue(kernels().step("hold", 1, 1, np.int64(seconds * 1e9), _longest()))

    def mark(self, number: int) -> None:
        """Queue an event."""
        device.check(device.driver().cuEventRecord(_events(number + 1)[number], 0))

    def passed(self, number: int) -> bool:
        """Return whether the GPU has reached an event."""
        (status,) = device.driver().cuEventQuery(_events(number + 1)[number])
        return bool(status.name == "CUDA_SUCCESS")

    def intervals(self, count: int) -> list[float]:
        """Return the seconds between the first `count` + 1 events, after the last of them."""
        cuda, events = device.driver(), _events(count + 1)
        device.check(cuda.cuEventSynchronize(events[count]))
        pairs = pairwise(events[: count + 1])
        return [float(device.check(cuda.cuEventElapsedTime(a, b))) * 1e-3 for a, b in pairs]

    def away(self) -> float:
        """Return the longest time in seconds in which the waiting kernel did not run since the last call."""
        longest = int(_longest().array(1, np.uint64)[0]) * 1e-9
        _longest().fill(0)
        return longest

    def synchronize(self) -> None:
        """Wait for the GPU."""
        device.synchronize()


_POOL: list[Any] = []


def _events(count: int) -> list[Any]:
    while len(_POOL) < count:
        _POOL.append(device.check(device.driver().cuEventCreate(0)))
    return _POOL


@cache
def _longest() -> Buffer:
    return Buffer.poisoned(8, 0)
