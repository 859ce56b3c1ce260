"""The record of a measurement: rows in a JSON file that is whole at any time, and what figures read of it.

A row is one product by one contender; its key says which. A row whose contender is not there, or failed, says why under
"failed"; one that has "older" is of a kernel that has been replaced since. Both are tried again by the next run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.files import write_atomic

FORMAT = 1
KEY = ("kind", "M", "N", "K", "data", "contender")
"""What tells rows apart, with "batch" where a call makes more than one product."""
Row = dict[str, Any]


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a row apart from others."""
    return (*(row[name] for name in KEY), row.get("batch", 1))


def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What rows of the same product share, whoever computes it."""
    return (*(row[name] for name in KEY if name != "contender"), row.get("batch", 1))


class Record:
    """Rows by their key, in the order in which they were first measured.

    Parameters
    ----------
    head : mapping
        The device, versions and rules; "runs": date, versions and code of each run, to which the rows' "run" points.
    rows : iterable of dict
    """

    def __init__(self, head: Mapping[str, Any], rows: Iterable[Row] = ()) -> None:
        self.head = dict(head)
        self._rows = {key(row): dict(row) for row in rows}

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return list(self._rows.values())

    def done(self, wanted: Mapping[str, Any], run: int | None = None) -> bool:
        """Whether a row is there that needs no further run: one of any run, or of a certain one."""
        row = self._rows.get(key(wanted))
        if row is None or "failed" in row or row.get("older"):
            return False
        return run is None or row.get("run") == run

    def add(self, row: Row) -> None:
        """Enter a row; one that failed takes no place of one that did not."""
        if "failed" in row and "failed" not in self._rows.get(key(row), row):
            return
        self._rows[key(row)] = dict(row)

    def outdate(self, replaced: Callable[[Row], bool]) -> None:
        """Mark the rows whose kernels have been replaced: they are kept until they are measured anew."""
        for row in self._rows.values():
            if replaced(row):
                row["older"] = True

    def text(self) -> str:
        """As JSON, a row a line."""
        head = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in self.head.items()]
        rows = ",\n".join(f"  {json.dumps(row)}" for row in self.rows)
        return "{\n" + ",\n".join([*head, ' "rows": [\n' + rows + "\n ]"]) + "\n}\n"


def read(path: str | os.PathLike[str]) -> Record:
    """The record in a file.

    Raises
    ------
    InputError
        If it cannot be read, or is no such record.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise InputError(f"cannot read the record {path}: {problem}") from problem
    rows: Any = found.get("rows") if isinstance(found, dict) else None
    good = isinstance(rows, list) and all(isinstance(row, dict) and set(KEY) <= set(row) for row in rows)
    if not good or found.get("format") != FORMAT or not isinstance(found.get("device"), dict):
        raise InputError(f"{path} is no record of `fpemu bench gpu` in format {FORMAT}: give another name to --output")
    return Record({name: value for name, value in found.items() if name != "rows"}, rows)


def resume(path: str | os.PathLike[str] | None, head: Mapping[str, Any]) -> Record:
    """The record in a file to go on with, or a new one.

    Raises
    ------
    InputError
        If the file holds another GPU's measurements, or is no record.
    """
    if path is None or not Path(path).exists():
        return Record(head)
    found = read(path)
    there, here = found.head["device"].get("gpu"), head["device"]["gpu"]
    if there != here:
        raise InputError(f"{path} was measured on {there}, and this is {here}: give another name to --output")
    return Record({**head, "runs": [*found.head.get("runs", []), *head["runs"]]}, found.rows)


def keep(record: Record, path: str | os.PathLike[str] | None) -> None:
    """Write the record, whole or not at all."""
    if path is not None:
        write_atomic(path, record.text().encode())
