"""Plans: the steps of a call, queued with the addresses of any operands, workspace and stream.

A plan packs the parameters of its launches once. `Plan.queue` writes the addresses of a call into them and issues the
steps, or launches one CUDA graph of them where the same addresses have come before: a graph of three kernels costs less
host time than one launch (3 and 4 µs on an H200's host). The parameters are shared by all threads: `lock` is held from
the first address written to the last step issued, because a launch copies its parameters. A workspace belongs to one
stream, so that the work of two calls in it is ordered.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fpemu.errors import GpuError
from fpemu.gpu.runtime import counters, cublas, device
from fpemu.gpu.runtime.compiler import check
from fpemu.gpu.runtime.counters import lock
from fpemu.gpu.runtime.device import Buffer, current, per_device
from fpemu.gpu.runtime.modules import configuration
from fpemu.gpu.runtime.steps import REGIONS, Address, Fill, Gemm, Launch, Memory, Step, TensorMap, pack

_LINE = 64  # bytes: the parameters' alignment, which a tensor map needs
_MOST_GRAPHS = 64  # addresses of a plan that are remembered; where there are more, the older half is dropped
_LONGEST = 64  # steps of a graph: the launches of a longer plan take the GPU longer than the host
_TYPES = {1: "UINT8", 2: "FLOAT16", 4: "FLOAT32"}  # by bytes: TMA copies elements, whatever they represent
_captured: set[Plan] = set()  # plans in the caller's CUDA graphs, whose replays read their kernels and constants


class Plan:
    """The steps of a call on one GPU, `index`.

    Parameters
    ----------
    steps : sequence of Launch or Fill
        In their order.
    memory : Memory
        Workspace that the steps allocated.
    mark : int
        Number of the steps before a point of interest, to which the plan adds its fills.
    labels : tuple of counters.Label
        The operands, in the order of their counters of entries out of range, if the steps count any.
    """

    def __init__(
        self, steps: Sequence[Step], memory: Memory | None = None, mark: int = 0, labels: tuple[Any, ...] = ()
    ) -> None:
        self.index, memory = current(), memory or Memory()
        self._context, self._current_context = int(device.context()), device.bindings().cuCtxGetCurrent
        self._cleared, self.zeros, self.prepared, cleared = (  # the cleared blocks follow the others
            memory.nbytes[name] for name in ("work", "zeros", "prepared", "cleared")
        )
        self.work = self._cleared + cleared
        fills = [*memory.fills, *([Fill(Address("cleared"), 0, cleared)] if cleared else [])]
        self.mark, steps = mark + len(fills), [*fills, *steps]
        self.kernels = [step.kernel if isinstance(step, Launch) else "fill" for step in steps]
        self._steps = steps  # their arguments own memory
        self._slots: list[tuple[int, int, int]] = []  # word of the parameters, region, offset
        self._maps: list[tuple[Any, int, int]] = []  # tensor map in the parameters, region, offset
        self._written: tuple[int, ...] = ()
        self._graphs: dict[tuple[int, ...], _Graph | None] = {}
        self._counters: tuple[Any, int] = (None, 0)
        packed = [[pack(value) for value in getattr(step, "arguments", ())] for step in steps]
        nbytes = sum(_lines(data) for parameters in packed for data, _ in parameters)
        memory_of_parameters = np.zeros(nbytes + 2 * _LINE, np.uint8)
        self._parameters = memory_of_parameters[-memory_of_parameters.ctypes.data % _LINE :][: nbytes + _LINE]
        self._words = self._parameters.data.cast("Q")
        self._end = 0  # of the parameters that are written
        self._issue = [self._prepared(step, parameters) for step, parameters in zip(steps, packed, strict=True)]
        counts = any(region == REGIONS.index("counts") for _, region, _ in self._slots)
        self.labels = labels if counts else ()
        self._whole = 1 < len(steps) <= _LONGEST

    def _prepared(self, step: Step, parameters: list[tuple[bytes, dict[int, Any]]]) -> Callable[[int], None]:
        """Return the function that issues a step on a stream."""
        if isinstance(step, Fill):
            return partial(self._fill, *self._place(step.pointer), step.byte, step.nbytes)
        assert isinstance(step, Launch)
        base, addresses = int(self._parameters.ctypes.data), np.zeros(len(parameters), np.uint64)
        for i, (data, slots) in enumerate(parameters):
            addresses[i] = base + self._end
            self._parameters[self._end : self._end + len(data)] = np.frombuffer(data, np.uint8)
            for at, target in ((self._end + offset, target) for offset, target in slots.items()):
                if isinstance(target, Address):
                    self._slots.append((at // 8, *self._place(target)))
                    continue
                self._parameters[at : at + 128] = np.frombuffer(_encoded(target), np.uint8)
                if isinstance(target.pointer, Address):
                    tensor_map = device.bindings().CUtensorMap(_ptr=base + at)
                    self._maps.append((tensor_map, *self._place(target.pointer)))
            self._end += _lines(data)
        function = step.module.function(step.kernel, step.shared)
        config = configuration(step.grid, step.block, step.shared, step.cluster, step.overlap)
        return _launcher(function, config, addresses)

    def _place(self, address: Address) -> tuple[int, int]:
        """Return the region and the offset of an address."""
        if address.region == "cleared":
            return REGIONS.index("work"), address.offset + self._cleared
        return REGIONS.index(address.region), address.offset

    def _fill(self, region: int, offset: int, byte: int, nbytes: int, stream: int) -> None:
        device.fill_async(self._written[region] + offset, byte, nbytes, stream)

    # --- a call
    def addresses(self, pointers: Sequence[int], stream: int, prepared: int = 0) -> tuple[tuple[int, ...], Any]:
        """Return the addresses of all regions for a call, and the owner of its workspace in a capture, else None.

        pointers : addresses of A, B, C and D; 0: none
        """
        work, zeros, owner = 0, 0, None
        if stream and device.captures(stream):  # a call less on the default stream
            work, zeros, owner = self._captured()
        elif self.work or self.zeros:
            work, zeros = self._workspace(stream)
        A, B, C, D = pointers
        return (A, B, C, D, work, zeros, prepared, self._counts(owner is not None) if self.labels else 0), owner

    def fits(self, stream: int) -> bool:
        """Whether the stream's workspace is large enough, so that a call does not replace it."""
        held = workspaces.get((self.index, stream))
        return held is not None and held.nbytes[0] >= self.work and held.nbytes[1] >= self.zeros

    def _workspace(self, stream: int) -> list[int]:
        if not self.fits(stream):
            held = workspaces.setdefault((self.index, stream), Workspace())
            with device.entered(self.index):
                held.grow((self.work, self.zeros), stream)
        return workspaces[self.index, stream].pointers

    def _captured(self) -> tuple[int, int, Any]:
        """Return a workspace that torch allocates within the memory of the graph; the plan is kept for its replays."""
        _captured.add(self)
        torch: Any = sys.modules["torch"]
        where = f"cuda:{self.index}"
        work = torch.empty(max(self.work, 1), dtype=torch.uint8, device=where)
        zeros = torch.zeros(self.zeros, dtype=torch.uint8, device=where) if self.zeros else work
        return work.data_ptr(), zeros.data_ptr(), (work, zeros)

    def _counts(self, captured: bool) -> int:
        """Return the address of the plan's counters of entries out of range; those of a captured call are kept."""
        table, address = self._counters
        if captured or table is None or not table.current:
            table, address = counters.take(self.index, self.labels, captured=captured)
            if not captured:
                self._counters = table, address
        return address

    def queue(
        self,
        addresses: tuple[int, ...],
        stream: int = 0,
        start: int = 0,
        stop: int | None = None,
        *,
        captured: bool = False,
    ) -> None:
        """Issue the steps from `start` to `stop` with these addresses of `REGIONS`; the caller holds `lock`.

        captured : the stream is captured, so that no graph of the plan is launched
        """
        status, context = self._current_context()
        whole = self._whole and not (captured or start or stop is not None)
        if status or int(context) != self._context:  # another thread, or another GPU is current
            with device.entered(self.index):
                self._run(addresses, stream, start, stop, whole)
        else:
            self._run(addresses, stream, start, stop, whole)

    def _run(self, addresses: tuple[int, ...], stream: int, start: int, stop: int | None, whole: bool) -> None:
        """Launch the graph of these addresses, or issue the steps; whole: whether a graph may replace them."""
        if whole:
            graph = self._graphs.get(addresses)
            if graph is not None:
                (status,) = graph.launch(stream)
                if status:
                    check((status,))
                return
        if addresses != self._written:
            self._write(addresses)
        try:
            for issue in self._issue[start:stop]:
                issue(stream)
        except BaseException:  # the steps that set `zeros` to zero again may be missing
            workspaces.pop((self.index, stream), None)
            raise
        if whole:
            self._remember(addresses)

    def _write(self, addresses: tuple[int, ...]) -> None:
        self._written, words = (), self._words  # an interrupt within must not leave words of two calls
        for word, region, offset in self._slots:
            words[word] = addresses[region] + offset
        for tensor_map, region, offset in self._maps:
            check(device.bindings().cuTensorMapReplaceAddress(tensor_map, addresses[region] + offset))
        self._written = addresses

    def _remember(self, addresses: tuple[int, ...]) -> None:
        """Instantiate a graph for addresses that have come twice."""
        if addresses not in self._graphs:
            make_room(self._graphs, _MOST_GRAPHS)
            self._graphs[addresses] = None
            return
        try:
            with device.entered(self.index):  # another thread may capture a stream
                self._graphs[addresses] = _Graph(self._issue)
        except GpuError:  # the driver refuses a capture: the steps are issued one by one
            self._whole = False


