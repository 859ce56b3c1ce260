"""The GPU as the error-free schemes use it: named buffers that persist between calls, kernels, and cuBLAS."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import callers, compiler, cublas, device
from fpemu.gpu.runtime.device import Buffer, OutOfMemoryError
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


class Workspace:
    """Buffers by name, which persist between calls and are replaced where one is too small."""

    def __init__(self, machine: Device) -> None:
        self.machine = machine
        self._buffers: dict[str, Buffer] = {}
        self._tables: dict[bytes, Buffer] = {}

    def get(self, name: str, nbytes: int) -> Buffer:
        """Return a buffer of at least some bytes, whose content is undefined."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            if buffer is not None:
                self._buffers.pop(name).free()
            try:
                buffer = self._buffers[name] = self.machine.memory(max(nbytes, 16))
            except OutOfMemoryError:
                held = sum(other.nbytes for other in self._buffers.values())
                raise OutOfMemoryError(
                    f"out of memory: {nbytes / 1e9:.2f} GB are needed for {name} beside {held / 1e9:.2f} GB of other "
                    f"work space, and {self.machine.room() / 1e9:.2f} GB are free: "
                    "multiply fewer rows of A or columns of B at a time",
                    nbytes,
                ) from None
        return buffer

    def held(self, name: str) -> int:
        """Return the bytes of the buffer of this name."""
        return self._buffers[name].nbytes if name in self._buffers else 0

    def zeros(self, name: str, nbytes: int) -> Buffer:
        """Return a buffer filled with zeros."""
        buffer = self.get(name, nbytes)
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
        for buffer in (*self._buffers.values(), *self._tables.values()):
            buffer.free()
        self._buffers.clear()
        self._tables.clear()


@lru_cache(maxsize=64)
def _module(source: str) -> device.Module:
    return device.Module(source, name="errorfree.cu")


@per_device()
def workspace() -> Workspace:
    """Return the workspace that calls on the current GPU share; `workspace().free()` frees its memory."""
    return Workspace(Device())
