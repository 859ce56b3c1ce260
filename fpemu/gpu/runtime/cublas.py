"""Products of cuBLAS on the GPU.

A product here is D = A B^T of matrices stored by rows, A (M, K) and B (N, K): every type, int8 among them, has its
fastest kernels in this layout. In the terms of cuBLAS, which stores matrices by columns, it is D^T = (B^T)^T A^T.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from fpemu import _cublas
from fpemu._cublas import KINDS
from fpemu.errors import GpuError
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import per_device
from fpemu.gpu.runtime.steps import Gemm


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
        self._scalars: dict[int, Any] = {code: (of * 2)(1, 0) for code, of in _cublas.SCALARS.items()}

    @property
    def version(self) -> str:
        """The library's version: "13.1.0"."""
        number = ctypes.c_int()
        self._check("cublasGetVersion", self._library.cublasGetVersion_v2(self._handle, ctypes.byref(number)))
        return _cublas.version(number.value)

    def gemm(self, step: Gemm) -> None:
        """Queue D = A B^T for a batch of matrices on the default stream; GpuError if cuBLAS rejects it."""
        M, N, K, types = step.M, step.N, step.K, KINDS[step.kind]
        product = f"a product of {M} x {K} by {K} x {N} in {step.kind}"
        if max(M, N, K, step.A.row, step.B.row, step.D.row) >= 2**31:
            raise GpuError(f"cuBLAS: {product}: sizes and strides must be below 2^31")
        device.driver()
        scalars = self._scalars[types.scale]
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
            raise GpuError(f"cuBLAS: {call}: {_cublas.status(status)}")


@per_device()
def blas() -> Blas:
    """Return the handle of this process for the current GPU."""
    return Blas()


def library() -> ctypes.CDLL:
    """Return the loaded library; GpuError without one."""
    try:
        return _cublas.load("cublas")
    except OSError:
        raise GpuError("cuBLAS is not installed: pip install 'fpemu[gpu]'") from None
