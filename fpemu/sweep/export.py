"""Rows as a table: a pandas frame, CSV, Parquet, and the medians that a terminal has room for."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpemu.errors import InputError
from fpemu.files import check_writable, write_atomic

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet")


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a DataFrame, a column for every parameter and number that any of them has.

    Numbers are float64, integers int64 (Int64 where some rows have none), True and False bool (boolean), the rest text;
    what a row does not have is missing. A cell that failed has no numbers, and its "error".

    Examples
    --------
    >>> table = frame([{"scheme": "sgemm", "mred": 0.5}, {"scheme": "h2sgemm", "scheme.sb": 12, "mred": 0.25}])
    >>> [str(kind) for kind in table.dtypes[["mred", "scheme.sb"]]]
    ['float64', 'Int64']
    """
    import pandas as pd

    return pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in columns(rows)})


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every name that a row has, each beside the one that it follows there.

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

    kinds = {type(value) for value in values if value is not None}
    whole = len(kinds) > 0 and None not in values
    if kinds == {bool}:
        return pd.Series(values, dtype="bool" if whole else "boolean")
    if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
        return pd.Series(values, dtype="int64" if whole else "Int64")
    if kinds and kinds <= {int, float}:
        return pd.Series([float("nan") if value is None else float(value) for value in values], dtype="float64")
    return pd.Series([value if value is None else str(value) for value in values], dtype="string")


def check_target(path: str) -> None:
    """InputError if a table cannot be written there: asked before a computation, not after it."""
    if Path(path).suffix not in SUFFIXES:
        raise InputError(f"{path}: tables are written as {' or '.join(SUFFIXES)}")
    check_writable(path)
    if Path(path).suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as problem:
            raise InputError("Parquet needs the package pyarrow: pip install 'fpemu[parquet]'") from problem


def export(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Write rows as CSV or Parquet, by the name's ending; the file appears whole or not at all.

    Floats come back as they were. In CSV what is missing is empty, and so is a NaN.
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
    """For each scheme with its options on each hardware, the median of each metric and the count of finished cells."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        options = [f"{n.removeprefix('scheme.')}={v}" for n, v in row.items() if n.startswith("scheme.")]
        groups.setdefault((" ".join([row["scheme"], *options]), row["hardware"] or ""), []).append(row)
    found = []
    for (scheme, hardware), members in groups.items():
        done = [row for row in members if "error" not in row]
        middle = [statistics.median(row[m] for row in done) if done else float("nan") for m in metrics]
        found.append((scheme, hardware, middle, len(done)))
    return found
