"""Uniform operands drawn on the GPU from a seed, the same numbers on the CPU, and digests of the GPU's memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu._system import mix
from fpemu.gpu.runtime import compiler, device, modules
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.plan import queue

_THREADS, _BLOCKS = 256, 1056
_FORMATS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


@cache
def kernels() -> modules.Module:
    """Compile `kernels/bench.cu`, once in a process."""
    return modules.Module(compiler.kernel_source("bench.cu"), name="bench.cu")


def run(name: str, *arguments: Any) -> None:
    """Queue a kernel of `kernels` whose threads stride over an array."""
    device.synchronize()
    queue(kernels().step(name, _BLOCKS, _THREADS, *arguments))


def draw(fmt: str, count: int, seed: int, low: float, high: float, phi: float = -1.0) -> Buffer:
    """Draw numbers on the GPU as a function of seed and index; fp16 is rounded from fp32.

    They are uniform in [low, high) where `phi` is -1, and normal with this mean and deviation where it is -2. A value
    from 0 on selects (uniform - 1/2) exp(phi normal), the inputs of the DGEMM-TC paper.
    """
    drawn_as = "fp32" if fmt == "fp16" else fmt
    buffer = Buffer(count * np.dtype(_FORMATS[drawn_as]).itemsize)
    run(f"draw_{drawn_as}", buffer, count, seed, np.float64(low), np.float64(high), np.float64(phi))
    if fmt != "fp16":
        return buffer
    half = Buffer(count * 2)
    run("words_rows", half, np.zeros(1, np.uint64), buffer, count)
    device.synchronize()
    return half


def drawn(fmt: str, count: int, seed: int, low: float, high: float) -> NDArray[Any]:
    """Draw on the CPU the uniform numbers of `draw`: splitmix64 of index and seed.

    >>> drawn("fp16", 3, 0, -1.0, 1.0).tolist()
    [-1.0, 0.94189453125, -0.921875]
    """
    return drawn_at(fmt, np.arange(count, dtype=np.uint64), seed, low, high)


def drawn_at(fmt: str, index: NDArray[Any], seed: int, low: float, high: float) -> NDArray[Any]:
    """Return the numbers of `drawn` at some indices, in their shape."""
    mixed = mix(index.astype(np.uint64) * np.uint64(4)) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    x = low + (high - low) * ((mix(mixed) >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    return x if fmt == "fp64" else x.astype(np.float32).astype(_FORMATS[fmt])


def fetch(pointer: int, first: int, count: int, dtype: Any) -> NDArray[Any]:
    """Copy `count` elements from index `first` on to the host, after all queued work."""
    device.synchronize()
    return device.fetch(pointer + first * np.dtype(dtype).itemsize, count, dtype)


def digest(pointer: int, nbytes: int, bits: int = 32) -> str:
    """Return the digest of memory that `fpemu._system.digest` defines, of its words of 32 or 64 bits."""
    out = Buffer(_BLOCKS * 8)
    run(f"digest_{bits}", out, np.uint64(pointer), nbytes * 8 // bits)
    return f"{int(out.array(_BLOCKS, np.uint64).sum(dtype=np.uint64)):016x}"
