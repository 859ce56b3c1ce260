"""Orders found from outside: random trees and orders are put into emulated GEMMs, and must come back."""

from __future__ import annotations

import itertools
from itertools import combinations

import numpy as np
import pytest

from fpemu import library, mma, simt
from fpemu.errors import InputError
from fpemu.mma import KOrder
from fpemu.mma import tree as trees
from fpemu.mma.tree import Chain, Sum, identical
from fpemu.probing import reveal_map, save
from fpemu.probing.probes import Scale
from fpemu.probing.reveal import reveal
from fpemu.probing.trees import name_order
from fpemu.probing.trees import text as drawing
from fpemu.rounding import round_to

SPECS = {
    "fp16": mma.spec("hopper", "fp16", "fp32"),
    "fp16 blocks of 8": mma.spec("ampere", "fp16", "fp32"),
    "fp16 blocks of 4": mma.spec("volta", "fp16", "fp32"),
    "bf16": mma.spec("hopper", "bf16", "fp32"),
    "tf32": mma.spec("hopper", "tf32", "fp32"),
    "fp16 to fp16": mma.spec("hopper", "fp16", "fp16"),
    "fma fp16": simt.SPECS["fp16"],
    "fma fp32": simt.SPECS["fp32"],
    "fma fp64": simt.SPECS["fp64"],
}
FMA = ["fma fp16", "fma fp32", "fma fp64"]
ORDERS = [
    KOrder(),
    KOrder(split=48),
    KOrder(split=104, tile=64, residue_first=True),
    KOrder(tile=64, residue_first=True),
    KOrder(promote=32),
    KOrder(split=20, join="pairwise"),
    KOrder(split=37, promote=16, join="descending"),
    KOrder(split=1),
    KOrder(split=1, join="pairwise"),
    KOrder(tile=8),
]


def partition(rng, ks):
    """The positions in two to five parts: stretches, lanes or anything."""
    count = int(rng.integers(2, min(5, len(ks)) + 1))
    how = rng.integers(3)
    if how == 0:
        cuts = np.sort(rng.choice(np.arange(1, len(ks)), count - 1, replace=False))
        return [ks[a:b] for a, b in zip([0, *cuts], [*cuts, len(ks)], strict=True)]
    if how == 1:
        return [ks[i::count] for i in range(count)]
    mixed = rng.permutation(ks)
    return [sorted(mixed[i::count].tolist()) for i in range(count)]


def random_tree(rng, ks, spec):
    """Chains with blocks of any length, or that go on from sums; sums of anything; and single fma among them."""
    if len(ks) == 1 or rng.random() < (0.1 if len(ks) > 40 else 0.5):
        return random_chain(rng, ks, spec, None)
    if len(ks) > 3 and rng.random() < 0.3:
        inner, outer = partition(rng, ks)[:2], []
        outer = [k for k in ks if k not in set(inner[0])]
        return random_chain(rng, outer, spec, random_tree(rng, inner[0], spec))
    return Sum(tuple(random_tree(rng, part, spec) for part in partition(rng, ks)))


def random_chain(rng, ks, spec, start):
    ks = [int(k) for k in (ks if rng.random() < 0.7 else rng.permutation(ks))]
    fma = spec.arithmetic == "fma" or (trees.exact_products(spec) and rng.random() < 0.2)
    if fma:
        return Chain(tuple((k,) for k in ks), "fma", start)
    whole = rng.random() < 0.5
    blocks = []
    while ks:
        size = spec.block if whole else int(rng.integers(1, spec.block + 1))
        blocks.append(tuple(ks[:size]))
        ks = ks[size:]
    return Chain(tuple(blocks), "instruction", start)


def by(order, spec):
    return lambda A, B: mma.gemm(A, B, None, spec, order)


@pytest.mark.parametrize("name", SPECS)
def test_random_trees_come_back(name):
    spec = SPECS[name]
    for seed in range(9):
        rng = np.random.default_rng([seed, len(name)])
        K = int(rng.integers(1, 60 if seed < 8 else 250))
        tree = random_tree(rng, list(range(K)), spec)
        trees.check(tree, K, spec)
        found = reveal(by(tree, spec), K, spec)
        want = trees.canonical(tree, trees.exact_products(spec))
        assert found.tree == want, f"seed {seed}, K = {K}\n{drawing(want)}\n{found}"


