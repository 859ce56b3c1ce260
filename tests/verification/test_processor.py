"""Instructions of the processor here against their emulation; elsewhere their machine code and their operands alone."""

from __future__ import annotations

import json
import platform

import numpy as np
import pytest

from fpemu import mma
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.mma import operand_streams as streams
from fpemu.verification import processor, reproducers

ROWS = [row for row in mma.catalog.rows() if row.architecture == "x86"]
named = pytest.mark.parametrize("spec", ROWS, ids=lambda row: row.instruction)


def needs(spec):
    flag = processor._CODES[spec.instruction].flag
    if flag not in processor.flags():
        pytest.skip(f"the processor here has no {flag}")


@named
@pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM assembles for the processor here")
def test_the_machine_code_of_every_instruction_is_assembled(spec):
    function, _ = processor._machine_code(processor.source(spec))
    assert function is not None


@named
def test_the_compiled_generator_draws_the_operands_of_numpy(spec):
    n = processor._CODES[spec.instruction].columns
    for kind in streams.CLASSES:
        first, seed = 2**33 - 1, 0xFEDCBA9876543210
        drawn = processor.operands(spec, kind, seed, first, 2)
        for x, y in zip(drawn, streams.operands(spec, kind, seed, first, 2, processor.ROWS, n), strict=True):
            assert x.dtype == y.dtype
            assert np.array_equal(x, y), kind


@named
def test_the_processor_returns_the_emulated_bits(spec):
    needs(spec)
    outcome = processor.verify(spec, outputs=200_000)
    assert (outcome.mismatches, outcome.first) == (0, [])
    assert outcome.outputs >= 200_000
    assert spec.is_integer or outcome.counts["nan"] > 1000
    assert list(outcome.digests) == list(streams.CLASSES)


def test_another_arithmetic_is_detected_and_shown():
    spec = mma.spec("x86", "fp32", instruction="vfmaddps").replace(nan_code=0x7FC00000)
    needs(spec)
    outcome = processor.verify(spec, outputs=20_000)
    assert 0 < outcome.mismatches < outcome.counts["nan"]
    kind, (index, code) = next(iter(outcome.facts["examples"].items()))
    mismatch = reproducers.locate(spec, kind, 0, outcome.facts["tile"], index, code)
    small = reproducers.shrink(mismatch, processor.execute)
    assert (small.hardware, small.emulated) == (0xFFC00000, 0x7FC00000)


def test_the_command_compares_the_instructions_of_the_processor(capsys, monkeypatch):
    needs(mma.spec("x86", "fp32"))
    assert main(["verify", "instructions", "x86 vfmaddps", "--outputs", "1e4", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["suite"] == "instructions"
    assert [outcome["group"] for outcome in record["outcomes"]] == ["x86 vfmaddps m1n8k1 fp32->fp32"]
    assert main(["verify", "instructions", "x86 vfmadps"]) == 2
    assert "unknown instruction of this processor" in capsys.readouterr().err
    monkeypatch.setattr(processor, "flags", frozenset)
    assert main(["verify", "instructions", "x86"]) == 2
    assert "the processor here has no instruction of the catalogue" in capsys.readouterr().err
    with pytest.raises(InputError, match="has no fma"):
        processor.execute_tiles(*processor.operands(ROWS[4], "uniform", 0, 0, 1), mma.spec("x86", "fp32"))
