"""The record of a measurement: rows in a JSON file that is complete at any time, and the speeds that figures show.

A row is one product by one implementation, its "contender"; its key identifies it. A row that could not be measured has
the reason under "failed"; a row of a kernel that has been replaced since has "older". The next run measures both again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fpemu._system import read_json, write_atomic
from fpemu.errors import InputError
from fpemu.verification.records import text_of

FORMAT = 1
KEY = ("kind", "M", "N", "K", "data", "contender")
"""The fields that identify a row, with "batch" where a call computes more than one product."""
Row = dict[str, Any]


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of the fields that identify a row."""
    return (*(row[name] for name in KEY), row.get("batch", 1))


def product(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that the rows of one product share, for all implementations."""
    return (*(row[name] for name in KEY if name != "contender"), row.get("batch", 1))


class Record:
    """Rows by their key, in the order of their first measurement.

    `head` has the device, versions and rules; "runs": date, versions and code of each run, to which the rows' "run"
    refers.
    """

    def __init__(self, head: Mapping[str, Any], rows: Iterable[Row] = ()) -> None:
        self.head = dict(head)
        self._rows = {key(row): dict(row) for row in rows}

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return list(self._rows.values())

    def done(self, fields: Mapping[str, Any], run: int | None = None) -> bool:
        """Return whether a row needs no further measurement: a row of any run, or of the given one."""
        row = self._rows.get(key(fields))
        if row is None or "failed" in row or row.get("older"):
            return False
        return run is None or row.get("run") == run

    def add(self, row: Row) -> None:
        """Add a row; a failed one does not replace a measured one."""
        if "failed" in row and "failed" not in self._rows.get(key(row), row):
            return
        self._rows[key(row)] = dict(row)

    def text(self) -> str:
        """Return the record as JSON, one row per line."""
        return text_of({**self.head, "rows": self.rows}, ["rows"])


def read(path: str | os.PathLike[str]) -> Record:
    """Read the record in a file; InputError if it cannot be read, or is no such record."""
    content = read_json(path)
    rows: Any = content.get("rows") if isinstance(content, dict) else None
    good = isinstance(rows, list) and all(isinstance(row, dict) and set(KEY) <= set(row) for row in rows)
    if not good or content.get("format") != FORMAT or not isinstance(content.get("device"), dict):
        raise InputError(f"{path} is no record of `fpemu bench gpu` in format {FORMAT}: give another name to --output")
    return Record({name: value for name, value in content.items() if name != "rows"}, rows)


def resume(path: str | os.PathLike[str] | None, head: Mapping[str, Any]) -> Record:
    """Return the record in a file, with the run of `head` added, or a new one.

    The file of another GPU's measurements, or one that is no record, raises InputError.
    """
    if path is None or not Path(path).exists():
        return Record(head)
    record = read(path)
    recorded, current = record.head["device"].get("gpu"), head["device"]["gpu"]
    if recorded != current:
        raise InputError(f"{path} was measured on {recorded}, and this is {current}: give another name to --output")
    return Record({**head, "runs": [*record.head.get("runs", []), *head["runs"]]}, record.rows)


def save(record: Record, path: str | os.PathLike[str] | None) -> None:
    """Write the record, whole or not at all."""
    if path is not None:
        write_atomic(path, record.text().encode())


# --- speeds
def rate(row: Mapping[str, Any], which: str = "first") -> float | None:
    """Return TFLOP/s by the seconds of "first", "best" or "sustained", or of these after "split_".

    Operations are the row's "operations", or 2·M·N·K for each product of a batch.

    >>> rate({"M": 1000, "N": 1000, "K": 1000, "first_s": 1e-3})
    2.0
    """
    seconds = row.get(f"{which}_s")
    operations = row.get("operations") or 2.0 * row["M"] * row["N"] * row["K"] * row.get("batch", 1)
    return None if not seconds else operations / seconds * 1e-12


def base(rows: Iterable[Mapping[str, Any]], row: Mapping[str, Any], contender: str) -> Mapping[str, Any] | None:
    """Return the row of a contender on the same product: of the same run if there is one, else of the last."""
    same = [
        other
        for other in rows
        if other["contender"] == contender and "failed" not in other and product(other) == product(row)
    ]
    return next((other for other in same if other.get("run") == row.get("run")), same[-1] if same else None)


def ratio(
    rows: Iterable[Mapping[str, Any]], row: Mapping[str, Any], contender: str, by: float = 1.0, which: str = "first"
) -> float | None:
    """Return a row's speed over 1/`by` of a contender's on the same product; None if either is missing.

    "fp16" by 3 is three products of the library without the additions: the least cost of three products.
    """
    other = base(rows, row, contender)
    value, reference = rate(row, which), None if other is None else rate(other, which)
    return None if value is None or reference is None else value / reference * by
