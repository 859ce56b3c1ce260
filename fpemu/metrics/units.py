"""Distances in units in the last place of a format."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError, entries
from fpemu.formats import FloatFormat
from fpemu.metrics.scaled import Floats, pair

NOT_COMPARABLE = np.uint64(0xFFFFFFFFFFFFFFFF)
"""`ulps` between a NaN and a number: larger than any distance."""


def ulps(C: Any, R: Any, fmt: FloatFormat | str) -> NDArray[np.uint64]:
    """Return the distance between C and R in units in the last place of a format.

    The distance is the number of steps of ``fmt`` between the two values.

    Parameters
    ----------
    C, R : array_like
        Values of ``fmt``, of the same shape.
    fmt : FloatFormat or str
        Format that defines the steps.

    Returns
    -------
    uint64 array
        0 for equal values (+0 and -0 are equal), 1 for neighbours; infinity is one step beyond the largest finite
        number. 0 between two NaNs whatever their payloads, `NOT_COMPARABLE` between a NaN and a number.

    Raises
    ------
    InputError
        Entries that are no values of the format; shapes that differ.

    Examples
    --------
    >>> int(ulps(1.0, 1.0 + 2.0**-10, "fp16"))
    1
    """
    fmt = formats.get(fmt)
    c, r, _ = pair(C, R)
    (p, below), (q, under) = _place(c, fmt, "C"), _place(r, fmt, "R")
    apart = np.where(below == under, np.maximum(p, q) - np.minimum(p, q), p + q)
    nans = np.isnan(c).astype(int) + np.isnan(r).astype(int)
    return np.asarray(np.choose(nans, [apart, NOT_COMPARABLE, np.uint64(0)]), dtype=np.uint64)


def max_ulps(C: Any, R: Any, fmt: FloatFormat | str) -> float:
    """Return the largest number of steps of a format between a result and the reference, max `ulps`.

    Parameters
    ----------
    C, R : array_like
        Values of ``fmt``, of the same shape.
    fmt : FloatFormat or str
        Format that defines the steps.

    Returns
    -------
    float
        Steps of ``fmt``; 0.0 for empty arrays; inf where a NaN meets a number.

    Raises
    ------
    InputError
        Entries that are no values of the format; shapes that differ.

    Examples
    --------
    >>> max_ulps([1.0, 2.0], [1.0, 2.0 - 2.0**-10], "fp16")
    1.0
    """
    distance = ulps(C, R, fmt)
    if not distance.size:
        return 0.0
    return math.inf if (distance == NOT_COMPARABLE).any() else float(distance.max())


def _place(x: Floats, fmt: FloatFormat, name: str) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the number of steps from zero, and whether x is below it; arbitrary for NaN."""
    if (bad := ~np.asarray(fmt.contains(x)) & ~np.isnan(x)).any():
        raise InputError(f"{name} has entries that are not values of {fmt} (round_to first): {entries(bad, x)}")
    code = np.asarray(fmt.encode(np.abs(np.where(np.isnan(x), fmt.max, x)))).astype(np.uint64) >> np.uint64(fmt.padding)
    if fmt.inf:  # codes between the largest number and Inf may be unused
        code = np.minimum(code, np.uint64((int(fmt.encode(fmt.max)) >> fmt.padding) + 1))
    if not fmt.subnormals:  # the codes between zero and the smallest normal number are unused
        gap = np.uint64((1 << fmt.fraction_bits) - 1)
        code = np.maximum(code, gap) - gap
    return code, (x < 0) & (code > 0)
