"""Arrays in the GPU's memory for a measurement: drawn there, handed over without a copy, fetched in parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu import device
from fpemu.gpu.bench.problem import run
from fpemu.gpu.bench.timing import kernels
from fpemu.gpu.device import Buffer

_BLOCKS = 1056
_FORMATS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


@dataclass(frozen=True, eq=False)
class Place:
    """Memory as an array, for whoever reads ``__cuda_array_interface__``.

    Parameters
    ----------
    pointer : int
    shape : tuple of int
    dtype : np.dtype
    columns : bool
        The last two axes are stored by columns; everything else as C has it.
    owner : object
        Keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns: bool = False
    owner: object = None

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        steps = [self.dtype.itemsize * math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        if self.columns:
            steps[-2:] = [self.dtype.itemsize, self.dtype.itemsize * self.shape[-2]]
        return tuple(steps)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False),
                "strides": self.strides if self.columns else None, "version": 3, "stream": 1}  # fmt: skip


def draw(fmt: str, count: int, seed: int, low: float, high: float) -> Buffer:
    """Uniform numbers in [low, high) on the GPU, as a function of seed and index.

    Parameters
    ----------
    fmt : {"fp16", "fp32", "fp64"}
        fp16 is rounded from fp32.
    count : int
    seed : int
    low, high : float
    """
    wide = "fp32" if fmt == "fp16" else fmt
    buffer = Buffer(count * np.dtype(_FORMATS[wide]).itemsize)
    run(f"draw_{wide}", buffer, count, seed, np.float64(low), np.float64(high), np.float64(-1.0))
    if fmt != "fp16":
        return buffer
    half = Buffer(count * 2)
    run("words_rows", half, np.zeros(1, np.uint64), buffer, count)
    device.synchronize()
    return half


def drawn(fmt: str, count: int, seed: int, low: float, high: float) -> NDArray[Any]:
    """What `draw` makes, on the CPU: splitmix64 of index and seed.

    >>> drawn("fp16", 3, 0, -1.0, 1.0).tolist()
    [-1.0, 0.94189453125, -0.921875]
    """
    index = np.arange(count, dtype=np.uint64)
    mixed = _mixed(index * np.uint64(4)) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    x = low + (high - low) * ((_mixed(mixed) >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    return x if fmt == "fp64" else x.astype(np.float32).astype(_FORMATS[fmt])


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def fetch(pointer: int, first: int, count: int, dtype: Any) -> NDArray[Any]:
    """Elements on the host, `count` of them from number `first` on; it waits for what was queued."""
    out = np.empty(count, dtype)
    device.synchronize()
    device.check(device._enter().cuMemcpyDtoH(out.ctypes.data, pointer + first * out.itemsize, out.nbytes))
    return out


def digest(pointer: int, nbytes: int) -> str:
    """A digest of all bits of memory, as `fpemu.gpu.verification.digests` has it of its 32-bit words."""
    out = Buffer(_BLOCKS * 8)
    device.synchronize()
    kernels().launch("digest_32", _BLOCKS, 256, out, np.uint64(pointer), nbytes // 4, wait=False)
    return f"{int(out.array(_BLOCKS, np.uint64).sum(dtype=np.uint64)):016x}"
