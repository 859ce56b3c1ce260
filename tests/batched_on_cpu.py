"""The batched kernels on the CPU in place of a GPU: built once in a session, on matrices between fences."""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda import core

from fpemu import batched, mma
from fpemu.gpu.batched import products
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import compiler, device
from fpemu.verification.batched import SPECIAL
from tests import cuda_on_cpu, simulated_driver

needs_compiler = pytest.mark.skipif(
    emulation.compiler() is None or not hasattr(os, "fork"), reason="no C++ compiler here, or no processes to fork"
)

_KERNELS = ("batched_block", "batched_warp", "batched_packed", "batched_small")


class Code(cuda_on_cpu.Code):
    """Simulate `cuda.core.ObjectCode`: a batched kernel, which aborts if it reads or writes what it must not.

    bounds: what may be read, besides constants; None: everything. most: thread blocks that alternate over products.
    ends: only the first and the last thread block run.
    """

    bounds: Any = None
    most: Any = None
    ends = False

    def __init__(self, source):
        self.name = next((name for name in _KERNELS if f" {name}(" in source), None)
        if self.name is None:  # a copy
            super().__init__(source)
        else:
            self.persistent = "PERSISTENT = true" in source
            self._library = ctypes.CDLL(_built(source, self.name))

    def get_kernel(self, name):
        return SimpleNamespace(handle=self.run) if self.name else super().get_kernel(name)

    def run(self, config, arguments):
        bounds = np.array(Code.bounds or [], np.uint64)
        self._library.only(ctypes.c_void_p(bounds.ctypes.data), len(bounds))
        run = getattr(self._library, "run_ends" if Code.ends else f"run_{self.name}")
        grid = min(config.gridDimX, Code.most) if Code.most and self.persistent else config.gridDimX
        run(ctypes.c_uint(grid), ctypes.c_uint(config.blockDimX), ctypes.c_void_p(arguments))
        if self.name == "batched_block":  # nothing is written beyond the launch's shared memory
            memory = (ctypes.c_ubyte * (1 << 18)).in_dll(self._library, "memory")
            if (np.frombuffer(memory, np.uint8)[config.sharedMemBytes :] != 0x7E).any():
                os.abort()


class Driver(cuda_on_cpu.Driver):
    """The simulated driver, which runs batched kernels with a launch's shared memory."""

    def cuLaunchKernelEx(self, config, function, arguments, extra):  # noqa: N802
        if not isinstance(getattr(function, "__self__", None), Code):
            return super().cuLaunchKernelEx(config, function, arguments, extra)
        function(config, arguments)
        return (simulated_driver.SUCCESS,)


