"""Digests of outputs: a few characters that say whether two machines, or two programs, got the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma import MmaSpec

SAMPLE = 4  # tests of each class whose digest is kept: few enough to be done again anywhere


def digest(D: NDArray[Any], first: int = 0) -> int:
    """What ``compare`` adds up for the outputs of index `first` on."""
    index = np.arange(first, first + D.size, dtype=np.uint64)
    return int(_mix(_mix(index) + D.reshape(-1).astype(np.uint64)).sum(dtype=np.uint64))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def any_nan(spec: MmaSpec) -> bool:
    """Whether the hardware's NaN have codes that the emulation does not follow: fp64's payloads."""
    return str(spec.d_format) == "fp64"


def sample_digest(D: NDArray[Any], spec: MmaSpec) -> str:
    """The digest of the first tests of a class, with one code for all NaN where they may have any."""
    if any_nan(spec):
        D = np.where(np.isnan(D.view(np.float64)), np.uint64(0x7FF8000000000000), D)
    return f"{digest(D):016x}"
