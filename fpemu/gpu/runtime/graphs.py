"""CUDA graphs: the launches of a sequence as one driver call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fpemu.gpu.runtime import device, native
from fpemu.gpu.runtime.compiler import check
from fpemu.gpu.runtime.selection import current, per_device

__all__ = ["Graph"]


class Graph:
    """The work that a function queues on a stream, as an executable CUDA graph: one driver call for all launches.

    Parameters
    ----------
    queue : callable
        Queues the work on a stream given by its handle, and returns a result of `fpemu.gpu.runtime.native.queue`.

    Attributes
    ----------
    handle : int
        The executable graph.

    Raises
    ------
    GpuError
        If the driver refuses the capture.
    """

    def __init__(self, queue: Callable[[int], int]) -> None:
        self.handle, self._index = 0, current()
        with device.entered() as cuda:
            stream = _capture_stream()
            check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
            try:
                try:
                    result = queue(int(stream))
                finally:
                    status, graph = cuda.cuStreamEndCapture(stream)
                if result != native.DONE_BY_LAUNCHES:
                    device.check_status(result >> 2 & 0xFFFFFFFF)
                check((status,))
                self._executable = check(cuda.cuGraphInstantiate(graph, 0))
            finally:
                if not status:
                    check(cuda.cuGraphDestroy(graph))
        self.handle = int(self._executable)

    def __del__(self) -> None:
        if self.handle:
            with suppress(Exception), device.entered(self._index) as cuda:  # a running graph is destroyed at its end
                check(cuda.cuGraphExecDestroy(self._executable))


@per_device()
def _capture_stream() -> Any:
    cuda = device.driver()
    return check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
