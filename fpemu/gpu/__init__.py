"""The GPU at hand, to run what fpemu describes, bit for bit: one matrix instruction, or the product of a whole scheme.

Needs the extra `gpu` (``pip install fpemu[gpu]``) and an NVIDIA GPU; `available` says what is missing. Importing this
room loads neither.
"""

from __future__ import annotations

from typing import Any

from fpemu.gpu.gemm import gemm, kernel, release
from fpemu.mma.spec import MmaSpec

__all__ = ["available", "execute", "gemm", "kernel", "release"]


def available() -> str | None:
    """None if there is a GPU to run on, else in one line what is missing."""
    from fpemu.gpu import device

    return device.missing()


def execute(A: Any, B: Any, C: Any, spec: MmaSpec, *, n: int | None = None, saturate: bool = False) -> Any:
    """One matrix instruction of the GPU at hand: D = A B + C, the arguments as in `fpemu.mma.execute`.

    Parameters
    ----------
    A : array (..., M, k), B : array (..., k, N), C : array (..., M, N) or None
        Values of the spec's formats, K exactly ``spec.k``, any M and N: cut into tiles of the instruction, the last
        ones filled up with zeros. Leading axes broadcast.
    spec : MmaSpec
        A row of the catalog that this GPU has. Its formats, instruction and shape are used, not its arithmetic.
    n : int, optional
        Columns of one wgmma: 8, 16 ... 256. Default: the least that N needs.
    saturate : bool
        int8: the instruction's .satfinite form, which stops at the ends of int32.

    Returns
    -------
    D : array (..., M, N) of float16, float32, float64 or int32, with the bits that the hardware returned

    Raises
    ------
    InputError
        Wrong operands, or an instruction that this GPU does not have.
    GpuError
        No GPU, or a run that failed.
    """
    from fpemu.gpu import instructions

    return instructions.execute(A, B, C, spec, n=n, saturate=saturate)
