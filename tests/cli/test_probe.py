"""``fpemu reveal`` and ``fpemu characterize``: what they print, write and refuse."""

from __future__ import annotations

import json

import pytest

from fpemu import gpu, mma, probing
from fpemu.cli import main
from fpemu.mma import KOrder
from fpemu.probing import kit
from tests.commands import refusal

PROBED = """
import random
import numpy as np
import fpemu

S = fpemu.mma.spec("A100", "fp16")

def split(A, B):
    assert A.dtype == B.dtype == np.float16 and A.flags.c_contiguous and B.flags.c_contiguous
    return fpemu.mma.gemm(A, B, None, S, fpemu.mma.KOrder(split=40))

def half(A, B):
    return split(A, B).astype(np.float16)

def lanes(A, B):
    P = A.astype(np.float32)[:, :, None] * B.astype(np.float32)[None]
    D = [P[:, i] for i in range(4)]
    for k in range(4, A.shape[1]):
        D[k % 4] = D[k % 4] + P[:, k]
    return (D[0] + D[1]) + (D[2] + D[3])

def stored(A, B):
    return split(A, B) if B.flags.c_contiguous else fpemu.mma.gemm(A, B, None, S)

def kahan(A, B):
    total = np.zeros((len(A), B.shape[1]), np.float32)
    lost = total.copy()
    for k in range(A.shape[1]):
        y = A[:, k : k + 1].astype(np.float32) * B[k : k + 1].astype(np.float32) - lost
        after = total + y
        lost, total = (after - total) - y, after
    return total

def exact(A, B):
    return (A.astype(np.float64) @ B.astype(np.float64)).astype(np.float32)

def columns(A, B):
    D = split(A, B)
    D[:, 2:] = fpemu.mma.gemm(A, B[:, 2:], None, S)
    return D

def rows(A, B):
    D = split(A, B)
    D[3:] = fpemu.mma.gemm(A[3:], B, None, S)
    return D

def atomics(A, B):
    return split(A, B) + np.float32(random.random()) * np.float32(1e-3)

def raises(A, B):
    raise RuntimeError("an illegal\\naddress")

def flushes(A, B):
    return split(np.where(abs(A) < 2.0**-14, np.float16(0), A), B)

def shape(A, B):
    return np.zeros(3)

def words(A, B):
    return np.full((len(A), B.shape[1]), "a")

def changes(A, B):
    A[0] = 0
    return np.zeros((len(A), B.shape[1]))

def nothing(A, B):
    A @ B

def brain(A, B):
    import ml_dtypes
    D = fpemu.mma.gemm(A, B, None, fpemu.mma.spec("A100", "bf16"), fpemu.mma.KOrder(split=40))
    return D.astype(ml_dtypes.bfloat16)

def nan(A, B):
    return np.full((len(A), B.shape[1]), np.nan)

no_function = 3
"""


@pytest.fixture
def probed(workdir):
    (workdir / "probed.py").write_text(PROBED)
    return workdir


