"""Stored results: one durable row per cell, under a key that covers everything that determines its numbers.

The key is the SHA-256 of a canonical JSON of the evaluator's name, the cell's parameters with every default, NumPy's
version, and one digest over the bytes of the package's numeric modules and of the job's sources. Rows are written to an
SQLite file in transactions, so an interrupted run leaves whole rows or none. The row of a failed cell holds the error
message in place of numbers. Each row holds a checksum of its other columns; a row that does not match it counts as
missing.
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

from fpemu import files
from fpemu.errors import InputError

Cell = dict[str, Any]
Values = dict[str, float]

VERSION = 1
_COLUMNS = ("key", "cell", "numbers", "seconds", "checksum")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    key TEXT PRIMARY KEY, cell TEXT NOT NULL, numbers TEXT NOT NULL, seconds REAL NOT NULL, checksum TEXT
) WITHOUT ROWID
"""
# the error of a failed cell does not replace numbers
_KEEP = """
INSERT INTO cells VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE
SET cell = excluded.cell, numbers = excluded.numbers, seconds = excluded.seconds, checksum = excluded.checksum
WHERE excluded.numbers LIKE '{%' OR cells.numbers NOT LIKE '{%'
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
    """A stored row: the numbers of a finished cell, or the error of a failed one, and the seconds of its evaluation."""

    values: Values
    error: str | None
    seconds: float


# --- keys
_PACKAGE = Path(__file__).resolve().parents[1]
_NUMERIC = (
    *(f"{name}.py" for name in ("formats", "rounding", "arguments", "parallel", "inputs")),
    *("metrics", "mma", "simt", "batched", "schemes", "reference", "theory", "roofline", "library"),
)
# data files that pages read count too; pictures and texts beside the pages do not decide numbers
_SUFFIXES = (".py", ".json", ".toml", ".gz", ".csv", ".npy", ".npz")


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
    """Return the SHA-256 under which the numbers of a cell with all its defaults are stored."""
    text = canonical({"evaluator": evaluator, "cell": dict(cell), "code": code, "numpy": np.__version__})
    return hashlib.sha256(text.encode()).hexdigest()


def code(sources: Iterable[Path]) -> str:
    """Return the SHA-256 over the package's numeric modules and further files, and the files under further folders.

    The bytes are those that this process loaded: a file is recorded by `fpemu.files.seen` before its execution. Paths
    count from the folder that holds a source, so the digests of two machines are equal.

    Raises
    ------
    InputError
        If a file was changed after this process loaded it.
    """
    total = hashlib.sha256()
    for source in (*(_PACKAGE / name for name in _NUMERIC), *sources):
        folder = source.is_dir()
        for file in sorted(f for f in source.rglob("*") if f.suffix in _SUFFIXES) if folder else [source]:
            if file not in _CHECKED:
                _check_age(file)
            total.update(f"{file.relative_to(source.parent).as_posix()}\0{files.seen(file)}\0".encode())
    return total.hexdigest()


_CHECKED: set[Path] = set()


def _check_age(file: Path) -> None:
    """Raise InputError for a module of the package that was perhaps executed before it was changed."""
    if file.is_relative_to(_PACKAGE) and file.stat().st_mtime_ns > files.STARTED:
        raise InputError(f"{file} was changed after this process started: start the process (or kernel) again")
    _CHECKED.add(file)


if not _PACKAGE.is_dir():
    raise InputError(f"{_PACKAGE} is in an archive: sweeps and figures hash fpemu's source files; install fpemu by pip")


# --- the file
def default_path() -> Path:
    """``$FPEMU_CACHE/cells.sqlite``, or ``.fpemu/cells.sqlite`` under the working directory."""
    return Path(os.environ.get("FPEMU_CACHE") or ".fpemu") / "cells.sqlite"


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
                try:
                    self._db = _open_read_only(self.path, self._copy)
                except (OSError, sqlite3.Error):  # a file without a table: only the refusal is worth reporting
                    self._copy.close()
                    raise refusal from None
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

    def read(self, keys: Sequence[str]) -> tuple[dict[str, Known], list[str]]:
        """Return the rows of those of ``keys`` that are stored, and the keys whose rows are damaged."""
        stored, damaged = {}, []
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            with self._errors("read"):
                query = f"SELECT {', '.join(_COLUMNS)} FROM cells WHERE key IN ({','.join('?' * len(some))})"
                rows = self._db.execute(query, some).fetchall()
            for *columns, checksum in rows:
                name = columns[0].decode()  # equal to one of the keys, which are text
                if checksum != _checksum(*columns).encode():
                    damaged.append(name)
                    continue
                numbers = json.loads(columns[2])
                failed = isinstance(numbers, str)
                stored[name] = Known({} if failed else numbers, numbers if failed else None, columns[3])
        return stored, damaged

    def keep(self, entries: Iterable[Entry]) -> None:
        """Store cells that finished or failed, in one transaction: on the disk when this returns.

        Numbers replace those under the same key; an error leaves them.
        """
        rows = []
        for e in entries:
            # an error message may quote a file name whose bytes are not text
            message = e.error.encode(errors="backslashreplace").decode()
            numbers = json.dumps(message if e.values is None else as_numbers(e.values))
            head, seconds = (e.key, canonical(dict(e.cell)), numbers), float(e.seconds)
            rows.append((*head, seconds, _checksum(*(text.encode() for text in head), seconds)))
        with self._errors("write to"), self._db:
            self._db.executemany(_KEEP, rows)

    def __len__(self) -> int:
        """Return the number of finished cells."""
        with self._errors("read"):
            return int(self._db.execute("SELECT COUNT(*) FROM cells WHERE numbers LIKE '{%'").fetchone()[0])

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
    """Return an evaluator's results as floats. NaN and Inf are valid: a scheme may overflow.

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


def _checksum(*columns: bytes | float) -> str:
    """Return the SHA-256 of a row's other columns: texts as bytes, seconds as a float."""
    return hashlib.sha256(repr(columns).encode()).hexdigest()


def _code(problem: Exception) -> int | None:
    """SQLite's result code without its extension; None for another error."""
    if not isinstance(problem, sqlite3.Error):
        return None
    return int(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _open_read_only(path: Path, stack: contextlib.ExitStack) -> sqlite3.Connection:
    """Open the file where SQLite can write nothing beside it; ``stack`` removes the copy if a log must be replayed."""
    files = (path, Path(f"{path}-wal"))
    if files[1].exists() and files[1].stat().st_size > 0:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fpemu-"))
        for file in files:
            shutil.copyfile(file, Path(folder, file.name))
        db = _connect(Path(folder, path.name), _check_schema)
    else:
        db = _connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", _check_schema)
    db.execute("SELECT key FROM cells LIMIT 1")
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
    """Create the table; a second process waits up to 60 s for a lock."""
    _check_schema(db)
    end = time.monotonic() + _WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as problem:  # SQLite does not wait here for a process that opens the new file
            if _code(problem) != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA synchronous=FULL")
    if _version(db) < VERSION:
        with db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA user_version = {VERSION}")


def _check_schema(db: sqlite3.Connection) -> None:
    """Raise unless the file is empty or holds the table of this version."""
    tables = db.execute("SELECT name FROM sqlite_master").fetchall()
    version = _version(db)
    if version > VERSION:
        raise InputError(f"its schema {version} belongs to a newer version of fpemu")
    if tables:
        db.execute(f"SELECT {', '.join(_COLUMNS)} FROM cells LIMIT 1").fetchall()


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
