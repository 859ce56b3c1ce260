"""Buffers of the GPU in host memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fpemu.gpu.runtime import device

HERE = Path(__file__).parent


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
