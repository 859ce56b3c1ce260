"""Digits that Ozaki scheme II omits, bounded by norms: for `fpemu.theory.errorfree`.

2^-mu_i <= x m_i, where x is twice (the power of two is rounded down) the bound

    invariant   sqrt(K / limit)                       limit about P / 2
    accurate    sqrt(K (33/32) 2 / limit)             7-bit integers above |a| instead of |a|
    fast        max(2, sqrt(K) max|A|) / sqrt(limit)  limit about P / 8; not invariant: the elements' own size counts

    |AB - C' 2^-(mu + nu)| <= x_A row_A S + x_B row_B S, and one rounding.

`fast` needs floor(log2 m_i) + floor(log2 n_j) >= -2 for the remainder theorem; where the norms do not show it, worst is
inf. `fpemu.gemm` raises an error where a row or column is truncated to zeros; the bound may then exceed 1.

**Random operands.** The three rules are evaluated for typical sums of rows, `Norms.lead`, and for their scatter between
rows; the unit is the resulting power of two. Digits are truncated toward zero, half a unit on average: a bias for data
of one sign. In `fast` scaling the bits lost by a row depend on its own size, which norms of all rows do not contain:
where rows differ by orders of magnitude, `probable` may be up to twice too small. In `accurate` scaling it may be up to
three times too small for data that spread over many octaves (phi = 2, lognormal with a deviation of 3).
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from fpemu.schemes.ozaki2 import Ozaki2
from fpemu.theory.cuts import SLACK, Elements, cut_off, last_place, lone, times, uneven
from fpemu.theory.losses import points
from fpemu.theory.norms import Norms
from fpemu.theory.parts import LEAST_TAIL, Part


def digits_cut_off(scheme: Ozaki2, norms: Norms) -> Part:
    """The part of the error from digits that `ozaki2` omits to make its operands integers."""
    K, P = norms.K, scheme.basis().product
    tight = scheme.scaling != "fast"
    limit = float(Fraction(P - 1, 2) * (1 - Fraction(2**16 + K, 2**50)) if tight else Fraction(P - 1, 8))
    cuts, typical, tails = [], [], []
    for side, row in (("A", norms.row_A), ("B", norms.row_B)):
        largest, least = (norms.max_A, norms.min_A) if side == "A" else (norms.max_B, norms.min_B)
        most = math.sqrt(K)
        if scheme.scaling == "accurate":
            most *= math.sqrt(2 * 33 / 32)
        elif scheme.scaling == "fast":
            most = max(2.0, most * largest)
        cut = 2 * most / math.sqrt(limit) * SLACK
        cut = 0.0 if cut * largest <= last_place(least, scheme.operand) else cut
        cuts.append(min(times(cut, row), 1.0))
        units, weights = _units(scheme, norms, side, limit)
        losses = [Elements.of(norms, side).lost(unit, math.sqrt(1 / 12), True) for unit in units]
        mean, square = (float(weights @ np.power(x, n)) for n, x in enumerate(zip(*losses, strict=True), 1))
        typical.append((mean, math.sqrt(square)) if cut else (0.0, 0.0))
        tails.append(max(rms for _, rms in losses) / math.sqrt(square) if square else 1.0)
    lost = cut_off("digits cut off", sum(cuts) * SLACK, norms, *typical)
    if scheme.scaling == "accurate":
        # the larger an element beside the others of its row, the smaller its sum and the unit: by the root
        lost = replace(lost, tail=max(LEAST_TAIL, math.sqrt(max(uneven(norms.cut_A), uneven(norms.cut_B)))))
    lost = replace(lost, tail=max(lost.tail, *tails))
    smallest = _exponent(norms.max_A, norms.min_A, norms.flat_A) + _exponent(norms.max_B, norms.min_B, norms.flat_B)
    if not tight and smallest < -2:
        lost = replace(lost, name="digits cut off, or all: rows may be too small for fast scaling", worst=math.inf)
    return lost


def _units(scheme: Ozaki2, norms: Norms, side: str, limit: float) -> tuple[Any, Any]:
    """2^-mu_i over 2^e_i in random rows, with weights: powers of two, so that the scatter of the sums matters."""
    z, weights = points()
    x, y = (Elements.of(norms, which).mean for which in "AB")
    if scheme.scaling == "accurate":
        up = 1 / 128  # 7-bit integers are rounded upward
        S, power = norms.lead + norms.K * up * (x + y + up), 0
    else:
        S, power = (lone(norms, side) * norms.K * (x if side == "A" else y)) ** 2, -1
        S = 4 * S
    with np.errstate(over="ignore"):
        exponents = np.ceil((np.log2(S / limit) + norms.lead_spread * z) / 2) + power
    if scheme.scaling == "fast":  # mu_i is too small by floor(log2 m_i), which is largest where rows lose most
        top = math.frexp(norms.max_A if side == "A" else norms.max_B)[1] - 1
        exponents = np.maximum(exponents + top, math.ceil(math.log2(4 / limit) / 2) - 1)
    return np.exp2(np.minimum(exponents, 0)), weights


def _exponent(largest: float, least: float, flat: float) -> int:
    """floor(log2) of the largest element of any row (column) that counts: S_ij <= m_i sum|b|, so m_i >= max / flat."""
    return math.frexp(max(least, largest / flat * (1 - 2.0**-40)))[1] - 1
