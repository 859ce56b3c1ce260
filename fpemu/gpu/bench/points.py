"""How long short launches take: the median of many samples, each of many launches that queued up behind a wait.

The samples of a launch that takes microseconds can mislead in ways that those of a long one do not. The host is late:
then the GPU runs dry, and the sample is dropped. The queue starts slowly: some launches go before those that count.
Another process has work for the GPU: then samples differ, or the wait was not run for a while (`timing.AWAY`). Where
that is seen, all is measured again. Beside the GPU's own time there is that of a loop: calls one after another from the
host, as a caller makes them, with one wait for the GPU at the end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fpemu.gpu import device
from fpemu.gpu.bench import timing

_LOOK = 8e-3  # seconds of a wait: longer than two turns of processes that share a GPU
_MOST = 0.05  # seconds of a wait
_LONG = 2e-3  # seconds of a launch from which on it is not repeated more often than has to be


@dataclass(frozen=True)
class Rules:
    """How a point is measured.

    Parameters
    ----------
    sample : float
        Seconds of the launches of a sample, where `launches` are not fewer.
    launches : int
        Of a sample, at most: more than about a thousand kernels do not queue up.
    ahead : int
        Launches before those of a sample.
    samples : int
    run : float
        Seconds of all samples beyond which there are fewer of them, but three.
    spread : float
        Upper over lower quartile of the samples, beyond which all are taken again.
    tries : int
        At most.
    loop : float
        Seconds of a loop of calls; 0: none.
    loops : int
        Of which the median counts.
    """

    sample: float = 4e-4
    launches: int = 160
    ahead: int = 10
    samples: int = 11
    run: float = 0.04
    spread: float = 1.1
    tries: int = 4
    loop: float = 2e-3
    loops: int = 5


RULES = Rules()
NAME = "point"
"""What records call them."""


@dataclass(frozen=True)
class Point:
    """Seconds a launch.

    Parameters
    ----------
    median, least, most : float
        Of the samples.
    spread : float
        Their upper over their lower quartile.
    samples, launches : int
        How many, and launches of one.
    tries : int
        How often all were taken, until they were steady; the steadiest are kept.
    away : float
        The longest time in which a wait beside the kept ones was not run.
    host : float
        What the host needs to queue a launch.
    loop : float or None
        A call of a loop.
    """

    median: float
    least: float
    most: float
    spread: float
    samples: int
    launches: int
    tries: int
    away: float
    host: float
    loop: float | None

    def steady(self, rules: Rules) -> bool:
        """Whether samples agree and no other process had the GPU."""
        return self.spread <= rules.spread and self.away <= timing.AWAY


class Clock:
    """The GPU's events and the host's clock, for measurements and, replaced, for tests."""

    def hold(self, seconds: float) -> None:
        """Let the GPU wait."""
        timing.hold(seconds)

    def mark(self, which: int) -> None:
        """Queue a moment: 0 the end of the wait, 1 the begin of what counts, 2 its end."""
        device.check(device._enter().cuEventRecord(timing._events(3)[which], 0))

    def passed(self, which: int) -> bool:
        """Whether the GPU is there already."""
        (status,) = device._enter().cuEventQuery(timing._events(3)[which])
        return bool(status.name == "CUDA_SUCCESS")

    def between(self) -> float:
        """Seconds from moment 1 to moment 2, once that has passed."""
        cuda, (_, one, two) = device._enter(), timing._events(3)[:3]
        device.check(cuda.cuEventSynchronize(two))
        return float(device.check(cuda.cuEventElapsedTime(one, two))) * 1e-3

    def away(self) -> float:
        """See `timing.away`."""
        return timing.away()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        device.synchronize()

    def now(self) -> float:
        """Seconds of the host."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Do nothing."""
        time.sleep(seconds)


