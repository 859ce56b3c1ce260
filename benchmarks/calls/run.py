"""The run: sections one after another, with the record saved after every case."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.calls.sections import Section
from benchmarks.calls.timer import Row, Timer
from benchmarks.sensors import Watch
from fpemu._system import read_json, write_atomic
from fpemu.errors import InputError
from fpemu.verification.records import text_of

Record = dict[str, Any]
_OF_A_RUN = ("date", "code")


def resume(file: Path, head: Mapping[str, Any]) -> Record:
    """Return the record in a file, of which some sections are measured again, or a new one where there is no file.

    `head`: the GPU and the versions, with the date and the digest of the code. A file from another GPU or from other
    versions raises InputError.
    """
    record = new(head)
    if file.exists():
        old = read_json(file)
        differing = [name for name in record if name != "about" and old.get(name) != record[name]]
        if differing:
            text = "; ".join(f"{name} {old.get(name)}, now {record[name]}" for name in differing)
            raise InputError(f"{file} was measured with {text}: give another file to --output, or omit --sections")
        record = old
    return record


def new(head: Mapping[str, Any]) -> Record:
    """Return a record without sections."""
    return {**{name: value for name, value in head.items() if name not in _OF_A_RUN}, "about": {}}


def measure(
    sections: Mapping[str, Section],
    timer: Timer,
    record: Record,
    file: Path,
    head: Mapping[str, Any],
    *,
    seconds: float,
    between: Callable[[], object] = lambda: None,
    report: Callable[[str], object] = print,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Measure sections into a record, which is written to `file` after every case; no case begins after `seconds`.

    A case that fails has its traceback under "error". The cases of a section that are still to be measured are under
    "not measured" in "about". `between` is called after every section, to release memory; `report` with a line of text
    for every case.
    """
    end = now() + seconds
    for name, section in sections.items():
        start = now()
        until = min(end, start + section.seconds)
        watch = None if section.on_host else Watch()
        rows: dict[str, Row] = {}
        record[name], about = rows, {key: head[key] for key in _OF_A_RUN}
        record["about"][name] = about
        about["not measured"] = remaining = list(section.cases)
        for case, row_of in section.cases.items():
            if now() < until:
                try:
                    timer.torch.cuda.empty_cache()
                    rows[case] = row_of(timer)
                except Exception:
                    rows[case] = {"error": traceback.format_exc()}
                remaining.remove(case)
                if not remaining:
                    del about["not measured"]
            about["seconds"] = round(now() - start, 1)
            write_atomic(file, text(record))
            report(f"{name} {case}: {rows.get(case, 'not measured: the time limit')}")
        reading = watch and watch.stop()
        if reading:
            about |= {"power_W": reading.power, "clock_MHz": reading.clock, "limited_by": list(reading.reasons)}
        write_atomic(file, text(record))
        between()


def text(record: Record) -> bytes:
    """Return the record as JSON, one row per line."""
    return text_of(record, [name for name, value in record.items() if isinstance(value, dict)]).encode()