def run(capsys, *words):
    status = main(["reveal", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# --- the command
def test_an_emulated_gemm_needs_no_gpu(capsys):
    status, out, err = run(capsys, "--emulated", "H200", "--order", "split=128", "--k", 1000, "--check")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:4] == [
        "KOrder(split=128)",
        "sum of 8, from left to right",
        "├─ 7 × chain of 8 blocks of 16: k = 0..127, 128..255 ... 768..895",
        "└─ chain of 6 blocks of 16, 1 of 8: k = 896..999",
    ]
    assert lines[4].startswith("K = 1000: ")
    assert lines[5].startswith("check: 64 outputs of random operands are equal")


def test_a_function_is_revealed_kept_drawn_and_checked(probed, capsys):
    words = "probed.py:split --shape 33x2x100 --hardware A100 --check --json o.json --draw o.png"
    status, out, err = run(capsys, *words.split())
    assert status == 0
    assert out.startswith("KOrder(split=40)\n")
    assert "66 outputs of random operands are equal" in out
    assert err.split() == ["wrote", "o.json", "wrote", "o.png"]
    assert probing.load("o.json") == KOrder(split=40)
    record = json.loads((probed / "o.json").read_text())
    assert record["k"] == 100
    assert record["about"]["shape"] == [33, 2, 100]
    assert (probed / "o.png").read_bytes().startswith(b"\x89PNG")
    _, out, err = run(capsys, "probed.py:split", "--k", 100)  # nothing is known of it
    assert out.startswith("KOrder(split=40)\n")
    assert "D is 100×1, by default" in err
    for name, formats in (("half", "fp16,fp16"), ("brain", "bf16,bf16")):  # brain: of another library's type
        status, out, _ = run(capsys, f"probed.py:{name}", "--formats", formats, "--k", 100, "--check")
        assert (status, out.splitlines()[0]) == (0, "KOrder(split=40)")


def test_a_tree_without_a_name_is_kept_and_emulated(probed, capsys):
    status, out, _ = run(capsys, "probed.py:lanes", "--k", 64, "--check", "--json", "lanes.json")
    assert status == 0
    tree = "sum of 4, pairwise\n└─ 4 × chain of 16 fma: k = 0, 4 ... 60; then from 1, 2, 3\n"
    assert out.startswith("no KOrder is found for this order; fpemu.mma.gemm takes the tree itself\n" + tree)
    assert tree in run(capsys, "--emulated", "A100", "--order", "lanes.json", "--k", 64)[1]


def test_an_order_that_depends_on_the_place_is_reported(probed, capsys):
    status, out, err = run(capsys, "probed.py:columns", "--shape", "8x4x100")
    assert (status, out.splitlines()[0]) == (0, "KOrder(split=40)")
    assert "--at 2" in err
    assert run(capsys, "probed.py:columns", "--shape", "8x4x100", "--at", 3)[1].startswith("KOrder()\n")
    for at, order in (("2,1", "KOrder(split=40)"), ("7,2", "KOrder()")):
        assert run(capsys, "probed.py:columns", "--shape", "8x4x100", "--at", at)[1].splitlines()[0] == order
    status, out, _ = run(capsys, "probed.py:columns", "--shape", "8x4x100", "--check", "--hardware", "A100")
    assert status == 1
    assert "not column 0: the order depends on the position" in out


@pytest.mark.parametrize(("layout", "order"), [(None, "KOrder(split=40)"), ("TN", "KOrder()")])
def test_the_layout_of_a_functions_operands(probed, capsys, layout, order):
    words = ["probed.py:stored", "--shape", "8x4x100", *(["--layout", layout] if layout else [])]
    assert run(capsys, *words)[1].splitlines()[0] == order


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exact", "no unit is lost"),
        ("kahan", "does more than add in that order"),
        ("rows", "rows of D disagree"),
        ("atomics", "not deterministic: two calls with the same operands differ in "),
        ("flushes", "flushes subnormal"),
        ("raises", "raised RuntimeError for A (20, 50) and B (50, 3) in float16: an illegal address"),
        ("shape", "returned an array of shape (3,)"),
        ("words", "the result of probed.py:words holds <U1, not numbers"),
        ("nothing", "returned None"),
        ("changes", "changes its operand A"),
        ("nan", "returns Inf or NaN"),
        ("no_function", "int, not a function"),
        ("kahn", "did you mean 'kahan'"),
    ],
)
def test_what_adds_by_no_tree_is_refused_with_the_reason(probed, capsys, name, message):
    status, out, err = run(capsys, f"probed.py:{name}", "--shape", "20x3", "--k", 50)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


# --- cuBLAS, on a stand-in for PyTorch


# --- characterize
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


def test_a_kits_results_are_explained_and_kept_as_a_row(capsys, tmp_path):
    assert main(["characterize", "--kit", "c"]) == 0
    assert capsys.readouterr().out == kit.source("c")
    path, rows = str(tmp_path / "R.txt"), str(tmp_path / "unit.json")
    kit.write(path, {"mma.m8n8k4": mma.spec("V100", "fp16", "fp16"), "odd": mma.spec("H200", "int8")}, "a GPU")
    assert main(["characterize", path, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["fields"]["block"], first["fields"]["E0"], first["mismatches"]) == (4, -19, 0)
    assert second["fields"]["arithmetic"] == "integer"
    assert main(["catalog", "add", path, rows, "--part", "m8n8k4"]) == 0
    assert capsys.readouterr().out == f"{rows}: 1 rows of a GPU\n"
    assert (mma.spec(rows, "fp16").shape, mma.spec(rows, "fp16").E0) == ("m8n8k4", -19)
    assert "no instruction whose name" in refusal(capsys, "catalog", "add", path, rows, "--part", "wgmma")
    text = (tmp_path / "R.txt").read_text()
    (tmp_path / "R.txt").write_text(text[:-40])
    assert "is truncated" in refusal(capsys, "characterize", path)


def test_without_a_gpu_the_command_says_what_needs_none(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "available", lambda: "no NVIDIA GPU is usable here")
    assert main(["characterize"]) == 2
    assert "--emulated" in capsys.readouterr().err
