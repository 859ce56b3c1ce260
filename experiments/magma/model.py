"""MAGMA's batched HGEMM and HCGEMM: memory traffic of blocks, and rooflines of complex products in two layouts.

Source: Abdelfattah, Tomov, Dongarra (2020), sections 5.2.1 (Fig. 5) and 6 (Eq. 1, 2, Fig. 8, 9). This module also
exports the kernel's parameters (`_model_kernels`) and several products in one instruction (`_model_packing`, Fig. 16
and 17).

Fig. 5. Every thread block reads a block row of A and a block column of B, K (BLK_M + BLK_N) elements, and there are
M N / (BLK_M BLK_N) blocks. The same count for blocks of the instruction's size, divided by this one, is the printed
formula. It holds for matrices much larger than a block. At M = N = n no block reads beyond the matrix, so that A is
read ceil(N / BLK_N) times, and the reduction stops growing when one block covers the matrix (`traffic_reduction` with
``size``).

Eq. 1 and 2 are right as printed. A complex product takes 8 M N K operations; in the interleaved layout it moves 4 bytes
per element, with C read and written: 4 (2 M N + K (M + N)) bytes. The planar product is four real ones, each of
2 (2 M N + K (M + N)) bytes: twice as many in total. The factor of two is due to the four separate calls, which read
every operand and C twice, and not to the layout: one kernel that forms the four products of planar operands in its
blocks moves as many bytes as the interleaved one ("planar, one kernel").
"""

import math
from collections.abc import Sequence

from fpemu.arguments import choice
from fpemu.errors import InputError
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.wmma import TENSOR, Kernel

from ._model_kernels import check, configurations, idle_warps, occupancy, ranked, registers, shared_memory, waste
from ._model_packing import arrange, pack, utilisation, valid

__all__ = ["LAYOUTS", "bound", "crossing", "loads", "operational_intensity", "traffic_reduction"]
__all__ += ["TENSOR", "Kernel", "check", "registers", "shared_memory"]
__all__ += ["configurations", "idle_warps", "occupancy", "ranked", "waste"]
__all__ += ["arrange", "pack", "utilisation", "valid"]

LAYOUTS: dict[str, tuple[int, int]] = {
    "interleaved": (8, 4),
    "planar": (8, 8),
    "planar, one kernel": (8, 4),
    "real": (2, 2),
}
"""Operations for each of the M N K multiply-adds, and bytes for each of the 2 M N + K (M + N) elements moved."""


def loads(M: int, N: int, K: int, block: Sequence[int]) -> int:
    """Return the elements of A and B that the thread blocks of one product read from memory (section 5.2.1).

    A block at the edge reads only existing elements and is padded with zeros.

    >>> loads(128, 128, 64, (64, 64)), loads(128, 128, 64, (16, 16))
    (32768, 131072)
    """
    rows, columns, *_ = block
    return K * (M * -(-N // columns) + N * -(-M // rows))


def traffic_reduction(block: Sequence[int], tensor: Sequence[int], size: int | None = None) -> float:
    """Return the factor by which blocks reduce the reads of A and B against the instruction's tiles (Fig. 5).

    Without ``size``, the size of square matrices, this is the paper's formula BLK_M BLK_N (TC_M + TC_N) / (TC_M TC_N
    (BLK_M + BLK_N)) for large matrices.

    >>> traffic_reduction((64, 64), (16, 16)), traffic_reduction((64, 64), (32, 8))
    (4.0, 5.0)
    >>> traffic_reduction((64, 64), (16, 16), size=32)
    2.0
    """
    (bm, bn, *_), (tm, tn, *_) = block, tensor
    for name, b, t in (("M", bm, tm), ("N", bn, tn)):
        if b % t:
            raise InputError(f"TC_{name} = {t} does not divide BLK_{name} = {b} (section 5.8): choose a multiple")
    if size is not None:
        return loads(size, size, 1, (tm, tn)) / loads(size, size, 1, (bm, bn))
    return bm * bn * (tm + tn) / (tm * tn * (bm + bn))


def operational_intensity(M: int, N: int, K: int, layout: str = "interleaved") -> float:
    """Return the operations per byte of the least memory traffic: Equations 1 (interleaved) and 2 (planar).

    >>> operational_intensity(300, 300, 300), operational_intensity(300, 300, 300, "planar")
    (150.0, 75.0)
    """
    operations, size = _layout(layout)
    return operations * M * N * K / (size * (2 * M * N + K * (M + N)))


def bound(M: int, N: int, K: int, layout: str, gpu: Gpu, *, peak: float | None = None) -> float:
    """Return the roofline in operations per second, by the copy bandwidth (STREAM) where it is known (Fig. 8 and 9).

    >>> from fpemu.roofline import gpus
    >>> v100 = gpus.get("V100 SXM2")
    >>> f"{bound(200, 200, 200, 'planar', v100) / 1e12:.2f} TFLOP/s"
    '42.35 TFLOP/s'
    """
    top, bandwidth = _machine(gpu, peak)
    return min(top, operational_intensity(M, N, K, layout) * bandwidth)


def crossing(gpu: Gpu, layout: str, K: int | None = None, *, peak: float | None = None) -> float:
    """Return the size N from which a product is bound by computation, not rounded; inf if there is none.

    With ``K`` it is the rank-K update of an N×N matrix, else the N×N×N product.

    >>> from fpemu.roofline import gpus
    >>> v100 = gpus.get("V100 SXM2")
    >>> round(crossing(v100, "interleaved")), round(crossing(v100, "planar")), crossing(v100, "interleaved", K=16)
    (295, 590, inf)
    """
    top, bandwidth = _machine(gpu, peak)
    operations, size = _layout(layout)
    balance = top / bandwidth * size / operations  # in multiply-adds per element moved
    if K is None:
        return 4 * balance  # N^3 / (4 N^2)
    # N^2 K / (2 N^2 + 2 K N) = balance; the left side grows with N towards K / 2
    limit = 2 * balance
    return limit * K / (K - limit) if limit < K else math.inf


def _machine(gpu: Gpu, peak: float | None) -> tuple[float, float]:
    """The peak and the bandwidth, in operations and bytes per second."""
    top = gpu.need("fp16 matrix", "the roofline of MAGMA's kernels") if peak is None else peak
    return top, gpu.copy_bandwidth or gpu.need("bandwidth", "the roofline of MAGMA's kernels")


def _layout(name: str) -> tuple[int, int]:
    return LAYOUTS[choice("layout", name, LAYOUTS)]
