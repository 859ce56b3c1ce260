"""Outer blocks: the product of some rows of A and some columns of B at a time, within a limit on memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from fpemu.errors import InputError


@dataclass(frozen=True)
class Cost:
    """Bytes of a block per row of A, per column of B, and per entry of D."""

    row: int
    column: int
    entry: int

    def bytes(self, rows: int, columns: int) -> int:
        """Bytes of a block."""
        return rows * self.row + columns * self.column + rows * columns * self.entry


def block(M: int, N: int, cost: Cost, memory: int | None, largest: int, name: str) -> tuple[int, int]:
    """Rows and columns of a block: ceil(n / ceil(n / b)) for the largest b that fits (Mukunoki et al. 2020, 4.2).

    InputError if not even one row and one column fit.
    """
    b = largest
    if memory is not None:
        if cost.bytes(1, 1) > memory:
            raise InputError(
                f"{name}: memory={memory} bytes hold no block of one row and one column, which take about "
                f"{cost.bytes(1, 1)}: give more, or multiply in pieces along K"
            )
        linear = cost.row + cost.column  # the largest b with entry·b² + linear·b <= memory
        b = min(b, (isqrt(linear * linear + 4 * cost.entry * memory) - linear) // (2 * cost.entry))
        b = max(b, 1)
    return even(M, b), even(N, b)


def even(n: int, b: int) -> int:
    """ceil(n / ceil(n / b)): the size of blocks of at most b, as equal as possible."""
    return -(-n // -(-n // b))


def pieces(n: int, size: int) -> Iterator[slice]:
    """The indices from 0 to n in blocks of a size, the last one shorter."""
    return (slice(i, min(i + size, n)) for i in range(0, n, size))
