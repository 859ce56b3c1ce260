"""Error of the 8-bit corrections: the additional part of `staged-int8` beside those of `staged`.

With x s = h + r, q the integer for r, h + g the integer for h, and d = r - q, a term of the sum has in stages that are
not exact the error

    x_A x_B - [h_A h_B + q_A (h_B + g_B) + (h_A + g_A) q_B] = d_A h_B + h_A d_B + r_A r_B - q_A g_B - g_A q_B

|d| <= 2^-6 and |g| <= 2^6 (at the end of the 8-bit range; else half of that), |q| <= |r| + 2^-7 and |r| <= 2^-11 |x| +
2^-25, while the largest entry of a row is scaled to [t, 2^13), t = 2^13 8/9. An entry of A or B therefore loses
(2^-6 + 2^-5) / t times the largest of its row.

On random operands d, g and r are distributed as rounding errors to nearest; r is 0.41 times the unit on average over a
binade.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fpemu.schemes.staged_int8 import CHUNK, StagedInt8
from fpemu.theory.errorfree import SLACK, cut_off, rounded
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Part
from fpemu.theory.splits import Operands

_LEAST = 2.0**13 * 8 / 9
"""Largest entry of a row, scaled"""
_LOW, _HIGH, _UNIT, _TINY = 2.0**-6, 2.0**6, 2.0**-11, 2.0**-25
_EVEN = 1 / math.sqrt(12)
"""Root mean square of a rounding error to nearest over the distance of two words"""


def scaled(data: Operands) -> Operands:
    """The operands under the scale of `staged-int8` instead of "scale-rows", which brings a row to [2^13, 2^14).

    An entry is at least 4/9 as large, and its last place is up to 2^4 smaller in relation to it, since the scale is an
    integer of four bits times a power of two.
    """
    more = 2.0**13 / _LEAST
    return replace(
        data,
        smallest=(data.smallest[0] / 36, data.smallest[1] / 36),
        over_A=data.over_A * more,
        over_B=data.over_B * more,
        over_AB=data.over_AB * more**2,
        over_D=data.over_D * more**2,
    )


def corrections(scheme: StagedInt8, norms: Norms) -> tuple[Part, ...]:
    """Errors of the 8-bit integers, and of adding and unscaling their products, relative to (|A||B|)_ij.

    >>> part, _ = corrections(StagedInt8(), Norms.sample("uniform", 1024, low=-1.0))
    >>> 1e-5 < part.worst < 1e-4, part.deviation < 1e-6
    (True, True)
    """
    whole = rounded("joins and scales", norms, 2.0**-24, 2 * -(-norms.K // CHUNK) + 1, 2)
    if norms.is_zero or scheme.exact == 1:
        return (whole,)
    share = 1.0 if scheme.exact is None else 1 - 1 / scheme.exact
    one = (_LOW * (1 + _UNIT) + _TINY + _HIGH * _UNIT) / _LEAST
    both = (2 * _HIGH * (_LOW / 2 + _TINY) + 2 * _LOW * _TINY + _TINY**2) / _LEAST**2
    worst = (one * (norms.row_A + norms.row_B) + both * norms.row_AB + _UNIT**2) * SLACK
    # over the power of two above a row's largest entry, which is scaled to 2^13 at least
    typical = math.hypot(_LOW, _HIGH * _UNIT * 0.41) * _EVEN / 2.0**13 * math.sqrt(share)
    return cut_off("corrections in 8 bits", worst, norms, (0.0, typical), (0.0, typical)), whole
