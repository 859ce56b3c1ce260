"""DGEMM-TC: number of products, memory and expected speed, sections 4.2, 4.3 and 5.2 of the paper.

With s_A slices of A and s_B of B there are s_A s_B products, or, for d of each, d (d + 1) / 2 in fast mode. The speed
on fp64 is that of the tensor cores over the number of products, less the time that goes elsewhere (splits and sums).
"""

from __future__ import annotations

from dataclasses import dataclass

from fpemu.arguments import checked, positive, sizes
from fpemu.errors import InputError
from fpemu.roofline.gpus import Gpu

__all__ = ["BLOCK", "SHARE", "THROUGHPUT", "Memory", "block_size", "implied_products", "memory", "products", "speed"]

BLOCK = 3584
"""Largest block, section 5.1."""
THROUGHPUT = 92e12
"""Of cublasGemmEx on the Titan RTX at n = 7168, operations a second, section 5.2."""
SHARE = 0.7
"""Of the time that it takes there."""


@checked
def block_size(n: int, largest: int = BLOCK) -> int:
    """Return the block size b_k = ceil(n / ceil(n / b_max)) of section 4.2.

    It gives the fewest blocks, of sizes as equal as possible.

    Parameters
    ----------
    n : int
        Size of the matrix.
    largest : int
        Largest block, b_max.

    Returns
    -------
    int
        Size of the blocks.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> [block_size(n) for n in (1024, 3584, 5120, 10240)]
    [1024, 3584, 2560, 3414]
    """
    sizes(n=n, largest=largest)
    return -(-n // -(-n // largest))


@checked
def products(slices_a: float, slices_b: float | None = None, *, fast: bool = False) -> float:
    """Return the number of slice products, section 4.3: d² or, in fast mode, d (d + 1) / 2.

    Parameters
    ----------
    slices_a, slices_b : float
        May be means over blocks, as in the paper's figures. Without ``slices_b``: as many as of A.
    fast : bool
        The products (i, j) with i + j <= d + 1 alone. With s_A < s_B slices these are s_A d - s_A (s_A - 1) / 2 for
        d = s_B; the paper gives the case s_A = s_B.

    Returns
    -------
    float
        Number of products.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> products(11, fast=True), products(11)
    (66.0, 121.0)
    """
    slices_b = slices_a if slices_b is None else slices_b
    positive(slices_a=slices_a, slices_b=slices_b)
    few, many = sorted((float(slices_a), float(slices_b)))
    return few * many - few * (few - 1) / 2 if fast else few * many


@dataclass(frozen=True)
class Memory:
    """Working memory of section 4.3, in bytes.

    Attributes
    ----------
    slices : float
        Slices of A and of B, fp16.
    sums : float
        Results of all products, fp32.
    """

    slices: float
    sums: float

    @property
    def total(self) -> float:
        """Bytes of slices and products together."""
        return self.slices + self.sums


@checked
def memory(m: int, n: int, k: int, slices_a: float, slices_b: float, block: int | None = BLOCK) -> Memory:
    """Return the memory of the slices and of the products, section 4.3.

    The slices are (s_A + s_B) k b words of fp16, the products s_A s_B b² words of fp32.

    Parameters
    ----------
    m, n, k : int
        Sizes of the product.
    slices_a, slices_b : float
        Numbers of slices of A and of B.
    block : int or None
        The largest block; None is the naive form, (s_A m + s_B n) k and s_A s_B m n.

    Returns
    -------
    Memory
        Bytes.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Notes
    -----
    All products are kept, and counted as s_A s_B in fast mode too: the paper has one formula for both.

    Examples
    --------
    >>> memory(10240, 10240, 10240, 12, 12).total / 1e9  # within the 20 GB of section 5.1
    8.391557376
    """
    sizes(m=m, n=n, k=k)
    positive(slices_a=slices_a, slices_b=slices_b)
    rows, columns = (m, n) if block is None else (block_size(m, block), block_size(n, block))
    return Memory(2.0 * (slices_a * rows + slices_b * columns) * k, 4.0 * slices_a * slices_b * rows * columns)


@checked
def speed(count: float, throughput: float | Gpu = THROUGHPUT, share: float = SHARE) -> float:
    """Return the speed on fp64 that ``count`` slice products allow, section 5.2.

    Parameters
    ----------
    count : float
        Number of products of slices.
    throughput : float or Gpu
        Operations a second of one product, in any unit, which is then that of the result; of a `Gpu`, the peak of its
        fp16 matrix units, which no library reaches.
    share : float
        Share of the time that products take.

    Returns
    -------
    float
        2 m n k over the time, operations a second.

    Raises
    ------
    InputError
        Arguments that are not positive, a share above 1, or a GPU without fp16 matrix units.

    Examples
    --------
    >>> round(speed(66) / 1e12, 2)
    0.98
    """
    rate = throughput.need("fp16 matrix", "the speed of DGEMM-TC") if isinstance(throughput, Gpu) else throughput
    positive(count=count, throughput=rate, share=share)
    if share > 1:
        raise InputError(f"share = {share:g} of the time must be at most 1")
    return float(share * rate / count)


@checked
def implied_products(measured: float, throughput: float = THROUGHPUT, share: float = SHARE) -> float:
    """Return the number of slice products that a measured speed corresponds to; the inverse of `speed`.

    Parameters
    ----------
    measured : float
        Speed on fp64, operations a second.
    throughput : float
        Speed of one product, in the same unit.
    share : float
        Share of the time that products take.

    Returns
    -------
    float
        Number of products.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.

    Examples
    --------
    >>> round(implied_products(713.1e9), 1)
    90.3
    """
    positive(measured=measured, throughput=throughput, share=share)
    return share * throughput / measured
