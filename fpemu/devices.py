"""Transitional: the device is an argument of every product."""

from collections.abc import Iterator
from contextlib import contextmanager

from fpemu.mma._device import Device, resolve

__all__ = ["Device", "on", "resolve"]


@contextmanager
def on(device: Device | None) -> Iterator[None]:
    """Check the device; without further effect."""
    resolve(device or "cpu")
    yield
