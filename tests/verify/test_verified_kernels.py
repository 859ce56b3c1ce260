"""What the kernels returned on an H200, computed again here: tests/data/verified/h200_kernels.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile import FACTOR

from fpemu import schemes
from fpemu.cli import main
from fpemu.verify import kernelcases, kernelrecord, kernelsuite

FILE = Path(__file__).parents[1] / "data" / "verified" / "h200_kernels.json"
RECORD = json.loads(FILE.read_text()) if FILE.is_file() else {"variants": []}
ENTRIES = RECORD["variants"]
pytestmark = pytest.mark.skipif(not ENTRIES, reason=f"{FILE.name} is not there")
EVERY = 9  # of the variants with options so many are computed again, one; with FPEMU_EXAMPLES above 1 all


def test_every_scheme_is_recorded_with_every_option_and_no_output_differs():
    recorded = {entry["variant"].partition("(")[0] for entry in ENTRIES}
    names = [name for name in [*schemes.names(), *kernelcases.OTHERS] if name in recorded]
    assert set(names) >= set(schemes.names())
    variants = kernelcases.variants(names, RECORD["architecture"])
    assert [entry["variant"] for entry in ENTRIES] == [str(v) for v in variants]
    assert (RECORD["mismatches"], RECORD["failed"]) == (0, 0)
    for entry, variant in zip(ENTRIES, variants, strict=True):
        assert entry["products"] == len(kernelcases.numbers(variant, RECORD["seed"], RECORD["cases"]))
        assert entry["mismatches"] == entry.get("failed", 0) == 0
        assert variant.options or not entry.get("without")
        assert variant.options or entry["products"] - entry.get("errors", 0) >= 30
        assert entry["outputs"] or entry.get("without") == entry["products"] or entry["errors"] == entry["products"]
    assert {entry["variant"] for entry in ENTRIES} >= set(schemes.names())
    assert RECORD["cases"] >= len(kernelcases.SIZES)
    for name in ("products", "outputs", "on_cpu", "errors", "without"):
        assert RECORD[name] == sum(entry.get(name, 0) for entry in ENTRIES)
    assert kernelrecord.text(RECORD) == FILE.read_text()
    assert FILE.stat().st_size < 400_000


def some():
    """Small products of every scheme as published, and of some with options."""
    published = [entry for entry in ENTRIES if "(" not in entry["variant"]]
    others = [entry for entry in ENTRIES if "(" in entry["variant"]]
    return [*published, *others[:: 1 if FACTOR > 1 else EVERY]]


@pytest.mark.parametrize("entry", some(), ids=lambda entry: entry["variant"])
def test_small_products_have_the_recorded_digests(entry):
    for kept in entry.get("replay", [])[: None if FACTOR > 1 else 1]:
        assert kernelsuite.replay(entry, kept, RECORD["seed"], RECORD["architecture"]) == kept["digest"], kept


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shapes", "0"], "--shapes is 0: a number from 1 on"),
        (["--jobs", "0"], "--jobs is 0: a number from 1 on"),
        (["--schemes", ","], "--schemes ',' names no scheme"),
        (["--record", "kernels.txt"], "the record is written as .json"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_what_is_wrong_with_the_command_is_said_in_one_line(arguments, says, capsys):
    assert main(["verify", "kernels", *arguments]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
