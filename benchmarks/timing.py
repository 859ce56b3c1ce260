"""The timer of all benchmarks: launches by the GPU's events, calls by the host's clock.

Launches are queued behind a kernel that only waits (`Clock.hold`), so that the host's time per launch is not counted:
short launches run back to back, as in a captured graph. `measure` times them by one of two methods:

`Sustained`, for products that heat the chip
    A power-limited chip has two speeds. After a pause, the first launches are timed one by one, with an event between
    two of them (launches below 0.2 ms are timed together, because an event costs about a microsecond); their median
    precedes the power limiter. Then launches without a pause are timed in up to 400 intervals; the median of the second
    half is the sustained speed, and power and clock are read meanwhile.
`Steady`, for short launches
    A sample is the mean of as many launches as take 0.4 ms, after some launches that do not count. A sample is dropped
    if the wait ended before the host had queued all of it. The result is the median of 11 samples, with their quartile
    ratio as the spread. All samples are taken again, up to 4 times, while the spread exceeds 1.1 or another process
    used the GPU; the set with the least spread is the result. `Timing.loop` is the wall time of a call in a Python loop
    with one synchronisation at its end.

If another process uses the GPU, the two alternate in turns of milliseconds. The waiting kernel measures the longest
time in which it did not run, `Timing.away`. `wall` times calls by the host's clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.clock import Clock
from benchmarks.sensors import Reading

Launch = Callable[[], object]
_INTERVALS = 400  # of a sustained run, at most
_QUEUED = 200  # launches in the queue during a sustained run, at most: a launch blocks from about a thousand on
_LONG = 2e-3  # seconds of a launch from which on the host is never late
_SHORT = 2e-4  # seconds below which the first launches are timed together
_LOOK = 8e-3  # seconds of the first wait, at least: longer than two turns of processes that share a GPU
_LONGEST_HOLD = 0.05
_POWER_RUN = 0.5  # seconds of a sustained run from which on power is read: the sensor averages over about a second
AWAY = 2e-4
"""Seconds in which the waiting kernel did not run, from which on another process used the GPU."""


@dataclass(frozen=True)
class Sustained:
    """The method for products that heat the chip."""

    idle: float = 1.0  # seconds without work before the first launches
    first: int = 10  # number of first launches
    run: float = 1.0  # seconds of the run without a pause; no such run if it is 0 or shorter than two launches
    most: float = 1.0  # limit in seconds of the first launches, of which there are at least three


@dataclass(frozen=True)
class Steady:
    """The method for short launches."""

    sample: float = 4e-4  # seconds of the launches of a sample, unless `launches` limits them
    launches: int = 160  # limit of the launches of a sample: about a thousand fit into the queue
    ahead: int = 10  # launches before each sample
    samples: int = 11
    run: float = 0.04  # limit in seconds of all samples, of which there are at least three
    spread: float = 1.1  # upper over lower quartile of the samples, beyond which all are taken again
    tries: int = 4  # limit of the sets of samples
    loop: float = 2e-3  # seconds of a loop of calls; 0: no loop
    loops: int = 5  # loops, whose median is the result


FULL = Sustained()
SHORT = Sustained(idle=0.1, run=0.15, most=0.2)
FIRST = Sustained(idle=0.1, run=0.0, most=0.2)
STEADY = Steady()
_AFTER = Sustained(idle=0.05, run=0.0, most=0.2)
RULES = {
    "full": (FULL, Sustained(idle=0.3, run=0.3)),
    "brief": (Sustained(run=0.5), _AFTER),
    "short": (SHORT, _AFTER),
    "first": (FIRST, _AFTER),
}
"""By name: the methods for a product alone, and for a product together with the split of its operands."""


@dataclass(frozen=True)
class Timing:
    """Seconds per launch."""

    median: float  # of the first launches, or of the samples
    least: float
    sustained: float | None = None  # median over the second half of the sustained run
    launches: int | None = None  # of the sustained run, or of one sample
    most: float | None = None  # the largest sample
    spread: float | None = None  # the samples' upper over their lower quartile
    samples: int | None = None  # number of samples
    tries: int | None = None  # number of sets of samples
    host: float | None = None  # the host's time to queue a launch
    loop: float | None = None  # wall time of a call in a loop
    away: float = 0.0  # the longest time in which the waiting kernel did not run
    reading: Reading | None = None  # power and clock in the second half of the sustained run

    def steady(self, method: Steady) -> bool:
        """Return whether the samples agree and no other process used the GPU."""
        return (self.spread or 1.0) <= method.spread and self.away <= AWAY


_NAMES = {"first_s": "median", "best_s": "least", "sustained_s": "sustained", "most_s": "most"}
_NAMES |= {name: name for name in ("spread", "samples", "launches", "tries")} | {"host_s": "host", "loop_s": "loop"}


def fields(timing: Timing, prefix: str = "") -> dict[str, Any]:
    """Return a timing as the fields of a record's row; power and clock only without a `prefix`."""
    row = {f"{prefix}{name}": value for name, of in _NAMES.items() if (value := getattr(timing, of)) is not None}
    if timing.reading is not None and not prefix:
        row |= {
            "power_W": timing.reading.power,
            "clock_MHz": timing.reading.clock,
            "limited_by": list(timing.reading.reasons),
        }
    return row | ({"away_s": timing.away} if timing.away > AWAY else {})


