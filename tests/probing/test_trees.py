"""Summation trees in files, as text and as pictures, and functions of a user's file."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import mma, plotting, probing, simt
from fpemu.errors import InputError
from fpemu.mma import KOrder
from fpemu.mma import tree as trees
from fpemu.mma.tree import Chain, Sum
from fpemu.plotting.trees import layout, picture
from fpemu.probing.callables import load_function
from fpemu.probing.trees import regular, sentence
from fpemu.probing.trees import text as drawing

FP16 = mma.spec("hopper", "fp16", "fp32")
FP32 = simt.SPECS["fp32"]
BLOCKS = [tuple(range(k, k + 16)) for k in range(0, 64, 16)]
LANES = Sum(tuple(Chain(tuple((k + j,) for k in range(8 * i, 512, 32) for j in range(8)), "fma") for i in range(4)))
ONTO = Chain(((64, 65), (66,)), "instruction", Sum((Chain(tuple(BLOCKS[:2])), Chain(tuple(BLOCKS[2:])))))


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
    for name, message in (("order.txt", r"\.json"), ("no/order.json", "no folder")):
        with pytest.raises(InputError, match=message):
            probing.save(KOrder(), tmp_path / name)
    for name, message in ((".", "directory"), ("order.json", r"order\.json")):
        with pytest.raises(InputError, match=message):
            probing.load(tmp_path / name)
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
        (Chain(((0,), *((k,) for k in range(4, 60, 8))), "fma"), "chain of 8 fma: k = 0, 4, 12 ... 52"),
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


# --- functions of a user
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


@pytest.mark.parametrize("spec", [FP16, FP32], ids=str)
@pytest.mark.parametrize(
    ("order", "K", "words"),
    [
        (KOrder(), 1000, "one chain of 1000 products"),
        (KOrder(256), 512, "two chains of 256 products, then added"),
        (KOrder(128), 200, "two chains of 128 and 72 products, then added"),
        (KOrder(300), 1000, "four chains of 300 products, the last of 100, then added from left to right"),
        (KOrder(64, join="pairwise"), 768, "12 chains of 64 products, then added pairwise"),
        (KOrder(64, join="descending"), 512, "eight chains of 64 products, then added from right to left"),
        (
            KOrder(500, promote=100),
            1000,
            "two groups of five chains of 100 products, then added from left to right; then their sums are added",
        ),
        (KOrder(1), 100, "100 products, then added from left to right"),
    ],
)
def test_a_sentence_has_the_same_words_for_instructions_and_multiply_adds(spec, order, K, words):
    tree = trees.canonical(trees.from_order(order, K, spec))
    assert sentence(tree) == words
    if isinstance(tree, Sum) and order.promote is None and order.join == "ascending":
        stored = Sum(tree.parts, None, "fp16")
        assert sentence(stored) == words.replace(", then", ", each rounded to fp16, then")


def test_sentences_of_other_trees():
    assert sentence(LANES).startswith("four chains of 128 products, which alternate every 8 of k, then added")
    assert sentence(ONTO) == "two chains of 32 products, then added; then one chain of 3 products onto the result"
    deep = Chain(((0,),))
    for k in range(1, 3000):
        deep = Sum((Chain(((k,),)), deep))
    assert sentence(deep) == "3000 products, added in a tree"
