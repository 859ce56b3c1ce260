"""Products of the kernels on an H200 computed again: tests/data/verified/h200_kernels.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from fpemu import schemes
from fpemu.verification import kernels
from fpemu.verification.kernels import Kernels
from fpemu.verification.records import Record
from tests.hostile import FACTOR

FILE = Path(__file__).parents[1] / "data" / "verified" / "h200_kernels.json"
RECORD = Record.read(FILE)
SUITE = Kernels(RECORD.seed, RECORD.options["cases"])
EVERY = 9  # one of so many variants with options is computed again; with FPEMU_EXAMPLES above 1 all


def test_every_scheme_is_recorded_with_every_option_and_no_output_differs():
    recorded = {entry.group.partition("(")[0] for entry in RECORD.outcomes}
    names = [name for name in [*schemes.names(), *kernels.OTHERS] if name in recorded]
    assert set(names) >= set(schemes.names())
    variants = kernels.variants(names, RECORD.facts["architecture"])
    assert [entry.group for entry in RECORD.outcomes] == [str(v) for v in variants]
    assert {entry.group for entry in RECORD.outcomes} >= set(schemes.names())
    assert RECORD.ok
    for entry, variant in zip(RECORD.outcomes, variants, strict=True):
        errors, skipped = entry.counts.get("errors", 0), entry.counts.get("no kernel", 0)
        assert entry.cases == len(SUITE.numbers(variant))
        assert variant.options or not skipped
        assert variant.options or entry.cases - errors >= 30
        assert entry.outputs or entry.cases in (skipped, errors)
    assert RECORD.options["cases"] >= len(kernels.SIZES)
    assert RECORD.total("outputs") > 42_000_000
    assert RECORD.text() == FILE.read_text()
    assert FILE.stat().st_size < 400_000


def some():
    """Small products of every scheme as published, and of some with options."""
    published = [entry for entry in RECORD.outcomes if "(" not in entry.group]
    others = [entry for entry in RECORD.outcomes if "(" in entry.group]
    return [*published, *others[:: 1 if FACTOR > 1 else EVERY]]


@pytest.mark.parametrize("entry", some(), ids=lambda entry: entry.group)
def test_small_products_have_the_recorded_digests(entry):
    for number, digest in list(entry.digests.items())[: None if FACTOR > 1 else 1]:
        assert SUITE.replay(RECORD, entry, number) == digest, number
