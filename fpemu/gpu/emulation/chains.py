"""A GEMM of any instruction of the catalog, emulated on the GPU at hand: the third form of `fpemu.mma.gemm`'s chains.

``kernels/carrier_arithmetic.cuh`` holds the arithmetic; ``kernels/emulated_gemm.cu`` applies it tile by tile. The GPU
need not have the emulated instruction: nothing here uses the matrix units.
"""

from __future__ import annotations

import os
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import compiler, device
from fpemu.mma.spec import FMA_SPECS, MmaSpec

TILE = 64  # rows and columns of D of one thread block
THREADS = 256
_BYTES = 2**32  # of A, B, C or D on the GPU at a time, at most
_SHARE = 16  # and this part of its memory: other processes are on it too
_GRID = 2**31 - 1  # most thread blocks of a launch

# What the device "auto" leaves to the CPU: results of less than a tile, which leave the GPU idle, and products that
# take the CPU less time than a launch with its buffers. Measured on an H200 and 16 cores: 64 x 64 x 512 take both as
# long, eight times as much the GPU does 1.6 times as fast. BLAS is some hundred times faster than emulation: operands
# have to be large for it to be worth their way to the GPU.
_LEAST_ENTRIES, _LEAST_PRODUCTS = TILE**2, 2**22
_LEAST_ENTRIES_BLAS, _LEAST_PRODUCTS_BLAS = 64 * TILE**2, 2**29
# Processes that share a GPU take turns on it, and each of them waits for all. On the same machine 12 of them, all
# products on the GPU, took 1.2 s for a cell of h2sgemm/fig8 (176 x 176 x 2816: 2^26 multiply-adds), and the 16 cores
# 0.16 s; so what one process gains by has to be this many times as large for each that there is.
_SHARED = 8


def source(spec: MmaSpec) -> str:
    """The kernel that emulates GEMMs of an instruction."""
    return f'#include "arithmetic.cuh"\n{emulation.definition(spec)}\n{compiler.kernel_source("emulated_gemm.cu")}'


