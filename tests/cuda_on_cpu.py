"""CUDA kernels on the CPU: the simulated driver, whose launches run kernels that a C++ compiler has compiled.

Every thread is a fiber, which waits where its block or its warp waits (cuda_on_cpu.h); mma.sync is the emulation of its
arithmetic (mma_on_cpu.h), and copies by TMA are complete at once. Kernels of wgmma do not run.
"""

from __future__ import annotations

import ctypes
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from cuda import core

from benchmarks import compilation
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm import choice
from fpemu.gpu.gemm.base import Kernel, Prepared
from fpemu.gpu.gemm.splitting import Splitter
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import device, matrices, modules
from fpemu.gpu.runtime.counters import Label, lock
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.plan import Plan
from fpemu.gpu.runtime.steps import Launch, Memory
from fpemu.schemes import base, lowering, words
from tests import gpu_fixtures, simulated_driver
from tests.simulated import compiled

SHIM = '#include "kernel_on_cpu.h"\n'
FRAGMENTS = """
void multiply_add(Sum& c, const u32 (&a)[A_WORDS], const u32 (&b)[B_WORDS]) { simulated_mma(c.word, a, b); }
void load_rows(u32 (&r)[4], const u8* row) { rows_of_lanes(r, row); }
void load_rows(u32 (&r)[2], const u8* row) { rows_of_lanes(r, row); }
"""
TMA = '#include "tma_on_cpu.h"'  # in the place of hopper.cuh in split_gemm_tma.cu


EMULATED_GEMM = """
extern "C" void run_gemm(unsigned tiles, unsigned, void** a) {
  const int M = *(int*)a[7], N = *(int*)a[8], products = tiles / (tiles_along(M) * tiles_along(N));
  gemm(*(const Element**)a[0], *(const Element**)a[1], *(const Total**)a[2], *(Total**)a[3], *(const int**)a[4],
       *(const int**)a[5], *(const u8**)a[6], M, N, *(int*)a[9], *(int*)a[10], products);
}
"""


class Code:
    """Simulate `cuda.core.ObjectCode`: a source compiled for this machine, once for all tests of a run."""

    folder = None

    def __init__(self, source):
        text = _program(source)
        strict = ("-O1", "-Wall", "-Wextra", "-Werror") if EMULATED_GEMM in text else ("-O0", "-w")
        self._library = compiled(text, Code.folder, "-ffp-contract=off", *strict)

    @classmethod
    def from_cubin(cls, source, *, name):
        return cls(source.decode())

    def get_kernel(self, name):
        return SimpleNamespace(handle=getattr(self._library, f"run_{name}"))