# instructions that round to nearest: a last product is no sum
NEAREST = ("cdna3", "fp16", "fp32"), ("cdna3", "tf32", "fp32"), ("hopper", "e5m2", "fp16"), ("ada", "e5m2", "fp16")
FP8 = [  # products vanish only beside products of two large factors
    row
    for row in mma.catalog.rows()
    if str(row.a_format) in ("e4m3", "e4m3fnuz", "e5m2", "e5m2fnuz")
    and row.rules.via is None
    and row.architecture not in ("ideal", "arm")  # units do not vanish in exact sums
]
PROBED = [(spec, order, (1, 2, 129)) for spec in SPECS.values() for order in ORDERS]
PROBED += [(mma.spec(*names), KOrder(n), (17, 33)) for names in NEAREST for n in (None, 16, 32)]
PROBED += [(mma.spec(*names), KOrder(promote=16), (17, 33)) for names in NEAREST]
PROBED += zip(FP8, itertools.cycle([KOrder(), KOrder(48), KOrder(40, join="pairwise")]), itertools.repeat((150,)))


@pytest.mark.parametrize(("spec", "order", "lengths"), PROBED, ids=str)
def test_orders_are_named(spec, order, lengths):
    for K in lengths:
        found = reveal(by(order, spec), K, spec)
        want = trees.from_order(order, K, spec)
        assert trees.equal(found.tree, want, spec), f"K = {K}\n{drawing(want)}\n{found}"
        assert found.order is not None
        assert trees.equal(trees.from_order(found.order, K, spec), want, spec)
        assert found.order == order or K != 150


def test_a_sum_outside_is_visible_before_an_instruction_that_keeps_few_bits():
    spec = mma.spec("hopper", "e5m2", "fp32")  # 13 fraction bits
    tree = Chain(((2, 3), (4, 5)), start=Sum((Chain(((0, 6),)), Chain(((1,),)))))
    assert reveal(by(tree, spec), 7, spec).tree == trees.canonical(tree, exact=True)


def test_units_are_normal_numbers_where_subnormal_inputs_are_flushed():
    spec = mma.spec("cdna2", "fp16", "fp32")
    tree = reveal(by(KOrder(), spec), 9, spec).tree
    rng = np.random.default_rng(1)
    A, B = (rng.standard_normal(shape).astype(np.float16) for shape in ((40, 9), (9, 40)))
    assert np.array_equal(by(tree, spec)(A, B), by(KOrder(), spec)(A, B))


@pytest.mark.parametrize(
    "name", ["fp16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fp16 to fp16", "tf32")), *FMA[1:]]
)
def test_an_order_and_its_tree_give_the_same_bits(name):
    spec = SPECS[name]
    rng = np.random.default_rng(5)
    A, B = (rng.standard_normal(s).astype(np.float16).astype(np.float64) for s in ((2, 3, 120), (120, 5)))
    C = rng.standard_normal((3, 5)).astype(np.float16)
    for n, order in enumerate(ORDERS):
        tree = trees.from_order(order, 120, spec)
        for backend in ("compiled", "numpy")[: 1 + (n == 6)]:
            one = mma.gemm(A, B, None, spec, order, backend=backend)
            two = mma.gemm(A, B, None, spec, tree, backend=backend)
            three = mma.gemm(A, B, None, spec, trees.canonical(tree, trees.exact_products(spec)), backend=backend)
            assert one.tobytes() == two.tobytes() == three.tobytes(), str(order)
        if order.promote is None:
            one, two = (mma.gemm(A, B, C, spec, o) for o in (order, tree))
            assert one.tobytes() == two.tobytes(), str(order)


@pytest.mark.parametrize("name", ["fp16", "fma fp32"])
def test_a_canonical_tree_gives_the_same_bits(name):
    spec = SPECS[name]
    for seed in range(10):
        rng = np.random.default_rng(seed)
        tree = random_tree(rng, list(range(60)), spec)
        A, B = (rng.standard_normal(s).astype(np.float16) for s in ((20, 60), (60, 20)))
        one, two = (mma.gemm(A, B, None, spec, t) for t in (tree, trees.canonical(tree, trees.exact_products(spec))))
        assert one.tobytes() == two.tobytes()


