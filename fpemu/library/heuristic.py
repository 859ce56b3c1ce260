"""The configurations that cuBLASLt's heuristic returns for products, called by ctypes: nothing runs on the GPU.

torch.mm runs the heuristic's first configuration at a workspace of 32 MiB. cuBLASLt stores matrices by columns, so that
its operands are B and A, and its result is the transpose of D.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.library.families import Configuration

WORKSPACE = 32 << 20  # bytes, the workspace of torch.mm
FIELDS = ("algorithm", "tile", "splits", "reduction", "swizzling", "custom", "stages", "inner", "cluster")
_WIDTHS = (4, 4, 4, 4, 4, 4, 4, 2, 2)  # bytes of the attributes with these names, numbered from 0


class Codes(NamedTuple):
    """cuBLAS' codes of the operands, of D, of the arithmetic and of its scale."""

    operand: int
    result: int
    compute: int
    scale: int


CODES = {
    "fp16": Codes(2, 0, 68, 0),
    "bf16": Codes(14, 0, 68, 0),
    "tf32": Codes(0, 0, 77, 0),
    "fp32": Codes(0, 0, 68, 0),
    "fp64": Codes(1, 1, 70, 1),
    "fp16->fp16": Codes(2, 2, 68, 0),
    "bf16->bf16": Codes(14, 14, 68, 0),
    "fp8": Codes(28, 0, 68, 0),
    "fp8->bf16": Codes(28, 14, 68, 0),
    "int8": Codes(3, 10, 72, 10),
}


_SCALARS: dict[int, Any] = {0: ctypes.c_float, 1: ctypes.c_double, 10: ctypes.c_int32}  # by the code of the scale


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@lru_cache(maxsize=4)
def _library(path: str | None) -> ctypes.CDLL:
    try:
        if path is None:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            path = str(load_nvidia_dynamic_lib("cublasLt").abs_path)
        return ctypes.CDLL(path)
    except (ImportError, RuntimeError, OSError) as problem:
        raise InputError(f"cuBLASLt is not installed here: {str(problem).splitlines()[0]}") from None


class Heuristic:
    """cuBLASLt's heuristic for products of one type and layout on the current GPU.

    Parameters
    ----------
    kind : str
        Type of the product.
    layout : {"NN", "TN"}
        Layout of the operands.
    workspace : int
        Largest workspace of the product, in bytes.
    alignment : int
        Alignment of the operands' addresses, in bytes.
    path : str, optional
        File of the library. Default: the file that cuda.pathfinder finds.

    Raises
    ------
    InputError
        cuBLASLt is not installed, or there is no GPU.
    """

    def __init__(
        self, kind: str, layout: str, workspace: int = WORKSPACE, alignment: int = 256, path: str | None = None
    ) -> None:
        self._calls, self.layout, self._workspace = _library(path), layout, workspace
        codes = CODES[kind]
        self._scale, self._answer = codes.scale, _Result()
        handle = ctypes.c_void_p()
        if status := self._calls.cublasLtCreate(ctypes.byref(handle)):
            raise InputError(f"cuBLASLt needs an NVIDIA GPU: cublasLtCreate returns status {status}")
        self._handle = handle
        self._operation = self._created("cublasLtMatmulDescCreate", codes.compute, codes.scale)
        if layout == "TN":
            self._set("cublasLtMatmulDescSetAttribute", self._operation, 3, ctypes.c_int32(1))
        self._matrices = [
            self._created("cublasLtMatrixLayoutCreate", code, *map(ctypes.c_uint64, (8, 8)), ctypes.c_int64(8))
            for code in (codes.operand, codes.operand, codes.result)
        ]
        self._preference = self._created("cublasLtMatmulPreferenceCreate")
        limits = [(1, ctypes.c_size_t(workspace)), *((n, ctypes.c_uint32(alignment)) for n in (5, 6, 7, 8))]
        for attribute, value in limits:
            self._set("cublasLtMatmulPreferenceSetAttribute", self._preference, attribute, value)

    @property
    def version(self) -> str:
        """The library's version: "13.1.0"."""
        self._calls.cublasLtGetVersion.restype = ctypes.c_size_t
        number = self._calls.cublasLtGetVersion()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def __call__(self, shapes: Any) -> NDArray[np.int32]:
        """The fields of `FIELDS` for each (M, N, K) of an array (n, 3); -1 where cuBLASLt has no algorithm."""
        out = np.full((len(shapes), len(FIELDS)), -1, np.int32)
        ask, get = self._calls.cublasLtMatmulAlgoGetHeuristic, self._calls.cublasLtMatmulAlgoConfigGetAttribute
        b, a, d = self._matrices
        result, count, value, written = self._answer, ctypes.c_int(), ctypes.c_int32(), ctypes.c_size_t()
        references = [ctypes.byref(x) for x in (result, count, value, written)]
        for line, (M, N, K) in zip(out, np.asarray(shapes).tolist(), strict=True):
            self._resize(b, *((K, N) if self.layout == "TN" else (N, K)))
            self._resize(a, K, M)
            self._resize(d, N, M)
            arguments = self._handle, self._operation, b, a, d, d, self._preference, 1, *references[:2]
            if ask(*arguments) or not count.value or result.state:
                continue
            for n, width in enumerate(_WIDTHS):
                value.value = 0
                if get(references[0], n, references[2], ctypes.c_size_t(width), references[3]) == 0:
                    line[n] = value.value
        return out

    def multiply(self, A: Any, B: Any, D: Any) -> Configuration:
        """Write A B to D, tensors of PyTorch on the GPU, by the heuristic's first algorithm; return its configuration.

        Raises
        ------
        InputError
            cuBLASLt has no algorithm, or rejects it.
        """
        (M, K), N = A.shape, B.shape[1]
        row = Configuration(*(int(self([(M, N, K)])[0, FIELDS.index(name)]) for name in Configuration._fields))
        workspace = A.new_empty(-(-self._workspace // A.element_size()))
        one, zero = (_SCALARS[self._scale](x) for x in (1, 0))
        b, a, d = self._matrices
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (B, A, D, workspace)]
        scaled = self._handle, self._operation, ctypes.byref(one), pointers[0], b, pointers[1], a, ctypes.byref(zero)
        algorithm, size = ctypes.byref(self._answer.algorithm), ctypes.c_size_t(self._workspace)
        result = pointers[2], d, pointers[2], d, algorithm, pointers[3], size, ctypes.c_void_p()
        if status := self._calls.cublasLtMatmul(*scaled, *result):
            raise InputError(f"cuBLASLt: cublasLtMatmul returns status {status} for {M}x{N}x{K}")
        return row

    def _resize(self, matrix: ctypes.c_void_p, rows: int, columns: int) -> None:
        for n, size in ((2, rows), (3, columns), (4, rows)):
            self._set("cublasLtMatrixLayoutSetAttribute", matrix, n, ctypes.c_uint64(size))

    def _created(self, call: str, *arguments: Any) -> ctypes.c_void_p:
        created = ctypes.c_void_p()
        if status := getattr(self._calls, call)(ctypes.byref(created), *arguments):
            raise InputError(f"cuBLASLt: {call} returns status {status}")
        return created

    def _set(self, call: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        if status := getattr(self._calls, call)(of, attribute, ctypes.byref(value), size):
            raise InputError(f"cuBLASLt: {call} returns status {status} for attribute {attribute}")
