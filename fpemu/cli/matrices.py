"""Read and write matrices in files: NumPy .npy and .npz, Matrix Market .mtx.

Shape and dtype are checked before the entries are read, so that a small file cannot exhaust the memory. Arrays of
Python objects raise: loading one would run code from the file.
"""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import check_writable, write_atomic
from fpemu.arguments import integer
from fpemu.errors import InputError, entries

MAX_ENTRIES = 2**30
"""Default limit of `read`: emulating a product of more entries takes days, and reading them can exhaust the memory."""

_LONGEST_HEADER = 10_000  # bytes, of an .npy: numpy.load has the same limit
_SHOWN = 8  # names of an archive's arrays in a message


def read(name: str | os.PathLike[str], *, max_entries: int = MAX_ENTRIES) -> NDArray[Any]:
    """Read a real matrix from a file.

    Parameters
    ----------
    name : str
        ``FILE.npy``, ``FILE.npz`` (``FILE.npz:KEY`` if it holds several arrays) or ``FILE.mtx`` (dense or sparse;
        entries with the same coordinates are added).
    max_entries : int
        Largest number of entries, zeros of a sparse matrix included.

    Returns
    -------
    ndarray, shape (M, N)
        In the file's own dtype (float64 or an integer type for .mtx).

    Raises
    ------
    InputError
        If the file's content differs from its suffix, is not a real matrix, or has more than ``max_entries`` entries.
    OSError
        If it cannot be read.
    """
    text = os.fspath(name)
    integer("max_entries", max_entries, 1)
    path, archive, key = text.partition(".npz:")  # FILE.npz:KEY
    path += archive[:-1]
    suffix = Path(path).suffix.lower()
    try:
        if suffix == ".mtx":
            return _read_mtx(path, max_entries)
        if suffix == ".npy":
            with open(path, "rb") as stream:
                return _read_array(stream, os.fstat(stream.fileno()).st_size, text, max_entries)
        if suffix == ".npz":
            return _read_npz(path, key, text, max_entries)
    except (InputError, OSError):
        raise
    except MemoryError as problem:
        raise InputError(f"{text}: too large for the memory, or a damaged file") from problem
    except Exception as problem:  # NumPy, zipfile and zlib raise many kinds of exceptions for a damaged file
        # without the advice of NumPy's reader on its own options
        line = (str(problem).strip() or type(problem).__name__).splitlines()[0].partition("; use `usecols`")[0]
        raise InputError(f"{text}: not a readable {suffix} file ({line})") from problem
    raise InputError(f"{text or 'an empty name'}: a matrix file ends in .npy, .npz or .mtx")


def _check_header(shape: tuple[int, ...], dtype: np.dtype[Any], name: str, max_entries: int) -> None:
    if dtype.kind not in "fiu":
        kind = {"O": "Python objects", "c": "complex numbers"}.get(dtype.kind, str(dtype))
        raise InputError(f"{name} holds {kind}, and a matrix real numbers")
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(f"{name} has shape {shape}: a matrix has two axes and at least one entry")
    if math.prod(shape) > max_entries:
        raise InputError(f"{name} is {shape[0]}×{shape[1]}: more entries than max_entries={max_entries}")


