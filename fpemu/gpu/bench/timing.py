"""How fast launches are on the GPU at hand, by its own events.

A power-limited chip has two speeds, and both are measured: the median of the first launches after a pause, before the
limiter acts, and the median of the second half of a run without a pause. Launches queue up behind a kernel that only
waits, so that what the host needs to launch is not counted: small products are timed as a captured graph would be.

Where another process has work for the GPU too, they take turns of milliseconds. The kernel that waits sees how long it
was not run; a row of such a time says so ("away_s").
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fpemu.gpu import device
from fpemu.gpu.bench.sensors import Reading, Watch
from fpemu.gpu.device import Buffer

_MARKS = 400  # intervals of a run, at most
_QUEUED = 200  # launches that wait in the queue, at most: beyond about a thousand a launch itself waits
_SLOW = 2e-3  # seconds a launch from which on the host is never late
_SMALL = 2e-4  # seconds below which the first launches are timed together: an event between two costs a microsecond
_LOOK = 5e-3  # seconds of the wait before the first launches, at least: other processes take turns of half as long
AWAY = 2e-4
"""Seconds in which a kernel that waits was not run, from which on another process had the GPU."""
_STEADY = 0.5  # seconds of a run from which on power is read: the sensor's own mean is taken over about a second


@dataclass(frozen=True)
class Rules:
    """How a speed is measured.

    Parameters
    ----------
    idle : float
        Seconds without work before the first launches.
    first : int
        How many they are.
    run : float
        Seconds of the run without a pause; 0, or too few for two launches: none.
    most : float
        Seconds of the first launches beyond which there are fewer of them, but three.
    """

    idle: float = 1.0
    first: int = 10
    run: float = 1.0
    most: float = 1.0


FULL = Rules()
SHORT = Rules(idle=0.1, run=0.15, most=0.2)
FIRST = Rules(idle=0.1, run=0.0, most=0.2)
"""For the many points of a figure; `FIRST` where it shows the first launches alone."""
_AFTER = Rules(idle=0.05, run=0.0, most=0.2)
RULES = {
    "full": (FULL, Rules(idle=0.3, run=0.3)), "brief": (Rules(run=0.5), _AFTER), "short": (SHORT, _AFTER),
    "first": (FIRST, _AFTER),
}  # fmt: skip
"""By name: how a product is timed, and how with its split."""


@dataclass(frozen=True)
class Speed:
    """Seconds a launch.

    Parameters
    ----------
    first, best : float
        Median and least of the first launches.
    sustained : float or None
        Median over the second half of the run.
    launches : int
        Of the run.
    host : float
        What the host needs to queue one.
    reading : Reading or None
        Power and clock in the second half of the run.
    away : float
        The longest time in which a wait beside the launches was not run.
    """

    first: float
    best: float
    sustained: float | None
    launches: int
    host: float
    reading: Reading | None
    away: float = 0.0


def fields(speed: Speed, before: str = "") -> dict[str, Any]:
    """A speed as the fields of a row, `before` at the head of their names; power and clock where there is no such."""
    found: dict[str, Any] = {f"{before}first_s": speed.first, f"{before}best_s": speed.best}
    if speed.sustained is not None:
        found |= {f"{before}sustained_s": speed.sustained, f"{before}launches": speed.launches}
    if speed.reading is not None and not before:
        found |= {"power_W": speed.reading.power, "clock_MHz": speed.reading.clock,
                  "limited_by": list(speed.reading.reasons)}  # fmt: skip
    if speed.away > AWAY:
        found["away_s"] = speed.away
    return found


def seconds(rules: Rules, each: float) -> float:
    """About how long a measurement takes of launches of `each` seconds.

    >>> seconds(FIRST, 1e-3), seconds(FIRST, 1.0)
    (0.112, 5.1)
    """
    run = rules.run if rules.run >= 2 * each else 0.0
    return round(rules.idle + (2 + min(rules.first, max(3, round(rules.most / each)))) * each + run, 4)


class Marks:
    """Moments on the GPU, in the order in which they were queued."""

    def __init__(self, count: int) -> None:
        self._events = _events(count)[:count]

    def record(self, which: int) -> None:
        """Queue the event of a number."""
        device.check(device._enter().cuEventRecord(self._events[which], 0))

    def seconds(self, count: int) -> list[float]:
        """Between the first `count` + 1 marks, once the last has passed."""
        cuda = device._enter()
        device.check(cuda.cuEventSynchronize(self._events[count]))
        pairs = zip(self._events[:count], self._events[1 : count + 1], strict=True)
        return [float(device.check(cuda.cuEventElapsedTime(a, b))) * 1e-3 for a, b in pairs]


_POOL: list[Any] = []


def _events(count: int) -> list[Any]:
    cuda = device._enter()
    while len(_POOL) < count:
        _POOL.append(device.check(cuda.cuEventCreate(0)))
    return _POOL


@cache
def kernels() -> device.Module:
    """The kernels of a measurement."""
    return device.Module(device.kernel_source("bench.cu"), name="bench.cu")


@cache
def _longest() -> Buffer:
    return Buffer.poisoned(8, 0)


def hold(seconds: float) -> None:
    """Let the GPU wait; what is launched meanwhile queues up."""
    kernels().launch("hold", 1, 1, np.int64(seconds * 1e9), _longest(), wait=False)


def away() -> float:
    """The longest time, in seconds, in which a kernel that waits was not run, since this was last asked."""
    found = int(_longest().array(1, np.uint64)[0]) * 1e-9
    _longest().fill(0)
    return found


def measure(
    launch: Callable[[], None], rules: Rules, *, marks: Callable[[int], Any] = Marks,
    hold: Callable[[float], None] = hold, synchronize: Callable[[], None] = device.synchronize,
    sleep: Callable[[float], None] = time.sleep, watch: Callable[[], Any] = Watch, away: Callable[[], float] = away,
) -> Speed:  # fmt: skip
    """Time what `launch` queues.

    Parameters
    ----------
    launch : callable
        Queues one product; it may wait for the GPU, which then counts.
    rules : Rules
    marks, hold, synchronize, sleep, watch, away
        What measures, for tests.

    Raises
    ------
    GpuError
        If a launch fails.
    """
    launch()
    synchronize()
    begun = time.perf_counter()
    launch()
    host = time.perf_counter() - begun
    synchronize()
    each = time.perf_counter() - begun
    sleep(rules.idle)
    away()

    moments = marks(max(rules.first, _MARKS) + 1)
    hold(max(_LOOK, _room(host, rules.first)))
    if each < _SMALL:
        first = [t / rules.first for t in _timed(launch, moments, 1, rules.first)]
    else:
        first = _timed(launch, moments, min(rules.first, max(3, round(rules.most / each))), 1)
    each = statistics.median(first)
    if rules.run < 2 * each:
        return Speed(each, min(first), None, 0, host, None, away())

    total = max(2, round(rules.run / max(each, 1e-7)))
    sampled = watch() if rules.run >= _STEADY else None
    if each > 2 * host or each >= _SLOW:  # the host runs ahead by itself, or the launch waits for the GPU
        many = -(-total // _MARKS)
        count = max(2, total // many)
        run = [t / many for t in _timed(launch, moments, count, many)]
    else:
        run, count, many = _held(launch, moments, hold, rules.run, each, host)
    reading = None if sampled is None else sampled.stop()
    return Speed(each, min(first), statistics.median(run[len(run) // 2 :]), count * many, host, reading, away())


def _timed(launch: Callable[[], None], moments: Any, count: int, many: int) -> list[float]:
    """Seconds of `count` times `many` launches."""
    moments.record(0)
    for number in range(count):
        for _ in range(many):
            launch()
        moments.record(number + 1)
    found: list[float] = moments.seconds(count)
    return found


def _held(
    launch: Callable[[], None], moments: Any, hold: Callable[[float], None], run: float, each: float, host: float
) -> tuple[list[float], int, int]:
    """Rounds of launches behind a wait, for about `run` seconds: seconds a launch of each round."""
    many = max(1, min(_QUEUED, round(run / each / 2)))
    rounds = min(_MARKS, max(2, round(run / (many * each + _room(host, many)))))
    found = []
    for _ in range(rounds):
        hold(_room(host, many))
        found += [t / many for t in _timed(launch, moments, 1, many)]
    return found, rounds, many


def _room(host: float, launches: int) -> float:
    """Seconds in which the host has surely queued some launches."""
    return min(0.05, 1e-3 + 2 * launches * host)
