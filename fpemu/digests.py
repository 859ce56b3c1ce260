"""Digests of arrays of bit patterns, by which two machines compare outputs without exchanging them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE = 4  # tests of each operand class with separate digests, few enough to be repeated on any machine


def digest(D: NDArray[Any], first: int = 0) -> int:
    """Return the sum modulo 2^64 of a mixture of each code of D with its index, the first of which is `first`."""
    index = np.arange(first, first + D.size, dtype=np.uint64)
    return int(mix(mix(index) + D.reshape(-1).astype(np.uint64)).sum(dtype=np.uint64))


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood 2014) of each word."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def text(D: NDArray[Any], first: int = 0) -> str:
    """Return the digest as 16 hexadecimal digits, its form in records."""
    return f"{digest(D, first):016x}"
