"""One product by one contender: its speed without and with the split, power and clock, errors, and the bits seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from fpemu.gpu import device
from fpemu.gpu.bench import choosing, contenders, timing
from fpemu.gpu.bench.groups import groups
from fpemu.gpu.bench.problem import Problem
from fpemu.gpu.bench.task import SEED, Task

KIND = "product"
_RATES = {
    "sgemm": 50, "tf32": 350, "fp16": 650, "three fp16": 220, "dgemm": 60, "staged": 230, "staged-int8": 300,
    "strassen": 250, "ootomo": 200, "legemm": 230, "markidis": 35, "h2sgemm": 50, "ozaki": 10, "ozimmu": 10,
    "ozaki CR": 30, "ozaki2": 45, "ozaki SP": 20, "legemm mma": 90, "ootomo mma": 90, "fp16 mma": 160,
}  # fmt: skip
"""TFLOP/s that contenders have about, by how their names begin, for `seconds`."""
_SLOWEST = 25
_FIXED = 0.05  # seconds a row beside its launches: memory, a sample by the emulator


def tasks(quick: bool) -> Iterator[Task]:
    """The rows of all groups, some more than once."""
    for group in groups(quick):
        for who in group.contenders:
            yield Task(KIND, *group.shape, group.data, who, group.rules, group.fmt, group.figures)


def make(task: Task) -> Problem:
    """Operands on the GPU."""
    return Problem(task.M, task.N, task.K, task.data, SEED, task.fmt)


def measure(task: Task, problem: Problem) -> dict[str, Any]:
    """The fields of a row."""
    ready = contenders.prepare(contenders.find(task.contender), problem)
    found: dict[str, Any] = dict(ready.about)
    rules = timing.RULES.get(task.rules)
    if rules is not None:
        found |= timing.fields(timing.measure(ready.multiply, rules[0]))
        if ready.split is not None:
            found |= timing.fields(timing.measure(ready.both, rules[1]), "split_")
        if ready.parts is not None:
            found |= ready.parts()
    device.synchronize()
    found |= asdict(problem.errors(ready.D))
    found["digest"] = problem.digest(ready.D)
    ready.both()
    device.synchronize()
    found["again"] = problem.digest(ready.D) == found["digest"]
    if ready.emulate is not None:
        A, B, D = problem.sample(ready.D)
        want = ready.emulate(A, B)
        found["checked"] = int(D.size)
        found["mismatches"] = int(np.count_nonzero(D.view(np.uint32) != np.asarray(want, np.float32).view(np.uint32)))
    return found


def seconds(task: Task) -> float:
    """About how long a row takes.

    >>> from fpemu.gpu.bench import battery
    >>> round(seconds(battery.tasks(["speed/frontier"])[0]), 1)
    2.7
    """
    known = [name for name in _RATES if task.contender.startswith(name)]
    each = 2e-12 * task.M * task.N * task.K / (_RATES[max(known, key=len)] if known else _SLOWEST)
    rules = timing.RULES.get(task.rules, ())
    again = 2 if task.fmt == "fp64" else 4  # the first product, the one whose bits are compared, errors
    return _FIXED + again * each + sum(timing.seconds(rule, each) for rule in rules[: 1 if task.fmt == "fp64" else 2])


def sources(task: Task) -> list[str]:
    """What the kernel of a row compiles, where that takes long."""
    who = contenders.find(task.contender)
    if who.scheme is None or task.fmt != "fp32":
        return []
    with suppress(Exception):  # it will be told where the row is measured
        return choosing.sources((task.M, task.N, task.K), who)
    return []
