"""LE-GEMM's thread parallelism model: Equations 12 to 17, and the tile that it chooses (Table 2).

What the paper gives: the quantities below, "maximizing T_TLP and T_flops/memory", and the limits in words (threads that
the GPU can hold, registers, shared memory with two buffers, fragments). It gives neither an objective that weighs the
two nor the constraints as formulas. Ours are the same for every GPU; they were chosen knowing Table 2, so that its
tiles come out is no prediction, and `Reading` shows what hangs on each:

*Objective.* T_flops/memory (Eq. 15) times min(1, blocks / SMs). T_TLP beyond what fills the GPU buys nothing, "the
number of activated threads is also limited"; a GPU is filled when every SM has a block. Among tiles of the same value
the smallest T_K is taken, which the paper makes small "to prevent data overflow"; then the one with T_M <= T_N, the
longer rows of B and C.

*Constraints.* Shared memory: two buffers of A16, RA, B16 and RB (section 4.3) within what a block can have. Registers:
Work_DL (Eq. 16) is the number of 32-bit words that a thread holds if an entry of C is one word and an entry of the
tiles of A and B is one too, two halves; with `overhead` for addresses it must be within a thread's registers, and a
block's within the SM's. Threads: the fewest that satisfy this, in powers of two of wavefronts, at least one for each of
the four schedulers of an SM. Fragments: sides are powers of two times the fragment, each wavefront has a fragment, and
T_K spans two, so that one can be read while the other is multiplied (the pipeline of section 4.3).

With these the tiles of Table 2 come out wherever blocks fill the GPU: on the MI210 the 64 KB of shared memory are full,
and on the A800 a larger tile exceeds the 65,536 registers ((256, 128), the mirror image, has the same values there).
`Reading` changes the assumptions one by one. What decides: two fragments in T_K (with one the MI210 takes (256, 256,
16)); two buffers; one block an SM; powers of two (multiples of a fragment give the A800 (208, 208)); and one word an
entry of C: if both accumulators of Algorithm 1 stay in registers for the whole tile, the A800 takes (128, 128), since 2
· 128 · 256 words are all of its registers. So fragsAcc1 cannot be kept beside fragsAcc0 for a whole tile of Table 2
there. What does not decide: the overhead up to 79, and whether operands pass through registers.

The paper's own words, checked: Eq. 15's simplification is exact. T_TLP and Eq. 15 are inverse for square tiles and a
fixed number of threads a block; not for tiles of different shapes, and with Work_CP the same for every tile, which the
paper asks for, T_TLP = M N / Work_CP does not depend on the tile at all. Below Eq. 16 the names are exchanged: Work_DL
is introduced as data load and called elements computed, Work_CP the other way. Section 4.3 allows (128, 256, 32) on the
AMD platform: its two buffers take 96 KB of the 64 KB there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from fpemu.arguments import LARGEST, check_fields, checked, choice, integer, sizes
from fpemu.errors import InputError
from fpemu.perfmodel.gpus import Gpu

__all__ = [
    "FRAGMENTS", "OBJECTIVES", "SCHEDULERS", "Choice", "Reading", "Tile", "candidates", "check", "choose",
    "constraints", "fits", "flops", "fragment", "memory", "objective", "ratio", "registers", "shared", "subsections",
    "threads", "tlp", "work_cp", "work_dl",
]  # fmt: skip

FRAGMENTS = {64: (32, 32, 16), 32: (16, 16, 16)}
"""(f_m, f_n, f_k) of Table 2 by the size of a wavefront: rocWMMA's and WMMA's."""
SCHEDULERS = 4
"""Warp schedulers of an SM and SIMDs of a compute unit: four on all GPUs with matrix units so far."""
MOST_THREADS = 1024
"""Of a block, CUDA and HIP."""
OBJECTIVES = ("fill", "waves", "product", "ratio")


@dataclass(frozen=True, order=True)
class Tile:
    """T_M, T_N and T_K."""

    M: int
    N: int
    K: int

    def __post_init__(self) -> None:
        sizes(T_M=self.M, T_N=self.N, T_K=self.K)

    def __str__(self) -> str:
        return f"({self.M}, {self.N}, {self.K})"


@checked
def tlp(M: int, N: int, tile: Tile, wavefronts: int, warp: int) -> float:
    """T_TLP, Equation 12: threads of all blocks. φ turns a block into its ``wavefronts`` of ``warp`` threads."""
    sizes(M=M, N=N, wavefronts=wavefronts, warp=warp)
    return M * N / (tile.M * tile.N) * wavefronts * warp


@checked
def memory(tile: Tile) -> int:
    """T_memory, Equation 13: bytes that a block loads in an iteration, two halves for each entry of A and B."""
    return 2 * 2 * (tile.M * tile.K + tile.K * tile.N)


@checked
def flops(tile: Tile) -> int:
    """T_flops, Equation 14: operations of a block in an iteration, three products."""
    return 3 * 2 * tile.M * tile.N * tile.K


@checked
def ratio(tile: Tile) -> float:
    """T_flops/memory, Equation 15: operations a byte, 3 T_M T_N / (2 (T_M + T_N)).

    >>> ratio(Tile(128, 128, 32)), ratio(Tile(128, 256, 32))
    (96.0, 128.0)
    """
    return 3 * tile.M * tile.N / (2 * (tile.M + tile.N))


@checked
def work_dl(tile: Tile, threads: int) -> float:
    """Work_DL, Equation 16: entries of the three tiles a thread."""
    sizes(threads=threads)
    return (tile.M * tile.N + tile.M * tile.K + tile.K * tile.N) / threads


@checked
def work_cp(tile: Tile, threads: int) -> float:
    """Work_CP, Equation 17: entries of C a thread."""
    sizes(threads=threads)
    return tile.M * tile.N / threads


@checked
def subsections(rows: int, columns: int) -> tuple[int, int]:
    """Figure 5: tiles of C in a rectangle of tiles, and the sub-sections of A and B loaded for them.

    >>> subsections(1, 3), subsections(2, 2)
    ((3, 4), (4, 4))
    """
    sizes(rows=rows, columns=columns)
    return rows * columns, rows + columns


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the paper leaves open. The defaults are ours; the others show what hangs on them."""

    accumulators: int = 1
    """Words an entry of C; 2: fragsAcc0 and fragsAcc1 for the whole tile"""
    operands: bool = True
    """Whether the tiles of A and B pass through registers (Eq. 16), or C alone counts (Eq. 17)"""
    overhead: int = 32
    """Registers of a thread for addresses and counters"""
    buffers: int = 2
    depth: int = 2
    """Fragments that T_K spans at least"""
    powers: bool = True
    """Sides are powers of two times the fragment; else any multiple of it"""
    blocks: int = 1
    """Blocks that an SM must hold at once"""
    objective: str = "fill"
    """"fill" (above); "waves": the share of SMs busy over all rounds of blocks instead; "product": Eq. 15 times the
    threads that the GPU holds at once; "ratio": Eq. 15 alone"""

    def __post_init__(self) -> None:
        sizes(accumulators=self.accumulators, buffers=self.buffers, depth=self.depth, blocks=self.blocks)
        check_fields(self)
        integer("overhead", self.overhead, 0, LARGEST)
        choice("objective", self.objective, OBJECTIVES)


