"""LE-GEMM's thread parallelism model: Equations 12 to 17, and the tile that it selects (Table 2).

The paper gives the quantities below, "maximizing T_TLP and T_flops/memory", and the limits in words: threads that the
GPU can hold, registers, shared memory with two buffers, fragments. It gives neither an objective that weighs the two
quantities nor the constraints as formulas. The objective and constraints used here are the same for every GPU. They
were chosen with Table 2 in view, so that reproducing its tiles is no prediction; `Reading` varies each assumption.

*Objective.* T_flops/memory (Eq. 15) times min(1, blocks / SMs). A larger T_TLP does not help once every SM has a
block: "the number of activated threads is also limited". Among tiles of equal value the smallest T_K is selected, which
the paper keeps small "to prevent data overflow"; then a tile with T_M <= T_N, whose rows of B and C are longer.

*Constraints.* Shared memory: two buffers of A16, RA, B16 and RB (section 4.3) must fit in a block's shared memory.
Registers: Work_DL (Eq. 16) counts the 32-bit words of a thread if an entry of C takes one word and an entry of the
tiles of A and B one word (two halves). With `overhead` registers for addresses it must not exceed the registers of a
thread, and a block's sum not the registers of an SM. Threads: the fewest that satisfy this, in powers of two of
wavefronts, at least one wavefront for each of the four schedulers of an SM. Fragments: tile sides are powers of two
times the fragment, each wavefront has a fragment, and T_K spans two fragments, so that one can be loaded while the
other is multiplied (the pipeline of section 4.3).

With these assumptions the model selects the tiles of Table 2 wherever the blocks fill the GPU. On the MI210 the 64 KB
of shared memory are full; on the A800 a larger tile exceeds the 65,536 registers ((256, 128), the mirror image, has the
same values). The selection depends on: two fragments in T_K (with one the model selects (256, 256, 16) for the MI210);
two buffers; one block per SM; powers of two (with multiples of a fragment (208, 208) for the A800); and one word per
entry of C. If both accumulators of Algorithm 1 stay in registers for the whole tile, the model selects (128, 128) for
the A800, since 2 · 128 · 256 words are all its registers; fragsAcc1 can therefore not be kept beside fragsAcc0 for a
whole tile of Table 2. The selection does not depend on the overhead up to 79, nor on whether operands pass through
registers.

The paper's statements, checked: the simplification in Eq. 15 is exact. T_TLP and Eq. 15 are inverse for square tiles
and a fixed number of threads per block, but not for tiles of different shapes; with Work_CP the same for every tile,
which the paper requires, T_TLP = M N / Work_CP does not depend on the tile at all. Below Eq. 16 the names are
exchanged: Work_DL is introduced as data load and then called elements computed, and Work_CP the other way round.
Section 4.3 allows (128, 256, 32) on the AMD platform, where its two buffers take 96 KB of the available 64 KB.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from fpemu.arguments import choice
from fpemu.errors import InputError
from fpemu.roofline.gpus import Gpu

FRAGMENTS = {64: (32, 32, 16), 32: (16, 16, 16)}
"""(f_m, f_n, f_k) of Table 2 by the number of threads of a wavefront: rocWMMA's and WMMA's."""
SCHEDULERS = 4
"""Warp schedulers of an SM or SIMDs of a compute unit, on all GPUs with matrix units so far."""
MOST_THREADS = 1024
"""Largest number of threads of a block in CUDA and HIP."""
OBJECTIVES = ("fill", "waves", "product", "ratio")
_MODEL = "LE-GEMM's tile model"


@dataclass(frozen=True, order=True)
class Tile:
    """Tile sizes T_M, T_N and T_K."""

    M: int
    N: int
    K: int

    def __str__(self) -> str:
        return f"({self.M}, {self.N}, {self.K})"


def tlp(M: int, N: int, tile: Tile, wavefronts: int, warp: int) -> float:
    """Return T_TLP, Eq. 12: the threads of all blocks; the paper's φ converts a block to its wavefronts of threads."""
    return M * N / (tile.M * tile.N) * wavefronts * warp


def memory(tile: Tile) -> int:
    """Return T_memory, Eq. 13: bytes that a block loads per iteration, two fp16 words for each entry of A and B."""
    return 2 * 2 * (tile.M * tile.K + tile.K * tile.N)


