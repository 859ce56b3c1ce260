"""The outputs that a NaN or an Inf of an operand reaches: `fpemu.schemes.words.patch` on the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.gpu.gemm.base import Prepared, addend
from fpemu.gpu.runtime import compiler, device, matrices, modules, properties
from fpemu.gpu.runtime.matrices import Matrix

_TILE = 16  # SIDE in nonfinite_outputs.cu
_BLOCKS = 4  # per multiprocessor, at most: each block computes several tiles


@lru_cache(maxsize=1)
def module() -> modules.Module:
    """``kernels/nonfinite_outputs.cu``"""
    return modules.Module(compiler.kernel_source("nonfinite_outputs.cu"), name="nonfinite_outputs.cu")


def patch(a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None, nan_code: int) -> None:
    """Queue a kernel that writes the outputs of D in rows and columns with NaN or Inf; every NaN gets `nan_code`.

    D, alpha, beta and C are those of `Kernel.multiply`; the sources of a and b are read again.
    """
    M, N, K = D.shape[-2], D.shape[-1], a.source.shape[-1]
    count, lead = D.count, D.shape[:-2]
    tiles = count * -(-M // _TILE) * -(-N // _TILE)
    sides = []
    for x in (a, b):
        index = matrices.numbers(x.source.index(lead))
        steps = (np.int64(s) for s in x.steps)
        sides += [np.uint64(x.source.pointer), matrices.table(x.source, lead), *steps, x.special, index, x.faults]
    module().launch(
        "patch",
        min(tiles, _BLOCKS * properties.multiprocessors()),
        256,
        *sides,
        np.uint64(D.pointer),
        matrices.table(D),
        np.int64(D.strides[-2]),
        *addend(C, D),
        *(np.int64(n) for n in (count, M, N, K)),
        np.float32(alpha),
        np.float32(beta),
        np.uint64(nan_code),
        wait=False,
        overlap=device.capability() >= (9, 0),  # the kernel waits for the product by itself
    )
