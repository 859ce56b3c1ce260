"""The measurement: rows one after another, each kept as soon as it is there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import fpemu
from fpemu.gpu import device
from fpemu.gpu.bench import choosing, kinds, library, runs, shapes, timing
from fpemu.gpu.bench.record import FORMAT, Record, Row
from fpemu.gpu.bench.task import SEED, Task
from fpemu.gpu.verification import records


def head(date: str | None = None) -> dict[str, Any]:
    """What a record says of its making: the device, the rules, and the run with the code that it measures."""
    here = {**device.describe(), "driver": records.driver(), "library": library.version()}
    run = {"date": date or datetime.now(UTC).date().isoformat(), "fpemu": fpemu.__version__, "numpy": np.__version__,
           "code": code(), **here}  # fmt: skip
    rules = {name: [asdict(rule) for rule in both] for name, both in timing.RULES.items()}
    rules[shapes.RULES] = [asdict(runs.RULES)]
    return {"format": FORMAT, "device": here, "seed": SEED, "rules": rules, "runs": [run]}


def code() -> str:
    """SHA-256, in short, of the package's kernels and of what launches them."""
    folder = Path(__file__).parents[1]
    files = sorted(path for end in ("*.py", "*.cu", "*.cuh") for path in folder.rglob(end))
    texts = (path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() for path in files)
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def missing(tasks: Sequence[Task], record: Record, again: bool = False) -> list[Task]:
    """The tasks that the record has no row of; with `again`, none that this run has measured."""
    run = len(record.head["runs"]) - 1
    return [task for task in tasks if not record.done(task.wanted, run if again else None)]


def rows(
    tasks: Sequence[Task], record: Record, *, budget: float | None = None, again: bool = False,
    evaluate: Callable[[Task, Any], Mapping[str, Any]] | None = None, make: Callable[[Task], Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:  # fmt: skip
    """Measure what the record lacks, row by row; each is entered before it is given.

    Parameters
    ----------
    tasks : sequence of Task
    record : Record
    budget : float, optional
        Seconds: no row is begun that is likely to end later.
    again : bool
        Measure what the record has too: each new row takes the place of the old one, unless it failed.
    evaluate, make, clock
        What measures, for tests.

    Yields
    ------
    dict
        The row; with "failed" where it could not be measured.
    """
    begun, number = clock(), len(record.head["runs"]) - 1
    evaluate, make = evaluate or _measure, make or _make
    for _, group in groupby(missing(tasks, record, again), key=lambda task: task.place):
        made: Any = None
        for task in group:
            if budget is not None and clock() - begun + kinds.module(task.kind).seconds(task) > budget:
                continue  # a quicker one may fit
            start = clock()
            try:
                if made is None:
                    made = make(task)
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


def compile_all(tasks: Sequence[Task]) -> None:
    """Compile the kernels of rows side by side, where that takes long."""
    todo = {(task.kind, task.contender, task.M, task.N, task.K, task.fmt): task for task in tasks}
    texts: dict[str, None] = {}
    for task in todo.values():
        texts |= dict.fromkeys(getattr(kinds.module(task.kind), "sources", _nothing)(task))
    device.compile_all(list(texts), device.arch())


def _nothing(task: Task) -> list[str]:
    return []


def _make(task: Task) -> Any:
    return getattr(kinds.module(task.kind), "make", _nothing)(task)


def _measure(task: Task, made: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = kinds.module(task.kind).measure(task, made)
    return found


def _short(row: Row) -> Row:
    """Numbers in six digits: more is noise."""
    return {name: float(f"{value:.6g}") if type(value) is float else value for name, value in row.items()}
