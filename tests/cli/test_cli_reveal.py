"""``fpemu reveal``: what it prints, keeps and refuses; trees in files; trees drawn."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import mma, plotting, probing, simt
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.library import cublas
from fpemu.mma import KOrder
from fpemu.mma import tree as trees
from fpemu.mma.tree import Chain, Sum
from fpemu.plotting.trees import layout, picture
from fpemu.probing.callables import load_function
from fpemu.probing.trees import regular
from fpemu.probing.trees import text as drawing

FP16 = mma.spec("hopper", "fp16", "fp32")
FP32 = simt.SPECS["fp32"]
BLOCKS = [tuple(range(k, k + 16)) for k in range(0, 64, 16)]
LANES = Sum(tuple(Chain(tuple((k + j,) for k in range(8 * i, 512, 32) for j in range(8)), "fma") for i in range(4)))
ONTO = Chain(((64, 65), (66,)), "instruction", Sum((Chain(tuple(BLOCKS[:2])), Chain(tuple(BLOCKS[2:])))))

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
def probed(tmp_path, monkeypatch):
    (tmp_path / "probed.py").write_text(PROBED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    assert run(capsys, "probed.py:split", "--k", 100)[1].startswith("KOrder(split=40)\n")  # nothing known of it
    status, out, _ = run(capsys, "probed.py:half", "--formats", "fp16,fp16", "--k", 100, "--check")
    assert (status, out.splitlines()[0]) == (0, "KOrder(split=40)")


def test_a_result_of_another_library_s_type_is_taken(probed, capsys):
    status, out, _ = run(capsys, "probed.py:brain", "--formats", "bf16,bf16", "--k", 100, "--check")
    assert (status, out.splitlines()[0]) == (0, "KOrder(split=40)")


def test_a_tree_without_a_name_is_kept_and_emulated(probed, capsys):
    status, out, _ = run(capsys, "probed.py:lanes", "--k", 64, "--check", "--json", "lanes.json")
    assert status == 0
    tree = "sum of 4, pairwise\n└─ 4 × chain of 16 fma: k = 0, 4 ... 60; then from 1, 2, 3\n"
    assert out.startswith("no KOrder is found for this order; fpemu.mma.gemm takes the tree itself\n" + tree)
    assert tree in run(capsys, "--emulated", "A100", "--order", "lanes.json", "--k", 64)[1]


def test_the_shape_of_d_is_stated_if_it_is_not_given(probed, capsys):
    assert "D is 50×1, by default" in run(capsys, "probed.py:split", "--k", 50)[2]
    assert run(capsys, "probed.py:split", "--shape", "50x1x50")[2] == ""


def test_uneven_positions_are_shown_by_the_first_three():
    tree = Chain(((0,), *((k,) for k in range(4, 60, 8))), "fma")
    assert "k = 0, 4, 12 ... 52" in drawing(tree)


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


def test_a_users_file_hides_no_module_and_its_functions_import_what_lies_beside(tmp_path):
    (tmp_path / "json.py").write_text("def f(A, B):\n    from beside_json import g\n    return g(A, B)\n")
    (tmp_path / "beside_json.py").write_text("def g(A, B):\n    return A @ B\n")
    before = sys.modules["json"]
    path = list(sys.path)
    try:
        call = load_function(f"{tmp_path / 'json.py'}:f")
        assert sys.modules["json"] is before
        assert call(np.ones((1, 2)), np.ones((2, 1)))[0, 0] == 2
    finally:
        sys.path[:] = path


def test_on_a_terminal_the_calls_are_counted(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, err = run(capsys, "--emulated", "H200", "--order", "split=48", "--k", 100)
    assert (status, out.splitlines()[0]) == (0, "KOrder(split=48)")
    assert "probing" in err


# --- cuBLAS, on a stand-in for PyTorch
class Tensor:
    def __init__(self, x):
        self.x = x

    def to(self, what):
        return self if what == "cuda" else Tensor(self.x.astype(what))

    def t(self):
        return Tensor(self.x.T)

    def cpu(self):
        return self

    def numpy(self):
        return self.x


class Torch:
    """Adds by slices of 24, tf32 by slices of 16; remembers how B lay."""

    float16, float32, float64, bfloat16, from_numpy = np.float16, np.float32, np.float64, "bfloat16", Tensor
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=None)))
    cuda = SimpleNamespace(is_available=lambda: True, get_device_capability=lambda: (9, 0))

    def __init__(self):
        self.seen = set()

    def mm(self, a, b, out_dtype=None):
        self.seen.add("TN" if b.x.flags.f_contiguous else "NN")
        if a.x.dtype == np.float32:
            tf32 = self.backends.cuda.matmul.allow_tf32
            spec = mma.spec("hopper", "tf32", "fp32") if tf32 else FP32
            return Tensor(mma.gemm(a.x, b.x, None, spec, KOrder(split=16 if tf32 else 24)))
        D = mma.gemm(a.x, b.x, None, FP16, KOrder(split=24))
        return Tensor(D.astype(out_dtype or np.float16))


@pytest.mark.parametrize(
    ("kind", "layout", "split"), [("fp16", "TN", 24), ("fp16->fp16", "NN", 24), ("tf32", "TN", 16), ("fp32", "NN", 24)]
)
def test_cublas_is_called_with_the_named_layout_and_type(monkeypatch, capsys, kind, layout, split):
    torch = Torch()
    monkeypatch.setattr(cublas, "torch", lambda: torch)
    status, out, _ = run(capsys, "cublas", "--type", kind, "--layout", layout, "--shape", "9x7x60", "--check")
    assert (status, out.splitlines()[0]) == (0, f"KOrder(split={split})")
    assert torch.seen == {layout}
    assert torch.backends.cuda.matmul.allow_tf32 is None  # as it was before


def test_cublas_needs_pytorch_and_known_names(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in run(capsys, "cublas", "--k", 8)[2]
    assert "unknown type of product 'fp61'" in run(capsys, "cublas", "--k", 8, "--type", "fp61")[2]
    assert "known: NN, TN" in run(capsys, "cublas", "--k", 8, "--layout", "TT")[2]


# --- files
@st.composite
def some_trees(draw, ks=None):
    """Trees of any form over 0 <= k < n."""
    if ks is None:
        ks = draw(st.permutations(range(draw(st.integers(1, 24)))))
        ks = sorted(ks) if draw(st.booleans()) else ks
    form = draw(st.sampled_from(["fma", "instruction", "sum", "onto"] if len(ks) > 1 else ["fma", "instruction"]))
    if form in ("sum", "onto"):
        cut = draw(st.integers(1, len(ks) - 1))
        first, second = draw(some_trees(ks[:cut])), draw(some_trees(ks[cut:]))
        formats = st.sampled_from([None, None, "fp16"])
        if form == "sum" or isinstance(second, Sum) or second.start is not None:
            return Sum((first, second), draw(formats), draw(formats))
        return Chain(second.blocks, second.kind, first)
    size = 1 if form == "fma" else draw(st.integers(1, 8))
    return Chain(tuple(tuple(ks[i : i + size]) for i in range(0, len(ks), size)), form)


@settings(max_examples=25, deadline=None)
@given(some_trees())
def test_every_tree_comes_back_from_its_file(tmp_path_factory, tree):
    path = tmp_path_factory.getbasetemp() / "tree.json"
    probing.save(tree, path)
    assert probing.load(path) == tree
    again = trees.canonical(regular(trees.canonical(tree)))
    assert again == trees.canonical(tree)
    assert drawing(tree, 1000).count("\n") < 60


def test_an_ordinary_tree_is_a_short_file(tmp_path):
    for order in (KOrder(split=104, tile=64, residue_first=True), KOrder(promote=64), KOrder(tile=32)):
        tree = trees.from_order(order, 10000, FP16)
        probing.save(tree, tmp_path / "tree.json")
        assert probing.load(tmp_path / "tree.json") == tree
        assert (tmp_path / "tree.json").stat().st_size < 600
        probing.save(order, tmp_path / "order.json")
        assert probing.load(tmp_path / "order.json") == order


HEAD = '{"file": "fpemu summation order", "version": 1, '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not readable as JSON"),
        ("\xff\xfe", "not readable as JSON"),
        ("[1]", "not a table of fields"),
        ('{"file": "fpemu summation order", "version": 2, "order": {}}', "version"),
        (HEAD + '"k": 3}', "either"),
        (HEAD + '"order": {"splt": 3}}', "unknown field 'splt': did you mean 'split'"),
        (HEAD + '"tree": {"fma": ["0..3", 5]}}', "4 does not"),
        (HEAD + '"tree": {"fma": ["0..3"]}, "k": 5}', "k is 5"),
        (HEAD + '"tree": {"fma": ["0..3"]}, "k": "\\n"}', "k is"),
        (HEAD + '"tree": {"fma": ["3..0"]}}', "no range"),
        (HEAD + '"tree": {}}', "neither"),
        (HEAD + '"tree": ' + '{"sum": [' * 3000 + "]}" * 3000 + "}", "nested too deep"),
        (HEAD + '"order": {"split": ' + "9" * 5000 + "}}", "not readable as JSON"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, text, message):
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message) as e:
        probing.load(path)
    assert "broken.json" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(  # each part of a sum had a line
        """{"file": "fpemu summation order",
 "version": 1,
 "k": 8,
 "probes": 12,
 "tree": {"sum": [
  {"of": {"fma": [{"of": 0, "count": 2, "step": 4}]}, "count": 2, "step": 1},
  {"instruction": [["2..3"], [7, 6]]}
 ], "stored": "fp16"},
 "about": {"of": "gemm", "at": 0}}
