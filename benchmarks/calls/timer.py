"""The timer of whole calls: the calls of a case alternate, so that all of them see the same clocks and temperature."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks import timing

Call = Callable[[], object]
Row = dict[str, Any]
HOST, WHOLE = 15, 7
"""Repetitions of a host time, and of a time until the GPU has finished."""
CALLS, LONGEST = 50, 0.03
"""Calls of a repetition, and the seconds from which on a repetition has fewer of them, but at least three."""
TURN, RUN = 0.2, 1.6
"""Seconds of a repetition of sustained calls, at least one call; seconds of all repetitions of a call."""


class Timer:
    """PyTorch on the GPU: operands, CUDA graphs, and times of calls. Tests replace PyTorch and the clock."""

    def __init__(self, torch: Any = None, now: Callable[[], float] = time.perf_counter) -> None:
        self.torch, self._now = torch or importlib.import_module("torch"), now
        self.torch.backends.cuda.matmul.allow_tf32 = False

    def draw(self, *shape: int, dtype: str = "float32") -> Any:
        """Return a normally distributed tensor on the GPU."""
        return self.torch.randn(*shape, dtype=getattr(self.torch, dtype), device="cuda")

    def graph(self, call: Call) -> Call:
        """Return the replay of a call that is captured in a CUDA graph after three eager calls."""
        for _ in range(3):
            call()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            call()
        replay: Call = graph.replay
        return replay

    def host(self, calls: Mapping[str, Call]) -> Row:
        """Return the host time of each call in microseconds: calls are queued without waiting for the GPU."""
        return self._median(calls, HOST, wait=False)

    def whole(self, calls: Mapping[str, Call]) -> Row:
        """Return the time of each call in microseconds, until the GPU has finished the last call of a repetition."""
        return self._median(calls, WHOLE, wait=True)

    def whole_and_replayed(self, calls: Mapping[str, Call]) -> Row:
        """Return the times of each call and, named with " graph", of its replay from a CUDA graph."""
        return self.whole(dict(calls) | {f"{name} graph": self.graph(call) for name, call in calls.items()})

    def sustained(self, calls: Mapping[str, Call]) -> Row:
        """Return the time of each call in microseconds while power limits the chip, until the GPU has finished.

        The calls alternate without a pause. The median of the second half of the repetitions is the result.
        """
        turn = partial(timing.wall, synchronize=self.torch.cuda.synchronize, now=self._now, wait=True)
        counts: dict[str, int] = {}
        for name, call in calls.items():
            turn(call)  # compiles and records
            counts[name] = max(1, int(TURN / turn(call, 3)))
        samples: dict[str, list[float]] = {name: [] for name in calls}
        end = self._now() + RUN * len(calls)
        while self._now() < end or len(samples[next(iter(calls))]) < 3:
            for name, call in calls.items():
                samples[name].append(turn(call, counts[name]))
        return {name: round(1e6 * statistics.median(t[len(t) // 2 :]), 2) for name, t in samples.items()}

    def _median(self, calls: Mapping[str, Call], repetitions: int, *, wait: bool) -> Row:
        wall = partial(timing.wall, synchronize=self.torch.cuda.synchronize, now=self._now)
        counts, samples = {}, {}
        for name, call in calls.items():
            wall(call, 3)  # compiles and records
            each = wall(call, 3, wait=True)
            counts[name], samples[name] = max(3, min(CALLS, int(LONGEST / each))), list[float]()
        for _ in range(repetitions):
            for name, call in calls.items():
                samples[name].append(wall(call, counts[name], wait=wait))
        return {name: round(1e6 * statistics.median(times), 2) for name, times in samples.items()}
