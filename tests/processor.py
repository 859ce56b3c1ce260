"""The steps of the error-free schemes on this processor: kernels compiled for it, NumPy for cuBLAS, host memory."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.errorfree.operands import Workspace
from fpemu.gpu.runtime import modules
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Fill, Gemm, pack
from tests import cuda_on_cpu
from tests.simulated import compiled

PRODUCTS = {
    "int8": (np.int8, np.int32, 2**31 - 1),
    "fp16": (np.float16, np.float32, 2**24),
    "tf32": (np.float32, np.float32, 2**24),
    "fp64": (np.float64, np.float64, math.inf),
}
_LIBRARIES: dict[str, ctypes.CDLL] = {}


def view(address, shape, strides, dtype):
    dtype = np.dtype(dtype)
    length = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    raw = (ctypes.c_char * (length * dtype.itemsize)).from_address(address)
    return np.lib.stride_tricks.as_strided(np.frombuffer(raw, dtype), shape, [s * dtype.itemsize for s in strides])


class Processor:
    """Run steps, a block as one thread, and check that products are exact."""

    def __init__(self, folder):
        self.folder, self.steps = folder, []

    def __call__(self, step):
        self.steps.append(step)
        if isinstance(step, Fill):
            ctypes.memset(step.pointer, step.byte, step.nbytes)
        elif isinstance(step, Gemm):
            self.multiply(step)
        else:
            self.launch(step)

    @property
    def kernels(self):
        """The names of the kernels that have run."""
        return {step.kernel for step in self.steps if hasattr(step, "kernel")}

    @property
    def products(self):
        """The products that have run."""
        return [step for step in self.steps if isinstance(step, Gemm)]

    def library(self, source):
        if source not in _LIBRARIES:
            flags = ("-O0", "-Wall", "-Wextra", "-Werror", "-Wno-unused")
            _LIBRARIES[source] = compiled(source, self.folder, *flags)
        return _LIBRARIES[source]

    def launch(self, step):
        if step.kernel == "byte_gemm":
            self.multiply_pairs(*step.arguments)
            return
        library, arguments = self.library(step.module.source), [parameter(x) for x in step.arguments]
        sizes = step.grid if isinstance(step.grid, tuple) else (step.grid,)
        sizes = (*sizes, *(1,) * (3 - len(sizes)))
        for z, y, x in np.ndindex(*sizes[::-1]):
            library.set_block(x, y, z, *sizes)
            getattr(library, step.kernel)(*arguments)

    def multiply_pairs(self, left, right, product):
        """Sums of products of slices, by kernels/byte_gemm.cu."""
        X, Y = (view(m.pointer, m.shape, (*m.strides, 1), np.int8).astype(np.float64) for m in (left, right))
        value, stride = product.pack()[0], int(product["stride"])
        fields = np.frombuffer(value, product.dtype)[0]
        assert (X.shape[2], Y.shape[2]) == (fields["M"], fields["N"])
        for i, (a, b, length) in enumerate(zip(*(fields[name].tolist() for name in ("a", "b", "length")), strict=True)):
            if i < fields["planes"]:
                x, y = X[a : a + length], Y[b : b + length]
                assert len(x) == len(y) == length
                assert np.einsum("scmk,scnk->mn", abs(x), abs(y), optimize=True).max() < 2**31
                at = int(fields["sums"]) + 4 * i * stride
                result = np.einsum("scmk,scnk->mn", x, y, optimize=True)
                view(at, result.shape, (int(fields["pitch"]), 1), np.int32)[...] = result

    def multiply(self, step):
        low, high, limit = PRODUCTS[step.kind]
        M, N, K, A, B, D = step.M, step.N, step.K, step.A, step.B, step.D
        sizes = np.dtype(low).itemsize, np.dtype(high).itemsize
        for i in range(step.batch):
            X = view(A.pointer + sizes[0] * A.batch * i, (M, K), (A.row, 1), low).astype(np.float64)
            Y = view(B.pointer + sizes[0] * B.batch * i, (N, K), (B.row, 1), low).astype(np.float64)
            assert (abs(X) @ abs(Y).T).max() <= limit
            assert step.kind != "int8" or (K % 16, A.row % 16, B.row % 16) == (0, 0, 0)
            view(D.pointer + sizes[1] * D.batch * i, (M, N), (D.row, 1), high)[...] = X @ Y.T


def parameter(value):
    """A parameter of a kernel for ctypes."""
    data, _ = pack(value)
    if isinstance(value, np.float64):
        return ctypes.c_double(value)
    if len(data) <= 8:
        return {4: ctypes.c_int, 8: ctypes.c_longlong}[len(data)].from_buffer_copy(data)
    words = ctypes.c_ulonglong * (len(data) // 8)
    return type("Struct", (ctypes.Structure,), {"_fields_": [("words", words)]}).from_buffer_copy(data)


def matrix(X):
    return Matrix(X.ctypes.data, X.dtype, X.shape, tuple(step // X.itemsize for step in X.strides), X)


@pytest.fixture
def work(tmp_path_factory, monkeypatch):
    """A workspace in host memory, poisoned, whose steps run on this processor; its `queue` is a `Processor`."""
    if emulation.compiler() is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.getbasetemp() / "errorfree"
    folder.mkdir(exist_ok=True)
    cuda_on_cpu.stand_in(monkeypatch, folder)
    monkeypatch.setattr(modules.Module, "clusters", lambda *_: 66)  # of two thread blocks on an H200
    yield Workspace(Processor(folder))
    cuda_on_cpu.forget()
