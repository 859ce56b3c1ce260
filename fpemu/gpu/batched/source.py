"""CUDA C++ of a task with a configuration: constants before the source of a kernel, and its launch."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from fpemu.gpu.batched.configuration import Block, Configuration, Packed, Task, Warp, shared_memory
from fpemu.gpu.runtime.compiler import kernel_source, struct
from fpemu.gpu.runtime.device import multiprocessors


class TaskKernel(NamedTuple):
    """A kernel for a batch of tasks: its source and its launch."""

    name: str
    source: str
    tiles: tuple[int, int]  # of D along rows and columns
    blocks: int
    threads: int
    shared: int


def plan(task: Task, c: Configuration, batch: int = 1) -> TaskKernel:
    """Return the kernel of a batch of tasks with a valid configuration."""
    name, half_sums = f"batched_{c.kind}", task.accumulate == "fp16"
    exact = task.contiguous or not isinstance(c, Block | Warp)
    same = ("parts", "planar", "conjugate_a", "conjugate_b", "plain", "whole", "a_along_k", "b_along_k", "width")
    constants: dict[str, int | bool] = {name.upper(): getattr(task, name) for name in same}
    constants |= {"HALF_SUMS": half_sums, "THREE": task.products == 3, "OVERLAP": True}
    constants |= {"EXACT": exact, "CONTIGUOUS": exact and task.contiguous}
    constants |= {side: getattr(task, side) if exact else 0 for side in "MNK"}
    shared, tile = 0, (1, 1)  # tile: rows and columns of D of a group of threads
    if isinstance(c, Block):
        memory, tile, groups = shared_memory(c, task), c.block[:2], c.products
        threads, shared = c.threads[0] * c.threads[1] * groups, memory.nbytes
        constants |= dict(zip(("BLK_M", "BLK_N", "BLK_K"), c.block, strict=True))
        constants |= dict(zip(("TC_X", "TC_Y"), (2, 1) if c.tensor != (16, 16, 16) else (1, 2), strict=True))
        constants |= {"TURNED": c.turned, "DIM_X": c.threads[0], "DIM_Y": c.threads[1]}
        constants |= {"WARPS_X": c.grid[0], "WARPS_Y": c.grid[1]}
        constants |= {"PRODUCTS": groups, "STAGES": c.stages, "ASYNC": c.direct, "STAGED": c.staged}
        constants |= {"ONE_TILE": tile[0] >= task.M and tile[1] >= task.N, "RESIDENT": c.resident}
        constants |= {"FLAT": c.flat, "APART": memory.matrices_apart, "PERSISTENT": c.persistent}
        constants |= {"AHEAD": c.ahead, "BULK": c.bulk, "D_APART": memory.result_apart}
    elif isinstance(c, Warp):
        tile, groups, threads = (16 * c.rows, 8 * c.columns), c.warps, 32 * c.warps
        constants |= {"WARPS": c.warps, "ROWS": c.rows, "COLUMNS": c.columns, "STEPS": c.steps}
        constants |= {"ONCE": 16 * c.steps >= task.K, "ONE_TILE": tile[0] >= task.M and tile[1] >= task.N}
    elif isinstance(c, Packed):  # several products in an instruction
        tile, groups, threads = (8, 8), c.warps * min(16 // task.M, 16 // task.K), 32 * c.warps
        constants["WARPS"] = c.warps
    else:  # a thread for each element
        groups = threads = c.threads
        constants["THREADS"] = c.threads
    tiles = -(-task.M // tile[0]), -(-task.N // tile[1])
    if isinstance(c, Block):  # the groups of a thread block have the same tile of several products
        blocks = prod(tiles) * -(-batch // groups)
        blocks = min(blocks, c.resident * multiprocessors()) if c.persistent else blocks
    else:
        blocks = -(-prod(tiles) * batch // groups)
    source = "\n".join([f"#define FPEMU_HALF_SUMS {int(half_sums)}", struct(constants), kernel_source(f"{name}.cu")])
    return TaskKernel(name, source, tiles, blocks, threads, shared)
