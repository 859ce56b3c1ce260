"""The compiled implementation of a chain (numba), bit-identical to the NumPy reference `fpemu.mma.numpy_chain`."""

from fpemu.mma.compiled.run import chain

__all__ = ["chain"]
