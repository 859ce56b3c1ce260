"""Configurations of MAGMA's batched tensor-core kernel: which are valid, what they take, and what they waste.

Source: Abdelfattah, Tomov, Dongarra (2020), sections 5.1 to 5.8. Eight parameters: the instruction (TC_M, TC_N, TC_K),
the block of a thread block (BLK_M, BLK_N, BLK_K) and its threads (DIM_X, DIM_Y). The conditions of section 5.8:

* TC_x divides BLK_x, x = M, N, K;
* DIM_X and DIM_Y divide every BLK_x;
* DIM_X · DIM_Y is a multiple of 32;

and those of the GPU: threads a block, shared memory, registers. The second is stronger than the printed code needs.
``read_global2reg`` steps by DIM_X over rows and by DIM_Y over columns of A (BLK_M × BLK_K), B (BLK_K × BLK_N) and C
(BLK_M × BLK_N): DIM_X has to divide BLK_M and BLK_K, DIM_Y has to divide BLK_K and BLK_N (``printed=False``).

Shared memory and registers are ours, read from the printed code: buffers of fp16 for a block of A and one of B (two of
each for complex products), the block of C in the same space afterwards; in registers the next blocks of A and B,
the fragments, and `BASE` for addresses and counters. The compiler may need more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from fpemu.arguments import checked, choice, flag, is_size, sizes
from fpemu.errors import InputError, shown
from fpemu.roofline.gpus import Gpu

TENSOR = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
"""The instructions that CUDA's interface has for fp16 (section 3)."""
WARP = 32
MOST_THREADS = 1024
"""Of a thread block, on every NVIDIA GPU."""
BASE = 24
"""Registers of a thread for addresses and counters, assumed."""


@dataclass(frozen=True)
class Kernel:
    """Configuration of the kernel: its eight parameters, and the kind of product.

    Parameters
    ----------
    tensor : (int, int, int)
        TC_M, TC_N and TC_K, the instruction's tile.
    block : (int, int, int)
        BLK_M, BLK_N and BLK_K, the thread block's tile.
    threads : (int, int)
        DIM_X and DIM_Y.
    complex : bool
        HCGEMM, interleaved layout.
    accumulator : {"fp32", "fp16"}
        Format of the fragments of C.
    """

    tensor: tuple[int, int, int]
    block: tuple[int, int, int]
    threads: tuple[int, int]
    complex: bool = False
    accumulator: str = "fp32"

    def __post_init__(self) -> None:
        for name, values, count in (("TC", self.tensor, 3), ("BLK", self.block, 3), ("DIM", self.threads, 2)):
            if not isinstance(values, tuple | list) or len(values) != count or not all(map(is_size, values)):
                raise InputError(f"{name} = {shown(values)} must be {count} positive integers")
        flag("complex", self.complex)
        choice("accumulator", self.accumulator, ("fp32", "fp16"))

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.threads[0] * self.threads[1] // WARP

    @property
    def tiles(self) -> int:
        """TC_M × TC_N tiles of the block of C, dealt to the warps in turn."""
        return self.block[0] // self.tensor[0] * (self.block[1] // self.tensor[1])


@checked
def check(kernel: Kernel, gpu: Gpu | None = None, *, printed: bool = True) -> None:
    """Raise an error if a configuration is not valid.

    Parameters
    ----------
    kernel : Kernel
        Configuration.
    gpu : Gpu, optional
        With it the limits of shared memory and registers count as well.
    printed : bool
        Section 5.8's condition on DIM_X and DIM_Y (default), or the one that the printed code needs.

    Raises
    ------
    InputError
        The first condition that does not hold, with its values.

    Examples
    --------
    >>> check(Kernel((16, 16, 16), (64, 64, 64), (16, 8)))
    >>> check(Kernel((16, 16, 16), (64, 40, 64), (16, 8)))
    Traceback (most recent call last):
    fpemu.errors.InputError: TC_N = 16 does not divide BLK_N = 40 (section 5.8): take a multiple of 16
    """
    broken = _broken(kernel, gpu, printed)
    if broken:
        raise InputError(broken)


