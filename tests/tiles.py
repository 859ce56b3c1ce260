"""The tiles of the kernels of split schemes on ``mma.sync``."""

from __future__ import annotations

from fpemu.gpu.gemm.mma_sync import fused


def tiles_of(kernel):
    """The tiles that a kernel could have, largest first; none for the kernels of any order."""
    if not isinstance(kernel, fused.FusedKernel):
        return []
    return fused.tiles(kernel.lowering, kernel.row, kernel.how, words=isinstance(kernel, fused.WordsKernel))
