"""The GPU at hand: modules, launches whose errors are seen, buffers that show what was not written.

Everything goes through CUDA's driver interface (cuda-bindings) in the GPU's primary context, which PyTorch and CuPy
share. The compiler's functions are in `fpemu.gpu.runtime.compiler`, and here under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import GpuError
from fpemu.gpu.runtime import launches
from fpemu.gpu.runtime.compiler import (
    KERNELS,
    check,
    compile,
    compile_all,
    compile_cached,
    compiler_missing,
    first_line,
    kernel_source,
    version,
)

__all__ = [
    "KERNELS",
    "Buffer",
    "GpuError",
    "Launch",
    "Module",
    "OutOfMemoryError",
    "arch",
    "capability",
    "check",
    "collect",
    "compile",
    "compile_all",
    "compile_cached",
    "compiler_missing",
    "describe",
    "entered",
    "fetch",
    "kernel_source",
    "missing",
    "synchronize",
    "tensor_map",
]

POISON = 0xAB  # every byte of an output before a launch
_OTHER_POISON = 0x54  # what a second run starts from where the first returned the poison's own pattern


# --- what is here
@cache
def missing() -> str | None:
    """None if there is a GPU to run on, else in one line what is missing."""
    if compiler_missing() is not None:
        return compiler_missing()
    try:
        _context()
        capability()
    except Exception as problem:
        return f"no NVIDIA GPU is usable here ({first_line(problem)})"
    return None


@cache
def _context() -> Any:
    """The primary context of the first visible GPU."""
    cuda = _driver()
    check(cuda.cuInit(0))
    if check(cuda.cuDeviceGetCount()) == 0:
        raise GpuError("the driver sees no GPU")
    device = check(cuda.cuDeviceGet(0))
    return check(cuda.cuDevicePrimaryCtxRetain(device))


def _enter() -> Any:
    """The driver with this thread in the GPU's context."""
    cuda = _driver()
    check(cuda.cuCtxSetCurrent(_context()))
    return cuda


@contextmanager
def entered() -> Iterator[Any]:
    """The driver with this thread in the GPU's context; then in the one it was in, which torch and CuPy go by."""
    cuda = _driver()
    before, own = check(cuda.cuCtxGetCurrent()), _context()
    check(cuda.cuCtxSetCurrent(own))
    try:
        yield cuda
    finally:
        if int(before) not in (0, int(own)):
            check(cuda.cuCtxSetCurrent(before))


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


@cache
def capability() -> tuple[int, int]:
    """Compute capability of the GPU."""
    cuda = _enter()
    device = check(cuda.cuCtxGetDevice())
    kinds = cuda.CUdevice_attribute
    major = check(cuda.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = check(cuda.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    return int(major), int(minor)


def arch() -> str:
    """What to compile for on this GPU: "sm_80", "sm_89", "sm_90a", "sm_100a" ..."""
    major, minor = capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@cache
def describe() -> dict[str, str]:
    """The GPU, its driver and the compiler, for records."""
    cuda = _enter()
    name = check(cuda.cuDeviceGetName(128, check(cuda.cuCtxGetDevice())))
    driver = int(check(cuda.cuDriverGetVersion()))
    return {
        "gpu": name.split(b"\0")[0].decode(),
        "arch": arch(),
        "driver_cuda": f"{driver // 1000}.{driver % 1000 // 10}",
        "nvrtc": version(),
    }


# --- running
class Module:
    """A compiled source on the GPU.

    Parameters
    ----------
    source : str
    options : sequence of str
    name : str
        As in `compile`.
    """

    def __init__(self, source: str, *, options: Sequence[str] = (), name: str = "kernel.cu") -> None:
        cuda = _enter()
        self._cubin = compile_cached(source, arch(), options=options, name=name)
        self._module = check(cuda.cuModuleLoadData(self._cubin))
        self._kernels: dict[str, Any] = {}

    def __del__(self) -> None:
        with suppress(Exception), entered() as cuda:  # at the end of the process the driver may be gone
            check(cuda.cuCtxSynchronize())
            check(cuda.cuModuleUnload(self._module))

    def kernel(self, name: str, shared: int = 0) -> Any:
        """The kernel of an ``extern "C"`` function; `shared` bytes of dynamic shared memory are allowed to it."""
        cuda = _enter()
        if name not in self._kernels:
            self._kernels[name] = check(cuda.cuModuleGetFunction(self._module, name.encode()))
        if shared > 48 * 1024:
            most = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cuda.cuFuncSetAttribute(self._kernels[name], most, shared))
        return self._kernels[name]

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
    ) -> Launch:
        """A launch with its arguments, to be queued as often as one likes; parameters as those of `launch`.

        `keep` is kept alive with it: what owns the memory that the arguments point to.
        """
        cuda, function = _enter(), self.kernel(name, shared)
        packed = [launches.pack(a.pointer) if isinstance(a, Buffer) else launches.pack(a) for a in args]
        pointers = np.array([p.ctypes.data for p in packed], np.uint64)
        config = launches.configuration(cuda, grid, block, shared, cluster, overlap)
        return Launch(function, config, pointers, (packed, args, self, keep))

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
            False: only queue it; `synchronize` reports what went wrong.
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
            synchronize()

    def clusters(self, name: str, size: int, threads: int, shared: int) -> int:
        """How many clusters of `size` thread blocks of a kernel fit on the GPU at once."""
        cuda = _enter()
        config = launches.configuration(cuda, size, threads, shared, size, False)
        return int(check(cuda.cuOccupancyMaxActiveClusters(self.kernel(name, shared), config)))


