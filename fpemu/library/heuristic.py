"""The configurations that cuBLASLt's heuristic returns for products, called by ctypes: nothing runs on the GPU.

PyTorch runs the heuristic's first configuration, by cuBLAS at a workspace of 32 MiB or by cuBLASLt at 1 MiB. cuBLASLt
stores matrices by columns, so that its operands are B and A, and its result is the transpose of D.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import _cublas
from fpemu.errors import InputError
from fpemu.library.families import Configuration

WORKSPACE = 32 << 20  # bytes, the workspace of torch.mm
CODES = {kind: of[:4] for kind, of in _cublas.KINDS.items()}  # of the operands, D, the arithmetic and its scale
FIELDS = ("algorithm", "tile", "splits", "reduction", "swizzling", "custom", "stages", "inner", "cluster", "blocks")
_MULTIPROCESSORS = 132  # of an H100 or H200
_WIDTHS = (4, 4, 4, 4, 4, 4, 4, 2, 2)  # bytes of the attributes with these names, numbered from 0


def workspaces(variables: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The bytes of PyTorch's workspaces on Hopper: of cuBLAS, and of cuBLASLt (for a bias or 8-bit floating point)."""
    pairs = re.findall(r":(\d+):(\d+)", variables.get("CUBLAS_WORKSPACE_CONFIG", ""))
    plain = sum(int(size) * int(count) for size, count in pairs) << 10 or WORKSPACE
    return plain, int(variables.get("CUBLASLT_WORKSPACE_SIZE", 1024)) << 10


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class Heuristic:
    """cuBLASLt's heuristic for products of one type and layout on the current GPU.

    Parameters
    ----------
    kind : str
        Type of the product.
    layout : {"NN", "TN", "NT", "TT"}
        Layout of the operands: B is stored by columns if the first letter is "T", A if the second one is.
    workspace : int
        Largest workspace of the product, in bytes.
    alignment : (int, int, int)
        Alignments of the addresses of A, B and D, in bytes.
    path : str, optional
        File of the library. Default: the file that cuda.pathfinder finds.
    bias : bool
        Whether the epilogue adds a vector of N entries to the rows of D.
    fast : bool
        Fast accumulation of 8-bit floating-point products.

    Raises
    ------
    InputError
        cuBLASLt is not installed, or there is no GPU.
    """

    def __init__(
        self, kind: str, layout: str, workspace: int = WORKSPACE, alignment: Sequence[int] = (256, 256, 256),
        path: str | None = None, *, bias: bool = False, fast: bool = False,
    ) -> None:  # fmt: skip
        try:
            self._calls, self.layout, self._workspace = _cublas.load("cublasLt", path), layout, workspace
        except OSError as problem:
            raise InputError(f"cuBLASLt: {problem}") from None
        codes = _cublas.KINDS[kind]
        self._scale, self._answer = codes.scale, _Result()
        handle = ctypes.c_void_p()
        if code := self._calls.cublasLtCreate(ctypes.byref(handle)):
            raise InputError(f"cuBLASLt needs an NVIDIA GPU: cublasLtCreate returns {_cublas.status(code)}")
        self._handle = handle
        self._operation = self._created("cublasLtMatmulDescCreate", codes.compute, codes.scale)
        for attribute, letter in zip((3, 4), layout, strict=True):
            self._describe(attribute, ctypes.c_int32(letter == "T"))
        if bias:
            self._describe(7, ctypes.c_int32(4))
            self._describe(8, ctypes.c_uint64(256))
        if codes.operand == 28:  # the heuristic reads no scale
            for attribute in (17, 18):
                self._describe(attribute, ctypes.c_uint64(256))
            self._describe(25, ctypes.c_int8(fast))
        self._matrices = [
            self._created("cublasLtMatrixLayoutCreate", code, *map(ctypes.c_uint64, (8, 8)), ctypes.c_int64(8))
            for code in (codes.operand, codes.operand, codes.result)
        ]
        self._preference = self._created("cublasLtMatmulPreferenceCreate")
        of_a, of_b, of_d = map(ctypes.c_uint32, alignment)
        limits = (1, ctypes.c_size_t(workspace)), (5, of_b), (6, of_a), (7, of_d), (8, of_d)
        for attribute, value in limits:
            self._set("cublasLtMatmulPreferenceSetAttribute", self._preference, attribute, value)

    @property
    def version(self) -> str:
        """The library's version: "13.1.0"."""
        self._calls.cublasLtGetVersion.restype = ctypes.c_size_t
        return _cublas.version(self._calls.cublasLtGetVersion())

    def __call__(self, shapes: Any) -> NDArray[np.int32]:
        """The fields of `FIELDS` for each row of an array of shapes; -1 where cuBLASLt has no algorithm.

        "blocks" is the number of thread blocks of a wave or, of smaller products, of the product.
        A row has M, N, K and, in an array (n, 4), the number of products of contiguous matrices in a batch.
        """
        out = np.full((len(shapes), len(FIELDS)), -1, np.int32)
        ask, get = self._calls.cublasLtMatmulAlgoGetHeuristic, self._calls.cublasLtMatmulAlgoConfigGetAttribute
        b, a, d = self._matrices
        by_columns = [letter == "T" for letter in self.layout]
        result, count, value, written = self._answer, ctypes.c_int(), ctypes.c_int32(), ctypes.c_size_t()
        references = [ctypes.byref(x) for x in (result, count, value, written)]
        for line, (M, N, K, *batch) in zip(out, np.asarray(shapes).tolist(), strict=True):
            self._resize(b, *((K, N) if by_columns[0] else (N, K)), *batch)
            self._resize(a, *((M, K) if by_columns[1] else (K, M)), *batch)
            self._resize(d, N, M, *batch)
            arguments = self._handle, self._operation, b, a, d, d, self._preference, 1, *references[:2]
            if ask(*arguments) or not count.value or result.state:
                continue
            for n, width in enumerate(_WIDTHS):
                value.value = 0
                if get(references[0], n, references[2], ctypes.c_size_t(width), references[3]) == 0:
                    line[n] = value.value
            line[-1] = round(result.waves * _MULTIPROCESSORS)
        return out

    def multiply(
        self, A: Any, B: Any, D: Any, C: Any = None, *, factors: Any = (1, 1), bias: Any = None,
        scales: Any = (None, None),
    ) -> Configuration:  # fmt: skip
        """Write alpha A B + beta C to D by the heuristic's first algorithm and return its configuration.

        Parameters
        ----------
        A, B, D : tensor
            Operands and result in the heuristic's layout, on the GPU; a batch has one more dimension.
        C : tensor, optional
            Addend in the layout and type of D.
        factors : (float, float)
            alpha and beta.
        bias : tensor, optional
            Vector of the epilogue.
        scales : (tensor, tensor)
            fp32 scales of A and B of 8-bit floating-point products.

        Raises
        ------
        InputError
            cuBLASLt has no algorithm, or rejects it.
        """
        (M, K), N = A.shape[-2:], B.shape[-1]
        pointers = ((8, bias), (17, scales[1]), (18, scales[0]))  # cuBLASLt's first operand is B
        for attribute, x in pointers:
            if x is not None:
                self._describe(attribute, ctypes.c_uint64(x.data_ptr()))
        row = self([(M, N, K, math.prod(A.shape[:-2]))])[0]
        workspace = D.new_empty(-(-self._workspace // D.element_size()))
        alpha, beta = (_cublas.SCALARS[self._scale](x) for x in (factors[0], factors[1] if C is not None else 0))
        b, a, d = self._matrices
        at = [ctypes.c_void_p(x.data_ptr()) for x in (B, A, D if C is None else C, D, workspace)]
        scaled = self._handle, self._operation, ctypes.byref(alpha), at[0], b, at[1], a, ctypes.byref(beta), at[2], d
        algorithm, size = ctypes.byref(self._answer.algorithm), ctypes.c_size_t(self._workspace)
        if code := self._calls.cublasLtMatmul(*scaled, at[3], d, algorithm, at[4], size, ctypes.c_void_p()):
            raise InputError(f"cuBLASLt: cublasLtMatmul returns {_cublas.status(code)} for {M}x{N}x{K}")
        return Configuration(*(int(row[FIELDS.index(name)]) for name in Configuration._fields))

    def _resize(self, matrix: ctypes.c_void_p, rows: int, columns: int, batch: int = 1) -> None:
        sizes = [(2, ctypes.c_uint64(rows)), (3, ctypes.c_uint64(columns)), (4, ctypes.c_int64(rows))]
        sizes += [(5, ctypes.c_int32(batch)), (6, ctypes.c_int64(rows * columns if batch > 1 else 0))]
        for attribute, size in sizes:
            self._set("cublasLtMatrixLayoutSetAttribute", matrix, attribute, size)

    def _describe(self, attribute: int, value: Any) -> None:
        self._set("cublasLtMatmulDescSetAttribute", self._operation, attribute, value)

    def _created(self, call: str, *arguments: Any) -> ctypes.c_void_p:
        created = ctypes.c_void_p()
        if code := getattr(self._calls, call)(ctypes.byref(created), *arguments):
            raise InputError(f"cuBLASLt: {call} returns {_cublas.status(code)}")
        return created

    def _set(self, call: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        if code := getattr(self._calls, call)(of, attribute, ctypes.byref(value), size):
            raise InputError(f"cuBLASLt: {call} returns {_cublas.status(code)} for attribute {attribute}")
