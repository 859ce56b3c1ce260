"""Exact matrix products, rounded once: the reference of every error measure."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import (
    _float64,
    any_complex,
    as_array,
    as_complex,
    as_float64,
    as_stacks,
    choice,
    is_real,
    product_shape,
    real_factor,
    real_view,
    unwrapped,
)
from fpemu.errors import InputError, shown
from fpemu.formats import FloatFormat
from fpemu.mma.device import Device
from fpemu.reference import exact, slices
from fpemu.reference.exact import ExactMatrix, ExactOperands, finite, specials

__all__ = ["METHODS", "ExactMatrix", "matmul"]

Method = Literal["auto", "blas", "flint", "mpmath"]
METHODS = get_args(Method)
"""Methods of computing a product; all return the same bits."""

_MOST_PRODUCTS = 64  # with more slice products FLINT's integers are faster


@in_ieee
def matmul(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    out: FloatFormat | str = "fp64",
    method: Method = "auto",
    device: Device = "cpu",
) -> Any:
    """Return the exact value of alpha·A·B + beta·C, rounded once to nearest even.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        Numbers of at most 64 bits (float16, float32, float64, ml_dtypes, integers that float64 holds), or complex
        numbers with such parts; leading axes broadcast as in `numpy.matmul`, and so do vectors unless out="exact". M, N
        and K may be 0.
    C : array_like, optional
        Broadcasts to (..., M, N).
    alpha, beta : int, float or Fraction
        Taken exactly. As in BLAS, C is not read where beta is 0, nor A and B where alpha is 0.
    out : FloatFormat or str
        "fp64" (default), "fp32", "fp16" or any other format; "exact" for an `ExactMatrix`, which rounds in any mode.
    method : {"auto", "blas", "flint", "mpmath"}
        "blas": error-free slices multiplied in float64 (see `fpemu.reference.slices`), for exponents within about 900
        bits of each other in each row of A and column of B. "flint": FLINT's integer matrices. "mpmath": the
        independent oracle of `fpemu.reference.mpfr`, slow. "auto": "blas" where it needs 64 slice products or fewer,
        else "flint".
    device : {"cpu", "cuda", "auto"}
        Device of the slice products of method "blas": unless "cpu", large ones run on a GPU, with the same bits.

    Returns
    -------
    array (..., M, N) or ExactMatrix
        Values of the format's dtype (float64, float32, float16), or the exact product with out="exact". Of a complex
        product complex128 or complex64, each part rounded once, or the exact parts, alternating along N.

    Raises
    ------
    InputError
        Shapes that do not fit, unknown names, alpha or beta not finite, a method that cannot do this product.

    Notes
    -----
    An exact zero is +0. A non-zero value that rounds to zero keeps its sign, overflow returns an infinity, and
    subnormals are rounded as in IEEE 754. With NaN or Inf among the operands, an entry is NaN if its sum contains a
    NaN, Inf * 0 or Inf - Inf, else the infinity that it contains; the other entries are exact.

    Examples
    --------
    >>> float(matmul([[1e16, 1.0, -1e16]], [[1.0], [1.0], [1.0]])[0, 0])
    1.0
    >>> str(matmul([[0.1]], [[2.0**55]], out="exact").fraction(0, 0))
    '3602879701896397'
    """
    fmt = None if isinstance(out, str) and out == "exact" else formats.get(out)
    choice("method", method, METHODS)
    choice("device", device, get_args(Device))
    if method == "mpmath" and fmt is None:
        raise InputError("method 'mpmath' rounds to a format: it has no exact object")
    dropped: tuple[int, ...] = ()
    if fmt is not None and 1 in (getattr(A, "ndim", 1), getattr(B, "ndim", 1)):  # vectors, or lists that may be
        A, B, dropped = as_stacks(*(as_array(X, name, complex_numbers=True) for X, name in ((A, "A"), (B, "B"))))
        C = C if C is None or not dropped else np.expand_dims(as_array(C, "C", complex_numbers=True), dropped)
    dtype: Any = None
    if any_complex(A, B, C):
        if fmt not in (None, formats.FP64, formats.FP32):
            raise InputError(f"matmul rounds complex products to fp64 or fp32, not to {fmt}")
        dtype = None if fmt is None else np.result_type(fmt.dtype, np.complex64)
        A, B = as_complex(A, "A"), as_complex(B, "B")
        if min(A.ndim, B.ndim) > 1:  # else an error follows
            product_shape(A, B)
            A, B = real_view(A), real_factor(B)
        else:
            A, B = A.real, B.real
        C = None if C is None else real_view(as_complex(C, "C"))
    D = _matmul(_operands(A, B, C, alpha, beta), fmt, method, device)
    D = D if dtype is None else D.view(dtype)
    return np.squeeze(D, dropped) if dropped else D


def _matmul(given: ExactOperands, fmt: FloatFormat | None, method: Method = "auto", device: Device = "cpu") -> Any:
    """`matmul` of checked operands; ``fmt`` None returns the `ExactMatrix`."""
    if method == "mpmath" and fmt is not None:  # `matmul` has refused an exact object
        from fpemu.reference import mpfr  # mpmath is slow to import

        return mpfr.product(given, fmt)
    left, right = finite(given.A), finite(given.B)
    if not given.alpha:
        left, right = np.zeros((*left.shape[:-1], 0)), np.zeros((*right.shape[:-2], 0, right.shape[-1]))
    batch = given.shape[:-2]
    left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    slicing = slices.choose(left, right) if method != "flint" else None
    if method == "blas" and slicing is None:
        raise InputError("method 'blas': exponents in a row of A or a column of B range too widely; use 'flint'")
    if method == "auto" and slicing is not None and slicing.products > _MOST_PRODUCTS:
        slicing = None
    one_product = given.alpha == 1 and given.C is None
    if slicing is not None and fmt is not None and fmt.has_nan and one_product:  # else errors name entries of a block
        return exact.with_specials(slices.rounded(left, right, slicing, fmt, device), specials(given), fmt)
    V, E = exact.product(left, right) if slicing is None else slices.significands(left, right, slicing, device)
    result = exact.combine(given, V, E)
    return result if fmt is None else result.round_to(fmt)


def _operands(A: Any, B: Any, C: Any = None, alpha: Any = 1, beta: Any = 0) -> ExactOperands:
    """Check the arguments of `matmul`; wrong shapes, a missing C, alpha or beta that is not finite raise InputError."""
    a, b = _exact_scalar("alpha", alpha), _exact_scalar("beta", beta)
    left, right = as_float64(A, "A"), as_float64(B, "B")
    if left.ndim < 2 or right.ndim < 2:
        raise InputError(f"matmul takes (..., M, K) and (..., K, N), not A {left.shape} and B {right.shape}")
    shape = product_shape(left, right)
    addend = None
    if b and C is None:
        raise InputError(f"matmul: beta is {beta} but C is missing")
    if C is not None:
        C = as_array(C, "C")  # its values are not read where beta is zero
        try:
            fits = np.broadcast_shapes(C.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise InputError(f"matmul: C {C.shape} does not broadcast to the product's shape {shape}")
        addend = _float64(C, "C") if b else None
    return ExactOperands(left, right, addend, a, b, shape)


def _exact_scalar(name: str, value: Any) -> Fraction:
    """Return an int, float, NumPy scalar or Fraction as a Fraction, without rounding."""
    if type(value) is int:
        return Fraction(value)
    number = unwrapped(value)
    try:
        if is_real(number):
            return Fraction(number.item() if isinstance(number, np.generic) else number)
    except (ValueError, OverflowError):  # NaN, Inf
        pass
    raise InputError(f"matmul: {name} must be a finite real number, not {shown(value)}")
