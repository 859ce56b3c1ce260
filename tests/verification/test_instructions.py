"""``fpemu verify instructions`` with the kernels of verify.cu on this processor: output, record, status, its checks."""

from __future__ import annotations

import os
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
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
from fpemu.verification.records import Record
from tests.commands import refusal
from tests.simulated import Buffer

ROWS = [mma.spec("hopper", "fp16"), mma.spec("hopper", "fp64"), mma.spec("hopper", "int8")]
DEVICE = {"gpu": "Stand-in", "arch": "sm_90a", "driver_cuda": "13.0", "nvrtc": "13.0"}
KINDS = ("any-bits", "near-one")
WRONG: dict[str, Any] = {"F": 24}


class Machine:
    """A GPU whose instructions follow the arithmetic of `models`; `flipped` ones invert fp64's last bit.

    `altered` is an operand that is drawn wrong, and `lost` is a count that the comparison leaves at 0.
    """

    def __init__(self):
        self.models, self.flipped, self.altered, self.lost = {}, set(), "", ""
        self.modules = []

    def execute(self, A, B, C, spec):
        D = mma.execute(A, B, C, self.models.get(spec.name, spec), backend="numpy")
        return (D.view(np.uint64) ^ np.uint64(1)).view(np.float64) if spec.name in self.flipped else D

    def module(self, source, name):
        self.modules.append(name)
        spec = next(row for row in ROWS if row.name in name)
        spec = spec.replace(**WRONG) if name.endswith("(changed)") else spec

        def step(kernel, blocks, threads, *arguments):
            return partial(getattr(self, f"launch_{kernel}"), spec, *arguments)

        return SimpleNamespace(step=step)

    def arrays(self, spec, buffers, tests):
        """The first tests of A, B, C and D, of which some are given."""
        tile = run.instruction(spec)
        shapes = ((tile.m, spec.k), (tile.n, spec.k), (tile.m, tile.n), (tile.m, tile.n))
        dtypes = map(codes.code_dtype, (*streams.formats(spec), spec.d_format))
        for buffer, shape, dtype in zip(buffers, shapes, dtypes, strict=False):
            full = (int(tests), *shape)
            yield buffer.memory[: prod(full) * dtype.itemsize].view(dtype).reshape(full)

    def launch_generate(self, spec, A, B, C, numbers, seed, index, first, tests):
        kind, tile = list(streams.CLASSES)[index], run.instruction(spec)
        drawn = streams.operands(spec, kind, int(seed), int(first), int(tests), tile.m, tile.n)
        for name, x, y in zip("ABC", self.arrays(spec, (A, B, C), tests), drawn, strict=True):
            x[...] = y ^ y.dtype.type(name == self.altered)

    def launch_execute(self, spec, A, B, C, D, *tiles):
        *operands, d = self.arrays(spec, (A, B, C, D), tiles[-1])
        result = instructions.execute_codes(*operands, self.models.get(spec.name, spec))
        d[...] = result ^ result.dtype.type(spec.name in self.flipped)

    def launch_compare(self, spec, A, B, C, D, first, tests, totals, examples, mismatches, most):
        *operands, d = self.arrays(spec, (A, B, C, D), tests)
        begin, d = int(first) * d[0].size, d.reshape(-1)
        wrong = np.flatnonzero(instructions.execute_codes(*operands, spec).reshape(-1) != d)
        counts = {"outputs": d.size, "mismatches": wrong.size, "digest": _system.digest(d, first=begin)}
        added = np.array([counts.get(name, 0) * (name != self.lost) for name in instructions.COUNTS], np.uint64)
        words = totals.memory[: added.nbytes].view(np.uint64)
        words += added
        if wrong.size and self.lost != "first":
            place = instructions.COUNTS.index("first")
            words[place] = min(int(words[place]), begin + int(wrong[0]))
        shown = np.array([(begin + i, d[i]) for i in wrong[:most]], np.uint64).reshape(-1).view(np.uint8)
        examples.memory[: shown.size] = shown

    def launch_spoil(self, spec, D, index):
        D.memory.view(codes.code_dtype(spec.d_format))[index] ^= 1


@pytest.fixture
def machine(monkeypatch, workdir):
    simulated = Machine()
    for name, value in (("missing", None), ("describe", DEVICE), ("arch", "sm_90a")):
        monkeypatch.setattr(device, name, lambda value=value: value)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process, in which the simulation is
    monkeypatch.setattr(run, "rows", lambda arch=None: ROWS)
    monkeypatch.setattr(gpu, "execute", simulated.execute)
    monkeypatch.setattr(streams, "CLASSES", {kind: streams.CLASSES[kind] for kind in KINDS})
    monkeypatch.setattr(instructions, "Module", simulated.module)
    monkeypatch.setattr(instructions, "Buffer", Buffer)
    monkeypatch.setattr(instructions, "_CHUNK", 2**11)
    monkeypatch.setattr(instructions.plan, "queue", lambda step: step())
    return simulated


