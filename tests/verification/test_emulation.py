"""``fpemu verify emulation``: an H200's results computed again from its record, and the command on a stand-in."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from fpemu import mma
from fpemu.cli import main
from fpemu.gpu.runtime import device
from fpemu.mma import operand_streams as streams
from fpemu.mma.spec import ARITHMETICS
from fpemu.verification import emulation
from fpemu.verification.cases import LAYOUTS, arrange
from fpemu.verification.emulation import CASES, CUSTOM, DRAWN, Emulation
from fpemu.verification.records import Record
from fpemu.verification.suite import Group
from tests.hostile import FACTOR

FILE = Path(__file__).parents[1] / "data" / "verified" / "h200_emulation.json"
RECORD = Record.read(FILE)
SUITE = Emulation(RECORD.seed)
SPECS = [o for o in RECORD.outcomes if " on " not in o.group and o.cases]
SCHEMES = [o for o in RECORD.outcomes if " on " in o.group]
VOLTA = "volta mma m8n8k4 fp16->fp32"
PAIR = "ootomo on hopper"


@pytest.fixture
def stand_in(monkeypatch):
    """A GPU and a compiled implementation that compute as NumPy's does; `changes` alter the GPU's codes."""
    compute = lru_cache(maxsize=40)(emulation.compute)
    changes: list = []

    def computed(case, implementation):
        codes = compute(case, "compiled" if isinstance(case.subject, str) else "numpy")
        for change in changes if implementation == "cuda" else []:
            codes = change(case, codes)
        return codes

    monkeypatch.setattr(emulation, "compute", computed)
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: {"gpu": "Stand-in"})
    return changes


# --- the record of an H200
def test_an_h200_computed_the_cpus_bits_for_every_specification_and_scheme():
    assert RECORD.device["gpu"] == "NVIDIA H200"
    assert RECORD.ok
    assert RECORD.text() == FILE.read_text()
    assert FILE.stat().st_size < 130_000
    assert RECORD.total("outputs") > 10**6
    assert (len(SPECS), len(SCHEMES)) >= (146 + DRAWN, 178)
    # the record is older than the block-scaled instructions
    on_gpus = {name for name, row in ARITHMETICS.items() if row.cuda is not None and not row.scaled}
    assert {emulation.spec(o.group, RECORD.seed).arithmetic for o in SPECS} == on_gpus


@pytest.mark.parametrize("tenth", range(10))
def test_cases_of_the_record_have_the_recorded_digests(tenth):
    """One case of every third specification, all of all with FPEMU_EXAMPLES above 1."""
    outcomes = SPECS if FACTOR > 1 else SPECS[::3]
    for position, outcome in enumerate(outcomes[tenth::10]):
        for number in range(CASES) if FACTOR > 1 else [(position + tenth) % CASES]:
            digest = SUITE.replay(RECORD, outcome, str(number))
            assert digest == outcome.digests[str(number)], f"{outcome.group}, case {number}"
        if "spec" in outcome.facts:
            assert mma.MmaSpec(**outcome.facts["spec"]) == emulation.spec(outcome.group, RECORD.seed)


def test_products_of_schemes_have_the_recorded_digests():
    for outcome in SCHEMES if FACTOR > 1 else SCHEMES[3::20]:
        for number, digest in outcome.digests.items():
            assert SUITE.replay(RECORD, outcome, number) == digest, f"{outcome.group}, product {number}"


# --- cases
def test_a_case_is_a_function_of_seed_specification_and_number():
    row = mma.spec("ampere", "tf32")
    for number in range(CASES):
        one, same, other = (emulation.spec_case(row, number, seed) for seed in (1, 1, 2))
        assert one == same != other
        first, second = (emulation.operands(case) for case in (one, same))
        assert [x.tobytes() for pair in first[0] for x in pair] == [x.tobytes() for pair in second[0] for x in pair]


def test_the_cases_cover_the_classes_the_orders_and_the_layouts():
    groups = [group for group in Emulation(3, quick=True).groups if " on " not in group]
    cases = [Emulation(3).case(group, n) for group in groups for n in range(CASES)]
    assert {kind for case in cases for kind in case.kinds} == set(streams.CLASSES)
    assert {layout for case in cases for layout in case.layouts} == set(emulation.LAYOUTS)
    assert {bool(case.beta) for case in cases} == {case.options["cancelled"] for case in cases} == {True, False}
    assert {type(case.order).__name__ for case in cases} == {"KOrder", "Chain", "Sum"}
    orders = [case.order for case in cases if isinstance(case.order, mma.KOrder)]
    assert {order.join for order in orders} == {"ascending", "descending", "pairwise"}
    assert all(any(getattr(order, name) for order in orders) for name in ("split", "tile", "residue_first", "promote"))
    assert {case.options["terms"] for case in cases} == {1, 2, 3}


def test_drawn_specifications_are_of_every_arithmetic_and_can_be_made_again():
    rows = [emulation.spec(f"{CUSTOM}{i}", 1) for i in range(DRAWN)]
    drawn = {row.name for row in ARITHMETICS.values() if row.cuda is not None and not row.scaled}
    assert {row.arithmetic for row in rows} == drawn - {"integer"}  # which has nothing to draw
    assert [emulation.spec(f"{CUSTOM}{i}", 1) for i in range(DRAWN)] == rows
    assert len({repr(row) for row in rows}) == len(rows)


def test_a_layout_has_the_strides_of_its_name_and_changes_no_value():
    x = np.arange(24.0).reshape(2, 3, 4)
    for layout in LAYOUTS[:-1]:
        assert np.array_equal(arrange(x, layout), x)
    assert np.array_equal(arrange(x, "repeated"), np.repeat(x[:, :1], 3, axis=1))
    arrays = {layout: arrange(np.zeros((2, 3, 4), np.float16), layout) for layout in LAYOUTS}
    assert {layout: tuple(s // 2 for s in x.strides) for layout, x in arrays.items()} == {
        "rows": (12, 4, 1),
        "columns": (12, 1, 3),
        "rows padded": (27, 9, 1),
        "columns padded": (32, 1, 8),
        "spaced": (72, 24, 3),
        "reversed": (12, -4, -1),
        "repeated": (4, 0, 1),
    }


# --- comparisons
def test_the_compiled_implementation_and_schemes_agree_with_numpy_and_replay(stand_in, monkeypatch):
    monkeypatch.setattr(emulation, "compute_scheme", lambda case, on, f=emulation.compute_scheme: f(case, "cpu"))
    suite = Emulation(5)
    outcomes = [suite.run(group) for group in (VOLTA, f"{CUSTOM}1", PAIR)]
    assert all(outcome.ok for outcome in outcomes)
    assert sum(outcome.outputs for outcome in outcomes) > 1000
    record = suite.record(outcomes)
    for outcome in outcomes:
        for number, digest in outcome.digests.items():
            assert suite.replay(record, outcome, number) == digest
            assert Emulation(6).replay(record, outcome, number) != digest


def test_the_command_prints_a_table_and_writes_a_record(stand_in, monkeypatch, workdir, capsys):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    groups = [(name, Group(range(CASES), "instructions")) for name in (VOLTA, f"{CUSTOM}1")]
    monkeypatch.setattr(Emulation, "groups", property(lambda self: dict(groups[: 1 if self.quick else 2])))
    assert main(["verify", "emulation", "--seed", "4", "--record", "result.json"]) == 0
    out, _ = capsys.readouterr()
    assert "Stand-in" in out
    assert "instructions" in out
    record = Record.read("result.json")
    assert (record.seed, record.ok, len(record.outcomes)) == (4, True, 2)
    assert Emulation(4).replay(record, record.outcomes[0], "0") == record.outcomes[0].digests["0"]
    assert main(["verify", "emulation", "--seed", "4", "--quick", "--json"]) == 0
    Path("quick.json").write_text(capsys.readouterr().out)
    assert Record.read("quick.json").outcomes == record.outcomes[:1]
    stand_in.append(lambda case, codes: codes ^ codes.dtype.type(1))
    assert main(["verify", "emulation", "--record", "other.json"]) == 1
    err = capsys.readouterr().err
    assert f"{VOLTA}: " in err
    assert "outputs differ" in err
    assert Record.read("other.json").total("mismatches") > 0
