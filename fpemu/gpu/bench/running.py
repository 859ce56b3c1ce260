"""The measurement: rows one after another, each kept as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import numpy as np

import fpemu
from fpemu.gpu import device
from fpemu.gpu.bench import applications, ceilings, choosing, contenders, library, timing
from fpemu.gpu.bench.battery import Task
from fpemu.gpu.bench.problem import Problem
from fpemu.gpu.bench.record import FORMAT, Record, Row
from fpemu.gpu.verification import records

RULES = {
    "full": (timing.FULL, timing.FULL_SPLIT), "brief": (timing.BRIEF, timing.SHORT_SPLIT),
    "short": (timing.SHORT, timing.SHORT_SPLIT),
}  # fmt: skip
_SECONDS = {"full": 3.5, "brief": 2.5, "short": 1.0, "errors": 0.7}
"""What a row takes about, for the budget."""
SEED = 20260101


def head(date: str | None = None) -> dict[str, Any]:
    """What a record says of its making."""
    here = {**device.describe(), "driver": records.driver(), "library": library.version()}
    run = {"date": date or datetime.now(UTC).date().isoformat(), "fpemu": fpemu.__version__, "numpy": np.__version__,
           **here}  # fmt: skip
    rules = {name: [asdict(rule) for rule in both] for name, both in RULES.items()}
    return {"format": FORMAT, "device": here, "seed": SEED, "rules": rules, "runs": [run]}


def rows(
    tasks: Sequence[Task], record: Record, *, budget: float | None = None, retry: bool = True,
    evaluate: Callable[[Task, Any], Mapping[str, Any]] | None = None, make: Callable[[Task], Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:  # fmt: skip
    """Measure what the record lacks, row by row; each is entered before it is given.

    Parameters
    ----------
    tasks : sequence of Task
    record : Record
    budget : float, optional
        Seconds after which no row is begun.
    retry : bool
        Whether rows that failed are tried again.
    evaluate, make, clock
        What measures, for tests.

    Yields
    ------
    dict
        The row; with "failed" where it could not be measured.
    """
    begun, number = clock(), len(record.head["runs"]) - 1
    evaluate = evaluate or measure
    todo = [task for task in tasks if not record.done(task.wanted)]
    if not retry:
        failed = {tuple(row[n] for n in task_key) for task_key in (tuple(tasks[0].wanted),) for row in record.rows}
        todo = [task for task in todo if tuple(task.wanted.values()) not in failed]
    for _, group in groupby(todo, key=lambda t: (t.kind, t.M, t.N, t.K, t.data, t.fmt)):
        made: Any = None
        for task in group:
            if budget is not None and clock() - begun + _SECONDS[task.rules] > budget:
                return
            start = clock()
            try:
                if made is None:
                    made = (make or _problem)(task)
                found = dict(evaluate(task, made))
            except choosing.MissingKernelError as problem:
                found = {"failed": f"not there: {problem}"}
            except Exception as problem:
                said = " ".join(str(problem).split())[:300]
                found = {"failed": f"{type(problem).__name__}: {said}"}
            row = {**task.wanted, "run": number, "rules": task.rules, "fmt": task.fmt, **found,
                   "took_s": clock() - start}  # fmt: skip
            record.add(_short(row))
            yield _short(row)
        del made


def compile_all(tasks: Sequence[Task], record: Record) -> None:
    """Compile the kernels of the rows that are missing side by side, where that takes long."""
    todo = {(t.contender, t.M, t.N, t.K) for t in tasks if t.kind == "product" and not record.done(t.wanted)}
    texts: dict[str, None] = {}
    for name, *shape in sorted(todo):
        who = contenders.find(name)
        if who.scheme is not None and who.operand == "fp32":
            with suppress(Exception):  # it will be told where its row is measured
                sides = (shape[0], shape[1], shape[2])
                texts |= dict.fromkeys(choosing.sources(sides, who.scheme, who.options, who.hints))
    device.compile_all(list(texts), device.arch())


def _problem(task: Task) -> Any:
    return Problem(task.M, task.N, task.K, task.data, SEED, task.fmt) if task.kind == "product" else ()


def measure(task: Task, problem: Any) -> dict[str, Any]:
    """One row: speed without and with the split, power and clock, errors, and the bits seen."""
    if task.kind == applications.KIND:
        return applications.measure(task, SEED)
    if task.kind == ceilings.KIND:
        return ceilings.measure(task)
    ready = contenders.prepare(contenders.find(task.contender), problem)
    found: dict[str, Any] = dict(ready.about)
    rules = RULES.get(task.rules)
    if rules is not None:
        found |= _speed("", timing.measure(ready.multiply, rules[0]))
        if ready.split is not None:
            found |= _speed("split_", timing.measure(ready.both, rules[1]))
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


def _speed(name: str, speed: timing.Speed) -> dict[str, Any]:
    found: dict[str, Any] = {f"{name}first_s": speed.first, f"{name}best_s": speed.best}
    if speed.sustained is not None:
        found |= {f"{name}sustained_s": speed.sustained, f"{name}launches": speed.launches}
    if speed.reading is not None and not name:
        found |= {"power_W": speed.reading.power, "clock_MHz": speed.reading.clock,
                  "limited_by": list(speed.reading.reasons)}  # fmt: skip
    return found


def _short(row: Row) -> Row:
    """Numbers in six digits: more is noise."""
    return {name: float(f"{value:.6g}") if type(value) is float else value for name, value in row.items()}