@cache
def _folder():
    """Of this session's libraries, with what all have in common compiled already."""
    made = Path(tempfile.mkdtemp(prefix="batched"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    (made / "common.h").write_text('#include "arithmetic.cuh"\n#include "cuda_on_cpu.h"\n')
    compile_cpp("-x", "c++-header", str(made / "common.h"), "-o", str(made / "common.h.gch"))
    return made


def compile_cpp(*arguments):
    flags = ["-std=c++17", "-O0", "-fPIC", "-w", "-ffp-contract=off", f"-I{Path(__file__).parent}"]
    command = [emulation.compiler(), *flags, f"-I{compiler.KERNELS}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def library(text, *flags):
    """Compile a C++ text after the common headers."""
    stem = _folder() / f"kernel{len(list(_folder().glob('*.cpp')))}"
    stem.with_suffix(".cpp").write_text(text)
    common = ("-include", str(_folder() / "common.h"))
    compile_cpp(*common, *(flags or ("-shared",)), str(stem.with_suffix(".cpp")), "-o", str(stem.with_suffix(".so")))
    return str(stem.with_suffix(".so"))


def head(source):
    """What comes before the kernel's text, for a C++ compiler."""
    spec = mma.spec("hopper", "fp16", "fp16" if "FPEMU_HALF_SUMS 1" in source else "fp32", "mma")
    return "\n".join([emulation.definition(spec), '#include "batched_on_cpu.h"', source[: source.index("\n};") + 3]])


@cache
def _built(source, name):
    rest = source[source.index("\n};") + 3 :]
    stand_ins = f'#define {name.upper()}\n#include "batched_on_cpu.h"\nFPEMU_KERNEL({name})'
    return library("\n".join([head(source), rest, stand_ins]))


@pytest.fixture(scope="module")
def gpu():
    """This processor in place of an H200."""
    with pytest.MonkeyPatch.context() as patch:
        cuda_on_cpu.stand_in(patch, _folder())
        driver = Driver()
        patch.setattr(core, "ObjectCode", Code)
        patch.setattr(device, "bindings", lambda: driver)
        yield driver
        cuda_on_cpu.forget()


class Foreign:
    """An array of another GPU library."""

    def __init__(self, x, stream=None):
        self.x = x
        self.__cuda_array_interface__ = {
            "shape": x.shape,
            "strides": x.strides,
            "typestr": x.dtype.str,
            "data": (x.ctypes.data, False),
            "version": 3,
            "stream": stream,
        }


def differing(A, B, C=None, *, configuration, layout=None, pointers=False, **options):
    """How many outputs are not the emulator's, of matrices between fences."""
    of_kernel = {} if options.get("kernel") == "magma-small" else {"hardware": "hopper", "instruction": "mma"}
    emulator = batched.hgemm if layout is None else batched.hcgemm
    how = {} if layout is None else {"layout": layout}
    want = emulator(A, B, C, **options, **of_kernel, **how)
    poison = np.zeros(want.shape, np.float16)
    poison.view(np.uint16)[...] = 0xABAB
    wrong = 0
    for at_end in (True, False):
        *operands, D = (None if X is None else fenced(X, at_end) for X in (A, B, C, poison))
        given = [None if X is None else [Foreign(x) for x in X] if pointers else Foreign(X) for X in operands]
        arrays = {n: X for n, X in zip("ABC", given, strict=True) if X is not None} | {"out": Foreign(D)}
        queue = products.BatchedRequest(layout, configuration=configuration, **options).queued(arrays)
        read = [X for X in operands if X is not None] + [D] * (layout == "planar")
        run(queue, read)
        assert untouched(D), "something beside the result was written"
        wrong += int(np.count_nonzero(D.view(np.uint16) != want.view(np.uint16)))
    return wrong


def run(call, read):
    """Make a call in a process that dies if a fence is touched, or a byte that is in no array of `read`."""
    child = os.fork()
    if not child:
        try:
            Code.bounds = [np.lib.array_utils.byte_bounds(X) for X in read]
            call()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "something outside of the matrices was touched"


def fenced(x, at_end):
    """Copy an array to the end or the beginning of pages that lie between two inaccessible pages.

    Forked processes share the copy.
    """
    low, high = np.lib.array_utils.byte_bounds(x)
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    pages = -(-(high - low) // page)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    base = libc.mmap(None, (pages + 2) * page, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    for fence in (base, base + (pages + 1) * page):
        assert libc.mprotect(fence, page, 0) == 0
    start = base + page + (pages * page - (high - low) if at_end else 0)
    ctypes.memset(base + page, 0xCD, pages * page)
    ctypes.memmove(start, low, high - low)
    return np.ndarray(x.shape, x.dtype, (ctypes.c_char * (high - low)).from_address(start), 0, x.strides)


def untouched(x):
    """Whether the pages of a fenced array are as they were, beside it."""
    low, high = np.lib.array_utils.byte_bounds(x)
    begin, end = low // mmap.PAGESIZE * mmap.PAGESIZE, -(-high // mmap.PAGESIZE) * mmap.PAGESIZE
    return ctypes.string_at(begin, low - begin) + ctypes.string_at(high, end - high) == bytes(
        [0xCD] * (low - begin + end - high)
    )


def hostile(rng, *shape):
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 7, shape))).astype(np.float16)
    wild = rng.random(shape) < 0.01
    x.view(np.uint16)[wild] = rng.choice(SPECIAL, int(wild.sum()))
    return x
