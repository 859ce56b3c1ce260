"""What an H200 returned, as it is recorded, computed again here: counts, and digests of the hardware's own outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile import FACTOR

from fpemu.gpu import digests, emulation, instructions, records, streams

FILE = Path(__file__).parent / "data" / "verified" / "h200_instructions.json"
RECORD = json.loads(FILE.read_text())
ROWS = {row.name: row for row in instructions.rows("sm_90a")}
ENTRIES = RECORD["instructions"]
KINDS = list(streams.CLASSES)
entries = pytest.mark.parametrize("entry", ENTRIES, ids=[entry["instruction"] for entry in ENTRIES])


def test_every_instruction_of_hopper_is_recorded_with_a_billion_outputs():
    assert sorted(entry["instruction"] for entry in ENTRIES) == sorted(ROWS)
    assert RECORD["classes"] == KINDS
    assert RECORD["sample_tests"] == digests.SAMPLE
    assert RECORD["device"].keys() == {"gpu", "arch", "driver_cuda", "nvrtc", "driver"}
    assert FILE.stat().st_size < 60_000
    assert records.text(RECORD) == FILE.read_text()


@entries
def test_a_record_agrees_with_itself(entry):
    row = ROWS[entry["instruction"]]
    tile = instructions.instruction(row)
    assert (entry["ptx"], entry["tile"]) == (tile.ptx, [tile.m, tile.n])
    assert entry["outputs"] >= 10**9
    assert entry["outputs"] % (tile.m * tile.n * len(KINDS)) == 0
    assert all(list(entry[name]) == KINDS for name in ("digests", "samples", "trial"))
    assert entry["mismatches"] == sum(mismatches for mismatches, _ in entry["differ"].values())
    assert entry["nan_codes"] == sum(nan_codes for _, nan_codes in entry["differ"].values())
    assert entry["mismatches"] == entry["nan_codes"] * digests.any_nan(row)  # nothing differs but payloads of NaN
    assert set(entry["differ"]) == ({"any-bits"} if digests.any_nan(row) else set())


@entries
def test_the_first_tests_of_every_class_give_the_recorded_digest(entry):
    row = ROWS[entry["instruction"]]
    found = {kind: records.replay(row, kind, RECORD["seed"], entry["tile"]) for kind in KINDS}
    assert found == entry["samples"]


@pytest.fixture(scope="module")
def library():
    return emulation.HostLibrary(list(ROWS.values()))


@pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
@entries
def test_digests_of_the_hardware_are_those_of_the_emulation(entry, library):
    """A class of each instruction, all with FPEMU_EXAMPLES above 1: the CUDA text compiled for this processor."""
    row, (m, n) = ROWS[entry["instruction"]], entry["tile"]
    tests = entry["trial_outputs"] // (len(KINDS) * m * n)
    turn = ENTRIES.index(entry)
    for kind in KINDS if FACTOR > 1 else [KINDS[turn % len(KINDS)]]:
        if kind in entry["differ"]:
            continue
        drawn = [recipe.numbers() for recipe in streams.recipes(row, kind)]
        A, B, C = (
            library.generate(row, which, drawn[which], RECORD["seed"], KINDS.index(kind), 0, tests, rows)
            for which, rows in enumerate((m, n, m))
        )
        assert f"{digests.digest(library.execute(A, B, C, row)):016x}" == entry["trial"][kind], kind
