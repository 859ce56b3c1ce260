"""Sequences: the recorded launches of a call, queued with the addresses of any operands, workspace and stream.

A sequence holds packed parameters; `Sequence.queue` writes the addresses that changed since the last time and issues
the launches, one driver call each, or one for all if the same addresses come again: it then instantiates a CUDA graph
of them. The parameters are shared by all threads: `lock` is held from the first address
written to the last launch issued, because a launch copies its parameters. A workspace belongs to one stream, so that
the work of two calls in it is ordered.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np

from fpemu.errors import GpuError
from fpemu.gpu.runtime import device, native, recording
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.recording import REGIONS, Fill, Recording, placeholder

__all__ = ["Arena", "Arenas", "Sequence", "arenas", "lock"]

lock = RLock()
"""Held while work of this package is queued"""
_WORK, _CLEARED = REGIONS.index("work"), REGIONS.index("cleared")
_MOST_GRAPHS = 32  # addresses of a sequence that are remembered
_UNSEEN = object()
_UNKNOWN = [-1] * (len(REGIONS) - 1)


class Arena:
    """The workspace of one stream: it grows to the largest that its sequences need."""

    def __init__(self) -> None:
        self.work, self.zeros = 0, 0
        self.nbytes = [0, 0]
        self._buffers: list[Buffer | None] = [None, None]

    def grow(self, work: int, zeros: int) -> None:
        """Provide so many bytes of both regions."""
        for i, nbytes in enumerate((work, zeros)):
            if nbytes > self.nbytes[i]:
                self._buffers[i], self.nbytes[i] = None, 0  # freed before the new one is allocated
                self._buffers[i] = buffer = (Buffer.zeroed if i else Buffer)(nbytes)
                self.nbytes[i] = nbytes
                if i:
                    device.synchronize()  # the zeros are written on the default stream
                self.work, self.zeros = (self.work, buffer.pointer) if i else (buffer.pointer, self.zeros)


class Arenas(dict[int, Arena]):
    """The workspaces of streams, by their handles."""

    def of(self, stream: int, sequence: Sequence) -> Arena:
        """Return the workspace of a stream, with the bytes that a sequence needs."""
        result = self.get(stream)
        if result is None:
            result = self[stream] = Arena()
        if result.nbytes[0] < sequence.work or result.nbytes[1] < sequence.zeros:
            result.grow(sequence.work, sequence.zeros)
        return result


arenas = Arenas()
"""The workspaces of all calls; a plan has its own"""


class Sequence:
    """The launches and fills of a recording.

    Parameters
    ----------
    record : Recording
        Finished recording.
    mark : int
        Number of its steps before a point of interest.

    Attributes
    ----------
    work, zeros, prepared : int
        Bytes of workspace, of workspace that is zero before and after, and of operands prepared in advance.
    kernels : list of str
        Names of the kernels in order; "fill" for a fill.
    alone : bool
        Whether it is one launch without workspace.
    mark : int
        Number of the sequence's steps before the same point.
    counters : dict of str to Counters
        Counters of the operands' faults.
    """

    def __init__(self, record: Recording, mark: int = 0) -> None:
        self.work, self.zeros, self.prepared, cleared = (record.nbytes[name] for name in REGIONS[4:])
        self._cleared = self.work  # where this part of the workspace begins
        self.work += cleared
        self.counters = record.counters
        steps = record.steps
        if cleared:  # one fill for all of its buffers, none of which is used before
            start, end = (placeholder("cleared", offset) for offset in (0, cleared))
            separate = [isinstance(step, Fill) and start <= step.pointer < end for step in steps]
            steps = [Fill(start, 0, cleared), *(s for s, within in zip(steps, separate, strict=True) if not within)]
            mark += 1 - sum(separate[:mark])
        self.mark, self.alone = mark, len(steps) == 1 and not self.work and not self.zeros
        self.kernels = [getattr(step, "name", "fill") for step in steps]
        self._slots: list[list[tuple[Any, int, int]]] = [[] for _ in REGIONS[:-1]]
        self._addresses = _UNKNOWN
        self._keep, self._loop = steps, device.loop()
        self._issue: list[Callable[[int], None]] = []
        rows: list[tuple[int, int, int, int]] = []
        for step in steps:
            if isinstance(step, Fill):
                rows.append(self._fill(step))
                continue
            for values in step.arguments:
                self._relocate(values)
            self._issue.append(step.issue)
            if self._loop is not None:
                rows.append(step.row())
        several = self._loop is not None and len(steps) > 1
        self._graph_launch = native.graph_launch() if several else None
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._table = native.table(rows)
        self._first = int(self._table.ctypes.data)

    def _fill(self, step: Fill) -> tuple[int, int, int, int]:
        """Add a fill; its row of the native table."""
        pointer = np.array([step.pointer], np.uint64)
        self._relocate(pointer)
        view: Any = memoryview(pointer)  # type: ignore[arg-type]
        self._issue.append(lambda stream: device.fill_async(view[0], step.byte, step.nbytes, stream))
        return native.FILL, pointer.ctypes.data, step.byte, step.nbytes

    def _relocate(self, values: Any) -> None:
        """Find the placeholders in packed parameters."""
        data = values.reshape(-1).view(np.uint8)
        words = data[: len(data) // 8 * 8].view(np.uint64)
        view = memoryview(words)
        for i, word in enumerate(words.tolist()):
            if (place := recording.region(word)) is not None:
                where, offset = place
                if where == _CLEARED:
                    where, offset = _WORK, offset + self._cleared
                self._slots[where].append((view, i, offset))

    def queue(
        self, addresses: list[int], stream: int, start: int = 0, stop: int | None = None, *, capture: bool = False
    ) -> None:
        """Issue the steps, or some of them, with these addresses of the regions; the caller holds `lock`.

        Several launches with the same addresses as in an earlier call are issued as one graph, unless the stream is
        captured.
        """
        whole = self._graph_launch is not None and not (capture or start or stop is not None)
        if whole:
            key = tuple(addresses)
            graph = self._graphs.get(key, _UNSEEN)
            if graph.__class__ is device.Graph and not graph.queue(stream):
                return
            self._write(addresses)
            if self._replay(key, graph, stream):
                return
        else:
            self._write(addresses)
        if self._loop is None:
            for issue in self._issue[start:stop]:
                issue(stream)
            return
        self._launch(stream, start, (len(self._issue) if stop is None else stop) - start)

    def _write(self, addresses: list[int]) -> None:
        """Write the addresses that have changed into the parameters."""
        current = self._addresses
        if current != addresses:
            self._addresses = _UNKNOWN  # an interrupt may leave some unwritten
            for before, address, slots in zip(current, addresses, self._slots, strict=True):
                if before != address:
                    for view, i, offset in slots:
                        view[i] = address + offset
            self._addresses = addresses

    def _launch(self, stream: int, start: int, count: int) -> None:
        """Issue some steps by the compiled loop, again in the GPU's context if another one was current."""
        assert self._loop is not None
        failure = self._loop(self._first + native.ROW_BYTES * start, count, stream)
        if failure:
            done = start + (failure >> 32)
            device.check_context(failure)
            with device.entered():
                device.check_status(self._loop(self._first + native.ROW_BYTES * done, start + count - done, stream))

    def _replay(self, key: tuple[int, ...], graph: Any, stream: int) -> bool:
        """Make and queue the graph of addresses that have been seen before; return whether it is queued."""
        loop, launch = self._loop, self._graph_launch
        if graph is not None or loop is None or launch is None:  # the first time, or a graph that failed
            if len(self._graphs) >= _MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = None
            return False
        try:
            self._graphs[key] = graph = device.Graph(lambda s: loop(self._first, len(self._issue), s), launch)
        except GpuError:
            self._graph_launch = None  # no graphs of this sequence
            return False
        return not graph.queue(stream)
