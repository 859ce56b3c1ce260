"""NVIDIA GPUs: matrix instructions, products of any scheme, batched and tall-and-skinny products, bit for bit.

The functions require the extra `gpu` (``pip install 'fpemu[gpu]'``) and an NVIDIA GPU; `available` returns what is
missing. The import of this subpackage requires neither.
"""

from __future__ import annotations

from typing import Any

from fpemu.gpu import batched, tallskinny
from fpemu.gpu.gemm.choice import kernel
from fpemu.gpu.operation import gemm, release
from fpemu.gpu.plans import plan
from fpemu.gpu.runtime.counters import check
from fpemu.mma.spec import MmaSpec

__all__ = ["available", "batched", "check", "execute", "gemm", "kernel", "plan", "release", "tallskinny"]


def available() -> str | None:
    """Return the reason why no GPU can be used.

    Returns
    -------
    str or None
        One line that names what is missing; None if a GPU can be used.
    """
    from fpemu.gpu.runtime import device

    return device.missing()


def execute(A: Any, B: Any, C: Any, spec: MmaSpec, *, n: int | None = None, saturate: bool = False) -> Any:
    """Issue one matrix instruction of the GPU, D = A B + C, with the arguments of `fpemu.mma.execute`.

    Parameters
    ----------
    A : array_like (..., M, k)
        Values of the spec's format; K is ``spec.k``, M and N are arbitrary: the operands are divided into tiles of
        the instruction, and the last tiles are padded with zeros. Leading axes broadcast.
    B : array_like (..., k, N)
        As A.
    C : array_like (..., M, N) or None
        Accumulator; None: zero.
    spec : MmaSpec
        A row of the catalogue whose instruction this GPU has. Only its formats, instruction and shape are used.
    n : int, optional
        Columns of one wgmma: 8, 16 ... 256. Default: the smallest that covers N.
    saturate : bool
        For int8: the instruction's .satfinite form, which saturates at the limits of int32.

    Returns
    -------
    array (..., M, N) of float16, float32, float64 or int32
        D, with the bits that the hardware returned.

    Raises
    ------
    InputError
        Invalid operands, or an instruction that this GPU does not have.
    GpuError
        No GPU, or a failed run.
    """
    from fpemu.gpu.instructions import run as instructions

    return instructions.execute(A, B, C, spec, n=n, saturate=saturate)
