"""Read and write matrices in files: NumPy .npy and .npz, .safetensors, Matrix Market .mtx.

Shape and dtype are checked before the entries are read, so that a small file cannot exhaust the memory. Arrays of
Python objects raise: loading one would run code from the file.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import check_writable, write_atomic
from fpemu.errors import InputError, entries, shown
from fpemu.mma.spec import INTEGERS

MAX_ENTRIES = 2**30
"""Default limit of `read`: emulating a product of more entries takes days, and reading them can exhaust the memory."""

_LONGEST_HEADER = 10_000  # bytes, of an .npy: numpy.load has the same limit
_LONGEST_JSON = 100_000_000  # bytes, of a safetensors header: the library has the same limit
_LONGEST_REASON = 120  # characters of another library's message
_SHOWN = 8  # names of an archive's arrays in a message


def read(
    name: str, *, fmt: str | None = None, max_entries: int = MAX_ENTRIES, complex_numbers: bool = False
) -> NDArray[Any]:
    """Read a matrix in the file's dtype, for .mtx float64, complex128 or an integer type.

    FILE.npz:KEY and FILE.safetensors:KEY name one of several arrays. Codes of a format that NumPy lacks become its
    values: bf16 and fp8 of .safetensors, bytes as numpy.save writes arrays of ml_dtypes, and unsigned integers of the
    width of ``fmt``. Zeros of a sparse matrix count as entries. A file whose content differs from its suffix, is no
    matrix, or has more than ``max_entries`` entries raises InputError, and so do complex numbers unless
    ``complex_numbers``.
    """
    matrix = _read(name, fmt, max_entries)
    if matrix.dtype.kind == "c" and not complex_numbers:
        cure = "write its real and its imaginary part to two files"
        raise InputError(f"{name} holds complex numbers, and a matrix real numbers: {cure}")
    return matrix


def _read(name: str, fmt: str | None, max_entries: int) -> NDArray[Any]:
    path, archive, key = [*re.split(r"(\.npz|\.safetensors):", name, maxsplit=1), "", ""][:3]
    path += archive
    suffix = Path(path).suffix.lower()
    try:
        if suffix == ".mtx":
            return _read_mtx(path, max_entries)
        if suffix == ".npy":
            with open(path, "rb") as stream:
                array = _read_array(stream, os.fstat(stream.fileno()).st_size, name, max_entries)
            return _decoded(array, name, fmt)
        if suffix == ".npz":
            return _decoded(_read_npz(path, key, name, max_entries), name, fmt)
        if suffix == ".safetensors":
            return _decoded(*_read_safetensors(path, key, name, fmt, max_entries))
    except (InputError, OSError):
        raise
    except MemoryError as problem:
        raise InputError(f"{name}: too large for the memory, or a damaged file") from problem
    except Exception as problem:  # NumPy, SciPy, zipfile and zlib raise many kinds of exceptions for a damaged file
        # without the advice of NumPy's reader on its own options
        line = (str(problem).strip() or type(problem).__name__).splitlines()[0].partition("; use `usecols`")[0]
        line = line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."
        raise InputError(f"{name}: not a readable {suffix} file ({line})") from problem
    raise InputError(f"{name or 'an empty name'}: a matrix file ends in .npy, .npz, .safetensors or .mtx")


def _check_header(shape: tuple[int, ...], dtype: np.dtype[Any], name: str, max_entries: int) -> None:
    if dtype.kind not in "fiuc" and not (dtype.type is np.void and dtype.names is None and dtype.itemsize <= 2):
        kind = "Python objects" if dtype.kind == "O" else shown(str(dtype)).strip("'")
        raise InputError(f"{name} holds {kind}, and a matrix real numbers")
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(f"{name} has shape {shape}: a matrix has two axes and at least one entry")
    if math.prod(shape) > max_entries:
        raise InputError(f"{name} is {shape[0]}×{shape[1]}: more entries than max_entries={max_entries}")


def _decoded(array: NDArray[Any], name: str, fmt: str | None) -> NDArray[Any]:
    """The values of an array whose entries are codes; any other array unchanged."""
    known = None if fmt in (None, *INTEGERS) else formats.get(fmt)
    if array.dtype.kind == "V":
        width = array.dtype.itemsize
        if width == 2:
            known = formats.BF16  # the only type of 16 bits that ml_dtypes adds to NumPy
        elif known is None or known.width > 8:
            raise InputError(
                f"{name} holds bytes without a type, as numpy.save writes fp8: name their format, as by --format e4m3 "
                f"of 'fpemu verify gemm', or write the array again from float32"
            )
        array = np.ascontiguousarray(array).view(f"u{width}")
    elif known is None or known.width >= 8 * known.dtype.itemsize or array.dtype != known.code_dtype:
        return array
    return np.asarray(known.decode(array))


def to_format(matrix: NDArray[Any], name: str, fmt: str) -> tuple[NDArray[Any], str | None]:
    """Round a matrix once to fp32 or fp64; also return a note that counts the changed entries, None if there are none.

    Complex numbers keep two parts of that format. A finite entry that overflows the format raises InputError.
    """
    dtype = formats.get(fmt).dtype
    with np.errstate(over="ignore", under="ignore"):
        rounded = matrix.astype(np.result_type(dtype, np.complex64) if matrix.dtype.kind == "c" else dtype)
    overflow = np.isinf(rounded) & np.isfinite(matrix)
    if overflow.any():
        raise InputError(f"{name}: beyond the range of {fmt} in {entries(overflow, matrix)}")
    if matrix.dtype.kind in "iu":  # compared as integers: no float type of all systems holds every int64
        within = rounded < float(np.iinfo(matrix.dtype).max) + 1
        changed = ~within | (np.where(within, rounded, 0).astype(matrix.dtype) != matrix)
    else:
        changed = (rounded != matrix) & ~np.isnan(rounded)
    count = np.count_nonzero(changed)
    note = f"{name}: {matrix.dtype} rounded to {fmt}, {count} of {matrix.size} entries changed"
    return rounded, note if count else None


def check_output(name: str) -> None:
    """Raise InputError if `write` could not write this file; called before a computation."""
    if Path(name).suffix.lower() not in (".npy", ".mtx"):
        raise InputError(f"{name!r}: results are written as .npy or .mtx")
    check_writable(name)


def write(name: str, matrix: NDArray[Any]) -> None:
    """Write a matrix of fp32 or fp64 as .npy or .mtx, atomically. An .mtx has enough digits for every entry.

    NaN and Inf in an .mtx raise InputError: the format does not define them.
    """
    stream = io.BytesIO()
    if Path(name).suffix.lower() == ".npy":
        np.save(stream, matrix)
    else:
        from scipy.io import mmwrite

        if not np.isfinite(matrix).all():
            wrong = entries(~np.isfinite(matrix), matrix)
            raise InputError(f"{name}: Matrix Market has no NaN or Inf ({wrong}); write an .npy")
        # mmwrite itself would write a symmetric matrix as a triangle
        mmwrite(stream, matrix.astype(np.result_type(matrix, np.float64)), precision=17, symmetry="general")
    write_atomic(name, stream.getvalue())


_CODES = {"BF16": "bf16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "F8_E4M3FNUZ": "e4m3fnuz", "F8_E5M2FNUZ": "e5m2fnuz"}


def _read_safetensors(
    path: str, key: str, name: str, fmt: str | None, max_entries: int
) -> tuple[NDArray[Any], str, str | None]:
    """An array of the file, the name, and the format of codes: a length, a header in JSON, and the arrays' bytes."""
    with open(path, "rb") as stream:
        length = os.fstat(stream.fileno()).st_size
        size = int.from_bytes(stream.read(8), "little")
        if size > min(length - 8, _LONGEST_JSON):
            raise InputError(f"{name}: not a safetensors file: its header would have {size} bytes")
        tensors = {k: v for k, v in json.loads(stream.read(size)).items() if k != "__metadata__"}
        tensor = tensors[_member(path, key, tensors)]
        kind, shape, (start, stop) = tensor["dtype"], tuple(map(int, tensor["shape"])), tensor["data_offsets"]
        if kind in _CODES:
            fmt, dtype = _CODES[kind], formats.get(_CODES[kind]).code_dtype
        else:
            dtype = np.dtype(f"<{kind[0].lower()}{int(kind[1:]) // 8}")
        _check_header(shape, dtype, name, max_entries)
        if not 0 <= start <= stop <= length - 8 - size or stop - start != math.prod(shape) * dtype.itemsize:
            raise InputError(f"{name}: its header declares {stop - start} bytes for {shape} of {kind}")
        stream.seek(8 + size + start)
        return np.frombuffer(stream.read(stop - start), dtype).reshape(shape), name, fmt


