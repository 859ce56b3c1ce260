"""Calls of the vendor's library with their arguments prepared: cuBLAS, and cuBLASLt for planar complex products.

cuBLAS stores matrices by columns. A product D = A·B of matrices stored by rows is Dᵀ = Bᵀ·Aᵀ in its terms, without a
transpose; of matrices stored by columns it is D = A·B.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fpemu.gpu.runtime import cublas, device

Call = Callable[[], None]
_PLANES = ((0, 0, 0, 1.0, 0.0), (1, 1, 0, -1.0, 1.0), (0, 1, 1, 1.0, 0.0), (1, 0, 1, 1.0, 1.0))
"""Plane of A, of B and of the result, alpha and beta of the four products of a complex one (section 6.2)."""
_HALF = 2  # cuBLAS' number of fp16
_COMPUTE = {"fp16": 64, "fp32": 68}
_SCALARS = {64: np.float16, 70: np.float64}  # types of alpha and beta; else fp32
_pointer, _long = ctypes.c_void_p, ctypes.c_longlong


def version() -> str:
    """Return the library and its version: "cuBLAS 13.1.0"."""
    return f"cuBLAS {cublas.blas().version}"


def product(
    kind: str,
    A: int,
    B: int,
    D: int,
    shape: tuple[int, int, int],
    stored: str = "rows",
    alpha: float = 1.0,
    beta: float = 0.0,
    keep: object = None,
) -> Call:
    """Prepare D = alpha · A·B + beta · D, of which A, B and D are addresses; the result queues it.

    `kind` is one of `fpemu.gpu.runtime.cublas.KINDS`. `stored` names the storage of all matrices, "rows" or "columns",
    or of B alone, "B by columns". `keep` refers to the owners of the memory. GpuError: cuBLAS rejects the product.
    """
    (M, N, K), types = shape, cublas.KINDS[kind]
    left, right, ld = ((M, A, M), (N, B, K), M) if stored == "columns" else ((N, B, N), (M, A, K), N)
    transposed = stored == "B by columns"
    return _call(
        "cublasGemmEx",
        f"a product of {M} x {K} by {K} x {N} in {kind}",
        types.compute,
        (alpha, beta),
        lambda one, other: (
            *(int(transposed), 0, left[0], right[0], K),
            *(one, _pointer(left[1]), types.operand, K if transposed else left[2]),
            *(_pointer(right[1]), types.operand, right[2]),
            *(other, _pointer(D), types.result, ld, types.compute, -1),
        ),
        keep,
    )


def batched(
    A: int,
    B: int,
    D: int,
    shape: tuple[int, int, int],
    batch: int,
    sums: str = "fp32",
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Call:
    """Prepare a batch of products of contiguous fp16 matrices stored by rows.

    Parameters as in `product`; `sums` is the type of the sums, fp32 or fp16.
    """
    M, N, K = shape
    return _call(
        "cublasGemmStridedBatchedEx",
        f"{batch} products of {M} x {K} by {K} x {N} in fp16",
        _COMPUTE[sums],
        (alpha, beta),
        lambda one, other: (
            *(0, 0, N, M, K),
            *(one, _pointer(B), _HALF, N, _long(K * N)),
            *(_pointer(A), _HALF, K, _long(M * K)),
            *(other, _pointer(D), _HALF, N, _long(M * N), batch, _COMPUTE[sums], -1),
        ),
    )


def planar(A: int, B: int, D: int, shape: tuple[int, int, int], batch: int) -> Call:
    """Prepare a batch of complex products in planar layout as four real ones, the second and the fourth accumulated.

    Parameters as in `batched`; the imaginary plane of each matrix follows its real one.
    """
    M, N, K = shape
    sizes = (2 * batch * M * K, 2 * batch * K * N, 2 * batch * M * N)
    calls = [
        batched(A + a * sizes[0], B + b * sizes[1], D + d * sizes[2], shape, batch, "fp32", alpha, beta)
        for a, b, d, alpha, beta in _PLANES
    ]

    def queue() -> None:
        for call in calls:
            call()

    return queue


def _call(
    name: str,
    what: str,
    compute: int,
    scalars: tuple[float, float],
    arguments: Callable[[ctypes.c_void_p, ctypes.c_void_p], tuple[Any, ...]],
    keep: object = None,
) -> Call:
    """Return a call of a function of cuBLAS; `arguments` makes its arguments from the addresses of alpha and beta."""
    blas = cublas.blas()
    values = np.array(scalars, _SCALARS.get(compute, np.float32))
    prepared = arguments(_pointer(values.ctypes.data), _pointer(values.ctypes.data + values.itemsize))
    device.driver()
    return partial(_queue, blas, what, getattr(blas._library, name), (blas._handle, *prepared), (values, keep))


def _queue(blas: cublas.Blas, what: str, function: Any, arguments: tuple[Any, ...], keep: object) -> None:
    """Call a function of cuBLAS; `keep` owns the memory that its arguments point to."""
    status = function(*arguments)
    if status:
        blas._check(what, status)


# --- planar complex products in one call
_COMPLEX_HALF, _COMPLEX_FLOAT = 6, 4
_BATCH_COUNT, _BATCH_OFFSET, _PLANE_OFFSET = 5, 6, 7  # attributes of a layout
_WORKSPACE_ATTRIBUTE, _WORKSPACE = 1, 32 * 2**20


class _Chosen(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def _light() -> Any:
    """Return the library cuBLASLt that belongs to cuBLAS."""
    name = str(cublas.library()._name).replace("libcublas.", "libcublasLt.")
    return ctypes.CDLL(name)


def _checked(what: str, status: int) -> None:
    cublas.Blas._check(f"cuBLASLt, {what}", status)


def planar_in_one(A: int, B: int, D: int, shape: tuple[int, int, int], batch: int) -> Call:
    """Prepare the products of `planar` as one call of cuBLASLt; GpuError if it has no kernel for them."""
    (M, N, K), light = shape, _light()
    handle, operation, preference = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    device.driver()
    _checked("create", light.cublasLtCreate(ctypes.byref(handle)))
    _checked("operation", light.cublasLtMatmulDescCreate(ctypes.byref(operation), _COMPUTE["fp32"], _COMPLEX_FLOAT))
    layouts = [_layout(light, rows, columns, batch) for rows, columns in ((N, K), (K, M), (N, M))]
    _checked("preference", light.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    most = ctypes.c_uint64(_WORKSPACE)
    _checked(
        "workspace",
        light.cublasLtMatmulPreferenceSetAttribute(
            preference, _WORKSPACE_ATTRIBUTE, ctypes.byref(most), ctypes.c_size_t(8)
        ),
    )
    chosen, count = _Chosen(), ctypes.c_int()
    left, right, result = layouts
    _checked(
        f"a planar complex product of {M} x {K} by {K} x {N}",
        light.cublasLtMatmulAlgoGetHeuristic(
            handle, operation, left, right, result, result, preference, 1, ctypes.byref(chosen), ctypes.byref(count)
        )
        or (0 if count.value else 15),
    )
    work = device.Buffer(_WORKSPACE)
    scalars = np.array([1, 0, 0, 0], np.float32)
    alpha, beta, a, b, d = map(ctypes.c_void_p, (scalars.ctypes.data, scalars.ctypes.data + 8, A, B, D))
    workspace = (ctypes.c_void_p(work.pointer), ctypes.c_size_t(_WORKSPACE))
    operands = (alpha, b, left, a, right, beta, d, result, d, result)

    def queue() -> None:
        status = light.cublasLtMatmul(
            handle, operation, *operands, ctypes.byref(chosen.algo), *workspace, ctypes.c_void_p(0)
        )
        _checked("a product", status)
        assert scalars.size  # alive as long as the call

    return queue


def _layout(light: Any, rows: int, columns: int, batch: int) -> Any:
    """Describe a batch of planar complex matrices stored by columns, the imaginary plane after all real parts."""
    layout = ctypes.c_void_p()
    _checked(
        "layout",
        light.cublasLtMatrixLayoutCreate(
            ctypes.byref(layout), _COMPLEX_HALF, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        ),
    )
    size = rows * columns
    values = {
        _BATCH_COUNT: ctypes.c_int32(batch),
        _BATCH_OFFSET: ctypes.c_int64(size),
        _PLANE_OFFSET: ctypes.c_int64(2 * batch * size),
    }
    for attribute, value in values.items():
        _checked(
            "layout",
            light.cublasLtMatrixLayoutSetAttribute(
                layout, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
            ),
        )
    return layout
