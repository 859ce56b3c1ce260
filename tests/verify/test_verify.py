"""``fpemu verify``: how it refuses without a GPU, and, on a stand-in for one, what it prints, records and returns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fpemu import digests, gpu, mma
from fpemu.cli import main
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import device
from fpemu.mma import operand_streams as streams
from fpemu.verify import instructions as verify
from fpemu.verify import records

ROWS = [mma.spec("hopper", "fp16"), mma.spec("hopper", "fp64"), mma.spec("hopper", "int8")]
DEVICE = {"gpu": "Stand-in", "arch": "sm_90a", "driver_cuda": "13.0", "nvrtc": "13.0"}
KINDS = ("any-bits", "near-one")
TESTS = 12


class StandIn:
    """A GPU whose instructions compute what `models` say, some fp64's with their last bit flipped."""

    def __init__(self):
        self.models, self.flipped = {}, set()
        self.asked = []
        self.stop_before = None

    def execute(self, A, B, C, spec):
        D = mma.execute(A, B, C, self.models.get(spec.name, spec), backend="numpy")
        return (D.view(np.uint64) ^ np.uint64(1)).view(np.float64) if spec.name in self.flipped else D

    def verify(self, spec, *, outputs, seed, progress):
        if spec.name == self.stop_before:
            raise KeyboardInterrupt
        self.asked.append((spec.name, outputs, seed))
        tile, classes = instructions.instruction(spec), []
        for kind in KINDS:
            given = streams.operands(spec, kind, seed, 0, TESTS, tile.m, tile.n)
            ours = verify.execute_codes(*given, spec)
            theirs = verify.execute_codes(*given, self.models.get(spec.name, spec))
            if spec.name in self.flipped:
                theirs = theirs ^ np.uint64(1)
            wrong = np.flatnonzero(ours != theirs)
            examples = tuple((int(i), int(theirs.reshape(-1)[i])) for i in wrong)
            first = int(wrong[0]) if wrong.size else None
            progress(kind, ours.size)
            classes.append(
                verify.ClassCounts(
                    kind,
                    ours.size,
                    int(wrong.size),
                    0,
                    first,
                    digests.text(theirs),
                    0,
                    0,
                    0,
                    0,
                    examples,
                    digests.text(theirs[:4]),
                )
            )
        return verify.Verification(spec.name, tile.ptx, (tile.m, tile.n), seed, tuple(classes), 0.5, 7, DEVICE)


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    made = StandIn()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "arch", lambda: "sm_90a")
    monkeypatch.setattr(device, "describe", lambda: DEVICE)
    monkeypatch.setattr(device, "compile_all", lambda texts, arch: None)
    monkeypatch.setattr(instructions, "rows", lambda arch=None: ROWS)
    monkeypatch.setattr(verify, "verify", made.verify)
    monkeypatch.setattr(gpu, "execute", made.execute)
    return made