def measure(launch: Callable[[], None], rules: Rules, clock: Any = None) -> Point:
    """Time what `launch` queues.

    Parameters
    ----------
    launch : callable
        Queues one product.
    rules : Rules
    clock : Clock, optional
        What measures.

    Raises
    ------
    GpuError
        If a launch fails.
    """
    clock = clock or Clock()
    launch()
    clock.synchronize()
    begun = clock.now()
    launch()
    host = clock.now() - begun
    clock.synchronize()
    each = clock.now() - begun
    if each < _LONG:
        host = _host(launch, clock)
        each, _ = _sample(launch, clock, 4, 2, 4 * host)
    clock.away()
    best: Point | None = None
    for number in range(rules.tries):
        if number:
            clock.sleep(0.05 * 2**number)
        found = _samples(launch, clock, rules, each, host)
        if best is None or _roughness(found) < _roughness(best):
            best = found
        if found.steady(rules):
            break
        each, host = found.least, found.host
    assert best is not None
    loop = _loop(launch, clock, rules, max(best.median, host)) if rules.loop else None
    return replace(best, tries=number + 1, loop=loop)


def _host(launch: Callable[[], None], clock: Any) -> float:
    """Seconds that the host needs to queue one."""
    found = []
    for _ in range(6):
        begun = clock.now()
        launch()
        found.append(clock.now() - begun)
    clock.synchronize()
    return statistics.median(found)


def _samples(launch: Callable[[], None], clock: Any, rules: Rules, each: float, host: float) -> Point:
    """All samples once; those for which the host was late are dropped, and the next wait longer."""
    count = max(1, min(rules.launches, round(rules.sample / max(each, 1e-7))))
    wanted = max(3, min(rules.samples, round(rules.run / max(count * each, 1e-7))))
    ahead = rules.ahead if each < _LONG else int(each < 10 * _LONG)
    found: list[float] = []
    late: list[float] = []
    slowest = host
    clock.hold(_LOOK)
    while len(found) < wanted and len(late) < wanted:
        took, queued = _sample(launch, clock, count, ahead, slowest)
        if queued is None:
            found.append(took)
        else:
            late.append(took)
            slowest = min(max(1.5 * slowest, 1.2 * queued), _MOST / count)
    found = found or late  # calls that wait for the GPU never queue up: what they take counts
    low, high = quartiles(found)
    return Point(statistics.median(found), min(found), max(found), high / low, len(found), count, 1, clock.away(),
                 slowest, None)  # fmt: skip


def _sample(launch: Callable[[], None], clock: Any, count: int, ahead: int, host: float) -> tuple[float, float | None]:
    """Seconds a launch, and, if the wait was over before all were queued, what the host needed for one."""
    clock.hold(3e-4 + 1.3 * (count + ahead) * host)
    clock.mark(0)
    begun = clock.now()
    for _ in range(ahead):
        launch()
    clock.mark(1)
    for _ in range(count):
        launch()
    clock.mark(2)
    queued = (clock.now() - begun) / (count + ahead)
    late = clock.passed(0)
    took = clock.between() / count
    return took, queued if late and took < 4 * queued else None


def _loop(launch: Callable[[], None], clock: Any, rules: Rules, each: float) -> float:
    """Seconds of a call among calls one after another, the wait for the GPU at their end counted."""
    count = max(2, min(1000, round(rules.loop / max(each, 1e-7))))
    found = []
    for _ in range(rules.loops if each < _LONG else 1):
        clock.synchronize()
        begun = clock.now()
        for _ in range(count):
            launch()
        clock.synchronize()
        found.append((clock.now() - begun) / count)
    return statistics.median(found)


def _roughness(point: Point) -> tuple[bool, float]:
    return point.away > timing.AWAY, point.spread


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper one.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0]), quartiles([1.0])
    ((2.0, 4.0), (1.0, 1.0))
    """
    known = sorted(values)
    part = (len(known) - 1) // 4
    return known[part], known[len(known) - 1 - part]


def fields(point: Point) -> dict[str, Any]:
    """As the fields of a row; "first_s" is the median."""
    found = {
        "first_s": point.median, "best_s": point.least, "most_s": point.most, "spread": point.spread,
        "samples": point.samples, "launches": point.launches, "tries": point.tries, "host_s": point.host,
    }  # fmt: skip
    if point.loop is not None:
        found["loop_s"] = point.loop
    if point.away > timing.AWAY:
        found["away_s"] = point.away
    return found
