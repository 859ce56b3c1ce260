"""The loop shared by every arithmetic: rows of A times one panel of columns of B, K in order.

An arithmetic is a NamedTuple of its parameters, on whose type `block` is overloaded (`implements`), so that one loop
compiles into one kernel per arithmetic and block length. A tuple's length is part of its type: a parameter that must be
a constant for the compiler (the block length, the kind of rounding) is passed as the length of a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from fpemu.compiled.bits import bits_of_f32, mixed
from fpemu.compiled.cache import saved

WIDTH = 64  # columns of a panel: four registers of sixteen fp32 each
NO_EXPONENT = np.int16(-2000)  # of a zero: a sum of two of them fits int16


_BLOCKS: dict[type, Callable[..., None]] = {}
_CORRECTIONS: dict[type, Callable[..., None]] = {}
_ALIGNED: set[type] = set()


def implements(
    *kinds: type, aligned: bool = False, correction: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as `block`, or as `correct`, of the arithmetics with these types of parameters.

    `aligned`: the arithmetic receives the exponents of the operands.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        (_CORRECTIONS if correction else _BLOCKS).update(dict.fromkeys(kinds, function))
        _ALIGNED.update(kinds if aligned else ())
        return function

    return register


def block(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    """Add one block, the products of a[k:k+L] and b[k:k+L, :], to acc (W).

    `top` (2, W) is memory for any use; `words` (W) are the random bits of each rounding by SR.
    """


def correct(params: Any, a: Any, b: Any, c: Any, acc: Any) -> None:
    """Correct acc (W) after the last block of a row, computed from c (W), a (K) and b (K, W); most do nothing."""


def exponent(params: Any, x: Any, emin: Any) -> Any:
    """Return the binary exponent of a carrier's value, at least emin; 0 if the arithmetic does not align."""


def _no_correction(params: Any, a: Any, b: Any, c: Any, acc: Any) -> None:
    return None


@overload(block)
def _block(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> Any:
    return _BLOCKS[params.instance_class]


@overload(correct)
def _correct(params: Any, a: Any, b: Any, c: Any, acc: Any) -> Any:
    return _CORRECTIONS.get(params.instance_class, _no_correction)


@overload(exponent)
def _exponent(params: Any, x: Any, emin: Any) -> Any:
    def aligned(params: Any, x: Any, emin: Any) -> Any:
        e = ((bits_of_f32(x) >> np.int32(23)) & np.int32(255)) - np.int32(127)
        return NO_EXPONENT if x == 0 else np.int16(max(np.int32(emin), e))

    def unused(params: Any, x: Any, emin: Any) -> Any:
        return np.int16(0)

    return aligned if params.instance_class in _ALIGNED else unused


@saved
@njit(nogil=True, error_model="numpy")
def panels(
    params: Any,
    operands: Any,
    products: Any,
    rows: Any,
    columns: Any,
    begin: int,
    C: Any,
    cuts: Any,
    promote: bool,
    per: int,
    emins: Any,
    random: Any,
    out: Any,
) -> None:
    """Compute one panel of some products, from C (products, M, N) into out (products, M, N).

    `operands` are A, B and the indices of the matrices (M, K) and (K, N) that each product multiplies, `products` its
    first and last, `rows` and `columns` the first and the number of each, `emins` the smallest exponents of A's and B's
    formats. One instruction of `per` blocks for each entry of `cuts`, over k from `begin` on. `cuts` marks the
    instructions after which, if `promote`, the accumulator is added to an outer sum of out's dtype. `random` has the
    mixed seed of SR, the unused bits of a word of 64, the row of D and the block of its chain that C begins with, and
    an empty tuple in the other modes.
    """
    A, B, index_a, index_b = operands
    first, width = columns
    length = len(params.block)
    K = len(cuts) * per * length
    used = min(width, B.shape[2] - first)
    bp = np.zeros((K, width), B.dtype)
    eb = np.full((K, width), NO_EXPONENT, np.int16)
    ea = np.empty(K, np.int16)
    acc = np.zeros(width, C.dtype)
    outer = np.zeros(width, out.dtype)
    top = np.empty((2, width), np.int16)
    start, drop, row, begun, stochastic = random
    states, words = np.empty(width, np.uint64), np.zeros(width)
    for p in range(products[0], products[1]):
        a, b, c, d = A[index_a[p]], B[index_b[p]], C[p], out[p]
        for k in range(K):
            for j in range(used):
                x = b[begin + k, first + j]
                bp[k, j] = x
                eb[k, j] = exponent(params, x, emins[1])
        for i in range(rows[0], min(rows[0] + rows[1], len(a))):
            line = a[i, begin : begin + K]
            for k in range(K):
                ea[k] = exponent(params, line[k], emins[0])
            for j in range(used):
                acc[j] = 0 if promote else c[i, first + j]
                outer[j] = c[i, first + j]
                if len(stochastic) > 0:
                    states[j] = mixed(mixed(start, row + np.uint64(i)), np.uint64(first + j))
            k, rounding = 0, begun
            for q in range(len(cuts)):
                for _ in range(per):
                    if len(stochastic) > 0:
                        for j in range(used):
                            words[j] = np.float64(mixed(states[j], rounding) >> drop)
                    block(params, line, ea, bp, eb, k, acc, top, words)
                    k += length
                    rounding += np.uint64(1)
                if promote and cuts[q]:
                    for j in range(width):
                        outer[j] += acc[j]
                        acc[j] = 0
            if not promote:
                correct(params, line, bp, c[i, first : first + used], acc)
            for j in range(used):
                d[i, first + j] = outer[j] if promote else acc[j]