def chain(
    A: NDArray[Any],
    B: NDArray[Any],
    index_a: NDArray[Any],
    index_b: NDArray[Any],
    C: NDArray[Any],
    spec: MmaSpec,
    cuts: NDArray[np.bool_],
) -> NDArray[Any]:
    """Compute `fpemu.mma.compiled.chain` on the GPU: the same arguments, the same bits.

    Parameters
    ----------
    A : array (stack, M, K), B : array (stack, K, N), C : array (products, M, N)
        Carriers; K whole instructions.
    index_a, index_b : array (products,)
        Product p is A[index_a[p]] B[index_b[p]] + C[p].
    cuts : array (instructions,)
        True where the accumulator is added to an outer sum and starts again from zero.

    Raises
    ------
    GpuError
        No GPU, or a run that failed.
    """
    if device.missing() is not None:
        raise device.GpuError(str(device.missing()))
    run = prepare(A, B, index_a, index_b, C, spec, cuts)
    if run is not None:
        return run.result()
    M, N = C.shape[-2:]  # too large to be held at once: one product after another, in stripes
    K, most = A.shape[-1], _most() // max(A.itemsize, C.itemsize)  # entries of A, B or C
    columns = min(N, _whole_tiles(most // max(K, TILE)))
    rows = _whole_tiles(most // max(K, columns))
    D = np.empty(C.shape, spec.outer_dtype if cuts.any() else C.dtype)
    one = np.zeros(1, np.int64)
    for p, (i, j) in enumerate(zip(index_a, index_b, strict=True)):
        for m in range(0, M, rows):
            for n in range(0, N, columns):
                a, b = A[i : i + 1, m : m + rows], B[j : j + 1, :, n : n + columns]
                part = prepare(a, b, one, one, C[p : p + 1, m : m + rows, n : n + columns], spec, cuts, whole=True)
                assert part is not None
                D[p : p + 1, m : m + rows, n : n + columns] = part.result()
    return D


def matmul(X: NDArray[Any], Y: NDArray[Any]) -> NDArray[Any]:
    """X @ Y on the GPU as chains of fused multiply-adds, k ascending.

    Parameters
    ----------
    X : float32 or float64 array (..., M, K), Y : array (..., K, N) of the same type and leading axes
    """
    spec = FMA_SPECS[{"float32": "fp32", "float64": "fp64"}[X.dtype.name]]
    a, b = (np.ascontiguousarray(Z).reshape(prod(Z.shape[:-2]), *Z.shape[-2:]) for Z in (X, Y))
    products = np.arange(len(a))
    C = np.zeros((len(a), a.shape[1], b.shape[2]), X.dtype)
    D = C if 0 in (*C.shape, a.shape[2]) else chain(a, b, products, products, C, spec, np.zeros(a.shape[2], np.bool_))
    return D.reshape(*X.shape[:-1], Y.shape[-1])


def chain_gains(shape: tuple[int, ...], K: int) -> bool:
    """Whether `chain` is faster than the compiled implementation for C of this shape (products, M, N)."""
    return prod(shape) >= _LEAST_ENTRIES and prod(shape) * K >= _LEAST_PRODUCTS * _crowd()


def matmul_gains(X: NDArray[Any], Y: NDArray[Any]) -> bool:
    """Whether `matmul` is faster than BLAS for operands in the CPU's memory."""
    entries = X.size // max(1, X.shape[-1]) * Y.shape[-1]
    return entries >= _LEAST_ENTRIES_BLAS and entries * X.shape[-1] >= _LEAST_PRODUCTS_BLAS * _crowd()


def _crowd() -> int:
    """How many times as large a product has to be for the processes of a sweep that share the GPU; 1 without others."""
    told = os.environ.get("FPEMU_PROCESSES", "")
    processes = int(told) if told.isdigit() else 1
    return _SHARED * processes if processes > 1 else 1


class Run:
    """A GEMM whose operands are on the GPU.

    Parameters
    ----------
    spec : MmaSpec
    buffers : list of Buffer
        A, B, C, indices of A, of B, cuts.
    shape : (products, M, N)
    K : int
    promote : bool
    """

    def __init__(
        self, spec: MmaSpec, buffers: list[device.Buffer], shape: tuple[int, int, int], K: int, promote: bool
    ) -> None:
        self.shape = shape
        self._module, self._buffers, self._K, self._promote = _module(source(spec)), buffers, K, promote
        self._dtype = np.dtype(np.int32 if spec.is_integer else spec.outer_dtype)

    def launch(self, D: device.Buffer, *, wait: bool = True) -> None:
        """Compute D into a buffer."""
        _, M, N = self.shape
        A, B, C, a_of, b_of, cuts = self._buffers
        sizes = (np.int32(x) for x in (M, N, self._K, self._promote))
        self._module.launch("gemm", _tiles(self.shape), THREADS, A, B, C, D, a_of, b_of, cuts, *sizes, wait=wait)

    def result(self) -> NDArray[Any]:
        """D (products, M, N), every element seen to be written."""
        codes = device.collect(self.launch, self.shape, f"u{self._dtype.itemsize}")
        return codes.view(self._dtype)


def prepare(
    A: NDArray[Any],
    B: NDArray[Any],
    index_a: NDArray[Any],
    index_b: NDArray[Any],
    C: NDArray[Any],
    spec: MmaSpec,
    cuts: NDArray[np.bool_],
    *,
    whole: bool = False,
) -> Run | None:
    """The arguments of `chain` on the GPU; None if they are too many bytes to be held at once, unless `whole`."""
    if not whole and (max(A.nbytes, B.nbytes, C.nbytes) > _most() or _tiles(C.shape) > _GRID):
        return None
    numbers = [x.astype(np.int32) for x in (index_a, index_b)]
    buffers = [device.Buffer.of(x) for x in (A, B, C, *numbers, cuts.astype(np.uint8))]
    return Run(spec, buffers, (len(C), C.shape[-2], C.shape[-1]), A.shape[-1], bool(cuts.any()))


def _most() -> int:
    """Bytes of one array on the GPU at a time."""
    return min(_BYTES, _memory() // _SHARE)


@lru_cache(maxsize=1)
def _memory() -> int:
    """Bytes of the GPU's memory."""
    _, total = device.check(device.driver().cuMemGetInfo())
    return int(total)


def _whole_tiles(entries: int) -> int:
    """The rows of as many tiles as there is room for, at least of one."""
    return max(1, entries // TILE) * TILE


def _tiles(shape: tuple[int, ...]) -> int:
    products, M, N = shape
    return products * -(-M // TILE) * -(-N // TILE)


@lru_cache(maxsize=64)
def _module(text: str) -> device.Module:
    return device.Module(text, name="emulated_gemm.cu")
