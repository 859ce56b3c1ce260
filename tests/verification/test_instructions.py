"""``fpemu verify instructions``: messages without a GPU; output, record and exit status on a stand-in for one."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpemu import _system, gpu, mma
from fpemu.cli import main
from fpemu.errors import GpuError
from fpemu.gpu.instructions import run
from fpemu.gpu.runtime import device
from fpemu.mma import codes
from fpemu.mma import operand_streams as streams
from fpemu.verification import instructions, records
from fpemu.verification.records import Outcome, Record
from tests.commands import refusal
from tests.simulated import Buffer

ROWS = [mma.spec("hopper", "fp16"), mma.spec("hopper", "fp64"), mma.spec("hopper", "int8")]
DEVICE = {"gpu": "Stand-in", "arch": "sm_90a", "driver_cuda": "13.0", "nvrtc": "13.0"}
KINDS = ("any-bits", "near-one")
TESTS = 12


class StandIn:
    """A GPU whose instructions follow the arithmetic of `models`; `flipped` ones invert fp64's last bit."""

    def __init__(self):
        self.models, self.flipped = {}, set()
        self.calls = []
        self.stop_before = None

    def execute(self, A, B, C, spec):
        D = mma.execute(A, B, C, self.models.get(spec.name, spec), backend="numpy")
        return (D.view(np.uint64) ^ np.uint64(1)).view(np.float64) if spec.name in self.flipped else D

    def verify(self, spec, *, outputs, seed):
        if spec.name == self.stop_before:
            raise KeyboardInterrupt
        self.calls.append((spec.name, outputs, seed))
        tile = run.instruction(spec)
        facts = {"ptx": tile.ptx, "tile": [tile.m, tile.n], "samples": {}, "examples": {}}
        outcome = Outcome(spec.name, len(KINDS), facts=facts)
        for kind in KINDS:
            operands = streams.operands(spec, kind, seed, 0, TESTS, tile.m, tile.n)
            expected = instructions.execute_codes(*operands, spec)
            result = instructions.execute_codes(*operands, self.models.get(spec.name, spec))
            if spec.name in self.flipped:
                result = result ^ np.uint64(1)
            wrong = np.flatnonzero(expected != result)
            outcome.outputs, outcome.mismatches = outcome.outputs + expected.size, outcome.mismatches + wrong.size
            outcome.facts["samples"][kind] = _system.digest_text(result[:4])
            if wrong.size:
                outcome.facts["examples"][kind] = int(wrong[0]), int(result.reshape(-1)[wrong[0]])
        return outcome


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    machine = StandIn()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: DEVICE)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process, in which the stand-in is
    monkeypatch.setattr(run, "rows", lambda arch=None: ROWS)
    monkeypatch.setattr(instructions, "verify", machine.verify)
    monkeypatch.setattr(gpu, "execute", machine.execute)
    return machine


COMMAND = ("verify", "instructions")


def test_wrong_names_are_refused_before_anything_runs(capsys, stand_in):
    assert "did you mean 'hopper" in refusal(capsys, *COMMAND, "hopper mma m8n8k4 fp64->fp32")
    assert stand_in.calls == []