"""
    )
    lanes = [Chain(((k,), (k + 4,)), "fma") for k in (0, 1)]
    assert probing.load(path) == Sum((*lanes, Chain(((2, 3), (7, 6)))), None, "fp16")
    path.write_text(HEAD + '"k": 8,\n "probes": 12,\n "order": {"split": 4}}\n')
    assert probing.load(path) == KOrder(split=4)


def test_files_are_whole_or_not_there(tmp_path):
    with pytest.raises(InputError, match=r"\.json"):
        probing.save(KOrder(), tmp_path / "order.txt")
    with pytest.raises(InputError, match="no folder"):
        probing.save(KOrder(), tmp_path / "no" / "order.json")
    with pytest.raises(InputError, match="order must be"):
        probing.save(3, tmp_path / "order.json")
    with pytest.raises(InputError, match="directory"):
        probing.load(tmp_path)
    with pytest.raises(InputError, match=r"order\.json"):
        probing.load(tmp_path / "order.json")
    assert not list(tmp_path.iterdir())


# --- drawings
def test_orders_are_written_as_they_are_typed():
    for order in (KOrder(), KOrder(split=8, join="pairwise"), KOrder(tile=64, residue_first=True, promote=32)):
        assert eval(str(order)) == eval(repr(order)) == order


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (trees.from_order(KOrder(), 1000, FP16), "chain of 62 blocks of 16, 1 of 8: k = 0..999"),
        (Chain(((7,),), "fma"), "product: k = 7"),
        (
            LANES,
            "sum of 4, from left to right\n└─ 4 × chain of 128 fma: k = 0..7, 32..39 ... 480..487; then from 8, 16, 24",
        ),
        (
            trees.from_order(KOrder(split=16, join="pairwise"), 512, FP16),
            "sum of 32, pairwise\n└─ 32 × chain of 1 block of 16: k = 0..15, 16..31 ... 496..511",
        ),
        (
            ONTO,
            "chain of 1 block of 2, 1 of 1: k = 64..66 onto the result of\n└─ sum of 2\n"
            "   └─ 2 × chain of 2 blocks of 16: k = 0..31, 32..63",
        ),
    ],
)
def test_a_drawing_says_what_comes_again_once(tree, text):
    assert drawing(tree) == text


def test_a_canonical_pairwise_sum_is_drawn_pairwise():
    tree = trees.from_order(KOrder(split=16, join="pairwise"), 512, FP16)
    assert trees.canonical(tree) != tree
    assert drawing(trees.canonical(tree)) == drawing(tree)


def test_long_drawings_are_cut():
    rng = np.random.default_rng(0)
    tree = Sum(tuple(Chain(((int(k),),)) for k in rng.permutation(300)))
    assert len(drawing(tree, 12).splitlines()) == 12
    assert "branches more" in drawing(tree, 12)


@pytest.mark.parametrize(
    ("tree", "accumulators", "brackets"),
    [
        (trees.from_order(KOrder(), 8, FP32), 1, 0),
        (trees.from_order(KOrder(split=104, tile=64, residue_first=True), 777, FP16), 8, 7),
        (LANES, 4, 3),
        (ONTO, 3, 2),
        (trees.from_order(KOrder(promote=16), 10000, FP16), 625, 624),
    ],
)
def test_a_picture_has_a_row_for_every_accumulator_and_a_bracket_for_every_addition(tree, accumulators, brackets):
    rows, joins = layout(tree)
    assert (len(rows), len(joins)) == (accumulators, brackets)
    made = picture(tree, "a title")
    axes = made.axes[0]
    bars = axes.collections[0].get_paths()
    ends = sorted(float(x) for path in bars for x in path.vertices[:, 0])
    assert (ends[0], ends[-1]) == (0, sum(1 for _ in trees.leaves(tree)))
    covered = sum(abs(float(path.vertices[2, 0] - path.vertices[0, 0])) for path in bars)
    assert covered == ends[-1]  # every k in one bar, and in one alone
    assert len(axes.get_yticks()) == (accumulators if accumulators <= 24 else 0)
    if accumulators == 4:
        assert plotting.svg(made) == plotting.svg(picture(tree, "a title"))
