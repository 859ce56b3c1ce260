"""Tables of TOML and JSON as frozen dataclasses: every kind of field, and what is refused with its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from fpemu.arguments import read_table
from fpemu.errors import InputError


@dataclass(frozen=True)
class Unit:
    text: str

    def __post_init__(self):
        if not self.text.isalpha():
            raise InputError(f"{self.text!r} is no unit")


@dataclass(frozen=True)
class Part:
    name: str
    size: float
    sides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    kind: Literal["a", "b"]
    count: int | None = None
    unit: Unit | None = None
    value: float | Literal["inf"] = 0.0
    done: bool = False
    parts: tuple[Part, ...] = ()
    peaks: Mapping[str, float] = field(default_factory=dict)
    rest: Any = None


def test_every_kind_of_field_is_read():
    content = {"kind": "b", "count": 3, "unit": "Hz", "value": "inf", "done": True, "rest": [1, {}]}
    content |= {"parts": [{"name": "x", "size": 1, "sides": [2, 3]}], "peaks": {"fp16": 2}}
    table = read_table(Table, content, "f.toml")
    assert table == Table("b", 3, Unit("Hz"), "inf", True, (Part("x", 1.0, (2, 3)),), {"fp16": 2.0}, [1, {}])
    assert [type(number) for number in (table.parts[0].size, table.peaks["fp16"])] == [float, float]
    assert read_table(Table, {"kind": "a", "count": None}, "f.toml") == Table("a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "f.toml is not a table of fields"),
        ({}, "f.toml: kind is missing"),
        ({"kind": "a", "cuont": 1}, "f.toml: unknown field 'cuont': did you mean 'count'"),
        ({"kind": "c"}, "f.toml: kind: unknown value 'c'"),
        ({"kind": "a", "count": True}, "f.toml: count is True, not an integer"),
        ({"kind": "a", "count": 1.0}, "f.toml: count is 1.0, not an integer"),
        ({"kind": "a", "value": 10**400}, "f.toml: value: unknown value"),
        ({"kind": "a", "done": 1}, "f.toml: done is 1, not true or false"),
        ({"kind": "a", "unit": "7"}, "f.toml: unit: '7' is no unit"),
        ({"kind": "a", "parts": {}}, "f.toml: parts is {}, not a list"),
        ({"kind": "a", "parts": [1]}, "f.toml: parts 0"),
        ({"kind": "a", "parts": [{"name": "x"}]}, "f.toml: parts 'x': size is missing"),
        ({"kind": "a", "parts": [{"size": 1}]}, "f.toml: parts 0: name is missing"),
        ({"kind": "a", "parts": [{"name": "x", "size": "big"}]}, "f.toml: parts 'x': size is 'big', not a number"),
        ({"kind": "a", "peaks": 1}, "f.toml: peaks is 1, not a table"),
        ({"kind": "a", "peaks": {"fp16": "x"}}, "f.toml: peaks, fp16 is 'x', not a number"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(content, message):
    with pytest.raises(InputError) as raised:
        read_table(Table, content, "f.toml")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