def _member(path: str, key: str, members: Collection[str]) -> str:
    """The name of an array in a file of several; without a key the name of the only array."""
    names = ", ".join([*members][:_SHOWN]) + (f" and {len(members) - _SHOWN} more" * (len(members) > _SHOWN))
    if not key and len(members) != 1:
        raise InputError(f"{path} holds {len(members)} arrays: name one as {path}:KEY, KEY one of {names}")
    if key and key not in members:
        raise InputError(f"{path} has no array {key!r}: it holds {names}")
    return key or next(iter(members))


def _read_npz(path: str, key: str, name: str, max_entries: int) -> NDArray[Any]:
    with open(path, "rb") as stream, zipfile.ZipFile(stream) as archive:  # zipfile leaves a damaged file open
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        member = members[_member(path, key, members)]
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(f"{name}: compressed by a method that numpy.savez_compressed does not use")
        with archive.open(member) as content:
            return _read_array(content, member.file_size, name, max_entries)


def _read_array(stream: IO[bytes], length: int, name: str, max_entries: int) -> NDArray[Any]:
    """Read an .npy file or archive member of ``length`` bytes; the header is checked before memory is used."""
    head = io.BytesIO(stream.read(_LONGEST_HEADER))
    if not head.getvalue().startswith(np.lib.format.MAGIC_PREFIX):
        raise InputError(f"{name}: not an array written by numpy.save")
    version = np.lib.format.read_magic(head)
    codes = b"'descr': '<f1'" in head.getvalue()[:64]  # of float8_e5m2, as numpy.save writes it and no NumPy reads it
    if codes:
        head = io.BytesIO(head.getvalue().replace(b"'<f1'", b"'|u1'", 1))
        np.lib.format.read_magic(head)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(head)
    _check_header(shape, dtype, name, max_entries)
    size = math.prod(shape) * dtype.itemsize
    if length != head.tell() + size:
        raise InputError(f"{name}: {length - head.tell()} bytes where its header declares {size}")
    if codes:
        stream.seek(head.tell())
        array = np.frombuffer(stream.read(size), dtype).reshape(shape, order="F" if fortran else "C")
        return np.asarray(formats.E5M2.decode(array))
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


