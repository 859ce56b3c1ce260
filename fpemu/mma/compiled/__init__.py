"""The compiled form of a chain (numba): the same bits as `fpemu.mma.readable`."""

from fpemu.mma.compiled.run import chain

__all__ = ["chain"]
