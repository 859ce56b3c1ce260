"""Rows as tables: a figure's CSV, read back with its types; a pandas DataFrame; exported CSV and Parquet; medians."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu._system import check_writable, write_atomic
from fpemu.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

    from fpemu.sweep.run import Row

SUFFIXES = (".csv", ".parquet")
"""The files of exported tables."""
DIGITS = 9
"""Significant digits of a written float: sums and functions whose last bits depend on the processor give the same."""
_COUNTS_BELOW = 1e12
"""Smaller whole numbers are counts, such as bytes and operations, and are written in full."""


def table(rows: list[Row], digits: Mapping[str, int | None] | None = None) -> bytes:
    """Return rows as CSV: parameters, then numbers.

    None is ``None``, a column that a row does not have is empty, and a text that would be read as another type
    (``12``, ``nan``) stands in quotation marks; lists are JSON.

    Parameters
    ----------
    rows : list of dict
    digits : mapping of column to int or None, optional
        Significant digits of a column's floats where they are not `DIGITS`; None: as many as give the same float back.
    """
    chosen = {} if digits is None else digits
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = {name: rounded(value, chosen.get(name, DIGITS)) for name, value in row.items()}
        # the text of a float is always read as the same float: most values need no comparison
        writer.writerow({name: repr(x) if type(x) is float else _text(x) for name, x in values.items()})
    return text.getvalue().encode(errors="backslashreplace")  # an error message may quote bytes that are no text


def rounded(value: Any, digits: int | None = DIGITS) -> Any:
    """Return a value with its floats, also those in lists and mappings, rounded to significant digits.

    Parameters
    ----------
    value : Any
        NumPy scalars become Python's.
    digits : int or None
        None: all. With the default, counts, which are whole numbers below 10^12, have all their digits.

    Examples
    --------
    >>> rounded([2 / 3, 1280001024.0, 7]), rounded(2 / 3, 4)
    ([0.666666667, 1280001024.0, 7], 0.6667)
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isfinite(value) and digits is not None:
        count = digits == DIGITS and value.is_integer() and abs(value) < _COUNTS_BELOW
        return value if count else float(f"{value:.{digits}g}")
    if isinstance(value, list | tuple):
        return [rounded(one, digits) for one in value]
    if isinstance(value, Mapping):
        return {name: rounded(one, digits) for name, one in value.items()}
    return value


def read(path: str | os.PathLike[str]) -> list[Row]:
    """Read the rows of a CSV that :func:`table` made, with their types.

    Raises
    ------
    InputError
        If the file is missing, or is not such a table.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as problem:
        raise InputError(f"cannot read the data of a figure from {path}: {problem}") from problem
    return parse(content, str(path))


def parse(content: bytes, name: str) -> list[Row]:
    try:
        lines = list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"cannot read the data of a figure from {name}: {problem}") from problem
    names, *rest = lines or [[]]
    for number, line in enumerate(rest, start=2):
        if len(line) != len(names):
            raise InputError(f"{name}: row {number} has {len(line)} values for {len(names)} columns")
    return [
        {n: float(x) if _FLOAT.fullmatch(x) else _value(x) for n, x in zip(names, line, strict=True) if x}
        for line in rest
    ]


def _text(value: Any) -> str:
    plain = value if isinstance(value, str) else repr(value)
    back = _value(plain)
    # the reader ends a line at a carriage return, around which the writer puts no quotation marks
    if plain and "\r" not in plain and type(back) is type(value) and (back == value or back != back):
        return plain
    return json.dumps(value, ensure_ascii=False)


_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")  # Python reads no integer of more than 4300 digits
_FLOAT = re.compile(r"[+-]?([0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|inf|nan)")


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if text[:1] in ('"', "[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


# --- exported tables
def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Convert rows to a DataFrame, with a column for every parameter and number of any row.

    Numbers are float64, integers int64 (Int64 if values are missing), True and False bool (boolean if values are
    missing), all others text; NumPy's scalars count as Python's. None as the value of an option (a column with a dot)
    is the text "none", which makes its column text; a row without the option has a missing value. A failed cell has no
    numbers; its column "error" holds the error message.

    Parameters
    ----------
    rows : sequence of mapping of str to object
        Rows, such as `run` returns.

    Returns
    -------
    pandas.DataFrame
        One row per cell, in the order of ``rows``.

    Examples
    --------
    >>> table = frame([{"scheme": "sgemm", "mred": 0.5}, {"scheme": "h2sgemm", "scheme.sb": 12, "mred": 0.25}])
    >>> [str(kind) for kind in table.dtypes[["mred", "scheme.sb"]]]
    ['float64', 'Int64']
    """
    require("pandas")
    import pandas as pd

    data = {name: [row.get(name) for row in rows] for name in columns(rows)}
    for name in data:
        if "." in name and any(name in row and row[name] is None for row in rows):  # None is a value of this option
            data[name] = [None if name not in row else _option(row[name]) for row in rows]
    return pd.DataFrame({name: _column(values) for name, values in data.items()})


