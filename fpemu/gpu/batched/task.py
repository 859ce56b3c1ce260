"""What a batched kernel computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What is multiplied, as far as a kernel is compiled for it."""

    M: int
    N: int
    K: int
    complex: bool = False
    planar: bool = False
    accumulate: str = "fp32"
    products: int = 4
    """Real products of a complex one: 4 or 3"""
    conjugate_a: bool = False
    """A's imaginary parts, or real numbers, enter with the other sign"""
    conjugate_b: bool = False
    a_along_k: bool = True
    """A's rows lie side by side in memory; else its columns"""
    b_along_k: bool = False
    """B's columns lie side by side; else its rows"""
    width: int = 2
    """Alignment of all lines of A, B and D in bytes: 2, 4 (the least if parts are interleaved), 8 or 16"""
    plain: bool = True
    """alpha is 1 and beta is 0"""
    contiguous: bool = False
    """A, B and D are stacks whose matrices and lines follow each other without gaps"""

    @property
    def parts(self) -> int:
        return 2 if self.complex else 1

    @property
    def terms(self) -> int:
        """Sums of an element."""
        return 1 if not self.complex else 3 if self.products == 3 else 2

    @property
    def whole(self) -> bool:
        """Whether every line of A and B is a multiple of eight elements long."""
        lines = (self.K if self.a_along_k else self.M, self.K if self.b_along_k else self.N)
        return all(length % 8 == 0 for length in lines)
