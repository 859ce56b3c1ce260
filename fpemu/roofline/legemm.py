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
from fpemu.roofline.gpus import Gpu

__all__ = [
    "FRAGMENTS",
    "OBJECTIVES",
    "SCHEDULERS",
    "Choice",
    "Reading",
    "Tile",
    "candidates",
    "check",
    "choose",
    "constraints",
    "fits",
    "flops",
    "fragment",
    "memory",
    "objective",
    "ratio",
    "registers",
    "shared",
    "subsections",
    "threads",
    "tlp",
    "work_cp",
    "work_dl",
]

FRAGMENTS = {64: (32, 32, 16), 32: (16, 16, 16)}
"""(f_m, f_n, f_k) of Table 2 by the size of a wavefront: rocWMMA's and WMMA's."""
SCHEDULERS = 4
"""Warp schedulers of an SM and SIMDs of a compute unit: four on all GPUs with matrix units so far."""
MOST_THREADS = 1024
"""Of a block, CUDA and HIP."""
OBJECTIVES = ("fill", "waves", "product", "ratio")


@dataclass(frozen=True, order=True)
class Tile:
    """Tile sizes T_M, T_N and T_K.

    Parameters
    ----------
    M, N, K : int
        Numbers of rows or columns.
    """

    M: int
    N: int
    K: int

    def __post_init__(self) -> None:
        sizes(T_M=self.M, T_N=self.N, T_K=self.K)

    def __str__(self) -> str:
        return f"({self.M}, {self.N}, {self.K})"


@checked
def tlp(M: int, N: int, tile: Tile, wavefronts: int, warp: int) -> float:
    """Return T_TLP, Equation 12: the threads of all blocks.

    The paper's φ converts a block to its ``wavefronts`` of ``warp`` threads.

    Parameters
    ----------
    M, N : int
        Sizes of the result.
    tile : Tile
        Tile sizes.
    wavefronts : int
        Wavefronts of a block.
    warp : int
        Threads of a wavefront.

    Returns
    -------
    float
        Threads.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.
    """
    sizes(M=M, N=N, wavefronts=wavefronts, warp=warp)
    return M * N / (tile.M * tile.N) * wavefronts * warp


@checked
def memory(tile: Tile) -> int:
    """Return T_memory, Equation 13: bytes that a block loads in an iteration.

    Each entry of A and B is two fp16 words.

    Parameters
    ----------
    tile : Tile
        Tile sizes.

    Returns
    -------
    int
        Bytes.
    """
    return 2 * 2 * (tile.M * tile.K + tile.K * tile.N)


@checked
def flops(tile: Tile) -> int:
    """Return T_flops, Equation 14: operations of a block in an iteration, three products.

    Parameters
    ----------
    tile : Tile
        Tile sizes.

    Returns
    -------
    int
        Operations, a multiply-add counting two.
    """
    return 3 * 2 * tile.M * tile.N * tile.K


@checked
def ratio(tile: Tile) -> float:
    """Return T_flops/memory, Equation 15: 3 T_M T_N / (2 (T_M + T_N)).

    Parameters
    ----------
    tile : Tile
        Tile sizes.

    Returns
    -------
    float
        Operations a byte.

    Examples
    --------
    >>> ratio(Tile(128, 128, 32)), ratio(Tile(128, 256, 32))
    (96.0, 128.0)
    """
    return 3 * tile.M * tile.N / (2 * (tile.M + tile.N))


@checked
def work_dl(tile: Tile, threads: int) -> float:
    """Return Work_DL, Equation 16: entries of the three tiles a thread.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    threads : int
        Threads of a block.

    Returns
    -------
    float
        Entries, not rounded.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.
    """
    sizes(threads=threads)
    return (tile.M * tile.N + tile.M * tile.K + tile.K * tile.N) / threads


@checked
def work_cp(tile: Tile, threads: int) -> float:
    """Return Work_CP, Equation 17: entries of C a thread.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    threads : int
        Threads of a block.

    Returns
    -------
    float
        Entries, not rounded.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.
    """
    sizes(threads=threads)
    return tile.M * tile.N / threads


