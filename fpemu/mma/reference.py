"""The NumPy reference implementation of every arithmetic, and of a chain of instructions.

An arithmetic is one function of a block: a (..., M, L), b (..., L, N) and the accumulator c (..., M, N) give
d (..., M, N), values in float64. `fpemu.mma.arithmetic` lists them, and `fpemu.mma.compiled` computes the same bits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.rounding import Rounding, _carries, _round_to, _words_at, round_to

if TYPE_CHECKING:
    from fpemu.mma.spec import MmaSpec

Array = NDArray[Any]
_TILE = 128  # rows and columns computed at a time, so that the temporaries stay in cache
_ZERO = -(10**6)  # the exponent of a zero: below every floor
_NONE = -5000  # the exponent of a sum of zeros on CDNA3: below that of every product
GROUP = 16  # products that a block-scaled instruction of 4-bit operands adds exactly
_QUIET = np.uint64(1 << 51)  # the bit of a quiet NaN in fp64
_TINY = 2.0**-126  # the smallest normal number of fp32


def chain(
    A: Array, B: Array, C: Array, spec: MmaSpec, ends: NDArray[np.bool_], first: tuple[int, int] = (0, 0)
) -> Array:
    """Run the instructions over K.

    A (..., M, K), B (..., K, N), C (..., M, N) with K whole instructions. `ends` has one entry per instruction: True
    where the accumulator is added to an outer sum after it and restarts from zero. C starts the accumulator, or the
    outer sum if there is one. Returns values in the format of D, or of the outer sum if there is one. `first` is the
    row and the block that C begins with: the random bits of SR are `fpemu.rounding._words_at` of row, column and block.
    """
    out = np.empty(C.shape, spec.outer_dtype if ends.any() else C.dtype)
    for i in range(0, C.shape[-2], _TILE):
        for j in range(0, C.shape[-1], _TILE):
            rows, columns = slice(i, i + _TILE), slice(j, j + _TILE)
            at = (first[0] + i, j, first[1])
            out[..., rows, columns] = _tile(A[..., rows, :], B[..., columns], C[..., rows, columns], spec, ends, at)
    return out


def _tile(A: Array, B: Array, C: Array, spec: MmaSpec, ends: NDArray[np.bool_], first: tuple[int, int, int]) -> Array:
    block, enter = spec.rules.reference, spec.rules.enter
    outer: Array | None = C.astype(spec.outer_dtype) if ends.any() else None
    d = np.zeros_like(C) if outer is not None else C
    rows, columns = (at + np.arange(n) for at, n in zip(first, C.shape[-2:], strict=False))
    random: tuple[Array, ...] = ()
    for index, end in enumerate(ends):
        d = d if enter is None else enter(d)
        for k in range(index * spec.words, (index + 1) * spec.words, spec.block_words):
            if spec.final == "SR":
                at = rows[:, None], columns, np.array(first[2] + k // spec.block_words)
                random = (_words_at(spec.seed, spec.random_bits, *at),)
            d = block(A[..., k : k + spec.block_words], B[..., k : k + spec.block_words, :], d, spec, *random)
        if outer is not None and end:
            outer = outer + d.astype(outer.dtype)
            d = np.zeros_like(d)
    return d if outer is None else outer


# --- NVIDIA: truncated fused dot products


def truncated(a: Array, b: Array, c: Array, spec: MmaSpec, words: Array | None = None) -> Array:
    """The truncated fused dot product of NVIDIA's tensor cores, on 64-bit integers.

    1. A finite operand is s · 2^e with 1 <= |s| < 2; a subnormal keeps e = emin of its format (it is not normalised).
    2. Products are exact and not normalised: significand in [0, 4), exponent e_a + e_b.
    3. e_max is the largest exponent among non-zero products and a non-zero c, and at least the floor E0.
    4. Every term is truncated toward zero to a multiple of 2^(e_max - F). No guard bit, no sticky bit.
    5. The terms are added exactly.
    6. The sum is rounded once to the format of D; every zero is +0; there is one NaN.

    Why int64 is exact: a term has at most F + 2 bits (F <= 35), and at most 65 terms are added.

    Source: Fasi, Higham, Mikaitis, Pranesh 2021; Khattak and Mikaitis 2025; measured on an H200.
    """
    fa, fb, fc, _ = spec.operand_formats
    sa, ea = decode(a, fa)
    sb, eb = decode(b, fb)
    sc, ec = decode(c, fc)
    floor = _ZERO if spec.E0 is None else spec.E0
    e_max = np.maximum(ec, floor)
    for k in range(a.shape[-1]):
        np.maximum(e_max, ea[..., :, k, None] + eb[..., None, k, :], out=e_max)
    e_max = np.where(e_max < _ZERO // 2, 0, e_max)  # all terms are zero and there is no floor: any grid is exact
    point = fa.precision + fb.precision - 2  # binary point of a product of integer significands
    total = align(sc, ec - e_max, fc.precision - 1, spec.F)
    for k in range(a.shape[-1]):
        product = sa[..., :, k, None] * sb[..., None, k, :]
        total += align(product, ea[..., :, k, None] + eb[..., None, k, :] - e_max, point, spec.F)
    d = _finish(total, e_max - spec.F, spec, words)
    return _with_specials(a, b, c, d)


def decode(x: Array, fmt: FloatFormat) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Integer significands with precision - 1 fraction bits, and exponents: emin if subnormal, `_ZERO` if zero."""
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    _, exponent = np.frexp(finite)
    exponent = np.maximum(exponent.astype(np.int64) - 1, fmt.emin)
    significand = np.ldexp(finite, fmt.precision - 1 - exponent).astype(np.int64)
    return significand, np.where(significand == 0, _ZERO, exponent)


