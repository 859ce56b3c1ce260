"""The parameters of MAGMA's batched tensor-core kernel, and the conditions on them.

Source: Abdelfattah, Tomov, Dongarra (2020), sections 5.1 to 5.8. The eight parameters are the instruction (TC_M, TC_N,
TC_K), the block of a thread block (BLK_M, BLK_N, BLK_K) and its threads (DIM_X, DIM_Y). The conditions of section 5.8:

* TC_x divides BLK_x, x = M, N, K;
* DIM_X and DIM_Y divide every BLK_x;
* DIM_X · DIM_Y is a multiple of 32;

and a block has at most 1024 threads. The second condition is stronger than the printed code needs. ``read_global2reg``
steps by DIM_X over rows and by DIM_Y over columns of A (BLK_M × BLK_K), B (BLK_K × BLK_N) and C (BLK_M × BLK_N), so
that DIM_X must divide BLK_M and BLK_K, and DIM_Y must divide BLK_K and BLK_N (``printed=False``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fpemu.arguments import choice, flag, is_size
from fpemu.errors import InputError, shown

TENSOR = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
"""The instructions that CUDA's interface has for fp16 (section 3)."""
WARP = 32
MOST_THREADS = 1024
"""Largest number of threads of a block on every NVIDIA GPU."""


@dataclass(frozen=True)
class Kernel:
    """Configuration of the kernel: its eight parameters, and the kind of product (complex: interleaved HCGEMM)."""

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
        """TC_M × TC_N tiles of the block of C, assigned to the warps in turn."""
        return self.block[0] // self.tensor[0] * (self.block[1] // self.tensor[1])


def check(kernel: Kernel) -> None:
    """Raise an InputError with the first condition of section 5.8 that does not hold.

    >>> check(Kernel((16, 16, 16), (64, 64, 64), (16, 8)))
    >>> check(Kernel((16, 16, 16), (64, 40, 64), (16, 8)))
    Traceback (most recent call last):
    fpemu.errors.InputError: TC_N = 16 does not divide BLK_N = 40 (section 5.8): choose a multiple of 16
    """
    problem = violation(kernel)
    if problem:
        raise InputError(problem)


def violation(kernel: Kernel, *, printed: bool = True) -> str:
    """Return the first condition that does not hold, with its values; empty if all hold."""
    if tuple(kernel.tensor) not in TENSOR:
        known = ", ".join(map(str, TENSOR))
        return f"(TC_M, TC_N, TC_K) = {kernel.tensor} is no instruction of the interface (section 3): choose {known}"
    for axis, t, b in zip("MNK", kernel.tensor, kernel.block, strict=True):
        if b % t:
            return f"TC_{axis} = {t} does not divide BLK_{axis} = {b} (section 5.8): choose a multiple of {t}"
    for dim, size, needed in zip("XY", kernel.threads, ("MK", "KN"), strict=True):
        for axis, b in zip("MNK", kernel.block, strict=True):
            if b % size and (printed or axis in needed):
                return f"DIM_{dim} = {size} does not divide BLK_{axis} = {b} (section 5.8)"
    x, y = kernel.threads
    if x * y % WARP:
        return f"DIM_X · DIM_Y = {x} · {y} = {x * y} is not a multiple of {WARP} (section 5.8): warps must be full"
    if x * y > MOST_THREADS:
        return f"DIM_X · DIM_Y = {x} · {y} = {x * y} threads exceed the {MOST_THREADS} of a block"
    return ""
