"""AMD's CDNA2 and CDNA3 matrix instructions, from the literature: no recordings are public.

Source: Xie et al. 2025, MMA-Sim (arXiv 2511.10909). Two details are assumed: the exponent of a sum of products is the
exponent of its largest non-zero product; a zero sum is +0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.mma.spec import MmaSpec

_NONE = -5000  # the exponent of a sum of zeros


def flush(x: NDArray[Any], below: float, keep_sign: bool) -> NDArray[Any]:
    """Replace subnormals by zero: +0, or with the sign of x."""
    zero = np.copysign(np.zeros((), x.dtype), x) if keep_sign else np.zeros((), x.dtype)
    return np.where(np.abs(x) < below, zero, x)


def block_cdna2(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """CDNA2: subnormal A and B are +0; products, ((p0+p1)+(p2+p3)) and c + s in fp32 RNE, each flushed with its sign.

    Products of inputs of at most 12 significant bits fit fp32's 24, so they round only by overflow or underflow.
    """
    fa, fb, _, _ = spec.operand_formats
    tiny = 2.0**-126
    a = flush(a.astype(np.float32), fa.min_normal, False)
    b = flush(b.astype(np.float32), fb.min_normal, False)
    p = [flush(a[..., :, k, None] * b[..., None, k, :], tiny, True) for k in range(a.shape[-1])]
    while len(p) > 1:
        p = [flush(x + y, tiny, True) for x, y in zip(p[::2], p[1::2], strict=True)]
    return flush(c.astype(np.float32) + p[0], tiny, True).astype(np.float64)


def enter_cdna2(c: NDArray[Any]) -> NDArray[Any]:
    """Return C as the instruction reads it: subnormals, and zeros of either sign, are +0."""
    return flush(c.astype(np.float32), 2.0**-126, False)


def block_cdna3(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """CDNA3, fp16, bf16, xf32: the products truncated on their own grid, then floored with c on the common one."""
    total, e_dot = _truncated_sum(a, b, spec, slice(None))
    return _add_accumulator(total, e_dot, c, drop=None)


def block_cdna3_fp8(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """CDNA3, fp8 and bf8: even and odd k truncated separately and floored to 24 bits together; a small c is dropped."""
    even, e0 = _truncated_sum(a, b, spec, slice(0, None, 2))
    odd, e1 = _truncated_sum(a, b, spec, slice(1, None, 2))
    e_dot = np.maximum(e0, e1)
    total = _floor(even, e_dot - 24) + _floor(odd, e_dot - 24)
    return _add_accumulator(total, e_dot, c, drop=25)


def _truncated_sum(a: NDArray[Any], b: NDArray[Any], spec: MmaSpec, ks: slice) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sum of the products, each truncated 24 bits below the largest of their exponents, and that exponent."""
    fa, fb, _, _ = spec.operand_formats
    a, b = a[..., :, ks].astype(np.float64), b[..., ks, :].astype(np.float64)
    ea, eb = _exponent(a, fa.emin), _exponent(b, fb.emin)
    products, exponents = [], []
    for k in range(a.shape[-1]):
        p = a[..., :, k, None] * b[..., None, k, :]
        products.append(np.where(np.abs(p) >= 2.0**128, np.copysign(np.inf, p), p))
        exponents.append(np.maximum(ea[..., :, k, None] + eb[..., None, k, :], _NONE))
    e_max = np.max(exponents, axis=0)
    unit = np.where(e_max == _NONE, 0, e_max - 24)
    total = sum(np.ldexp(np.trunc(np.ldexp(p, -unit)), unit) for p in products)
    return np.asarray(total), e_max


def _add_accumulator(total: NDArray[Any], e_dot: NDArray[Any], c: NDArray[Any], drop: int | None) -> NDArray[Any]:
    """At E, the larger exponent: the sum of products floored 32 bits below it, c 24 bits below, and added.

    The result is floored 31 bits below its own exponent and rounded to fp32, to nearest. A zero c has e = -126.
    """
    c = c.astype(np.float64)
    e_c = np.where(c == 0, -126, _exponent(c, -126))
    top = np.maximum(e_dot, e_c)
    kept = _floor(c, top - 24)
    if drop is not None:
        kept = np.where(np.isfinite(c) & (e_c < top - drop), 0.0, kept)
    s = _floor(total, top - 32) + kept
    return (_floor(s, _exponent(s, -126, zero=0) - 31) + 0.0).astype(np.float32).astype(np.float64)


def _floor(x: NDArray[Any], unit: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.ldexp(np.floor(np.ldexp(x, -unit)), unit))


def _exponent(x: NDArray[Any], emin: int, zero: int = _NONE) -> NDArray[Any]:
    """floor(log2 |x|), at least emin; `zero` for a zero, by default below every other exponent."""
    finite = np.where(np.isfinite(x), x, 1.0)
    return np.where(finite == 0, zero, np.maximum(np.frexp(finite)[1] - 1, emin)).astype(np.int32)
