"""The product of a batched kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """The properties of a product for which a kernel is compiled."""

    M: int
    N: int
    K: int
    complex: bool = False
    planar: bool = False
    accumulate: str = "fp32"
    products: int = 4
    """Real products of a complex one: 4 or 3"""
    conjugate_a: bool = False
    """A's imaginary parts, or A itself if real, are negated"""
    conjugate_b: bool = False
    a_along_k: bool = True
    """A's rows are contiguous, otherwise its columns"""
    b_along_k: bool = False
    """B's columns are contiguous, otherwise its rows"""
    width: int = 2
    """Alignment of all lines of A, B and D in bytes: 2, 4 (the minimum for interleaved parts), 8 or 16"""
    plain: bool = True
    """alpha is 1 and beta is 0"""
    contiguous: bool = False
    """A, B and D are stacks whose matrices and lines follow each other without gaps"""

    @property
    def parts(self) -> int:
        return 2 if self.complex else 1

    @property
    def terms(self) -> int:
        """Accumulators of an element."""
        return 1 if not self.complex else 3 if self.products == 3 else 2

    @property
    def whole(self) -> bool:
        """Whether every line of A and B is a multiple of eight elements long."""
        lines = (self.K if self.a_along_k else self.M, self.K if self.b_along_k else self.N)
        return all(length % 8 == 0 for length in lines)
