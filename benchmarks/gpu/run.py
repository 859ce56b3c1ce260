"""The run: cases one after another, each row saved as it completes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import fpemu
from benchmarks import compilation, timing
from benchmarks.gpu import cublas, implementations, suite
from benchmarks.gpu.case import SEED, STEADY, Case
from benchmarks.gpu.record import FORMAT, Record, Row
from fpemu.gpu.runtime import device
from fpemu.verification import records


def head(date: str | None = None) -> dict[str, Any]:
    """Return the head of a record: the device, the methods of timing, and this run.

    "code" is the digest of the kernels, their launchers and these benchmarks.
    """
    here = {**device.describe(), "driver": records.driver(), "library": cublas.version()}
    run = {
        "date": date or datetime.now(UTC).date().isoformat(),
        "fpemu": fpemu.__version__,
        "numpy": np.__version__,
        "code": records.code_digest(Path(fpemu.__file__).parent / "gpu", Path(__file__).parents[1]),
        **here,
    }
    rules = {name: [asdict(method) for method in both] for name, both in timing.RULES.items()}
    rules[STEADY] = [asdict(timing.STEADY)]
    return {"format": FORMAT, "device": here, "seed": SEED, "rules": rules, "runs": [run]}


def missing(cases: Sequence[Case], record: Record, again: bool = False) -> list[Case]:
    """Return the cases without a row; with `again`, those that this run has not measured."""
    run = len(record.head["runs"]) - 1
    return [case for case in cases if not record.done(case.fields, run if again else None)]


def rows(
    cases: Sequence[Case],
    record: Record,
    *,
    budget: float | None = None,
    again: bool = False,
    evaluate: Callable[[Case, Any], Mapping[str, Any]] | None = None,
    make: Callable[[Case], Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:
    """Measure the missing rows, and yield each, with "failed" if it could not be measured, once it is in the record.

    No case is begun that is likely to end after `budget` seconds. With `again`, the record's rows are measured too:
    each new row replaces the old one, unless it failed. Tests replace `evaluate`, `make` and `clock`.
    """
    begun, number = clock(), len(record.head["runs"]) - 1
    evaluate, make = evaluate or suite.measure, make or suite.make
    for _, group in groupby(missing(cases, record, again), key=lambda case: case.operands):
        operands: Any = None
        for case in group:
            if budget is not None and clock() - begun + suite.module(case.kind).seconds(case) > budget:
                continue  # a faster one may fit
            start = clock()
            try:
                if operands is None:
                    operands = make(case)
                measured = dict(evaluate(case, operands))
            except implementations.MissingKernelError as problem:
                measured = {"failed": f"not there: {problem}"}
            except Exception as problem:
                text = " ".join(str(problem).split())[:300]
                measured = {"failed": f"{type(problem).__name__}: {text}"}
            row = _rounded(
                {
                    **case.fields,
                    "run": number,
                    "rules": case.rules,
                    "fmt": case.fmt,
                    **measured,
                    "took_s": clock() - start,
                }
            )
            record.add(row)
            yield row
        del operands


def compile_all(cases: Sequence[Case]) -> None:
    """Compile the kernels of the cases side by side, where that takes long."""
    distinct = {(case.implementation, *case.operands): case for case in cases}
    texts: dict[str, None] = {}
    for case in distinct.values():
        texts |= dict.fromkeys(suite.sources(case))
    compilation.compile_all(list(texts), device.arch())


def _rounded(row: Row) -> Row:
    """Round to six digits: more are noise."""
    return {name: float(f"{value:.6g}") if type(value) is float else value for name, value in row.items()}
