"""Axes in the notation of the command line: ranges, lists and powers as numbers."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from fpemu.errors import InputError, shown

Number = int | float
LARGEST = 1000
"""Most values of an axis."""


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
    if len(text) > 60 * LARGEST:
        raise InputError(f"{axis}: {shown(text)} has more than {LARGEST} values")
    for part in text.split(","):
        ends = [_number(axis, text, piece) for piece in part.split(":")]
        values += [_plain(*ends[0])] if len(ends) == 1 else _span(axis, text, ends)
        if len(values) > LARGEST:
            raise InputError(f"{axis}: {shown(text)} has more than {LARGEST} values")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise InputError(f"{axis}: {shown(text)} has {twice[0]} twice")
    return values


_POWER = re.compile(r"([+-]?)(\d{1,4})(?:\^|\*\*)([+-]?\d{1,4})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_Parsed = tuple[Decimal | None, bool, tuple[int, int] | None]  # value, whether it is an integer, (base, exponent)


def _number(axis: str, text: str, piece: str) -> _Parsed:
    piece = piece.strip()
    power = _POWER.fullmatch(piece)
    if power and not power[1] and int(power[2]) >= 2:
        base, exponent = int(power[2]), int(power[3])
        if abs(exponent) * math.log2(base) > 1000:
            raise InputError(f"{axis}: {piece} in {shown(text)} is beyond fp64")
        return None, exponent >= 0, (base, exponent)
    if len(piece) > 40 or not _DECIMAL.fullmatch(piece):
        what = f"{piece[:40]!r} in {shown(text)} is not a number" if piece else f"{shown(text)} lacks a number"
        raise InputError(f"{axis}: {what}; a range is a:b or a:b:step, both ends included, or a list a,b,c")
    value = Decimal(piece)
    if abs(value) > Decimal(10) ** 300:
        raise InputError(f"{axis}: {piece} in {shown(text)} is beyond fp64")
    return value, re.fullmatch(r"[+-]?\d+", piece) is not None, None


def _plain(value: Decimal | None, integer: bool, power: tuple[int, int] | None) -> Number:
    if power is not None:
        return power[0] ** power[1]
    assert value is not None
    return int(value) if integer else float(value)


def _span(axis: str, text: str, ends: list[_Parsed]) -> list[Number]:
    if len(ends) > 3:
        raise InputError(f"{axis}: {shown(text)} has too many colons: a range is a:b or a:b:step")
    powers = [end[2] for end in ends]
    if any(power is not None for power in powers):
        bases = {power and power[0] for power in powers}
        if len(bases) > 1:
            raise InputError(f"{axis}: {shown(text)} mixes powers: a range of powers is 2^a:2^b or 2^a:2^b:2^step")
        first, last, step = (Decimal(power[1]) for power in (*powers, (0, 1))[:3] if power is not None)
        exponents = _steps(axis, text, first, last, step)
        return [_plain(None, True, (bases.copy().pop() or 2, int(exponent))) for exponent in exponents]
    first, last, step = (value for value, *_ in (*ends, (Decimal(1), True, None))[:3] if value is not None)
    integer = all(whole for _, whole, _ in ends)
    return [_plain(value, integer, None) for value in _steps(axis, text, first, last, step)]


def _steps(axis: str, text: str, first: Decimal, last: Decimal, step: Decimal) -> list[Decimal]:
    if step <= 0:
        raise InputError(f"{axis}: the step of {shown(text)} must be positive")
    if last < first:
        raise InputError(f"{axis}: {shown(text)} ends below its start")
    if (last - first) / step >= LARGEST:
        raise InputError(f"{axis}: {shown(text)} has more than {LARGEST} values")
    return [first + i * step for i in range(int((last - first) / step) + 1)]
