"""A stand-in for the GPU: buffers in host memory, and products of `fpemu.gpu` by the emulation."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fpemu
from fpemu.errors import InputError
from fpemu.gpu.runtime import device
from fpemu.verification import paths
from tests.simulated import Buffer

HOPPER = {"hardware": "hopper", "instruction": "mma"}


def view(X: Any) -> Any:
    """Return an array of the stand-in as a NumPy array, which is a copy where strides are negative."""
    if X is None or isinstance(X, np.ndarray):
        return X
    if isinstance(X, list):
        return np.stack([view(x) for x in X])
    fields = X.__cuda_array_interface__
    shape, strides, dtype = fields["shape"], fields["strides"], np.dtype(fields["typestr"])
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)] if 0 not in shape else []
    before = -sum(x for x in reach if x < 0)
    memory = (ctypes.c_uint8 * (sum(map(abs, reach)) + dtype.itemsize)).from_address(fields["data"][0] - before)
    return np.ndarray(shape, dtype, memory, before, strides)


class Gpu:
    """The functions of `fpemu.gpu` by the emulation; a test adds a fault to `faults`, which alters their results."""

    def __init__(self):
        self.faults: list[Any] = []
        self.deferred: list[str] = []
        self.addresses: list[int] = []

    def written(self, compute, operands, out):
        D = compute(*map(view, operands))
        self.addresses += [X.__cuda_array_interface__["data"][0] for X in operands[:2] if hasattr(X, "memory")]
        for fault in self.faults:
            D = fault(D, operands, out)
        if isinstance(out, list):
            for x, d in zip(out, D, strict=True):
                view(x)[...] = d
        elif out is not None:
            view(out)[...] = D
        return D if out is None else out

    def gemm(self, A, B, C=None, *, out=None, on_range=None, scheme, **options):
        def compute(A, B, C):
            given = {**options, "hardware": "hopper", "scheme": scheme}
            try:
                return fpemu.gemm(A, B, C, on_range="raise" if on_range is None else on_range, **given)
            except InputError as problem:
                if on_range is not None:
                    raise
                self.deferred.append(str(problem))
                return fpemu.gemm(A, B, C, on_range="propagate", **given)

        return self.written(compute, (A, B, C), out)

    def plan(self, scheme, A, B, C=None, **options):
        return lambda A, B, C, out: self.gemm(A, B, C, scheme=scheme, out=out, **options)

    def check(self):
        texts, self.deferred = self.deferred, []
        if texts:
            raise InputError(texts[0])

    def kernel(self, scheme, M, N, K, *, order=None):
        arguments = {"scheme": scheme, "hardware": "hopper", "order": order}
        return SimpleNamespace(name="stand-in", arguments=arguments)

    def batched(self, name):
        def multiply(A, B, C=None, *, out=None, configuration=None, **options):
            kind = {} if options.get("kernel") == "magma-small" else HOPPER
            compute = getattr(fpemu.batched, name)
            return self.written(lambda A, B, C: compute(A, B, C, **options, **kind), (A, B, C), out)

        return multiply

    def tallskinny(self, A, B, *, out=None, **options):
        def compute(A, B):
            return np.asarray(fpemu.simt.gemm(A, B, fmt="fp32" if A.itemsize == 4 else "fp64"))

        return self.written(compute, (A, B), out)


class Tensor:
    """A tensor of PyTorch on the stand-in: a view of its memory."""

    memory = None

    def __init__(self, x):
        self.x, self.shape, size = x, x.shape, x.itemsize
        fields = {"shape": x.shape, "strides": x.strides, "typestr": x.dtype.str, "data": (x.ctypes.data, False)}
        self.__cuda_array_interface__, self.size = fields, size

    def as_strided(self, shape, steps, first):
        return Tensor(np.lib.stride_tricks.as_strided(self.x[first:], shape, [s * self.size for s in steps]))

    def copy_(self, other):
        self.x[...] = other.x

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.x


@pytest.fixture
def with_torch(gpu, monkeypatch):
    """PyTorch on the stand-in: a graph repeats the last product that was written while it was captured."""
    captured = []

    @contextmanager
    def capture(graph):
        written = gpu.written

        def noted(*given):
            captured.append(given)
            return written(*given)

        monkeypatch.setattr(gpu, "written", noted)
        yield
        monkeypatch.setattr(gpu, "written", written)

    def operator(function):
        return lambda *operands, **options: Tensor(np.asarray(function(*map(view, operands), **options)))

    graph = SimpleNamespace(replay=lambda: gpu.written(*captured[-1]))
    stream = {"Stream": int, "stream": nullcontext, "synchronize": int}
    cuda = SimpleNamespace(CUDAGraph=lambda: graph, graph=capture, **stream)
    torch = SimpleNamespace(as_tensor=lambda X, device: Tensor(view(X)), cuda=cuda)
    functions = {"gemm": gpu.gemm, "multiply": gpu.tallskinny}
    functions |= {name: gpu.batched(name) for name in ("hgemm", "hcgemm")}
    operators = SimpleNamespace(**{name: operator(function) for name, function in functions.items()})
    monkeypatch.setattr(paths, "missing", lambda path: None)
    monkeypatch.setattr(paths, "load_torch", lambda: torch)
    monkeypatch.setattr(fpemu, "torch", operators, raising=False)


@pytest.fixture
def gpu(monkeypatch):
    """The stand-in in place of the GPU, without PyTorch."""
    stand_in = Gpu()
    monkeypatch.setattr(device, "Buffer", Buffer)
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(fpemu.mma.device, "resolve", lambda device: "cpu")
    monkeypatch.setattr(device, "synchronize", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: {"gpu": "Stand-in"})
    lacking = dict.fromkeys(("graph", "torch"), "PyTorch is not installed")
    monkeypatch.setattr(paths, "missing", lacking.get)
    for name in ("gemm", "plan", "check", "kernel"):
        monkeypatch.setattr(fpemu.gpu, name, getattr(stand_in, name))
    for name in ("hgemm", "hcgemm"):
        monkeypatch.setattr(fpemu.gpu.batched, name, stand_in.batched(name))
    monkeypatch.setattr(fpemu.gpu.batched, "arguments", lambda: HOPPER)
    monkeypatch.setattr(fpemu.gpu.tallskinny, "multiply", stand_in.tallskinny)
    return stand_in
