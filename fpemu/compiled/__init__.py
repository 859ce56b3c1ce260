"""The compiled implementations of elementwise operations, with the bits of NumPy's; kernels on disk."""
