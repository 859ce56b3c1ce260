"""What the models ask of numbers: sizes are positive integers, rates and factors positive numbers."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from fpemu.errors import InputError

LARGEST = 2**63 - 1
"""Sizes beyond it are refused: products of three of them must stay within fp64's range."""


def is_size(value: Any) -> bool:
    """Whether a value is a positive integer of 63 bits; True is none.

    >>> is_size(16), is_size(16.0), is_size(0), is_size(True)
    (True, False, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(1 <= value <= LARGEST)


def is_positive(value: Any) -> bool:
    """Whether a value is a positive and finite number; True is none.

    >>> is_positive(0.5), is_positive(0), is_positive(float("nan")), is_positive("1")
    (True, False, False, False)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return 0 < float(value) < math.inf
    except OverflowError:
        return False


def sizes(**values: Any) -> None:
    """Raise unless all values are positive integers.

    Raises
    ------
    InputError
        Naming the first that is none.

    >>> sizes(M=16, N=0)
    Traceback (most recent call last):
    fpemu.errors.InputError: N = 0 must be a positive integer
    """
    for name, value in values.items():
        if not is_size(value):
            large = " below 2^63" if isinstance(value, int) and value > LARGEST else ""
            raise InputError(f"{name} = {short(value)} must be a positive integer{large}")


def positive(what: str = "", **values: Any) -> None:
    """Raise unless all values are positive and finite numbers; ``what`` says of what kind.

    >>> positive(", in cycles", memory_latency=-1)
    Traceback (most recent call last):
    fpemu.errors.InputError: memory_latency = -1 must be a positive number, in cycles
    """
    for name, value in values.items():
        if not is_positive(value):
            raise InputError(f"{name} = {short(value)} must be a positive number{what}")


def short(value: Any) -> str:
    """A value for a message, of a length that can be read."""
    try:
        text = repr(value)
    except ValueError:  # integers of thousands of digits have no text
        return "an integer of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