def test_different_trees_give_different_bits():
    spec = SPECS["fp16"]
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(s).astype(np.float16) for s in ((40, 64), (64, 40)))
    ks = [tuple(range(k, k + 16)) for k in range(0, 64, 16)]
    ways = [
        Chain(tuple(ks)),
        Chain(tuple(ks[::-1])),
        Sum((Chain(tuple(ks[::2])), Chain(tuple(ks[1::2])))),
        Chain(tuple((k,) for k in range(64)), "fma"),
    ]
    assert len({mma.gemm(A, B, None, spec, way).tobytes() for way in ways}) == len(ways)


def test_trees_need_few_probes():
    K = 500
    for name, most in (("fma fp32", 1.0), ("fp16 blocks of 8", 1.3), ("fp16", 1.5)):
        spec = SPECS[name]
        for order in (KOrder(), KOrder(split=64), KOrder(split=64, join="pairwise")):
            assert reveal(by(order, spec), K, spec).probes <= most * K * np.log2(K), (name, order)
    spec = SPECS["fma fp32"]
    ks = list(range(K))
    ways = [random_tree(np.random.default_rng(seed), ks, spec) for seed in range(3)]
    ways += [Chain(tuple((k,) for k in reversed(ks)), "fma")]  # each pivot in ascending order would take one leaf off
    ways += [Sum(tuple(Chain(tuple((k,) for k in reversed(ks[i : i + 63])), "fma") for i in range(0, K, 63)))]
    for way in ways:
        found = reveal(by(way, spec), K, spec)
        assert trees.equal(found.tree, way, spec)
        assert found.probes <= K * np.log2(K)


def in_parts(order, split, spec, join=None):
    """A GEMM that keeps the sums of its slices in half precision, and adds them in single (`join`: in that)."""

    def gemm(A, B):
        parts = [
            mma.gemm(A[:, k : k + split], B[k : k + split], None, spec, order).astype(np.float16)
            for k in range(0, A.shape[1], split)
        ]
        total = parts[0].astype(join or np.float32)
        for part in parts[1:]:
            total = total + part.astype(total.dtype)
        return total.astype(np.float16)

    return gemm


@pytest.mark.parametrize("count", [2, 3])
def test_slices_that_are_added_to_a_half_result_in_place_are_seen(count):
    """Each slice comes unrounded; what D holds so far is in half precision."""
    spec, split = SPECS["fp16 blocks of 8"], 40

    def gemm(A, B):
        total = np.zeros((len(A), B.shape[1]), np.float16)
        for k in range(0, count * split, split):
            part = mma.gemm(A[:, k : k + split], B[k : k + split], None, spec)
            total = (total.astype(np.float32) + part).astype(np.float16)
        return total

    K = count * split
    found = reveal(gemm, K, spec, out="fp16", shape=(100, 1))
    rng = np.random.default_rng(count)
    A, B = (rng.standard_normal(s).astype(np.float16) for s in ((40, K), (K, 40)))
    assert mma.gemm(A, B, None, spec, found.tree).astype(np.float16).tobytes() == gemm(A, B).tobytes()
    assert found.order is None


def test_a_residue_that_comes_first_hides_no_promotion():
    spec, order = SPECS["fp16"], KOrder(tile=64, residue_first=True, promote=128)
    assert name_order(trees.from_order(order, 321, spec), 321, spec) == order


def test_an_order_of_many_promoted_slices_is_named():
    spec, order = SPECS["fp16"], KOrder(split=20, promote=16, join="descending")
    tree = trees.from_order(order, 5600, spec)  # 280 sums within sums once it is canonical
    assert name_order(tree, 5600, spec) == order
    deep: Chain | Sum = Chain(((0,),))
    for k in range(1, 600):
        deep = Sum((Chain(((k,),)), deep), "fp16")
    assert identical(deep, Sum(deep.parts, "fp16"))
    assert not identical(deep, Sum((deep.parts[1], deep.parts[0]), "fp16"))
    assert not identical(Chain(((0,),)), Chain(((0,),), start=Chain(((1,),))))


