"""The compiled implementations of the arithmetics (numba), with the bits of `fpemu.mma.reference`."""
