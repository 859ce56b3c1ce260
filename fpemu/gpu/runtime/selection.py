"""The GPU that a thread works on, by its index among the visible ones, and results that are cached once per GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, update_wrapper
from typing import Any, Generic, TypeVar

__all__ = ["PerDevice", "current", "per_device", "selected"]

_R = TypeVar("_R")
_thread = threading.local()


def current() -> int:
    """Return the index of the GPU of this thread: the selected one, else the GPU of its CUDA context, else 0."""
    index = getattr(_thread, "index", None)
    return _default() if index is None else index


def _default() -> int:
    """Return the index of the GPU whose context is current in this thread; 0 without one."""
    try:
        from cuda.bindings import driver

        status, context = driver.cuCtxGetCurrent()
        if status or not int(context):
            return 0
        _, ordinal = driver.cuCtxGetDevice()
        return int(ordinal)
    except Exception:  # no driver
        return 0


@contextmanager
def selected(index: int) -> Iterator[None]:
    """Let this thread work on a GPU within; its CUDA context is changed by `fpemu.gpu.runtime.device.entered`."""
    before = getattr(_thread, "index", None)
    _thread.index = index
    try:
        yield
    finally:
        _thread.index = before


class PerDevice(Generic[_R]):
    """A function whose results are cached for each GPU, from `per_device`."""

    def __init__(self, function: Callable[..., _R], maxsize: int | None) -> None:
        self.__wrapped__ = function
        update_wrapper(self, function)

        @lru_cache(maxsize)
        def of(index: int, *arguments: Any) -> _R:
            return function(*arguments)

        self._of: Callable[..., _R] = of
        self.cache_clear, self.cache_info = of.cache_clear, of.cache_info

    def __call__(self, *arguments: Any) -> _R:
        """Return the cached result for the GPU of this thread."""
        return self._of(current(), *arguments)


def per_device(maxsize: int | None = None) -> Callable[[Callable[..., _R]], PerDevice[_R]]:
    """Return a decorator like `functools.lru_cache`, with results for each GPU; `maxsize` counts all GPUs together."""
    return lambda function: PerDevice(function, maxsize)
