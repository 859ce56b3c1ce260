"""The kernel of `staged-int8` on Hopper: corrections by int8 products beside the fp16 product, two units of time.

Operands are split by kernels/frontier_split.cu and multiplied by kernels/frontier_gemm.cu; `kernel` says for which
products there is one. The order is that of the scheme: stages of 64, k ascending, corrections joined at the end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpemu.gpu import device
from fpemu.gpu.hopper.schedules import SHARED, Tile, wgmma
from fpemu.gpu.kernel import Kernel, Prepared, Room
from fpemu.gpu.matrices import Matrix
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import Scheme
from fpemu.schemes.staged_int8 import StagedInt8

PIECE, ROWS = 64, 128  # k in an entry of the ring; rows of a tile
PROCESSORS = 132  # of an H100 or H200 (SXM); the tile is chosen for so many
_COLUMNS = (32, 64, 96, 128, 144)
_EXTRA = 8  # columns that a tile costs beyond its own: filling the pipeline, the result's way out
_OPERAND = np.dtype(
    [("x", "u8"), ("row_stride", "i8"), ("k_stride", "i8"), ("rows", "i4"), ("k", "i4"), ("h", "u8"), ("q", "u8"),
     ("scales", "u8"), ("special", "u8"), ("faults", "u8"), ("pitch", "i4"), ("second", "i4"), ("exact", "i4"),
     ("per", "i4")],
    align=True,
)  # fmt: skip
_PRODUCT = np.dtype(
    [("d", "u8"), ("c", "u8"), ("scale_a", "u8"), ("scale_b", "u8"), ("d_row", "i8"), ("c_row", "i8"),
     ("c_column", "i8"), ("m", "i4"), ("n", "i4"), ("k", "i4"), ("exact", "i4"), ("matrix_a", "i4"),
     ("matrix_b", "i4"), ("group", "i4"), ("alpha", "f4"), ("beta", "f4"), ("nan", "u4")],
    align=True,
)  # fmt: skip


def kernel(scheme: Scheme, spec: MmaSpec | None, shape: tuple[int, int, int], order: KOrder | None) -> Kernel | None:
    """A kernel for a product (M, N, K) by `staged-int8` on Hopper, None where there is none.

    Parameters
    ----------
    scheme : Scheme
        Any options, but a stage of 64 or 128.
    spec : MmaSpec or None
        The instruction: wgmma on fp16.
    shape : (M, N, K)
    order : KOrder or None
        None, or the one order that the kernel has.
    """
    if not isinstance(scheme, StagedInt8) or scheme.stage not in (64, 128) or spec is None or min(shape) < 1:
        return None
    if (spec.architecture, spec.instruction, spec.k) != ("hopper", "wgmma", 16):
        return None
    if order not in (None, KOrder(), KOrder(promote=scheme.stage)):
        return None
    return FrontierKernel(scheme, spec, choose(shape))


def choose(shape: tuple[int, int, int]) -> Tile:
    """The tile with the least estimated time: waves of tiles, times what a tile costs."""
    M, N, _ = shape
    cluster = 2 if M > ROWS else 1

    def cost(columns: int) -> int:
        clusters = -(-M // (ROWS * cluster)) * -(-N // columns)
        return -(-clusters // (PROCESSORS // cluster)) * (columns + _EXTRA)

    return Tile(min(_COLUMNS, key=cost), cluster)


class FrontierKernel(Kernel):
    """The product of `staged-int8` by tiles of 128 rows.

    Parameters
    ----------
    scheme : StagedInt8
    spec : MmaSpec
    tile : Tile
    """

    def __init__(self, scheme: StagedInt8, spec: MmaSpec, tile: Tile) -> None:
        self.scheme, self.spec, self.order, self.tile = scheme, spec, KOrder(), tile
        self.name = f"frontier {tile}"
        assert scheme.stage is not None
        self.exact, self.per = scheme.exact or 0, scheme.stage // PIECE
        self._rooms = {who: Room() for who in ("A", "B")}
        self._launches: dict[object, list[device.Launch]] = {}

    def prepare(self, X: Matrix, who: str, on_range: str) -> Prepared:
        ready, module, room = Prepared(X, who), _split(), self._rooms[who]
        rows, k = ready.rows, X.shape[-1 if who == "A" else -2]
        row_stride, k_stride = ready.steps
        ready.pitch = -(-k // PIECE) * PIECE
        sizes = {"h": 2 * ready.pitch * rows, "q": 2 * ready.pitch * rows, "scales": 4 * rows, "special": rows}
        held = {name: room.buffer(name, X.count * size) for name, size in sizes.items()}
        ready.words, ready.special, ready.more = (held["h"], held["q"]), held["special"], {"scales": held["scales"]}
        ready.faults = room.zeros("faults", 16)
        for number, offset in enumerate(X.offsets()):
            operand = np.zeros(1, _OPERAND)
            values = {name: held[name].pointer + number * size for name, size in sizes.items()}
            values |= {"x": X.pointer + 4 * int(offset), "row_stride": row_stride, "k_stride": k_stride, "rows": rows,
                       "k": k, "faults": ready.faults.pointer, "pitch": ready.pitch, "second": int(who == "B"),
                       "exact": self.exact, "per": self.per}  # fmt: skip
            for name, value in values.items():
                operand[name] = value
            if k_stride == 1:
                module.launch("frontier_rows", rows, 512, operand, wait=False)
                continue
            module.launch("frontier_scales", -(-rows // 32), (32, 32), operand, wait=False)
            module.launch("frontier_split", (ready.pitch // PIECE, -(-rows // 64)), 256, operand, wait=False)
        return ready

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        held = (*a.words, *b.words, a.more["scales"], b.more["scales"])
        shapes = tuple((X.pointer, X.shape, X.strides) for X in (a.source, b.source, D, C) if X is not None)
        key = (tuple(buffer.pointer for buffer in held), shapes, float(alpha), float(beta))
        if key not in self._launches:
            if len(self._launches) > 16:
                self._launches.clear()
            self._launches[key] = self.launches(a, b, D, alpha, beta, C)
        for launch in self._launches[key]:
            launch.queue()

    def launches(
        self, a: Prepared, b: Prepared, D: Matrix, alpha: Any = 1.0, beta: Any = 0.0, C: Matrix | None = None
    ) -> list[device.Launch]:
        """What `multiply` queues, a launch a matrix of the batch; can be queued as often as one likes."""
        M, N, K = D.shape[-2], D.shape[-1], a.source.shape[-1]
        columns, cluster = self.tile.columns, self.tile.cluster
        module, shared = _gemm(columns, cluster, self.per, bool(self.exact)), shared_bytes(columns)
        maps = [_map(a, 0, M, ROWS), _map(a, 1, M, ROWS), _map(b, 0, N, columns), _map(b, 1, N, columns)]
        fit = PROCESSORS if cluster == 1 else module.clusters("frontier_gemm", cluster, 384, shared)
        blocks = min(fit, -(-M // (ROWS * cluster)) * -(-N // columns)) * cluster
        lead, made = D.shape[:-2], []
        c = None if C is None else C.broadcast(D.shape)
        at_c = np.zeros(D.count, np.int64) if c is None else c.offsets()
        for at, start, i, j in zip(D.offsets(), at_c, a.source.index(lead), b.source.index(lead), strict=True):
            values = {
                "d": D.pointer + 4 * int(at), "c": 0 if c is None else c.pointer + 4 * int(start),
                "scale_a": a.more["scales"].pointer + 4 * M * int(i),
                "scale_b": b.more["scales"].pointer + 4 * N * int(j),
                "d_row": D.strides[-2], "c_row": 0 if c is None else c.strides[-2],
                "c_column": 0 if c is None else c.strides[-1], "m": M, "n": N, "k": K, "exact": self.exact,
                "matrix_a": i, "matrix_b": j, "group": self.tile.group, "alpha": alpha, "beta": beta,
                "nan": self.scheme.nan_code(self.spec),
            }  # fmt: skip
            product = np.zeros(1, _PRODUCT)
            for name, value in values.items():
                product[name] = value
            made.append(module.prepare("frontier_gemm", blocks, 384, *maps, product, shared=shared, cluster=cluster))
        return made


def _map(x: Prepared, word: int, rows: int, box: int) -> Any:
    """Tiles of h or of q: 128 bytes of `box` rows."""
    size, width = ((2, x.pitch), (1, 2 * x.pitch))[word]
    shape, strides = (x.source.count, rows, width), (size * width * rows, size * width)
    return device.tensor_map(x.words[word].pointer, size, shape, strides, (box, 128 // size))


def entries(columns: int) -> int:
    """Entries of the ring that fit in shared memory."""
    return (SHARED - 1024 - 256) // (128 * (ROWS + columns))


def shared_bytes(columns: int) -> int:
    """Shared memory of a thread block: the ring, and what its alignment to 1024 may take."""
    return entries(columns) * 128 * (ROWS + columns) + 1024


@cache
def _split() -> device.Module:
    return device.Module(device.kernel_source("frontier_split.cu"), name="frontier_split.cu")


@cache
def _gemm(columns: int, cluster: int, per: int, exact: bool) -> device.Module:
    return device.Module(source(columns, cluster, per, exact), name="frontier_gemm.cu")


def source(columns: int, cluster: int, per: int, exact: bool) -> str:
    """The text of the product's kernel for a tile, `per` pieces a stage, with or without exact stages."""
    constants = {"BN": columns, "ENTRIES": entries(columns), "CLUSTER": cluster, "PER": per, "EXACT": int(exact)}
    lines = [f"#define {name} {value}" for name, value in constants.items()]
    lines += ['#include "hopper.cuh"', '#include "frontier_words.cuh"']
    products = wgmma("fp16_product", columns) + wgmma("int8_product", columns, "s8", "s32")
    return "\n".join([*lines, products, device.kernel_source("frontier_gemm.cu")])
