"""Compiled block-scaled sums on the float64 carrier; `fpemu.mma.reference.scaled` and `scaled_groups` specify them.

A row of A holds the operands of a block, then their scales, so that `panel` needs no other operands. A product of two
operands of at most 8 bits, and the sum of 16 products of 4-bit ones, are exact in float32, and times both scales in
float64: its exponent lies between -300 and 300. Truncation and sum are those of `truncated`. A scale that is NaN makes
the sum NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fpemu.compiled.bits import bits_of_f32, power, rounded, trunc
from fpemu.mma.arithmetic import Operands
from fpemu.mma.compiled.panel import NO_EXPONENT, implements
from fpemu.mma.compiled.run import run
from fpemu.mma.reference import GROUP
from fpemu.mma.spec import MmaSpec


class Scaled(NamedTuple):
    """Parameters of a block whose products are aligned."""

    block: tuple[int, ...]  # as long as the words of the block
    products: tuple[int, ...]  # as long as the block
    F: np.int64
    E0: np.int64
    emin: np.int64  # of C and D
    emax: np.int64
    fraction: np.int64  # fraction bits of D
    final: tuple[int, ...]  # `MmaSpec.final_kind`


class ScaledGroups(NamedTuple):
    """Parameters of a block whose groups of products are aligned."""

    block: tuple[int, ...]
    products: tuple[int, ...]
    group: tuple[int, ...]  # as long as a group
    shared: tuple[int, ...]  # as long as the number of groups with one scale
    F: np.int64
    E0: np.int64
    emin: np.int64
    emax: np.int64
    fraction: np.int64
    final: tuple[int, ...]
    emin_scale: np.int64


def _parameters(spec: MmaSpec) -> Any:
    d = spec.operand_formats[3]
    floor = -600 if spec.E0 is None else spec.E0  # -600: below every exponent
    sizes = (0,) * spec.block_words, (0,) * spec.block
    limits = np.int64(spec.F), np.int64(floor), np.int64(d.emin), np.int64(d.emax), np.int64(spec.sum_fraction_bits)
    return sizes, (*limits, spec.final_kind)


def products(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Sums of products whose exponents include those of the scales."""
    sizes, limits = _parameters(spec)
    return run(Scaled(*sizes, *limits), x, spec)


def grouped(x: Operands, spec: MmaSpec) -> NDArray[Any]:
    """Sums of groups of products, each times its scales."""
    sizes, limits = _parameters(spec)
    assert spec.scale_format is not None
    assert spec.scale_block is not None
    groups: Any = (0,) * GROUP, (0,) * (spec.scale_block // GROUP)
    return run(ScaledGroups(*sizes, *groups, *limits, np.int64(spec.scale_format.emin)), x, spec)


@njit(nogil=True, error_model="numpy", inline="always")
def _exponent(x: Any) -> Any:
    """The exponent of a float32 number; -127 for a zero and for 2^-127, the smallest ue8m0."""
    return np.int64((bits_of_f32(x) >> np.int32(23)) & np.int32(255)) - 127


@implements(Scaled, aligned=True)
def _block(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    length, F = len(params.products), params.F
    ak, ek, bk, fk, highest = a[k : k + length], ea[k : k + length], b[k : k + length], eb[k : k + length], top[0]
    for j in range(len(highest)):
        e = np.int16(2 * NO_EXPONENT)
        for q in range(length):
            e = max(e, np.int16(ek[q] + fk[q, j]))
        highest[j] = e
    scale_a, scale_b = a[k + length], b[k + length]
    of_a = _exponent(scale_a)
    for j in range(len(acc)):
        c = acc[j]
        of_both = of_a + _exponent(scale_b[j])
        ec = max(_exponent(c), params.emin) if c != 0 else params.E0
        e = max(max(np.int64(highest[j]) + of_both, params.E0), ec)
        scale = power(F - e + of_both)
        s = trunc(np.float64(c) * power(F - e)) + np.float64(scale_a) * np.float64(scale_b[j]) * 0.0  # NaN, or a zero
        for q in range(length):
            s += trunc(np.float64(ak[q]) * np.float64(bk[q, j]) * scale)
        acc[j] = rounded(params, s * power(e - F), words[j]) + np.float32(0)


@implements(ScaledGroups)
def _block_of_groups(params: Any, a: Any, ea: Any, b: Any, eb: Any, k: Any, acc: Any, top: Any, words: Any) -> None:
    length, size, shared, F = len(params.products), len(params.group), len(params.shared), params.F
    count = length // size
    highest = top[0]
    terms = np.empty((count, len(acc)), np.float64)
    for j in range(len(acc)):
        c = acc[j]
        highest[j] = np.int16(max(_exponent(c), params.emin) if c != 0 else params.E0)
    for g in range(count):
        first, at = k + g * size, k + length + g // shared
        ak, bk, scale_a, scale_b, term = a[first : first + size], b[first : first + size], a[at], b[at], terms[g]
        of_a = max(_exponent(scale_a), params.emin_scale)
        for j in range(len(acc)):
            s = np.float32(0)
            for q in range(size):
                s += ak[q] * bk[q, j]
            t = np.float64(s) * (np.float64(scale_a) * np.float64(scale_b[j]))
            of_both = of_a + max(_exponent(scale_b[j]), params.emin_scale)
            term[j] = t
            highest[j] = max(highest[j], np.int16(of_both if t != 0 else params.E0))
    for j in range(len(acc)):
        e = max(np.int64(highest[j]), params.E0)
        scale = power(F - e)
        s = trunc(np.float64(acc[j]) * scale)
        for g in range(count):
            s += trunc(terms[g, j] * scale)
        acc[j] = rounded(params, s * power(e - F), words[j]) + np.float32(0)
