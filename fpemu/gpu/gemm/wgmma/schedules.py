"""A lowering as the constants of ``kernels/hopper_gemm.cu``: its schedule, its tile, and the wgmma that it issues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fpemu.gpu.runtime import compiler
from fpemu.gpu.runtime.compiler import kernel_source
from fpemu.gpu.runtime.device import multiprocessors
from fpemu.schemes.lowering import Accumulator, Lowering
from fpemu.schemes.words import Product

K = 16  # of one wgmma on fp16
CHUNK = 64  # of k in a stage of the pipeline
LONGEST = 512  # of k from one promotion to the next: blocks are unrolled in between
SHARED = 227 * 1024  # bytes of shared memory that a thread block can have
SMALL = 2**32  # products M N K below which a launch begins while the one before it ends
_EXTRA = 8  # columns, the cost of a tile beside its own: filling the pipeline, writing the result
_HALF = 0.75  # time of a tile of 64 rows relative to one of 128
_WIDE = 0.975  # and of a tile in halves relative to its columns


@dataclass(frozen=True)
class Tile:
    """The tile of D that a thread block computes at a time."""

    columns: int  # a multiple of 16, at most 256
    cluster: int = 2  # thread blocks below each other that share tiles of B
    group: int = 8  # rows of clusters' tiles whose columns are computed together
    rows: int = 128  # 64 for small products: more tiles, and the product may begin beside the last blocks of the split
    halves: bool = False  # kernels/hopper_wide.cu: one half of the columns after the other in the same registers

    @property
    def box(self) -> int:
        """Columns that are fetched at once."""
        return self.columns // (1 + self.halves)

    def count(self, M: int, N: int) -> int:
        """Clusters' tiles of an M by N matrix."""
        return -(-M // (self.rows * self.cluster)) * -(-N // self.columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}" + (f" in clusters of {self.cluster}" if self.cluster > 1 else "")


@dataclass(frozen=True)
class Schedule:
    """The products in a block of k and the additions outside: a `Lowering` as ``kernels/hopper_gemm.cu`` runs it."""

    words: int
    block: int  # length in k, a multiple of 64
    main: tuple[Product, ...]  # products of the accumulator that may be promoted
    rest: tuple[Product, ...]  # products of a second accumulator for the corrections
    main_turn: int  # the products of an accumulator alternate after so many k
    rest_turn: int
    promote: int | None  # promotion interval in k: a part of a block, or some blocks
    exponent: int  # the corrections are divided by 2^exponent
    split: int | None = None  # length in k of a slice; sums of slices are added outside, ascending

    @property
    def accumulators(self) -> int:
        """Number of accumulators, the total outside included."""
        return 1 + bool(self.rest) + (self.promote is not None)

    @property
    def round(self) -> int:
        """Length in k from one promotion to the next, in whole blocks."""
        return max(self.block, self.promote or 0)

    @property
    def least_stages(self) -> int:
        """Pipeline stages that the mainloop requires: corrections release a block after the next one has arrived."""
        block = self.block // CHUNK * self.words
        return 2 * block if self.rest else block + 1

    def constants(self) -> dict[str, int | float]:
        """Members of the kernel's struct Config that depend on the schedule."""
        inside = self.promote is not None and self.promote < self.block
        parts = self.block // self.promote if inside and self.promote else 1
        promote = 0 if self.promote is None else 1 if inside else self.promote // self.block
        return {
            "WORDS": self.words,
            "BLOCK_CHUNKS": self.block // CHUNK,
            "BLOCK_PROMOTIONS": parts,
            "PROMOTE_BLOCKS": promote,
            "CORRECTION_SCALE": 2.0**-self.exponent,
            "SLICE_INTERVALS": (self.split or 0) // self.round,
        }


def schedule(lowering: Lowering) -> Schedule | None:
    """A lowering as the kernel runs it, bit for bit; None if it does not."""
    order = lowering.order
    if order.join != "ascending" or order.tile not in (None, order.promote) or order.residue_first:
        return None
    accumulators = sorted(lowering.accumulators, key=lambda acc: acc.band)
    main, rest = accumulators[0], accumulators[1] if len(accumulators) > 1 else None
    if lowering.block is not None or len(accumulators) > 2 or len(lowering.words) > 2:
        return None
    if rest is not None:
        combination = (lowering.in_double, lowering.join, rest.band)
        if main.band > 0 or combination != (False, "smallest-first", 1) or rest.interval is not None:
            return None
    turns = [_turn(acc) for acc in accumulators]
    if None in turns:
        return None
    block = max(CHUNK, *(t or 0 for t in turns))
    result = Schedule(
        words=len(lowering.words),
        block=block,
        main=main.products,
        rest=() if rest is None else rest.products,
        main_turn=turns[0] or block,
        rest_turn=turns[-1] or block,
        promote=main.interval,
        exponent=lowering.exponent,
        split=order.split,
    )
    return result if _fits(result) else None


def _turn(acc: Accumulator) -> int | None:
    """The length in k after which the products of an accumulator alternate; 0: one product; None: never."""
    if len(acc.products) == 1:
        return 0
    return min((length for length in (acc.turn, acc.interval) if length is not None), default=None)


def _fits(s: Schedule) -> bool:
    """Whether blocks of at most two chunks, whole instructions and whole parts make the schedule."""
    turns = (s.main_turn, s.rest_turn)
    if s.block not in (CHUNK, 2 * CHUNK) or any(t % K or s.block % t for t in turns):
        return False
    if s.split is not None and (s.split % s.round or s.rest):
        return False
    if s.promote is None:
        return True
    if s.promote >= s.block:
        return s.promote % s.block == 0 and s.promote <= LONGEST
    parts, mains = s.block // s.promote, len(s.main)
    return s.promote % K == 0 and s.block % s.promote == 0 and mains == 1 and bool(s.rest) and parts <= 4


def fits_halves(s: Schedule) -> bool:
    """Whether ``kernels/hopper_wide.cu`` runs a schedule: an accumulator of two words that lives for one chunk."""
    return s.words == 2 and not s.rest and s.split is None and s.promote == s.block == CHUNK


def best_tile(tiles: Iterable[Tile], shape: tuple[int, int, int]) -> Tile:
    """The tile with the least estimated time: waves of clusters of tiles, times the cost of a tile."""
    M, N, _ = shape

    def cost(tile: Tile) -> float:
        each = tile.columns * (_WIDE if tile.halves else 1 if tile.rows == 128 else _HALF)
        return -(-tile.count(M, N) // (multiprocessors() // tile.cluster)) * (each + _EXTRA)

    return min(tiles, key=cost)


def stages(tile: Tile) -> int:
    """Return the number of pipeline stages that fit in shared memory."""
    if tile.halves:
        return (SHARED - 8 * tile.columns - 256) // _half_bytes(tile)
    available = SHARED if tile.rows == 128 else SHARED - 88 * 1024
    return (available - 1024 - 8 * tile.columns - 256) // ((tile.rows + tile.columns) * CHUNK * 2)


def _half_bytes(tile: Tile) -> int:
    """Bytes of a stage of ``kernels/hopper_wide.cu``: two words of a chunk of `rows` rows."""
    return 2 * tile.rows * CHUNK * 2


def shared_bytes(tile: Tile) -> int:
    """Dynamic shared memory of the kernel."""
    if tile.halves:
        return stages(tile) * (_half_bytes(tile) + 16) + 8 * tile.columns
    return stages(tile) * (tile.rows + tile.columns) * CHUNK * 2 + 1024


def source(s: Schedule, tile: Tile, *, spread: bool = False) -> str:
    """The kernel's text; spread: the slices of K are distributed over thread blocks."""
    config = {
        "SPREAD": spread,
        "TILE_N": tile.columns,
        "MATH_WARPGROUPS": tile.rows // 64,
        "CLUSTER": tile.cluster,
        "STAGES": stages(tile),
        **s.constants(),
    }
    lines = [compiler.struct(config), '#include "hopper.cuh"', wgmma("wgmma", tile.box)]
    lines += [_products("MainProducts", s.main, s.main_turn), _products("CorrectionProducts", s.rest, s.rest_turn)]
    return "\n".join((*lines, kernel_source("hopper_wide.cu" if tile.halves else "hopper_gemm.cu")))


def reduction(tile: Tile) -> str:
    """The text of the kernel that adds the partial sums of spread slices."""
    return compiler.struct({"TILE_M": tile.rows, "TILE_N": tile.columns}) + "\n" + kernel_source("hopper_reduce.cu")


def _products(name: str, products: tuple[Product, ...], turn: int) -> str:
    words = [", ".join(str(p[side]) for p in products or ((0, 0),)) for side in (0, 1)]
    functions = [
        f"  static FPEMU_FUNCTION constexpr int of_{letter}(int p) {{ constexpr int w[] = {{{of}}}; return w[p]; }}"
        for letter, of in zip("ab", words, strict=True)
    ]
    constant = f"  static constexpr int COUNT = {len(products)}, TURN = {turn // K};"
    return "\n".join((f"struct {name} {{", constant, *functions, "};"))


def wgmma(name: str, columns: int, *, int8: bool = False, unsigned: bool = False) -> str:
    """Return a function that issues a wgmma on two tiles of fp16 or int8 in shared memory: 64 rows, K-major, swizzled.

    unsigned: the bytes of int8 are unsigned.

    Its parameters are the accumulator's registers, the descriptors of the tiles (hopper.cuh: wgmma_tile), and 0 to
    start from zero.
    """
    ab, d, register, letter, k = ("s8", "s32", "int", "r", 32) if int8 else ("f16", "f32", "float", "f", 16)
    ab = "u8" if unsigned else ab
    count = columns // 2  # registers of a thread: 128 threads hold 64 rows
    registers = ", ".join(f"%{i}" for i in range(count))
    scales = "" if int8 else ", 1, 1, 0, 0"  # factors of A and B, and neither is transposed
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    return f"""
FPEMU_FUNCTION void {name}({register} (&d)[{count}], u64 a, u64 b, int keep) {{
    asm volatile("{{\\n.reg .pred kept;\\nsetp.ne.b32 kept, %{count + 2}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{columns}k{k}.{d}.{ab}.{ab} "
        "{{{registers}}}, %{count}, %{count + 1}, kept{scales};\\n}}\\n"
        : {outputs} : "l"(a), "l"(b), "r"(keep));
}}
"""
