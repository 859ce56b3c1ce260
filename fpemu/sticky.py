"""Exact significands with a sticky bit (round-to-odd intermediates), and their single rounding to any format.

An exact computation, in Python integers or in limbs, leaves 62 leading bits and a sticky bit for all bits below them. A
rounding to at most 53 bits depends on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.rounding import Rounding, _round_to, mode_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Significands:
    """Real numbers (-1)^negative * (significand + rest) * 2^exponent, with significand < 2^62 and 0 <= rest < 1.

    ``sticky`` is True where rest > 0, which requires a significand of 60 bits or more: enough to round to any format of
    at most 53 bits as if from the exact number.
    """

    negative: NDArray[np.bool_]
    significand: NDArray[np.uint64]
    sticky: NDArray[np.bool_]
    exponent: Ints

    def round_to(self, fmt: FloatFormat | str, mode: Rounding | str = "RNE", *, saturate: bool = False) -> Any:
        """Values of ``fmt`` in ``fmt.dtype``: one rounding, subnormals and overflow as in `fpemu.round_to`."""
        fmt, mode = formats.get(fmt), mode_of(mode)
        if mode is Rounding.SR:
            raise InputError("an exact product is rounded by RNE, RNA, RZ, RU, RD or to odd, not stochastically")
        leading = self.exponent + bit_lengths(self.significand) - 1
        quantum = leading - fmt.fraction_bits
        if fmt.subnormals:
            quantum = np.maximum(quantum, fmt.emin - fmt.fraction_bits)
        else:
            quantum = np.where(leading < fmt.emin, fmt.emin, quantum)
        quantum = np.where(self.significand == 0, self.exponent, quantum)
        shift = quantum - self.exponent
        # a shift beyond 63 leaves all bits below half a quantum, as 63 does: significand < 2^62, half of 2^63
        right = np.clip(shift, 0, 63).astype(np.uint64)
        left = np.clip(-shift, 0, 63).astype(np.uint64)
        steps = (self.significand << left) >> right
        low = self.significand & ((np.uint64(1) << right) - np.uint64(1))
        half = np.where(right > 0, np.uint64(1) << (np.maximum(right, 1) - np.uint64(1)), np.uint64(1 << 63))
        odd = steps if fmt.fraction_bits else np.where(steps > 0, quantum + fmt.bias, 0)  # else the exponent field's
        steps = steps + self._up(mode, odd % 2 == 1, low, half)
        if fmt.positive:
            steps = np.maximum(steps, self.significand != 0)  # no zero: an inexact tiny number is the smallest one
        with np.errstate(over="ignore"):
            value = np.ldexp(steps.astype(np.float64), np.clip(quantum, -1074, 2000).astype(np.int32))
        value = np.where(self.negative, -value, value)
        if fmt.negative_zero and bool((np.abs(value) <= fmt.max).all()):
            return value.astype(fmt.dtype)  # values of fmt already
        # only overflow is left to _round_to. It propagates an infinite operand, so modes that round overflow to the
        # largest finite number receive a finite one
        to_largest = {Rounding.RZ: True, Rounding.ODD: True, Rounding.RU: self.negative, Rounding.RD: ~self.negative}
        overflow = np.isinf(value) & to_largest.get(mode, False)
        value = np.where(overflow, np.copysign(np.finfo(np.float64).max, value), value)
        return _round_to(value, fmt, mode, saturate)

    def _up(self, mode: Rounding, odd: Any, low: Any, half: Any) -> NDArray[np.bool_]:
        """Return where to round away from zero; ``odd``: the code toward zero is odd."""
        inexact = (low != 0) | self.sticky
        if mode is Rounding.RNE:
            return np.asarray((low > half) | ((low == half) & (self.sticky | odd)))
        if mode is Rounding.RNA:
            return np.asarray(low >= half)
        if mode is Rounding.ODD:
            return inexact & ~odd
        if mode is Rounding.RZ:
            return np.zeros(inexact.shape, bool)
        return inexact & (self.negative if mode is Rounding.RD else ~self.negative)


def bit_lengths(x: NDArray[np.uint64]) -> Ints:
    """Bit lengths of integers below 2^63."""
    upper = x >> np.uint64(32)
    half = np.where(upper > 0, upper, x & np.uint64(0xFFFFFFFF))  # below 2^32: exact as a float
    return np.asarray(np.frexp(half.astype(np.float64))[1] + np.where(upper > 0, 32, 0), dtype=np.int64)
