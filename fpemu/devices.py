"""Where products are computed: on the CPU, or on a GPU with the same bits. What else there is to do runs on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import choice
from fpemu.errors import InputError

Device = Literal["auto", "cpu", "cuda"]
_current: ContextVar[Device] = ContextVar("device", default="cpu")

_PIECE = 2**15  # entries worked on at a time: NumPy's intermediate arrays stay in a core's cache


@contextmanager
def on(device: Device | None) -> Iterator[None]:
    """Run the products within this context on a device, unless they name one themselves.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"} or None
        "auto": large products run on the GPU if there is one that can be used, all others on the CPU. None changes
        nothing.

    Yields
    ------
    None
        The previous device is restored when the context ends.

    Raises
    ------
    InputError
        An unknown device; "cuda" without a GPU that can be used.
    """
    if device is None:
        yield
        return
    before = _current.set("cpu" if resolve(device) == "cpu" else device)
    try:
        yield
    finally:
        _current.reset(before)


def resolve(device: str) -> Literal["cpu", "cuda"]:
    """The device that a choice comes to here: "auto" is "cuda" where there is a GPU that can be used, else "cpu".

    Raises
    ------
    InputError
        An unknown device; "cuda" without a GPU that can be used.
    """
    choice("device", device, get_args(Device))
    if device == "cpu":
        return "cpu"
    from fpemu.gpu import available

    reason = available()
    if reason is None:
        return "cuda"
    if device == "cuda":
        raise InputError(f"device = 'cuda': {reason}")
    return "cpu"


def choose(device: Device | None, backend: str) -> str:
    """The backend, or "cuda": what a product that was given both runs on.

    Raises
    ------
    InputError
        An unknown device, one that contradicts the backend, or no GPU that can be used.
    """
    if device is None:
        return "cuda" if _current.get() != "cpu" and backend == "compiled" else backend
    where = resolve(device)
    if device == "cuda" and backend != "compiled":
        raise InputError(f"device = 'cuda' has a form of its own: it does not go with backend = {backend!r}")
    return "cuda" if where == "cuda" and backend == "compiled" else backend


def all_products() -> bool:
    """Whether also those products are to run on the GPU that gain nothing by it: not under "auto"."""
    return _current.get() != "auto"


def matmul(X: NDArray[Any], Y: NDArray[Any]) -> NDArray[Any]:
    """X @ Y for integers whose sums no order of addition rounds: by BLAS, or, if it is large, on the GPU chosen.

    Parameters
    ----------
    X : float32 or float64 array (..., M, K), Y : array (..., K, N) of the same type and leading axes
        Every sum over some of the k of |x||y| is at most 2^24 (float32), 2^53 (float64): the caller's proof.
    """
    if _current.get() != "cpu":
        from fpemu.gpu.emulation import chains

        if chains.gains(X, Y):
            return chains.matmul(X, Y)
    return np.asarray(np.matmul(X, Y))


def each(function: Callable[[Any], Any], pieces: Iterable[Any]) -> list[Any]:
    """The function of every piece, in order, on the threads that the compiled kernels have too (FPEMU_THREADS).

    For NumPy's work on arrays, which lets other threads run meanwhile.
    """
    from fpemu.mma.threads import threads

    pieces = list(pieces)
    count = min(threads(), len(pieces))
    if count < 2:
        return [function(piece) for piece in pieces]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        # in a copy of the caller's context: its device, and NumPy's treatment of overflow
        return [future.result() for future in [pool.submit(copy_context().run, function, p) for p in pieces]]


def by_pieces(function: Callable[..., Any], *arrays: NDArray[Any]) -> Any:
    """A function of arrays of one shape, entry by entry: of some entries at a time, on threads, where there are many.

    Parameters
    ----------
    function : callable
        Gives an array, or a tuple of them, of the shape of its arguments.
    """
    shape, size = arrays[0].shape, arrays[0].size
    if size <= 2 * _PIECE:
        return function(*arrays)
    flat = [x.reshape(-1) for x in arrays]
    found = each(
        lambda some: function(*(x[some] for x in flat)), [slice(i, i + _PIECE) for i in range(0, size, _PIECE)]
    )
    if isinstance(found[0], tuple):
        return tuple(np.concatenate(part).reshape(shape) for part in zip(*found, strict=True))
    return np.concatenate(found).reshape(shape)
