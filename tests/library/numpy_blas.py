"""The OpenBLAS that NumPy carries: its kernel, its version, and products by its cblas_sgemm and cblas_dgemm."""

import ctypes
import re
from pathlib import Path

import numpy as np

_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE = 101, 111, 112  # of cblas.h


class NumpyBlas:
    """The OpenBLAS of this process; `paths` returns none if NumPy uses another BLAS."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        names = [(prefix, suffix) for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")]
        self.prefix, self.suffix = next(n for n in names if hasattr(self.library, f"{n[0]}openblas_get_config{n[1]}"))
        self.kernel, self.config = self._text("corename").upper(), self._text("config")
        self.version = re.search(r"OpenBLAS (\d+\.\d+\.\d+)", self.config)[1]

    def _text(self, name):
        function = getattr(self.library, f"{self.prefix}openblas_get_{name}{self.suffix}")
        function.restype = ctypes.c_char_p
        return function().decode()

    def multiply(self, A, B, layout):
        """A B by one call, with operands in C order (NN), or with B as the transpose of such an array (TN)."""
        routine, real = {"float32": ("sgemm", ctypes.c_float), "float64": ("dgemm", ctypes.c_double)}[A.dtype.name]
        integer = ctypes.c_int64 if "USE64BITINT" in self.config else ctypes.c_int32
        pointer, enum = ctypes.c_void_p, ctypes.c_int
        gemm = getattr(self.library, f"{self.prefix}cblas_{routine}{self.suffix}")
        gemm.restype = None
        gemm.argtypes = [enum] * 3 + [integer] * 3 + [real, pointer, integer, pointer, integer, real, pointer, integer]
        (M, K), N = A.shape, B.shape[1]
        A, stored = np.ascontiguousarray(A), np.ascontiguousarray(B.T if layout == "TN" else B)
        D = np.zeros((M, N), A.dtype)
        transpose = _TRANSPOSE if layout == "TN" else _NO_TRANSPOSE
        operands = (1.0, A.ctypes.data, K, stored.ctypes.data, stored.shape[1], 0.0, D.ctypes.data, N)
        gemm(_ROW_MAJOR, _NO_TRANSPOSE, transpose, M, N, K, *operands)
        return D


def paths():
    """Shared libraries of NumPy's OpenBLAS: those of this process (Linux), then those beside NumPy."""
    maps, package = Path("/proc/self/maps"), Path(np.__file__).parent
    lines = maps.read_text().splitlines() if maps.exists() else []
    in_memory = [line.split(None, 5)[5] for line in lines if "openblas" in line]
    return [*in_memory, *map(str, package.parent.glob("numpy.libs/*openblas*")), *package.glob(".dylibs/*openblas*")]
