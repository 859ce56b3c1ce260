"""FMA units: GEMM as chains of multiply-adds, with exactly one rounding per step, in any format and rounding mode.

Fused multiply-adds in fp16, fp32 and fp64 to nearest are those of `fpemu.mma`; `fpemu.simt.rounded` has all others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import _float64, flag
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import device as devices
from fpemu.mma import gemm as _gemm
from fpemu.mma import reference as _reference
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.device import Backend, Device
from fpemu.mma.gemm import as_values
from fpemu.mma.tree import AnyOrder
from fpemu.rounding import Rounding, mode_of
from fpemu.simt import rounded
from fpemu.simt.rounded import Arithmetic, Format, Product, any_format

SPECS = FMA_SPECS


@in_ieee
def fma(
    a: Any,
    b: Any,
    c: Any,
    fmt: Format = "fp32",
    *,
    rounding: Rounding | str = "RNE",
    bits: int | None = None,
    seed: int | None = None,
) -> Any:
    """Return a·b + c elementwise, with one rounding.

    Parameters
    ----------
    a, b, c : array_like
        Values of ``fmt``; the shapes broadcast.
    fmt : FloatFormat, str or (precision, emin, emax)
        Format of the operands and of the result: of at most 26 bits with exponents within 300, or fp64 with RNE.
    rounding : Rounding or str
        Rounding mode, as in `fpemu.round_to`.
    bits, seed : int, optional
        Random bits per rounding and seed of "SR"; ``bits`` is at most 52 less the precision, by default at most 32.

    Returns
    -------
    array of ``fmt.dtype``
        Rounded results, of the broadcast shape; a NumPy scalar for scalars. Overflow gives Inf; NaN and Inf propagate
        as in IEEE 754.

    Raises
    ------
    InputError
        Another format, values that are not of ``fmt``, or shapes that do not broadcast; SR without a seed; an overflow
        in a format without Inf and NaN.

    Examples
    --------
    >>> fma(np.float16(0.1), np.float16(10), np.float16(-1), "fp16")
    np.float16(-0.0002441)
    >>> fma(1.0, 1.0, 2.0**-9, "bf16", rounding="RU")
    np.float32(1.0078125)
    """
    fmt = any_format(fmt)
    if fmt.name not in SPECS or mode_of(rounding) is not Rounding.RNE or bits is not None or seed is not None:
        return rounded.elementwise("fma", {"a": a, "b": b, "c": c}, Arithmetic.of(fmt, rounding, bits, seed))
    x, y, z = (_float64(as_values(v, fmt, n), n) for v, n in ((a, "a"), (b, "b"), (c, "c")))
    try:
        np.broadcast_shapes(x.shape, y.shape, z.shape)
    except ValueError:
        raise InputError(f"a {x.shape}, b {y.shape} and c {z.shape} do not broadcast") from None
    with np.errstate(all="ignore"):
        return _reference.fma(x, y, z, fmt).astype(fmt.dtype)[()]


@in_ieee
def add(
    a: Any,
    b: Any,
    fmt: Format = "fp32",
    *,
    rounding: Rounding | str = "RNE",
    bits: int | None = None,
    seed: int | None = None,
) -> Any:
    """Return a + b elementwise, with one rounding of the exact result.

    Parameters
    ----------
    a, b : array_like
        Values of ``fmt``; the shapes broadcast.
    fmt, rounding, bits, seed : object
        As in `fma`, with formats of at most 26 bits.

    Returns
    -------
    array of ``fmt.dtype``
        Rounded results, of the broadcast shape; a NumPy scalar for scalars.

    Raises
    ------
    InputError
        As `fma`.

    Examples
    --------
    >>> add(1.0, 2.0**-9, "bf16", rounding="RU")
    np.float32(1.0078125)
    """
    return rounded.elementwise("add", {"a": a, "b": b}, Arithmetic.of(fmt, rounding, bits, seed))


@in_ieee
def multiply(
    a: Any,
    b: Any,
    fmt: Format = "fp32",
    *,
    rounding: Rounding | str = "RNE",
    bits: int | None = None,
    seed: int | None = None,
) -> Any:
    """Return a·b elementwise, with one rounding of the exact result.

    Parameters
    ----------
    a, b : array_like
        Values of ``fmt``; the shapes broadcast.
    fmt, rounding, bits, seed : object
        As in `fma`, with formats of at most 26 bits.

    Returns
    -------
    array of ``fmt.dtype``
        Rounded results, of the broadcast shape; a NumPy scalar for scalars.

    Raises
    ------
    InputError
        As `fma`.

    Examples
    --------
    >>> multiply(1.25, 1.25, "e5m2")
    np.float32(1.5)
    """
    return rounded.elementwise("multiply", {"a": a, "b": b}, Arithmetic.of(fmt, rounding, bits, seed))


@in_ieee
def divide(
    a: Any,
    b: Any,
    fmt: Format = "fp32",
    *,
    rounding: Rounding | str = "RNE",
    bits: int | None = None,
    seed: int | None = None,
) -> Any:
    """Return a / b elementwise, with one rounding of the exact result.

    Parameters
    ----------
    a, b : array_like
        Values of ``fmt``; the shapes broadcast.
    fmt, rounding, bits, seed : object
        As in `fma`, with formats of at most 26 bits.

    Returns
    -------
    array of ``fmt.dtype``
        Rounded results, of the broadcast shape; a NumPy scalar for scalars.

    Raises
    ------
    InputError
        As `fma`.

    Examples
    --------
    >>> divide(1.0, 3.0, (5, -14, 15))
    np.float32(0.328125)
    """
    return rounded.elementwise("divide", {"a": a, "b": b}, Arithmetic.of(fmt, rounding, bits, seed))


@in_ieee
def sqrt(
    a: Any, fmt: Format = "fp32", *, rounding: Rounding | str = "RNE", bits: int | None = None, seed: int | None = None
) -> Any:
    """Return the square root of a elementwise, with one rounding of the exact result.

    Parameters
    ----------
    a : array_like
        Values of ``fmt``.
    fmt, rounding, bits, seed : object
        As in `fma`, with formats of at most 26 bits.

    Returns
    -------
    array of ``fmt.dtype``
        Rounded results, of the shape of ``a``; a NumPy scalar for scalars.

    Raises
    ------
    InputError
        As `fma`.

    Examples
    --------
    >>> sqrt(2.0, "bf16")
    np.float32(1.4140625)
    """
    return rounded.elementwise("sqrt", {"a": a}, Arithmetic.of(fmt, rounding, bits, seed))


@in_ieee
def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    fmt: Format = "fp32",
    operand: Format | None = None,
    product: Product = "fused",
    rounding: Rounding | str = "RNE",
    saturate: bool = False,
    bits: int | None = None,
    seed: int | None = None,
    order: AnyOrder | None = None,
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> Any:
    """Return D = A B + C, where each element is a chain of multiply-adds over ascending k or in ``order``.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        Values of ``operand``; leading axes broadcast; any strides.
    C : array_like (..., M, N), optional
        Addend, values of ``fmt``; without it the chain starts from +0.
    fmt : FloatFormat, str or (precision, emin, emax)
        Format of every rounding and of D: of at most 26 bits with exponents within 300, or fp64 with fused products and
        RNE. A tuple is a format with Inf, NaN and subnormal numbers.
    operand : FloatFormat, str or (precision, emin, emax), optional
        Format of A and B; default ``fmt``.
    product : {"fused", "rounded"}
        Fused multiply-adds, or a rounding of each product and of each sum.
    rounding : Rounding or str
        Mode of every rounding, as in `fpemu.round_to`.
    saturate : bool
        Overflow gives the largest finite number.
    bits, seed : int, optional
        Random bits per rounding and seed of "SR"; ``bits`` is at most 52 less the precision, by default at most 32. The
        words are those of `fpemu.rounding.stochastic_words`: rounding r of entry i of the n entries of D has the index
        r n + i.
    order : KOrder, tree or Revealed, optional
        Summation order over K. Partial sums of slices are added in fp32 (fp64 for formats beyond fp32). Trees require
        fp16, fp32 or fp64, fused products and RNE.
    backend, device : str
        As in `fpemu.mma.gemm`; on a GPU fp16, fp32 and fp64 with fused products and RNE.

    Returns
    -------
    array (..., M, N) of ``fmt.dtype``
        D.

    Raises
    ------
    InputError
        Wrong shapes, dtypes or values; SR without a seed; an overflow in a format without Inf and NaN.

    Examples
    --------
    >>> gemm(np.float32([[1, 2**-24]]), np.float32([[1], [1]])).item()
    1.0
    >>> ones = np.ones((1, 1000)), np.ones((1000, 1))
    >>> [gemm(*ones, fmt="bf16", rounding=mode, seed=seed).item() for mode, seed in (("RNE", None), ("SR", 1))]
    [256.0, 1040.0]
    """
    to = any_format(fmt)
    given = to if operand is None else any_format(operand, "operand")
    plain = product == "fused" and mode_of(rounding) is Rounding.RNE and (bits, seed) == (None, None)
    if plain and not flag("saturate", saturate) and to.name in SPECS and given == to:
        return _gemm(A, B, C, SPECS[to.name], order, backend=backend, device=device)
    if devices.implementation(device, backend) == "cuda" and device == "cuda":
        raise InputError("device='cuda' has FMAs in fp16, fp32 and fp64 to nearest even: take device='cpu'")
    arithmetic = Arithmetic.of(to, rounding, bits, seed, saturate)
    return rounded.gemm(A, B, C, arithmetic, given, product, order, backend)


def fma_format(fmt: FloatFormat | str) -> FloatFormat:
    """Return the format of FMA units, by name or as a FloatFormat."""
    fmt = formats.get(fmt)
    if fmt.name not in SPECS:
        raise InputError(f"FMA units have FMAs in {', '.join(SPECS)}, not in {fmt}")
    return fmt
