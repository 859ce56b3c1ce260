"""Schemes of fp16 words on Hopper's wgmma: ``kernels/hopper_gemm.cu`` on words split by ``kernels/hopper_split.cu``.

`fpemu.gpu.gemm.wgmma.schedules.schedule` selects the lowerings that the kernel runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fpemu.gpu.gemm.base import TASK, Kernel, Output, Prepared, result
from fpemu.gpu.gemm.splitting import Splitter
from fpemu.gpu.gemm.wgmma import schedules, splits
from fpemu.gpu.gemm.wgmma.schedules import Schedule, Tile
from fpemu.gpu.gemm.wgmma.splits import ChunkSplitter
from fpemu.gpu.runtime import matrices, modules
from fpemu.gpu.runtime.device import Buffer, multiprocessors
from fpemu.gpu.runtime.steps import Memory, Step, Struct, fields
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.schemes.base import Scheme
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.words import BALANCED

_COLUMNS = {1: (32, 64, 128, 192, 256), 2: (32, 64, 128, 176, 192, 208), 3: (32, 64, 128)}  # by accumulators
MIDDLE = 2**34  # products M N K to which launches overlap, and clusters cost more time than they save
_NONFINITE_OPERAND = fields("u8 x of, i8 row_step k_step, u8 special faults")
NONFINITE = fields("OPERAND a b", OPERAND=_NONFINITE_OPERAND)
"""The struct Nonfinite of ``kernels/hopper_nonfinite.cuh``"""
_LONG = 2**12  # K from which slices of it are distributed over thread blocks, where D has few tiles
_SHORTEST = 512  # least length in k of a slice
_PARTIAL_SUMS = 2**26  # most bytes for the partial sums of slices
_NARROW = 192  # most columns where corrections have an accumulator or a block is long: registers run out beyond


def kernel(
    scheme: Scheme, spec: MmaSpec | None, shape: tuple[int, int, int], order: KOrder | None, *, slices: bool = True
) -> Kernel | None:
    """A kernel for products of a scheme of fp16 words on Hopper, or None; the shape (M, N, K) selects its tile.

    slices : whether a kernel without a required order may split K
    """
    if not scheme.runs_by_plan or spec is None or min(shape) < 1 or spec != catalog.spec("hopper", "fp16"):
        return None
    assert isinstance(scheme, SplitScheme)
    schedule = schedules.schedule(scheme.lowering(spec, order))
    if schedule is None or len(scheme.rules()) != schedule.words or scheme.accumulator_format != "fp32":
        return None
    if order is None and slices and (length := slice_length(shape, schedule)) is not None:
        order, schedule = KOrder(split=length), replace(schedule, split=length)
    tile = choose(shape, schedule) if schedule.split is None else few_tiles(shape) or choose(shape, schedule)
    return Hopper(scheme, spec, order, schedule, tile)


def few_tiles(shape: tuple[int, int, int]) -> Tile | None:
    """The tile for slices distributed over thread blocks; None: K is short, or enough blocks have tiles without."""
    M, N, K = shape
    tile = Tile(min((c for c in (32, 64) if c >= N), default=128), cluster=1, rows=64 if M <= 64 else 128)
    return tile if K >= _LONG and 4 * tile.count(M, N) <= multiprocessors() else None


def slice_length(shape: tuple[int, int, int], schedule: Schedule) -> int | None:
    """Length in k of the slices for which every multiprocessor has one, or at least `_SHORTEST`; None: no slices."""
    tile, (M, N, K) = few_tiles(shape), shape
    if tile is None or schedule.rest:
        return None
    length = max(_SHORTEST, -(-K * tile.count(M, N) // multiprocessors()))
    return -(-length // schedule.round) * schedule.round


def choose(shape: tuple[int, int, int], schedule: Schedule) -> Tile:
    """The tile with the least estimated time."""
    M, N, K = shape
    alone = schedule.words == 2 and M * N * K < MIDDLE
    tiles = [Tile(c, 1 if alone or rows >= M else 2, rows=rows) for rows in (128, 64) for c in columns(schedule)]
    tiles = [tile for tile in tiles if schedules.stages(tile) >= schedule.least_stages]
    if schedules.fits_halves(schedule):
        tiles.append(Tile(256, 1 if alone or M <= 128 else 2, halves=True))
    return schedules.best_tile(tiles, shape)


def columns(schedule: Schedule) -> list[int]:
    """Columns that a tile may have in one part: all for which no number of a thread spills from its registers."""
    narrow = schedule.rest or schedule.block > schedules.CHUNK
    return [c for c in _COLUMNS[schedule.accumulators] if c <= _NARROW or not narrow]


class Hopper(Kernel):
    """A scheme of one or two fp16 words on wgmma."""

    patches = True

    def __init__(
        self, scheme: SplitScheme, spec: MmaSpec, order: KOrder | None, schedule: Schedule, tile: Tile
    ) -> None:
        self.scheme: SplitScheme = scheme
        self.spec, self.order, self.tile = spec, order, tile
        self.schedule, self.name, rules = schedule, f"hopper {tile}", scheme.rules()
        balanced, settings = rules[0].rounding == BALANCED, {"shift": 2.0 ** rules[-1].exponent}
        if splits.takes(rules):
            self.splitter = ChunkSplitter("halves", settings, len(rules), scheme.scaling, balanced=balanced)
        else:
            self.splitter = Splitter(rules, scheme.scaling, words=True)

    def multiply(self, a: Prepared, b: Prepared, end: Output, memory: Memory) -> list[Step]:
        tile, split = self.tile, self.schedule.split
        tiles = end.count * tile.count(a.rows, b.rows)
        slices, spread = None, 0  # slices of a tile that thread blocks compute; 0: one block computes all of them
        if split is not None:
            spread, size = -(-a.K // split), 4 * tile.rows * tile.columns
            if tile.cluster > 1 or 2 * tiles > multiprocessors() or tiles * spread * size > _PARTIAL_SUMS:
                spread = 0
            slices = memory.block(size * (tiles * spread or multiprocessors()))
        where = Buffer.of(end.where(a, b)) if end.count > 1 else None
        values = {"out": result(self, end), "where": where, "slices": slices, "group": tile.group, "batch": end.count}
        values |= {"row_exponents": a.exponents, "column_exponents": b.exponents, "M": a.rows, "N": b.rows, "K": a.K}
        task = Struct(TASK, values | {"evict_first": splits.evict_first((a.source, b.source))})
        nonfinite = _nonfinite(a, b)
        sides = ((a, tile.rows), (b, tile.box))
        maps = [splits.tiles(x, i, 2, height) for x, height in sides for i in range(len(x.words))]
        shared, threads = schedules.shared_bytes(tile), 128 + 2 * tile.rows
        module = modules.module(schedules.source(self.schedule, tile, spread=bool(spread)), "hopper_gemm.cu")
        fit = module.clusters("hopper_gemm", tile.cluster, threads, shared)
        launch = "hopper_gemm", min(fit, tiles * (spread or 1)) * tile.cluster, threads, maps, task, nonfinite
        overlap = a.rows * b.rows * a.K * end.count < MIDDLE
        steps: list[Step] = [module.step(*launch, shared=shared, cluster=tile.cluster, overlap=overlap)]
        if spread:
            reduction = "hopper_reduce", tiles * tile.rows * tile.columns // 256, 256, task, nonfinite, np.int32(spread)
            steps.append(modules.module(schedules.reduction(tile), "hopper_reduce.cu").step(*reduction, overlap=True))
        return steps


def _nonfinite(a: Prepared, b: Prepared) -> Struct:
    """The struct Nonfinite, all zero where special rows were not looked for."""
    if a.special is None or b.special is None:
        return Struct(NONFINITE, {})
    sides = {}
    for x in (a, b):
        table = matrices.table(x.source) if x.source.count > 1 else None
        row, k = x.steps
        values = {"x": x.source, "of": table, "row_step": row, "k_step": k, "special": x.special, "faults": x.faults}
        sides[x.name.lower()] = Struct(_NONFINITE_OPERAND, values)
    return Struct(NONFINITE, sides)
