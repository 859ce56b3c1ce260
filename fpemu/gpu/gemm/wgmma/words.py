"""Schemes of fp16 words on Hopper's wgmma, for any sizes: the order of sums is that of the scheme's own plan.

`kernel` gives what multiplies a shape, or None for what these kernels do not do: see
`fpemu.gpu.gemm.wgmma.schedules.schedule` for which plans they run. The text is ``kernels/hopper_gemm.cu``, the split
``kernels/hopper_split.cu``.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.gemm import splitting
from fpemu.gpu.gemm.kernel import TASK, Kernel, Prepared, Workspace, keep, layout, places, record, result
from fpemu.gpu.gemm.wgmma import schedules, splits
from fpemu.gpu.gemm.wgmma.schedules import SMALL, Schedule, Tile
from fpemu.gpu.gemm.wgmma.splits import Splitter
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.schemes.base import Scheme, SplitScheme

PROCESSORS = 132  # of an H100 or H200 (SXM); the tile is chosen for so many
_COLUMNS = {1: (32, 64, 128, 192, 256), 2: (32, 64, 128, 176, 192, 208), 3: (32, 64, 128)}  # by accumulators
MIDDLE = 2**34  # from SMALL to here thread blocks do without clusters: what they save is less than what meeting costs
_NARROW = 192  # columns, at most, where corrections have an accumulator or a block is long: registers run out beyond
_EXTRA = 8  # columns that a tile costs beyond its own: filling the pipeline, the result's way out
_HALF = 0.75  # of the time of a tile of 128 rows that one of 64 takes


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
    if not scheme.runs_by_plan or spec is None or min(shape) < 1 or spec != catalog.spec("hopper", "fp16"):
        return None
    assert isinstance(scheme, SplitScheme)
    found = schedules.schedule(scheme.lowering(spec, order))
    if found is None or len(scheme.rules()) != found.words or scheme.accumulator_format != "fp32":
        return None
    return Hopper(scheme, spec, order, found, choose(shape, found))


def choose(shape: tuple[int, int, int], schedule: Schedule) -> Tile:
    """The tile with the least estimated time: waves of tiles, times what a tile costs."""
    M, N, K = shape
    alone = schedule.words == 2 and SMALL <= M * N * K < MIDDLE

    def cost(tile: Tile) -> float:
        clusters = -(-M // (tile.rows * tile.cluster)) * -(-N // tile.columns)
        each = tile.columns if tile.rows == 128 else tile.columns * _HALF
        return -(-clusters // (PROCESSORS // tile.cluster)) * (each + _EXTRA)

    tiles = (Tile(c, 1 if alone or rows >= M else 2, rows=rows) for rows in (128, 64) for c in columns(schedule))
    return min(tiles, key=cost)


def columns(schedule: Schedule) -> list[int]:
    """Columns that a tile may have: all that leave no number of a thread outside of its registers."""
    narrow = schedule.rest or schedule.block > schedules.CHUNK
    return [c for c in _COLUMNS[schedule.accumulators] if c <= _NARROW or not narrow]


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
    """

    def __init__(
        self, scheme: SplitScheme, spec: MmaSpec, order: KOrder | None, schedule: Schedule, tile: Tile
    ) -> None:
        self.scheme, self.spec, self.order, self.tile = scheme, spec, order, tile
        self.schedule, self.name = schedule, f"hopper {tile}"
        self._rules, self._policy, self._room = scheme.rules(), scheme.scaling, Workspace()
        self._splitter = Splitter("halves", {"shift": 2.0 ** self._rules[-1].exponent}, len(self._rules))
        self._launches: dict[Any, device.Launch] = {}

    def prepare(self, X: Matrix, who: str, on_range: str) -> Prepared:
        return self._prepared([(X, who)], on_range)[0]

    def both(self, A: Matrix, B: Matrix, on_range: str) -> tuple[Prepared, Prepared]:
        a, b = self._prepared([(A, "A"), (B, "B")], on_range)
        return a, b

    def _prepared(self, operands: list[tuple[Matrix, str]], on_range: str) -> list[Prepared]:
        scaling, rules = self._policy(on_range), self._rules
        if splits.takes(rules):
            return self._splitter.prepare(operands, scaling)
        return [splitting.prepare(X, who, rules, on_range, scaling, room=self._room) for X, who in operands]

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        room = None
        if self.schedule.split is not None:
            room = self._room.buffer("slices", 4 * PROCESSORS * self.tile.rows * self.tile.columns)
        scalars = np.array([alpha, beta], np.float32).tobytes()
        key = (_place(a), _place(b), layout(D), layout(C), scalars, room and room.pointer)
        if key not in self._launches:
            keep(self._launches, key, self._launch(a, b, D, alpha, beta, C, room))
        self._launches[key].queue()

    def _launch(
        self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None, room: device.Buffer | None
    ) -> device.Launch:
        batch, K, tile = prod(D.shape[:-2]), a.source.shape[-1], self.tile
        where = device.Buffer.of(_where(a.source, b.source, D, C)) if batch > 1 else None
        task = record(
            TASK,
            {
                "out": result(self, D, alpha, beta, C),
                "where": where,
                "row_exponents": a.exponents,
                "column_exponents": b.exponents,
                "slices": room,
                "M": a.rows,
                "N": b.rows,
                "K": K,
                "batch": batch,
                "group": tile.group,
            },
        )
        sides = ((a, tile.rows), (b, tile.columns))
        maps = [splits.tiles(x, i, 2, height) for x, height in sides for i in range(len(x.words))]
        module, shared, threads = _module(self.schedule, tile), schedules.shared_bytes(tile), 128 + 2 * tile.rows
        fit = PROCESSORS if tile.cluster == 1 else module.clusters("hopper_gemm", tile.cluster, threads, shared)
        clusters = -(-a.rows // (tile.rows * tile.cluster)) * -(-b.rows // tile.columns) * batch
        return module.prepare(
            "hopper_gemm",
            min(fit, clusters) * tile.cluster,
            threads,
            np.stack(maps),
            task,
            shared=shared,
            cluster=tile.cluster,
            overlap=a.rows * b.rows * K * batch < SMALL,
            keep=(where, room, a.words, b.words),
        )


def _place(x: Prepared) -> Any:
    """What a launch depends on in an operand."""
    exponents = None if x.exponents is None else x.exponents.pointer
    return x.source.shape, x.source.strides, tuple(w.pointer for w in x.words), x.pitch, exponents


def _where(A: Matrix, B: Matrix, D: Matrix, C: Matrix | None) -> NDArray[np.int64]:
    """For each product of a batch: which matrices of A and B, and where D and C begin (struct Where)."""
    lead = D.shape[:-2]
    return np.stack([A.index(lead), B.index(lead), *places(D, C)], axis=1)


@cache
def _module(schedule: Schedule, tile: Tile) -> device.Module:
    return device.Module(schedules.source(schedule, tile), name="hopper_gemm.cu")
