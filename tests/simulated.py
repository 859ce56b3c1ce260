"""Buffers of the GPU in host memory, and kernels compiled for this processor."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from pathlib import Path

import numpy as np

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.compiler import KERNELS

HERE = Path(__file__).parent


def compiled(text, folder, *flags):
    """Compile a C++ text, which may include the headers of the kernels and the tests, once in a folder; load it."""
    stem = Path(folder, hashlib.sha256("".join([text, *flags]).encode()).hexdigest()[:16])
    source, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
    if not library.exists():
        source.write_text(text)
        command = [emulation.compiler(), "-std=c++17", "-shared", "-fPIC", *flags, f"-I{KERNELS}", f"-I{HERE}"]
        if "clang" not in command[0]:  # GCC shares static variables of inline functions between libraries, of any sizes
            command.append("-fno-gnu-unique")
        done = subprocess.run([*command, str(source), "-o", str(library)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


class Buffer:
    """Simulate `fpemu.gpu.runtime.device.Buffer` in host memory, poisoned."""

    def __init__(self, nbytes):
        self.nbytes, raw = nbytes, np.full(max(nbytes, 16) + 128, device.POISON, np.uint8)
        self.memory = raw[-raw.ctypes.data % 64 :][: max(nbytes, 16)]
        self.pointer = self.memory.ctypes.data

    @classmethod
    def of(cls, array):
        array = np.ascontiguousarray(array)
        buffer = cls(array.nbytes)
        buffer.memory[: array.nbytes] = array.reshape(-1).view(np.uint8)
        return buffer

    @classmethod
    def poisoned(cls, nbytes, byte=device.POISON):
        buffer = cls(nbytes)
        buffer.fill(byte)
        return buffer

    def fill(self, byte):
        self.memory[:] = byte

    def array(self, shape, dtype):
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        assert count <= self.nbytes
        return self.memory[:count].copy().view(dtype).reshape(shape)

    def free(self):
        del self.memory
