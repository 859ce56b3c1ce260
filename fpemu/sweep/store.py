"""Stored results: one durable row per cell, under a key that covers everything that determines its numbers.

The key is the SHA-256 of a canonical JSON of the evaluator's name, the cell's parameters, and the versions of the code
and of NumPy. Rows are written in transactions, so an interrupted run leaves whole rows or none. Failed cells have a
table with their error messages until they are evaluated.

A row that does not match its checksum (see `fpemu.sweep.results_file`) counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from fpemu.errors import InputError
from fpemu.sweep import results_file

Cell = dict[str, Any]
Values = dict[str, float]

_BATCH = 500  # keys in one query: below the limit on variables of every SQLite


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
    """The results file. Only one process writes to it; any number may read it at the same time.

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
        self._refusal: Exception | None = None  # why the file cannot be written
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        try:
            try:
                self._db = results_file.open_writable(self.path)
            except (OSError, sqlite3.Error) as refusal:
                if results_file.is_foreign(refusal) or not self.path.is_file():
                    raise
                self._refusal = refusal
                self._db, self._copy = results_file.open_read_only(self.path)
        except (OSError, sqlite3.Error, InputError) as problem:
            elsewhere = "set FPEMU_CACHE to another folder"
            if results_file.is_foreign(problem) or isinstance(problem, InputError):
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
                    self._db.execute(f"PRAGMA user_version = {results_file.VERSION}")
                return
            except sqlite3.Error as refusal:
                problem = refusal
        raise InputError(
            f"cannot write to the results file {self.path}: {problem}; set FPEMU_CACHE to a folder that can be written"
        )

    def get(self, key: str) -> Values | None:
        """The numbers stored under ``key``, or None."""
        stored = self.find([key])
        return stored[key].values if key in stored else None

    def find(self, keys: Sequence[str]) -> dict[str, Known]:
        """The numbers and seconds of those of ``keys`` that are finished; a damaged row counts as missing."""
        return self.read(keys)[0]

    def read(self, keys: Sequence[str]) -> tuple[dict[str, Known], list[str]]:
        """The numbers and seconds of those of ``keys`` that are finished, and the keys whose rows are damaged."""
        stored, damaged = {}, []
        for name, columns in self._select("cells", keys):
            values = None if columns is None else results_file.numbers_of(columns[4], columns[5])
            if columns is None or values is None:
                damaged.append(name)
            else:
                stored[name] = Known(values, columns[5])
        return stored, damaged

    def failures(self, keys: Sequence[str]) -> dict[str, str]:
        """The error of those of ``keys`` whose last evaluation failed; a damaged row counts as missing."""
        rows = self._select("failures", keys)
        return {name: str(columns[4], "utf-8", "replace") for name, columns in rows if columns is not None}

    def _select(self, table: str, keys: Sequence[str]) -> Iterator[tuple[str, list[Any] | None]]:
        """The keys that have rows, with the rows' columns, or None where these do not match the row's checksum."""
        with self._talking("read"):
            present = results_file.columns_of(self._db, table)
        if not present:
            return
        verified = "checksum" in present  # a file of the previous version that cannot be migrated has none
        selected = ", ".join([*results_file.COLUMNS[table], "checksum" if verified else "NULL"])
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            with self._talking("read"):
                query = f"SELECT {selected} FROM {table} WHERE key IN ({','.join('?' * len(some))})"
                rows = self._db.execute(query, some).fetchall()
            requested = {name.encode(): name for name in some}
            for *columns, checksum in rows:
                if columns[0] in requested:
                    valid = not verified or checksum == results_file.checksum(*columns).encode()
                    yield requested[columns[0]], columns if valid else None

    def put(
        self, key: str, evaluator: str, cell: Mapping[str, Any], code: str, values: Mapping[str, Any], seconds: float
    ) -> None:
        """Store a cell's numbers: on the disk when this returns."""
        self.keep(evaluator, code, [Entry(key, cell, values, "", seconds)])

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
            checksum = results_file.checksum(*(text.encode() for text in head), float(e.seconds))
            (failed if e.values is None else finished).append((*head, float(e.seconds), checksum))
        with self._talking("write to"), self._db:
            self._db.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)", finished)
            self._db.executemany("DELETE FROM failures WHERE key = ?", ((row[0],) for row in finished))
            self._db.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?, ?)", failed)

    def __len__(self) -> int:
        with self._talking("read"):
            return int(self._db.execute("SELECT COUNT(*) FROM cells").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        if self._copy is not None:
            self._copy.cleanup()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _talking(self, verb: str) -> Iterator[None]:
        """SQLite's errors as OSError with the name of the results file."""
        try:
            yield
        except sqlite3.Error as problem:
            damaged = results_file.is_foreign(problem)
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