def _program(source):
    """A CUDA source as a C++ program with a function for each kernel."""
    if "BLOCKS_PER_MULTIPROCESSOR)\n    gemm(" in source:  # emulated_gemm.cu, which has a function for processors
        return source + EMULATED_GEMM
    names = re.findall(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(', source)
    macros = re.findall(r"^(COPY|PARTS|COMBINE)\((\w+),", source, re.MULTILINE)  # of strided_copy.cu
    names = [n for n in names if not n.endswith("##BYTES") and n != "copy"]
    names += [f"{macro.lower()}{n}" if n.isdigit() else n for macro, n in macros]
    rows = [row for row in instructions.rows() if f"{instructions.instruction(row).ptx} " in source]
    parts = [SHIM, source]
    if rows:
        source = source.replace("extern __shared__", "extern").replace('#include "hopper.cuh"', TMA)
        source = re.sub(r"#define ISSUE .*", "#define ISSUE simulated_mma(c, a, b)", source)
        parts = ['#include "arithmetic.cuh"', emulation.definition(rows[0]), '#include "mma_on_cpu.h"', SHIM, source]
        parts += [FRAGMENTS] if "split_gemm" in names else []
    return "\n".join([*parts, *(f"FPEMU_KERNEL({name})" for name in names)])


class Driver(simulated_driver.Driver):
    """The simulated driver with poisoned memory, whose launches run; it captures no graphs."""

    def cuMemAlloc(self, nbytes):  # noqa: N802
        status, pointer = super().cuMemAlloc(nbytes)
        ctypes.memset(pointer, device.POISON, nbytes)
        return status, pointer

    def cuLaunchKernelEx(self, config, function, arguments, extra):  # noqa: N802
        function(ctypes.c_uint(config.gridDimX), ctypes.c_uint(config.blockDimX), ctypes.c_void_p(arguments))
        return (simulated_driver.SUCCESS,)

    def cuKernelGetFunction(self, kernel):  # noqa: N802
        return simulated_driver.SUCCESS, kernel

    def cuStreamBeginCapture(self, stream, mode):  # noqa: N802
        return (simulated_driver.real.CUresult.CUDA_ERROR_NOT_SUPPORTED,)

    def cuTensorMapEncodeTiled(self, kind, rank, pointer, shape, strides, box, *more):  # noqa: N802
        result, itemsize = simulated_driver.real.CUtensorMap(), 128 // int(box[0])
        assert [int(s) for s in strides] == [int(shape[0]) * itemsize, int(shape[0]) * int(shape[1]) * itemsize]
        values = np.uint64([int(pointer), itemsize, int(shape[1]), int(shape[0]), int(box[1])])
        ctypes.memmove(result.getPtr(), values.ctypes.data, values.nbytes)
        return simulated_driver.SUCCESS, result


def stand_in(patch, folder, capability=(9, 0)):
    """Put this machine in the place of a GPU, by a pytest MonkeyPatch; libraries are kept in a folder."""
    Code.folder, driver = folder, Driver()
    gpu = SimpleNamespace(**{**vars(simulated_driver.GPU), "name": "this processor", "compute_capability": capability})
    forget()
    for name, simulation in (simulated_driver.CORE | {"Device": lambda number: gpu, "ObjectCode": Code}).items():
        patch.setattr(core, name, simulation)
    simulated_driver.Stream.waits.clear()
    patch.setattr(device, "bindings", lambda: driver)
    patch.setattr(modules, "cubin", lambda source, arch, name: source.encode())
    patch.setattr(compilation, "compile_all", lambda sources, arch: None)
    return driver


forget = gpu_fixtures.forget


@pytest.fixture
def processor(tmp_path_factory, monkeypatch):
    """A function that puts this machine in the place of a GPU of a compute capability."""
    if emulation.compiler() is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.getbasetemp() / "kernels"
    folder.mkdir(exist_ok=True)
    yield partial(stand_in, monkeypatch, folder)
    forget()


# --- steps, on this processor in a GPU's place or on a GPU
def split(kernel, operands, policy):
    """Split operands (array, name) by a kernel or splitter; return the prepared ones and a reader of their blocks."""
    memory, given = Memory("prepared"), {name: _matrix(x) for x, name in operands}
    layouts = matrices.layouts(*map(given.get, "ABCD"))
    prepared = [Prepared(X, name) for name, X in layouts.items() if X is not None]
    steps = kernel.split(prepared, policy, memory)
    plan = Plan(steps, memory)
    held = device.Buffer.poisoned(plan.prepared)
    _queue(plan, [given[name].pointer if name in given else 0 for name in "ABCD"], held.pointer)

    def read(block, shape, dtype):
        return device.fetch(held.pointer + getattr(block, "pointer", block).offset, shape, dtype)

    return prepared, read


def multiply(kernel, A, B, C=None, *, alpha=1.0, beta=0.0, policy="propagate", calls=1):
    """Run a kernel's steps on arrays of the CPU into poisoned memory."""
    shape, memory = (*np.broadcast_shapes(A.shape[:-2], B.shape[:-2]), A.shape[-2], B.shape[-1]), Memory()
    given = {name: None if x is None else _matrix(x) for name, x in (("A", A), ("B", B), ("C", C))}
    given["D"] = matrices.empty(shape, np.float32)
    given["D"].owner.fill(device.POISON)
    steps, mark = kernel.steps(matrices.layouts(*map(given.get, "ABCD")), (alpha, beta), policy, memory)
    plan = Plan(steps, memory, mark, (Label("A", ()), Label("B", ())))
    for _ in range(calls):
        _queue(plan, [0 if X is None else X.pointer for X in given.values()])
    return matrices.download(given["D"])


def _queue(plan, pointers, prepared=0):
    with lock:
        plan.queue(plan.addresses(pointers, 0, prepared)[0])


def _matrix(x):
    if isinstance(device.bindings(), Driver):
        return Matrix(x.ctypes.data, x.dtype, x.shape, tuple(s // x.itemsize for s in x.strides), x)
    return matrices.upload(x)


def view(X):
    """A matrix of the stand-in's memory as an array."""
    size = X.dtype.itemsize
    last = sum((n - 1) * s for n, s in zip(X.shape, X.strides, strict=True) if n)
    memory = (ctypes.c_uint8 * ((last + 1) * size)).from_address(X.pointer)
    flat = np.frombuffer(memory, X.dtype)
    return np.lib.stride_tricks.as_strided(flat, X.shape, [s * size for s in X.strides])


# --- a kernel that emulates
class Emulated(Kernel):
    """A kernel that multiplies the words in memory by the emulator: in the place of the GPU's."""

    def __init__(self, scheme, spec, order):
        self.name, self.scheme, self.spec, self.order = "emulated", scheme, spec, order
        self.splitter = Splitter(scheme.rules(), scheme.scaling, words=True)

    def multiply(self, a, b, end, memory):
        operands = [0 if x is None else x for y in (a, b) for x in (*y.words, y.exponents)]

        def run(grid, threads, arguments):
            places = (ctypes.c_uint64 * (len(operands) + 2)).from_address(arguments.value)
            self._multiply(a, b, end, [ctypes.c_uint64.from_address(at).value for at in places])

        module = SimpleNamespace(function=lambda name, shared: run)
        pointers = (*operands, 0 if end.C is None else end.C.pointer, end.D.pointer)
        return [Launch(module, "emulated", 1, 1, pointers)]

    def _multiply(self, a, b, end, pointers):
        *pointers, at_c, at_d = pointers
        count = len(a.words) + 1
        with np.errstate(all="ignore"):
            A, B = (self._words(x, at) for x, at in ((a, pointers[:count]), (b, pointers[count:])))
            T = lowering.run(A, B, self.scheme.lowering(self.spec, self.order), self.spec)
            ends = (a, pointers[count - 1]), (b, pointers[-1])
            ready = [words.Prepared(np.zeros(0), (), self._exponents(x, at), None) for x, at in ends]
            c = None if end.C is None else view(_at(end.C, at_c))
            T = base.scaled(words.undo(T, *ready), c, end.alpha, end.beta)
            d = np.broadcast_to(T, end.D.shape).copy()
        d.view(np.uint32)[np.isnan(d)] = self.scheme.nan_code(self.spec)
        view(_at(end.D, at_d))[...] = d

    def _words(self, x, pointers):
        fmt, found = self.scheme.rules()[0].format, []
        for _, pointer in zip(x.words, pointers, strict=False):
            codes = device.fetch(pointer, (*x.source.shape[:-2], x.rows, x.pitch), fmt.code_dtype)
            values = np.asarray(fmt.decode(codes[..., : x.K]))
            assert not codes[..., x.K :].any()
            found.append(values if x.name == "A" else values.swapaxes(-1, -2))
        return found

    def _exponents(self, x, pointer):
        if x.exponents is None:
            return np.zeros((1, 1), np.int32)
        e = device.fetch(pointer, (*x.source.shape[:-2], x.rows), np.int32)
        return e[..., :, None] if x.name == "A" else e[..., None, :]


def _at(X, pointer):
    return Matrix(pointer, X.dtype, X.shape, X.strides)


def emulated_kernels(patch):
    """`Emulated` in place of all kernels of split schemes."""
    patch.setattr(choice, "BUILDERS", (lambda scheme, spec, sizes, order: Emulated(scheme, spec, order),))
