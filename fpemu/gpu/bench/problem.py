"""A product to measure: operands drawn on the GPU, the same product in fp64, and the errors of a result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import unknown_name
from fpemu.gpu import device
from fpemu.gpu.bench import library
from fpemu.gpu.bench.timing import kernels
from fpemu.gpu.device import Buffer
from fpemu.gpu.matrices import Matrix
from fpemu.gpu.orders import recorded

_THREADS, _BLOCKS = 256, 1056
_PARTS = 7
_SAMPLE = 16  # rows and columns of D that the CPU computes too

DATA: dict[str, tuple[float, float, float]] = {
    "symmetric": (-1.0, 1.0, -1.0),
    "positive": (0.0, 1.0, -1.0),
    "0.5 to 2.5": (0.5, 2.5, -1.0),
    "normal": (0.0, 1.0, -2.0),
    **{f"phi {phi:g}": (0.0, 0.0, phi) for phi in (0.1, 0.5, 1.0, 2.0)},
}
"""Least and most of uniform operands, with -1; mean and deviation of normal ones, with -2; or phi of (uniform - 1/2)
exp(phi normal)."""


@dataclass(frozen=True)
class Errors:
    """Of a result D against R, the same product in fp64 (for fp64 results: the exact product, on a sample).

    Parameters
    ----------
    relative_l2, max_relative, mred, max_error : float
        As in `fpemu.metrics`; `max_error` is LE-GEMM's.
    lost : int
        Entries that are not finite; the measures leave them out.
    outputs : int
        Entries compared.
    """

    relative_l2: float
    max_relative: float
    mred: float
    max_error: float
    lost: int
    outputs: int


class Problem:
    """A (M, K) and B (K, N), both stored by rows.

    Parameters
    ----------
    M, N, K : int
    data : one of `DATA`
    seed : int
    fmt : {"fp32", "fp64"}
        Of the operands.
    """

    def __init__(self, M: int, N: int, K: int, data: str = "symmetric", seed: int = 0, fmt: str = "fp32") -> None:
        if data not in DATA:
            raise unknown_name("kind of data", data, DATA)
        self.M, self.N, self.K, self.data, self.seed, self.fmt = M, N, K, data, seed, fmt
        self.dtype = np.dtype(np.float32 if fmt == "fp32" else np.float64)
        self.A = self._draw(M * K, 2 * seed)
        self.B = self._draw(K * N, 2 * seed + 1)
        self._R: Buffer | None = None

    def _draw(self, count: int, seed: int) -> Buffer:
        buffer = Buffer(count * self.dtype.itemsize)
        low, high, phi = (np.float64(x) for x in DATA[self.data])
        run(f"draw_{self.fmt}", buffer, count, seed, low, high, phi)
        return buffer

    @property
    def operations(self) -> float:
        """2 M N K."""
        return 2.0 * self.M * self.N * self.K

    def matrix(self, who: str) -> Matrix:
        """An operand as kernels take it."""
        buffer, rows, columns = (self.A, self.M, self.K) if who == "A" else (self.B, self.K, self.N)
        return Matrix(buffer.pointer, self.dtype, (rows, columns), (columns, 1), buffer)

    def result(self, dtype: Any) -> Matrix:
        """Memory for D."""
        buffer = Buffer.poisoned(self.M * self.N * np.dtype(dtype).itemsize)
        return Matrix(buffer.pointer, np.dtype(dtype), (self.M, self.N), (self.N, 1), buffer)

    def wide(self) -> tuple[Buffer, Buffer]:
        """The operands in fp64."""
        if self.fmt == "fp64":
            return self.A, self.B
        found = []
        for buffer, count in ((self.A, self.M * self.K), (self.B, self.K * self.N)):
            found.append(Buffer(count * 8))
            run("widen", found[-1], buffer, count)
        return found[0], found[1]

    def errors(self, D: Matrix) -> Errors:
        """All entries of an fp32 result against the product in fp64; of an fp64 one a sample against the exact one."""
        if D.dtype == np.float64:
            return self._sampled(D)
        if self._R is None:
            A, B = self.wide()
            self._R = Buffer(self.M * self.N * 8)
            library.gemm("fp64", A.pointer, B.pointer, self._R.pointer, self.M, self.N, self.K)
            device.synchronize()
        count = self.M * self.N
        out = Buffer(_BLOCKS * _PARTS * 8)
        run("compare_fp32", out, _pointer(D), self._R, count)
        parts = out.array((_BLOCKS, _PARTS), np.float64)
        square, norm, relative = (math.fsum(parts[:, p]) for p in range(3))
        lost = int(parts[:, 6].sum())
        left = max(count - lost, 1)
        most = parts[:, 3:6].max(axis=0)
        return Errors(math.sqrt(square / norm) if norm else 0.0, float(most[1]), relative / left, float(most[2]),
                      lost, count)  # fmt: skip

    def _sampled(self, D: Matrix) -> Errors:
        from fpemu import metrics, reference

        A, B, got = self.sample(D)
        exact = reference.matmul(A, B)
        ok = np.isfinite(got)
        got, exact = got[ok], exact[ok]
        return Errors(float(metrics.relative_l2(got, exact)), float(metrics.max_relative(got, exact)),
                      float(metrics.mred(got, exact)), float(metrics.max_error_legemm(got, exact)),
                      int(np.count_nonzero(~ok)), int(ok.size))  # fmt: skip

    def sample(self, D: Matrix) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Some rows of A, some columns of B, and D where they meet."""
        rows, columns = (x[:: max(1, len(x) // _SAMPLE)][:_SAMPLE] for x in recorded.places(self.M, self.N))
        A = np.stack([_read(self.A.pointer, int(r) * self.K, self.K, self.dtype) for r in rows])
        B = np.stack([_column(self.B.pointer, int(c), self.K, self.N, self.dtype) for c in columns], axis=1)
        got = np.stack([_read(D.pointer, int(r) * self.N, self.N, D.dtype)[columns] for r in rows])
        return A, B, got

    def digest(self, D: Matrix) -> str:
        """The digest of all bits of D, as `fpemu.gpu.verification.digests` has it."""
        out = Buffer(_BLOCKS * 8)
        run(f"digest_{8 * D.dtype.itemsize}", out, _pointer(D), self.M * self.N)
        return f"{int(out.array(_BLOCKS, np.uint64).sum(dtype=np.uint64)):016x}"


def run(name: str, *args: Any) -> None:
    """Queue a kernel of `kernels/bench.cu` that strides over a matrix."""
    device.synchronize()
    kernels().launch(name, _BLOCKS, _THREADS, *args, wait=False)


def _pointer(D: Matrix) -> np.ndarray[Any, Any]:
    return np.array([D.pointer], np.uint64)


def _read(pointer: int, first: int, count: int, dtype: Any) -> NDArray[Any]:
    out = np.empty(count, dtype)
    device.synchronize()
    device.check(device._enter().cuMemcpyDtoH(out.ctypes.data, pointer + first * out.itemsize, out.nbytes))
    return out


def _column(pointer: int, column: int, rows: int, width: int, dtype: Any) -> NDArray[Any]:
    """A column of a matrix stored by rows."""
    from cuda.bindings import driver

    out = np.empty(rows, dtype)
    size = out.itemsize
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch = pointer + column * size, width * size
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.dstHost, copy.dstPitch = out.ctypes.data, size
    copy.WidthInBytes, copy.Height = size, rows
    device.check(device._enter().cuMemcpy2D(copy))
    return out
