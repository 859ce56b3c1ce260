"""Stored results: one durable row per cell, under a key that covers everything that determines its numbers.

The key is the SHA-256 of a canonical JSON of the evaluator's name, the cell's parameters, and the versions of the code
and of NumPy. Rows are written to an SQLite file in transactions, so an interrupted run leaves whole rows or none. A
second table holds the error messages of failed cells until they are evaluated. Each row holds a checksum of its other
columns; a row that does not match it counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from fpemu.errors import InputError

Cell = dict[str, Any]
Values = dict[str, float]

VERSION = 1
_COLUMNS = {
    "cells": ("key", "evaluator", "cell", "code", "numbers", "seconds"),
    "failures": ("key", "evaluator", "cell", "code", "error", "seconds"),
}
"""The columns of each table that the row's checksum covers."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS {} (
    key TEXT PRIMARY KEY,
    evaluator TEXT NOT NULL,
    cell TEXT NOT NULL,
    code TEXT NOT NULL,
    {} TEXT NOT NULL,
    seconds REAL NOT NULL,
    checksum TEXT
) WITHOUT ROWID
"""
_BATCH = 500  # keys in one query: below the limit on variables of every SQLite
_WAIT = 60.0  # seconds for a lock of another process
# SQLite's result codes for a file that is no results file or a damaged one, not for one that cannot be reached
_FOREIGN, _DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB}, {sqlite3.SQLITE_CORRUPT}


class Entry(NamedTuple):
    """A finished or failed cell to be stored: ``values``, or None and the ``error``."""

    key: str
    cell: Mapping[str, Any]
    values: Mapping[str, Any] | None
    error: str
    seconds: float


class Known(NamedTuple):
    """The stored numbers of a finished cell, and the seconds that its evaluation took."""

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
    """The SHA-256 under which a cell's numbers are stored."""
    text = canonical({"evaluator": evaluator, "cell": dict(cell), "code": code, "numpy": np.__version__})
    return hashlib.sha256(text.encode()).hexdigest()


def default_path() -> Path:
    """``$FPEMU_CACHE/results.sqlite``, or ``.fpemu/results.sqlite`` under the working directory."""
    return Path(os.environ.get("FPEMU_CACHE") or ".fpemu") / "results.sqlite"


