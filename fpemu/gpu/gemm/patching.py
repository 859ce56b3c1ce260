"""What a NaN or an Inf of an operand makes of the outputs it reaches: `fpemu.schemes.ranges.patch` on the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.gpu.gemm.base import Prepared
from fpemu.gpu.runtime import compiler, device, matrices, properties
from fpemu.gpu.runtime.matrices import Matrix

_TILE = 16  # SIDE in nonfinite_outputs.cu
_BLOCKS = 8  # per multiprocessor, at most: each block computes several tiles


@lru_cache(maxsize=1)
def module() -> device.Module:
    """``kernels/nonfinite_outputs.cu``"""
    return device.Module(compiler.kernel_source("nonfinite_outputs.cu"), name="nonfinite_outputs.cu")


def patch(a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None, nan_code: int) -> None:
    """Write the outputs of D in rows and columns that hold NaN or Inf; only queued.

    Parameters
    ----------
    a, b : Prepared
        With special rows and faults looked for; their sources are read again.
    D, alpha, beta, C : as `Kernel.multiply` had them
    nan_code : int
        Code of every NaN.
    """
    M, N, K = D.shape[-2], D.shape[-1], a.source.shape[-1]
    count, lead = D.count, D.shape[:-2]
    tiles = count * -(-M // _TILE) * -(-N // _TILE)
    sides = []
    for x in (a, b):
        index = matrices.numbers(x.source.index(lead))
        steps = (np.int64(s) for s in x.steps)
        sides += [np.uint64(x.source.pointer), matrices.table(x.source, lead), *steps, x.special, index, x.faults]
    added: list[Any] = [np.uint64(0), np.uint64(0), np.int64(0), np.int64(0)]
    if C is not None:
        c = C.broadcast(D.shape)
        added = [np.uint64(c.pointer), matrices.table(c, lead), *(np.int64(s) for s in c.strides[-2:])]
    module().launch(
        "patch",
        min(tiles, _BLOCKS * properties.multiprocessors()),
        256,
        *sides,
        np.uint64(D.pointer),
        matrices.table(D),
        np.int64(D.strides[-2]),
        *added,
        *(np.int64(n) for n in (count, M, N, K)),
        np.float32(alpha),
        np.float32(beta),
        np.uint64(nan_code),
        wait=False,
    )
