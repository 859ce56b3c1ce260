"""The caller's side of a GPU: whose memory a pointer is, and the streams on which others work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.compiler import check

_DEFAULT = (0, 1)  # CUDA's default stream, on which this package works, by both of its names


def ordinal(pointer: int) -> int:
    """The number of the GPU whose memory a pointer is."""
    cuda = device._enter()
    asked = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(cuda.cuPointerGetAttribute(asked, pointer)))


def is_torch(X: Any) -> bool:
    """Whether something is a torch tensor; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(X, getattr(torch, "Tensor", ()))


def is_cupy(X: Any) -> bool:
    """Whether something is an array of CuPy."""
    return any(kind.__module__.partition(".")[0] == "cupy" for kind in type(X).__mro__)


def streams(arrays: Iterable[Any]) -> list[int]:
    """The streams on which the owners of some arrays of GPU 0 work at the moment, other than the default stream."""
    found = []
    for X in arrays:
        if is_torch(X):
            if X.device.type == "cuda" and not X.device.index:
                found.append(int(sys.modules["torch"].cuda.current_stream(X.device).cuda_stream))
        elif is_cupy(X):
            if X.device.id == 0:
                found.append(int(sys.modules["cupy"].cuda.get_current_stream().ptr))
        else:
            found.append(int(_told_stream(X) or 0))
    return [s for s in dict.fromkeys(found) if s not in _DEFAULT]


def wait_for(X: Any) -> None:
    """What is queued on the default stream from now on runs after what the owner of an array has queued."""
    for stream in streams([X]):
        _after(0, stream)


def strangers(arrays: Iterable[Any]) -> bool:
    """Whether somebody works on a stream that nobody knows, and has to wait for results until they are there."""
    return any(not (is_torch(X) or is_cupy(X) or _told_stream(X)) for X in arrays)


def _told_stream(X: Any) -> Any:
    return getattr(X, "__cuda_array_interface__", {}).get("stream")


@contextmanager
def in_turn(others: list[int]) -> Iterator[None]:
    """What is queued on the default stream within runs after what the others have queued, and before what they will."""
    for stream in others:
        _after(0, stream)
    try:
        yield
    finally:
        for stream in others:
            _after(stream, 0)


def _after(waits: int, waited_for: int) -> None:
    """One stream waits, on the GPU, for what another has queued by now."""
    cuda = device._enter()
    event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    try:
        check(cuda.cuEventRecord(event, waited_for))
        check(cuda.cuStreamWaitEvent(waits, event, 0))
    finally:
        check(cuda.cuEventDestroy(event))


def give_way() -> None:
    """Have torch and CuPy give the GPU back what they keep and do not use."""
    torch, cupy = (sys.modules.get(name) for name in ("torch", "cupy"))
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()


def free_bytes() -> int:
    """Bytes of the GPU's memory that nobody has taken."""
    free, _ = check(device._enter().cuMemGetInfo())
    return int(free)
