"""Axes in the notation of the command line: ranges, lists and powers as numbers."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import NamedTuple

from fpemu.errors import InputError, shown

Number = int | float
LARGEST = 1000
"""The largest number of values of an axis."""
_POWER = re.compile(r"(\d{1,4})(?:\^|\*\*)([+-]?\d{1,4})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


class _Parsed(NamedTuple):
    """A decimal number, or the exponent of a power."""

    value: Decimal
    base: int | None
    integer: bool

    def number(self, value: Decimal) -> Number:
        """Another value of the same kind as a number: an exponent as its power."""
        if self.base is not None:
            return self.base ** int(value)
        return int(value) if self.integer else float(value)


def parse_range(axis: str, text: str) -> list[Number]:
    """``"a:b"``, ``"a:b:step"`` (both ends included) or ``"a,b,c"`` as numbers; also powers, ``"2^-2:2^24"``.

    Integers remain integers. Decimal steps are exact: ``"0:1:0.1"`` has 11 values, the last of them 1.0. A range
    between two powers of the same base has every power, or with ``:2^3`` every third.

    Raises
    ------
    InputError
        With ``axis`` as the name of the axis: text that is no number, an empty range, a step that is not positive, a
        repeated value, more than `LARGEST` values.

    Examples
    --------
    >>> parse_range("--sb", "-2:1"), parse_range("phi", "0:1:0.5"), parse_range("scale", "2^3:2^5")
    ([-2, -1, 0, 1], [0.0, 0.5, 1.0], [8, 16, 32])
    """
    values: list[Number] = []
    try:
        for part in text.split(",") if len(text) <= 60 * LARGEST else ():
            values += _span(*[_parsed(word.strip()) for word in part.split(":")])
            if len(values) > LARGEST:
                break
        if not 0 < len(values) <= LARGEST:
            raise ValueError(f"{{}} has more than {LARGEST} values")
        repeated = [value for i, value in enumerate(values) if value in values[:i]]
        if repeated:
            raise ValueError(f"{{}} has {repeated[0]} twice")
    except ValueError as problem:
        raise InputError(f"{axis}: {str(problem).replace('{}', shown(text))}") from None
    return values


def _parsed(word: str) -> _Parsed:
    power = _POWER.fullmatch(word)
    if power and int(power[1]) >= 2:
        base, exponent = int(power[1]), int(power[2])
        if abs(exponent) * math.log2(base) > 1000:
            raise ValueError(f"{word} in {{}} is beyond fp64")
        return _Parsed(Decimal(exponent), base, exponent >= 0)
    if len(word) > 40 or not _DECIMAL.fullmatch(word):
        what = f"{word[:40]!r} in {{}} is not a number" if word else "{} lacks a number"
        raise ValueError(f"{what}; a range is a:b or a:b:step, both ends included, or a list a,b,c")
    value = Decimal(word)
    if abs(value) > Decimal(10) ** 300:
        raise ValueError(f"{word} in {{}} is beyond fp64")
    return _Parsed(value, None, re.fullmatch(r"[+-]?\d+", word) is not None)


def _span(first: _Parsed, *rest: _Parsed) -> list[Number]:
    """The values from first to last by a step of 1, or of the third number."""
    if not rest:
        return [first.number(first.value)]
    if len(rest) > 2:
        raise ValueError("{} has too many colons: a range is a:b or a:b:step")
    if len({end.base for end in (first, *rest)}) > 1:
        raise ValueError("{} mixes powers: a range of powers is 2^a:2^b or 2^a:2^b:2^step")
    last, step = rest[0].value, rest[1].value if len(rest) == 2 else Decimal(1)
    if step <= 0:
        raise ValueError("the step of {} must be positive")
    if last < first.value:
        raise ValueError("{} ends below its start")
    if (last - first.value) / step >= LARGEST:
        raise ValueError(f"{{}} has more than {LARGEST} values")
    kind = first._replace(integer=all(end.integer for end in (first, *rest)))
    return [kind.number(first.value + i * step) for i in range(int((last - first.value) / step) + 1)]
