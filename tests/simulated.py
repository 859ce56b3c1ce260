"""A GPU for tests where there is none: modules compiled for this processor (cuda_on_cpu.h), buffers in its memory."""

from __future__ import annotations

import ctypes
import re
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import device, launches
from fpemu.gpu.runtime.compiler import KERNELS

HERE = Path(__file__).parent


class Buffer:
    """As `fpemu.gpu.runtime.device.Buffer`."""

    def __init__(self, nbytes, of=None):
        self.nbytes = nbytes
        self.memory = np.full(max(nbytes, 16) + 16, device.POISON, np.uint8)
        start = -self.memory.ctypes.data % 16
        self.memory = self.memory[start:]
        if of is not None:
            self.memory[:nbytes] = np.frombuffer(of.tobytes(), np.uint8)
        self.pointer = self.memory.ctypes.data

    @classmethod
    def of(cls, array):
        return cls(array.nbytes, np.ascontiguousarray(array))

    def array(self, shape, dtype):
        count = int(np.prod(shape))
        return np.frombuffer(self.memory[: count * np.dtype(dtype).itemsize].tobytes(), dtype).reshape(shape)


class Module:
    """As `fpemu.gpu.runtime.device.Module`, for kernels of mma.sync on the rows in `specs`."""

    folder = None  # where libraries go
    spec = None  # the instruction that the kernels issue

    def __init__(self, source, *, name="kernel.cu"):
        self._library = ctypes.CDLL(_build(source, Module.spec, Module.folder))

    def launch(self, name, grid, block, *args, shared=0, wait=True, stream=0):
        packed = [launches.pack(a) for a in args]
        pointers = np.array([p.ctypes.data for p in packed], np.uint64)
        assert shared <= 1 << 18
        function = getattr(self._library, f"run_{name}")
        function(ctypes.c_uint(grid), ctypes.c_uint(block), ctypes.c_void_p(pointers.ctypes.data))


_COLLECTIVES = """
void multiply_add(Sum& c, const u32 (&a)[A_WORDS], const u32 (&b)[B_WORDS]) { simulated_mma(c.word, a, b); }
void load_rows(u32 (&r)[4], const u8* row) { rows_of_lanes(r, row); }
void load_rows(u32 (&r)[2], const u8* row) { rows_of_lanes(r, row); }
"""


@cache
def _build(source, spec, folder):
    names = re.findall(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(', source)
    source = source.replace("extern __shared__", "extern")
    source = re.sub(r"#define ISSUE .*", "#define ISSUE simulated_mma(c, a, b)", source)
    parts = ['#include "arithmetic.cuh"', emulation.definition(spec), '#include "mma_on_cpu.h"', source]
    parts += [_COLLECTIVES] if "split_gemm" in names else []
    number = len(list(folder.glob("*.cpp")))
    file, library = folder / f"kernel{number}.cpp", folder / f"kernel{number}.so"
    file.write_text("\n".join([*parts, *(f"FPEMU_KERNEL({name})" for name in names)]))
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-w", "-ffp-contract=off", f"-I{HERE}", f"-I{KERNELS}"]
    done = subprocess.run([emulation.compiler(), *flags, str(file), "-o", str(library)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[:6000])
    return str(library)
