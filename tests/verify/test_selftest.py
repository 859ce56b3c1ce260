"""``fpemu verify emulation``: what an H200 computed, as recorded, computed again; and the command on a stand-in."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hostile import FACTOR

from fpemu import devices, digests, mma
from fpemu.cli import main
from fpemu.gpu.runtime import device
from fpemu.mma import operand_streams as streams
from fpemu.mma.spec import ARITHMETICS
from fpemu.verify import scheme_trials, selftest, speed, trials

FILE = Path(__file__).parents[1] / "data" / "verified" / "h200_emulation.json"
RECORD = json.loads(FILE.read_text()) if FILE.exists() else None
recorded = pytest.mark.skipif(RECORD is None, reason=f"no GPU's record is there yet: {FILE.name}")
VOLTA = "volta mma m8n8k4 fp16->fp32"
PAIR = "ootomo on hopper"
RATE = {"what": "some", "spec": VOLTA, "n": 8, "ms": 0.5, "rate": 7.0, "checked": 4, "mismatches": 0}


@pytest.fixture
def in_numpy(monkeypatch):
    """Products of schemes by the readable form, which compiles nothing."""
    monkeypatch.setattr(devices, "choose", lambda device, backend: "numpy")


@pytest.fixture
def readable(monkeypatch):
    """A GPU, and the compiled form too, that compute as NumPy's form does; `bends` change the GPU's codes."""
    compute, bends = lru_cache(maxsize=40)(trials.compute), []

    def computed(case, form):
        codes = compute(case, "numpy")
        for bend in bends if form == "cuda" else []:
            codes = bend(case, codes)
        return codes

    monkeypatch.setattr(trials, "compute", computed)
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "arch", lambda: "sm_90a")
    monkeypatch.setattr(device, "describe", lambda: {"gpu": "Stand-in"})
    monkeypatch.setattr(device, "compile_all", lambda texts, arch: None)
    return bends


# --- the record of an H200
@recorded
def test_an_h200_computed_what_the_cpu_does_on_every_spec_and_scheme():
    assert RECORD["device"]["gpu"] == "NVIDIA H200"
    assert (RECORD["mismatches"], RECORD["failed"]) == (0, 0)
    entries = [*RECORD["specs"], *RECORD["schemes"]]
    assert RECORD["outputs"] == sum(entry["outputs"] for entry in entries) > 10**6
    assert len(RECORD["specs"]) >= 146 + selftest.CUSTOM
    assert len(RECORD["schemes"]) >= 178
    assert all(row["mismatches"] == 0 and row["checked"] >= 10**5 for row in RECORD["rates"])
    assert {trials.spec(rate["spec"], 0).arithmetic for rate in RECORD["rates"]} == set(ARITHMETICS)
    assert selftest.text(RECORD) == FILE.read_text()
    assert FILE.stat().st_size < 120_000


@recorded
@pytest.mark.parametrize("tenth", range(10))
def test_cases_of_the_record_have_the_recorded_digests(tenth):
    """One case of every third spec, all of all with FPEMU_EXAMPLES above 1."""
    entries = RECORD["specs"] if FACTOR > 1 else RECORD["specs"][::3]
    for position, entry in enumerate(entries[tenth::10]):
        for number in range(trials.CASES) if FACTOR > 1 else [(position + tenth) % trials.CASES]:
            found = selftest.replay(entry, number, RECORD["seed"])
            assert found in (None, entry["digests"][number]), f"{entry['name']}, case {number}"


@recorded
def test_products_of_schemes_have_the_recorded_digests(in_numpy):
    chosen = RECORD["schemes"] if FACTOR > 1 else RECORD["schemes"][3::20]
    for entry in chosen:
        for number, digest in enumerate(entry["digests"]):
            D = scheme_trials.product(entry["name"], number, RECORD["seed"], "cpu")
            assert f"{digests.digest(D):016x}" == digest, f"{entry['name']}, product {number}"


# --- cases
def test_a_case_is_a_function_of_seed_spec_and_number():
    row = mma.spec("ampere", "tf32")
    for number in range(trials.CASES):
        one, same, other = (trials.case(row, number, seed) for seed in (1, 1, 2))
        assert one == same != other
        first, second = (trials.operands(case) for case in (one, same))
        assert [x.tobytes() for pair in first[0] for x in pair] == [x.tobytes() for pair in second[0] for x in pair]


def test_the_cases_cover_the_classes_the_orders_and_the_layouts():
    cases = [trials.case(trials.spec(name, 3), n, 3) for name in selftest.names(True) for n in range(trials.CASES)]
    assert {kind for case in cases for kind in case.kinds} == set(streams.CLASSES)
    assert {layout for case in cases for layout in case.layouts} == set(trials.LAYOUTS)
    assert {case.start for case in cases} == {case.undone for case in cases} == {True, False}
    assert {type(case.order).__name__ for case in cases} == {"KOrder", "Chain", "Sum"}
    orders = [case.order for case in cases if isinstance(case.order, mma.KOrder)]
    assert {order.join for order in orders} == {"ascending", "descending", "pairwise"}
    assert all(any(getattr(order, name) for order in orders) for name in ("split", "tile", "residue_first", "promote"))
    assert {case.terms for case in cases} == {1, 2, 3}


def test_drawn_specs_are_of_every_arithmetic_and_can_be_made_again():
    rows = [trials.spec(f"{trials.CUSTOM}{i}", 1) for i in range(selftest.CUSTOM)]
    assert {row.arithmetic for row in rows} == set(ARITHMETICS) - {"integer"}  # which has nothing to draw
    assert [mma.MmaSpec(**trials.fields(row)) for row in rows] == rows
    assert len({str(trials.fields(row)) for row in rows}) == len(rows)


def test_layouts_change_no_value():
    x = np.arange(24.0).reshape(2, 3, 4)
    for layout in trials.LAYOUTS:
        assert np.array_equal(trials._laid(x, layout), x)
    assert not trials._laid(x, "spaced").flags.contiguous
    assert min(trials._laid(x, "reversed").strides) < 0


# --- comparing
def test_the_compiled_form_is_tested_where_there_is_no_gpu_and_its_record_replays():
    found = selftest.Findings(5, "cpu")
    found.specs += selftest.check_specs([VOLTA, f"{trials.CUSTOM}1"], 5, on="cpu", jobs=1)
    found.schemes += selftest.check_schemes([PAIR], 5, on="cpu", jobs=1)
    assert found.ok
    assert found.outputs > 1000
    made = json.loads(selftest.text(selftest.record(found)))
    assert selftest.text(made) == selftest.text(selftest.record(found) | {"date": made["date"]})
    for entry in made["specs"]:
        for number, digest in enumerate(entry["digests"]):
            assert selftest.replay(entry, number, 5) in (None, digest)
            assert selftest.replay(entry, number, 6) != digest
    assert made["schemes"][0]["digests"] == list(found.schemes[0].digests)


def test_processes_beside_one_another_find_the_same(readable):
    names = [VOLTA, "hopper wgmma m64nNk32 int8->int32"]
    assert list(selftest.check_specs(names, 2, jobs=2)) == list(selftest.check_specs(names, 2, jobs=1))


def test_one_output_that_differs_is_found_and_placed(readable):
    def bend(case, codes):
        codes = codes.copy()
        codes.reshape(-1)[-1] ^= case.terms > 1
        return codes

    readable.append(bend)
    (found,) = selftest.check_specs([VOLTA], 3, jobs=1)
    assert (found.mismatches, found.failed, found.ok) == (1, 0, False)
    assert len(found.first) == 2  # against either form
    assert "case 1 (" in found.first[0]
    assert "1 of" in found.first[0]


def test_a_case_that_fails_is_one_failure(readable):
    def fail(case, codes):
        if case.lead != ((), (), ()):
            raise device.GpuError("the GPU\nis gone")
        return codes

    readable.append(fail)
    (found,) = selftest.check_specs([VOLTA], 3, jobs=1)
    assert (found.mismatches, found.failed, found.ok) == (0, 1, False)
    assert [bool(digest) for digest in found.digests] == [True, True, True, True, False, True]
    assert "GpuError: the GPU is gone" in found.first[0]


def test_an_array_of_another_shape_differs_as_a_whole(readable):
    readable.append(lambda case, codes: codes[:0] if case.terms > 1 else codes)
    (found,) = selftest.check_specs([VOLTA], 3, jobs=1)
    M, N, _ = trials.case(trials.spec(VOLTA, 3), 1, 3).sizes
    assert found.mismatches == M * N
    assert "in place of" in found.first[0]


# --- the command
@pytest.fixture
def command(readable, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(selftest, "names", lambda quick: [VOLTA, f"{trials.CUSTOM}1"])
    monkeypatch.setattr(selftest, "pairs", lambda quick: [])
    monkeypatch.setattr(speed, "rates", lambda seed: iter([RATE]))
    monkeypatch.setattr(
        speed, "crossover", lambda seed: iter([{"spec": VOLTA, "sizes": [8], "cpu": [1], "cuda": [2], "from": None}])
    )
    return readable


def test_equal_bits_give_tables_a_record_and_status_0(command, capsys):
    assert main(["verify", "emulation", "--seed", "4", "--record", "found.json"]) == 0
    out, _ = capsys.readouterr()
    assert "Stand-in" in out
    assert "instructions of the catalog" in out
    assert "at no size tried" in out
    made = json.loads(Path("found.json").read_text())
    assert (made["seed"], made["mismatches"], made["failed"]) == (4, 0, 0)
    assert made["rates"] == [RATE]
    assert selftest.replay(made["specs"][0], 0, 4) == made["specs"][0]["digests"][0]
    assert main(["verify", "emulation", "--seed", "4", "--quick", "--json"]) == 0
    quick = json.loads(capsys.readouterr().out)
    assert (quick["specs"], quick["rates"]) == (made["specs"], [])


def test_a_difference_is_named_and_the_status_is_1(command, capsys):
    command.append(lambda case, codes: codes ^ codes.dtype.type(1))
    assert main(["verify", "emulation", "--record", "found.json"]) == 1
    err = capsys.readouterr().err
    assert f"{VOLTA}: " in err
    assert "outputs differ" in err
    assert json.loads(Path("found.json").read_text())["mismatches"] > 0


def test_an_interrupt_keeps_what_was_found(command, capsys):
    def stop(case, codes):
        if case.spec.name != VOLTA:
            raise KeyboardInterrupt
        return codes

    command.append(stop)
    assert main(["verify", "emulation", "--record", "found.json"]) == 130
    capsys.readouterr()
    assert [entry["name"] for entry in json.loads(Path("found.json").read_text())["specs"]] == [VOLTA]


@pytest.mark.parametrize("missing", ["cuda-bindings is not installed: pip install 'fpemu[gpu]'", "no GPU here"])
def test_without_a_gpu_it_is_said_in_one_line(capsys, monkeypatch, missing):
    monkeypatch.setattr(device, "missing", lambda: missing)
    assert main(["verify", "emulation"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.count("pip install")) == ("", 1, 1)
    assert missing in err
    assert main(["verify"]) == 0
    out, err = capsys.readouterr()
    assert "Usage: fpemu verify" in out
    assert (err.count("\n"), err.count("pip install")) == (1, 1)
    assert missing in err


def test_a_group_alone_prints_its_help_and_says_nothing_where_nothing_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: None)
    for group in ("verify", "bench"):
        assert main([group]) == 0
        out, err = capsys.readouterr()
        assert f"Usage: fpemu {group}" in out
        assert err == ""
