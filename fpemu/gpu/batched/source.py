"""The CUDA C++ of a task by a configuration: constants before the text of a kernel, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fpemu.gpu.batched.configuration import Block, Configuration, Packed, Small, Warp
from fpemu.gpu.batched.memory import apart, result_apart, shared_bytes
from fpemu.gpu.batched.task import Task
from fpemu.gpu.runtime.compiler import kernel_source
from fpemu.gpu.runtime.constants import struct


@dataclass(frozen=True)
class Plan:
    """A kernel for a task: its text, and the launch."""

    name: str
    source: str
    threads: int
    shared: int
    tile: tuple[int, int]
    """Rows and columns of D that a group of threads makes"""
    groups: int
    """Groups of a thread block, each with a tile of its own"""
    packed: int = 1
    """Products of a group"""
    persistent: int = 0
    """Thread blocks that a multiprocessor is to hold, which take products in turns; 0: a thread block for each"""

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
def plan(task: Task, configuration: Configuration, overlap: bool = True) -> Plan:
    """The kernel of a task by a configuration that is valid for it.

    Parameters
    ----------
    task : Task
    configuration : Block, Warp, Packed or Small
    overlap : bool
        The kernel may begin before the one queued before it has ended, and waits by itself (Hopper and later).
    """
    constants = _common(task, overlap)
    name = f"batched_{configuration.kind}"
    if isinstance(configuration, Block):
        c = configuration
        x, y = (2, 1) if c.tensor != (16, 16, 16) else (1, 2)
        warps = c.grid
        one = c.block[0] >= task.M and c.block[1] >= task.N
        constants |= {
            "BLK_M": c.block[0],
            "BLK_N": c.block[1],
            "BLK_K": c.block[2],
            "TC_X": x,
            "TC_Y": y,
            "TURNED": c.turned,
            "DIM_X": c.threads[0],
            "DIM_Y": c.threads[1],
            "WARPS_X": warps[0],
            "WARPS_Y": warps[1],
            "PRODUCTS": c.products,
            "STAGES": c.stages,
            "ASYNC": c.direct,
            "STAGED": c.staged,
            "ONE_TILE": one,
            "RESIDENT": c.resident,
            "FLAT": c.flat,
            "APART": apart(c, task),
            "PERSISTENT": c.persistent,
            "AHEAD": c.ahead and overlap,
            "BULK": c.bulk,
            "D_APART": result_apart(c, task),
            **_sizes(task, exact=task.contiguous),
        }
        group = c.threads[0] * c.threads[1]
        held = c.resident * c.persistent
        made = Plan(name, "", group * c.products, shared_bytes(c, task), c.block[:2], c.products, 1, held)
    elif isinstance(configuration, Warp):
        w = configuration
        tile = 16 * w.rows, 8 * w.columns
        constants |= {
            "WARPS": w.warps,
            "ROWS": w.rows,
            "COLUMNS": w.columns,
            "STEPS": w.steps,
            "ONCE": 16 * w.steps >= task.K,
            "ONE_TILE": tile[0] >= task.M and tile[1] >= task.N,
            **_sizes(task, exact=task.contiguous),
        }
        made = Plan(name, "", 32 * w.warps, 0, tile, w.warps)
    elif isinstance(configuration, Packed):
        constants |= {"WARPS": configuration.warps, **_sizes(task)}
        many = min(16 // task.M, 16 // task.K)
        made = Plan(name, "", 32 * configuration.warps, 0, (8, 8), configuration.warps, many)
    else:
        assert isinstance(configuration, Small)
        constants |= {"THREADS": configuration.threads, **_sizes(task)}
        made = Plan(name, "", configuration.threads, 0, (task.M, task.N), 1)
    lines = [f"#define FPEMU_HALF_SUMS {int(task.accumulate == 'fp16')}", struct(constants)]
    text = "\n".join([*lines, kernel_source(f"{name}.cu")])
    return Plan(name, text, made.threads, made.shared, made.tile, made.groups, made.packed, made.persistent)


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
    """What a kernel without shared memory knows of the sizes: all, and the distances where there are no gaps."""
    sizes = {"M": task.M, "N": task.N, "K": task.K} if exact else {"M": 0, "N": 0, "K": 0}
    return {"EXACT": exact, "CONTIGUOUS": exact and task.contiguous, **sizes}
