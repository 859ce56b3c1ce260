"""Rows as a table: a pandas DataFrame, CSV, Parquet, and medians for the terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu.errors import InputError, require
from fpemu.files import check_writable, write_atomic

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet")


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Convert rows to a DataFrame, with a column for every parameter and number of any row.

    Numbers are float64, integers int64 (Int64 if values are missing), True and False bool (boolean if values are
    missing), all others text; NumPy's scalars count as Python's. A failed cell has no numbers; its column "error" holds
    the error message.

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

    return pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in columns(rows)})


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
        place = 0
        for name in row:
            if name in seen:
                place = names.index(name) + 1
            else:
                names.insert(place, name)
                seen.add(name)
                place += 1
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

    The median is NaN if one of its numbers is NaN, which has no place in their order.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        options = [f"{n.removeprefix('scheme.')}={v}" for n, v in row.items() if n.startswith("scheme.")]
        groups.setdefault((" ".join([row["scheme"], *options]), row["hardware"] or ""), []).append(row)
    lines = []
    for (scheme, hardware), members in groups.items():
        done = [row for row in members if "error" not in row]
        with np.errstate(invalid="ignore"):
            middle = [float(np.median([row[m] for row in done])) if done else float("nan") for m in metrics]
        lines.append((scheme, hardware, middle, len(done)))
    return lines
