"""Schemes of fp16 words on Hopper's wgmma, for any sizes: the order of sums is that of the scheme's own plan.

`kernel` gives what multiplies a shape, or None for what these kernels do not do: see
`fpemu.gpu.gemm.wgmma.schedules.schedule` for which plans they run. The text is ``kernels/hopper_gemm.cu``, the split
``kernels/hopper_split.cu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.gemm.base import (
    TASK,
    Kernel,
    LaunchCache,
    Operand,
    Prepared,
    Workspace,
    layout,
    places,
    record,
    result,
)
from fpemu.gpu.gemm.splitting import KeptSplitter, Splitter
from fpemu.gpu.gemm.wgmma import schedules, splits
from fpemu.gpu.gemm.wgmma.schedules import SMALL, Schedule, Tile
from fpemu.gpu.gemm.wgmma.splits import ChunkSplitter
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.properties import multiprocessors
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.schemes.base import Scheme, SplitScheme

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
        return -(-clusters // (multiprocessors() // tile.cluster)) * (each + _EXTRA)

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
        rules, self._workspace = scheme.rules(), Workspace()
        self._chunks = splits.takes(rules)
        self._scaling = scheme.scaling
        self._splitter: KeptSplitter = (
            ChunkSplitter("halves", {"shift": 2.0 ** rules[-1].exponent}, len(rules))
            if self._chunks
            else Splitter(rules, scheme.scaling, words=True)
        )
        self._launches = LaunchCache()

    def prepare_operands(self, operands: Sequence[Operand], on_range: str) -> list[Prepared]:
        return self._splitter.prepare(operands, self._scaling(on_range) if self._chunks else on_range)

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        slices = None
        if self.schedule.split is not None:
            slices = self._workspace.buffer("slices", 4 * multiprocessors() * self.tile.rows * self.tile.columns)
        scalars = np.array([alpha, beta], np.float32).tobytes()
        key = (_place(a), _place(b), layout(D), layout(C), scalars, slices and slices.pointer)
        if key not in self._launches:
            self._launches.keep(key, self._launch(a, b, D, alpha, beta, C, slices))
        self._launches[key].queue()

    def _launch(
        self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None, slices: device.Buffer | None
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
                "slices": slices,
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
        fit = multiprocessors() if tile.cluster == 1 else module.clusters("hopper_gemm", tile.cluster, threads, shared)
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
            keep=(where, slices, a.words, b.words),
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
