"""CUDA C++ of a task with a configuration: constants before the source of a kernel, and its launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from fpemu.gpu.batched.configuration import Block, Configuration, Packed, Task, Warp, apart, result_apart, shared_bytes
from fpemu.gpu.runtime.compiler import kernel_source
from fpemu.gpu.runtime.constants import struct


@dataclass(frozen=True)
class TaskKernel:
    """A kernel for a task: its source and its launch."""

    name: str
    source: str
    threads: int
    shared: int
    tile: tuple[int, int]  # rows and columns of D of a group of threads
    groups: int  # groups of a thread block, each with its own tile
    packed: int = 1  # products of a group
    persistent: int = 0  # thread blocks of a multiprocessor, which alternate over products; 0: one block per product

    def tiles(self, M: int, N: int) -> tuple[int, int]:
        """Tiles of D along rows and columns."""
        return -(-M // self.tile[0]), -(-N // self.tile[1])

    def blocks(self, M: int, N: int, batch: int) -> int:
        """Thread blocks of a launch."""
        rows, columns = self.tiles(M, N)
        if self.name == "batched_small":
            return -(-batch * M * N // self.threads)
        if self.name == "batched_block":
            return rows * columns * -(-batch // self.groups)
        return -(-rows * columns * batch // (self.groups * self.packed))


@lru_cache(maxsize=4096)
def plan(task: Task, configuration: Configuration, overlap: bool = True) -> TaskKernel:
    """Return the kernel of a task with a valid configuration.

    overlap: the kernel may begin before the previously queued one has ended, and waits for it (Hopper and later).
    """
    constants = _common(task, overlap)
    name = f"batched_{configuration.kind}"
    exact = _sizes(task, exact=task.contiguous)
    if isinstance(configuration, Block):
        c = configuration
        constants |= dict(zip(("BLK_M", "BLK_N", "BLK_K"), c.block, strict=True))
        constants |= dict(zip(("TC_X", "TC_Y"), (2, 1) if c.tensor != (16, 16, 16) else (1, 2), strict=True))
        constants |= {"TURNED": c.turned, "DIM_X": c.threads[0], "DIM_Y": c.threads[1]}
        constants |= {"WARPS_X": c.grid[0], "WARPS_Y": c.grid[1]}
        constants |= {"PRODUCTS": c.products, "STAGES": c.stages, "ASYNC": c.direct, "STAGED": c.staged}
        constants |= {"ONE_TILE": c.block[0] >= task.M and c.block[1] >= task.N, "RESIDENT": c.resident}
        constants |= {"FLAT": c.flat, "APART": apart(c, task), "PERSISTENT": c.persistent}
        constants |= {"AHEAD": c.ahead and overlap, "BULK": c.bulk, "D_APART": result_apart(c, task), **exact}
        threads, shared = c.threads[0] * c.threads[1] * c.products, shared_bytes(c, task)
        kernel = TaskKernel(name, "", threads, shared, c.block[:2], c.products, 1, c.resident * c.persistent)
    elif isinstance(configuration, Warp):
        w = configuration
        tile = 16 * w.rows, 8 * w.columns
        constants |= {"WARPS": w.warps, "ROWS": w.rows, "COLUMNS": w.columns, "STEPS": w.steps}
        constants |= {"ONCE": 16 * w.steps >= task.K, "ONE_TILE": tile[0] >= task.M and tile[1] >= task.N, **exact}
        kernel = TaskKernel(name, "", 32 * w.warps, 0, tile, w.warps)
    elif isinstance(configuration, Packed):
        constants |= {"WARPS": configuration.warps, **_sizes(task)}
        count = min(16 // task.M, 16 // task.K)
        kernel = TaskKernel(name, "", 32 * configuration.warps, 0, (8, 8), configuration.warps, count)
    else:
        constants |= {"THREADS": configuration.threads, **_sizes(task)}
        kernel = TaskKernel(name, "", configuration.threads, 0, (task.M, task.N), 1)
    lines = [f"#define FPEMU_HALF_SUMS {int(task.accumulate == 'fp16')}", struct(constants)]
    return replace(kernel, source="\n".join([*lines, kernel_source(f"{name}.cu")]))


def _common(task: Task, overlap: bool) -> dict[str, int | bool]:
    return {
        "PARTS": task.parts,
        "PLANAR": task.planar,
        "HALF_SUMS": task.accumulate == "fp16",
        "THREE": task.products == 3,
        "CONJUGATE_A": task.conjugate_a,
        "CONJUGATE_B": task.conjugate_b,
        "PLAIN": task.plain,
        "WHOLE": task.whole,
        "OVERLAP": overlap,
        "A_ALONG_K": task.a_along_k,
        "B_ALONG_K": task.b_along_k,
        "WIDTH": task.width,
    }


def _sizes(task: Task, exact: bool = True) -> dict[str, int | bool]:
    """Constants for the sizes, if the kernel is compiled for them, and for matrices without gaps."""
    sizes = {"M": task.M, "N": task.N, "K": task.K} if exact else {"M": 0, "N": 0, "K": 0}
    return {"EXACT": exact, "CONTIGUOUS": exact and task.contiguous, **sizes}