OURS = Reading()


@checked
def fragment(gpu: Gpu) -> tuple[int, int, int]:
    """(f_m, f_n, f_k) for a GPU."""
    warp = gpu.need("warp", "LE-GEMM's tile model")
    if warp not in FRAGMENTS:
        raise InputError(f"{gpu.name}: no fragment is known for wavefronts of {warp} threads, only {list(FRAGMENTS)}")
    return FRAGMENTS[warp]


@checked
def shared(tile: Tile, buffers: int = 2) -> int:
    """Bytes of shared memory: ``buffers`` of A16, RA, B16 and RB.

    >>> shared(Tile(128, 128, 32)) // 1024, shared(Tile(128, 256, 32)) // 1024
    (64, 96)
    """
    sizes(buffers=buffers)
    return buffers * memory(tile)


@checked
def registers(tile: Tile, threads: int, reading: Reading = OURS) -> float:
    """32-bit registers of a thread."""
    words = work_dl(tile, threads) if reading.operands else work_cp(tile, threads)
    return words + (reading.accumulators - 1) * work_cp(tile, threads) + reading.overhead


@checked
def threads(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> int:
    """Work_num: the fewest threads whose registers suffice, in powers of two of wavefronts; 1024 if none do."""
    count: int = SCHEDULERS * gpu.need("warp", "LE-GEMM's tile model")
    limit = gpu.need("registers_per_thread", "LE-GEMM's tile model")
    while count < MOST_THREADS and registers(tile, count, reading) > limit:
        count *= 2
    return count


@checked
def constraints(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> dict[str, tuple[float, float]]:
    """What each constraint limits, and the limit."""
    need = {name: gpu.need(name, "LE-GEMM's tile model") for name in
            ("shared_per_block", "shared", "registers", "registers_per_thread", "threads")}  # fmt: skip
    f_m, f_n, f_k = fragment(gpu)
    count = threads(tile, gpu, reading)
    size, each = shared(tile, reading.buffers), registers(tile, count, reading)
    return {
        "fragment, T_M mod f_m": (tile.M % f_m, 0),
        "fragment, T_N mod f_n": (tile.N % f_n, 0),
        "fragment, T_K mod f_k": (tile.K % f_k, 0),
        "pipeline, fragments that T_K must span": (reading.depth, tile.K // f_k),
        "fragments, wavefronts of a block": (count // gpu.need("warp"), tile.M * tile.N // (f_m * f_n)),
        "shared memory of a block, bytes": (size, need["shared_per_block"]),
        "shared memory of an SM, bytes": (reading.blocks * size, need["shared"]),
        "registers of a thread": (each, need["registers_per_thread"]),
        "registers of an SM": (reading.blocks * each * count, need["registers"]),
        "threads of an SM": (reading.blocks * count, need["threads"]),
    }


@checked
def check(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> None:
    """Raise where a tile cannot be run on a GPU.

    Raises
    ------
    InputError
        Naming the first constraint that is broken, its value and its limit.

    >>> from fpemu.perfmodel import gpus
    >>> check(Tile(128, 256, 32), gpus.get("MI210"))
    Traceback (most recent call last):
    fpemu.errors.InputError: MI210: tile (128, 256, 32): shared memory of a block, bytes = 98304, beyond 65536
    """
    for name, (value, limit) in constraints(tile, gpu, reading).items():
        if value > limit:
            raise InputError(f"{gpu.name}: tile {tile}: {name} = {value:g}, beyond {limit:g}")


@checked
def fits(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> bool:
    """Whether a tile satisfies all constraints."""
    return all(value <= limit for value, limit in constraints(tile, gpu, reading).values())


@checked
def candidates(gpu: Gpu, reading: Reading = OURS, largest: int = 512) -> Iterator[Tile]:
    """Tiles to choose from: sides up to ``largest``, T_K of one to eight fragments."""
    sizes(largest=largest)
    f_m, f_n, f_k = fragment(gpu)

    def sides(f: int) -> list[int]:
        return [f * i for i in range(1, largest // f + 1) if not reading.powers or i & (i - 1) == 0]

    yield from (Tile(*sizes) for sizes in product(sides(f_m), sides(f_n), [f_k, 2 * f_k, 4 * f_k, 8 * f_k]))


@checked
def objective(tile: Tile, gpu: Gpu, M: int, N: int, reading: Reading = OURS) -> float:
    """What the choice maximizes, for an M × N result."""
    sizes(M=M, N=N)
    sms = gpu.need("sms", "LE-GEMM's tile model")
    blocks = -(-M // tile.M) * -(-N // tile.N)
    if reading.objective == "ratio":
        return ratio(tile)
    if reading.objective == "waves":
        return ratio(tile) * blocks / (-(-blocks // sms) * sms)
    if reading.objective == "fill":
        return ratio(tile) * min(1.0, blocks / sms)
    count = threads(tile, gpu, reading)
    limits = constraints(tile, gpu, reading)
    held = min(int(limit // (value / reading.blocks)) for name, (value, limit) in limits.items() if "SM" in name)
    return ratio(tile) * min(blocks, held * sms) * count


@dataclass(frozen=True)
class Choice:
    """The tile chosen, with what the model knows of it."""

    tile: Tile
    fragment: tuple[int, int, int]
    wavefront: int
    threads: int
    """Of a block, Work_num"""
    ratio: float
    """Operations a byte, Eq. 15"""
    tlp: float
    """Threads of all blocks, Eq. 12"""
    value: float
    """Of the objective"""


@checked
def choose(gpu: Gpu, M: int, N: int, K: int, reading: Reading = OURS) -> Choice:
    """The tile for an M × N × K product on a GPU.

    Parameters
    ----------
    gpu : Gpu
        Needs sms, warp, shared, shared_per_block, registers, registers_per_thread and threads.
    M, N, K : int
        K does not matter to the choice: Equations 12 and 15 are without it.
    reading : Reading

    Raises
    ------
    InputError
        If the description of the GPU lacks a field, or no tile fits.

    >>> from fpemu.perfmodel import gpus
    >>> choose(gpus.get("MI210"), 8192, 8192, 8192).tile, choose(gpus.get("A800"), 8192, 8192, 8192).tile
    (Tile(M=128, N=128, K=32), Tile(M=128, N=256, K=32))
    """
    sizes(M=M, N=N, K=K)
    tiles = [t for t in candidates(gpu, reading) if fits(t, gpu, reading)]
    if not tiles:
        raise InputError(f"{gpu.name}: no tile satisfies the constraints of LE-GEMM's model")
    best = max(tiles, key=lambda t: (objective(t, gpu, M, N, reading), -t.K, t.M <= t.N, -t.N, -t.M))
    count, warp = threads(best, gpu, reading), gpu.need("warp")
    value = objective(best, gpu, M, N, reading)
    waves = count // warp
    return Choice(best, fragment(gpu), warp, count, ratio(best), tlp(M, N, best, waves, warp), value)