_FIELDS: dict[str, Any] = {"integer": np.int64, "unsigned-integer": np.uint64}


def _read_mtx(path: str, max_entries: int) -> NDArray[Any]:
    """Read Matrix Market (Boisvert, Pozo and Remington, NISTIR 5935, 1996) as a dense array.

    Entries of a sparse matrix with the same coordinates are added, as SciPy does. SciPy reads the header. Its reader of
    entries returns 1.5 for the token `1.5abc`, 0 for `0x10`, inf for `1e400`, and zeros for the missing entries of a
    symmetric array; these raise here.
    """
    from scipy.io import mminfo
    from scipy.sparse import coo_array

    with open(path, encoding="latin-1") as stream, warnings.catch_warnings():
        M, N, stored, layout, field, symmetry = mminfo(path)
        sparse, skew = layout == "coordinate", symmetry == "skew-symmetric"
        dtype = np.dtype(complex if field == "complex" else _FIELDS.get(field, np.float64))
        _check_header((M, N), dtype, path, max_entries)
        if field == "pattern" and (not sparse or skew):
            raise InputError(f"{path}: '{layout} pattern {symmetry}' in the first line is no layout of the format")
        if symmetry != "general" and M != N:
            raise InputError(f"{path} is declared {symmetry}, but {M}×{N}: only a square matrix can be")
        if symmetry != "general" and not sparse:
            stored = M * (M + 1) // 2 - M * skew
        if any("\0" in block for block in iter(partial(stream.read, 1 << 16), "")):
            raise InputError(
                f"{path} has NUL bytes in place of digits, as scipy.io.mmwrite writes float32 with a precision above "
                f"9: write the matrix again from float64"
            )
        stream.seek(0)
        columns: list[tuple[str, Any]] = [("row", np.int64), ("column", np.int64)] * sparse
        if field != "pattern":
            columns += [("value", np.float64), ("imaginary", np.float64)] if field == "complex" else [("value", dtype)]
        line = "%"
        while line and line.lstrip()[:1] in ("", "%"):  # up to the line of the sizes
            line = stream.readline()
        warnings.simplefilter("ignore")  # of files without entries
        warnings.simplefilter("error", DeprecationWarning)  # an integer written as 1.5 would be truncated
        # one more row than declared, so that a surplus is found; no more than bytes: loadtxt allocates them at once
        whole = stored + M if skew and not sparse else stored  # some writers store the diagonal
        most = min(whole, Path(path).stat().st_size) + 1
        table = np.loadtxt(stream, np.dtype(columns), comments="%", max_rows=most, ndmin=1)
    skew_diagonal = skew and len(table) == whole
    stored = whole if skew_diagonal else stored
    if len(table) != stored:
        number = f"only {len(table)}" if len(table) < stored else "more"
        raise InputError(f"{path} declares {stored} stored entries and has {number}")
    values = np.ones(stored, dtype) if field == "pattern" else table["value"]
    values = values + 1j * table["imaginary"] if field == "complex" else values
    if not np.isfinite(values).all():
        wrong = entries(~np.isfinite(values), values)
        raise InputError(f"{path}: Matrix Market has no NaN or Inf, and fp64 nothing larger ({wrong}); use an .npy")
    if sparse:
        i, j = table["row"] - 1, table["column"] - 1
    elif symmetry == "general":
        j, i = np.divmod(np.arange(stored), M)  # by columns
    else:
        j, i = np.triu_indices(M, int(skew and not skew_diagonal))
    if symmetry != "general" and (i > j).any() and (i < j).any():
        raise InputError(f"{path} is declared {symmetry}, but has entries on both sides of the diagonal")
    if skew and (wrong := (i == j) & (values != 0)).any():
        raise InputError(f"{path} is declared skew-symmetric, but its diagonal is not zero: {entries(wrong, values)}")
    with np.errstate(over="ignore"):
        kinds = (dtype, complex if field == "complex" else np.float64)
        parts = (coo_array((values.astype(kind), (i, j)), (M, N)).toarray() for kind in kinds)
        D, wide = parts if symmetry == "general" else (_mirrored(part, symmetry) for part in parts)
    # integers that wrapped around differ from the float64 sum by 2^64, others by its rounding
    if not np.isfinite(wide).all() or (np.abs(D - wide) > 2.0**62).any():
        raise InputError(f"{path}: a sum or a negative of entries is outside the range of {dtype}")
    return D


def _mirrored(part: NDArray[Any], symmetry: str) -> NDArray[Any]:
    """The symmetric, skew-symmetric or Hermitian matrix with these entries on one side of the diagonal."""
    other = part.conj().T if symmetry == "hermitian" else part.T
    D = part - other if symmetry == "skew-symmetric" else part + other
    np.fill_diagonal(D, part.diagonal())
    return np.asarray(D)
