"""The GPU of a thread: its context, its properties and its memory.

`cuda.core` finds the device, retains the primary context (which PyTorch and CuPy share), reads the properties, compiles
(`compiler`), loads cubins (`modules`), orders streams (`callers`) and reads DLPack (`matrices`). Calls of the driver
through cuda.bindings remain for launches and tensor maps (`plan`), and for memory: a buffer may still be in use on
a stream of the caller when it is freed, and cuMemFree waits for all streams, the deallocation of `cuda.core.Buffer` for
one. Outputs are poisoned, to detect elements that a kernel has not written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, update_wrapper
from threading import RLock
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import GpuError
from fpemu.gpu.runtime.compiler import check, compiler_missing, first_line, version

POISON = 0xAB  # every byte of an output before a launch
_MOST_UNUSED = 256  # objects of `release_later`
_OTHER_POISON = 0x54  # of a second run, where results of the first are equal to the poison
LONGEST = 2**31 - 2**12  # of rows, columns and k: the int counters of a kernel pass them by less than a tile
_LEAST = (8, 0)  # compute capability that the kernels of matrix instructions need
_R = TypeVar("_R")
_thread = threading.local()


# --- the GPU of a thread
def current() -> int:
    """Return the index of the GPU of this thread: the selected one, else the GPU of its CUDA context, else 0."""
    index: int | None = getattr(_thread, "index", None)
    if index is not None:
        return index
    try:
        from cuda.bindings import driver

        status, context = driver.cuCtxGetCurrent()
        return 0 if status or not int(context) else int(driver.cuCtxGetDevice()[1])
    except Exception:  # no driver
        return 0


class PerDevice(Generic[_R]):
    """A function whose results are cached for each GPU, from `per_device`."""

    def __init__(self, function: Callable[..., _R], maxsize: int | None) -> None:
        update_wrapper(self, function)
        self._of = lru_cache(maxsize)(lambda index, *arguments: function(*arguments))
        self.cache_clear = self._of.cache_clear

    def __call__(self, *arguments: Any) -> _R:
        """Return the cached result for the GPU of this thread."""
        return self._of(current(), *arguments)


def per_device(maxsize: int | None = None) -> Callable[[Callable[..., _R]], PerDevice[_R]]:
    """Return a decorator like `functools.lru_cache`, with results for each GPU; `maxsize` counts all GPUs together."""
    return lambda function: PerDevice(function, maxsize)


# --- the device and its context
@per_device()
def missing() -> str | None:
    """Return None if there is a GPU to run on, else one line that names what is missing."""
    if compiler_missing() is not None:
        return compiler_missing()
    try:
        context()
        capability()
    except Exception as problem:
        return f"no NVIDIA GPU is usable here ({first_line(problem)})"
    return None


def need() -> None:
    """Raise GpuError, with the line of `missing`, if there is no GPU to run on."""
    reason = missing()
    if reason is not None:
        raise GpuError(reason)


def need_matrix_unit(user: str) -> None:
    """Raise GpuError if there is no GPU, or one without the instructions that `user` needs."""
    need()
    have, least = (".".join(map(str, version)) for version in (capability(), _LEAST))
    if capability() < _LEAST:
        raise GpuError(f"{user} needs compute capability {least} or more; {describe()['gpu']} has {have}")


def overlaps_launches() -> bool:
    """Return whether the GPU has TMA, and launches that begin while the one before them ends: from Hopper on."""
    return missing() is None and capability() >= (9, 0)


@per_device()
def _opened() -> tuple[Any, Any]:
    """Return the `cuda.core.Device` of the GPU and its primary context; the current context stays as it is."""
    from cuda.core import Device

    device, cuda = Device(current()), bindings()
    check(cuda.cuInit(0))
    before = check(cuda.cuCtxGetCurrent())
    device.set_current()
    handle = device.context.handle
    if int(before) not in (0, int(handle)):
        check(cuda.cuCtxSetCurrent(before))
    return device, handle


def gpu() -> Any:
    """Return the `cuda.core.Device`, whose primary context is initialised."""
    return _opened()[0]


def context() -> Any:
    """Return the primary context of the GPU, which PyTorch and CuPy share."""
    return _opened()[1]


@cache
def bindings() -> Any:
    from cuda.bindings import driver

    return driver


def driver() -> Any:
    """Return cuda.bindings.driver after making the GPU's context current in this thread."""
    cuda = bindings()
    check(cuda.cuCtxSetCurrent(context()))
    return cuda


