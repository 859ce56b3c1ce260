"""Schemes of fp16 words on Hopper's wgmma, for any sizes: the order of sums is that of the scheme's own plan.

`kernel` gives what multiplies a shape, or None for what these kernels do not do: see
`fpemu.gpu.hopper.schedules.schedule` for which plans they run. The text is ``kernels/hopper_gemm.cu``, the split
``kernels/hopper_split.cu``.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.gpu import device
from fpemu.gpu.hopper import schedules, splits
from fpemu.gpu.hopper.schedules import Schedule, Tile
from fpemu.gpu.hopper.splits import Begun, Split
from fpemu.gpu.kernel import Kernel, Prepared, Room
from fpemu.gpu.matrices import Matrix
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme, SplitScheme
from fpemu.schemes.fp16 import Half

TASK = np.dtype(
    [*((name, "<u8") for name in ("D", "C", "where", "row_exponents", "column_exponents", "slices")),
     *((name, "<i8") for name in ("d_row", "c_row", "c_column")), ("alpha", "<f4"), ("beta", "<f4"), ("nan", "<u4"),
     *((name, "<i4") for name in ("M", "N", "K", "batch", "group"))],
)  # fmt: skip
"""The struct Task of ``kernels/hopper_tile.cuh``"""
PIECE, LAG = 512, 32  # of what is split in the background
PROCESSORS = 132  # of an H100 or H200 (SXM); the tile is chosen for so many
ROWS, THREADS = 128, 384  # of a tile; of a thread block
_COLUMNS = {1: (32, 64, 128, 192, 256), 2: (32, 64, 128, 176, 192, 208), 3: (32, 64, 128)}  # by accumulators
BACKGROUND_COLUMNS = 192  # at most, for a kernel that splits in the background: it has registers for no more
_EXTRA = 8  # columns that a tile costs beyond its own: filling the pipeline, the result's way out


def kernel(scheme: Scheme, spec: MmaSpec | None, shape: tuple[int, int, int], order: KOrder | None) -> Kernel | None:
    """A kernel for a product (M, N, K) of a scheme on Hopper, None where there is none.

    Parameters
    ----------
    scheme : Scheme
    spec : MmaSpec or None
        The instruction: wgmma on fp16 with fp32 accumulators.
    shape : (M, N, K)
        The tile is chosen for it; the kernel takes any other shape too.
    order : KOrder or None
        None, or an order with promotions that the kernel can make.
    """
    if not isinstance(scheme, SplitScheme) or spec is None or min(shape) < 1 or spec != mma.spec("hopper", "fp16"):
        return None
    if type(scheme).product not in (SplitScheme.product, Half.product):  # Half's adds a refusal
        return None
    found = schedules.schedule(scheme.plan(), spec, order)
    if found is None or len(scheme.rules()) != found.words or scheme.accumulator_format != "fp32":
        return None
    return Hopper(scheme, spec, order, found, choose(shape, found))


def choose(shape: tuple[int, int, int], schedule: Schedule, most: int = 256) -> Tile:
    """The tile with the least estimated time: waves of tiles, times what a tile costs; at most so many columns."""
    M, N, _ = shape
    cluster = 2 if M > ROWS else 1

    def cost(columns: int) -> int:
        clusters = -(-M // (ROWS * cluster)) * -(-N // columns)
        return -(-clusters // (PROCESSORS // cluster)) * (columns + _EXTRA)

    return Tile(min((c for c in _COLUMNS[schedule.accumulators] if c <= most), key=cost), cluster)


class Hopper(Kernel):
    """A scheme of one or two fp16 words on wgmma.

    Parameters
    ----------
    scheme : SplitScheme
    spec : MmaSpec
    order : KOrder or None
    schedule : Schedule
        What runs in a block of k.
    tile : Tile
    background : bool
        `prepare` splits no more than the first tiles need, and `multiply` the rest, while it multiplies: faults and
        special rows are known after `multiply` then.
    """

    def __init__(
        self, scheme: SplitScheme, spec: MmaSpec, order: KOrder | None, schedule: Schedule, tile: Tile, *,
        background: bool = False,
    ) -> None:  # fmt: skip
        self.scheme, self.spec, self.order, self.tile = scheme, spec, order, tile
        self.schedule, self.name = schedule, f"hopper {tile}"
        self.background, self._rules, self._policy, self._room = background, scheme.rules(), scheme._policy, Room()
        self._splits: dict[Any, Split] = {}
        self._launches: dict[Any, device.Launch] = {}

    def prepare(self, X: Matrix, who: str, on_range: str) -> Prepared:
        scaling = self._policy(on_range)
        if not splits.takes(self._rules):
            from fpemu.gpu import splitting

            return splitting.prepare(X, who, self._rules, on_range, scaling, room=self._room)
        key = (X.pointer, X.shape, X.strides, who, scaling)
        if key not in self._splits:
            first = None
            if self.background:
                high = self.tile.group * self.tile.cluster
                first = high * ROWS if who == "A" else -(-PROCESSORS // high) * self.tile.columns
            new = Split(X, who, self._rules, scaling, self._room, first)
            for old in [k for k, s in self._splits.items() if s.outgrown(new)]:
                del self._splits[old]
            _keep(self._splits, key, new)
        return self._splits[key].start(X)

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        begun = [x for x in (a, b) if isinstance(x, Begun) and x.split < x.rows]
        if begun and prod(D.shape[:-2]) > 1:
            for x in begun:
                x.finish()
            begun = []
        room = [self._room.zeros("counters", 4 * sum(_counters(a, b)))] if begun else []
        if self.schedule.split is not None:
            room.append(self._room.buffer("slices", 4 * PROCESSORS * ROWS * self.tile.columns))
        scalars = np.array([alpha, beta], np.float32).tobytes()
        more = [*((x.who, x.source.pointer) for x in begun), *(buffer.pointer for buffer in room)]
        key = (*map(_place, (a, b)), *map(_layout, (D, C)), scalars, *more)
        if key not in self._launches:
            _keep(self._launches, key, self._prepared(a, b, D, alpha, beta, C, begun, room))
        self._launches[key].queue()
        for x in begun:
            x.split = x.rows

    def _background(self, a: Prepared, b: Prepared, counters: device.Buffer) -> NDArray[Any]:
        """The struct Background."""
        sizes, more = _counters(a, b), np.zeros(1, splits.BACKGROUND)
        more["piece"], more["lag"] = PIECE, LAG
        at = [counters.pointer + 4 * sum(sizes[:i]) for i in range(len(sizes))]
        more["queue"], more["done"], more["surveyed"], more["largest"] = at[0], at[1:3], at[3:5], at[5:7]
        for i, x in enumerate((a, b)):
            more["first"][0, i] = x.split if isinstance(x, Begun) else x.rows
            if isinstance(x, Begun) and x.plan is not None:
                more["operands"][0, i] = x.plan.operand[0]
        return more

    def _task(
        self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None
    ) -> NDArray[Any]:  # fmt: skip
        """The struct Task, but for the table of a batch."""
        task = np.zeros(1, TASK)
        c = None if C is None else C.broadcast(D.shape)
        for name, value in {
            "D": D.pointer, "C": 0 if c is None else c.pointer, "d_row": D.strides[-2],
            "row_exponents": 0 if a.exponents is None else a.exponents.pointer,
            "column_exponents": 0 if b.exponents is None else b.exponents.pointer,
            "c_row": 0 if c is None else c.strides[-2], "c_column": 0 if c is None else c.strides[-1],
            "alpha": alpha, "beta": beta, "nan": self.scheme.nan_code(self.spec), "M": a.rows, "N": b.rows,
            "K": a.source.shape[-1], "batch": prod(D.shape[:-2]), "group": self.tile.group,
        }.items():  # fmt: skip
            task[name] = value
        return task

    def _prepared(
        self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None, begun: list[Begun],
        room: list[device.Buffer],
    ) -> device.Launch:  # fmt: skip
        task, keep = self._task(a, b, D, alpha, beta, C), [*room]
        more = self._background(a, b, room[0]) if begun else np.zeros(1, np.uint8)
        if self.schedule.split is not None:
            task["slices"] = room[-1].pointer
        if prod(D.shape[:-2]) > 1:
            keep.append(device.Buffer.of(_where(a.source, b.source, D, C)))
            task["where"] = keep[-1].pointer
        K, cluster = a.source.shape[-1], self.tile.cluster
        maps = [
            device.tensor_map(word.pointer, 2, (x.source.count, x.rows, K), (2 * x.rows * x.pitch, 2 * x.pitch),
                              (height, schedules.CHUNK))
            for x, height in ((a, ROWS), (b, self.tile.columns)) for word in x.words
        ]  # fmt: skip
        threads = THREADS + 128 * bool(begun)
        module, shared = _module(self.schedule, self.tile, bool(begun)), schedules.shared_bytes(self.tile)
        fit = PROCESSORS if cluster == 1 else module.clusters("multiply", cluster, threads, shared)
        clusters = -(-a.rows // (ROWS * cluster)) * -(-b.rows // self.tile.columns) * int(task["batch"][0])
        grid = min(fit, clusters) * cluster
        return module.prepare("multiply", grid, threads, np.stack(maps), task, more, shared=shared, cluster=cluster,
                              keep=keep)  # fmt: skip


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Enter something into a small store: a caller with ever new arrays does not fill the memory."""
    if len(kept) >= 16:
        kept.clear()
    kept[key] = value


