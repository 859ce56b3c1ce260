"""DGEMM-TC: number of products, memory and expected speed, sections 4.2, 4.3 and 5.2 of the paper.

With s_A slices of A and s_B of B there are s_A s_B products, or d (d + 1) / 2 in fast mode with d slices of each. The
speed on fp64 is the tensor cores' speed divided by the number of products, times the share of the time that products
take (the rest is splits and sums).
"""

from dataclasses import dataclass

from fpemu.errors import InputError
from fpemu.roofline.gpus import Gpu

BLOCK = 3584
"""Largest block, section 5.1."""
THROUGHPUT = 92e12
"""Operations per second of cublasGemmEx on the Titan RTX at n = 7168, section 5.2."""
SHARE = 0.7
"""Share of the time that products take there."""


def block_size(n: int, largest: int = BLOCK) -> int:
    """Return the block size b_k = ceil(n / ceil(n / b_max)) of section 4.2: the fewest blocks, as equal as possible.

    >>> [block_size(n) for n in (1024, 3584, 5120, 10240)]
    [1024, 3584, 2560, 3414]
    """
    return -(-n // -(-n // largest))


def products(slices_a: float, slices_b: float | None = None, *, fast: bool = False) -> float:
    """Return the number of slice products, section 4.3: d² or, in fast mode, d (d + 1) / 2.

    The numbers of slices may be means over blocks, as in the paper's figures. Fast mode takes the products (i, j) with
    i + j <= d + 1; with s_A < s_B = d these are s_A d - s_A (s_A - 1) / 2, of which the paper gives the case s_A = s_B.

    >>> products(11, fast=True), products(11)
    (66.0, 121.0)
    """
    slices_b = slices_a if slices_b is None else slices_b
    few, many = sorted((float(slices_a), float(slices_b)))
    return few * many - few * (few - 1) / 2 if fast else few * many


@dataclass(frozen=True)
class Memory:
    """Bytes of the slices of A and B (fp16) and of the results of all products (fp32), section 4.3."""

    slices: float
    sums: float

    @property
    def total(self) -> float:
        """Bytes of slices and products together."""
        return self.slices + self.sums


def memory(m: int, n: int, k: int, slices_a: float, slices_b: float, block: int | None = BLOCK) -> Memory:
    """Return the memory of the slices, (s_A + s_B) k b words of fp16, and of the products, s_A s_B b² words of fp32.

    ``block`` is the largest block; None is the naive form, (s_A m + s_B n) k and s_A s_B m n words. The paper has one
    formula for both modes: all s_A s_B products are counted in fast mode too (section 4.3).

    >>> memory(10240, 10240, 10240, 12, 12).total / 1e9  # within the 20 GB of section 5.1
    8.391557376
    """
    rows, columns = (m, n) if block is None else (block_size(m, block), block_size(n, block))
    return Memory(2.0 * (slices_a * rows + slices_b * columns) * k, 4.0 * slices_a * slices_b * rows * columns)


def speed(count: float, throughput: float | Gpu = THROUGHPUT, share: float = SHARE) -> float:
    """Return the speed on fp64 that ``count`` slice products allow, section 5.2, in the unit of ``throughput``.

    For a `Gpu` the throughput is the peak of its fp16 matrix units, which no library reaches.

    >>> round(speed(66) / 1e12, 2)
    0.98
    """
    rate = throughput.need("fp16 matrix", "the speed of DGEMM-TC") if isinstance(throughput, Gpu) else throughput
    if share > 1:
        raise InputError(f"share = {share:g} of the time must be at most 1")
    return float(share * rate / count)


def implied_products(measured: float, throughput: float = THROUGHPUT, share: float = SHARE) -> float:
    """Return the number of slice products that a measured speed corresponds to; the inverse of `speed`.

    >>> round(implied_products(713.1e9), 1)
    90.3
    """
    return share * throughput / measured
