"""Multiply-adds, chains of them and other operations in any binary format and rounding mode: one rounding each.

An operation on two numbers of at most 26 bits is computed in float64 with the sign of its error, which gives the exact
result rounded to odd at 53 bits. A rounding of that to at most 51 bits, or by at most 52 - p random bits, equals a
rounding of the exact result (Boldo and Melquiond 2008): no operation rounds twice. The error of a sum is TwoSum's
(Knuth), of a quotient and of a square root the sign of the exact remainder (Dekker's product).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import _float64, as_stacks, choice, flag, integer
from fpemu.errors import InputError, shown
from fpemu.formats import FloatFormat
from fpemu.mma.gemm import as_values, broadcast, indices
from fpemu.mma.order import KOrder
from fpemu.mma.reference import odd_sum, to_odd
from fpemu.rounding import Rounding, _mixed_seed, _round_to, _words_at, mode_of

Array = NDArray[Any]
Format = FloatFormat | str | tuple[int, int, int]
Product = Literal["fused", "rounded"]
_BITS = 26  # of the widest format: products of two are exact in float64
_EXPONENT = 300  # largest exponent: quotients, and remainders of them, are normal in float64


def any_format(fmt: Format, name: str = "fmt") -> FloatFormat:
    """Return a format by name, as a FloatFormat, or from (precision, emin, emax) with Inf, NaN and subnormals."""
    if isinstance(fmt, tuple):
        if len(fmt) != 3:
            raise InputError(f"{name} = {shown(fmt)} must be a format or (precision, emin, emax)")
        p, low, high = (
            integer(f"{name}: {field}", x) for field, x in zip(("precision", "emin", "emax"), fmt, strict=True)
        )
        return FloatFormat(f"({p}, {low}, {high})", p, low, high)
    return formats.get(fmt)


@dataclass(frozen=True)
class Arithmetic:
    """Format, rounding and random bits of a chain or of elementwise operations.

    The words of SR are `fpemu.rounding.stochastic_words` of the seed: rounding r of entry i of n has index r n + i.
    """

    fmt: FloatFormat
    mode: Rounding
    saturate: bool = False
    bits: int = 0
    seed: int = 0

    @classmethod
    def of(cls, fmt: Format, rounding: Any, bits: Any, seed: Any, saturate: Any = False) -> Arithmetic:
        """Check the arguments of a public function."""
        to, mode, stop = any_format(fmt), mode_of(rounding), flag("saturate", saturate)
        lowest = to.emin - to.fraction_bits
        if to.precision > _BITS or to.emax > _EXPONENT or lowest < -_EXPONENT:
            raise InputError(
                f"{to} has more than {_BITS} bits or exponents beyond 2^{_EXPONENT}: fp64 takes RNE and fused products"
            )
        if not to.signed or to.positive:
            raise InputError(f"{to} has no negative numbers: it cannot accumulate")
        if mode is not Rounding.SR:
            if bits is not None or seed is not None:
                raise InputError(f"bits and seed belong to rounding='SR', not to {mode.name!r}: leave them out")
            return cls(to, mode, stop)
        if seed is None:
            raise InputError("stochastic rounding needs a seed, an integer >= 0")
        most = 52 - to.precision
        width = integer("bits", min(32, most) if bits is None else bits, 1, most)
        return cls(to, mode, stop, width, integer("seed", seed, 0, 2**63 - 1))

    def round(self, v: Array, index: int = 0, count: int | None = None) -> Array:
        """Round results to odd as float64; ``index``: of the rounding, of `count` entries (all of v)."""
        words = None
        if self.bits:
            entry = np.arange(v.size, dtype=np.uint64).reshape(v.shape)
            with np.errstate(over="ignore"):
                entry += np.uint64(index * (v.size if count is None else count) % 2**64)
            words = _words_at(self.seed, self.bits, entry)
        return _round_to(v, self.fmt, self.mode, self.saturate, words=words, bits=self.bits).astype(np.float64)

    def sum(self, p: Array, c: Array) -> Array:
        """Return p + c rounded to odd; the sign of an exact zero sum is minus in RD, as in IEEE 754."""
        v = odd_sum(p, c)
        if self.mode is Rounding.RD:
            v = np.where((v == 0) & (np.signbit(p) | np.signbit(c)), -0.0, v)
        return v

    def narrow(self, v: Array) -> Any:
        """Return values in the format's dtype, every NaN as the same one."""
        return np.where(np.isnan(v), np.nan, v).astype(self.fmt.dtype)[()]


class _Layout(NamedTuple):
    """A product's operands as stacks, and the shape of D."""

    A: Array
    B: Array
    index_a: NDArray[np.int64]
    index_b: NDArray[np.int64]
    D: Array  # (products, M, N), the start of the chains


