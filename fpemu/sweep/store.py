"""Stored results: one durable row per cell, under a key that covers everything that determines its numbers.

The key is the SHA-256 of a canonical JSON of the evaluator's name, the cell's parameters with every default, NumPy's
version, and one digest over the bytes of the package's numeric modules and of the job's sources. Rows are written to an
SQLite file in transactions, so an interrupted run leaves whole rows or none. The row of a failed cell holds the error
message in place of numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from fpemu import _system
from fpemu.errors import InputError

Cell = dict[str, Any]
Values = dict[str, float]

_COLUMNS = "key, cell, numbers, seconds"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    key TEXT PRIMARY KEY, cell TEXT NOT NULL, numbers TEXT NOT NULL, seconds REAL NOT NULL
) WITHOUT ROWID
"""
# the error of a failed cell does not replace numbers
_KEEP = """
INSERT INTO cells (key, cell, numbers, seconds) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE
SET cell = excluded.cell, numbers = excluded.numbers, seconds = excluded.seconds
WHERE excluded.numbers LIKE '{%' OR cells.numbers NOT LIKE '{%'
"""
_BATCH = 500  # keys in one query: below the limit on variables of every SQLite
_WAIT = 60.0  # seconds for a lock of another process


class Result(NamedTuple):
    """The numbers of a finished cell, or None and the error of a failed one, and the seconds of its evaluation.

    The first cell of a process on a scheme and hardware may compile kernels: its seconds are 0, for no estimate.
    """

    values: Values | None
    error: str
    seconds: float


# --- keys
_PACKAGE = Path(__file__).resolve().parents[1]
_NUMERIC = (
    *(f"{name}.py" for name in ("rounding", "arguments", "_cublas", "_system", "inputs")),
    *("formats", "compiled", "metrics", "mma", "simt", "batched", "schemes", "reference", "theory", "roofline"),
    "library",
)
# data files that pages read count too; pictures and texts beside the pages do not decide numbers
_SUFFIXES = (".py", ".json", ".toml", ".gz", ".csv", ".npy", ".npz")


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the same text for the same parameters. NumPy scalars become Python's.

    >>> canonical({"n": np.int64(64), "hardware": "a100"})
    '{"hardware":"a100","n":64}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=np.generic.item, allow_nan=False)


def key(evaluator: str, cell: Mapping[str, Any], code: str) -> str:
    """Return the SHA-256 under which the numbers of a cell with all its defaults are stored."""
    text = canonical({"evaluator": evaluator, "cell": dict(cell), "code": code, "numpy": np.__version__})
    return hashlib.sha256(text.encode()).hexdigest()


def code(sources: Iterable[Path]) -> str:
    """Return the SHA-256 over the package's numeric modules and further files, and the files under further folders.

    The bytes are those that this process loaded: a file is recorded by `fpemu._system.seen` before its execution. Paths
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
            digest = _system.seen(file, loaded=file.is_relative_to(_PACKAGE))
            total.update(f"{file.relative_to(source.parent).as_posix()}\0{digest}\0".encode())
    return total.hexdigest()


# --- the file
def default_path() -> Path:
    """``$FPEMU_CACHE/cells.sqlite``, or ``.fpemu/cells.sqlite`` under the working directory."""
    return Path(os.environ.get("FPEMU_CACHE") or ".fpemu") / "cells.sqlite"


class Store:
    """The results file. Several processes of one machine may use it at the same time; a write waits for the others.

    SQLite's locks are not reliable between machines that share a network file system: each needs its own file.

    Parameters
    ----------
    path : path-like, optional
        The SQLite file, created with its folder if it does not exist; default :func:`default_path`.

    Raises
    ------
    InputError
        If the file cannot be created or written, or is not a results file.
    OSError
        From every method, if the file cannot be read or written, on a full disk for example. Stored rows remain.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # every transaction begins with the lock for writing, so that SQLite waits for other processes
            self._db = sqlite3.connect(self.path, timeout=_WAIT, isolation_level="IMMEDIATE")
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")  # an error if the file is read-only
                self._db.execute(_SCHEMA)
                self._db.execute(f"SELECT {_COLUMNS} FROM cells LIMIT 1").fetchall()
        except (OSError, sqlite3.Error) as problem:
            raise InputError(
                f"cannot open the results file {self.path}: {problem}; move it away, or set FPEMU_CACHE to another "
                "folder"
            ) from problem

    def read(self, keys: Sequence[str]) -> dict[str, Result]:
        """Return the rows of those of ``keys`` that are stored."""
        stored = {}
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            with self._errors("read"):
                query = f"SELECT key, numbers, seconds FROM cells WHERE key IN ({','.join('?' * len(some))})"
                rows = self._db.execute(query, some).fetchall()
            for name, text, seconds in rows:
                numbers = json.loads(text)
                failed = isinstance(numbers, str)
                stored[name] = Result(None if failed else numbers, numbers if failed else "", seconds)
        return stored

    def keep(self, results: Iterable[tuple[str, Mapping[str, Any], Result]]) -> None:
        """Store cells that finished or failed, in one transaction: on the disk when this returns.

        Numbers replace those under the same key; an error leaves them.

        Parameters
        ----------
        results : iterable of (key, cell, Result)
            Keys as from `key`, with the cells' own parameters.
        """
        rows = [
            (name, canonical(dict(cell)), json.dumps(error if values is None else values), float(seconds))
            for name, cell, (values, error, seconds) in results
        ]
        with self._errors("write to"), self._db:
            self._db.executemany(_KEEP, rows)

    def __len__(self) -> int:
        """Return the number of finished cells."""
        with self._errors("read"):
            return int(self._db.execute("SELECT COUNT(*) FROM cells WHERE numbers LIKE '{%'").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """SQLite's errors as OSError with the name of the results file."""
        try:
            yield
        except sqlite3.Error as problem:
            raise OSError(
                f"cannot {verb} the results file {self.path}: {problem}; move a damaged file away; otherwise stored "
                "rows remain, run again then"
            ) from problem
