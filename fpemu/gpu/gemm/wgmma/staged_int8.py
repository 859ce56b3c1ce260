"""The kernel of `staged-int8` on Hopper: corrections by int8 products beside the fp16 product, two units of time.

kernels/staged_int8_split.cu splits the operands, kernels/staged_int8_gemm.cu multiplies them; `kernel` returns None for
products without a kernel. The order is that of the scheme: stages of 64, k ascending, corrections joined at the end.
"""

from __future__ import annotations

from typing import Any

from fpemu.gpu.gemm.base import TASK, Kernel, Output, Prepared, result
from fpemu.gpu.gemm.wgmma.schedules import SHARED, SMALL, Tile, best_tile, wgmma
from fpemu.gpu.gemm.wgmma.splits import ChunkSplitter, tiles
from fpemu.gpu.runtime import compiler, modules
from fpemu.gpu.runtime.steps import Memory, Step, Struct, fields
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.staged_int8 import StagedInt8

PIECE, ROWS = 64, 128  # k in an entry of the ring; rows of a tile
COLUMNS = (32, 64, 96, 128, 144)
_PRODUCT = fields("TASK task, u8 scale_a scale_b, i4 exact matrix_a matrix_b", TASK=TASK)
"""The struct Product of ``kernels/staged_int8_gemm.cu``"""


def kernel(scheme: Scheme, spec: MmaSpec | None, shape: tuple[int, int, int], order: KOrder | None) -> Kernel | None:
    """A kernel for products (M, N, K) by `staged-int8` on Hopper in stages of 64 or 128, or None."""
    if not isinstance(scheme, StagedInt8) or scheme.stage not in (64, 128) or spec is None or min(shape) < 1:
        return None
    if (spec.architecture, spec.instruction, spec.k) != ("hopper", "wgmma", 16):
        return None
    if order not in (None, KOrder(), KOrder(promote=scheme.stage)):
        return None
    return FrontierKernel(scheme, spec, choose(shape))


def choose(shape: tuple[int, int, int]) -> Tile:
    """The tile with the least estimated time."""
    cluster = 2 if shape[0] > ROWS else 1
    return best_tile((Tile(columns, cluster) for columns in COLUMNS), shape)


class FrontierKernel(Kernel):
    """The product of `staged-int8` by tiles of 128 rows."""

    def __init__(self, scheme: StagedInt8, spec: MmaSpec, tile: Tile) -> None:
        self.scheme, self.spec, self.order, self.tile = scheme, spec, KOrder(), tile
        self.name = f"frontier {tile}"
        assert scheme.stage is not None
        self.exact, self.per = scheme.exact or 0, scheme.stage // PIECE
        self.splitter = ChunkSplitter("bytes", {"exact": self.exact, "per": self.per})

    def multiply(self, a: Prepared, b: Prepared, end: Output, memory: Memory) -> list[Step]:
        M, N, K, columns, cluster = a.rows, b.rows, a.K, self.tile.columns, self.tile.cluster
        shared = shared_bytes(columns)
        module = modules.module(source(columns, cluster, self.per, bool(self.exact)), "staged_int8_gemm.cu")
        maps = [tiles(x, word, 2 - word, rows) for x, rows in ((a, ROWS), (b, columns)) for word in range(2)]
        fit = module.clusters("staged_int8_gemm", cluster, 384, shared)
        blocks = min(fit, -(-M // (ROWS * cluster)) * -(-N // columns)) * cluster
        more: dict[str, Any] = {"shared": shared, "cluster": cluster, "overlap": M * N * K < SMALL}
        assert a.exponents is not None
        assert b.exponents is not None
        steps = list[Step]()
        for i, j, d, c in end.where(a, b).tolist():
            task = {"out": result(self, end, d, c), "M": M, "N": N, "K": K, "batch": 1}
            values = {"task": Struct(TASK, task | {"group": self.tile.group}), "exact": self.exact}
            values |= {"matrix_a": i, "scale_a": a.exponents.pointer + 4 * M * i}
            values |= {"matrix_b": j, "scale_b": b.exponents.pointer + 4 * N * j}
            steps.append(module.step("staged_int8_gemm", blocks, 384, *maps, Struct(_PRODUCT, values), **more))
        return steps


def stages(columns: int) -> int:
    """Return the number of pipeline stages that fit in shared memory."""
    return (SHARED - 1024 - 256) // (128 * (ROWS + columns))


def shared_bytes(columns: int) -> int:
    """Shared memory of a thread block: the ring, and what its alignment to 1024 may take."""
    return stages(columns) * 128 * (ROWS + columns) + 1024


def source(columns: int, cluster: int, per: int, exact: bool) -> str:
    """Return the product kernel's text for a tile, `per` chunks a stage of the scheme, with or without exact stages."""
    config = {
        "TILE_N": columns,
        "STAGES": stages(columns),
        "CLUSTER": cluster,
        "INTERVAL_CHUNKS": per,
        "EXACT_INTERVALS": exact,
    }
    lines = [compiler.struct(config), '#include "hopper_epilogue.cuh"', '#include "staged_int8_words.cuh"']
    products = wgmma("fp16_product", columns) + wgmma("int8_product", columns, int8=True)
    return "\n".join([*lines, products, compiler.kernel_source("staged_int8_gemm.cu")])