def to_format(matrix: NDArray[Any], name: str, fmt: str) -> tuple[NDArray[Any], str | None]:
    """Round a matrix once to fp32 or fp64 (to nearest, ties to even).

    Parameters
    ----------
    matrix : ndarray of float or integer
    name : str
        Its name in messages.
    fmt : {"fp32", "fp64"}

    Returns
    -------
    matrix : ndarray of float32 or float64
    note : str or None
        The number of entries changed by rounding; None if there are none.

    Raises
    ------
    InputError
        If a finite entry overflows the format.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = matrix.astype(formats.get(fmt).dtype)
    overflow = np.isinf(rounded) & np.isfinite(matrix)
    if overflow.any():
        raise InputError(f"{name}: beyond the range of {fmt} in {entries(overflow, matrix)}")
    changed = _count_changed(matrix, rounded)
    if not changed:
        return rounded, None
    return rounded, f"{name}: {matrix.dtype} rounded to {fmt}, {changed} of {matrix.size} entries changed"


def _count_changed(matrix: NDArray[Any], rounded: NDArray[Any]) -> int:
    if matrix.dtype.kind in "iu":  # compared as integers: no float type of all systems holds every int64
        within = rounded < float(np.iinfo(matrix.dtype).max) + 1
        return int(np.count_nonzero(~within | (np.where(within, rounded, 0).astype(matrix.dtype) != matrix)))
    wide = np.promote_types(matrix.dtype, rounded.dtype)
    return int(np.count_nonzero((rounded.astype(wide) != matrix.astype(wide)) & ~np.isnan(rounded)))


def check_output(name: str | os.PathLike[str]) -> None:
    """Raise InputError if `write` could not write this file; called before a computation."""
    if Path(name).suffix.lower() not in (".npy", ".mtx"):
        raise InputError(f"{name!r}: results are written as .npy or .mtx")
    check_writable(name)


def write(name: str | os.PathLike[str], matrix: NDArray[Any]) -> None:
    """Write a matrix as .npy or .mtx, atomically. An .mtx has enough digits to reproduce every entry.

    Raises
    ------
    InputError
        If the suffix is another, the matrix is not real, has no entries or not two axes, or an .mtx would hold NaN or
        Inf, which the format does not define, or numbers of more bits than fp64.
    OSError
        If it cannot be written.
    """
    check_output(name)
    _check_header(matrix.shape, matrix.dtype, str(name), max(matrix.size, 1))
    stream = io.BytesIO()
    if Path(name).suffix.lower() == ".npy":
        np.save(stream, matrix, allow_pickle=False)
    else:
        from scipy.io import mmwrite

        if not np.isfinite(matrix).all():
            wrong = entries(~np.isfinite(matrix), matrix)
            raise InputError(f"{name}: Matrix Market has no NaN or Inf ({wrong}); write an .npy")
        written = matrix.astype(np.float64)
        if changed := _count_changed(matrix, written):
            raise InputError(f"{name}: {changed} of {matrix.size} entries need more bits than fp64 has; write an .npy")
        mmwrite(stream, written, precision=17, symmetry="general")
    write_atomic(name, stream.getvalue())


def _read_npz(path: str, key: str, name: str, max_entries: int) -> NDArray[Any]:
    with open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:  # zipfile leaves a damaged file open
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        names = ", ".join([*members][:_SHOWN]) + (f" and {len(members) - _SHOWN} more" * (len(members) > _SHOWN))
        if not key and len(members) != 1:
            raise InputError(f"{path} holds {len(members)} arrays: name one as {path}:KEY, KEY one of {names}")
        if key and key not in members:
            raise InputError(f"{path} has no array {key!r}: it holds {names}")
        member = members[key or next(iter(members))]
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(f"{name}: compressed by a method that numpy.savez_compressed does not use")
        with archive.open(member) as content:
            return _read_array(content, member.file_size, name, max_entries)


def _read_array(stream: IO[bytes], length: int, name: str, max_entries: int) -> NDArray[Any]:
    """The array of an .npy file or archive member of `length` bytes; the header is checked before memory is used."""
    head = io.BytesIO(stream.read(_LONGEST_HEADER))
    if not head.getvalue().startswith(np.lib.format.MAGIC_PREFIX):
        raise InputError(f"{name}: not an array written by numpy.save")
    version = np.lib.format.read_magic(head)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(head)
    _check_header(shape, dtype, name, max_entries)
    size = math.prod(shape) * dtype.itemsize
    if length != head.tell() + size:
        raise InputError(f"{name}: {length - head.tell()} bytes where its header declares {size}")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


# --- Matrix Market: Boisvert, Pozo and Remington, The Matrix Market Exchange Formats, NISTIR 5935 (1996)
_FIELDS: dict[str, Any] = {"real": np.float64, "double": np.float64, "pattern": np.float64}
_FIELDS |= {"integer": np.int64, "unsigned-integer": np.uint64}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_LONGEST_LINE = 1 << 16  # characters of a line of the header: a file without line ends must not fill the memory


def _read_mtx(path: str, max_entries: int) -> NDArray[Any]:
    """The matrix as a dense array; entries of a sparse matrix with the same coordinates are added, as SciPy does.

    SciPy's own reader returns 1.5 for the token `1.5abc`, 0 for `0x10` and inf for `1e400`; these raise here.
    """
    with open(path, encoding="latin-1") as stream:
        banner, size, lines = stream.readline(_LONGEST_LINE).lower().split(), "%", 1
        while size and size.lstrip()[:1] in ("", "%"):
            size = stream.readline(_LONGEST_LINE)
            lines += 1
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"] or banner[2] not in ("array", "coordinate"):
        raise InputError(f"{path}: the first line is not '%%MatrixMarket matrix array|coordinate FIELD SYMMETRY'")
    sparse, (field, symmetry) = banner[2] == "coordinate", banner[3:]
    skew = symmetry == "skew-symmetric"
    if field == "complex":
        raise InputError(f"{path} is complex: real matrices only")
    if field not in _FIELDS or symmetry not in _SYMMETRIES or (field == "pattern" and (not sparse or skew)):
        raise InputError(f"{path}: '{' '.join(banner[2:])}' in the first line is no layout of the format")
    words = size.split()
    # 18 digits: every size is an int64
    if len(words) != 2 + sparse or not all(word.isdecimal() and len(word) <= 18 for word in words):
        raise InputError(f"{path}: line {lines} is not the number of rows, columns{' and stored entries' * sparse}")
    M, N, *count = map(int, words)
    dtype = np.dtype(_FIELDS[field])
    _check_header((M, N), dtype, path, max_entries)
    if symmetry != "general" and M != N:
        raise InputError(f"{path} is declared {symmetry}, but {M}×{N}: only a square matrix can be")
    stored = count[0] if sparse else M * N if symmetry == "general" else M * (M + 1) // 2 - M * skew
    columns = [("row", np.int64), ("column", np.int64)] * sparse + [("value", dtype)] * (field != "pattern")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files without entries
        warnings.simplefilter("error", DeprecationWarning)  # an integer written as 1.5 would be truncated
        # one more row than declared, so that a surplus is found; no more than bytes: loadtxt allocates them at once
        most = min(stored, Path(path).stat().st_size) + 1
        rows = {"skiprows": lines, "max_rows": most, "ndmin": 1}
        table = np.loadtxt(path, np.dtype(columns), comments="%", encoding="latin-1", **rows)  # type: ignore[call-overload]
    if len(table) != stored:
        number = f"only {len(table)}" if len(table) < stored else "more"
        raise InputError(f"{path} declares {stored} stored entries and has {number}")
    values = np.ones(stored, dtype) if field == "pattern" else table["value"]
    if not np.isfinite(values).all():
        wrong = entries(~np.isfinite(values), values)
        raise InputError(f"{path}: Matrix Market has no NaN or Inf, and fp64 nothing larger ({wrong}); use an .npy")
    if sparse:
        i, j = table["row"] - 1, table["column"] - 1
    elif symmetry == "general":
        j, i = np.divmod(np.arange(stored), M)  # by columns
    else:
        j, i = np.triu_indices(M, int(skew))
    if (outside := (i < 0) | (j < 0) | (i >= M) | (j >= N)).any():
        first = int(np.argmax(outside))
        raise InputError(f"{path}: entry {first + 1} at ({i[first] + 1}, {j[first] + 1}) is outside the {M}×{N} matrix")
    if symmetry != "general" and (i > j).any() and (i < j).any():
        raise InputError(f"{path} is declared {symmetry}, but has entries on both sides of the diagonal")
    D, wide = np.zeros((M, N), dtype), np.zeros((M, N))
    off = i != j
    with np.errstate(over="ignore"):
        for matrix in (D, wide):
            np.add.at(matrix, (i, j), values.astype(matrix.dtype))
            if symmetry != "general":
                mirror = values.astype(matrix.dtype)[off]
                np.add.at(matrix, (j[off], i[off]), -mirror if skew else mirror)
    # integers that wrapped around differ from the float64 sum by 2^64, others by its rounding
    if not np.isfinite(wide).all() or (np.abs(D - wide) > 2.0**62).any():
        raise InputError(f"{path}: a sum or a negative of entries is outside the range of {dtype}")
    return D
