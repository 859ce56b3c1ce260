"""Matrices in files: NumPy .npy and .npz, Matrix Market .mtx; read into memory, checked, and written whole.

Files are data here, never code: pickled and object arrays are refused.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError, entries
from fpemu.files import check_writable, write_atomic

MAX_ENTRIES = 2**30
"""More than this is refused: emulating its product would take days, and making it dense could exhaust the memory."""

_SUFFIXES = (".npy", ".npz", ".mtx")


def read(name: str | os.PathLike[str]) -> NDArray[Any]:
    """A real matrix from a file.

    Parameters
    ----------
    name : str
        ``FILE.npy``, ``FILE.npz`` (``FILE.npz:KEY`` if it holds several arrays) or ``FILE.mtx`` (dense or sparse).

    Returns
    -------
    ndarray, shape (M, N)
        In the file's own dtype (float64 or an integer type for .mtx).

    Raises
    ------
    InputError
        If the file is not what its name says, or holds no real matrix of numbers.
    OSError
        If it cannot be read.
    """
    text = os.fspath(name)
    path, key = _parts(text)
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"{text}: a matrix file ends in .npy, .npz or .mtx")
    if Path(path).is_dir():
        raise InputError(f"{text} is a folder, not a matrix file")
    try:
        matrix = _read_market(path) if suffix == ".mtx" else _read_numpy(path, key)
    except InputError:
        raise
    except MemoryError as problem:
        raise InputError(f"{text}: too large for the memory, or a damaged file") from problem
    except (ValueError, EOFError, KeyError, TypeError, OverflowError, SyntaxError, pickle.UnpicklingError,
            zipfile.BadZipFile, zlib.error, NotImplementedError) as problem:  # fmt: skip
        raise InputError(f"{text}: not a readable {suffix} file ({_first_line(problem)})") from problem
    return check(matrix, text)


def check(matrix: NDArray[Any], name: str) -> NDArray[Any]:
    """The matrix, if it is a real one with two axes and at least one entry; InputError naming it otherwise."""
    if matrix.dtype.kind == "c":
        raise InputError(f"{name} is complex ({matrix.dtype}): real matrices only")
    if matrix.dtype.kind not in "fiu":
        raise InputError(f"{name} holds {matrix.dtype}, not numbers")
    if matrix.ndim != 2:
        raise InputError(f"{name} has shape {matrix.shape}: a matrix has two axes")
    if matrix.size == 0:
        raise InputError(f"{name} has shape {matrix.shape}: it has no entries")
    return matrix


def to_format(matrix: NDArray[Any], name: str, fmt: str) -> tuple[NDArray[Any], str | None]:
    """The matrix rounded once to fp32 or fp64 (nearest even), and a note if that changed anything.

    Parameters
    ----------
    matrix : ndarray of float or integer
    name : str
        What to call it in messages.
    fmt : {"fp32", "fp64"}

    Returns
    -------
    matrix : ndarray of float32 or float64
    note : str or None
        How many entries are not the file's any more.

    Raises
    ------
    InputError
        If a finite entry is beyond the format's range.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = matrix.astype(formats.get(fmt).dtype)
    beyond = np.isinf(rounded) & np.isfinite(matrix)
    if beyond.any():
        raise InputError(f"{name}: beyond the range of {fmt} in {entries(beyond, matrix)}")
    # compared in a type that holds both exactly: longdouble for int64, whose values float64 would round
    wide = np.longdouble if matrix.dtype.kind in "iu" else np.promote_types(matrix.dtype, rounded.dtype)
    changed = int(np.count_nonzero((rounded.astype(wide) != matrix.astype(wide)) & ~np.isnan(rounded)))
    if not changed:
        return rounded, None
    return rounded, f"{name}: {matrix.dtype} rounded to {fmt}, {changed} of {matrix.size} entries changed"


def check_output(name: str | os.PathLike[str]) -> None:
    """InputError if :func:`write` could not write there: asked before the computation, not after it."""
    if Path(name).suffix.lower() not in (".npy", ".mtx"):
        raise InputError(f"{name!r}: results are written as .npy or .mtx")
    check_writable(name)


def write(name: str | os.PathLike[str], matrix: NDArray[Any]) -> None:
    """Write a matrix as .npy or .mtx, atomically. An .mtx has enough digits to give every entry back.

    Raises
    ------
    InputError
        If the name has another ending, or an .mtx would have to hold NaN or Inf, which the format does not define.
    OSError
        If it cannot be written.
    """
    check_output(name)
    stream = io.BytesIO()
    if Path(name).suffix.lower() == ".npy":
        np.save(stream, matrix, allow_pickle=False)
    else:
        from scipy.io import mmwrite

        if not np.isfinite(matrix).all():
            wrong = entries(~np.isfinite(matrix), matrix)
            raise InputError(f"{name}: Matrix Market has no NaN or Inf ({wrong}); write an .npy")
        mmwrite(stream, matrix.astype(np.float64), precision=17, symmetry="general")
    write_atomic(name, stream.getvalue())


def _parts(text: str) -> tuple[str, str | None]:
    """``FILE.npz:KEY`` in two; any other text is all file name."""
    head, colon, key = text.rpartition(":")
    return (head, key) if colon and head.lower().endswith(".npz") else (text, None)


def _read_numpy(path: str, key: str | None) -> NDArray[Any]:
    with open(path, "rb") as stream:  # opened here: np.load leaves a damaged archive open
        loaded = np.load(stream, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if Path(path).suffix.lower() == ".npz":
                raise InputError(f"{path}: a single .npy array under the name of an .npz")
            return loaded
        with loaded as archive:
            if Path(path).suffix.lower() == ".npy":
                raise InputError(f"{path}: an .npz archive under the name of an .npy")
            array = archive[_key(path, key, list(archive.files))]
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: the entry is not an .npy array")
    return array


def _key(path: str, key: str | None, names: list[str]) -> str:
    """The array meant: the one named, or the only one."""
    if not names:
        raise InputError(f"{path}: an archive without arrays")
    if key is None and len(names) > 1:
        raise InputError(f"{path} holds {len(names)} arrays: say which as {path}:KEY, KEY one of {', '.join(names)}")
    if key is not None and key not in names:
        raise InputError(f"{path} has no array {key!r}: it holds {', '.join(names)}")
    return names[0] if key is None else key


def _read_market(path: str) -> NDArray[Any]:
    from scipy.io import mminfo, mmread

    open(path, "rb").close()  # scipy reports a missing file in its own words; this raises the usual OSError
    rows, columns, *_ = mminfo(path)
    if rows * columns > MAX_ENTRIES:
        raise InputError(f"{path}: {rows}×{columns} is too large to emulate densely (at most {MAX_ENTRIES} entries)")
    matrix = mmread(path)
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)


def _first_line(problem: BaseException) -> str:
    text = str(problem).strip() or type(problem).__name__
    if "pickle" in text:  # NumPy's own words explain how to load it unsafely
        return "it holds Python objects, or no array at all; only arrays of numbers are read"
    return text.splitlines()[0]
