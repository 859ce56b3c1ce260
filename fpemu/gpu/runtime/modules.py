"""CUDA sources, compiled for the architectures of the GPUs that use them and loaded: their kernels and launches."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fpemu.errors import GpuError
from fpemu.gpu.runtime import device, launches
from fpemu.gpu.runtime.compiler import check, compile_cached, first_line
from fpemu.gpu.runtime.selection import current

__all__ = ["Module"]


class Module:
    """A source, compiled for the architectures of the GPUs that use it, and loaded.

    Parameters
    ----------
    source, name : str
        Source and its name in the compiler's messages, as in `fpemu.gpu.runtime.compiler.compile_cached`.
    """

    def __init__(self, source: str, *, name: str = "kernel.cu") -> None:
        self._source, self._name = source, name
        self._code: dict[str, Any] = {}
        self._functions: dict[tuple[int, str], Any] = {}
        self._object_code()

    def __del__(self) -> None:
        for index in {index for index, _ in self._functions}:  # kernels of the code may still run
            with suppress(Exception):
                device.release_later(self._code, index)

    def _object_code(self) -> Any:
        """Return the code for the current GPU's architecture."""
        from cuda.core import ObjectCode

        target = device.arch()
        if target not in self._code:
            cubin = compile_cached(self._source, target, name=self._name)
            self._code[target] = ObjectCode.from_cubin(cubin, name=self._name)
        return self._code[target]

    def function(self, name: str, shared: int = 0) -> Any:
        """Return the CUfunction of an ``extern "C"`` kernel that may use `shared` bytes of dynamic shared memory."""
        cuda, key = device.driver(), (current(), name)
        if key not in self._functions:
            try:
                handle = self._object_code().get_kernel(name).handle
            except Exception as problem:  # the exceptions of cuda.core are not public
                raise GpuError(f"CUDA: {first_line(problem)}") from None
            self._functions[key] = check(cuda.cuKernelGetFunction(handle))
        if shared > 48 * 1024:
            limit = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cuda.cuFuncSetAttribute(self._functions[key], limit, shared))
        return self._functions[key]

    def prepare(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *args: Any,
        shared: int = 0,
        cluster: int = 1,
        overlap: bool = False,
        keep: object = None,
    ) -> launches.Launch:
        """Return a launch that can be queued any number of times.

        The parameters are those of `launch`; `keep` is referenced by the result: the owners of the memory that pointers
        within structs refer to.
        """
        function = self.function(name, shared)
        config = launches.configuration(grid, block, shared, cluster, overlap)
        return launches.Launch(function, config, args, (self, keep), name)

    def launch(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *args: Any,
        shared: int = 0,
        wait: bool = True,
        stream: int = 0,
        cluster: int = 1,
        overlap: bool = False,
    ) -> None:
        """Run a kernel and wait for it.

        Parameters
        ----------
        name : str
        grid, block : int or tuple of up to three
        *args : Buffer (its pointer), NumPy scalar or one-element array of the parameter's own type (structs too);
            a Python int is a `long long`, a float a `double`
        shared : int
            Bytes of dynamic shared memory.
        wait : bool
            False: the kernel is only queued; `synchronize` reports its failure.
        stream : int
            Handle of a stream of PyTorch, CuPy or CUDA; 0: the default stream.
        cluster : int
            Thread blocks in a cluster, along x.
        overlap : bool
            The kernel may start before the one queued before it has ended: it waits by itself where it has to.

        Raises
        ------
        GpuError
            If the launch or the kernel fails.
        """
        self.prepare(name, grid, block, *args, shared=shared, cluster=cluster, overlap=overlap).queue(stream)
        if wait:
            device.synchronize(stream)

    def clusters(self, name: str, size: int, threads: int, shared: int) -> int:
        """Return the number of clusters of `size` thread blocks of a kernel that fit on the GPU at once."""
        config = launches.configuration(size, threads, shared, size, False)
        return int(check(device.driver().cuOccupancyMaxActiveClusters(self.function(name, shared), config)))