def _place(x: Prepared) -> Any:
    """What a launch depends on in an operand."""
    exponents = None if x.exponents is None else x.exponents.pointer
    return x.source.shape, x.source.strides, tuple(w.pointer for w in x.words), x.pitch, exponents


def _layout(X: Matrix | None) -> Any:
    return None if X is None else (X.pointer, X.shape, X.strides)


def _counters(a: Prepared, b: Prepared) -> list[int]:
    """How many counters the struct Background has: the queue, panels done and surveyed, and for each row two."""
    panels = [-(-x.rows // splits.PANEL) for x in (a, b)]
    return [1, *panels, *panels, 2 * a.rows, 2 * b.rows]


def _where(A: Matrix, B: Matrix, D: Matrix, C: Matrix | None) -> NDArray[np.int64]:
    """For each product of a batch: which matrices of A and B, and where D and C begin (struct Where)."""
    lead = D.shape[:-2]
    of_c = np.zeros(prod(lead), np.int64) if C is None else C.broadcast(D.shape).offsets(lead)
    return np.stack([A.index(lead), B.index(lead), D.offsets(lead), of_c], axis=1)


@cache
def _module(schedule: Schedule, tile: Tile, background: bool) -> device.Module:
    return device.Module(schedules.source(schedule, tile, background), name="hopper_gemm.cu")
