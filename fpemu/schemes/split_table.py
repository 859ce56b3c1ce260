"""The split of one number, word by word: the bits of each word, and the residual after it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpemu.arguments import is_real, number, unwrapped
from fpemu.errors import InputError, shown
from fpemu.formats import FP32, FloatFormat
from fpemu.schemes import words
from fpemu.schemes.base import Scheme, build
from fpemu.schemes.split_scheme import SplitScheme


@dataclass(frozen=True)
class Bits:
    """A stored word: its code, and its three fields as strings of 0 and 1."""

    code: int
    hex: str
    sign: str
    exponent: str
    fraction: str


@dataclass(frozen=True)
class SplitRow:
    """One word of a split.

    Parameters
    ----------
    part : str
        "h", "r", or the word's number.
    format : str
        Format of the word.
    rounding : str
        Mode of the rounding that produced the word.
    exponent : int
        Binary exponent of its scale: the word represents value / 2^exponent (before the row's power of two).
    value : float
        The stored word.
    bits : Bits
        Fields of the word's code.
    error : float
        Residual of x after this word and the previous words, in the unit of x.
    bits_kept : int
        Leading bits of x that the words up to this one represent: the largest b <= 24 with abs(error) <= 2^-b · abs(x).
    """

    part: str
    format: str
    rounding: str
    exponent: int
    value: float
    bits: Bits
    error: float
    bits_kept: int


@dataclass(frozen=True)
class SplitTable:
    """Split of one number, word by word.

    Parameters
    ----------
    scheme : str
        Name of the scheme.
    choices : dict
        The options of the call.
    given : float
        The number before its rounding to fp32.
    x : float
        The number rounded to fp32, which is split.
    bits : Bits
        Fields of the fp32 code of x.
    scaled_by : int
        Binary exponent of the power of two that the scheme multiplies x by first (`staged`; else 0).
    rows : tuple of SplitRow
        One row per word.
    reconstruction : float
        Sum of the values that the words represent.
    error, relative_error, ulps : float
        Difference x - reconstruction: absolute, relative to x, in units in the last place of x in fp32.
    bits_kept : int
        Leading bits of x that all words represent.
    """

    scheme: str
    choices: dict[str, Any]
    given: float
    x: float
    bits: Bits
    scaled_by: int
    rows: tuple[SplitRow, ...]
    reconstruction: float
    error: float
    relative_error: float
    ulps: float
    bits_kept: int


def split_table(x: Any, scheme: str | Scheme, **options: Any) -> SplitTable:
    """Return the steps by which a scheme splits one number.

    Parameters
    ----------
    x : real number
        Rounded to fp32 first, to nearest even.
    scheme : str or Scheme
        Scheme that splits numbers into words.
    **options
        The scheme's choices.

    Returns
    -------
    SplitTable
        The number in fp32, and one row per word with its value, code and remaining residual.

    Raises
    ------
    InputError
        An x that is not one finite number in the range of fp32; a scheme without words; invalid options.

    Examples
    --------
    >>> table = split_table(0.1, "h2sgemm", sb=12)
    >>> [(row.part, row.value, row.bits.hex) for row in table.rows]
    [('h', 0.0999755859375, '0x2e66'), ('r', 0.0999755859375, '0x2e66')]
    >>> table.bits_kept
    23
    """
    chosen = build(scheme, options)
    in_bytes = chosen.name == "staged-int8"  # its module is imported after this one, which orders `names`
    if not isinstance(chosen, SplitScheme) or in_bytes:
        how = "cuts whole rows into slices"
        if in_bytes:
            how = "rounds its corrections to integers of 8 bits"
        elif not chosen.needs_hardware:
            how = f"multiplies {chosen.operand} numbers as they are"
        raise InputError(f"{chosen.name} does not split one number: it {how}")
    if not is_real(unwrapped(x)):
        raise InputError(f"split takes one real number, x = {shown(x)} is none")
    given = number("x", unwrapped(x))
    with np.errstate(over="ignore", under="ignore"):
        single = np.float32(given)
    if not np.isfinite(single):
        raise InputError(f"{given!r} is not a finite number of fp32's range")
    rules = words.of_operand(chosen.rules(), "A")
    one = single.reshape(1, 1)
    ready = chosen.prepare(one, "A", "propagate")
    shift = int(ready.exponents[0, 0])
    rows = []
    for word, _, value, left in words.steps(ready.values, rules):
        error = float(np.ldexp(left[0, 0], -shift))
        rows.append(
            SplitRow(
                word.name,
                str(word.format),
                word.rounding,
                word.exponent,
                float(value[0, 0]),
                bits_of(value[0, 0], word.format),
                error,
                _bits_kept(error, float(single)),
            )
        )
    error = rows[-1].error
    ulp = max(math.ldexp(1.0, math.frexp(single)[1] - FP32.precision), FP32.min_subnormal)  # np.spacing(max) is inf
    return SplitTable(
        scheme=chosen.name,
        choices=dict(options),
        given=given,
        x=float(single),
        bits=bits_of(single, FP32),
        scaled_by=shift,
        rows=tuple(rows),
        reconstruction=float(single) - error,
        error=error,
        relative_error=abs(error / float(single)) if single else 0.0,
        ulps=error / ulp,
        bits_kept=rows[-1].bits_kept,
    )


def bits_of(value: Any, fmt: FloatFormat) -> Bits:
    """The stored word of a value of `fmt`; the fraction omits unused low bits of the word."""
    code = int(fmt.encode(value))
    text = format(code, f"0{fmt.width}b")
    e = fmt.exponent_bits
    hexa = f"0x{code:0{-(-fmt.width // 4)}x}"
    return Bits(code, hexa, text[0], text[1 : 1 + e], text[1 + e : 1 + e + fmt.fraction_bits])


def _bits_kept(error: float, x: float) -> int:
    if error == 0:
        return FP32.precision
    if not np.isfinite(error):
        return 0
    # the rounded quotient of numbers of 24 bits is a power of two only if the exact quotient is
    quotient, e = np.frexp(abs(error) / abs(x))
    return int(min(max(-(e - (quotient == 0.5)), 0), FP32.precision))


def format_split(x: Any, scheme: str | Scheme | None = None, **options: Any) -> str:
    """Format a split as text: one line per number, the bits of sign, exponent and fraction in columns.

    Parameters
    ----------
    x : SplitTable or real number
        A table, or a number to split by ``scheme`` and ``options`` as in `split_table`.
    scheme : str or Scheme, optional
        Required for a number.
    **options
        The scheme's choices.

    Returns
    -------
    str
        Table of several lines.

    Raises
    ------
    InputError
        A number without a scheme; otherwise as `split_table`.
    """
    if not isinstance(x, SplitTable):
        if scheme is None:
            raise InputError("format_split takes a SplitTable, or a number and a scheme")
        x = split_table(x, scheme, **options)
    table = x
    choices = ", ".join(f"{k}={v}" for k, v in table.choices.items())
    title = f"{table.given!r} split by {table.scheme}" + (f" ({choices})" if choices else "")
    lines: list[tuple[str, ...]] = [("", "value", "hex float", "code", "s", "exponent", "fraction", "bits kept")]
    lines.append(("x given", repr(table.given), _hex(table.given), "", "", "", "", ""))
    lines.append(_line("x fp32", table.x, table.bits, "24"))
    for row in table.rows:
        scale = row.exponent + table.scaled_by
        label = f"{row.part} {row.format} {row.rounding}" + (f" / 2^{scale}" if scale else "")
        lines.append(_line(label, row.value, row.bits, str(row.bits_kept)))
    lines.append(("sum", repr(table.reconstruction), _hex(table.reconstruction), "", "", "", "", ""))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    for row in table.rows:
        if abs(row.value) == float("inf") and abs(table.x) != float("inf"):
            text.append(f"{row.part} overflows {row.format}")
    rounding = table.given - table.x
    text.append(f"lost by rounding to fp32: {rounding!r}" if rounding else "x is an fp32 number")
    for row in table.rows[:-1]:
        text.append(f"lost after {row.part}: {row.error!r}")
    text.append(
        f"total error: {table.error!r} absolute, {table.relative_error:.3g} relative, {table.ulps:.6g} ulp of fp32; "
        f"{table.bits_kept} of 24 bits kept"
    )
    return "\n".join([title, *text])


def _line(label: str, value: float, bits: Bits, kept: str) -> tuple[str, ...]:
    return label, repr(value), _hex(value), bits.hex, bits.sign, bits.exponent, bits.fraction, kept


def _hex(value: float) -> str:
    """The hexadecimal float without the zeros at its end."""
    digits, _, exponent = value.hex().partition("p")
    return f"{digits.rstrip('0').rstrip('.')}p{exponent}" if exponent and "." in digits else value.hex()