@pytest.mark.parametrize(("K", "split"), [(120, 48), (97, 48)])
def test_partial_sums_kept_in_a_narrower_format_are_seen(K, split):
    spec = SPECS["fp16"]
    order = KOrder(tile=32, residue_first=True)
    apart = trees.from_order(KOrder(split=split, tile=32, residue_first=True), K, spec)
    rng = np.random.default_rng(K)
    A, B = (rng.standard_normal(s).astype(np.float16) for s in ((30, K), (K, 30)))
    kept = Sum(apart.parts, None, "fp16")
    for join, want in ((np.float32, kept), (np.float16, Sum(apart.parts, "fp16"))):
        gemm = in_parts(order, split, spec, join)
        found = reveal(gemm, K, spec, out="fp16", shape=(100, 1))
        if join is np.float32 or K // split > 1:  # with two parts there is nothing between
            assert mma.gemm(A, B, None, spec, found.tree).astype(np.float16).tobytes() == gemm(A, B).tobytes()
        if join is np.float32:
            assert found.tree == trees.canonical(want, True)
            assert "each rounded to fp16" in str(found)
    one = mma.gemm(A, B, None, spec, apart).astype(np.float16)
    assert one.tobytes() != mma.gemm(A, B, None, spec, kept).astype(np.float16).tobytes()


def test_units_that_a_narrow_result_cannot_count_are_probed_in_groups():
    spec, order, K = SPECS["fp16"], KOrder(split=352, tile=64, residue_first=True), 801

    def gemm(A, B):
        return round_to(mma.gemm(A, B, None, spec, order), "bf16")  # counts to 256

    found = reveal(gemm, K, spec, out="bf16", shape=(500, 1))
    assert trees.equal(found.tree, trees.from_order(order, K, spec), spec)
    assert found.probes <= 1.3 * K * np.log2(K)


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 5), (40, 1)])
def test_the_shape_of_the_calls_is_kept(shape):
    spec, order = SPECS["bf16"], KOrder(split=24)
    seen = set()

    def gemm(A, B):
        seen.add((A.shape[0], B.shape[1]))
        return mma.gemm(A, B, None, spec, order)

    assert reveal(gemm, 60, spec, shape=shape).order == order
    assert seen == {shape}


def test_one_place_of_a_product_with_two_orders():
    spec, K = SPECS["fp16"], 100

    def gemm(A, B):
        D = mma.gemm(A, B, None, spec)
        D[:, 2:] = mma.gemm(A, B[:, 2:], None, spec, KOrder(split=40))
        return D

    assert reveal(gemm, K, spec, shape=(8, 4), at=0).order == KOrder()
    assert reveal(gemm, K, spec, shape=(8, 4), at=3).order == KOrder(split=40)
    assert reveal(gemm, K, spec, shape=(8, 4), at=(5, 1)).order == KOrder()
    assert reveal(gemm, K, spec, shape=(8, 4), at=(5, 2)).order == KOrder(split=40)
    with pytest.raises(
        InputError, match=r"columns of D disagree: .* D\[0, 0\] and D\[0, 2\] differ.*; at=\(0, 2\) reveals"
    ):
        reveal(gemm, K, spec, shape=(8, 4))
    with pytest.raises(InputError, match=r"rows of D disagree: .* D\[0, 0\] and D\[2, 0\] differ"):
        reveal(lambda A, B: gemm(B.T, A.T).T, K, spec, shape=(4, 3))
    found = reveal_map(gemm, K, spec, shape=(8, 4))
    assert (found.index == [0, 0, 1, 1]).all()
    assert [revealed.order for revealed in found.orders] == [KOrder(), KOrder(split=40)]


def test_a_result_rounded_to_half_at_the_end():
    spec = SPECS["fp16"]
    for K, order in ((300, KOrder(split=48)), (300, KOrder(tile=64, residue_first=True)), (700, KOrder(split=352))):
        found = reveal(
            lambda A, B, o=order: mma.gemm(A, B, None, spec, o).astype(np.float16), K, spec, out="fp16", shape=(2000, 1)
        )
        assert trees.equal(found.tree, trees.from_order(order, K, spec), spec)