class Store:
    """The results file. Several processes of one machine may use it at the same time; a write waits for the others.

    SQLite's write-ahead log does not work between machines that share a network file system: each needs its own file.
    An existing file that cannot be written (read-only media, missing permission) is opened for reading, and
    :meth:`check_writable` raises.

    Parameters
    ----------
    path : path-like, optional
        The SQLite file, created with its folder if it does not exist; default :func:`default_path`.

    Raises
    ------
    InputError
        If the file cannot be created or read, or is not a results file.
    OSError
        From every method, if the file cannot be read or written: a full disk, a folder that became read-only, a
        damaged file. Rows that were stored before remain.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        self._refusal: Exception | None = None  # the reason why the file cannot be written
        self._copy = contextlib.ExitStack()
        try:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._db = _connect(self.path, _prepare)
            except (OSError, sqlite3.Error) as refusal:
                if _code(refusal) in _FOREIGN | _DAMAGED or not self.path.is_file():
                    raise
                self._refusal = refusal
                self._db = _open_read_only(self.path, self._copy)
                if _version(self._db) == 0:  # without tables: only the refusal is worth reporting
                    self.close()
                    raise
        except (OSError, sqlite3.Error, InputError) as problem:
            elsewhere = "set FPEMU_CACHE to another folder"
            if _code(problem) in _DAMAGED:
                text = f"the results file {self.path} is damaged ({problem}): move it away, or {elsewhere}"
            elif _code(problem) in _FOREIGN or isinstance(problem, InputError):
                text = f"{self.path} is not a results file ({problem}): move it away, or {elsewhere}"
            else:
                text = f"cannot open the results file {self.path}: {problem}; {elsewhere}"
            raise InputError(text) from problem

    def check_writable(self) -> None:
        """Write one page of the file unchanged, so that a run that cannot store its results ends before it computes.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        problem = self._refusal
        if problem is None:
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    self._db.execute(f"PRAGMA user_version = {VERSION}")
                return
            except sqlite3.Error as refusal:
                problem = refusal
        raise InputError(
            f"cannot write to the results file {self.path}: {problem}; set FPEMU_CACHE to a folder that can be written"
        )

    def get(self, key: str) -> Values | None:
        """The numbers stored under ``key``, or None."""
        stored, _ = self.read([key])
        return stored[key].values if key in stored else None

    def read(self, keys: Sequence[str]) -> tuple[dict[str, Known], list[str]]:
        """The numbers and seconds of those of ``keys`` that are finished, and the keys whose rows are damaged."""
        stored, damaged = {}, []
        for name, columns in self._select("cells", keys):
            if columns is None:
                damaged.append(name)
            else:
                stored[name] = Known(json.loads(columns[4]), columns[5])
        return stored, damaged

    def failures(self, keys: Sequence[str]) -> dict[str, str]:
        """The error of those of ``keys`` whose last evaluation failed; a damaged row counts as missing."""
        rows = self._select("failures", keys)
        return {name: str(columns[4], "utf-8", "replace") for name, columns in rows if columns is not None}

    def _select(self, table: str, keys: Sequence[str]) -> Iterator[tuple[str, list[Any] | None]]:
        """The keys that have rows, with the rows' columns, or None where these do not match the row's checksum."""
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            with self._errors("read"):
                selected = ", ".join([*_COLUMNS[table], "checksum"])
                query = f"SELECT {selected} FROM {table} WHERE key IN ({','.join('?' * len(some))})"
                rows = self._db.execute(query, some).fetchall()
            requested = {name.encode(): name for name in some}
            for *columns, checksum in rows:
                if columns[0] in requested:
                    yield requested[columns[0]], columns if checksum == _checksum(*columns).encode() else None

    def keep(self, evaluator: str, code: str, entries: Iterable[Entry]) -> None:
        """Store cells that finished or failed, in one transaction: on the disk when this returns.

        Numbers replace those under the same key; a failure leaves them.
        """
        finished: list[tuple[Any, ...]] = []
        failed: list[tuple[Any, ...]] = []
        for e in entries:
            result = e.error if e.values is None else json.dumps(as_numbers(e.values))
            # an error message may quote a file name whose bytes are not text
            head = (e.key, evaluator, canonical(dict(e.cell)), code, result.encode(errors="backslashreplace").decode())
            checksum = _checksum(*(text.encode() for text in head), float(e.seconds))
            (failed if e.values is None else finished).append((*head, float(e.seconds), checksum))
        with self._errors("write to"), self._db:
            self._db.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)", finished)
            self._db.executemany("DELETE FROM failures WHERE key = ?", ((row[0],) for row in finished))
            self._db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", failed)

    def __len__(self) -> int:
        with self._errors("read"):
            return int(self._db.execute("SELECT COUNT(*) FROM cells").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        self._copy.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """SQLite's errors as OSError with the name of the results file."""
        try:
            yield
        except sqlite3.Error as problem:
            damaged = _code(problem) in _FOREIGN | _DAMAGED
            advice = "the file is damaged: move it away" if damaged else "rows stored before remain, run again then"
            raise OSError(f"cannot {verb} the results file {self.path}: {problem}; {advice}") from problem


def as_numbers(values: Mapping[str, Any]) -> Values:
    """An evaluator's results as floats. NaN and Inf are valid: a scheme may overflow.

    Raises
    ------
    TypeError, ValueError
        A result that is no number, or an integer that is no float64.
    """
    numbers = {}
    for name, value in values.items():
        number = numbers[name] = float(value)
        if isinstance(value, int | np.integer) and not math.isinf(number) and int(number) != int(value):
            raise TypeError(f"result {name!r} = {value} does not fit a float")
    return numbers


# --- rows and the file
def _checksum(*columns: bytes | float) -> str:
    """The SHA-256 of a row's other columns: texts as bytes, seconds as a float."""
    return hashlib.sha256(repr(columns).encode()).hexdigest()


def _code(problem: Exception) -> int | None:
    """SQLite's result code without its extension; None for another error."""
    if not isinstance(problem, sqlite3.Error):
        return None
    return int(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _open_read_only(path: Path, stack: contextlib.ExitStack) -> sqlite3.Connection:
    """Open the file where SQLite can write nothing beside it; ``stack`` removes the copy if a log must be replayed."""
    address, log = path.absolute().as_uri(), Path(f"{path}-wal")
    try:
        return _connect(f"{address}?mode=ro", _check_schema)
    except sqlite3.OperationalError:
        if not log.exists() or log.stat().st_size == 0:
            return _connect(f"{address}?mode=ro&immutable=1", _check_schema)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fpemu-"))
    for file in (path, log):
        shutil.copyfile(file, Path(folder, file.name))
    db = _connect(Path(folder, path.name), _check_schema)
    db.execute("PRAGMA query_only=ON")  # a row written to the copy would be lost
    return db


def _connect(address: str | Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    db = sqlite3.connect(address, timeout=_WAIT, uri=isinstance(address, str))
    db.text_factory = bytes  # text that is not UTF-8 is damage to one row, not an error of the query
    try:
        prepare(db)
    except UnicodeDecodeError as problem:  # SQLite's message quotes a damaged schema
        db.close()
        raise sqlite3.DatabaseError("its schema is damaged") from problem
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection) -> None:
    """Create the tables; a second process waits up to 60 s for a lock."""
    _check_schema(db)
    _write_ahead(db)
    db.execute("PRAGMA synchronous=FULL")
    if _version(db) == VERSION:
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        for table, columns in _COLUMNS.items():
            db.execute(_SCHEMA.format(table, columns[4]))
        db.execute(f"PRAGMA user_version = {VERSION}")


def _write_ahead(db: sqlite3.Connection) -> None:
    """Select write-ahead logging; SQLite itself does not wait here while another process opens the new file."""
    end = time.monotonic() + _WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as problem:
            if _code(problem) != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _check_schema(db: sqlite3.Connection) -> None:
    """Raise unless the file is empty or holds the tables of this version."""
    tables = {name.decode(errors="replace") for (name,) in db.execute("SELECT name FROM sqlite_master")}
    version = _version(db)
    if version > VERSION:
        raise InputError(f"its schema {version} belongs to a newer version of fpemu")
    for table, columns in _COLUMNS.items() if tables else ():
        present = {name.decode(errors="replace") for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
        lacking = [name for name in (*columns, "checksum") if name not in present]
        if lacking:
            raise sqlite3.DatabaseError(f"its table {table} lacks {', '.join(lacking)}")
        db.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 1").fetchall()


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
