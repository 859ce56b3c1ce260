"""FMA units: GEMM as chains of fused multiply-adds in fp16, fp32 or fp64, with exactly one rounding per step.

`fpemu.mma.reference.fma` contains the arithmetic and the proof that no step rounds twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import _float64
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import gemm as _gemm
from fpemu.mma import reference as _reference
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.device import Backend, Device
from fpemu.mma.gemm import as_values
from fpemu.mma.tree import AnyOrder

SPECS = FMA_SPECS


@in_ieee
def fma(a: Any, b: Any, c: Any, fmt: FloatFormat | str = "fp32") -> Any:
    """Return a·b + c elementwise, with one rounding to nearest even.

    Parameters
    ----------
    a, b, c : array_like
        Values of ``fmt``; the shapes broadcast.
    fmt : {"fp32", "fp16", "fp64"} or FloatFormat
        Format of the operands and of the result.

    Returns
    -------
    array of ``fmt.dtype``
        Rounded results, of the broadcast shape; a NumPy scalar for scalars. Overflow gives Inf; NaN and Inf propagate
        as in IEEE 754.

    Raises
    ------
    InputError
        Another format, values that are not of ``fmt``, or shapes that do not broadcast.

    Examples
    --------
    >>> fma(np.float16(0.1), np.float16(10), np.float16(-1), "fp16")
    np.float16(-0.0002441)
    """
    fmt = fma_format(fmt)
    x, y, z = (_float64(as_values(v, fmt, n), n) for v, n in ((a, "a"), (b, "b"), (c, "c")))
    try:
        np.broadcast_shapes(x.shape, y.shape, z.shape)
    except ValueError:
        raise InputError(f"a {x.shape}, b {y.shape} and c {z.shape} do not broadcast") from None
    with np.errstate(all="ignore"):
        return _reference.fma(x, y, z, fmt).astype(fmt.dtype)[()]


@in_ieee
def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    fmt: FloatFormat | str = "fp32",
    order: AnyOrder | None = None,
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> Any:
    """Return D = A B + C, where each element is a chain of FMAs over ascending k or in ``order``.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        Values of ``fmt``; leading axes broadcast; any strides.
    C : array_like (..., M, N), optional
        Addend; without it the chain starts from +0.
    fmt : {"fp32", "fp16", "fp64"} or FloatFormat
        Format of the operands, of every rounding and of D.
    order : KOrder, tree or Revealed, optional
        Summation order over K. Partial sums of slices are added in fp32 (fp64 for fp64).
    backend, device : str
        As in `fpemu.mma.gemm`.

    Returns
    -------
    array (..., M, N) of ``fmt.dtype``
        D.

    Raises
    ------
    InputError
        Wrong shapes, dtypes or values.

    Examples
    --------
    >>> gemm(np.float32([[1, 2**-24]]), np.float32([[1], [1]])).item()
    1.0
    """
    return _gemm(A, B, C, SPECS[fma_format(fmt).name], order, backend=backend, device=device)


def fma_format(fmt: FloatFormat | str) -> FloatFormat:
    """Return the format of FMA units, by name or as a FloatFormat."""
    fmt = formats.get(fmt)
    if fmt.name not in SPECS:
        raise InputError(f"FMA units have FMAs in {', '.join(SPECS)}, not in {fmt}")
    return fmt