def _broken(kernel: Kernel, gpu: Gpu | None, printed: bool) -> str | None:
    if tuple(kernel.tensor) not in TENSOR:
        known = ", ".join(map(str, TENSOR))
        return (
            f"(TC_M, TC_N, TC_K) = {kernel.tensor} is no instruction of the interface (section 3): take one of {known}"
        )
    for axis, t, b in zip("MNK", kernel.tensor, kernel.block, strict=True):
        if b % t:
            return f"TC_{axis} = {t} does not divide BLK_{axis} = {b} (section 5.8): take a multiple of {t}"
    for dim, size, needed in zip("XY", kernel.threads, ("MK", "KN"), strict=True):
        for axis, b in zip("MNK", kernel.block, strict=True):
            if b % size and (printed or axis in needed):
                return f"DIM_{dim} = {size} does not divide BLK_{axis} = {b} (section 5.8)"
    x, y = kernel.threads
    if x * y % WARP:
        return f"DIM_X · DIM_Y = {x} · {y} = {x * y} is not a multiple of {WARP} (section 5.8): warps must be full"
    if x * y > MOST_THREADS:
        return f"DIM_X · DIM_Y = {x} · {y} = {x * y} threads, and a block has {MOST_THREADS} at most"
    if gpu is None:
        return None
    shared, limit = shared_memory(kernel), gpu.need("shared_per_block", "a kernel's configuration")
    if shared > limit:
        return f"{gpu.name}: blocks of {kernel.block} need {shared} bytes of shared memory and {limit:g} are there"
    each = registers(kernel)
    if each > gpu.need("registers_per_thread", "a kernel's configuration"):
        return f"{gpu.name}: {each} registers a thread, and {gpu.registers_per_thread} are the most: take more threads"
    if each * x * y > gpu.need("registers", "a kernel's configuration"):
        return f"{gpu.name}: {each} registers for each of {x * y} threads, and an SM has {gpu.registers}"
    return None


@checked
def shared_memory(kernel: Kernel) -> int:
    """Return the shared memory of a thread block: A and B in fp16, or the block of C after them.

    Parameters
    ----------
    kernel : Kernel
        Configuration.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> shared_memory(Kernel((16, 16, 16), (64, 64, 64), (16, 8)))
    16384
    """
    m, n, k = kernel.block
    parts = 2 if kernel.complex else 1
    return 2 * parts * max(k * (m + n), m * n if kernel.accumulator == "fp16" else 2 * m * n)