@contextmanager
def entered(index: int | None = None) -> Iterator[Any]:
    """Yield `driver` for a GPU, by default the current one; afterwards the caller's context is current again.

    PyTorch and CuPy select their device by the current context: GPU 0 without one, whose context may therefore stay.
    Within, this thread may allocate and free memory and load kernels while another thread captures a stream, also in
    the global mode, PyTorch's default. Only a wait for the whole GPU (`synchronize`) invalidates a capture in any mode.
    """
    index = current() if index is None else index
    selected, _thread.index = getattr(_thread, "index", None), index
    try:
        cuda = bindings()
        before = check(cuda.cuCtxGetCurrent())
        own = context()
        check(cuda.cuCtxSetCurrent(own))
        mode = check(cuda.cuThreadExchangeStreamCaptureMode(cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            yield cuda
        finally:
            check(cuda.cuThreadExchangeStreamCaptureMode(mode))
            if int(before) != int(own) and (int(before) or index):
                check(cuda.cuCtxSetCurrent(before))
    finally:
        _thread.index = selected


@per_device()
def capability() -> tuple[int, int]:
    """Return the compute capability of the GPU."""
    major, minor = gpu().compute_capability
    return int(major), int(minor)


def arch() -> str:
    """Return the architecture to compile for: "sm_80", "sm_89", "sm_90a", "sm_100a" ..."""
    major, minor = capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@per_device()
def describe() -> dict[str, str]:
    """Return the names and versions of the GPU, its driver and the compiler, for records."""
    number = int(check(driver().cuDriverGetVersion()))
    return {
        "gpu": str(gpu().name),
        "arch": arch(),
        "driver_cuda": f"{number // 1000}.{number % 1000 // 10}",
        "nvrtc": version(),
    }


@per_device()
def multiprocessors() -> int:
    """Return the number of streaming multiprocessors; without a GPU the number of an H200."""
    return 132 if missing() is not None else int(gpu().properties.multiprocessor_count)


@per_device()
def most_shared() -> int:
    """Return the bytes of shared memory that one thread block can have; without a GPU on an H200."""
    return 227 * 1024 if missing() is not None else int(gpu().properties.max_shared_memory_per_block_optin)


def synchronize(stream: int | None = None) -> None:
    """Wait for the work queued on a stream, by default on all streams of the GPU; GpuError if any of it failed.

    A wait for all streams invalidates every capture on the GPU, as that of ``torch.cuda.synchronize`` does.
    """
    cuda = driver()
    if stream is not None:
        check(cuda.cuStreamSynchronize(stream))
        return
    with _lock:
        unused = _unused.pop(current(), None)
    check(cuda.cuCtxSynchronize())
    del unused


def release_later(value: object, index: int) -> None:
    """Reference an object that queued work may use until the next wait for all streams of a GPU.

    Garbage collection calls it at any place, so that it calls the driver only where many objects have been dropped.
    """
    with _lock:
        unused = _unused.setdefault(index, [])
        unused.append(value)
    if len(unused) >= _MOST_UNUSED:
        with entered(index):
            synchronize()


_unused: dict[int, list[object]] = {}  # by GPU
_lock = RLock()  # of `_unused`


def captures(stream: int) -> bool:
    """Return whether a stream is captured into a CUDA graph; the default stream cannot be."""
    if not stream:
        return False
    status, captured = bindings().cuStreamIsCapturing(stream)
    if status:  # a thread without a context
        with entered() as cuda:
            captured = check(cuda.cuStreamIsCapturing(stream))
    return int(captured) != 0


# --- memory
class OutOfMemoryError(GpuError):
    """The GPU's memory does not suffice for a buffer of `nbytes`."""

    def __init__(self, text: str, nbytes: int) -> None:
        super().__init__(text)
        self.nbytes = nbytes


class Buffer:
    """Memory on the GPU with an undefined content; freed with the object, or by `free`. OutOfMemoryError."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.pointer, self._index = nbytes, 0, current()
        status, pointer = driver().cuMemAlloc(max(nbytes, 16))
        if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise OutOfMemoryError(f"CUDA: {status.name} ({nbytes:,} bytes)", nbytes)
        self.pointer = int(check((status, pointer)))

    @classmethod
    def of(cls, array: NDArray[Any]) -> Buffer:
        """Return a copy of a NumPy array."""
        array = np.ascontiguousarray(array)
        buffer = cls(array.nbytes)
        if array.nbytes:
            cuda = driver()
            check(cuda.cuMemcpyHtoD(buffer.pointer, array.ctypes.data, array.nbytes))
            check(cuda.cuStreamSynchronize(0))  # the copy may return before its end, and other streams do not wait
        return buffer

    @classmethod
    def poisoned(cls, nbytes: int, byte: int = POISON) -> Buffer:
        """Return a buffer for an output, every byte the poison."""
        buffer = cls(nbytes)
        buffer.fill(byte)
        return buffer

    def fill(self, byte: int) -> None:
        """Set every byte."""
        if self.nbytes:
            check(driver().cuMemsetD8(self.pointer, byte, self.nbytes))

    def array(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Copy the buffer's beginning to the host after the work queued on the default stream."""
        return fetch(self.pointer, shape, dtype)

    def free(self) -> None:
        """Free the memory."""
        if self.pointer:
            pointer, self.pointer = self.pointer, 0
            with entered(self._index) as cuda:
                check(cuda.cuMemFree(pointer))

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the process the driver may be gone
            self.free()


def zero(pointer: int, nbytes: int) -> None:
    """Set memory to zero before any work that is queued later, on whichever stream."""
    check(driver().cuMemsetD8(pointer, 0, nbytes))
    synchronize(0)


def fill_async(pointer: int, byte: int, nbytes: int, stream: int) -> None:
    """Queue a fill on a stream of the current context."""
    check(bindings().cuMemsetD8Async(pointer, byte, nbytes, stream))


def fetch(pointer: int, shape: int | tuple[int, ...], dtype: Any, stream: int = 0) -> NDArray[Any]:
    """Copy contiguous memory to the host after the work queued on a stream, by default CUDA's default stream."""
    out = np.empty(shape, dtype)
    synchronize(stream)
    if out.nbytes:
        check(driver().cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    return out


def collect(run: Callable[[Buffer], None], shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return the output that `run` writes into the buffer it is passed; GpuError if it left elements unwritten.

    Where elements, integers of the output's width, are equal to the poison, `run` is repeated on another poison to tell
    results from unwritten memory.
    """
    dtype = np.dtype(dtype)
    buffer = Buffer.poisoned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    run(buffer)
    out = buffer.array(shape, dtype)
    if (out == np.frombuffer(bytes([POISON]) * dtype.itemsize, dtype)[0]).any():
        buffer.fill(_OTHER_POISON)
        run(buffer)
        again = buffer.array(shape, dtype)
        if not np.array_equal(out, again):
            raise GpuError(f"a kernel wrote {np.count_nonzero(out == again)} of {out.size} outputs the same twice")
    return out