def test_without_a_spec_the_structure_is_found():
    for name, fmt in (("fp16", "fp16"), ("tf32", "tf32"), ("fma fp32", "fp32"), ("fma fp64", "fp64")):
        spec = SPECS[name]
        found = reveal(by(KOrder(split=48), spec), 100, fmt=fmt)
        assert trees.equal(found.tree, trees.from_order(KOrder(split=48), 100, spec), spec)
    dot = reveal(lambda A, B: np.cumsum(A * B[:, 0], axis=1, dtype=np.float32)[:, -1:], 50)
    assert dot.tree == Sum(tuple(Chain(((k,),), "fma") for k in range(50)))


def multiplied(tree, spec, K):
    return mma.gemm(np.ones((2, K)), np.ones((K, 2)), None, SPECS[spec], tree)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: multiplied(Chain(((0, 1), (3,))), "fp16", 4), "not over K = 4"),
        (lambda: multiplied(Chain(((0, 1, 2, 3), (3,))), "fp16", 4), "not over K = 4"),
        (lambda: multiplied(Chain((tuple(range(4)), (4,))), "fp16", 4), "not over K = 4"),
        (lambda: multiplied(Chain((tuple(range(5)),)), "fp16 blocks of 4", 5), "takes 4"),
        (lambda: Chain(((0, 1),), "fma"), "one position"),
        (lambda: Chain(((0,),), "dot"), "kind"),
        (lambda: Chain(()), "block"),
        (lambda: Sum(()), "part"),
        (
            lambda: mma.chain([(np.ones((2, 4)), np.ones((4, 2)))] * 2, None, SPECS["fp16"], Chain(((0, 1, 2, 3),))),
            "one term",
        ),
    ],
)
def test_wrong_trees(call, message):
    with pytest.raises(InputError, match=message):
        call()


HALVES = mma.spec("hopper", "e5m2", "fp32", "mma")
E2M1, E3M2 = mma.spec("B200", "e2m1", "fp32"), mma.spec("B200", "e3m2", "fp16")


@pytest.mark.parametrize(
    ("gemm", "spec", "message"),
    [
        (lambda A, B: A.astype(np.float64) @ B.astype(np.float64), SPECS["fp16"], "no unit is lost beside 32768"),
        (lambda A, B: np.zeros((2, 2)), SPECS["fp16"], "shape"),
        (lambda A, B: np.full((len(A), B.shape[1]), np.nan), SPECS["fp16"], "returns Inf or NaN"),
        (by(KOrder(), E2M1), E2M1, "no unit is lost beside 16 and -16: the sums are exact"),
        (lambda A, B: mma.gemm(A, B, None, E3M2), E3M2, "e3m2 is too narrow for the probe: units of 0.00390625"),
        (
            by(KOrder(), SPECS["fp16"]),
            SPECS["fp16 blocks of 4"],
            "16 products are added at once, and a block of volta .* has 4",
        ),
        (by(KOrder(), HALVES), HALVES, "adds the halves of its k apart"),
    ],
)
def test_what_is_no_tree_of_the_instruction_is_refused(gemm, spec, message):
    with pytest.raises(InputError, match=message) as e:
        reveal(gemm, 40, spec)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("K", "order"),
    [
        (100, KOrder(tile=96, residue_first=True, promote=96)),
        (1000, KOrder(split=300, tile=64, residue_first=True, promote=64)),
        (520, KOrder(split=130, tile=32, residue_first=True, promote=64, join="pairwise")),
    ],
)
def test_promoted_tiles_behind_a_residue_are_named(K, order):
    spec = SPECS["fp16"]
    named = name_order(trees.from_order(order, K, spec), K, spec)
    assert named is not None
    assert trees.equal(trees.from_order(named, K, spec), trees.from_order(order, K, spec), spec)


@pytest.mark.parametrize("remark", [object(), np.arange(3), float("nan"), "\ud800"])
def test_a_remark_that_is_no_json_is_one_line_and_leaves_no_file(tmp_path, remark):
    with pytest.raises(InputError, match=r"order\.json: a remark is no JSON"):
        save(KOrder(split=3), tmp_path / "order.json", remark=remark)
    assert not list(tmp_path.iterdir())


# --- contradictions with random operands, and orders that depend on the position
def kahan(A, B):
    total = np.zeros((len(A), B.shape[1]), np.float32)
    lost = total.copy()
    for k in range(A.shape[1]):
        term = A[:, k : k + 1] * B[k : k + 1] - lost
        after = total + term
        total, lost = after, (after - total) - term
    return total