@checked
def registers(kernel: Kernel) -> int:
    """Return the 32-bit registers of a thread.

    They hold the next blocks of A and B, the fragments of A, B and C, and `BASE` others.

    Parameters
    ----------
    kernel : Kernel
        Configuration.

    Returns
    -------
    int
        Registers.

    Examples
    --------
    >>> registers(Kernel((16, 16, 16), (64, 64, 64), (16, 8)))
    96
    """
    (m, n, k), (tm, tn, tk) = kernel.block, kernel.tensor
    count, parts = kernel.threads[0] * kernel.threads[1], 2 if kernel.complex else 1
    ahead = -(-parts * k * (m + n) // (2 * count))
    fragments = -(-kernel.tiles // kernel.warps)
    width = 1 if kernel.accumulator == "fp32" else 2
    sums = parts * fragments * tm * tn // (WARP * width)
    inputs = (tm * tk + tk * tn) // (WARP * 2)
    return ahead + sums + inputs + BASE


@checked
def idle_warps(kernel: Kernel) -> int:
    """Return the number of warps without a tile of C to compute (section 5.4).

    Parameters
    ----------
    kernel : Kernel
        Configuration.

    Returns
    -------
    int
        Idle warps of a thread block.

    Examples
    --------
    >>> idle_warps(Kernel((16, 16, 16), (64, 64, 64), (16, 64)))
    16
    """
    return max(0, kernel.warps - kernel.tiles)


@checked
def occupancy(kernel: Kernel, gpu: Gpu) -> int:
    """Return the thread blocks of a configuration that an SM can hold.

    Parameters
    ----------
    kernel : Kernel
        Configuration.
    gpu : Gpu
        Description of the GPU.

    Returns
    -------
    int
        Thread blocks.

    Raises
    ------
    InputError
        A description that lacks a field.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> occupancy(Kernel((16, 16, 16), (64, 64, 64), (16, 8)), gpus.get("V100"))
    5
    """
    count, what = kernel.threads[0] * kernel.threads[1], "the occupancy of a kernel"
    return int(
        min(
            gpu.need("blocks", what),
            gpu.need("threads", what) // count,
            gpu.need("shared", what) // shared_memory(kernel),
            gpu.need("registers", what) // (registers(kernel) * count),
        )
    )


@checked
def waste(kernel: Kernel, M: int, N: int, K: int) -> float:
    """Return the operations of the instructions over those of the product, the cost of zeros at the edges.

    Parameters
    ----------
    kernel : Kernel
        Configuration.
    M, N, K : int
        Sizes of the product.

    Returns
    -------
    float
        Ratio, at least 1.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> waste(Kernel((16, 16, 16), (32, 32, 32), (8, 4)), 16, 16, 32)
    4.0
    """
    sizes(M=M, N=N, K=K)
    done = 1.0
    for size, b in zip((M, N, K), kernel.block, strict=True):
        done *= -(-size // b) * b / size
    return done


@checked
def configurations(
    largest: int | Sequence[int] = 128, gpu: Gpu | None = None, *, complex: bool = False, printed: bool = True
) -> Iterator[Kernel]:
    """Yield every valid configuration with blocks up to a size.

    Parameters
    ----------
    largest : int or (int, int, int)
        Largest BLK_M, BLK_N and BLK_K; the paper's Fig. 5 goes to 128.
    gpu : Gpu, optional
        Apply the limits of this GPU.
    complex : bool
        HCGEMM instead of HGEMM.
    printed : bool
        Apply the constraints as printed, as in `check`.

    Yields
    ------
    Kernel
        The next configuration.

    Raises
    ------
    InputError
        ``largest`` is not one or three positive integers.

    Examples
    --------
    >>> sum(1 for _ in configurations(16))
    10
    """
    limits = tuple(largest) if isinstance(largest, Sequence) else (largest,) * 3
    if len(limits) != 3 or not all(map(is_size, limits)):
        raise InputError(f"largest = {shown(largest)} must be a positive integer or three of them")
    for tensor in TENSOR:
        ranges = [range(t, limit + 1, t) for t, limit in zip(tensor, limits, strict=True)]
        for m, n, k in product(*ranges):
            for x in _divisors(math.gcd(m, n, k) if printed else math.gcd(m, k)):
                for y in _divisors(math.gcd(m, n, k) if printed else math.gcd(k, n)):
                    if x * y % WARP == 0:
                        kernel = Kernel(tensor, (m, n, k), (x, y), complex)
                        if not _broken(kernel, gpu, printed):
                            yield kernel


@functools.cache
def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@checked
def ranked(
    M: int, N: int, K: int, gpu: Gpu, *, largest: int = 128, complex: bool = False
) -> list[tuple[float, Kernel]]:
    """Return the valid configurations by the modelled time of one product of a large batch.

    The time is the larger of traffic over bandwidth and operations (zeros included) over the peak of the matrix units.
    Ties, which are many, are resolved by the least waste and then by the most threads on an SM.

    Parameters
    ----------
    M, N, K : int
        Sizes of the product.
    gpu : Gpu
        Description of the GPU.
    largest : int
        Largest side of a block.
    complex : bool
        HCGEMM instead of HGEMM.

    Returns
    -------
    list of (float, Kernel)
        Seconds and configuration, ascending.

    Raises
    ------
    InputError
        A description that lacks a field, or sizes that are not positive integers.
    """
    sizes(M=M, N=N, K=K)
    found = []
    size, operations = (4, 8) if complex else (2, 2)
    peak = gpu.need("fp16 matrix", "the ranking of kernels")
    bandwidth = gpu.copy_bandwidth or gpu.need("bandwidth", "the ranking of kernels")
    for kernel in configurations(largest, gpu, complex=complex):
        bm, bn, _ = kernel.block
        moved = size * (K * (M * -(-N // bn) + N * -(-M // bm)) + 2 * M * N)
        lost = waste(kernel, M, N, K)
        done = lost * operations * M * N * K / peak
        held = occupancy(kernel, gpu) * kernel.warps
        found.append((max(moved / bandwidth, done), lost, -held, kernel))
    found.sort(key=lambda item: item[:3])
    return [(seconds, kernel) for seconds, _, _, kernel in found]
