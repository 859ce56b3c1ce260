"""cuBLAS, loaded by cuda.pathfinder and called by ctypes, because cuda.bindings has no cuBLAS.

A product here is D = A B^T of matrices stored by rows, A (M, K) and B (N, K): every type, int8 among them, has its
fastest kernels in this layout. In the terms of cuBLAS, which stores matrices by columns, it is D^T = (B^T)^T A^T.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

from fpemu.errors import GpuError
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import per_device

_STATUS = {
    **{1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR"},
    **{13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR"},
}


class Kind(NamedTuple):
    """Types of a product: cuBLAS' codes of A and B, of D and of the arithmetic; bytes of an element of A and of D."""

    operand: int
    result: int
    compute: int
    bytes: int
    result_bytes: int


KINDS = {
    "fp16": Kind(2, 0, 68, 2, 4),
    "bf16": Kind(14, 0, 68, 2, 4),
    "tf32": Kind(0, 0, 77, 4, 4),
    "fp32": Kind(0, 0, 68, 4, 4),
    "fp64": Kind(1, 1, 70, 8, 8),
    "int8": Kind(3, 10, 72, 1, 4),
}
"""Products of fp16, bf16, tf32 and fp32 are summed in fp32, of fp64 in fp64, of int8 in int32."""


class Stack(NamedTuple):
    """A batch of matrices: the address of the first, and elements between rows and between matrices."""

    pointer: int
    row: int
    batch: int = 0


class Blas:
    """A handle of cuBLAS in the GPU's context.

    Raises
    ------
    GpuError
        No GPU, or no library.
    """

    def __init__(self) -> None:
        device.need()
        device.driver()
        self._library = library()
        handle = ctypes.c_void_p()
        self._check("cublasCreate", self._library.cublasCreate_v2(ctypes.byref(handle)))
        self._handle, self._stream = handle, 0
        self._scalars: dict[int, Any] = {
            72: (ctypes.c_int32 * 2)(1, 0),
            70: (ctypes.c_double * 2)(1, 0),
            68: (ctypes.c_float * 2)(1, 0),
        }
        self._scalars[77] = self._scalars[68]

    @property
    def version(self) -> str:
        """The library's version: "13.1.0"."""
        number = ctypes.c_int()
        self._check("cublasGetVersion", self._library.cublasGetVersion_v2(self._handle, ctypes.byref(number)))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def gemm(
        self, kind: str, M: int, N: int, K: int, A: Stack, B: Stack, D: Stack, *, batch: int = 1, stream: int = 0
    ) -> None:
        """Queue D = A B^T for a batch of matrices on a stream.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        M, N, K : int
            A is (M, K), B (N, K), D (M, N); int8 requires that K and the row strides are multiples of 16.
        A, B, D : Stack
            A batch stride of 0 uses the same matrix in every product.

        Raises
        ------
        GpuError
            If cuBLAS rejects the product.
        """
        types = KINDS[kind]
        product = f"a product of {M} x {K} by {K} x {N} in {kind}"
        if max(M, N, K, A.row, B.row, D.row) >= 2**31:
            raise GpuError(f"cuBLAS: {product}: sizes and strides must be below 2^31")
        if stream != self._stream:
            self._check("cublasSetStream", self._library.cublasSetStream_v2(self._handle, ctypes.c_void_p(stream)))
            self._stream = stream
        scalars = self._scalars[types.compute]
        alpha, beta = ctypes.byref(scalars, 0), ctypes.byref(scalars, ctypes.sizeof(scalars) // 2)
        device.driver()
        a, b, d = (
            (ctypes.c_void_p(X.pointer), code, X.row, ctypes.c_longlong(X.batch))
            for X, code in ((A, types.operand), (B, types.operand), (D, types.result))
        )
        transposed, plain, default_algorithm = 1, 0, -1
        sizes = (self._handle, transposed, plain, N, M, K)
        status = self._library.cublasGemmStridedBatchedEx(
            *sizes, alpha, *b, *a, beta, *d, batch, types.compute, default_algorithm
        )
        self._check(product, status)

    @staticmethod
    def _check(call: str, status: int) -> None:
        if status:
            raise GpuError(f"cuBLAS: {call}: CUBLAS_STATUS_{_STATUS.get(status, status)}")


@per_device()
def blas() -> Blas:
    """Return the handle of this process for the current GPU."""
    return Blas()


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Return the library: the loaded one, that of NVIDIA's wheel, or one on the loader's path.

    Raises
    ------
    GpuError
        If there is none.
    """
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (RuntimeError, OSError):
        raise GpuError("cuBLAS is not installed: pip install 'fpemu[gpu]'") from None
