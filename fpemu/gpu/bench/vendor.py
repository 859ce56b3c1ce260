"""The vendor's library on batches and on tall matrices: cuBLAS by `fpemu.gpu.cublas`, planar complex by cuBLASLt too.

cuBLAS counts by columns. A product D = A·B of matrices stored by rows is for it Dᵀ = Bᵀ·Aᵀ, and no transpose is
asked for; of matrices stored by columns it is D = A·B.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu import cublas, device

Call = Callable[[], None]
_HALF, _FLOAT, _DOUBLE = 2, 0, 1  # cuBLAS' numbers of types
_SUMS = {"fp16": 64, "fp32": 68, "fp64": 70}
_PLANES = ((0, 0, 0, 1.0, 0.0), (1, 1, 0, -1.0, 1.0), (0, 1, 1, 1.0, 0.0), (1, 0, 1, 1.0, 1.0))
"""Plane of A, of B and of the result, alpha and beta of the four products of a complex one (section 6.2)."""


def batched(
    A: int, B: int, D: int, shape: tuple[int, int, int], batch: int, sums: str = "fp32", alpha: float = 1.0,
    beta: float = 0.0,
) -> Call:  # fmt: skip
    """What queues a batch of products of fp16 matrices stored by rows, one after another in memory.

    Parameters
    ----------
    A, B, D : int
        Addresses.
    shape : (M, N, K)
    batch : int
    sums : {"fp32", "fp16"}
        Type of the sums.
    alpha, beta : float

    Returns
    -------
    callable
        GpuError if cuBLAS refuses.
    """
    M, N, K = shape
    scalars = np.array([alpha, beta], np.float16 if sums == "fp16" else np.float32)
    one, other = _addresses(scalars)
    what = f"{batch} products of {M} x {K} by {K} x {N} in fp16"
    return _call(
        "cublasGemmStridedBatchedEx", what, scalars, 0, 0, N, M, K, one,
        _pointer(B), _HALF, N, _long(K * N), _pointer(A), _HALF, K, _long(M * K), other, _pointer(D), _HALF, N,
        _long(M * N), batch, _SUMS[sums], -1,
    )  # fmt: skip


def planar(A: int, B: int, D: int, shape: tuple[int, int, int], batch: int) -> Call:
    """What queues a batch of complex products in planar layout: four real ones, the second and the fourth added.

    Parameters as those of `batched`; the imaginary plane of each follows its real one.
    """
    M, N, K = shape
    sizes = (2 * batch * M * K, 2 * batch * K * N, 2 * batch * M * N)
    calls = [batched(A + a * sizes[0], B + b * sizes[1], D + d * sizes[2], shape, batch, "fp32", alpha, beta)
             for a, b, d, alpha, beta in _PLANES]  # fmt: skip

    def queue() -> None:
        for call in calls:
            call()

    return queue


def tall(A: int, B: int, D: int, shape: tuple[int, int, int], fmt: str, columns: bool) -> Call:
    """What queues A (M, K) times B (K, N), all of them stored by columns or all by rows.

    Parameters
    ----------
    A, B, D : int
        Addresses.
    shape : (M, N, K)
    fmt : {"fp32", "fp64"}
    columns : bool

    Returns
    -------
    callable
        GpuError if cuBLAS refuses.
    """
    M, N, K = shape
    kind = _DOUBLE if fmt == "fp64" else _FLOAT
    scalars = np.array([1, 0], np.float64 if fmt == "fp64" else np.float32)
    one, other = _addresses(scalars)
    left, right = ((M, A, M), (N, B, K)) if columns else ((N, B, N), (M, A, K))
    return _call(
        "cublasGemmEx", f"a product of {M} x {K} by {K} x {N} in {fmt}", scalars, 0, 0, left[0], right[0], K, one,
        _pointer(left[1]), kind, left[2], _pointer(right[1]), kind, right[2], other, _pointer(D), kind,
        M if columns else N, _SUMS[fmt], -1,
    )  # fmt: skip


def _call(name: str, what: str, keep: object, *arguments: Any) -> Call:
    """A function of the library with its arguments, which need no more work when it is called."""
    blas = cublas.blas()
    function, handle = getattr(blas._library, name), blas._handle
    device._enter()

    def queue() -> None:
        status = function(handle, *arguments)
        if status:
            blas._check(what, status)
        assert keep is not None  # what the arguments point to lives as long as this function

    return queue


def _addresses(scalars: NDArray[Any]) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """Of alpha and beta."""
    return _pointer(scalars.ctypes.data), _pointer(scalars.ctypes.data + scalars.itemsize)


_pointer, _long = ctypes.c_void_p, ctypes.c_longlong


# --- planar complex products in one call
_COMPLEX_HALF, _COMPLEX_FLOAT = 6, 4
_BATCH_COUNT, _BATCH_OFFSET, _PLANE_OFFSET = 5, 6, 7  # attributes of a layout
_WORKSPACE_ATTRIBUTE, _WORKSPACE = 1, 32 * 2**20


class _Chosen(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


def _light() -> Any:
    """The library of cuBLASLt beside cuBLAS."""
    name = str(cublas.library()._name).replace("libcublas.", "libcublasLt.")
    return ctypes.CDLL(name)


def _checked(what: str, status: int) -> None:
    cublas.Blas._check(f"cuBLASLt, {what}", status)


def planar_in_one(A: int, B: int, D: int, shape: tuple[int, int, int], batch: int) -> Call:
    """What queues the products of `planar` as one call of cuBLASLt; parameters as those of `planar`.

    Raises
    ------
    GpuError
        If cuBLASLt has no kernel for it.
    """
    (M, N, K), light = shape, _light()
    handle, task, wish = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    device._enter()
    _checked("create", light.cublasLtCreate(ctypes.byref(handle)))
    _checked("operation", light.cublasLtMatmulDescCreate(ctypes.byref(task), _SUMS["fp32"], _COMPLEX_FLOAT))
    layouts = [_layout(light, rows, columns, batch) for rows, columns in ((N, K), (K, M), (N, M))]
    _checked("preference", light.cublasLtMatmulPreferenceCreate(ctypes.byref(wish)))
    most = ctypes.c_uint64(_WORKSPACE)
    _checked("workspace", light.cublasLtMatmulPreferenceSetAttribute(wish, _WORKSPACE_ATTRIBUTE, ctypes.byref(most),
                                                                     ctypes.c_size_t(8)))  # fmt: skip
    chosen, count = _Chosen(), ctypes.c_int()
    left, right, result = layouts
    _checked(
        f"a planar complex product of {M} x {K} by {K} x {N}",
        light.cublasLtMatmulAlgoGetHeuristic(handle, task, left, right, result, result, wish, 1, ctypes.byref(chosen),
                                             ctypes.byref(count)) or (0 if count.value else 15),
    )  # fmt: skip
    work = device.Buffer(_WORKSPACE)
    scalars = np.array([1, 0, 0, 0], np.float32)
    first, second = (ctypes.c_void_p(scalars.ctypes.data + at) for at in (0, 8))

    def queue() -> None:
        _checked("a product", light.cublasLtMatmul(
            handle, task, first, ctypes.c_void_p(B), left, ctypes.c_void_p(A), right, second, ctypes.c_void_p(D),
            result, ctypes.c_void_p(D), result, ctypes.byref(chosen.algo), ctypes.c_void_p(work.pointer),
            ctypes.c_size_t(_WORKSPACE), ctypes.c_void_p(0),
        ))  # fmt: skip
        assert scalars.size  # alive as long as the call

    return queue


def _layout(light: Any, rows: int, columns: int, batch: int) -> Any:
    """A batch of planar complex matrices stored by columns, the imaginary plane behind all real parts."""
    made = ctypes.c_void_p()
    _checked("layout", light.cublasLtMatrixLayoutCreate(
        ctypes.byref(made), _COMPLEX_HALF, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
    ))  # fmt: skip
    size = rows * columns
    values = {_BATCH_COUNT: ctypes.c_int32(batch), _BATCH_OFFSET: ctypes.c_int64(size),
              _PLANE_OFFSET: ctypes.c_int64(2 * batch * size)}  # fmt: skip
    for attribute, value in values.items():
        _checked("layout", light.cublasLtMatrixLayoutSetAttribute(
            made, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
        ))  # fmt: skip
    return made
