"""The OpenBLAS that NumPy carries: its kernel, its version, and products by its cblas_sgemm and cblas_dgemm."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import choice
from fpemu.arrays import as_array
from fpemu.errors import InputError
from fpemu.library.product import LAYOUTS, Layout

__all__ = ["Library", "loaded"]

_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE = 101, 111, 112  # of cblas.h
_ROUTINES = {"float32": "cblas_sgemm", "float64": "cblas_dgemm"}


@dataclass(frozen=True)
class Library:
    """The OpenBLAS of this process.

    Attributes
    ----------
    path : str
        Shared library.
    version : str
        Version, such as "0.3.31".
    kernel : str
        Kernel in use, such as "HASWELL": the processor's, or OPENBLAS_CORETYPE if the library has this kernel.
    config : str
        The library's description of its build.
    """

    path: str
    version: str
    kernel: str
    config: str

    def multiply(self, A: NDArray[Any], B: NDArray[Any], *, layout: Layout = "NN") -> NDArray[Any]:
        """Return A B by one call of cblas_sgemm (float32) or cblas_dgemm (float64), on one thread.

        Parameters
        ----------
        A : array (M, K)
            float32 or float64.
        B : array (K, N)
            As A.
        layout : {"NN", "TN"}
            Layout in which the operands are passed, as in `fpemu.library.emulate`.

        Returns
        -------
        array (M, N)
            D.

        Raises
        ------
        InputError
            Operands that are no matrices of one of these dtypes, or do not share K; another layout.
        """
        choice("layout", layout, LAYOUTS)
        A, B = as_array(A, "A"), as_array(B, "B")  # in the byte order of this processor
        if A.dtype != B.dtype or A.dtype.name not in _ROUTINES:
            raise InputError(f"A is {A.dtype} and B is {B.dtype}: both must be float32, or both float64")
        if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
            raise InputError(f"A of shape {A.shape} and B of shape {B.shape} do not form a product of two matrices")
        library, prefix, suffix = _open(self.path)
        name = _ROUTINES[A.dtype.name]
        integer = ctypes.c_int64 if "USE64BITINT" in self.config else ctypes.c_int32
        real = ctypes.c_float if A.dtype == np.float32 else ctypes.c_double
        pointer, enum = ctypes.c_void_p, ctypes.c_int
        gemm = getattr(library, f"{prefix}{name}{suffix}")
        gemm.restype = None
        gemm.argtypes = [enum] * 3 + [integer] * 3 + [real, pointer, integer, pointer, integer, real, pointer, integer]
        set_threads = getattr(library, f"{prefix}openblas_set_num_threads{suffix}")
        threads = getattr(library, f"{prefix}openblas_get_num_threads{suffix}")()
        (M, K), N = A.shape, B.shape[1]
        A, stored = np.ascontiguousarray(A), np.ascontiguousarray(B.T if layout == "TN" else B)
        D = np.zeros((M, N), A.dtype)
        transpose = _TRANSPOSE if layout == "TN" else _NO_TRANSPOSE
        operands = (1.0, A.ctypes.data, max(K, 1), stored.ctypes.data, max(stored.shape[1], 1), 0.0, D.ctypes.data)
        set_threads(1)
        try:
            gemm(_ROW_MAJOR, _NO_TRANSPOSE, transpose, M, N, K, *operands, max(N, 1))
        finally:
            set_threads(threads)
        return D


@cache
def loaded() -> Library:
    """Return the OpenBLAS that NumPy has loaded.

    Returns
    -------
    Library
        Description of the library.

    Raises
    ------
    InputError
        NumPy uses another BLAS.
    """
    for path in _paths():
        try:
            library, prefix, suffix = _open(path)
        except (OSError, AttributeError):
            continue
        kernel, config = (_text(library, f"{prefix}openblas_get_{name}{suffix}") for name in ("corename", "config"))
        version = re.search(r"OpenBLAS (\d+\.\d+\.\d+)", config)
        if version:
            return Library(path, version[1], kernel.upper(), config)
    raise InputError("NumPy's BLAS is not OpenBLAS: numpy.show_config() names it")


def _paths() -> list[str]:
    """Shared libraries that may be NumPy's OpenBLAS: those of this process (Linux), then those beside NumPy."""
    maps, package = Path("/proc/self/maps"), Path(np.__file__).parent
    lines = maps.read_text().splitlines() if maps.exists() else []
    in_memory = [line.split(None, 5)[5] for line in lines if "openblas" in line]
    beside = [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]
    return list(dict.fromkeys([*in_memory, *map(str, beside)]))


@cache
def _open(path: str) -> tuple[ctypes.CDLL, str, str]:
    """The library with the prefix and suffix of its symbols; AttributeError if it is not OpenBLAS."""
    library = ctypes.CDLL(path)
    for prefix in ("", "scipy_"):
        for suffix in ("", "64_", "_64"):
            if hasattr(library, f"{prefix}openblas_get_config{suffix}"):
                return library, prefix, suffix
    raise AttributeError(path)


def _text(library: ctypes.CDLL, name: str) -> str:
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    value: bytes = function()
    return value.decode()
