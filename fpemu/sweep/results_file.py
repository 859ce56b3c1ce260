"""The SQLite file of a `fpemu.sweep.store.Store`: its schema, migration, checksums, and reading it on read-only media.

Each row holds a checksum of its other columns. Files of fpemu before checksums (``PRAGMA user_version`` 0) are migrated
when they are first opened for writing: their readable rows get checksums as they stand. Where such a file cannot be
written, its rows are read without verification.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fpemu.errors import InputError

VERSION = 1
COLUMNS = {
    "cells": ("key", "evaluator", "cell", "code", "numbers", "seconds"),
    "failures": ("key", "evaluator", "cell", "code", "error", "seconds"),
}
"""The columns of each table, all of which the row's checksum covers."""
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
# SQLite's result codes for a file that is no store, as opposed to a store that cannot be reached or written
_NO_STORE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def checksum(*columns: bytes | float) -> str:
    """The SHA-256 of a row's other columns: texts as bytes, seconds as a float."""
    return hashlib.sha256(repr(columns).encode()).hexdigest()


def numbers_of(numbers: Any, seconds: Any) -> dict[str, float] | None:
    """A row's numbers, at least one; None if the row holds anything else, or no duration."""
    try:
        values = json.loads(numbers)
        if not isinstance(values, dict) or not values:
            return None
        if any(
            isinstance(number, bool) or not isinstance(number, int | float) for number in [*values.values(), seconds]
        ):
            return None
        return {name: float(number) for name, number in values.items()} if 0 <= seconds < math.inf else None
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def is_foreign(problem: Exception) -> bool:
    """Whether SQLite's error means that the file is no results file, or a damaged one."""
    code = int(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF  # without the code's extension
    return isinstance(problem, sqlite3.Error) and code in _NO_STORE


def columns_of(db: sqlite3.Connection, table: str) -> set[str]:
    """The names of a table's columns; none if the table does not exist."""
    return {name.decode(errors="replace") for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}


def open_writable(path: Path) -> sqlite3.Connection:
    """Open the file, created or migrated where necessary; a second process waits up to 60 s for a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _connect(path, _prepare)


def open_read_only(path: Path) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str] | None]:
    """Open the file where SQLite can write nothing beside it.

    Returns
    -------
    connection
    folder : TemporaryDirectory or None
        Holds the copy in which a write-ahead log was replayed, if there is one; to be removed after the connection is
        closed.
    """
    address, log = path.absolute().as_uri(), Path(f"{path}-wal")
    try:
        return _connect(f"{address}?mode=ro", _check_schema), None
    except sqlite3.OperationalError:
        if not log.exists() or log.stat().st_size == 0:
            return _connect(f"{address}?mode=ro&immutable=1", _check_schema), None
    folder = tempfile.TemporaryDirectory(prefix="fpemu-")
    try:
        for file in (path, log):
            shutil.copyfile(file, Path(folder.name, file.name))
        db = _connect(Path(folder.name, path.name), _check_schema)
        db.execute("PRAGMA query_only=ON")  # a row written to the copy would be lost
        return db, folder
    except BaseException:
        folder.cleanup()
        raise


def _connect(address: str | Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    db = sqlite3.connect(address, timeout=60, uri=isinstance(address, str))
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
    """Create the tables, or migrate them from the version without checksums."""
    _check_schema(db)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    if _version(db) == VERSION:
        return
    db.create_function("row_checksum", len(COLUMNS["cells"]), checksum)
    db.create_function("is_readable", 2, lambda numbers, seconds: numbers_of(numbers, seconds) is not None)
    with db:
        db.execute("BEGIN IMMEDIATE")
        for table, columns in COLUMNS.items():
            db.execute(_SCHEMA.format(table, columns[4]))
            if "checksum" not in columns_of(db, table):
                db.execute(f"ALTER TABLE {table} ADD COLUMN checksum TEXT")
            contents = ", ".join(f"CAST({name} AS BLOB)" for name in columns[:-1])
            readable = "is_readable(CAST(numbers AS BLOB), seconds)" if table == "cells" else "TRUE"
            db.execute(
                f"UPDATE {table} SET checksum = row_checksum({contents}, seconds) WHERE checksum IS NULL AND {readable}"
            )
        db.execute(f"PRAGMA user_version = {VERSION}")


def _check_schema(db: sqlite3.Connection) -> None:
    """Raise unless the file is empty or holds the tables of this version or the one before it."""
    tables = {name.decode(errors="replace") for (name,) in db.execute("SELECT name FROM sqlite_master")}
    version = _version(db)
    if version > VERSION:
        raise InputError(f"its schema {version} belongs to a newer version of fpemu")
    for table, columns in COLUMNS.items():
        lacking = [name for name in columns if name not in columns_of(db, table)]
        if lacking and tables and (table == "cells" or table in tables):  # early files have no table of failures
            raise sqlite3.DatabaseError(f"its table {table} lacks {', '.join(lacking)}")
        if table in tables:
            db.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 1").fetchall()


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