# --- runs
def test_equal_outputs_give_a_table_and_status_0(capsys, stand_in):
    assert main(["verify", "instructions", "--outputs", "1e3", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert stand_in.calls == [(row.name, 1000, 5) for row in ROWS]
    for row in ROWS:
        tile = run.instruction(row)
        line = next(line for line in out.splitlines() if line.strip().startswith(row.name))
        assert line.split()[-4:] == [str(len(KINDS)), f"{len(KINDS) * TESTS * tile.m * tile.n:,}", "0", "0"]


@pytest.mark.parametrize(
    ("row", "model", "shown"),
    [
        (0, {"F": 24}, ["class near-one", "truncated below 2^", "hardware 0x"]),
        (1, None, ["class near-one", "hardware 0x"]),  # the last bit, NaN with payloads among the outputs
        (1, {"payloads": False}, ["class any-bits", "hardware 0xfff8000000000000 = nan"]),
    ],
)
def test_a_mismatch_is_reduced_and_shown_and_the_status_is_1(capsys, stand_in, row, model, shown):
    spec = ROWS[row]
    if model is None:
        stand_in.flipped.add(spec.name)
    else:
        stand_in.models[spec.name] = spec.replace(**model)
    assert main([*COMMAND, spec.name, "--outputs", "1e3", "--record", "result.json"]) == 1
    out, err = capsys.readouterr()
    assert spec.name in out
    assert [text for text in shown if text not in err] == []
    (outcome,) = Record.read("result.json").outcomes
    assert outcome.mismatches > 0


def test_the_emulation_computes_the_recorded_digests(capsys, stand_in):
    command = ["verify", "instructions", "--outputs", "1e3", "--seed", "9"]
    assert main([*command, "--record", "result.json"]) == 0
    capsys.readouterr()
    record = Record.read("result.json")
    assert record.text() == Path("result.json").read_text()
    assert record.device == {**DEVICE, "driver": records.driver()}
    assert (record.seed, record.facts["sample_tests"]) == (9, 4)
    for row, outcome in zip(ROWS, record.outcomes, strict=True):
        assert outcome.ok
        for kind in KINDS:
            assert outcome.facts["samples"][kind] == instructions.replay(row, kind, 9, outcome.facts["tile"])
    assert main([*command, "--json"]) == 0
    Path("printed.json").write_text(capsys.readouterr().out)
    assert Record.read("printed.json").outcomes == record.outcomes


def test_a_run_that_fails_is_a_failed_group(capsys, stand_in, monkeypatch):
    def broken(*_, **__):
        raise GpuError("CUDA: CUDA_ERROR_ILLEGAL_ADDRESS\n(an address)")

    monkeypatch.setattr(instructions, "verify", broken)
    assert main(["verify", "instructions", "--outputs", "1e3"]) == 1
    err = capsys.readouterr().err
    assert err.count("GpuError: CUDA: CUDA_ERROR_ILLEGAL_ADDRESS (an address)") == len(ROWS)
    assert "Traceback" not in err


# --- the checks of a run
class Kernels:
    """The kernels of verify.cu on this processor; `lost` names what their comparison does not count."""

    def __init__(self, bench, lost=""):
        self.bench, self.lost = bench, lost

    def step(self, name, blocks, threads, *arguments):
        return partial(self.launch, name, *arguments)

    def launch(self, name, *arguments):
        bench = self.bench
        buffers = zip(bench.buffers, bench.shapes, bench.dtypes, strict=True)
        arrays = [buffer.array((TESTS, *shape), dtype) for buffer, shape, dtype in buffers]
        D = arrays[3].reshape(-1)
        if name == "spoil":
            D[arguments[1]] ^= 1
            bench.buffers[3].memory[: D.nbytes] = D.view(np.uint8)
            return
        first, tests, totals = arguments[4:7]
        D = D[: int(tests) * bench.m * bench.n]
        expected = instructions.execute_codes(*arrays[:3], bench.spec).reshape(-1)[: D.size]
        wrong = np.flatnonzero(expected != D) + int(first) * bench.m * bench.n
        counts = {"outputs": D.size, "mismatches": wrong.size, "digest": _system.digest(D)}
        counts["first"] = int(wrong[0]) if wrong.size else instructions._NONE
        counts |= {"mismatches": 0} if self.lost == "mismatches" else {self.lost: 5} if self.lost else {}
        words = np.array([counts.get(name, 0) for name in instructions.COUNTS], np.uint64)
        totals.memory[: words.nbytes] = words.view(np.uint8)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(instructions, "Buffer", Buffer)
    monkeypatch.setattr(instructions.plan, "queue", lambda step: step())
    spec = mma.spec("hopper", "fp16", instruction="mma")
    made: Any = object.__new__(instructions.Bench)
    made.spec = spec
    made.seed, made.m, made.n, made.detected = 3, 16, 8, False
    made.dtypes = [codes.code_dtype(f) for f in (*streams.formats(spec), spec.d_format)]
    made.shapes = [(16, spec.k), (8, spec.k), (16, 8), (16, 8)]
    operands = streams.operands(spec, "mixed", 3, 0, TESTS, 16, 8)
    made.buffers = [Buffer.of(codes) for codes in (*operands, instructions.execute_codes(*operands, spec))]
    made.kernels = Kernels(made)
    return made


def test_the_first_tests_of_a_run_are_computed_and_counted_again(bench):
    assert bench._check("mixed", TESTS) == _system.digest_text(bench.buffers[3].array((4, 16, 8), np.uint32))
    bench.kernels.launch("spoil", bench.buffers[3], 7)
    bench._check("mixed", TESTS)  # the counts agree on the mismatch
    for lost in ("outputs", "mismatches", "digest"):
        bench.kernels.lost = lost
        with pytest.raises(GpuError, match="the CPU counts"):
            bench._check("mixed", TESTS)
    for name, buffer in zip("ABC", bench.buffers, strict=False):
        buffer.memory[5] ^= 1
        with pytest.raises(GpuError, match=f"drew other codes for {name}"):
            bench._check("mixed", TESTS)
        buffer.memory[5] ^= 1


def test_a_run_whose_comparison_finds_nothing_fails(bench):
    bench._change_one(2 * TESTS, TESTS)
    assert bench.detected
    bench.kernels.launch("spoil", bench.buffers[3], TESTS * 16 * 8 * 2 // 3)
    for lost in ("mismatches", "first"):
        bench.kernels.lost = lost
        with pytest.raises(GpuError, match="a deliberately changed output was not detected"):
            bench._change_one(2 * TESTS, TESTS)
        bench.kernels.launch("spoil", bench.buffers[3], TESTS * 16 * 8 * 2 // 3)
