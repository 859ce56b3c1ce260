"""CUDA sources, compiled for the architectures of the GPUs that use them and loaded: their kernels and launches."""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import lru_cache
from typing import Any

from fpemu.errors import GpuError
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.compiler import check, cubin, first_line
from fpemu.gpu.runtime.device import current, multiprocessors
from fpemu.gpu.runtime.steps import Launch


class Module:
    """A source, compiled for the architectures of the GPUs that use it, and loaded; `name` is for error messages."""

    def __init__(self, source: str, *, name: str = "kernel.cu") -> None:
        self.source, self.name = source, name
        self._code: dict[str, Any] = {}
        self._functions: dict[tuple[int, str], Any] = {}
        weakref.finalize(self, _release, self._code, self._functions).atexit = False

    def function(self, name: str, shared: int = 0) -> Any:
        """Return the CUfunction of an ``extern "C"`` kernel that may use `shared` bytes of dynamic shared memory."""
        cuda, key = device.driver(), (current(), name)
        if key not in self._functions:
            from cuda.core import ObjectCode

            target = device.arch()
            try:
                if target not in self._code:
                    code = cubin(self.source, target, name=self.name)
                    self._code[target] = ObjectCode.from_cubin(code, name=self.name)
                handle = self._code[target].get_kernel(name).handle
            except Exception as problem:  # the exceptions of cuda.core are not public
                raise GpuError(f"CUDA: {first_line(problem)}") from None
            self._functions[key] = check(cuda.cuKernelGetFunction(handle))
        if shared > 48 * 1024:
            limit = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cuda.cuFuncSetAttribute(self._functions[key], limit, shared))
        return self._functions[key]

    def step(self, kernel: str, grid: Any, block: Any, *arguments: Any, **options: Any) -> Launch:
        """Return a launch of a kernel; the parameters are those of `fpemu.gpu.runtime.steps.Launch`."""
        return Launch(self, kernel, grid, block, arguments, **options)

    def clusters(self, name: str, size: int, threads: int, shared: int) -> int:
        """Return the number of clusters of `size` thread blocks of a kernel that fit on the GPU at once.

        One thread block of these kernels fits on a multiprocessor. Without a GPU it is the number for an H200.
        """
        if size == 1 or device.missing() is not None:
            return multiprocessors() // size
        config = configuration(size, threads, shared, size, overlap=False)
        return int(check(device.driver().cuOccupancyMaxActiveClusters(self.function(name, shared), config)))


def _release(code: dict[str, Any], functions: dict[tuple[int, str], Any]) -> None:
    """Release the code of a module once its kernels have ended."""
    for index in {index for index, _ in functions}:
        with suppress(Exception):
            device.release_later(code, index)


@lru_cache(maxsize=2048)
def module(source: str, name: str) -> Module:
    """Return the module of a source."""
    return Module(source, name=name)


def configuration(grid: Any, block: Any, shared: int, cluster: int, overlap: bool) -> Any:
    """Return a launch's CUlaunchConfig; the parameters are those of `fpemu.gpu.runtime.steps.Launch`."""
    cuda = device.driver()
    config, attributes, kinds = cuda.CUlaunchConfig(), [], cuda.CUlaunchAttributeID
    for name, size in (("gridDim", grid), ("blockDim", block)):
        sizes = size if isinstance(size, tuple) else (size,)
        for axis, length in zip("XYZ", (*sizes, 1, 1), strict=False):
            setattr(config, name + axis, int(length))
    config.sharedMemBytes = shared
    if cluster > 1:
        attribute, value = cuda.CUlaunchAttribute(), cuda.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
        attribute.id, attribute.value = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value
        attributes.append(attribute)
    if overlap:
        attribute, value = cuda.CUlaunchAttribute(), cuda.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute.id, attribute.value = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config
