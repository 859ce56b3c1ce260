"""A contender on small or tall products, and what its row says: speed, errors of a sample, bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import metrics
from fpemu.gpu import device
from fpemu.gpu.bench import ceilings, points
from fpemu.gpu.bench.places import digest
from fpemu.gpu.device import Buffer

RULES = points.RULES
"""How these speeds are measured: the chip is far from its power limit, and the launches are short."""
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(eq=False)
class Run:
    """A contender with its operands.

    Parameters
    ----------
    queue : callable
        Queues one launch of it.
    again : callable
        Queues one into the result that is looked at: the same as `queue`, but where that goes round.
    sample : callable
        Some entries of that result.
    about : dict
        What the record says of it.
    emulate : callable or None
        The same entries by the emulator.
    """

    queue: Callable[[], None]
    again: Callable[[], None]
    sample: Callable[[], NDArray[Any]]
    about: dict[str, Any]
    emulate: Callable[[], NDArray[Any]] | None = None


@cache
def copy_rate() -> float:
    """Bytes a second of a copy of 4 GB within the GPU's memory, those read and those written; measured once."""
    return 2 * ceilings.BYTES / ceilings.copy().median


@cache
def launch() -> float:
    """Seconds from one empty launch to the next; measured once."""
    return ceilings.launch().median


def measure(run: Run, result: Buffer, nbytes: int, exact: NDArray[np.float64]) -> dict[str, Any]:
    """The fields of a row.

    Parameters
    ----------
    run : Run
    result : Buffer
        Where `run.again` writes, from its beginning, `nbytes` bytes.
    exact : array
        Of the sample.
    """
    found = {**run.about, "copy_GBs": copy_rate() * 1e-9, "launch_s": launch()}
    result.fill(device.POISON)
    run.again()
    device.synchronize()
    found["digest"] = digest(result.pointer, nbytes)
    D = run.sample()
    found |= errors(D, exact)
    found |= points.fields(points.measure(run.queue, RULES))
    run.again()
    device.synchronize()
    found["again"] = digest(result.pointer, nbytes) == found["digest"]
    if run.emulate is not None:
        bits = _BITS[D.dtype.itemsize]
        want = np.ascontiguousarray(run.emulate(), D.dtype)
        found |= {"checked": D.size, "mismatches": int(np.count_nonzero(D.view(bits) != want.view(bits)))}
    return found


def errors(D: NDArray[Any], exact: NDArray[np.float64]) -> dict[str, Any]:
    """Errors of a sample: "relative_l2", "max_relative", how many entries are "lost" (not finite), and "outputs".

    >>> errors(np.array([1.0, 2.0, np.inf]), np.array([1.0, 2.5, 3.0]))["max_relative"]
    0.2
    """
    got = np.asarray(D, np.float64)
    kept = np.isfinite(got)
    one, other = got[kept], exact[kept]
    found: dict[str, Any] = {"lost": int(got.size - kept.sum()), "outputs": int(got.size)}
    if one.size and other.any():
        found |= {"relative_l2": float(metrics.relative_l2(one, other)),
                  "max_relative": float(metrics.max_relative(one, other))}  # fmt: skip
    return found


def seconds(bytes_drawn: float) -> float:
    """About how long a row takes whose operands have so many bytes."""
    return 0.09 + bytes_drawn / 2e11
