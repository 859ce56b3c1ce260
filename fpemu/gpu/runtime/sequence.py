"""Sequences: the recorded launches of a call, queued with the addresses of any operands, workspace and stream.

A sequence holds packed parameters; `Sequence.queue` writes the addresses of a call into them and issues the launches,
or one CUDA graph of them if the same addresses have come before. The parameters are shared by all threads: `lock` is
held from the first address written to the last launch issued, because a launch copies its parameters. A workspace
belongs to one stream, so that the work of two calls in it is ordered.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import GpuError
from fpemu.gpu.runtime import device, graphs, native, recording
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.recording import REGIONS, Fill, Recording, placeholder
from fpemu.gpu.runtime.selection import current

__all__ = ["Arena", "Arenas", "Sequence", "arenas", "captured", "lock"]

lock = RLock()
"""Held while work of this package is queued"""
captured: set[Sequence] = set()
"""The sequences in CUDA graphs of the caller, whose replays read their kernels, buffers and counters"""
_WORK, _CLEARED = REGIONS.index("work"), REGIONS.index("cleared")
_MOST_GRAPHS = 32  # addresses of a sequence that are remembered
_MOST_STREAMS = 128  # in the table of a GPU's workspaces
_GRAPHS = native.SEQUENCE.index("graphs")


class Arena:
    """The workspace of one stream: it grows to the largest that its sequences need."""

    def __init__(self) -> None:
        self.work, self.zeros = 0, 0
        self.nbytes = [0, 0]
        self._buffers: list[Buffer | None] = [None, None]

    def suffices(self, sequence: Sequence) -> bool:
        """Return whether it has the bytes that a sequence needs."""
        return self.nbytes[0] >= sequence.work and self.nbytes[1] >= sequence.zeros

    def grow(self, work: int, zeros: int, stream: int) -> None:
        """Provide so many bytes of both regions; the zeros are queued on the stream."""
        for i, nbytes in enumerate((work, zeros)):
            if nbytes > self.nbytes[i]:
                self._buffers[i], self.nbytes[i] = None, 0  # freed before the new one is allocated
                self._buffers[i] = buffer = Buffer(nbytes)
                if i:
                    device.fill_async(buffer.pointer, 0, nbytes, stream)
                self.nbytes[i] = nbytes
                self.work, self.zeros = (self.work, buffer.pointer) if i else (buffer.pointer, self.zeros)


class Arenas(dict[tuple[int, int], Arena]):
    """The workspaces of streams, by GPU and handle of the stream, and a table of them for the compiled call."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[int, NDArray[np.int64]] = {}

    def of(self, stream: int, sequence: Sequence) -> Arena:
        """Return the workspace of a stream of the current GPU, with the bytes that a sequence needs."""
        index = current()
        result = self.get((index, stream))
        if result is None or not result.suffices(sequence):
            result = self.setdefault((index, stream), Arena())
            table = self._table(index)
            table[0] = 0  # the memory that it lists may be freed next
            try:
                result.grow(sequence.work, sequence.zeros, stream)
            finally:
                self._list(table, index)
        return result

    def address(self, index: int) -> int:
        """Return the address of the table of a GPU's workspaces."""
        return int(self._table(index).ctypes.data)

    def clear(self) -> None:
        """Free all workspaces."""
        for table in self._tables.values():
            table[0] = 0
        super().clear()

    def _table(self, index: int) -> NDArray[np.int64]:
        if index not in self._tables:
            self._tables[index] = np.zeros(1 + _MOST_STREAMS * native.ARENA, np.int64)
        return self._tables[index]

    def _list(self, table: NDArray[np.int64], index: int) -> None:
        """Enter the workspaces of a GPU into its table."""
        listed = [(s, a.work, a.zeros, *a.nbytes) for (gpu, s), a in self.items() if gpu == index][:_MOST_STREAMS]
        table[1 : 1 + len(listed) * native.ARENA] = np.array(listed, np.uint64).view(np.int64).reshape(-1)
        table[0] = len(listed)


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
    index : int
        GPU on which the sequence runs.
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
    address : int
        Address of the record that the compiled functions take; 0 without them.
    graphs : bool
        Whether a graph may replace the launches.
    """

    def __init__(self, record: Recording, mark: int = 0) -> None:
        self.index = current()
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
        self._slots: list[tuple[Any, int, int]] = []  # words of the parameters, each with its region and offset
        self._keep, functions = steps, native.calls()
        self._issue: list[Callable[[int], None]] = []
        rows: list[tuple[int, ...]] = []
        for step in steps:
            if isinstance(step, Fill):
                rows.append(self._fill(step))
                continue
            for values in step.arguments:
                self._relocate(values)
            self._issue.append(step.issue)
            if functions is not None:
                rows.append(step.row())
        self.address, self.graphs = 0, functions is not None and len(steps) > 1
        self._graphs: dict[tuple[int, ...], graphs.Graph | None] = {}
        if functions is not None:
            self._queue = functions[0]
            self._build(rows)

    def _build(self, rows: list[tuple[int, ...]]) -> None:
        """Create the record of the compiled functions."""
        slots = [(words.ctypes.data, where, offset) for words, where, offset in self._slots]
        self._tables = native.table(rows, native.ROW), native.table(slots, native.SLOT)
        self._graph_table = np.zeros((_MOST_GRAPHS, native.GRAPH), np.int64)
        self._record = native.record(
            native.SEQUENCE,
            context=int(device.context()),
            index=self.index,
            rows=self._tables[0].ctypes.data,
            row_count=len(rows),
            slots=self._tables[1].ctypes.data,
            slot_count=len(slots),
            graphs=self._graph_table.ctypes.data,
        )
        self.address = int(self._record.ctypes.data)

    def _fill(self, step: Fill) -> tuple[int, int, int, int]:
        """Add a fill; its row of the native table."""
        pointer = np.array([step.pointer], np.uint64)
        self._relocate(pointer)
        self._issue.append(lambda stream: device.fill_async(int(pointer[0]), step.byte, step.nbytes, stream))
        return native.FILL, pointer.ctypes.data, step.byte, step.nbytes

    def _relocate(self, values: Any) -> None:
        """Find the placeholders in packed parameters."""
        data = values.reshape(-1).view(np.uint8)
        words = data[: len(data) // 8 * 8].view(np.uint64)
        for i, word in enumerate(words.tolist()):
            if (place := recording.region(word)) is not None:
                where, offset = place
                if where == _CLEARED:
                    where, offset = _WORK, offset + self._cleared
                self._slots.append((words[i : i + 1], where, offset))

    def queue(
        self, addresses: list[int], stream: int, start: int = 0, stop: int | None = None, *, capture: bool = False
    ) -> None:
        """Issue the steps, or some of them, with these addresses of the regions; the caller holds `lock`.

        Several launches with the same addresses as in an earlier call are issued as one graph, unless the stream is
        captured: then the graph reads the memory of this sequence, which is kept for the rest of the process.
        """
        if capture:
            captured.add(self)
        whole = self.graphs and not (capture or start or stop is not None)
        end = len(self._issue) if stop is None else stop
        if not self.address:
            for words, where, offset in self._slots:
                words[0] = addresses[where] + offset
            with device.entered(self.index):
                for issue in self._issue[start:end]:
                    issue(stream)
            return
        result = self._queue(self.address, stream, start, end, whole, *addresses)
        if result:
            self.follow(result, tuple(addresses) if whole else None)

    def follow(self, result: int, addresses: tuple[int, ...] | None) -> None:
        """Raise GpuError for a failed result of the compiled functions.

        After launches with the addresses of an earlier call, instantiate a graph of them for the next call.

        Parameters
        ----------
        result : int
            Result of `native.queue` or of `native.call`.
        addresses : tuple of int, optional
            Addresses of the regions if a graph may replace the launches.
        """
        if result != native.DONE_BY_LAUNCHES:
            device.check_status(result >> 2 & 0xFFFFFFFF)
        if addresses is None or not self.graphs:
            return
        if addresses not in self._graphs:
            if len(self._graphs) >= _MOST_GRAPHS:
                oldest = next(iter(self._graphs))
                replaced = self._graphs.pop(oldest)  # destroyed after the table has been written
            else:
                replaced = None
            self._graphs[addresses] = None
            if replaced is not None:
                self._list_graphs()
            return
        try:
            with device.entered(self.index):
                graph = graphs.Graph(
                    lambda stream: self._queue(self.address, stream, 0, len(self._issue), 0, *addresses)
                )
        except GpuError:
            self._graphs.clear()
            self.graphs = False  # no graphs of this sequence
        else:
            self._graphs[addresses] = graph
        self._list_graphs()

    def _list_graphs(self) -> None:
        """Enter the graphs into the table of the compiled functions."""
        listed = [(*addresses, graph.handle) for addresses, graph in self._graphs.items() if graph is not None]
        if listed:
            self._graph_table[: len(listed)] = np.array(listed, np.uint64).view(np.int64)
        self._record[_GRAPHS + 1] = len(listed)
