"""Results that survive: one durable row per cell, keyed by everything that determines its numbers.

The key is the SHA-256 of a canonical JSON of the evaluator's name, the cell's parameters, and the version of the code
and of NumPy. Rows are written in transactions, so an interrupted run leaves whole rows or none. Cells that failed are
kept in a table of their own, with what went wrong, until they are evaluated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

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
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures (
    key TEXT PRIMARY KEY,
    evaluator TEXT NOT NULL,
    cell TEXT NOT NULL,
    code TEXT NOT NULL,
    error TEXT NOT NULL,
    seconds REAL NOT NULL
) WITHOUT ROWID;
"""
_AT_ONCE = 500  # keys in one query: below the limit on variables of every SQLite
# what SQLite says about a file that is no store, as opposed to a store that cannot be reached or written
_NO_STORE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Entry(NamedTuple):
    """A finished or failed cell on its way into the store: ``values``, or None and the ``error``."""

    key: str
    cell: Mapping[str, Any]
    values: Mapping[str, Any] | None
    error: str
    seconds: float


class Known(NamedTuple):
    """What is stored of a finished cell."""

    values: Values
    seconds: float


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
    OSError
        From every method, if the file cannot be read or written: a full disk, a folder that became read-only, a
        damaged file. What was stored before stays.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # a second `reproduce` in the same folder waits for the lock instead of failing
            self._db = sqlite3.connect(self.path, timeout=60)
            self._db.text_factory = lambda text: text.decode(errors="replace")  # damage to one row is that row's
        except (OSError, sqlite3.Error) as problem:
            raise InputError(f"cannot open the results file {self.path}: {problem}") from problem
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._db.execute("SELECT key, numbers, seconds FROM cells LIMIT 1")
            self._db.execute("SELECT key, error FROM failures LIMIT 1")
        except sqlite3.Error as problem:
            self._db.close()
            if _reason(problem) in _NO_STORE:
                raise InputError(
                    f"{self.path} is not a results file ({problem}): move it away, or set FPEMU_CACHE to another folder"
                ) from problem
            raise InputError(f"cannot write to the results file {self.path}: {problem}") from problem

    def get(self, key: str) -> Values | None:
        """The numbers kept under ``key``, or None."""
        found = self.find([key])
        return found[key].values if key in found else None

    def find(self, keys: Sequence[str]) -> dict[str, Known]:
        """The numbers and seconds of those of ``keys`` that are finished; a damaged row counts as missing."""
        rows = self._select("SELECT key, numbers, seconds FROM cells", keys)
        read = {name: _known(numbers, seconds) for name, numbers, seconds in rows}
        return {name: known for name, known in read.items() if known is not None}

    def failures(self, keys: Sequence[str]) -> dict[str, str]:
        """The error of those of ``keys`` that failed when they were tried last."""
        return dict(self._select("SELECT key, error FROM failures", keys))

    def _select(self, query: str, keys: Sequence[str]) -> Iterator[Any]:
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            with self._talking("read"):
                found = self._db.execute(f"{query} WHERE key IN ({','.join('?' * len(some))})", some).fetchall()
            yield from found

    def put(
        self, key: str, evaluator: str, cell: Mapping[str, Any], code: str, values: Mapping[str, Any], seconds: float
    ) -> None:
        """Keep a cell's numbers: on the disk when this returns."""
        self.keep(evaluator, code, [Entry(key, cell, values, "", seconds)])

    def keep(self, evaluator: str, code: str, entries: Iterable[Entry]) -> None:
        """Keep cells that finished or failed, in one transaction: on the disk when this returns.

        Numbers replace those under the same key; a failure leaves them.
        """
        finished, failed = [], []
        for e in entries:
            head = (e.key, evaluator, canonical(dict(e.cell)), code)
            if e.values is None:
                failed.append((*head, e.error, e.seconds))
            else:
                finished.append((*head, json.dumps(as_numbers(e.values)), e.seconds))
        with self._talking("write to"), self._db:
            self._db.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?)", finished)
            self._db.executemany("DELETE FROM failures WHERE key = ?", ((row[0],) for row in finished))
            self._db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?)", failed)

    def __len__(self) -> int:
        with self._talking("read"):
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

    @contextlib.contextmanager
    def _talking(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            damaged = _reason(problem) in _NO_STORE
            advice = "the file is damaged: move it away" if damaged else "what was stored before stays, run again then"
            raise OSError(f"cannot {verb} the results file {self.path}: {problem}; {advice}") from problem


def _reason(problem: sqlite3.Error) -> int:
    """SQLite's result code without its extension."""
    return int(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _known(numbers: Any, seconds: Any) -> Known | None:
    """A row's numbers, at least one, and its seconds; None if that is not what the row holds."""
    try:
        values = json.loads(numbers)
        if not isinstance(values, dict) or not values:
            return None
        times = [*values.values(), seconds]
        if any(isinstance(number, bool) or not isinstance(number, int | float) for number in times):
            return None
        known = Known({name: float(number) for name, number in values.items()}, float(seconds))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return known if 0 <= known.seconds < math.inf else None


def as_numbers(values: Mapping[str, Any]) -> Values:
    """An evaluator's results as floats. NaN and Inf are results too: a scheme may overflow, and the figure must say so.

    Raises
    ------
    TypeError, ValueError
        A result that is no number, or an integer that no float holds.
    """
    found = {}
    for name, value in values.items():
        number = found[name] = float(value)
        if isinstance(value, int | np.integer) and not math.isinf(number) and int(number) != int(value):
            raise TypeError(f"result {name!r} = {value} does not fit a float")
    return found
