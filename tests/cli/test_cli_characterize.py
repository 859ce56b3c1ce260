"""``fpemu characterize`` at the command line, and the fragments of an instruction."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from fpemu import InputError, gpu, mma
from fpemu.cli import main
from fpemu.gpu.instructions import fragments
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler
from tests.commands import refusal


def test_the_command_prints_a_row_and_its_evidence(capsys):
    assert main(["characterize", "--emulated", "volta mma m8n8k4 fp16->fp16", "--outputs", "500"]) == 0
    out = capsys.readouterr().out
    assert "MmaSpec('fp16', 'fp16', 'fp16', k=4, block=4, arithmetic='truncated', F=23, E0=-19, final='RNE'" in out
    assert "as in the catalogue" in out
    assert "not as in" not in out


def test_the_command_takes_a_function_and_writes_json(capsys, tmp_path):
    file = tmp_path / "unknown.py"
    file.write_text(
        "import numpy as np\n"
        "def exact(A, B, C):\n    return (C.astype('f8') + A.astype('f8') @ B.astype('f8')).astype('f4')\n"
        "def odd(A, B, C):\n    return exact(A, B, C) * np.float32(1.5)\n"
        "def fails(A, B, C):\n    raise RuntimeError('no')\n"
        "def ragged(A, B, C):\n    return [[1], [1, 2]]\n"
    )
    common = ["--formats", "e4m3,e4m3,fp32", "--k", "2", "--json", "-n", "100"]
    assert main(["characterize", "--callable", f"{file}:odd", *common]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["row"] is None
    assert printed.err.startswith("fpemu: odd: no arithmetic known")
    for name, message in (("fails", "RuntimeError: no"), ("ragged", "the result of ragged is no array")):
        assert message in refusal(capsys, "characterize", "--callable", f"{file}:{name}", *common)


def test_a_terminal_shows_the_instruction_being_characterized(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["characterize", "--emulated", "volta mma m8n8k4 fp16->fp16", "--outputs", "500"]) == 0
    assert "volta mma m8n8k4 fp16->fp16: running" in capsys.readouterr().err


def test_without_a_gpu_the_command_says_what_needs_none(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "available", lambda: "no NVIDIA GPU is usable here")
    assert main(["characterize"]) == 2
    assert "--emulated" in capsys.readouterr().err


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


# --- fragments
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
