"""One number's way through a split, against exact fractions and Python's own bits."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fpemu import FP32, formats, schemes
from fpemu.schemes import SplitScheme, format_split, get, split_table

SPLIT = [s for s in schemes.names() if isinstance(get(s), SplitScheme) and s != "staged-int8"]
PATTERNS = st.integers(0, 2**32 - 1)


def single(pattern):
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def test_a_known_number():
    # 0.1 in fp32 is 13421773 · 2^-27; in fp16 1638 · 2^-14 = 0.0999755859375; the rest is 6553.6 units of 2^-28
    table = split_table(0.1, "h2sgemm", sb=12)
    assert (table.scheme, table.choices, table.given) == ("h2sgemm", {"sb": 12}, 0.1)
    assert table.x == 13421773 / 2**27
    assert table.bits.hex == "0x3dcccccd"
    assert (table.bits.sign, table.bits.exponent, table.bits.fraction) == ("0", "01111011", "10011001100110011001101")
    h, r = table.rows
    assert (h.part, h.format, h.rounding, h.exponent, h.value) == ("h", "fp16", "RNE", 0, 1638 / 2**14)
    assert (h.bits.hex, h.bits.sign, h.bits.exponent, h.bits.fraction) == ("0x2e66", "0", "01011", "1001100110")
    assert h.error == table.x - 1638 / 2**14
    assert h.bits_kept == 11
    # (x - h) · 2^12 = 3277 · 2^-15 = 0.100006...: 12 bits, a tie, to the even neighbour 1638 · 2^-14
    assert (r.part, r.exponent, r.value, r.bits.hex) == ("r", 12, 1638 / 2**14, "0x2e66")
    assert h.error * 2**12 == 3277 / 2**15
    assert table.reconstruction == 1638 / 2**14 * (1 + 2**-12)
    assert table.error == table.x - table.reconstruction == 2.0**-27
    assert table.ulps == 1.0
    assert table.bits_kept == r.bits_kept == 23
    assert table.relative_error == 2.0**-27 / table.x


@given(PATTERNS, st.sampled_from(SPLIT))
@example(0x7F7FFFFF, "staged")
def test_everything_adds_up(pattern, scheme):
    x = single(pattern)
    assume(np.isfinite(x))
    table = split_table(x, scheme)
    assert table.given == table.x == x
    assert table.bits.code == pattern
    assert table.bits.sign + table.bits.exponent + table.bits.fraction == f"{pattern:032b}"
    chosen = get(scheme)
    words = chosen.split(np.full((1, 1), np.ldexp(x, table.scaled_by)))
    left = Fraction(x)
    for row, rule, word in zip(table.rows, chosen.rules(), words, strict=True):
        assert row.value == word[0, 0] or np.isnan(word[0, 0])
        assert (row.part, row.format, row.exponent) == (rule.name, rule.format.name, rule.exponent)
        fmt = formats.get(row.format)
        assert int(fmt.encode(word[0, 0])) == row.bits.code == int(row.bits.hex, 16)
        text = row.bits.sign + row.bits.exponent + row.bits.fraction + "0" * fmt.padding
        assert text == f"{row.bits.code:0{fmt.width}b}"
        if not np.isfinite(row.value):
            assert row.bits_kept == 0
            return
        left -= Fraction(row.value) / Fraction(2) ** (row.exponent + table.scaled_by)
        assert Fraction(row.error) == left
        kept = row.bits_kept
        assert 0 <= kept <= 24
        if left:
            assert kept == 0 or abs(left) <= Fraction(abs(x)) / 2**kept
            assert kept == 24 or abs(left) > Fraction(abs(x)) / 2 ** (kept + 1)
        else:
            assert kept == 24
    assert Fraction(table.error) == left
    assert Fraction(table.reconstruction) == Fraction(x) - left
    exponent = max((pattern >> 23) & 0xFF, 1)
    assert Fraction(table.ulps) == left * Fraction(2) ** (150 - exponent)
    assert table.relative_error == (abs(table.error / x) if x else 0)


@given(PATTERNS, st.integers(-40, 40))
@example(0x7CFFFFFF, 5)
@example(0x7CFFFFFF, 6)
def test_the_scale_of_staged(pattern, shift):
    x = np.float32(single(pattern))
    assume(np.isfinite(x) and x != 0)
    table = split_table(x, "staged")
    assert 2.0**13 <= abs(np.ldexp(float(x), table.scaled_by)) < 2.0**14
    other = np.ldexp(float(x), shift)
    if abs(other) <= FP32.max and float(np.float32(other)) == other:
        moved = split_table(other, "staged")
        assert [r.bits for r in moved.rows] == [r.bits for r in table.rows]
        assert moved.scaled_by == table.scaled_by - shift
    assert table.bits_kept >= 22


def test_what_fp32_loses_is_shown():
    table = split_table(1 / 3, "ootomo")
    assert table.given == 1 / 3
    assert table.x == float(np.float32(1 / 3))
    assert f"lost by rounding to fp32: {1 / 3 - table.x!r}" in format_split(table)
    assert "x is an fp32 number" in format_split(split_table(0.25, "ootomo"))
    assert split_table(np.float16(0.1), "ootomo").x == float(np.float16(0.1))
    assert split_table(-3, "markidis").rows[0].value == -3
    assert split_table(1e-50, "markidis").x == 0


def test_zero():
    for scheme in SPLIT:
        for zero in (0.0, -0.0):
            table = split_table(zero, scheme)
            assert table.error == table.relative_error == table.ulps == 0
            assert table.bits_kept == 24
            assert table.bits.sign == table.rows[0].bits.sign == ("1" if np.signbit(zero) else "0")


def test_residuals_that_underflow():
    # Rule 1 of the H2SGEMM paper: from 2^-2 down the unscaled residual loses bits, from 2^-12 it is gone
    x = 1 + 2.0**-12 + 2.0**-22
    assert split_table(x, "h2sgemm", sb=0).bits_kept == 24
    assert split_table(x * 2.0**-2, "h2sgemm", sb=0).bits_kept == 24
    assert split_table(x * 2.0**-3, "h2sgemm", sb=0).bits_kept == 22
    gone = split_table(x * 2.0**-14, "h2sgemm", sb=0)
    assert gone.rows[1].value == 0
    assert gone.bits_kept == gone.rows[0].bits_kept < 13
    assert split_table(x * 2.0**-14, "h2sgemm", sb=12).bits_kept == 24


def test_overflow_is_shown_not_refused():
    table = split_table(1e6, "markidis")
    assert [row.value for row in table.rows] == [np.inf, -np.inf]
    assert table.bits_kept == 0
    assert "inf" in format_split(table)


@pytest.mark.parametrize("scheme", SPLIT)
def test_the_text_lines_up(scheme):
    table = split_table(0.3, scheme)
    lines = format_split(table).splitlines()
    assert lines[0] == f"0.3 split by {scheme}"
    head = lines[1]
    shown = [line for line in lines[2:] if "0x" in line]
    body = [line for line in shown if not line.startswith(("x given", "sum"))]
    assert len(body) == 1 + len(table.rows)
    for line, bits in zip(body, [table.bits, *(r.bits for r in table.rows)], strict=True):
        assert line[head.index("code") :].startswith(bits.hex)
        assert line[head.index(" s ") + 1] == bits.sign
        assert line[head.index("exponent") :].startswith(bits.exponent)
        assert line[head.index("fraction") :].startswith(bits.fraction)
    for number in [table.given, table.x, table.reconstruction, *(r.value for r in table.rows)]:
        assert any(repr(number) in line for line in shown)
    assert f"{table.ulps:.6g} ulp of fp32" in lines[-1]
    assert f"{table.bits_kept} of 24 bits kept" in lines[-1]
    assert all(line == line.rstrip() for line in lines)
    assert format_split(0.3, scheme) == format_split(table)


def test_the_hex_floats_are_python_s():
    text = format_split(-0.15625, "ootomo")
    assert "-0x1.4p-3" in text
    for line in text.splitlines()[2:5]:
        number = line[text.splitlines()[1].index("hex float") :].split()[0]
        assert float.fromhex(number) in (-0.15625, 0.0)
