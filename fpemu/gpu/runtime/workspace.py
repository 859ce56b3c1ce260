"""Workspaces: named buffers that persist between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fpemu.gpu.runtime import callers, device
from fpemu.gpu.runtime.device import OutOfMemoryError

__all__ = ["Workspace"]


class Workspace:
    """Buffers by name, which persist between calls; one that has become too small is replaced.

    Parameters
    ----------
    allocate : callable, optional
        Returns a buffer of so many bytes. Default: `device.Buffer`.
    free_bytes : callable, optional
        Returns the bytes that are free, for messages. Default: of the GPU.
    """

    def __init__(self, allocate: Callable[..., Any] | None = None, free_bytes: Callable[[], int] | None = None) -> None:
        self._allocate, self._free_bytes = allocate, free_bytes
        self._buffers: dict[str, Any] = {}

    def get(self, name: str, nbytes: int, where: str | None = None) -> Any:
        """Return a buffer of at least some bytes, whose content is undefined; `where`: as of `device.Buffer`."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            if buffer is not None:
                self._buffers.pop(name).free()  # before the new one is allocated
            region = () if where is None else (where,)
            try:
                buffer = (self._allocate or device.Buffer)(max(nbytes, 16), *region)
            except OutOfMemoryError:
                held = sum(other.nbytes for other in self._buffers.values())
                free = (self._free_bytes or callers.free_bytes)()
                raise OutOfMemoryError(
                    f"out of memory: {nbytes / 1e9:.2f} GB are needed for {name} beside {held / 1e9:.2f} GB of other "
                    f"work space, and {free / 1e9:.2f} GB are free: multiply fewer rows of A or columns of B at a time",
                    nbytes,
                ) from None
            self._buffers[name] = buffer
        return buffer

    def held(self, name: str) -> int:
        """Return the bytes of the buffer of this name."""
        return int(self._buffers[name].nbytes) if name in self._buffers else 0

    def zeros(self, name: str, nbytes: int) -> Any:
        """Return such a buffer with every byte zero."""
        buffer = self.get(name, nbytes, "cleared")
        buffer.fill(0)
        return buffer

    def free(self) -> None:
        """Free all buffers."""
        for buffer in self._buffers.values():
            buffer.free()
        self._buffers.clear()
