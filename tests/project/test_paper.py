"""The numbers of the paper and of README follow from the records of verifications; references have their DOI."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fpemu import library

ROOT = Path(__file__).resolve().parents[2]
PAPER = " ".join((ROOT / "paper" / "paper.md").read_text(encoding="utf-8").split())
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _totals(name):
    record = json.loads((ROOT / "tests" / "data" / "verified" / f"h200_{name}.json").read_text(encoding="utf-8"))
    assert record["totals"]["mismatches"] == 0
    return record["totals"]


def _power(count):
    """A count in two digits, as README and the paper write it: ("8.6", 7)."""
    digits, exponent = f"{count:.1e}".split("e")
    return digits, int(exponent)


def _variants():
    totals = _totals("kernels")
    return f"{totals['groups']} variants", _power(totals["outputs"])


NUMBERS = {
    "instructions": lambda: (f"{_totals('instructions')['groups']} matrix instructions", ()),
    "variants": _variants,
    "tall and skinny": lambda: (
        "tall and skinny",
        _power(sum(_totals(name)["outputs"] for name in ("batched", "batched_bulk", "tallskinny"))),
    ),
    "orders": lambda: (f"{sum(1 for _ in library.orders('cublas')):,} products", ()),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_numbers_are_those_of_the_records(name):
    words, power = NUMBERS[name]()
    for text in (PAPER, README):
        assert words in text
    if power:
        digits, exponent = power
        assert rf"${digits} \cdot 10^{exponent}$" in PAPER
        assert re.search(rf"^\|.*{re.escape(words)}.*\| {digits}·10\^{exponent} \|$", README, re.MULTILINE)


def test_every_reference_is_cited_and_has_its_doi():
    entries = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", (ROOT / "paper" / "paper.bib").read_text(), re.S | re.M))
    assert set(re.findall(r"@([a-z]+\d*)", PAPER)) == set(entries)
    without = {name for name, text in entries.items() if not re.search(r"^ *doi = \{10\.\d{4,}/\S+\}", text, re.M)}
    assert without == {"gfloat"}  # a program without a DOI
