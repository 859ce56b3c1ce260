"""Rows written as CSV and read back: types, digits, and files that are no tables."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpemu.errors import InputError
from fpemu.sweep import tables


def _bits(value):
    return (type(value), value.hex() if isinstance(value, float) else value)


FLOATS = [0.0, -0.0, 1.0, 0.1, 2 / 3, 5e-324, 1.7976931348623157e308, 1e16, math.inf, -math.inf, math.nan]
OTHERS = [0, -7, 10**40, True, False, None, [1, 2], [1.5, "\r"], ["a", None], {"split": 64}]
TEXTS = [
    "a\rb",
    "\r",
    '"',
    "9" * 5000,
    "text",
    "with, comma",
    'a "quoted" one',
    "two\nlines",
    "two\r\nlines",
    "φ = 0.1",
    " spaces ",
    "element-wise",
    "",
]
NUMBERS_AS_TEXT = ["12", "-3", "1e5", "1.", "0.5", "nan", "inf", "-inf", "1_000", "0x10", "Infinity"]
LITERALS_AS_TEXT = ["True", "None", '"12"', "[1, 2]", "[0, 1)", "{"]


@pytest.mark.parametrize("value", [*FLOATS, *OTHERS, *TEXTS, *NUMBERS_AS_TEXT, *LITERALS_AS_TEXT], ids=repr)
def test_every_value_comes_back_with_its_type(tmp_path, value):
    path = tmp_path / "x.csv"
    path.write_bytes(tables.table([{"n": 1, "value": value, "last": "end"}], {"value": None}))
    (row,) = tables.read(path)
    assert list(row) == ["n", "value", "last"]
    assert _bits(row["value"]) == _bits(value)


def test_what_a_row_does_not_have_it_does_not_get(tmp_path):
    rows = [{"n": 1, "a": 0.5}, {"n": 2, "b": None}, {"n": 3, "a": 2.0, "b": "x"}]
    (tmp_path / "x.csv").write_bytes(tables.table(rows))
    assert tables.read(tmp_path / "x.csv") == rows
    (tmp_path / "none.csv").write_bytes(tables.table([]))
    assert tables.read(tmp_path / "none.csv") == []


def test_plain_values_look_plain():
    assert (
        tables.table([{"n": 4, "x": 0.25, "ok": True, "s": "a", "none": None}])
        == b"n,x,ok,s,none\n4,0.25,True,a,None\n"
    )


def test_floats_have_nine_significant_digits_also_in_lists_and_counts_have_all():
    third = 1 / 3
    row = {
        "x": third,
        "list": [third, 1, "a", {"y": third}],
        "count": 1280001024.0,
        "large": 1.23456789012e15,
        "tiny": 5e-324,
        "integer": 12345678901234567890,
        "low": third,
        "exact": third,
    }
    assert tables.table([row], {"low": 4, "exact": None}).decode().splitlines()[1] == (
        '0.333333333,"[0.333333333, 1, ""a"", {""y"": 0.333333333}]",1280001024.0,1234567890000000.0,5e-324,'
        "12345678901234567890,0.3333,0.3333333333333333"
    )


@given(st.lists(st.floats(), min_size=1), st.sampled_from([3, 9, None]))
def test_a_table_that_is_read_and_written_again_has_the_same_bytes(values, digits):
    chosen = {"x": digits}
    data = tables.table([{"x": value, "all": values} for value in values], chosen)
    assert tables.table(tables.parse(data, "x"), chosen) == data


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 9))
def test_rounding_is_to_the_nearest_number_of_that_many_digits(value, digits):
    result = tables.rounded(value, digits)
    if value and math.isfinite(result):
        unit = Decimal(10) ** (Decimal(value).adjusted() + 1 - digits)
        error = abs(Decimal(result) - Decimal(value))
        assert error <= unit / 2 + Decimal(math.ulp(value)) or (digits == 9 and result == value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"a,b\n1\n", "row 2 has 1 values for 2 columns"), (b'a\n"1\n', "cannot read"), (b"a\n\xff\n", "cannot read")],
)
def test_a_table_that_is_none_is_refused(tmp_path, content, complaint):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        tables.read(tmp_path / "x.csv")
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        tables.read(tmp_path / "nowhere.csv")
