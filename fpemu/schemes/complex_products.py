"""Complex products by a scheme for real ones: one real product of the parts ("4M"), or three ("3M").

**4M.** A complex product of A (M, K) and B (K, N) is one real product of A' (M, 2K) and B' (2K, 2N) by the scheme:

    a'(m, 2k) = Re a_mk    b'(2k, 2n)     =  Re b_kn    b'(2k, 2n + 1)     = Im b_kn
    a'(m, 2k + 1) = Im a   b'(2k + 1, 2n) = -Im b_kn    b'(2k + 1, 2n + 1) = Re b_kn

A' is the memory of A, row 2k of B' that of row k of B, row 2k + 1 that of row k of i B, and D' (M, 2N) that of D. So
orders over K, promotion and error bounds count 2K terms, the range policies consider the parts, and a row of A or a
column of B has one power of two for both parts. (Columns 2n and 2n + 1 have equal magnitudes in another order. Only the
scaling "accurate" of `ozaki2` would distinguish them: it takes the larger of their two sums.) Every part of D is within
the scheme's bound relative to |A'||B'|, which has no terms of the other part.

**3M.** T1 = Ar Br, T2 = Ai Bi and T3 = (Ar + Ai)(Br + Bi) are real products over K, the sums of the operands rounded to
the scheme's format, and with every difference rounded to it

    Re D = T1 - T2      Im D = (T3 - T1) - T2

The imaginary part has the errors of all three products, which are small relative to (|Ar| + |Ai|)(|Br| + |Bi|), but not
relative to a small imaginary part (Higham, Accuracy and Stability of Numerical Algorithms, section 23.2.4). `ozaki2`
computes all of this modulo integers, without an error: both forms have the same bits.

**alpha, beta, C.** Real scalars: the real product on the views, in one call. A complex alpha: the parts of t = alpha T
are fl(fl(ar Tr) - fl(ai Ti)) and fl(fl(ar Ti) + fl(ai Tr)), likewise those of beta C, and D = fl(t + beta C).

NaN and Inf follow from the real product, as in ZGEMM: a real number is not free of an imaginary part, and Inf times the
zero in it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import real_factor, real_view
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.schemes.base import Call, Form, complex_dtype, scalar

Array = NDArray[Any]
Pair = tuple[Array, Array]
FORMS = get_args(Form)


def complex_scalar(value: Any, name: str, fmt: FloatFormat) -> tuple[Any, Any]:
    """The two parts of alpha or beta, rounded to a format."""
    if isinstance(value, complex | np.complexfloating) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind == "c"
    ):
        return scalar(float(value.real), f"{name}.real", fmt), scalar(float(value.imag), f"{name}.imag", fmt)
    return scalar(value, name, fmt), fmt.dtype.type(0)


def factor(value: Any, name: str, fmt: FloatFormat) -> Any:
    """alpha or beta of a complex product, rounded to a format: a real number if the imaginary part is zero."""
    real, imaginary = complex_scalar(value, name, fmt)
    return real if imaginary == 0 else complex_dtype(fmt).type(complex(real, imaginary))


def embedded(call: Call, form: Form) -> Call:
    """A call with A', B' and C' in place of complex operands; InputError where the scheme rounds once and it cannot."""
    scheme = call.scheme
    if scheme.rounds_once:  # one rounding of a real sum
        if form == "3M":
            scheme.refuse("rounds each part of a complex product once: form='3M' adds three rounded products")
        for name, value in (("alpha", call.alpha), ("beta", call.beta)):
            if np.iscomplexobj(value):
                scheme.refuse(f"rounds once, with real alpha and beta: {name} = {value} has an imaginary part")
    C = None if call.C is None else real_view(call.C)
    return replace(call, A=real_view(call.A), B=real_factor(call.B), C=C, form=form)


def evaluate(call: Call, run: Callable[[Call], Array]) -> Array:
    """The result of a complex call; `run` returns the result of a real one."""
    real = all(np.isrealobj(x) for x in (call.alpha, call.beta))
    if real and (call.form == "4M" or call.scheme.modular or call.empty):
        return call.finish(None if call.empty else _run(call, "of the parts", run))
    one = call.scheme.operand.dtype.type(1)
    plain = replace(call, C=None, alpha=one, beta=0 * one)
    T = None
    if not call.empty:
        T = three(plain, run) if call.form == "3M" and not call.scheme.modular else _run(plain, "of the parts", run)
    C = None if call.C is None else np.broadcast_to(call.C, call.result_shape)
    t, c = (None if X is None else (X[..., ::2], X[..., 1::2]) for X in (T, C))
    D = np.zeros(call.result_shape, call.scheme.operand.dtype)
    D[..., ::2], D[..., 1::2] = _scaled(t, c, call.alpha, call.beta) if t or c else (0, 0)
    return call.finish(D)


def three(call: Call, run: Callable[[Call], Array]) -> Array:
    """The parts of A B by three real products."""
    a = call.A[..., ::2], call.A[..., 1::2]
    b = call.B[..., ::2, ::2], call.B[..., ::2, 1::2]
    D = np.empty(call.shape, call.A.dtype)
    D[..., ::2], D[..., 1::2] = three_products(
        a, b, lambda x, y, name: _run(replace(call, A=x, B=y, form=None), name, run)
    )
    return D


def three_products(a: Pair, b: Pair, multiply: Callable[[Array, Array, str], Array]) -> Pair:
    """Both parts of a product by three real ones; `multiply` has the name of each as third argument."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        t1, t2 = multiply(a[0], b[0], "Ar Br"), multiply(a[1], b[1], "Ai Bi")
        t3 = multiply(a[0] + a[1], b[0] + b[1], "(Ar + Ai)(Br + Bi)")
        return t1 - t2, (t3 - t1) - t2


def _run(call: Call, name: str, run: Callable[[Call], Array]) -> Array:
    """A real product; an error that concerns an entry says of which."""
    try:
        return run(call)
    except InputError as problem:
        if " first at [" not in str(problem):
            raise
        raise InputError(f"in the real product {name}: {problem}") from None


def _scaled(T: Pair | None, C: Pair | None, alpha: Any, beta: Any) -> Pair:
    if T is None:
        assert C is not None
        with np.errstate(all="ignore"):
            return times((beta.real, beta.imag), C)
    return scaled_pair(T, C, (alpha.real, alpha.imag), (beta.real, beta.imag))


def scaled_pair(T: Pair, C: Pair | None, alpha: tuple[Any, Any], beta: tuple[Any, Any]) -> Pair:
    """alpha T + beta C in the format of T, every operation rounded to it; C is None where it is not read."""
    with np.errstate(all="ignore"):
        t = times(alpha, T)
        if C is None:
            return t
        c = times(beta, (C[0].astype(T[0].dtype), C[1].astype(T[1].dtype)))
        return np.asarray(t[0] + c[0]), np.asarray(t[1] + c[1])


def times(number: tuple[Any, Any], x: Pair) -> Pair:
    """A complex number times a matrix; without an imaginary part it scales both parts."""
    real, imaginary = number
    if imaginary == 0:
        return real * x[0], real * x[1]
    return real * x[0] - imaginary * x[1], real * x[1] + imaginary * x[0]