def seconds(method: Sustained, each: float) -> float:
    """Estimate the seconds of a measurement of launches of `each` seconds.

    >>> seconds(FIRST, 1e-3), seconds(FIRST, 1.0)
    (0.112, 5.1)
    """
    run = method.run if method.run >= 2 * each else 0.0
    return round(method.idle + (2 + _first(method, each)) * each + run, 4)


def wall(
    call: Launch,
    calls: int = 1,
    repeats: int = 1,
    *,
    synchronize: Callable[[], object] | None = None,
    wait: bool = False,
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds per call by the host's clock: the median of repetitions of some calls, one after another.

    `synchronize` is called around each repetition; with `wait`, the synchronisation at its end counts.
    """
    synchronize = synchronize or (lambda: None)
    durations = []
    for _ in range(repeats):
        synchronize()
        begun = now()
        for _ in range(calls):
            call()
        ended = now()
        synchronize()
        durations.append(((now() if wait else ended) - begun) / calls)
    return statistics.median(durations)


def measure(launch: Launch, method: Sustained | Steady, clock: Any = None) -> Timing:
    """Time a launch, which queues one product, on the GPU. If it waits for the GPU, that wait counts."""
    clock = clock or Clock()
    launch()
    clock.synchronize()
    begun = clock.now()
    launch()
    host = clock.now() - begun
    clock.synchronize()
    each = clock.now() - begun
    if isinstance(method, Sustained):
        return _sustained(launch, method, clock, host, each)
    return _steady(launch, method, clock, host, each)


def _queue(launch: Launch, clock: Any, counts: Sequence[int]) -> None:
    """Queue some launches between every two events."""
    clock.mark(0)
    for number, count in enumerate(counts, 1):
        for _ in range(count):
            launch()
        clock.mark(number)


def _timed(launch: Launch, clock: Any, counts: Sequence[int]) -> list[float]:
    """Return the seconds per launch between every two events."""
    _queue(launch, clock, counts)
    return [took / count for took, count in zip(clock.intervals(len(counts)), counts, strict=True)]


def _lead(host: float, launches: int) -> float:
    """Return the seconds of a wait in which the host has surely queued some launches."""
    return min(_LONGEST_HOLD, 1e-3 + 2 * launches * host)


def _first(method: Sustained, each: float) -> int:
    return min(method.first, max(3, round(method.most / each)))


def _sustained(launch: Launch, method: Sustained, clock: Any, host: float, each: float) -> Timing:
    clock.sleep(method.idle)
    clock.away()
    clock.hold(max(_LOOK, _lead(host, method.first)))
    first = _timed(launch, clock, [method.first] if each < _SHORT else [1] * _first(method, each))
    each = statistics.median(first)
    if method.run < 2 * each:
        return Timing(each, min(first), away=clock.away())
    watch = clock.watch() if method.run >= _POWER_RUN else None
    if each > 2 * host or each >= _LONG:  # the host runs ahead without a wait, or the launch waits for the GPU
        total = max(2, round(method.run / max(each, 1e-7)))
        many = -(-total // _INTERVALS)
        run = _timed(launch, clock, [many] * max(2, total // many))
    else:
        many = max(1, min(_QUEUED, round(method.run / each / 2)))
        run = []
        for _ in range(min(_INTERVALS, max(2, round(method.run / (many * each + _lead(host, many)))))):
            clock.hold(_lead(host, many))
            run += _timed(launch, clock, [many])
    reading = None if watch is None else watch.stop()
    return Timing(
        each, min(first), statistics.median(run[len(run) // 2 :]), len(run) * many, away=clock.away(), reading=reading
    )


# --- steady
def _steady(launch: Launch, method: Steady, clock: Any, host: float, each: float) -> Timing:
    if each < _LONG:
        host = wall(launch, 1, 6, synchronize=clock.synchronize, now=clock.now)
        each, _ = _sample(launch, clock, 4, 2, 4 * host)
    clock.away()
    tried: list[Timing] = []
    while not tried or (len(tried) < method.tries and not tried[-1].steady(method)):
        if tried:
            clock.sleep(0.05 * 2 ** len(tried))
            each, host = tried[-1].least, tried[-1].host or host
        tried.append(_samples(launch, clock, method, each, host))
    best = min(tried, key=lambda timing: (timing.away > AWAY, timing.spread or 1.0))
    best = replace(best, tries=len(tried))
    if not method.loop:
        return best
    each = max(best.median, host, 1e-7)
    calls, loops = max(2, min(1000, round(method.loop / each))), method.loops if each < _LONG else 1
    loop = wall(launch, calls, loops, synchronize=clock.synchronize, wait=True, now=clock.now)
    return replace(best, loop=loop)


def _samples(launch: Launch, clock: Any, method: Steady, each: float, host: float) -> Timing:
    """Take all samples once. Those for which the host was late are dropped, and lengthen the next wait."""
    count = max(1, min(method.launches, round(method.sample / max(each, 1e-7))))
    wanted = max(3, min(method.samples, round(method.run / max(count * each, 1e-7))))
    ahead = method.ahead if each < _LONG else int(each < 10 * _LONG)
    samples: list[float] = []
    late: list[float] = []
    clock.hold(_LOOK)
    while len(samples) < wanted and len(late) < wanted:
        took, queued = _sample(launch, clock, count, ahead, host)
        if queued is None:
            samples.append(took)
        else:
            late.append(took)
            host = min(max(1.5 * host, 1.2 * queued), _LONGEST_HOLD / count)
    samples = samples or late  # calls that wait for the GPU never queue up: their whole time counts
    samples.sort()
    quarter = (len(samples) - 1) // 4
    return Timing(
        statistics.median(samples),
        samples[0],
        launches=count,
        most=samples[-1],
        spread=samples[-1 - quarter] / samples[quarter],
        samples=len(samples),
        host=host,
        away=clock.away(),
    )


def _sample(launch: Launch, clock: Any, count: int, ahead: int, host: float) -> tuple[float, float | None]:
    """Return the seconds per launch and, if the wait ended before all were queued, the host's time for one."""
    clock.hold(_lead(host, count + ahead))
    begun = clock.now()
    _queue(launch, clock, (ahead, count))
    queued = (clock.now() - begun) / (count + ahead)
    late = clock.passed(0)
    took = clock.intervals(2)[1] / count
    return took, queued if late and took < 4 * queued else None
