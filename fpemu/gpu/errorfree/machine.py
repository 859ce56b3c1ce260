"""The GPU as the error-free schemes use it: named buffers that persist between calls, kernels, and cuBLAS."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import callers, compiler, cublas, device, modules
from fpemu.gpu.runtime import workspace as workspaces
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.selection import per_device

source = lru_cache(maxsize=16)(compiler.kernel_source)


def int32(*values: int) -> tuple[np.int32, ...]:
    """Return kernel arguments of type int."""
    return tuple(np.int32(value) for value in values)


class Device:
    """The GPU with cuBLAS; the tests pass a CPU with the same methods."""

    memory, upload, room = Buffer, staticmethod(Buffer.of), staticmethod(callers.free_bytes)

    def __init__(self) -> None:
        self._blas = cublas.blas()

    def gemm(self, *args: Any, **options: Any) -> None:
        """Queue a product: `cublas.Blas.gemm`."""
        self._blas.gemm(*args, **options)

    def fill(self, buffer: Buffer, byte: int, nbytes: int) -> None:
        """Set bytes, in order with the kernels."""
        device.check(device.driver().cuMemsetD8Async(buffer.pointer, byte, nbytes, 0))

    def launch(self, source: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Queue a kernel of a source."""
        _module(source).launch(kernel, grid, block, *args, shared=shared, wait=False)


class Workspace(workspaces.Workspace):
    """A workspace with the kernels and constants of a GPU."""

    def __init__(self, machine: Device) -> None:
        super().__init__(machine.memory, machine.room)
        self.machine = machine
        self._tables: dict[bytes, Buffer] = {}

    def zeros(self, name: str, nbytes: int) -> Buffer:
        """Return a buffer filled with zeros."""
        buffer: Buffer = self.get(name, nbytes)
        self.machine.fill(buffer, 0, nbytes)
        return buffer

    def table(self, array: NDArray[Any]) -> Buffer:
        """Return a small constant array on the GPU, uploaded once."""
        key = array.dtype.str.encode() + array.tobytes()
        if key not in self._tables:
            if len(self._tables) > 256:
                self._tables.clear()
            self._tables[key] = self.machine.upload(array)
        return self._tables[key]

    def launch(self, file: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Queue a kernel of ``kernels/<file>``."""
        self.machine.launch(source(file), kernel, grid, block, *args, shared=shared)

    def free(self) -> None:
        """Free all buffers."""
        super().free()
        for buffer in self._tables.values():
            buffer.free()
        self._tables.clear()


@lru_cache(maxsize=64)
def _module(source: str) -> modules.Module:
    return modules.Module(source, name="errorfree.cu")


@per_device()
def workspace() -> Workspace:
    """Return the workspace that calls on the current GPU share; `workspace().free()` frees its memory."""
    return Workspace(Device())