class Launch:
    """A kernel with its arguments, which can be queued again and again; made by `Module.prepare`."""

    def __init__(self, function: Any, config: Any, pointers: NDArray[np.uint64], keep: object) -> None:
        self._function, self._config, self._keep = function, config, (pointers, keep)
        self._arguments, self._stream = pointers.ctypes.data, 0

    def queue(self, stream: int = 0) -> None:
        """Queue it on a stream."""
        if stream != self._stream:
            self._config.hStream = self._stream = stream
        check(_enter().cuLaunchKernelEx(self._config, self._function, self._arguments, 0))


def tensor_map(
    pointer: int, itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> NDArray[np.uint64]:
    """A tensor as Hopper's TMA wants it: see `fpemu.gpu.runtime.launches.tensor_map`."""
    return launches.tensor_map(_enter(), pointer, itemsize, shape, strides, box)


def synchronize() -> None:
    """Wait for everything launched; GpuError if any of it failed."""
    check(_enter().cuCtxSynchronize())


class OutOfMemoryError(GpuError):
    """The GPU has no room for a buffer of `nbytes`."""

    def __init__(self, text: str, nbytes: int) -> None:
        super().__init__(text)
        self.nbytes = nbytes


@dataclass
class Buffer:
    """Memory on the GPU; freed with the object, or by `free`.

    Parameters
    ----------
    nbytes : int
        The content is undefined: `of` and `poisoned` make buffers with one.

    Raises
    ------
    OutOfMemoryError
    """

    nbytes: int
    pointer: int = 0

    def __post_init__(self) -> None:
        status, pointer = _enter().cuMemAlloc(max(self.nbytes, 16))
        if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise OutOfMemoryError(f"CUDA: {status.name} ({self.nbytes:,} bytes)", self.nbytes)
        self.pointer = int(check((status, pointer)))

    @classmethod
    def of(cls, array: NDArray[Any]) -> Buffer:
        """A copy of a NumPy array."""
        array = np.ascontiguousarray(array)
        buffer = cls(array.nbytes)
        if array.nbytes:
            check(_enter().cuMemcpyHtoD(buffer.pointer, array.ctypes.data, array.nbytes))
        return buffer

    @classmethod
    def poisoned(cls, nbytes: int, byte: int = POISON) -> Buffer:
        """A buffer for an output, every byte the poison."""
        buffer = cls(nbytes)
        buffer.fill(byte)
        return buffer

    def fill(self, byte: int) -> None:
        """Set every byte."""
        if self.nbytes:
            check(_enter().cuMemsetD8(self.pointer, byte, self.nbytes))

    def array(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A copy on the host, of the buffer's beginning."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if nbytes > self.nbytes:
            raise GpuError(f"a buffer of {self.nbytes} bytes holds no array of {nbytes}")
        return fetch(self.pointer, shape, dtype)

    def free(self) -> None:
        """Give the memory back."""
        if self.pointer:
            pointer, self.pointer = self.pointer, 0
            with entered() as cuda:
                check(cuda.cuMemFree(pointer))

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the process the driver may be gone
            self.free()


def fetch(pointer: int, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """A copy on the host of contiguous memory; it waits for all that was queued."""
    out = np.empty(shape, dtype)
    synchronize()
    if out.nbytes:
        check(_enter().cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    return out


def collect(run: Callable[[Buffer], None], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """What `run` writes into a poisoned buffer, with every element seen to be written.

    An element that has the poison's own pattern may be a result: then everything runs again on another poison.

    Parameters
    ----------
    run : callable
        Launches kernels that write the buffer it is given.
    shape, dtype
        Of the output; integers of the output's width.

    Raises
    ------
    GpuError
        If elements stayed as they were.
    """
    dtype = np.dtype(dtype)
    buffer = Buffer.poisoned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    run(buffer)
    out = buffer.array(shape, dtype)
    pattern = np.frombuffer(bytes([POISON]) * dtype.itemsize, dtype)[0]
    if (out == pattern).any():
        buffer.fill(_OTHER_POISON)
        run(buffer)
        again = buffer.array(shape, dtype)
        if not np.array_equal(out, again):
            raise GpuError(f"a kernel wrote {np.count_nonzero(out == again)} of {out.size} outputs the same twice")
    return out