def in_double(A, B):
    products = A.astype(np.float64)[:, :, None] * B.astype(np.float64)[None]
    return np.cumsum(products, axis=1)[:, -1].astype(np.float32)


def last_column(A, B):
    D = simt.gemm(A, B, order=KOrder(split=16))
    D[:, -1:] = simt.gemm(A, B[:, -1:])
    return D


def swapped_at_one_position(A, B):
    D = simt.gemm(A, B)
    tree = Chain(tuple((k,) for k in [*range(A.shape[1] - 2), A.shape[1] - 1, A.shape[1] - 2]), "fma")
    D[2, 1] = simt.gemm(A[2:3], B[:, 1:2], order=tree)[0, 0]
    return D


def rounded_to_half(A, B):
    return simt.gemm(A, B).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("gemm", "message"),
    [
        (kahan, r"the probes show KOrder\(split=1\), but \d+ of .* outputs of random operands mismatch"),
        (in_double, "the probes show .* outputs of random operands mismatch"),
        (last_column, r"columns of D disagree: .* at=\(0, 4\) reveals the order there"),
        (swapped_at_one_position, r"columns of D disagree: .* at=\(2, 1\)"),
        (rounded_to_half, "flushes subnormal numbers, rounds its inputs"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_an_order_that_random_operands_contradict_is_refused_in_one_line(gemm, message):
    with pytest.raises(InputError, match=message) as e:
        reveal(gemm, 30, fmt="fp32", shape=(6, 5))
    assert "\n" not in str(e.value)


def test_without_a_check_the_tree_of_the_probes_is_returned():
    assert reveal(kahan, 30, check=False).order == KOrder(split=1)
    assert reveal(last_column, 30, shape=(6, 5), check=False).order == KOrder(split=16)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shape", [None, (6, 5)])
def test_a_random_split_in_every_call_is_refused(seed, shape):
    rng = np.random.default_rng(seed)
    with pytest.raises(InputError, match=r"not deterministic|fit no tree|mismatch|added at once"):
        reveal(lambda A, B: simt.gemm(A, B, order=KOrder(split=int(rng.integers(4, 17)))), 30, shape=shape)


def test_the_positions_of_each_order_are_found():
    rng = np.random.default_rng(0)
    orders = [KOrder(), KOrder(split=7), KOrder(split=1, join="pairwise"), KOrder(split=20)]
    index = rng.integers(0, len(orders), (9, 7))

    def gemm(A, B):
        return np.choose(index, [simt.gemm(A, B, order=order) for order in orders])

    found = reveal_map(gemm, 41, fmt="fp32", shape=index.shape)
    assert [[found.orders[n].order for n in row] for row in found.index] == [[orders[n] for n in row] for row in index]
    assert found.index[0, 0] == 0
    for at in ((0, 0), (8, 6), (3, 5)):
        assert reveal(gemm, 41, fmt="fp32", shape=index.shape, at=at).order == orders[index[at]]


@pytest.mark.parametrize("shape", [(33, 33), (64, 20), (5, 40)])
@pytest.mark.parametrize("layout", ["NN", "TN"])
def test_the_orders_of_numpys_product_reproduce_all_its_outputs(shape, layout):
    K = 33
    found = reveal_map(np.matmul, K, fmt="fp32", shape=shape, layout=layout)
    rng = np.random.default_rng(1)
    A, B = (rng.standard_normal(s).astype(np.float32) for s in ((shape[0], K), (K, shape[1])))
    D = A @ (B if layout == "NN" else np.asfortranarray(B))
    for n, revealed in enumerate(found.orders):
        assert np.array_equal(D[found.index == n], simt.gemm(A, B, order=revealed)[found.index == n])
    uniform = len(found.orders) == 1  # depends on the processor
    revealed = reveal(np.matmul, K, fmt="fp32", shape=shape, layout=layout, at=None if uniform else (0, 0))
    assert revealed.tree == found.orders[0].tree


@pytest.mark.parametrize(("hardware", "orders"), [("SKYLAKEX", 3), ("HASWELL", 2)])
def test_the_orders_of_openblass_kernels(hardware, orders):
    def gemm(A, B):
        return library.emulate("openblas", A, B, hardware=hardware)

    found = reveal_map(gemm, 33, fmt="fp32", shape=(33, 33))
    assert len(found.orders) == orders
    assert KOrder() in [revealed.order for revealed in found.orders]
    for at in ((0, 0), (5, 30), (20, 32), (32, 32)):
        revealed = reveal(gemm, 33, fmt="fp32", shape=(33, 33), at=at)
        assert revealed.tree == found.orders[found.index[at]].tree


def test_all_units_vanish_beside_a_product_of_two_large_factors():
    spec = mma.spec("H100", "e4m3", "fp32", "wgmma")
    scale = Scale.of(spec.operand_formats[:2], spec, spec.d_format)
    assert scale[:2] == ((2.0**8, 2.0**8), (2.0**-9, 2.0**-9))
    assert scale.most >= 62
    assert reveal(by(KOrder(), spec), 64, spec, shape=(1, 1)).order == KOrder()  # one probe in a call
    assert reveal(by(KOrder(), spec), 64, spec, shape=(4, 9), at=(3, 8)).order == KOrder()


@pytest.mark.parametrize("pair", [("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e2m1", "e5m2"), ("bf16", "fp16")])
@pytest.mark.parametrize("shape", [(16, 16), (5, 20)])
def test_operands_of_two_formats(pair, shape):
    spec, order = mma.MmaSpec(*pair, "fp32", k=16, block=16, F=25, final="RZ"), KOrder(split=32)
    assert reveal(by(order, spec), 70, spec, shape=shape).order == order


# --- FPRev's basic algorithm (Xie et al., USENIX ATC 2025, section 4), and the functions that its paper reveals
def fprev(gemm, k, shape, dtype):
    """The tree at D[0, 0] as nested sets, from the subtree sizes of all pairs of leaves."""

    def size(i, j):
        A = np.zeros((shape[0], k), dtype)
        A[0], A[0, i], A[0, j] = 2.0**-60, 2.0**60, -(2.0**60)
        return k - round(float(np.asarray(gemm(A, np.ones((k, shape[1]), dtype)))[0, 0] * 2.0**60))

    sizes = {pair: size(*pair) for pair in combinations(range(k), 2)}

    def subtree(leaves):
        if len(leaves) == 1:
            return leaves[0]
        children: list[list[int]] = []
        for k in leaves:
            same = next((child for child in children if sizes[child[0], k] < len(leaves)), None)
            children.append([k]) if same is None else same.append(k)
        return frozenset(map(subtree, children))

    return subtree(list(range(k)))


def nested(tree):
    """A revealed tree as nested sets."""

    def node(tree, below):
        if isinstance(tree, Sum):
            blocks = [[part] for part in below]
        else:
            blocks = [*([part] for part in below), *map(list, tree.blocks)]
        total = blocks[0][0] if len(blocks[0]) == 1 else frozenset(blocks[0])
        for block in blocks[1:]:
            total = frozenset([total, *block])
        return total

    return trees.fold(tree, node)


def torch_gemm(A, B):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch.from_numpy(A) @ torch.from_numpy(B)


def jax_gemm(A, B):
    return pytest.importorskip("jax", reason="JAX is not installed").numpy.matmul(A, B)


@pytest.mark.parametrize("k", [5, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("gemm", "shape"),
    [
        (lambda A, B: np.sum(A * B.T, axis=1, keepdims=True), (1, 1)),
        (lambda A, B: np.dot(A[0], B[:, 0])[None, None], (1, 1)),
        (lambda A, B: (A @ B[:, 0])[:, None], (8, 1)),
        (np.matmul, (12, 12)),
        (lambda A, B: np.einsum("ik,kj->ij", A, B), (3, 2)),
        (torch_gemm, (12, 12)),
        (jax_gemm, (12, 12)),
    ],
    ids=["sum", "dot", "gemv", "gemm", "einsum", "torch", "jax"],
)
def test_trees_are_those_of_fprevs_algorithm(gemm, shape, dtype, k):
    # OpenBLAS's dot in fp32 adds blocks in fp64, which the check would refuse
    revealed = reveal(gemm, k, fmt=f"fp{8 * dtype().itemsize}", shape=shape, at=(0, 0), check=False)
    assert nested(revealed.tree) == fprev(gemm, k, shape, dtype)
