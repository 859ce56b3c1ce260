"""The fragments of an instruction: the shape and the layout that the registers of a warp determine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fpemu import InputError, gpu, mma
from fpemu.cli import main
from fpemu.gpu.instructions import fragments
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler


def model(spec, scramble=False):
    """The instruction on slots, by the layout of PTX or by another one, and the layout."""
    ins, held = instructions.instruction(spec), list(fragments.expected(spec))
    if scramble:
        held = [x[np.random.default_rng(1).permutation(len(x))] for x in held]
    A, B, D = held

    def run(a, b):
        x, y = np.zeros((len(a), ins.m, ins.k), np.float32), np.zeros((len(b), ins.k, ins.n), np.float32)
        x[:, A[:, 0], A[:, 1]], y[:, B[:, 0], B[:, 1]] = a, b
        return (x @ y)[:, D[:, 0], D[:, 1]]

    return run, held


@pytest.mark.parametrize("scramble", [False, True])
def test_fragments_are_found_whatever_the_layout(scramble):
    for spec in (mma.spec("hopper", "fp16", "fp16", "mma", 8), mma.spec("hopper", "fp64"), mma.spec("T4", "int8")):
        run, held = model(spec, scramble)
        found = fragments.find(spec, run)
        ins = instructions.instruction(spec)
        assert (found.m, found.n, found.k) == (ins.m, ins.n, ins.k)
        assert fragments.agrees(found, spec) != scramble
        for mine, theirs in zip((found.a, found.b, found.d), held, strict=True):
            for i in (0, 1):  # the same slots together, by whatever name
                assert len({*zip(mine[:, i].tolist(), theirs[:, i].tolist(), strict=True)}) == len(set(theirs[:, i]))


def test_answers_of_no_product_are_no_fragments():
    spec = mma.spec("A100", "fp16", "fp32", "mma", 8)
    run, _ = model(spec)
    with pytest.raises(InputError, match="rows and columns"):
        fragments.find(spec, lambda a, b: run(a, b) + run(a, b)[:, ::-1])
    with pytest.raises(InputError, match=r"mma\.sync"):
        fragments.find(mma.spec("hopper", "fp16", "fp32", "wgmma"))


@pytest.mark.skipif(compiler.compiler_missing() is not None, reason="no NVRTC")
def test_the_kernel_of_fragments_compiles():
    for spec in {str(r.a_format): r for r in instructions.rows("sm_80")}.values():
        assert compiler.compile(fragments.source(spec), "sm_80", name=spec.name)[:4] == b"\x7fELF"


def test_on_a_gpu_the_shape_of_an_instruction_is_found_too(capsys, monkeypatch):
    row = mma.spec("A100", "tf32", "fp32", "mma", 4)
    find = fragments.find
    monkeypatch.setattr(gpu, "available", lambda: None)
    monkeypatch.setattr(gpu, "execute", lambda A, B, C, spec: mma.execute(A, B, C, spec, backend="numpy"))
    monkeypatch.setattr(instructions, "rows", lambda arch=None: [row])
    monkeypatch.setattr(fragments, "find", lambda spec: find(spec, model(spec)[0]))
    assert main(["characterize", "tf32", "--json", "-n", "100"]) == 0
    record = json.loads(capsys.readouterr().out)[0]
    assert record["fragments"] == {"shape": "m16n8k4", "probes": 480, "as_used": True}
    assert record["catalog"] == {}
    assert record["fields"]["F"] == 24
