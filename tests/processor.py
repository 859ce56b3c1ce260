"""A simulated GPU for the error-free schemes: kernels compiled for the CPU, one thread per block, NumPy for cuBLAS."""

from __future__ import annotations

import ctypes
import math
import subprocess

import numpy as np

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime.compiler import KERNELS
from fpemu.gpu.runtime.device import OutOfMemoryError
from fpemu.gpu.runtime.matrices import Matrix
from tests.simulated import Buffer

PRODUCTS = {
    "int8": (np.int8, np.int32, 2**31 - 1),
    "fp16": (np.float16, np.float32, 2**24),
    "tf32": (np.float32, np.float32, 2**24),
    "fp64": (np.float64, np.float64, math.inf),
}


def view(address, shape, strides, dtype):
    dtype = np.dtype(dtype)
    length = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    raw = (ctypes.c_char * (length * dtype.itemsize)).from_address(address)
    return np.lib.stride_tricks.as_strided(np.frombuffer(raw, dtype), shape, [s * dtype.itemsize for s in strides])


class Processor:
    """Simulate `errorfree.operands.Device`, one thread per block, and check that products are exact."""

    def __init__(self, folder):
        self.folder, self._libraries, self.products, self.free = folder, {}, [], 1 << 32

    def memory(self, nbytes):
        if nbytes > self.free:
            raise OutOfMemoryError("CUDA: CUDA_ERROR_OUT_OF_MEMORY", nbytes)
        return Buffer(nbytes)

    def upload(self, array):
        return Buffer.of(array)

    def fill(self, at, byte, nbytes):
        at.memory[:nbytes] = byte

    def room(self):
        return self.free

    def library(self, source):
        if source not in self._libraries:
            place = self.folder / f"kernels{len(self._libraries)}.cpp"
            place.write_text(source)
            flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unused"]
            command = [emulation.compiler(), *flags, f"-I{KERNELS}", str(place), "-o", str(place.with_suffix(".so"))]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            self._libraries[source] = ctypes.CDLL(str(place.with_suffix(".so")))
        return self._libraries[source]

    def launch(self, source, kernel, grid, block, *args, shared=0):
        assert shared <= 1 << 20
        library = self.library(source)
        sizes = grid if isinstance(grid, tuple) else (grid,)
        sizes = (*sizes, *(1,) * (3 - len(sizes)))
        packed = [pack(a) for a in args]
        function = getattr(library, kernel)
        for z, y, x in np.ndindex(*sizes[::-1]):
            library.set_block(x, y, z, *sizes)
            function(*packed)

    def gemm(self, kind, M, N, K, A, B, D, *, batch=1):
        low, high, limit = PRODUCTS[kind]
        self.products.append((kind, M, N, K, batch))
        sizes = np.dtype(low).itemsize, np.dtype(high).itemsize
        for i in range(batch):
            X = view(A.pointer + sizes[0] * A.batch * i, (M, K), (A.row, 1), low).astype(np.float64)
            Y = view(B.pointer + sizes[0] * B.batch * i, (N, K), (B.row, 1), low).astype(np.float64)
            assert (abs(X) @ abs(Y).T).max() <= limit
            assert kind != "int8" or (K % 16, A.row % 16, B.row % 16) == (0, 0, 0)
            view(D.pointer + sizes[1] * D.batch * i, (M, N), (D.row, 1), high)[...] = X @ Y.T


def pack(value):
    if isinstance(value, Buffer):
        return ctypes.c_void_p(value.pointer)
    if isinstance(value, np.ndarray):  # a struct by value
        words = ctypes.c_ulonglong * (value.nbytes // 8)
        return type("Struct", (ctypes.Structure,), {"_fields_": [("words", words)]}).from_buffer_copy(value.tobytes())
    if isinstance(value, np.generic):
        kinds = {"int32": ctypes.c_int, "uint64": ctypes.c_ulonglong, "float64": ctypes.c_double}
        return kinds[value.dtype.name](value.item())
    return ctypes.c_longlong(value)


def matrix(X):
    return Matrix(X.ctypes.data, X.dtype, X.shape, tuple(step // X.itemsize for step in X.strides), X)
