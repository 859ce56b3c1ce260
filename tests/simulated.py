"""A simulated GPU: kernels compiled for this CPU (cuda_on_cpu.h), buffers in host memory."""

from __future__ import annotations

import ctypes
import re
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import device, launches, recording
from fpemu.gpu.runtime.compiler import KERNELS

HERE = Path(__file__).parent


class Buffer:
    """Simulate `fpemu.gpu.runtime.device.Buffer` in host memory, poisoned."""

    def __init__(self, nbytes, where=None):
        if (record := recording.active()) is not None:
            self.nbytes, self.pointer = nbytes, record.allocate(nbytes, where)
            return
        self.nbytes, raw = nbytes, np.full(max(nbytes, 16) + 128, device.POISON, np.uint8)
        self.memory = raw[-raw.ctypes.data % 64 :][: max(nbytes, 16)]
        self.pointer = self.memory.ctypes.data

    @classmethod
    def of(cls, array):
        array = np.ascontiguousarray(array)
        with recording.immediately():
            buffer = cls(array.nbytes)
        buffer.memory[: array.nbytes] = array.reshape(-1).view(np.uint8)
        return buffer

    @classmethod
    def zeroed(cls, nbytes):
        buffer = cls(nbytes, "zeros")
        if recording.active() is None:
            buffer.fill(0)
        return buffer

    @classmethod
    def poisoned(cls, nbytes, byte=device.POISON):
        buffer = cls(nbytes)
        buffer.fill(byte)
        return buffer

    def fill(self, byte):
        if (record := recording.active()) is not None:
            record.steps.append(recording.Fill(self.pointer, byte, self.nbytes))
        else:
            self.memory[:] = byte

    def array(self, shape, dtype):
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        assert count <= self.nbytes
        return self.memory[:count].copy().view(dtype).reshape(shape)

    def free(self):
        del self.memory


class Module:
    """Simulate `fpemu.gpu.runtime.modules.Module` for kernels of mma.sync."""

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
    done = subprocess.run(
        [str(emulation.compiler()), *flags, str(file), "-o", str(library)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[:6000])
    return str(library)
