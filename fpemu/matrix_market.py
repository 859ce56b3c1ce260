"""Matrix Market files (.mtx), read strictly: a token that is not a number raises instead of being cut short.

The format is defined by Boisvert, Pozo and Remington, The Matrix Market Exchange Formats, NISTIR 5935 (1996).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError, entries

_FIELDS = {
    "real": np.float64,
    "double": np.float64,
    "pattern": np.float64,
    "integer": np.int64,
    "unsigned-integer": np.uint64,
}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_LONGEST = 1 << 16  # characters of a line of the header


class Header(NamedTuple):
    """The header of a file.

    Attributes
    ----------
    sparse : bool
        Coordinate format.
    field : str
        "real", "double", "integer", "unsigned-integer" or "pattern".
    symmetry : str
        "general", "symmetric", "skew-symmetric" or "hermitian".
    shape : tuple of int
        Rows and columns.
    stored : int
        Number of entries in the file.
    lines : int
        Number of lines of the header.
    """

    sparse: bool
    field: str
    symmetry: str
    shape: tuple[int, int]
    stored: int
    lines: int


def read_header(path: str) -> Header:
    """Read the header of a file.

    Raises
    ------
    InputError
        If the header is not one of a real matrix, contradicts itself, or declares more entries than the file can hold.
    OSError
        If the file cannot be read.
    """
    with open(path, encoding="latin-1") as stream:
        banner = stream.readline(_LONGEST).lower().split()
        lines, size = 1, "%"
        while size.startswith("%") or (size.isspace() and size.endswith("\n")):
            size = stream.readline(_LONGEST)
            lines += 1
            if len(size) == _LONGEST:
                raise InputError(f"{path}: line {lines} has more than {_LONGEST - 1} characters")
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"] or banner[2] not in ("array", "coordinate"):
        raise InputError(f"{path}: the first line is not '%%MatrixMarket matrix array|coordinate FIELD SYMMETRY'")
    _, _, layout, field, symmetry = banner
    if field == "complex":
        raise InputError(f"{path} is complex: real matrices only")
    if field not in _FIELDS or symmetry not in _SYMMETRIES:
        raise InputError(f"{path}: '{field} {symmetry}' in the first line is not a field and a symmetry of the format")
    if field == "pattern" and (layout == "array" or symmetry == "skew-symmetric"):
        raise InputError(
            f"{path} is declared '{layout} pattern {symmetry}': a pattern is sparse and not skew-symmetric"
        )
    if field == "unsigned-integer" and symmetry == "skew-symmetric":
        raise InputError(f"{path} is declared '{field} {symmetry}': such a matrix has negative entries")
    words = size.split()
    names = "rows and columns" if layout == "array" else "rows, columns and stored entries"
    if len(words) != (2 if layout == "array" else 3) or not all(w.isascii() and w.isdecimal() for w in words):
        raise InputError(f"{path}: line {lines} is not the number of {names}")
    if max(map(len, words)) > 18:
        raise InputError(f"{path}: line {lines} declares a size beyond 10^18")
    rows, columns, *rest = map(int, words)
    if symmetry != "general" and rows != columns:
        raise InputError(f"{path} is declared {symmetry}, but {rows}×{columns}: only a square matrix can be")
    full = {"general": rows * columns, "skew-symmetric": rows * (rows - 1) // 2}
    stored = rest[0] if rest else full.get(symmetry, rows * (rows + 1) // 2)
    shortest = 2 if layout == "array" else 4 if field == "pattern" else 6  # characters of a line
    if shortest * stored > Path(path).stat().st_size:
        raise InputError(f"{path} is too short for the {stored} entries that its header declares")
    return Header(layout == "coordinate", field, symmetry, (rows, columns), stored, lines)


def read(path: str, header: Header) -> NDArray[Any]:
    """Read the matrix of a file as a dense array.

    Entries of a general sparse matrix with the same coordinates are added, as SciPy and MATLAB add them.

    Parameters
    ----------
    path : str
    header : Header
        Of this file.

    Returns
    -------
    ndarray, shape (M, N)
        float64, int64 or uint64.

    Raises
    ------
    InputError
        If the entries are not those that the header declares.
    """
    dtype = _FIELDS[header.field]
    columns: list[tuple[str, Any]] = [("row", np.int64), ("column", np.int64)] if header.sparse else []
    table = _table(path, header, [*columns, *([] if header.field == "pattern" else [("value", dtype)])])
    values = np.ones(header.stored, dtype) if header.field == "pattern" else np.ascontiguousarray(table["value"])
    if not np.isfinite(values).all():
        wrong = entries(~np.isfinite(values), values)
        raise InputError(f"{path}: Matrix Market has no NaN or Inf, and fp64 nothing larger ({wrong}); use an .npy")
    D = np.zeros(header.shape, dtype)
    if header.symmetry == "skew-symmetric" and header.field == "integer" and int(values.min(initial=0)) == -(2**63):
        raise InputError(f"{path} is declared skew-symmetric, but has -2^63, whose negative is not an int64")
    mirror = values if header.symmetry != "skew-symmetric" else -values
    if header.sparse:
        i, j = _coordinates(path, header, table, values)
        _add(path, D, i, j, values)
        if header.symmetry != "general":
            _add(path, D, j[i != j], i[i != j], mirror[i != j])
    elif header.symmetry == "general":
        D[:] = values.reshape(header.shape, order="F")
    else:
        j, i = np.triu_indices(header.shape[0], 1 if header.symmetry == "skew-symmetric" else 0)
        D[i, j] = values
        D[j, i] = mirror
    return D


def _add(path: str, D: NDArray[Any], i: NDArray[np.int64], j: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Add entries to D; InputError for a sum outside the range of D's dtype."""
    with np.errstate(over="ignore"):
        np.add.at(D, (i, j), values)
    if D.dtype.kind == "f":
        outside = ~np.isfinite(D[i, j])
    else:  # a sum in D is modulo 2^64: after an overflow it differs from the float64 sum by 2^64, else by rounding
        _, place = np.unique(i * D.shape[1] + j, return_inverse=True)
        outside = np.abs(np.bincount(place, values.astype(np.float64))[place] - D[i, j]) > 2.0**63
    if outside.any():
        first = int(np.argmax(outside))
        where = f"({i[first] + 1}, {j[first] + 1})"
        raise InputError(f"{path}: the sum of the entries at {where} is outside the range of {D.dtype}")


