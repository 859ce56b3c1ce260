"""Arrays in the GPU's memory: passed to other libraries without a copy, fetched in parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.seeded import fetch
from fpemu.gpu.runtime import device


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """Memory with a shape, for readers of ``__cuda_array_interface__``."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns: bool = False  # the last two axes are stored by columns; all others in C order
    owner: object = None  # referenced, so that the memory is not freed

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        steps = [self.dtype.itemsize * math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        if self.columns:
            steps[-2:] = [self.dtype.itemsize, self.dtype.itemsize * self.shape[-2]]
        return tuple(steps)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": self.strides if self.columns else None,
            "version": 3,
            "stream": 1,
        }

    def row(self, number: int) -> NDArray[Any]:
        """Fetch a row of a matrix."""
        return self._line(self.shape[1], number * self.strides[0], self.strides[1])

    def column(self, number: int) -> NDArray[Any]:
        """Fetch a column of a matrix."""
        return self._line(self.shape[0], number * self.strides[1], self.strides[0])

    def _line(self, count: int, offset: int, step: int) -> NDArray[Any]:
        """Fetch elements that begin `step` bytes apart, after all queued work."""
        pointer, size = self.pointer + offset, self.dtype.itemsize
        if step == size:
            return fetch(pointer, 0, count, self.dtype)
        from cuda.bindings import driver

        out = np.empty(count, self.dtype)
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice, copy.srcPitch = pointer, step
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.dstHost, copy.dstPitch = out.ctypes.data, size
        copy.WidthInBytes, copy.Height = size, count
        device.synchronize()
        device.check(device.driver().cuMemcpy2D(copy))
        return out