def _lines(data: bytes) -> int:
    """Return the bytes of a parameter with its padding to whole lines."""
    return -(-len(data) // _LINE) * _LINE


def make_room(kept: dict[Any, Any], most: int) -> None:
    """Drop the older half of the entries if there are as many as allowed."""
    if len(kept) >= most:
        for old in list(kept)[: most // 2]:
            del kept[old]


def queue(*steps: Step) -> None:
    """Queue steps once on the default stream: those of a kernel that reads results in between.

    Their pointers are addresses on the current GPU.
    """
    cuda = device.driver()
    with lock:
        for step in steps:
            if isinstance(step, Fill):
                device.fill_async(step.pointer, step.byte, step.nbytes, 0)
            elif isinstance(step, Gemm):
                cublas.blas().gemm(step)
            else:
                values = [np.frombuffer(_packed(value), np.uint8) for value in step.arguments]
                addresses = np.array([value.__array_interface__["data"][0] for value in values], np.uint64)
                config = _fixed(step.grid, step.block, step.shared, step.cluster, step.overlap)
                function = step.module.function(step.kernel, step.shared)
                check(cuda.cuLaunchKernelEx(config, function, int(addresses.ctypes.data), 0))


def _packed(value: Any) -> bytes:
    return _encoded(value) if isinstance(value, TensorMap) else pack(value)[0]


_fixed = lru_cache(maxsize=256)(configuration)  # on the default stream


class Workspace:
    """The workspace of one stream, "work" and "zeros": it grows to the largest that its plans need."""

    def __init__(self) -> None:
        self.pointers, self.nbytes, self._buffers = [0, 0], [0, 0], list[Buffer | None]([None, None])

    def grow(self, needed: tuple[int, int], stream: int) -> None:
        """Provide so many bytes of both; the zeros are queued on the stream."""
        for i, nbytes in enumerate(needed):
            if nbytes > self.nbytes[i]:
                self._buffers[i], self.nbytes[i] = None, 0  # freed before the new one is allocated
                self._buffers[i] = buffer = Buffer(nbytes)
                self.pointers[i], self.nbytes[i] = buffer.pointer, nbytes
                if i:
                    device.fill_async(buffer.pointer, 0, nbytes, stream)


workspaces: dict[tuple[int, int], Workspace] = {}  # by GPU and handle of the stream


# --- the driver
def _launcher(function: Any, config: Any, addresses: Any) -> Callable[[int], None]:
    """Return the function that launches a kernel on a stream, with one call of the driver."""
    launch, address, last = device.bindings().cuLaunchKernelEx, int(addresses.ctypes.data), 0

    def issue(stream: int, keep: Any = addresses) -> None:
        nonlocal last
        if stream != last:
            config.hStream = last = stream
        (status,) = launch(config, function, address, 0)
        if status:
            check((status,))

    return issue


def _encoded(tensor: TensorMap) -> bytes:
    """Return the 128 bytes of a tensor map; those of an `Address` get any address, which each call replaces."""
    cuda, rank = device.driver(), len(tensor.shape)
    tile = (*(1,) * (rank - len(tensor.box)), *tensor.box)
    encoded = check(
        cuda.cuTensorMapEncodeTiled(
            getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[tensor.itemsize]}"),
            rank,
            1 << 40 if isinstance(tensor.pointer, Address) else int(tensor.pointer),
            [cuda.cuuint64_t(n) for n in tensor.shape[::-1]],
            [cuda.cuuint64_t(n) for n in tensor.strides[::-1]],
            [cuda.cuuint32_t(n) for n in tile[::-1]],
            [cuda.cuuint32_t(1)] * rank,
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(encoded.getPtr(), 128)


class _Graph:
    """Steps as an executable CUDA graph: one call of the driver for all of them."""

    def __init__(self, issue: list[Callable[[int], None]]) -> None:
        self._index, cuda, stream = current(), device.driver(), _capture_stream()
        self._executable: Any = None
        check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            for each in issue:
                each(int(stream))
        finally:
            status, graph = cuda.cuStreamEndCapture(stream)
        check((status,))
        try:
            self._executable = check(cuda.cuGraphInstantiate(graph, 0))
        finally:
            check(cuda.cuGraphDestroy(graph))
        self.launch = partial(cuda.cuGraphLaunch, self._executable)

    def __del__(self) -> None:
        if self._executable is not None:
            with suppress(Exception), device.entered(self._index) as cuda:  # a running graph is destroyed at its end
                check(cuda.cuGraphExecDestroy(self._executable))


@per_device()
def _capture_stream() -> Any:
    cuda = device.driver()
    return check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