def _option(value: Any) -> str:
    return "none" if value is None else str(value)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all rows' entries, each placed after its predecessor in the row.

    >>> columns([{"scheme": "sgemm", "mred": 0.5}, {"scheme": "h2sgemm", "scheme.sb": 12, "mred": 0.25}])
    ['scheme', 'scheme.sb', 'mred']
    """
    names: list[str] = []
    seen: set[str] = set()
    for row in rows:
        if row.keys() <= seen:
            continue
        position = 0
        for name in row:
            if name in seen:
                position = names.index(name) + 1
            else:
                names.insert(position, name)
                seen.add(name)
                position += 1
    return names


def _column(values: list[Any]) -> pd.Series:
    import pandas as pd

    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(value) for value in values if value is not None}
    whole = len(kinds) > 0 and None not in values
    if kinds == {bool}:
        return pd.Series(values, dtype="bool" if whole else "boolean")
    if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
        return pd.Series(values, dtype="int64" if whole else "Int64")
    if kinds and kinds <= {int, float}:
        return pd.Series([float("nan") if value is None else float(value) for value in values], dtype="float64")
    # an error message may quote a file name whose bytes are not text
    texts = [value if value is None else str(value).encode(errors="backslashreplace").decode() for value in values]
    return pd.Series(texts, dtype="string")


def check_target(path: str) -> None:
    """Raise InputError before a computation if its table cannot be written to ``path`` afterwards."""
    if Path(path).suffix not in SUFFIXES:
        raise InputError(f"{path}: tables are written as {' or '.join(SUFFIXES)}")
    check_writable(path)
    require("pandas", *(["pyarrow"] if Path(path).suffix == ".parquet" else []))


def export(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Write rows as CSV or Parquet, according to the suffix of ``path``; the file is replaced as a whole or not at all.

    Floats are written with all digits. In CSV a missing value is empty, and so is a NaN.

    Raises
    ------
    InputError
        If ``path`` has another suffix, or cannot be written.
    OSError
        If writing fails, on a full disk for example; a former file remains.
    """
    check_target(path)
    table = frame(rows)
    if Path(path).suffix == ".csv":
        content = table.to_csv(index=False, lineterminator="\n").encode()
    else:
        stream = io.BytesIO()
        table.to_parquet(stream, index=False)
        content = stream.getvalue()
    write_atomic(path, content)


def medians(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[tuple[str, str, list[float], int]]:
    """The median of each metric and the number of finished cells, for each scheme with its options on each hardware.

    The options shown are those with several values among the rows of a scheme. The median is NaN if one of its numbers
    is NaN, which has no place in their order.
    """
    values: dict[tuple[str, str], set[Any]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith("scheme."):
                values.setdefault((row["scheme"], name), set()).add(value)
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        swept = [name for (scheme, name), several in values.items() if scheme == row["scheme"] and len(several) > 1]
        options = [f"{name.removeprefix('scheme.')}={_option(row[name])}" for name in swept]
        groups.setdefault((" ".join([row["scheme"], *options]), row["hardware"] or ""), []).append(row)
    lines = []
    for (scheme, hardware), members in groups.items():
        done = [row for row in members if "error" not in row]
        with np.errstate(invalid="ignore"):
            middle = [float(np.median([row[m] for row in done])) if done else float("nan") for m in metrics]
        lines.append((scheme, hardware, middle, len(done)))
    return lines
