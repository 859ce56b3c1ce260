"""Digests of outputs: a few characters that say whether two machines, or two programs, got the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE = 4  # tests of each class whose digest is kept: few enough to be done again anywhere


def digest(D: NDArray[Any], first: int = 0) -> int:
    """What ``compare`` adds up for the outputs of index `first` on."""
    index = np.arange(first, first + D.size, dtype=np.uint64)
    return int(_mix(_mix(index) + D.reshape(-1).astype(np.uint64)).sum(dtype=np.uint64))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def text(D: NDArray[Any], first: int = 0) -> str:
    """The digest as records have it."""
    return f"{digest(D, first):016x}"