def align(significand: Any, below: Any, point: int, F: int) -> Any:
    """Truncate significand · 2^(below - point) toward zero to a multiple of 2^-F; the result counts those units."""
    shift = np.maximum(below, -100) + (F - point)  # below <= 0; a term 100 binary places down truncates to zero
    right = np.minimum(np.maximum(-shift, 0), 63)
    magnitude = (np.abs(significand) << np.maximum(shift, 0)) >> right
    return np.where(significand < 0, -magnitude, magnitude)


def _finish(units: NDArray[np.int64], exponent: Array, spec: MmaSpec, words: Array | None) -> NDArray[np.float64]:
    """Round units · 2^exponent once to the format of D; RZ overflows to Inf as the hardware does; zeros are +0."""
    fmt = spec.operand_formats[3]
    magnitude = np.abs(units)
    top = np.frexp(magnitude.astype(np.float64))[1]  # exact: fewer than 53 bits
    quantum = np.maximum(top - 1 + exponent, fmt.emin) - spec.sum_fraction_bits
    drop = np.clip(quantum - exponent, 0, 62)
    low = magnitude >> drop
    if spec.final == "RNE":
        rest = magnitude - (low << drop)
        half = np.where(drop > 0, np.int64(1) << np.maximum(drop - 1, 0), 1)  # drop = 0: no rest
        low = low + ((rest > half) | ((rest == half) & (low % 2 == 1)))
    elif words is not None:
        fraction = np.ldexp((magnitude - (low << drop)).astype(np.float64), -drop.astype(np.int32))
        low = low + _carries(fraction, words, int(spec.random_bits or 0))
    value = np.ldexp(low.astype(np.float64), np.where(drop > 0, quantum, exponent).astype(np.int32))
    value = np.where(value > fmt.max, np.inf, value)
    return np.where((units < 0) & (value > 0), -value, value)


def _with_specials(a: Array, b: Array, c: Array, d: Array) -> Array:
    """Replace the results of non-finite operands: NaN or Inf by IEEE's rules on the exact sum."""
    if np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all():
        return d
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*shape, a.shape[-2], b.shape[-1])) + c.astype(np.float64)
    nonfinite = ~np.isfinite(total)
    for k in range(a.shape[-1]):
        product = a[..., :, k, None].astype(np.float64) * b[..., None, k, :].astype(np.float64)
        total += product
        nonfinite |= ~np.isfinite(product)
    return np.where(nonfinite, total, d)


