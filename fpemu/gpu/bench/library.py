"""The vendor's library: cuBLAS on pointers, through `fpemu.gpu.cublas`, or through PyTorch where that is not there.

D (M, N) = alpha · A·B + beta · D, A (M, K) and D stored by rows, B (K, N) by rows or, as the words are, by columns.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

import numpy as np

from fpemu.errors import GpuError
from fpemu.gpu import device

KINDS = {"fp32": (np.float32, np.float32), "tf32": (np.float32, np.float32), "fp16": (np.float16, np.float32),
         "fp64": (np.float64, np.float64)}  # fmt: skip
"""Types of the operands and of D."""


@cache
def _backend() -> tuple[str, Any]:
    """ "cublas" or "torch", and the module."""
    why = []
    for name, module in (("cublas", "fpemu.gpu.cublas"), ("torch", "torch")):
        try:
            found: Any = importlib.import_module(module)
            if name == "cublas":
                found.blas()
            elif not found.cuda.is_available():
                raise GpuError("PyTorch sees no GPU")
            return name, found
        except Exception as problem:
            why.append(f"{module}: {' '.join(str(problem).split())[:100]}")
    raise GpuError(f"cuBLAS is not usable here ({'; '.join(why)}): install nvidia-cublas or PyTorch with CUDA")


@cache
def version() -> str:
    """ "cuBLAS 13.1.0", and by which way it is called."""
    name, module = _backend()
    if name == "cublas":
        return f"cuBLAS {module.blas().version}"
    return f"cuBLAS of PyTorch {module.__version__}"


def gemm(
    kind: str, A: int, B: int, D: int, M: int, N: int, K: int, *, columns: bool = False, alpha: float = 1.0,
    beta: float = 0.0,
) -> None:  # fmt: skip
    """Queue a product.

    Parameters
    ----------
    kind : one of `KINDS`
    A, B, D : int
        Addresses.
    M, N, K : int
    columns : bool
        B is stored by columns.
    alpha, beta : float

    Raises
    ------
    GpuError
        If there is no library, or it refuses.
    """
    name, module = _backend()
    if name == "cublas":
        _by_cublas(module, kind, A, B, D, (M, N, K), columns, alpha, beta)
    else:
        _by_torch(module, kind, A, B, D, (M, N, K), columns, alpha, beta)


def _by_cublas(
    cublas: Any, kind: str, A: int, B: int, D: int, shape: tuple[int, int, int], columns: bool, alpha: float,
    beta: float,
) -> None:  # fmt: skip
    blas, types, (M, N, K) = cublas.blas(), cublas.KINDS[kind], shape
    real = ctypes.c_double if kind == "fp64" else ctypes.c_float
    device._enter()
    status = blas._library.cublasGemmEx(
        blas._handle, int(columns), 0, N, M, K, ctypes.byref(real(alpha)), ctypes.c_void_p(B), types.operand,
        K if columns else N, ctypes.c_void_p(A), types.operand, K, ctypes.byref(real(beta)), ctypes.c_void_p(D),
        types.result, N, types.compute, -1,
    )  # fmt: skip
    blas._check(f"a product of {M} x {K} by {K} x {N} in {kind}", status)


def _by_torch(
    torch: Any, kind: str, A: int, B: int, D: int, shape: tuple[int, int, int], columns: bool, alpha: float,
    beta: float,
) -> None:  # fmt: skip
    M, N, K = shape
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    ab, cd = KINDS[kind]
    a = _tensor(torch, A, (M, K), ab)
    b = _tensor(torch, B, (N, K), ab).t() if columns else _tensor(torch, B, (K, N), ab)
    d = _tensor(torch, D, (M, N), cd)
    if kind != "fp16":
        torch.addmm(d, a, b, beta=beta, alpha=alpha, out=d) if beta else torch.mm(a, b, out=d)
    elif beta:
        d.copy_(torch.addmm(d, a, b, out_dtype=torch.float32, beta=beta, alpha=alpha))
    else:
        torch.mm(a, b, out_dtype=torch.float32, out=d)
        if alpha != 1:
            d.mul_(alpha)


class _Array:
    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.__cuda_array_interface__ = {
            "data": (pointer, False), "shape": shape, "typestr": np.dtype(dtype).str, "strides": None, "version": 3,
        }  # fmt: skip


def _tensor(torch: Any, pointer: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Memory as a tensor, without a copy."""
    return torch.as_tensor(_Array(pointer, shape, dtype), device="cuda")
