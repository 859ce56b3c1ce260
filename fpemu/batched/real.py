"""Batched HGEMM: fp16 matrices, summed in fp16 or fp32, on matrix instructions or on FMA units.

Source: Abdelfattah, Tomov, Dongarra, Matrix multiplication on batches of small matrices in half and half-complex
precisions, JPDC (2020), sections 5 and 8. Whatever its blocks and its threads, the paper's kernel keeps the sum of an
element in one fragment and processes K in ascending order, TC_K = 16 at a time, with zeros where a block extends beyond
the matrix: one chain of instructions. Whole instructions of zeros at its end change no bit, except that the ideal
core's fp16 sums may have underflowed to -0. The kernel for tiny matrices has one thread per element: one chain of fused
multiply-adds. `fpemu.batched.scaling` applies alpha, beta and C.

Several tiny products in one instruction (section 8.1) are the same chains if their matrices are stacked in A and placed
side by side in B: an element of a diagonal block of D then combines its own operands and zeros. Concatenated in k they
are the same only where a block of the hardware divides each product as it divides the first, and an infinity in one
product makes the others NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import product_shape
from fpemu.batched import arguments, scaling
from fpemu.batched.arguments import Accumulate, Kernel, ProductArithmetic
from fpemu.batched.layouts import halves
from fpemu.mma import MmaSpec
from fpemu.mma.device import Device
from fpemu.mma.gemm import _chain
from fpemu.mma.tree import AnyOrder, order_of
from fpemu.schemes.base import scalar

Array = NDArray[Any]


@in_ieee
def hgemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    transa: str = "N",
    transb: str = "N",
    accumulate: Accumulate = "fp32",
    hardware: str | MmaSpec | None = None,
    instruction: str | None = None,
    kernel: Kernel = "tensor",
    order: AnyOrder | None = None,
    device: Device = "cpu",
) -> NDArray[np.float16]:
    """Return D = alpha · op(A) op(B) + beta · C for a batch of fp16 matrices.

    Parameters
    ----------
    A : array_like (..., M, K), or (..., K, M) with transa="T"
        Values of fp16; the leading axes are the batch and broadcast; any strides.
    B : array_like (..., K, N), or (..., N, K) with transb="T"
        As A.
    C : array_like (..., M, N), optional
        Values of fp16. Not read if beta = 0.
    alpha, beta : real numbers
        Rounded to the accumulator's format, in which they enter: `fpemu.batched.scaling`.
    transa, transb : {"N", "T", "C"}
        As in BLAS; "C" is "T" here.
    accumulate : {"fp32", "fp16"}
        The format of the sums.
    hardware : str or MmaSpec
        An architecture ("volta"), a GPU ("H200") or a spec. `magma-small` does without.
    instruction : str, optional
        Default: "mma", to which the paper's interface compiles, where the hardware has it.
    kernel : {"tensor", "magma-small"}
        One chain of matrix instructions, or (section 8) one chain of fused multiply-adds in the accumulator's format;
        the paper's is fp16.
    order : KOrder, tree or Revealed, optional
        Summation order over K. Default: one ascending chain.
    device : {"cpu", "cuda", "auto"}
        As in `fpemu.mma.gemm`.

    Returns
    -------
    float16 array (..., M, N)
        D; every NaN has the pattern of the hardware.

    Raises
    ------
    InputError
        Unknown names, values that are not of fp16, shapes that do not fit, beta without C.

    Examples
    --------
    >>> A = np.full((1000, 2, 3), 2**-5, np.float16); B = np.ones((1000, 3, 2), np.float16)
    >>> hgemm(A, B, np.ones((2, 2)), alpha=2, beta=0.5, hardware="V100")[0, 0].tolist()
    [0.6875, 0.6875]
    >>> x, y = np.float16([[2048.0, 1.0, 1.0]]), np.ones((3, 1))
    >>> [hgemm(x, y, accumulate=f, kernel="magma-small").item() for f in ("fp16", "fp32")]
    [2048.0, 2050.0]
    """
    how = arguments.arithmetic(kernel, accumulate, hardware, instruction)
    a = arguments.transposed(arguments.matrix(halves(A, "A"), "A"), transa, "transa")
    b = arguments.transposed(arguments.matrix(halves(B, "B"), "B"), transb, "transb")
    shape = product_shape(a, b, arguments.factor_names(transa, transb))
    factor, weight = (scalar(x, name, how.accumulator) for x, name in ((alpha, "alpha"), (beta, "beta")))
    scaling.needs_c(C, weight, shape)
    c = None
    if C is not None:
        c = arguments.matrix(halves(C, "C", read=bool(weight != 0)), "C")
        arguments.check_addend(c, shape)
    c = c if weight != 0 else None
    return _hgemm(a, b, c, factor, weight, how, order_of(order), device)


def _hgemm(
    A: Array, B: Array, C: Array | None, alpha: Any, beta: Any, how: ProductArithmetic, order: Any, device: Device
) -> NDArray[np.float16]:
    """`hgemm` for fp16 matrices that fit and scalars in the accumulator's format; C is None where it is not read."""
    dtype = how.spec.a_format.dtype  # type: ignore[union-attr]  # of FMA units' fp32 operands: fp16 numbers are fp32 ones
    T = _chain([(A.astype(dtype, copy=False), B.astype(dtype, copy=False))], None, how.spec, order, device=device)
    return scaling.half(scaling.scaled(T, C, alpha, beta), how.nan_code)