@in_ieee
def gemm(
    A: Any, B: Any, C: Any, arithmetic: Arithmetic, operand: FloatFormat, product: str, order: Any, backend: str
) -> Any:
    """`fpemu.simt.gemm` in any format: operands of the format ``operand``."""
    fused = choice("product", product, ("fused", "rounded")) == "fused"
    use_compiled = choice("backend", backend, ("compiled", "numpy")) == "compiled"
    order = KOrder() if order is None else order
    if not isinstance(order, KOrder):
        raise InputError("a chain in any format and rounding takes a KOrder, not a tree")
    if operand.precision > _BITS or operand.emax > _EXPONENT or operand.emin - operand.fraction_bits < -_EXPONENT:
        raise InputError(f"operands of {operand}: their products are not exact in float64")
    A, B = as_values(A, operand, "A", 1), as_values(B, operand, "B", 1)
    A, B, dropped = as_stacks(A, B)
    if C is not None:
        C = as_values(C, arithmetic.fmt, "C", 2 - len(dropped))
        C = np.expand_dims(C, dropped) if dropped else C
    shape = broadcast(A, B, C)
    index_a, index_b = indices(A, shape[:-2]), indices(B, shape[:-2])
    A, B = (np.ascontiguousarray(X, np.float64).reshape(math.prod(X.shape[:-2]), *X.shape[-2:]) for X in (A, B))
    start = np.zeros(shape) if C is None else np.array(np.broadcast_to(C, shape), np.float64)
    start = start.reshape(math.prod(shape[:-2]), *shape[-2:])
    run = _compiled if use_compiled else _reference
    D = start
    K = A.shape[-1]
    if K and start.size:
        with np.errstate(all="ignore"):
            D = _slices(_Layout(A, B, index_a, index_b, start), K, order, arithmetic, fused, run, C is not None)
    D = arithmetic.narrow(D.reshape(shape))
    return np.squeeze(D, dropped) if dropped else D


def _slices(x: _Layout, K: int, order: KOrder, to: Arithmetic, fused: bool, run: Any, with_c: bool) -> Array:
    """The chains of the order, and the sums of their results as `KOrder` defines them."""
    outer = np.float64 if to.fmt.dtype == np.float64 else np.float32
    done, per = 0, 1 if fused else 2
    if order.split is None and order.promote is None:
        return np.asarray(run(x, [ks for ks in order.segments(K)[0][0]], to, fused, 0, x.D))
    parts = []
    for chains in order.sequence(order.segments(K)):
        total = np.zeros(x.D.shape, outer) if order.split is not None else x.D.astype(outer)
        for ranges in chains:
            result = run(x, ranges, to, fused, done, np.zeros(x.D.shape)).astype(outer)
            done += per * sum(stop - start for start, stop in ranges)
            total = total + result if order.promote is not None else result
        parts.append(total)
    joined = order.join_slices(parts)
    joined = x.D.astype(outer) + joined if with_c and order.split is not None else joined
    return to.round(joined.astype(np.float64), done)


def _reference(x: _Layout, ranges: list[tuple[int, int]], to: Arithmetic, fused: bool, index: int, D: Array) -> Array:
    """Add the products over ranges of k to D, one step for all entries; ``index``: of the first rounding."""
    A, B = x.A[x.index_a], x.B[x.index_b]
    for start, stop in ranges:
        for k in range(start, stop):
            p = A[..., k, None] * B[..., k, None, :]
            if not fused:
                p = to.round(p, index)
                index += 1
            D = to.round(to.sum(p, D), index)
            index += 1
    return D


def _compiled(x: _Layout, ranges: list[tuple[int, int]], to: Arithmetic, fused: bool, index: int, D: Array) -> Array:
    """`_reference`, compiled; where N < M it computes the transpose, whose rows are longer."""
    from fpemu.compiled.chains import chain

    D, wrong = np.array(D), False
    _, M, N = D.shape
    start = _mixed_seed(to.seed)
    for p, (i, j) in enumerate(zip(x.index_a, x.index_b, strict=True)):
        a, b, d, steps = x.A[i], x.B[j], D[p], (N, 1)
        if N < M:
            a, b, d, steps = np.ascontiguousarray(b.T), np.ascontiguousarray(a.T), np.ascontiguousarray(d.T), (1, N)
        at = index
        for ks in ranges:
            first = (at * D.size + p * M * N) % 2**64
            words = (first, *steps, D.size)
            wrong |= chain(a, b, d, ks, to.fmt, to.mode.name, to.saturate, fused, words, start, max(to.bits, 1))
            at += (ks[1] - ks[0]) * (1 if fused else 2)
        if N < M:
            D[p] = d.T
    if wrong and not (to.fmt.has_nan or to.saturate):
        raise InputError(
            f"a sum overflows {to.fmt}, which has neither Inf nor NaN: saturate=True keeps its largest number"
        )
    return D


def elementwise(name: str, operands: dict[str, Any], to: Arithmetic) -> Any:
    """Return an operation on arrays of values of the format, broadcast: add, multiply, fma, divide or sqrt."""
    values = [_float64(as_values(x, to.fmt, key), key) for key, x in operands.items()]
    try:
        np.broadcast_shapes(*(x.shape for x in values))
    except ValueError:
        shapes = " and ".join(f"{key} {x.shape}" for key, x in zip(operands, values, strict=True))
        raise InputError(f"{shapes} do not broadcast") from None
    with np.errstate(all="ignore"):
        v = np.asarray(_OPERATIONS[name](to, *values))
        return to.narrow(to.round(v))


def _quotient(to: Arithmetic, a: Array, b: Array) -> Array:
    q = a / b
    # an exact remainder a - q b: a - high is exact, because high is next to a
    high, low = _product(q, b)
    remainder = np.where(np.isfinite(q) & np.isfinite(b), (a - high) - low, 0.0)
    return to_odd(q, np.where(np.signbit(b), -remainder, remainder))


def _root(to: Arithmetic, a: Array) -> Array:
    s = np.sqrt(a)
    high, low = _product(s, s)
    return to_odd(s, np.where(np.isfinite(s), (a - high) - low, 0.0))


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """x y = high + low exactly (Dekker), without overflow and underflow."""
    high = x * y
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    return high, x2 * y2 - (((high - x1 * y1) - x2 * y1) - x1 * y2)


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high


_OPERATIONS: dict[str, Any] = {
    "add": lambda to, a, b: to.sum(a, b),
    "multiply": lambda to, a, b: a * b,
    "fma": lambda to, a, b, c: to.sum(a * b, c),
    "divide": _quotient,
    "sqrt": _root,
}
