"""Arrays that must be equal to the bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tests.hostile import bits


def same(x: ArrayLike, y: ArrayLike, *, any_nan: bool = False, what: str = "") -> None:
    """Equal types, shapes and bits; with any_nan any NaN equals any NaN."""
    x, y = np.asarray(x), np.asarray(y)
    assert (x.dtype, x.shape) == (y.dtype, y.shape), what
    wrong = bits(x) != bits(y)
    if any_nan:
        wrong &= ~(np.isnan(x) & np.isnan(y))
    different = np.count_nonzero(wrong)
    assert not different, f"{what}: {different} of {x.size} differ, first {x[wrong][0]!r} and {y[wrong][0]!r}"
