"""Results that survive: one durable row per cell, keyed by everything that determines its numbers.

The key is the SHA-256 of a canonical JSON of the evaluator's name, the cell's parameters, and the version of the code
and of NumPy. A row is written in one transaction, so an interrupted run leaves whole rows or none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fpemu.errors import InputError

Cell = dict[str, Any]
Values = dict[str, float]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    key TEXT PRIMARY KEY,
    evaluator TEXT NOT NULL,
    cell TEXT NOT NULL,
    code TEXT NOT NULL,
    numbers TEXT NOT NULL,
    seconds REAL NOT NULL
) WITHOUT ROWID
"""


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the same text for the same parameters. NumPy scalars become Python's.

    >>> canonical({"n": np.int64(64), "hardware": "a100"})
    '{"hardware":"a100","n":64}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain, allow_nan=False)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a cell's parameters are numbers, strings, booleans, lists and dicts, not {type(value).__name__}")


def key(evaluator: str, cell: Mapping[str, Any], code: str) -> str:
    """The SHA-256 under which a cell's numbers are kept."""
    text = canonical({"evaluator": evaluator, "cell": dict(cell), "code": code, "numpy": np.__version__})
    return hashlib.sha256(text.encode()).hexdigest()


def default_path() -> Path:
    """``$FPEMU_CACHE/results.sqlite``, or ``.fpemu/results.sqlite`` under the working directory."""
    return Path(os.environ.get("FPEMU_CACHE") or ".fpemu") / "results.sqlite"


class Store:
    """The results file. Only one process writes to it; readers may come and go.

    Parameters
    ----------
    path : path-like, optional
        The SQLite file, made with its folder when it is not there; default :func:`default_path`.

    Raises
    ------
    InputError
        If the file cannot be made or is not a results file.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # a second `reproduce` in the same folder waits for the lock instead of failing
            self._db = sqlite3.connect(self.path, timeout=60)
        except (OSError, sqlite3.Error) as problem:
            raise InputError(f"cannot open the results file {self.path}: {problem}") from problem
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(_SCHEMA)
            self._db.execute("SELECT key, numbers, seconds FROM cells LIMIT 1")
        except sqlite3.Error as problem:
            self._db.close()
            raise InputError(
                f"{self.path} is not a results file ({problem}): move it away, or set FPEMU_CACHE to another folder"
            ) from problem

    def get(self, key: str) -> Values | None:
        """The numbers kept under ``key``, or None."""
        row = self._db.execute("SELECT numbers FROM cells WHERE key = ?", (key,)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def put(
        self, key: str, evaluator: str, cell: Mapping[str, Any], code: str, values: Mapping[str, Any], seconds: float
    ) -> None:
        """Keep a cell's numbers: on the disk when this returns."""
        numbers = {name: _number(name, value) for name, value in values.items()}
        row = (key, evaluator, canonical(dict(cell)), code, json.dumps(numbers), seconds)
        try:
            with self._db:
                self._db.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.OperationalError as problem:  # a full disk, a folder that became read-only
            raise OSError(f"cannot write to {self.path}: {problem}") from problem

    def forget(self, keys: Iterable[str]) -> None:
        """Drop what is kept under ``keys``."""
        with self._db:
            self._db.executemany("DELETE FROM cells WHERE key = ?", ((key,) for key in keys))

    def __len__(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM cells").fetchone()[0])

    def close(self) -> None:
        """Close the file; what was put is kept."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _number(name: str, value: Any) -> float:
    """A result as a float. NaN and Inf are results too: a scheme may overflow, and the figure must say so."""
    number = float(value)
    if isinstance(value, int | np.integer) and not math.isinf(number) and int(number) != int(value):
        raise TypeError(f"result {name!r} = {value} does not fit a float")
    return number