def flops(tile: Tile) -> int:
    """Return T_flops, Eq. 14: operations of a block per iteration, three products, a multiply-add counting two."""
    return 3 * 2 * tile.M * tile.N * tile.K


def ratio(tile: Tile) -> float:
    """Return T_flops/memory in operations per byte, Eq. 15: 3 T_M T_N / (2 (T_M + T_N)).

    >>> ratio(Tile(128, 128, 32)), ratio(Tile(128, 256, 32))
    (96.0, 128.0)
    """
    return 3 * tile.M * tile.N / (2 * (tile.M + tile.N))


def work_dl(tile: Tile, threads: int) -> float:
    """Return Work_DL, Eq. 16: entries of the three tiles per thread, not rounded."""
    return (tile.M * tile.N + tile.M * tile.K + tile.K * tile.N) / threads


def work_cp(tile: Tile, threads: int) -> float:
    """Return Work_CP, Eq. 17: entries of C per thread, not rounded."""
    return tile.M * tile.N / threads


def subsections(rows: int, columns: int) -> tuple[int, int]:
    """Return the tiles of C in a rectangle of tiles, and the sub-sections of A and B loaded for them (Fig. 5).

    >>> subsections(1, 3), subsections(2, 2)
    ((3, 4), (4, 4))
    """
    return rows * columns, rows + columns


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Interpretation of the details that the paper leaves open; the defaults are the ones used here (`OURS`)."""

    accumulators: int = 1
    """Words per entry of C; 2: fragsAcc0 and fragsAcc1 for the whole tile"""
    operands: bool = True
    """Whether the tiles of A and B pass through registers (Eq. 16), or C alone counts (Eq. 17)"""
    overhead: int = 32
    """Registers of a thread for addresses and counters"""
    buffers: int = 2
    """Shared-memory buffers of each tile"""
    depth: int = 2
    """Least number of fragments that T_K spans"""
    powers: bool = True
    """Whether sides are powers of two times the fragment, or any multiple of it"""
    blocks: int = 1
    """Blocks that an SM must hold at once"""
    objective: str = "fill"
    """Quantity to maximise. "fill": Eq. 15 times the share of SMs in use, at most 1; "waves": Eq. 15 times the share of
    SMs busy over all rounds of blocks; "product": Eq. 15 times the threads that the GPU holds; "ratio": Eq. 15 alone"""

    def __post_init__(self) -> None:
        choice("objective", self.objective, OBJECTIVES)


OURS = Reading()


def fragment(gpu: Gpu) -> tuple[int, int, int]:
    """Return the fragment sizes (f_m, f_n, f_k) of a GPU."""
    warp = gpu.need("warp", _MODEL)
    if warp not in FRAGMENTS:
        raise InputError(f"{gpu.name}: no fragment is known for wavefronts of {warp} threads, only {list(FRAGMENTS)}")
    return FRAGMENTS[warp]


def shared(tile: Tile, buffers: int = 2) -> int:
    """Return the bytes of shared memory of a block: ``buffers`` of A16, RA, B16 and RB.

    >>> shared(Tile(128, 128, 32)) // 1024, shared(Tile(128, 256, 32)) // 1024
    (64, 96)
    """
    return buffers * memory(tile)


def registers(tile: Tile, threads: int, reading: Reading = OURS) -> float:
    """Return the 32-bit registers of a thread, not rounded."""
    words = work_dl(tile, threads) if reading.operands else work_cp(tile, threads)
    return words + (reading.accumulators - 1) * work_cp(tile, threads) + reading.overhead


def threads(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> int:
    """Return Work_num: the fewest threads of a block whose registers suffice; 1024 if no number suffices."""
    count: int = SCHEDULERS * gpu.need("warp", _MODEL)
    limit = gpu.need("registers_per_thread", _MODEL)
    while count < MOST_THREADS and registers(tile, count, reading) > limit:
        count *= 2
    return count


def constraints(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> dict[str, tuple[float, float]]:
    """Return the value and the largest permitted value of every constraint on a tile."""
    limits = {
        name: gpu.need(name, _MODEL)
        for name in ("shared_per_block", "shared", "registers", "registers_per_thread", "threads")
    }
    f_m, f_n, f_k = fragment(gpu)
    count = threads(tile, gpu, reading)
    size, each = shared(tile, reading.buffers), registers(tile, count, reading)
    return {
        "fragment, T_M mod f_m": (tile.M % f_m, 0),
        "fragment, T_N mod f_n": (tile.N % f_n, 0),
        "fragment, T_K mod f_k": (tile.K % f_k, 0),
        "pipeline, fragments that T_K must span": (reading.depth, tile.K // f_k),
        "fragments, wavefronts of a block": (count // gpu.need("warp"), tile.M * tile.N // (f_m * f_n)),
        "shared memory of a block, bytes": (size, limits["shared_per_block"]),
        "shared memory of an SM, bytes": (reading.blocks * size, limits["shared"]),
        "registers of a thread": (each, limits["registers_per_thread"]),
        "registers of an SM": (reading.blocks * each * count, limits["registers"]),
        "threads of an SM": (reading.blocks * count, limits["threads"]),
    }


def check(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> None:
    """Raise an InputError with the first violated constraint, its value and its limit.

    >>> from fpemu.roofline import gpus
    >>> check(Tile(128, 256, 32), gpus.get("MI210"))
    Traceback (most recent call last):
    fpemu.errors.InputError: MI210: tile (128, 256, 32): shared memory of a block, bytes = 98304, beyond 65536
    """
    for name, (value, limit) in constraints(tile, gpu, reading).items():
        if value > limit:
            raise InputError(f"{gpu.name}: tile {tile}: {name} = {value:g}, beyond {limit:g}")


def fits(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> bool:
    """Return whether a tile satisfies all constraints."""
    return all(value <= limit for value, limit in constraints(tile, gpu, reading).values())


def candidates(gpu: Gpu, reading: Reading = OURS, largest: int = 512) -> Iterator[Tile]:
    """Yield the tiles with sides up to ``largest`` and T_K of one to eight fragments."""
    f_m, f_n, f_k = fragment(gpu)

    def sides(f: int) -> list[int]:
        return [f * i for i in range(1, largest // f + 1) if not reading.powers or i & (i - 1) == 0]

    yield from (Tile(*sizes) for sizes in product(sides(f_m), sides(f_n), [f_k, 2 * f_k, 4 * f_k, 8 * f_k]))


def objective(tile: Tile, gpu: Gpu, M: int, N: int, reading: Reading = OURS) -> float:
    """Return the quantity that `choose` maximises, for an M × N result."""
    sms = gpu.need("sms", _MODEL)
    blocks = -(-M // tile.M) * -(-N // tile.N)
    if reading.objective == "ratio":
        return ratio(tile)
    if reading.objective == "waves":
        return ratio(tile) * blocks / (-(-blocks // sms) * sms)
    if reading.objective == "fill":
        return ratio(tile) * min(1.0, blocks / sms)
    count = threads(tile, gpu, reading)
    limits = constraints(tile, gpu, reading)
    resident = min(int(limit // (value / reading.blocks)) for name, (value, limit) in limits.items() if "SM" in name)
    return ratio(tile) * min(blocks, resident * sms) * count


@dataclass(frozen=True)
class Choice:
    """Selected tile, with the model's values for it."""

    tile: Tile
    fragment: tuple[int, int, int]
    wavefront: int
    """Threads of a wavefront"""
    threads: int
    """Threads of a block, Work_num"""
    ratio: float
    """Operations per byte, Eq. 15"""
    tlp: float
    """Threads of all blocks, Eq. 12"""
    value: float
    """Value of the objective"""


def choose(gpu: Gpu, M: int, N: int, K: int, reading: Reading = OURS) -> Choice:
    """Return the tile that maximises the objective for an M × N × K product; Eq. 12 and 15 do not contain K.

    >>> from fpemu.roofline import gpus
    >>> choose(gpus.get("MI210"), 8192, 8192, 8192).tile, choose(gpus.get("A800"), 8192, 8192, 8192).tile
    (Tile(M=128, N=128, K=32), Tile(M=128, N=256, K=32))
    """
    tiles = [t for t in candidates(gpu, reading) if fits(t, gpu, reading)]
    if not tiles:
        raise InputError(f"{gpu.name}: no tile satisfies the constraints of LE-GEMM's model")
    best = max(tiles, key=lambda t: (objective(t, gpu, M, N, reading), -t.K, t.M <= t.N, -t.N, -t.M))
    count, warp = threads(best, gpu, reading), gpu.need("warp")
    value = objective(best, gpu, M, N, reading)
    return Choice(best, fragment(gpu), warp, count, ratio(best), tlp(M, N, best, count // warp, warp), value)