def _table(path: str, header: Header, columns: list[tuple[str, Any]]) -> NDArray[Any]:
    """The lines below the header, as many as it declares."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # blank lines
            warnings.simplefilter("error", DeprecationWarning)  # an integer written as 1.5 would be truncated
            table = np.loadtxt(
                path,
                np.dtype(columns),
                comments="%",
                skiprows=header.lines,
                encoding="latin-1",
                ndmin=1,
                max_rows=header.stored + 1,
            )
    except ValueError as problem:
        raise InputError(f"{path}: {_first_wrong_line(path, header, columns) or problem}") from problem
    if len(table) != header.stored:
        count = f"only {len(table)}" if len(table) < header.stored else "more"
        raise InputError(f"{path} declares {header.stored} stored entries and has {count}")
    return table


def _first_wrong_line(path: str, header: Header, columns: list[tuple[str, Any]]) -> str | None:
    """The first line below the header that is not one number for each column, in words."""
    with open(path, encoding="latin-1") as stream:
        for number, line in enumerate(stream, 1):
            words = line.partition("%")[0].split()
            if number <= header.lines or not words:
                continue
            if len(words) != len(columns):
                names = " ".join(name for name, _ in columns)
                return f"line {number} has {len(words)} words and must be '{names}'"
            for (name, dtype), word in zip(columns, words, strict=True):
                try:
                    np.dtype(dtype).type(word)
                except (ValueError, OverflowError):
                    return f"line {number}: the {name} {word[:40]!r} is not a value of {np.dtype(dtype)}"
    return None


def _coordinates(
    path: str, header: Header, table: NDArray[Any], values: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column indices from 0, within the shape and consistent with the symmetry."""
    i, j = table["row"] - 1, table["column"] - 1
    outside = (i < 0) | (j < 0) | (i >= header.shape[0]) | (j >= header.shape[1])
    if outside.any():
        first = int(np.argmax(outside))
        place = f"({table['row'][first]}, {table['column'][first]})"
        raise InputError(
            f"{path}: entry {first + 1} at {place} is outside the {'×'.join(map(str, header.shape))} matrix"
        )
    if header.symmetry != "general" and (i > j).any() and (i < j).any():
        raise InputError(f"{path} is declared {header.symmetry}, but has entries on both sides of the diagonal")
    if header.symmetry == "skew-symmetric" and values[i == j].any():
        raise InputError(f"{path} is declared skew-symmetric, but has an entry on the diagonal that is not zero")
    return i, j