def via_half(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """fp8 through mma.sync on Hopper: from zero, first k mod 4 in {0, 1}, then {2, 3}; C by one RNE afterwards.

    Adding two numbers of 24 bits in float64 and rounding again is one rounding (53 >= 2 * 24 + 2).
    """
    d = np.zeros_like(c)
    first = np.arange(spec.k) % 4 < 2
    for ks in (first, ~first):
        d = truncated(a[..., ks], b[..., ks, :], d, spec.issued)
    return np.asarray(round_to(c + d, spec.operand_formats[3])).astype(np.float64)


# --- NVIDIA: block-scaled operands. A block is its products' operands, then their scales
#
# Source: Xie et al. 2025, MMA-Sim (arXiv 2511.10909), release of January 2026: documented, no recordings are public.
# MMA-Sim gives every zero the exponent -126. Here a zero has no exponent and E0 bounds e_max, as on an H200.


def scaled(a: Array, b: Array, c: Array, spec: MmaSpec, words: Array | None = None) -> Array:
    """`truncated`, with the exponents of both ue8m0 scales added to the exponent of each product.

    A scale that is NaN makes the result NaN, beside products that are zero too.
    """
    fa, fb, fc, _ = spec.operand_formats
    (a, scale_a), (b, scale_b) = (a[..., :-1], a[..., -1:]), (b[..., :-1, :], b[..., -1:, :])
    e_scales = _scale(scale_a, spec)[1] + _scale(scale_b, spec)[1]
    (sa, ea), (sb, eb), (sc, ec) = decode(a, fa), decode(b, fb), decode(c, fc)
    e_max = np.maximum(ec, _ZERO if spec.E0 is None else spec.E0)
    for k in range(a.shape[-1]):
        np.maximum(e_max, ea[..., :, k, None] + eb[..., None, k, :] + e_scales, out=e_max)
    e_max = np.where(e_max < _ZERO // 2, 0, e_max)
    total = align(sc, ec - e_max, fc.precision - 1, spec.F)
    for k in range(a.shape[-1]):
        exponent = ea[..., :, k, None] + eb[..., None, k, :] + e_scales
        product = sa[..., :, k, None] * sb[..., None, k, :]
        total += align(product, exponent - e_max, fa.precision + fb.precision - 2, spec.F)
    d = _with_specials(a, b, c, _finish(total, e_max - spec.F, spec, words))
    return np.where(np.isnan(scale_a) | np.isnan(scale_b), np.nan, d)


def scaled_groups(a: Array, b: Array, c: Array, spec: MmaSpec, words: Array | None = None) -> Array:
    """Block-scaled 4-bit operands: a fused sum of four terms and the accumulator.

    1. The 16 products of a group are added exactly.
    2. A term is this sum times the significands of both scales. Its exponent is the sum of the scales' exponents,
       whatever its magnitude: it is not normalised. A subnormal scale has the exponent emin.
    3. The terms and c are truncated F places below the largest exponent of the non-zero ones, added and rounded once,
       as in `truncated`.

    A term has at most 10 + 8 bits and lies below 2^12, so that it fits int64 at F <= 35.
    """
    fmt, each, fc = spec.scale_format, spec.scale_block, spec.operand_formats[2]
    assert fmt is not None
    assert each is not None
    sc, ec = decode(c, fc)
    e_max = np.maximum(ec, _ZERO if spec.E0 is None else spec.E0)
    terms, nan = [], np.isnan(c)
    for group in range(spec.block // GROUP):
        ks, at = slice(group * GROUP, (group + 1) * GROUP), spec.block + group * GROUP // each
        scale_a, scale_b = a[..., at, None], b[..., None, at, :]
        (sa, ea), (sb, eb) = _scale(scale_a, spec), _scale(scale_b, spec)
        quarters = 4 * (a[..., ks].astype(np.float64) @ b[..., ks, :].astype(np.float64))
        term = quarters.astype(np.int64) * sa * sb
        exponent = np.where(term == 0, _ZERO, ea + eb)
        terms.append((term, exponent))
        e_max = np.maximum(e_max, exponent)
        nan = nan | np.isnan(scale_a) | np.isnan(scale_b)
    e_max = np.where(e_max < _ZERO // 2, 0, e_max)
    total = align(sc, ec - e_max, fc.precision - 1, spec.F)
    for term, exponent in terms:
        total = total + align(term, exponent - e_max, 2 + 2 * fmt.fraction_bits, spec.F)
    d = _finish(total, e_max - spec.F, spec, words)
    return np.where(nan, np.nan, np.where(np.isinf(c), c, d))


def _scale(x: Array, spec: MmaSpec) -> tuple[Array, Array]:
    """The integer significands and exponents of scales; a zero has the exponent emin."""
    assert spec.scale_format is not None
    significand, exponent = decode(x, spec.scale_format)
    return significand, np.maximum(exponent, spec.scale_format.emin)


# --- exact sums


def exact(a: Array, b: Array, c: Array, spec: MmaSpec, words: Array | None = None) -> Array:
    """Products and accumulator added exactly, then one rounding; a zero sum is -0 if every term is -0, else +0.

    Model of CDNA1's fp16 and bf16 instructions (documented), of the Ascend cube (assumed) and of an ideal tensor core.
    Products of formats of at most 24 bits are exact in float64, and a sum of them is exact wherever no addition leaves
    an error term (TwoSum). The few other sums are computed again in Python integers.
    """
    a, b, total = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    lost = np.zeros(np.broadcast_shapes(c.shape, (*a.shape[:-1], 1)), bool)
    for k in range(a.shape[-1]):
        total, error = two_sum(total, a[..., :, k, None] * b[..., None, k, :])
        lost = lost | (error != 0)
    lost &= np.isfinite(total)
    for where in np.argwhere(lost):
        *batch, i, j = where.tolist()
        row = np.broadcast_to(a, (*lost.shape[:-2], *a.shape[-2:]))[(*batch, i)]
        column = np.broadcast_to(b, (*lost.shape[:-2], *b.shape[-2:]))[(*batch, slice(None), j)]
        total[(*batch, i, j)] = _to_odd([*(row * column), np.broadcast_to(c, lost.shape)[(*batch, i, j)]])
    return _round_once(total, spec, words)


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y = s + e exactly (Knuth)."""
    s = x + y
    v = s - x
    return s, (x - (s - v)) + (y - v)


def _to_odd(terms: list[Any]) -> float:
    """Return the exact sum rounded to odd at 53 bits, from which a rounding to fewer than 52 bits is correct."""
    ratios = [float(t).as_integer_ratio() for t in terms]
    bits = max(d.bit_length() for _, d in ratios) - 1
    total = sum(n << (bits - d.bit_length() + 1) for n, d in ratios)
    drop = max(abs(total).bit_length() - 53, 0)
    low = abs(total) >> drop
    low |= (low << drop) != abs(total)
    return float(np.ldexp(float(low if total >= 0 else -low), drop - bits))


def _round_once(total: Array, spec: MmaSpec, words: Array | None) -> Array:
    """Round float64 sums to the format of D; RZ overflows to Inf, as in MmaSpec."""
    fmt = spec.operand_formats[3]
    if spec.final == "RNE":
        return total.astype(fmt.dtype).astype(np.float64)  # NumPy's casts round once, to nearest even
    if words is not None:
        words = np.broadcast_to(words, total.shape)
        return _round_to(total, fmt, Rounding.SR, words=words, bits=int(spec.random_bits or 0)).astype(np.float64)
    rounded = np.asarray(round_to(total, fmt, Rounding.RZ)).astype(np.float64)
    return np.where(np.abs(total) >= 2.0 ** (fmt.emax + 1), np.copysign(np.inf, total), rounded)


def integer(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """Exact, modulo 2^32."""
    return (c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


# --- chains of IEEE fused multiply-adds


def fused(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """One fused multiply-add: L = 1. Every NaN receives one code at the end, unless the instruction keeps payloads."""
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    return first_nan(fma(a, b, c, spec.operand_formats[3]), (b, c, a), spec)


def first_nan(d: Array, operands: tuple[Array, ...], spec: MmaSpec) -> Array:
    """Replace NaN in `d` by the first operand that is NaN, made quiet; an invalid operation gives `nan_code`."""
    if not (spec.payloads and np.isnan(d).any()):
        return d
    fmt = spec.operand_formats[3]
    invalid = np.array(spec.nan_code, fmt.code_dtype).view(fmt.dtype).astype(np.float64)
    chosen: Array = invalid.view(np.uint64)
    for x in reversed(operands):
        chosen = np.where(np.isnan(x), np.ascontiguousarray(x).view(np.uint64) | _QUIET, chosen)
    return np.where(np.isnan(d), chosen.view(np.float64), d)


def fma(a: Array, b: Array, c: Array, fmt: FloatFormat) -> Array:
    """a·b + c, elementwise with broadcasting, rounded once to nearest even in `fmt` (fp16, fp32 or fp64).

    fp32, fp16: the product of two numbers of at most 24 bits is exact in float64. s = RN(p + c) and the TwoSum error e
    give the sum exactly. Where e is not zero and the last bit of s is even, the neighbour of s on e's side is p + c
    rounded to odd at 53 bits. Rounding this number to q <= 51 bits, subnormals included, equals one rounding of p + c
    (Boldo and Melquiond 2008).
    fp64: the exact value is a ratio of integers, which Python divides with one rounding to nearest even.
    """
    if fmt.name == "fp64":
        return np.asarray(_fma64(a, b, c), dtype=np.float64)
    return odd_sum(a * b, c).astype(fmt.dtype).astype(np.float64)


def odd_sum(x: Array, y: Array) -> Array:
    """x + y rounded to odd at 53 bits: one of the two neighbours with an odd last bit, unless the sum is exact."""
    return to_odd(*two_sum(x, y))


def to_odd(s: Array, error: Array) -> Array:
    """Return s + error rounded to odd, from the float64 s next to it and a number with the sign of the error."""
    even = np.asarray(s).view(np.uint64) % np.uint64(2) == 0
    move = np.isfinite(s) & (error != 0) & even
    return np.where(move, np.nextafter(s, np.copysign(np.inf, error)), s)


def _scalar64(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact_sum = Fraction(a) * Fraction(b) + Fraction(c)
    if exact_sum == 0:
        return a * b + c if a * b == 0 == c else 0.0  # IEEE: only a sum of zeros can be -0
    try:
        return exact_sum.numerator / exact_sum.denominator
    except OverflowError:
        return math.inf if exact_sum > 0 else -math.inf


_fma64 = np.frompyfunc(_scalar64, 3, 1)


# --- AMD, from the literature: no recordings are public
#
# Source: Xie et al. 2025, MMA-Sim (arXiv 2511.10909). Two details are assumed: the exponent of a sum of products is the
# exponent of its largest non-zero product; a zero sum is +0.


def _flush(x: Array, below: float, keep_sign: bool) -> Array:
    """Replace subnormals by zero: +0, or with the sign of x."""
    zero = np.copysign(np.zeros((), x.dtype), x) if keep_sign else np.zeros((), x.dtype)
    return np.where(np.abs(x) < below, zero, x)


def flushed(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """CDNA2: subnormal A and B are +0; products, ((p0+p1)+(p2+p3)) and c + s in fp32 RNE, each flushed with its sign.

    Products of inputs of at most 12 significant bits fit fp32's 24, so they round only by overflow or underflow.
    """
    fa, fb, _, _ = spec.operand_formats
    a = _flush(a.astype(np.float32), fa.min_normal, False)
    b = _flush(b.astype(np.float32), fb.min_normal, False)
    p = [_flush(a[..., :, k, None] * b[..., None, k, :], _TINY, True) for k in range(a.shape[-1])]
    while len(p) > 1:
        p = [_flush(x + y, _TINY, True) for x, y in zip(p[::2], p[1::2], strict=True)]
    return _flush(c.astype(np.float32) + p[0], _TINY, True).astype(np.float64)


def enter_flushed(c: Array) -> Array:
    """Return C as a CDNA2 instruction reads it: subnormals, and zeros of either sign, are +0."""
    return _flush(c.astype(np.float32), _TINY, False)


def cdna3(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """CDNA3, fp16, bf16, xf32: the products truncated on their own grid, then floored with c on the common one."""
    total, e_dot = _truncated_sum(a, b, spec, slice(None))
    return _add_accumulator(total, e_dot, c, drop=None)


def cdna3_fp8(a: Array, b: Array, c: Array, spec: MmaSpec) -> Array:
    """CDNA3, fp8 and bf8: even and odd k truncated separately and floored to 24 bits together; a small c is dropped."""
    even, e0 = _truncated_sum(a, b, spec, slice(0, None, 2))
    odd, e1 = _truncated_sum(a, b, spec, slice(1, None, 2))
    e_dot = np.maximum(e0, e1)
    total = _floor(even, e_dot - 24) + _floor(odd, e_dot - 24)
    return _add_accumulator(total, e_dot, c, drop=25)


def _truncated_sum(a: Array, b: Array, spec: MmaSpec, ks: slice) -> tuple[Array, Array]:
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


def _add_accumulator(total: Array, e_dot: Array, c: Array, drop: int | None) -> Array:
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


def _floor(x: Array, unit: Array) -> Array:
    return np.asarray(np.ldexp(np.floor(np.ldexp(x, -unit)), unit))


def _exponent(x: Array, emin: int, zero: int = _NONE) -> Array:
    """floor(log2 |x|), at least emin; `zero` for a zero, by default below every other exponent."""
    finite = np.where(np.isfinite(x), x, 1.0)
    return np.where(finite == 0, zero, np.maximum(np.frexp(finite)[1] - 1, emin)).astype(np.int32)
