"""Properties of the GPU that select kernels; without a GPU those of an H200."""

from __future__ import annotations

from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.selection import per_device

LONGEST = 2**31 - 2**12  # of rows, columns and k: the int counters of a kernel pass them by less than a tile
_H200 = {"multiprocessor_count": 132, "max_shared_memory_per_block_optin": 227 * 1024}


def multiprocessors() -> int:
    """Return the number of streaming multiprocessors."""
    return _property("multiprocessor_count")


def most_shared() -> int:
    """Return the bytes of shared memory that one thread block can have."""
    return _property("max_shared_memory_per_block_optin")


@per_device()
def _property(name: str) -> int:
    return _H200[name] if device.missing() is not None else int(getattr(device.gpu().properties, name))
