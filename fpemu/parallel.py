"""Threads: their number, and NumPy work on arrays divided among them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError, shown

_CHUNK = 2**15  # entries of an array that one task computes: NumPy's temporaries then stay in a core's cache


def cores() -> int:
    """Number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def threads() -> int:
    """Number of threads to use: FPEMU_THREADS, else the number of cores."""
    setting = os.environ.get("FPEMU_THREADS", "")
    if not setting:
        return cores()
    if not re.fullmatch("0*[1-9][0-9]{0,8}", setting):
        raise InputError(f"FPEMU_THREADS = {shown(setting)} must be a positive integer below 10^9")
    return int(setting)


def map_threads(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Apply a function to every item on threads, and return the results in order."""
    items = list(items)
    count = min(threads(), len(items))
    if count < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(count) as pool:
        try:
            # in a copy of the caller's context, which holds NumPy's treatment of overflow
            return [future.result() for future in [pool.submit(copy_context().run, function, x) for x in items]]
        except BaseException:  # after an error or Ctrl-C only the calls under way end
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def map_chunks(function: Callable[..., Any], *arrays: NDArray[Any]) -> Any:
    """Apply an elementwise function to arrays of one shape, on threads where there are many entries.

    The function returns an array, or a tuple of arrays, of the shape of its arguments.
    """
    shape, size = arrays[0].shape, arrays[0].size
    if size <= 2 * _CHUNK:
        return function(*arrays)
    flat = [x.reshape(-1) for x in arrays]
    results = map_threads(
        lambda chunk: function(*(x[chunk] for x in flat)), [slice(i, i + _CHUNK) for i in range(0, size, _CHUNK)]
    )
    if isinstance(results[0], tuple):
        return tuple(np.concatenate(column).reshape(shape) for column in zip(*results, strict=True))
    return np.concatenate(results).reshape(shape)
