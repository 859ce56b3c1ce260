"""Operands of one product: drawn on the GPU, with the product in fp64 and the errors of a result."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu import cublas
from benchmarks.gpu.memory import DeviceArray
from benchmarks.gpu.prepared import errors
from benchmarks.seeded import digest, draw, run
from fpemu.errors import unknown_name
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.library.tables import sample_indices

_BLOCKS, _SUMS = 1056, 7  # of the kernel compare_fp32
_SAMPLE = 16  # rows and columns of D that the CPU computes too

DATA: dict[str, tuple[float, float, float]] = {
    "symmetric": (-1.0, 1.0, -1.0),
    "positive": (0.0, 1.0, -1.0),
    "0.5 to 2.5": (0.5, 2.5, -1.0),
    "normal": (0.0, 1.0, -2.0),
    **{f"phi {phi:g}": (0.0, 0.0, phi) for phi in (0.1, 0.5, 1.0, 2.0)},
}
"""Arguments low, high and phi of `benchmarks.seeded.draw`."""


class Operands:
    """A (M, K) and B (K, N) of one of `DATA` in fp32 or fp64, both stored by rows."""

    def __init__(self, M: int, N: int, K: int, data: str = "symmetric", seed: int = 0, fmt: str = "fp32") -> None:
        if data not in DATA:
            raise unknown_name("kind of data", data, DATA)
        self.M, self.N, self.K, self.fmt = M, N, K, fmt
        self.dtype = np.dtype(np.float32 if fmt == "fp32" else np.float64)
        self.A = draw(fmt, M * K, 2 * seed, *DATA[data])
        self.B = draw(fmt, K * N, 2 * seed + 1, *DATA[data])

    def matrix(self, name: str) -> Matrix:
        """Return an operand as kernels take it."""
        buffer, rows, columns = (self.A, self.M, self.K) if name == "A" else (self.B, self.K, self.N)
        return Matrix(buffer.pointer, self.dtype, (rows, columns), (columns, 1), buffer)

    def result(self, dtype: Any) -> Matrix:
        """Allocate D."""
        buffer = Buffer.poisoned(self.M * self.N * np.dtype(dtype).itemsize)
        return Matrix(buffer.pointer, np.dtype(dtype), (self.M, self.N), (self.N, 1), buffer)

    def in_fp64(self) -> tuple[Buffer, Buffer]:
        """Return A and B in fp64."""
        if self.fmt == "fp64":
            return self.A, self.B
        widened = []
        for buffer, count in ((self.A, self.M * self.K), (self.B, self.K * self.N)):
            widened.append(Buffer(count * 8))
            run("widen", widened[-1], buffer, count)
        return widened[0], widened[1]

    @cached_property
    def _in_fp64(self) -> Buffer:
        """The product in fp64 by the library."""
        (A, B), D = self.in_fp64(), Buffer(self.M * self.N * 8)
        cublas.product("fp64", A.pointer, B.pointer, D.pointer, (self.M, self.N, self.K))()
        device.synchronize()
        return D

    def errors(self, D: Matrix) -> dict[str, Any]:
        """Return the errors of all fp32 outputs against the product in fp64, or of a sample of fp64 outputs.

        "relative_l2", "max_relative", "mred" and "max_error" are as in `fpemu.metrics` (the last is LE-GEMM's), without
        the "lost" outputs, which are not finite; "outputs" counts all that were compared.
        """
        if D.dtype == np.float64:
            from fpemu import reference

            A, B, sample = self.sample(D)
            return errors(sample, reference.matmul(A, B), mred="mred", max_error="max_error_legemm")
        count, out = self.M * self.N, Buffer(_BLOCKS * _SUMS * 8)
        run("compare_fp32", out, np.uint64(D.pointer), self._in_fp64, count)
        sums = out.array((_BLOCKS, _SUMS), np.float64)
        square, norm, relative = (math.fsum(sums[:, column]) for column in range(3))
        lost, most = int(sums[:, 6].sum()), sums[:, 3:6].max(axis=0)
        return {
            "relative_l2": math.sqrt(square / norm) if norm else 0.0,
            "max_relative": float(most[1]),
            "mred": relative / max(count - lost, 1),
            "max_error": float(most[2]),
            "lost": lost,
            "outputs": count,
        }

    def sample(self, D: Matrix) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Fetch some rows of A, some columns of B, and their products in D."""
        rows, columns = (x[:: max(1, len(x) // _SAMPLE)][:_SAMPLE] for x in sample_indices(self.M, self.N))
        matrices = (self.matrix("A"), self.matrix("B"), D)
        A, B, d = (DeviceArray(x.pointer, tuple(x.shape), x.dtype) for x in matrices)
        return (
            np.stack([A.row(int(i)) for i in rows]),
            np.stack([B.column(int(j)) for j in columns], axis=1),
            np.stack([d.row(int(i))[columns] for i in rows]),
        )

    def digest(self, D: Matrix) -> str:
        """Return the digest of all bits of D, as `fpemu._system.digest` defines it."""
        return digest(D.pointer, self.M * self.N * D.dtype.itemsize, 8 * D.dtype.itemsize)
