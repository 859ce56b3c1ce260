"""Where products are emulated: on the CPU, or on a GPU with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from fpemu.errors import InputError, unknown_name

Device = Literal["cpu", "cuda"]
_current: ContextVar[Device] = ContextVar("device", default="cpu")


@contextmanager
def on(device: Device | None) -> Iterator[None]:
    """Products within run on `device`, unless they name one themselves; None changes nothing.

    Raises
    ------
    InputError
        An unknown device; no GPU that can be used.
    """
    if device is None:
        yield
        return
    _check(device)
    before = _current.set(device)
    try:
        yield
    finally:
        _current.reset(before)


def choose(device: Device | None, backend: str) -> str:
    """The backend, or "cuda": what a product that was given both runs on.

    Raises
    ------
    InputError
        An unknown device, one that contradicts the backend, or no GPU that can be used.
    """
    if device is None:
        return "cuda" if _current.get() == "cuda" and backend == "compiled" else backend
    _check(device)
    if device == "cuda" and backend != "compiled":
        raise InputError(f"device = 'cuda' has a form of its own: it does not go with backend = {backend!r}")
    return "cuda" if device == "cuda" else backend


def _check(device: str) -> None:
    if device not in get_args(Device):
        raise unknown_name("device", device, get_args(Device))
    if device == "cuda":
        from fpemu.gpu import available

        reason = available()
        if reason is not None:
            raise InputError(f"device = 'cuda': {reason}")
