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
from fpemu.gpu.runtime.steps import Gemm

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
    """A handle of cuBLAS in the GPU's context; GpuError without a GPU or the library."""

    def __init__(self) -> None:
        device.need()
        device.driver()
        self._library = library()
        handle = ctypes.c_void_p()
        self._check("cublasCreate", self._library.cublasCreate_v2(ctypes.byref(handle)))
        self._handle = handle
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

    def gemm(self, step: Gemm) -> None:
        """Queue D = A B^T for a batch of matrices on the default stream; GpuError if cuBLAS rejects it."""
        M, N, K, types = step.M, step.N, step.K, KINDS[step.kind]
        product = f"a product of {M} x {K} by {K} x {N} in {step.kind}"
        if max(M, N, K, step.A.row, step.B.row, step.D.row) >= 2**31:
            raise GpuError(f"cuBLAS: {product}: sizes and strides must be below 2^31")
        device.driver()
        scalars = self._scalars[types.compute]
        alpha, beta = ctypes.byref(scalars, 0), ctypes.byref(scalars, ctypes.sizeof(scalars) // 2)
        a, b, d = (
            (ctypes.c_void_p(X.pointer), code, X.row, ctypes.c_longlong(X.batch))
            for X, code in ((step.A, types.operand), (step.B, types.operand), (step.D, types.result))
        )
        transposed, plain, default_algorithm = 1, 0, -1
        sizes = (self._handle, transposed, plain, N, M, K)
        status = self._library.cublasGemmStridedBatchedEx(
            *sizes, alpha, *b, *a, beta, *d, step.batch, types.compute, default_algorithm
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
    """Return the loaded library, the library of NVIDIA's wheel, or one on the loader's path; GpuError without one."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (RuntimeError, OSError):
        raise GpuError("cuBLAS is not installed: pip install 'fpemu[gpu]'") from None