@checked
def subsections(rows: int, columns: int) -> tuple[int, int]:
    """Return the tiles of C in a rectangle of tiles, and the sub-sections of A and B loaded for them (Figure 5).

    Parameters
    ----------
    rows, columns : int
        Sides of the rectangle, in tiles.

    Returns
    -------
    tiles : int
        Tiles of C.
    loads : int
        Sub-sections of A and B.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> subsections(1, 3), subsections(2, 2)
    ((3, 4), (4, 4))
    """
    sizes(rows=rows, columns=columns)
    return rows * columns, rows + columns


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Interpretation of the details that the paper leaves open.

    The defaults are this package's choice (`OURS`); other values show how the result depends on each detail.

    Parameters
    ----------
    accumulators : int
        Words an entry of C; 2: fragsAcc0 and fragsAcc1 for the whole tile.
    operands : bool
        Whether the tiles of A and B pass through registers (Eq. 16), or C alone counts (Eq. 17).
    overhead : int
        Registers of a thread for addresses and counters.
    buffers : int
        Shared-memory buffers of each tile.
    depth : int
        Least number of fragments that T_K spans.
    powers : bool
        Sides are powers of two times the fragment; else any multiple of it.
    blocks : int
        Blocks that an SM must hold at once.
    objective : str
        Quantity to maximise. "fill": Equation 15 times the share of SMs in use, at most 1; "waves": the share of SMs
        busy over all rounds of blocks instead; "product": Eq. 15 times the threads that the GPU holds at once; "ratio":
        Eq. 15 alone.
    """

    accumulators: int = 1
    operands: bool = True
    overhead: int = 32
    buffers: int = 2
    depth: int = 2
    powers: bool = True
    blocks: int = 1
    objective: str = "fill"

    def __post_init__(self) -> None:
        sizes(accumulators=self.accumulators, buffers=self.buffers, depth=self.depth, blocks=self.blocks)
        check_fields(self)
        integer("overhead", self.overhead, 0, LARGEST)
        choice("objective", self.objective, OBJECTIVES)


OURS = Reading()


@checked
def fragment(gpu: Gpu) -> tuple[int, int, int]:
    """Return the fragment sizes (f_m, f_n, f_k) of a GPU.

    Parameters
    ----------
    gpu : Gpu
        Description with a warp size.

    Returns
    -------
    (int, int, int)
        f_m, f_n and f_k.

    Raises
    ------
    InputError
        A wavefront without a known fragment.
    """
    warp = gpu.need("warp", "LE-GEMM's tile model")
    if warp not in FRAGMENTS:
        raise InputError(f"{gpu.name}: no fragment is known for wavefronts of {warp} threads, only {list(FRAGMENTS)}")
    return FRAGMENTS[warp]


@checked
def shared(tile: Tile, buffers: int = 2) -> int:
    """Return the shared memory of a block: ``buffers`` of A16, RA, B16 and RB.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    buffers : int
        Number of buffers.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> shared(Tile(128, 128, 32)) // 1024, shared(Tile(128, 256, 32)) // 1024
    (64, 96)
    """
    sizes(buffers=buffers)
    return buffers * memory(tile)


@checked
def registers(tile: Tile, threads: int, reading: Reading = OURS) -> float:
    """Return the 32-bit registers of a thread.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    threads : int
        Threads of a block.
    reading : Reading
        Interpretation of the paper.

    Returns
    -------
    float
        Registers, not rounded.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.
    """
    words = work_dl(tile, threads) if reading.operands else work_cp(tile, threads)
    return words + (reading.accumulators - 1) * work_cp(tile, threads) + reading.overhead


@checked
def threads(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> int:
    """Return Work_num: the fewest threads whose registers suffice.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    gpu : Gpu
        Description of the GPU.
    reading : Reading
        Interpretation of the paper.

    Returns
    -------
    int
        Threads of a block, a power of two of wavefronts; 1024 if no number suffices.

    Raises
    ------
    InputError
        A description that lacks a field.
    """
    count: int = SCHEDULERS * gpu.need("warp", "LE-GEMM's tile model")
    limit = gpu.need("registers_per_thread", "LE-GEMM's tile model")
    while count < MOST_THREADS and registers(tile, count, reading) > limit:
        count *= 2
    return count


@checked
def constraints(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> dict[str, tuple[float, float]]:
    """Return the value and the limit of every constraint on a tile.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    gpu : Gpu
        Description of the GPU.
    reading : Reading
        Interpretation of the paper.

    Returns
    -------
    dict of str to (float, float)
        Value and largest permitted value by constraint.

    Raises
    ------
    InputError
        A description that lacks a field, or a wavefront without a known fragment.
    """
    need = {
        name: gpu.need(name, "LE-GEMM's tile model")
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
        "shared memory of a block, bytes": (size, need["shared_per_block"]),
        "shared memory of an SM, bytes": (reading.blocks * size, need["shared"]),
        "registers of a thread": (each, need["registers_per_thread"]),
        "registers of an SM": (reading.blocks * each * count, need["registers"]),
        "threads of an SM": (reading.blocks * count, need["threads"]),
    }


@checked
def check(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> None:
    """Raise an error if a tile cannot run on a GPU.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    gpu : Gpu
        Description of the GPU.
    reading : Reading
        Interpretation of the paper.

    Raises
    ------
    InputError
        The first constraint that is violated, with its value and its limit.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> check(Tile(128, 256, 32), gpus.get("MI210"))
    Traceback (most recent call last):
    fpemu.errors.InputError: MI210: tile (128, 256, 32): shared memory of a block, bytes = 98304, beyond 65536
    """
    for name, (value, limit) in constraints(tile, gpu, reading).items():
        if value > limit:
            raise InputError(f"{gpu.name}: tile {tile}: {name} = {value:g}, beyond {limit:g}")


@checked
def fits(tile: Tile, gpu: Gpu, reading: Reading = OURS) -> bool:
    """Return whether a tile satisfies all constraints.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    gpu : Gpu
        Description of the GPU.
    reading : Reading
        Interpretation of the paper.

    Returns
    -------
    bool
        True if no constraint is violated.

    Raises
    ------
    InputError
        As `constraints`.
    """
    return all(value <= limit for value, limit in constraints(tile, gpu, reading).values())


@checked
def candidates(gpu: Gpu, reading: Reading = OURS, largest: int = 512) -> Iterator[Tile]:
    """Yield the tiles to choose from: sides up to ``largest``, T_K of one to eight fragments.

    Parameters
    ----------
    gpu : Gpu
        Description with a warp size.
    reading : Reading
        Interpretation of the paper.
    largest : int
        Largest T_M and T_N.

    Yields
    ------
    Tile
        The next tile.

    Raises
    ------
    InputError
        A wavefront without a known fragment.
    """
    sizes(largest=largest)
    f_m, f_n, f_k = fragment(gpu)

    def sides(f: int) -> list[int]:
        return [f * i for i in range(1, largest // f + 1) if not reading.powers or i & (i - 1) == 0]

    yield from (Tile(*sizes) for sizes in product(sides(f_m), sides(f_n), [f_k, 2 * f_k, 4 * f_k, 8 * f_k]))


@checked
def objective(tile: Tile, gpu: Gpu, M: int, N: int, reading: Reading = OURS) -> float:
    """Return the objective that the choice maximises, for an M × N result.

    Parameters
    ----------
    tile : Tile
        Tile sizes.
    gpu : Gpu
        Description of the GPU.
    M, N : int
        Sizes of the result.
    reading : Reading
        Interpretation of the paper; its ``objective`` selects the quantity.

    Returns
    -------
    float
        Value of the objective.

    Raises
    ------
    InputError
        A description that lacks a field, sizes that are not positive integers, or an unknown objective.
    """
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
    """Tile chosen by the model, with the model's values for it.

    Attributes
    ----------
    tile : Tile
        T_M, T_N and T_K.
    fragment : (int, int, int)
        f_m, f_n and f_k.
    wavefront : int
        Threads of a wavefront.
    threads : int
        Threads of a block, Work_num.
    ratio : float
        Operations a byte, Eq. 15.
    tlp : float
        Threads of all blocks, Eq. 12.
    value : float
        Value of the objective.
    """

    tile: Tile
    fragment: tuple[int, int, int]
    wavefront: int
    threads: int
    ratio: float
    tlp: float
    value: float


@checked
def choose(gpu: Gpu, M: int, N: int, K: int, reading: Reading = OURS) -> Choice:
    """Return the tile that maximises the objective for an M × N × K product on a GPU.

    Parameters
    ----------
    gpu : Gpu
        Needs sms, warp, shared, shared_per_block, registers, registers_per_thread and threads.
    M, N, K : int
        Sizes of the product. K does not affect the choice: Equations 12 and 15 do not contain it.
    reading : Reading
        Interpretation of the paper.

    Returns
    -------
    Choice
        The tile and the model's values.

    Raises
    ------
    InputError
        If the description of the GPU lacks a field, or no tile fits.

    Examples
    --------
    >>> from fpemu.roofline import gpus
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
