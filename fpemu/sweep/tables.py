"""Rows as CSV: the data of a figure or of a map, written with 9 significant digits and read back with their types."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.sweep.run import Row

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
    writer.writerows(
        {name: _text(rounded(value, chosen.get(name, DIGITS))) for name, value in row.items()} for row in rows
    )
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
    return [{name: _value(text) for name, text in zip(names, line, strict=True) if text} for line in rest]


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