def refusal(capsys, *arguments):
    """The one line on stderr of a command that must exit with status 2 and print nothing else."""
    assert main(["verify", "instructions", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fpemu: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


# --- refusals
@pytest.mark.skipif(gpu.available() is None, reason="there is a GPU here")
def test_without_a_gpu_one_line_says_what_is_missing_and_how_to_install(capsys, tmp_path):
    told = refusal(capsys, "--record", str(tmp_path / "found.json"))
    assert "pip install 'fpemu[gpu]'" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "missing", ["cuda-bindings is not installed: pip install 'fpemu[gpu]'", "no NVIDIA GPU is usable here (no driver)"]
)
def test_a_missing_package_and_a_missing_gpu_are_each_named(capsys, monkeypatch, missing):
    monkeypatch.setattr(device, "missing", lambda: missing)
    told = refusal(capsys)
    assert missing in told
    assert told.count("pip install 'fpemu[gpu]'") == 1


@pytest.mark.parametrize("outputs", ["0", "-3", "nan", "inf", "1e17"])
def test_a_count_that_is_none_is_refused(capsys, stand_in, outputs):
    assert "--outputs" in refusal(capsys, "--outputs", outputs)


def test_wrong_names_are_refused_before_anything_runs(capsys, stand_in):
    assert "did you mean 'hopper" in refusal(capsys, "hopper mma m8n8k4 fp64->fp32")
    assert ".json" in refusal(capsys, "--record", "found.csv")
    assert "no folder" in refusal(capsys, "--record", "nowhere/found.json")
    assert stand_in.asked == []


# --- runs
def test_equal_outputs_give_a_table_and_status_0(capsys, stand_in):
    assert main(["verify", "instructions", "--outputs", "1e3", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert stand_in.asked == [(row.name, 1000, 5) for row in ROWS]
    for row in ROWS:
        tile = instructions.instruction(row)
        line = next(line for line in out.splitlines() if line.strip().startswith(row.name))
        assert line.split()[-3:] == [f"{len(KINDS) * TESTS * tile.m * tile.n:,}", "0", "0.50"]
    assert "NaN" not in out


def test_a_part_of_a_name_chooses(capsys, stand_in):
    assert main(["verify", "instructions", "INT8", "--outputs", "10"]) == 0
    assert [name for name, _, _ in stand_in.asked] == [ROWS[2].name]


def test_a_difference_is_made_small_and_shown_and_the_status_is_1(capsys, stand_in):
    stand_in.models[ROWS[0].name] = ROWS[0].replace(F=24)
    assert main(["verify", "instructions", "fp16", "--outputs", "1e3", "--record", "found.json"]) == 1
    out, err = capsys.readouterr()
    assert ROWS[0].name in out
    assert "hardware 0x" in err
    assert "cut below 2^" in err
    (entry,) = json.loads(Path("found.json").read_text())["instructions"]
    assert entry["mismatches"] > 0
    assert "near-one" in entry["differ"]


def test_a_difference_among_nan_with_payloads_is_found(capsys, stand_in):
    stand_in.flipped.add(ROWS[1].name)
    assert main(["verify", "instructions", "fp64", "--outputs", "1e3"]) == 1
    err = capsys.readouterr().err
    assert "hardware 0x" in err
    assert "class near-one" in err


def test_another_code_of_a_nan_is_a_difference(capsys, stand_in):
    stand_in.models[ROWS[1].name] = ROWS[1].replace(payloads=False)
    assert main(["verify", "instructions", "fp64", "--outputs", "1e3"]) == 1
    err = capsys.readouterr().err
    assert "class any-bits" in err
    assert "hardware 0xfff8000000000000 = nan" in err


def test_the_record_is_what_the_emulation_computes_again(capsys, stand_in):
    assert main(["verify", "instructions", "--outputs", "1e3", "--seed", "9", "--record", "found.json"]) == 0
    capsys.readouterr()
    text = Path("found.json").read_text()
    made = json.loads(text)
    assert records.text(made) == text
    assert made["device"] == {**DEVICE, "driver": records.driver()}
    assert (made["seed"], made["sample_tests"]) == (9, 4)
    for row, entry in zip(ROWS, made["instructions"], strict=True):
        assert entry["mismatches"] == entry["nan_codes"] == 0
        for kind in KINDS:
            assert entry["samples"][kind] == records.replay(row, kind, 9, entry["tile"])
    assert main(["verify", "instructions", "--outputs", "1e3", "--seed", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["instructions"] == made["instructions"]


def test_an_interrupt_keeps_what_is_recorded(capsys, stand_in):
    stand_in.stop_before = ROWS[2].name
    assert main(["verify", "instructions", "--outputs", "1e3", "--record", "found.json"]) == 130
    err = capsys.readouterr().err
    assert "2 of 3 instructions done; they are in found.json" in err
    kept = json.loads(Path("found.json").read_text())["instructions"]
    assert [entry["instruction"] for entry in kept] == [row.name for row in ROWS[:2]]


def test_a_run_that_fails_is_one_line_and_status_1(capsys, stand_in, monkeypatch):
    def broken(*_, **__):
        raise device.GpuError("CUDA: CUDA_ERROR_ILLEGAL_ADDRESS\n(an address)")

    monkeypatch.setattr(verify, "verify", broken)
    assert main(["verify", "instructions", "--outputs", "1e3"]) == 1
    err = capsys.readouterr().err
    assert "fpemu: CUDA: CUDA_ERROR_ILLEGAL_ADDRESS (an address)" in err
    assert "Traceback" not in err
