"""Ranges of numbers as text: first:last, first:last:step, a list a,b,c, and powers 2^-2:2^24."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from fpemu.errors import InputError, shown

Number = int | float
LARGEST = 1000
"""The largest number of values of a range."""
_POWER = re.compile(r"([2-9]|[1-9]\d{1,3})(?:\^|\*\*)([+-]?\d{1,4})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


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
        for words in text.split(","):
            values += _span(*(word.strip() for word in words.split(":")))
            if len(values) > LARGEST:
                raise ValueError(f"has more than {LARGEST} values")
        if len(set(values)) < len(values):
            raise ValueError("has a value twice")
    except ValueError as problem:
        raise InputError(f"{axis}: {shown(text)} {problem}") from None
    return values


def _span(*words: str) -> list[Number]:
    """The values from first to last by a step of 1, or of the third word."""
    for word in words:
        if not _POWER.fullmatch(word) and not (len(word) <= 40 and _DECIMAL.fullmatch(word)):
            what = f"has {word[:40]!r}, which is not a number" if word else "lacks a number"
            raise ValueError(f"{what}; a range is a:b or a:b:step, both ends included, or a list a,b,c")
    powers = [power for power in map(_POWER.fullmatch, words) if power]
    bases = {int(power[1]) for power in powers}
    if powers and (len(bases) > 1 or len(powers) < len(words)):
        raise ValueError("mixes powers: a range of powers is 2^a:2^b or 2^a:2^b:2^step")
    numbers = [Decimal(power[2]) for power in powers] or [Decimal(word) for word in words]
    if len(numbers) > 3:
        raise ValueError("has too many colons: a range is a:b or a:b:step")
    first, last = numbers[0], numbers[min(1, len(numbers) - 1)]
    step = numbers[2] if len(numbers) == 3 else Decimal(1)
    if max(map(abs, numbers)) > (1000 / math.log2(max(bases)) if powers else Decimal(10) ** 300):
        raise ValueError("has a number beyond fp64")
    if step <= 0:
        raise ValueError("has a step that is not positive")
    if last < first:
        raise ValueError("ends below its start")
    if (last - first) / step >= LARGEST:
        raise ValueError(f"has more than {LARGEST} values")
    values = [first + i * step for i in range(int((last - first) / step) + 1)]
    if powers:
        base = max(bases)
        return [base ** int(value) for value in values]
    whole = all(re.fullmatch(r"[+-]?\d+", word) for word in words)
    return [int(value) if whole else float(value) for value in values]
