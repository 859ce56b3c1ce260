"""The caller's arrays: their device, the streams that produce and consume them, and memory that their libraries cache.

Plans on torch tensors are queued on torch's current stream (`matrices.read`), all other work on CUDA's default stream,
ordered after and before the work on the streams of the caller's arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fpemu.errors import InputError
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import current

_DEFAULT = (0, 1)  # the default stream, by both of its handles
CUDA_DEVICES = (2, 13)  # of DLDeviceType: memory of a GPU, managed memory
CPU_DEVICES = (1, 3, 11)  # memory of the CPU, also pinned for CUDA or ROCm


def ordinals(*pointers: int) -> list[int]:
    """Return the index of the GPU that each pointer's memory belongs to."""
    cuda = device.driver()
    attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return [int(device.check(cuda.cuPointerGetAttribute(attribute, pointer))) for pointer in pointers]


def is_torch(X: Any) -> bool:
    """Return whether X is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(X, getattr(torch, "Tensor", ()))


def is_cupy(X: Any) -> bool:
    """Return whether X is a CuPy array, without importing CuPy."""
    return any(kind.__module__.partition(".")[0] == "cupy" for kind in type(X).__mro__)


def place(arrays: Iterable[Any]) -> int:
    """Return the index of the GPU of the first array on a GPU, else of the current GPU: where a call runs."""
    indices = (index_of(X) for X in arrays)
    return next((index for index in indices if index is not None), current())


def index_of(X: Any) -> int | None:
    """Return the index of the GPU of an array; None for an array of the CPU."""
    if is_torch(X):
        return int(X.device.index or 0) if X.device.type == "cuda" else None
    if is_cupy(X):
        return int(X.device.id)
    if hasattr(X, "__cuda_array_interface__"):
        pointer = X.__cuda_array_interface__["data"][0]
        return ordinals(int(pointer))[0] if pointer else None
    kind, index = dlpack_device(X)
    return index if kind in CUDA_DEVICES else None


def dlpack_device(X: Any) -> tuple[int, int]:
    """Return the type and the index of an array's device by DLPack; the CPU if the array states none."""
    kind, index = X.__dlpack_device__() if hasattr(X, "__dlpack_device__") else (CPU_DEVICES[0], 0)
    return int(kind), int(index)


def streams(arrays: Iterable[Any]) -> list[int]:
    """Return the handles of the current streams of the arrays on the GPU of a call, without the default stream."""
    arrays = list(arrays)
    index = place(arrays)
    handles = dict.fromkeys(_stream_of(X) for X in arrays if index_of(X) == index)
    return [handle for handle in handles if handle not in _DEFAULT]


def _stream_of(X: Any) -> int:
    """Return the handle of the current stream of an array's library, or of the stream that the array states."""
    if is_torch(X):
        return stream(X.device.index or 0)
    if is_cupy(X):
        with X.device:
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return int(_interface_stream(X) or 0)


def stream(index: int) -> int:
    """Return the handle of torch's current stream on a GPU."""
    torch: Any = sys.modules["torch"]
    try:
        return int(torch._C._cuda_getCurrentRawStream(index))
    except AttributeError:
        return int(torch.cuda.current_stream(index).cuda_stream)


def wait_for(X: Any) -> None:
    """Let the default stream wait for the work queued so far on the stream of an array."""
    for handle in streams([X]):
        _after(0, handle)


def must_synchronize(arrays: Iterable[Any]) -> bool:
    """Return whether the stream of any array is unknown, so that results must be complete on return."""
    return any(not (is_torch(X) or is_cupy(X) or _interface_stream(X)) for X in arrays)


def _interface_stream(X: Any) -> Any:
    return getattr(X, "__cuda_array_interface__", {}).get("stream")


@contextmanager
def ordered(handles: list[int]) -> Iterator[None]:
    """Order the work queued within after the earlier, and before the later work of some streams."""
    for handle in handles:
        _after(0, handle)
    try:
        yield
    finally:
        for handle in handles:
            _after(handle, 0)


def _after(consumer: int, producer: int) -> None:
    """Let a stream wait, on the GPU, for the work queued so far on another; both by their handles.

    InputError if the other stream is captured: a CUDA graph would not contain work on the default stream.
    """
    if device.captures(producer):
        raise InputError(
            "a CUDA graph cannot capture this call, whose kernels depend on more than the types, shapes and strides of "
            "its tensors: make the call outside of the capture"
        )
    from cuda import core

    device.driver()
    waiting, working = (
        core.LEGACY_DEFAULT_STREAM if handle in _DEFAULT else core.Stream.from_handle(handle)
        for handle in (consumer, producer)
    )
    waiting.wait(working)


def free_cached_memory() -> None:
    """Let torch and CuPy free the GPU memory that they cache."""
    torch, cupy = (sys.modules.get(name) for name in ("torch", "cupy"))
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()


def free_bytes() -> int:
    """Return the bytes of GPU memory that are free."""
    free, _ = device.check(device.driver().cuMemGetInfo())
    return int(free)
