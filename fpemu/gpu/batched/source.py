"""CUDA C++ of a task with a configuration: constants before the source of a kernel, and its launch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from fpemu.gpu.batched.configuration import Block, Configuration, Packed, Task, Warp, apart, result_apart, shared_bytes
from fpemu.gpu.runtime.compiler import kernel_source, struct


class TaskKernel(NamedTuple):
    """A kernel for a task: its source and its launch."""

    name: str
    source: str
    threads: int
    shared: int = 0
    tile: tuple[int, int] = (1, 1)  # rows and columns of D of a group of threads
    groups: int = 1  # groups of a thread block, each with its own tile
    packed: int = 1  # products of a group
    persistent: int = 0  # thread blocks of a multiprocessor, which alternate over products; 0: one block per product

    def tiles(self, M: int, N: int) -> tuple[int, int]:
        """Tiles of D along rows and columns."""
        return -(-M // self.tile[0]), -(-N // self.tile[1])

    def blocks(self, M: int, N: int, batch: int) -> int:
        """Thread blocks of a launch."""
        rows, columns = self.tiles(M, N)
        if self.name == "batched_block":  # the groups of a thread block have the same tile of several products
            return rows * columns * -(-batch // self.groups)
        return -(-rows * columns * batch // (self.groups * self.packed))


@lru_cache(maxsize=4096)
def plan(task: Task, configuration: Configuration, overlap: bool = True) -> TaskKernel:
    """Return the kernel of a task with a valid configuration.

    overlap: the kernel may begin before the previously queued one has ended, and waits for it (Hopper and later).
    """
    c, name = configuration, f"batched_{configuration.kind}"
    exact = task.contiguous or not isinstance(c, Block | Warp)
    same = ("parts", "planar", "conjugate_a", "conjugate_b", "plain", "whole", "a_along_k", "b_along_k", "width")
    constants: dict[str, int | bool] = {name.upper(): getattr(task, name) for name in same}
    constants |= {"HALF_SUMS": task.accumulate == "fp16", "THREE": task.products == 3, "OVERLAP": overlap}
    constants |= {"EXACT": exact, "CONTIGUOUS": exact and task.contiguous}
    constants |= {side: getattr(task, side) if exact else 0 for side in "MNK"}
    launch: dict[str, Any] = {"groups": getattr(c, "warps", 1), "threads": 32 * getattr(c, "warps", 0)}
    if isinstance(c, Block):
        constants |= dict(zip(("BLK_M", "BLK_N", "BLK_K"), c.block, strict=True))
        constants |= dict(zip(("TC_X", "TC_Y"), (2, 1) if c.tensor != (16, 16, 16) else (1, 2), strict=True))
        constants |= {"TURNED": c.turned, "DIM_X": c.threads[0], "DIM_Y": c.threads[1]}
        constants |= {"WARPS_X": c.grid[0], "WARPS_Y": c.grid[1]}
        constants |= {"PRODUCTS": c.products, "STAGES": c.stages, "ASYNC": c.direct, "STAGED": c.staged}
        constants |= {"ONE_TILE": c.block[0] >= task.M and c.block[1] >= task.N, "RESIDENT": c.resident}
        constants |= {"FLAT": c.flat, "APART": apart(c, task), "PERSISTENT": c.persistent}
        constants |= {"AHEAD": c.ahead and overlap, "BULK": c.bulk, "D_APART": result_apart(c, task)}
        launch = {"threads": c.threads[0] * c.threads[1] * c.products, "shared": shared_bytes(c, task)}
        launch |= {"tile": c.block[:2], "groups": c.products, "persistent": c.resident * c.persistent}
    elif isinstance(c, Warp):
        tile = 16 * c.rows, 8 * c.columns
        constants |= {"WARPS": c.warps, "ROWS": c.rows, "COLUMNS": c.columns, "STEPS": c.steps}
        constants |= {"ONCE": 16 * c.steps >= task.K, "ONE_TILE": tile[0] >= task.M and tile[1] >= task.N}
        launch |= {"tile": tile}
    elif isinstance(c, Packed):
        constants["WARPS"] = c.warps
        launch |= {"tile": (8, 8), "packed": min(16 // task.M, 16 // task.K)}
    else:  # a thread for each element
        constants["THREADS"] = c.threads
        launch = {"threads": c.threads, "groups": c.threads}
    sums = f"#define FPEMU_HALF_SUMS {int(task.accumulate == 'fp16')}"
    return TaskKernel(name, "\n".join([sums, struct(constants), kernel_source(f"{name}.cu")]), **launch)
