"""Benchmarks of the emulation on the CPU and of the kernels on a GPU; part of the checkout, not of the package.

`cpu` is ``fpemu bench cpu``, `gpu` is ``fpemu bench gpu``, `tuning` is ``fpemu tune batched``, `calls` is
``python -m benchmarks.calls``; `timing` is the timer of all four. `sweep`, whole cells of a sweep, is
``python -m benchmarks.sweep``.
"""