COMMAND = ("verify", "instructions")


def test_wrong_names_are_refused_before_anything_runs(capsys, machine):
    assert "did you mean 'hopper" in refusal(capsys, *COMMAND, "hopper mma m8n8k4 fp64->fp32")
    assert machine.modules == []


# --- runs
def test_equal_outputs_give_a_table_and_status_0(capsys, machine):
    assert main([*COMMAND, "--outputs", "5e3", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    for row in ROWS:
        tile = run.instruction(row)
        tests = -(-5000 // (len(KINDS) * tile.m * tile.n))  # more than a chunk of them
        line = next(line for line in out.splitlines() if line.strip().startswith(row.name))
        assert line.split()[-4:] == [str(len(KINDS)), f"{len(KINDS) * tests * tile.m * tile.n:,}", "0", "0"]


@pytest.mark.parametrize(
    ("row", "model", "shown"),
    [
        (0, WRONG, ["class near-one", "truncated below 2^", "hardware 0x"]),
        (1, None, ["class near-one", "hardware 0x"]),  # the last bit, NaN with payloads among the outputs
        (1, {"payloads": False}, ["class any-bits", "hardware 0xfff8000000000000 = nan"]),
    ],
)
def test_a_mismatch_is_reduced_and_shown_and_the_status_is_1(capsys, machine, row, model, shown):
    spec = ROWS[row]
    if model is None:
        machine.flipped.add(spec.name)
    else:
        machine.models[spec.name] = spec.replace(**model)
    assert main([*COMMAND, spec.name, "--outputs", "2e3", "--record", "result.json"]) == 1
    out, err = capsys.readouterr()
    assert spec.name in out
    assert [text for text in shown if text not in err] == []
    (outcome,) = Record.read("result.json").outcomes
    assert outcome.mismatches > 0


def test_the_emulation_computes_the_recorded_digests(capsys, machine):
    command = [*COMMAND, "--outputs", "5e3", "--seed", "9"]
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
    printed = Record.read("printed.json").outcomes
    assert [(o.outputs, o.digest, o.digests) for o in printed] == [
        (o.outputs, o.digest, o.digests) for o in record.outcomes
    ]


def test_a_run_that_fails_is_a_failed_group(capsys, machine, monkeypatch):
    def broken(*_, **__):
        raise GpuError("CUDA: CUDA_ERROR_ILLEGAL_ADDRESS\n(an address)")

    monkeypatch.setattr(instructions, "Module", broken)
    assert main(["verify", "instructions", "--outputs", "2e3"]) == 1
    err = capsys.readouterr().err
    assert err.count("GpuError: CUDA: CUDA_ERROR_ILLEGAL_ADDRESS (an address)") == len(ROWS)
    assert "Traceback" not in err


# --- the checks of a run
@pytest.mark.parametrize(
    ("lost", "altered", "model", "message"),
    [
        ("outputs", "", {}, "the CPU counts"),
        ("digest", "", {}, "the CPU counts"),
        ("mismatches", "", WRONG, "the CPU counts"),
        *(("", name, {}, f"the GPU drew other codes for {name}") for name in "ABC"),
        ("mismatches", "", {}, "a deliberately changed output was not detected"),
        ("first", "", {}, "a deliberately changed output was not detected"),
    ],
)
def test_a_run_whose_counts_or_operands_are_wrong_fails(machine, lost, altered, model, message):
    machine.lost, machine.altered = lost, altered
    machine.models[ROWS[0].name] = ROWS[0].replace(**model)
    with pytest.raises(GpuError, match=message):
        instructions.verify(ROWS[0], outputs=2000, seed=3)


def test_mismatches_are_counted_by_class_and_the_first_of_each_is_kept(machine):
    machine.models[ROWS[0].name] = ROWS[0].replace(**WRONG)
    outcome = instructions.verify(ROWS[0], outputs=5000, seed=3)
    assert set(outcome.facts["differ"]) == set(outcome.facts["examples"]) == set(KINDS)
    assert outcome.mismatches == sum(wrong for wrong, _ in outcome.facts["differ"].values())
    changed = instructions.verify(ROWS[0].replace(**WRONG), outputs=5000, seed=3)
    assert (changed.mismatches, changed.digest) == (0, outcome.digest)
    for mismatch in instructions.failures(outcome, ROWS[0], 3):
        assert mismatch.hardware != mismatch.emulated
