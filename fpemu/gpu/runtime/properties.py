"""What kernels are chosen by: numbers of the GPU at hand, or those of an H200 where there is none."""

from __future__ import annotations

from functools import lru_cache

from fpemu.gpu.runtime import device


def multiprocessors() -> int:
    """How many it has."""
    return _attribute("MULTIPROCESSOR_COUNT", 132)


def most_shared() -> int:
    """Bytes of shared memory that a block may have."""
    return _attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", 227 * 1024)


@lru_cache(maxsize=2)
def _attribute(name: str, else_: int) -> int:
    if device.missing() is not None:
        return else_
    cuda = device._enter()
    kind = getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(device.check(cuda.cuDeviceGetAttribute(kind, device.check(cuda.cuCtxGetDevice()))))
