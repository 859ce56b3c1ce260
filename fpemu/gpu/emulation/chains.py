"""A GEMM of any instruction of the catalogue, emulated on the GPU: `fpemu.mma.reference.chain` in CUDA C++.

``kernels/carrier_arithmetic.cuh`` holds the arithmetic; ``kernels/emulated_gemm.cu`` applies it tile by tile. The GPU
need not have the emulated instruction: the kernel does not use the matrix units.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import compiler, device, modules, plan
from fpemu.gpu.runtime.device import per_device
from fpemu.mma.arithmetic import Operands
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.spec import MmaSpec

TILE = 64  # rows and columns of D of one thread block
THREADS = 256
_BYTES = 2**32  # limit of A, B, C or D on the GPU at a time
_SHARE = 16  # denominator of the limit relative to the GPU's memory, which other processes use too
_GRID = 2**31 - 1  # limit of the thread blocks of a launch
_LONGEST = 2**31 - TILE  # limit of K, which int counters pass by less than a tile

# Limits below which the device "auto" selects the CPU: results smaller than a tile leave the GPU idle, and small
# products take the CPU less time than a launch with its buffers. Measured on an H200 and 16 cores: the times are equal
# for 64 x 64 x 512, and the GPU is 1.6 times faster for eight times as many products. BLAS is about a hundred times
# faster than emulation, so that the copies to the GPU pay for large operands only.
_LEAST_ENTRIES, _LEAST_PRODUCTS = TILE**2, 2**22
_LEAST_ENTRIES_BLAS, _LEAST_PRODUCTS_BLAS = 64 * TILE**2, 2**29
# Processes that share a GPU alternate on it. On the same machine 12 processes with all products on the GPU took 1.2 s
# for a cell of h2sgemm/fig8 (176 x 176 x 2816: 2^26 multiply-adds), and the 16 cores 0.16 s. The limits therefore grow
# by this factor for each process.
_SHARED = 8


def source(spec: MmaSpec) -> str:
    """Return the kernel that emulates GEMMs of an instruction."""
    return f'#include "arithmetic.cuh"\n{emulation.definition(spec)}\n{compiler.kernel_source("emulated_gemm.cu")}'


def chain(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Compute `fpemu.mma.reference.chain` on the GPU, with the same bits; InputError for a K beyond the counters."""
    device.need()
    A, B, C = x.A, x.B, x.C
    if A.shape[-1] > _LONGEST:
        raise InputError(f"device = 'cuda': K = {A.shape[-1]} is more than {_LONGEST}: take device='cpu'")
    if max(A.nbytes, B.nbytes, C.nbytes) <= _most() and _tiles(C.shape) <= _GRID:
        return product(x, spec)
    M, N = C.shape[-2:]  # too large for the GPU: one product after another, in stripes
    K, most = A.shape[-1], _most() // max(A.itemsize, C.itemsize)  # entries of A, B or C
    columns = min(N, _whole_tiles(most // max(K, TILE)))
    rows = _whole_tiles(most // max(K, columns))
    D = np.empty(C.shape, spec.outer_dtype if x.cuts.any() else C.dtype)
    one = np.zeros(1, np.int64)
    for p, (i, j) in enumerate(zip(x.index_a, x.index_b, strict=True)):
        for m in range(0, M, rows):
            for n in range(0, N, columns):
                a, b = A[i : i + 1, m : m + rows], B[j : j + 1, :, n : n + columns]
                part = slice(p, p + 1), slice(m, m + rows), slice(n, n + columns)
                D[part] = product(Operands(a, b, one, one, C[part], x.cuts), spec)
    return D


def matmul(X: NDArray[Any], Y: NDArray[Any]) -> NDArray[Any]:
    """Compute X (..., M, K) @ Y (..., K, N), both float32 or float64, as chains of fused multiply-adds, k ascending."""
    spec = FMA_SPECS[{"float32": "fp32", "float64": "fp64"}[X.dtype.name]]
    a, b = (np.ascontiguousarray(Z).reshape(prod(Z.shape[:-2]), *Z.shape[-2:]) for Z in (X, Y))
    products = np.arange(len(a))
    C = np.zeros((len(a), a.shape[1], b.shape[2]), X.dtype)
    operands = Operands(a, b, products, products, C, np.zeros(a.shape[2], np.bool_))
    D = C if 0 in (*C.shape, a.shape[2]) else chain(operands, spec)
    return D.reshape(*X.shape[:-1], Y.shape[-1])


def chain_gains(shape: tuple[int, ...], K: int) -> bool:
    """Return whether `chain` is faster than the compiled implementation for C of this shape (products, M, N)."""
    return prod(shape) >= _LEAST_ENTRIES and prod(shape) * K >= _LEAST_PRODUCTS * _crowd()


def matmul_gains(X: NDArray[Any], Y: NDArray[Any]) -> bool:
    """Return whether `matmul` is faster than BLAS for operands in the CPU's memory."""
    entries = X.size // max(1, X.shape[-1]) * Y.shape[-1]
    return entries >= _LEAST_ENTRIES_BLAS and entries * X.shape[-1] >= _LEAST_PRODUCTS_BLAS * _crowd()


def _crowd() -> int:
    """Return the factor on the limits for the processes of a sweep that share the GPU; 1 for one process."""
    count = os.environ.get("FPEMU_PROCESSES", "")
    processes = int(count) if count.isdigit() else 1
    return _SHARED * processes if processes > 1 else 1


def product(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Compute a chain whose operands fit on the GPU at once; GpuError if not every element was written."""
    indices = x.index_a.astype(np.int32), x.index_b.astype(np.int32)
    A, B, C, *rest = map(device.Buffer.of, (x.A, x.B, x.C, *indices, x.cuts.astype(np.uint8)))
    _, M, N = shape = x.C.shape
    sizes = [np.int32(n) for n in (M, N, x.A.shape[-1], x.cuts.any())]

    def queue(D: device.Buffer) -> None:
        module = modules.module(source(spec), "emulated_gemm.cu")
        plan.queue(module.step("gemm", _tiles(shape), THREADS, A, B, C, D, *rest, *sizes))

    dtype = np.dtype(np.int32 if spec.is_integer else spec.outer_dtype)
    return device.collect(queue, shape, f"u{dtype.itemsize}").view(dtype)


def _most() -> int:
    """Return the limit of the bytes of one array on the GPU."""
    return min(_BYTES, _memory() // _SHARE)


@per_device()
def _memory() -> int:
    """Return the bytes of the GPU's memory."""
    _, total = device.check(device.driver().cuMemGetInfo())
    return int(total)


def _whole_tiles(entries: int) -> int:
    """Return the rows of the tiles that some entries hold, at least of one tile."""
    return max(1, entries // TILE) * TILE


def _tiles(shape: tuple[int, ...]) -> int:
    products, M, N = shape
    return products * -(-M // TILE) * -(-N // TILE)
