"""The order of a GEMM over K, against an oracle that takes the order apart position by position."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpemu
from fpemu import mma, probing, simt
from fpemu.errors import InputError
from fpemu.mma import KOrder
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import Chain, Sum, canonical, from_order
from fpemu.probing import Revealed
from fpemu.probing.trees import text
from tests import hostile, oracle
from tests.hostile import bits, carrier, examples, integers
from tests.mma.test_mma_oracle import instruction_of, same

BACKENDS = ["compiled", "numpy"]
SPECS = [
    mma.spec("hopper", "fp16", "fp32"),
    mma.spec("hopper", "fp16", "fp32", instruction="mma", k=8),
    mma.spec("hopper", "fp16", "fp16"),
    mma.spec("volta", "fp16", "fp32"),
    mma.spec("ampere", "bf16", "fp32"),
    mma.spec("ampere", "tf32", "fp32"),
    mma.spec("hopper", "e4m3", "fp32", instruction="wgmma"),
    mma.spec("hopper", "e4m3", "fp32", instruction="mma"),
    mma.spec("ampere", "fp64", "fp64"),
    mma.spec("cdna1", "fp16", "fp32"),
    mma.spec("cdna2", "fp16", "fp32"),
    mma.spec("cdna3", "bf16", "fp32"),
]
KINDS = [k for k in hostile.CLASSES if k not in ("zeros",)]
JOINS = ["ascending", "descending", "pairwise"]


def codes(ins, kind, seed, K, terms=1, M=2, N=2):
    """Codes of `terms` products (M, K) and (N, K), and of C (M, N)."""
    rng = np.random.default_rng(seed)
    pairs = [(hostile.draw(ins.a, kind, rng, (M, K)), hostile.draw(ins.b, kind, rng, (N, K))) for _ in range(terms)]
    return pairs, hostile.accumulators(ins.a, ins.b, ins.c, kind, rng, M * N).reshape(M, N)


def assert_order(spec, pairs, C, order, step=None, what=""):
    """Every output of both forms is the oracle's."""
    ins = instruction_of(spec)
    twin = oracle.Order(order.split, order.tile, order.residue_first, order.promote, order.join)
    terms = [(carrier(A, ins.a), carrier(B, ins.b).T) for A, B in pairs]
    length = spec.k if step == "instruction" else step
    for backend in BACKENDS:
        D = bits(mma.chain(terms, None if C is None else carrier(C, ins.c), spec, order, step=step, backend=backend))
        for i in range(D.shape[0]):
            for j in range(D.shape[1]):
                c = None if C is None else int(C[i, j])
                want = oracle.ordered(ins, [(integers(A[i]), integers(B[j])) for A, B in pairs], c, twin, length)
                got = int(D[i, j])
                assert same(got, want, ins), (
                    f"{spec.name} {order} step {step} {backend} {what}: {got:#x}, exact {want:#x}"
                )


orders = st.one_of(
    st.builds(KOrder),
    st.builds(lambda s, j: KOrder(split=s, join=j), st.integers(1, 70), st.sampled_from(JOINS)),
    st.builds(lambda p: KOrder(promote=p), st.integers(1, 70)),
    st.builds(lambda t, f: KOrder(tile=t, residue_first=f), st.integers(1, 40), st.booleans()),
    st.builds(
        lambda s, t, f, tiles, j: KOrder(s, t, f, tiles and tiles * t, j),
        st.none() | st.integers(1, 70),
        st.integers(4, 40),
        st.booleans(),
        st.none() | st.integers(1, 3),
        st.sampled_from(JOINS),
    ),
    st.builds(
        lambda s, p, j: KOrder(split=s, promote=p, join=j),
        st.integers(1, 70),
        st.integers(1, 40),
        st.sampled_from(JOINS),
    ),
)


@settings(max_examples=examples(120))
@given(
    st.sampled_from(SPECS), orders, st.sampled_from(KINDS), st.integers(0, 2**31), st.integers(1, 100), st.booleans()
)
def test_one_product(spec, order, kind, seed, K, with_c):
    pairs, C = codes(instruction_of(spec), kind, seed, K)
    assert_order(spec, pairs, C if with_c else None, order, what=f"{kind} {K}")


@settings(max_examples=examples(60))
@given(st.data())
def test_several_products_in_one_accumulator(data):
    spec = data.draw(st.sampled_from(SPECS))
    K, terms = data.draw(st.integers(1, 70)), data.draw(st.integers(2, 4))
    order = data.draw(
        st.sampled_from(
            [KOrder(), KOrder(promote=spec.k), KOrder(promote=64), KOrder(split=32), KOrder(split=48, promote=16)]
        )
    )
    step = data.draw(st.sampled_from([None, "instruction", 2 * spec.k, 64]) | st.integers(1, 40))
    pairs, C = codes(
        instruction_of(spec), data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, 2**31)), K, terms
    )
    assert_order(spec, pairs, C if data.draw(st.booleans()) else None, order, step)


# --- what an order means, on examples


def one_row(values, dtype=np.float16):
    return np.array([values], dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_joins_add_in_their_order(backend):
    # four slices of one product: 2^24, 1, 1, -2^24; a 1 is lost beside 2^24, but not beside -2^24
    spec = mma.spec("hopper", "fp16", "fp32")
    A, B = one_row([2.0**12, 1.0, 1.0, -(2.0**12)]), one_row([2.0**12, 1.0, 1.0, 2.0**12]).T
    results = {j: mma.gemm(A, B, None, spec, KOrder(split=1, join=j), backend=backend).item() for j in JOINS}
    assert results == {"ascending": 0.0, "descending": 2.0, "pairwise": 1.0}
    A, B = one_row([2.0**12, 1.0, 1.0]), one_row([2.0**12, 1.0, 1.0]).T
    results = {j: mma.gemm(A, B, None, spec, KOrder(split=1, join=j), backend=backend).item() for j in JOINS}
    assert results == {"ascending": 2.0**24, "descending": 2.0**24 + 2, "pairwise": 2.0**24}


@pytest.mark.parametrize("backend", BACKENDS)
def test_promotion_rounds_outside_to_nearest_and_the_chain_toward_zero(backend):
    spec = mma.spec("hopper", "fp16", "fp32")
    A, B = np.zeros((1, 32), np.float16), np.ones((32, 1), np.float16)
    A[0, 0], A[0, 16], B[16, 0] = 1.0, 1.5 * 2.0**-12, 2.0**-12
    assert mma.gemm(A, B, None, spec, backend=backend).item() == 1.0
    assert mma.gemm(A, B, None, spec, KOrder(promote=16), backend=backend).item() == 1.0 + 2.0**-23
    assert mma.gemm(A, B, None, spec, KOrder(promote=32), backend=backend).item() == 1.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_c_enters(backend):
    spec = mma.spec("hopper", "fp16", "fp32")
    A, B, C = np.full((1, 32), 2.0**-24, np.float16), np.ones((32, 1), np.float16), np.ones((1, 1), np.float32)
    A[0, :15] = A[0, 16:31] = 0
    # twice 2^-24, half an ulp of C = 1: cut off in the chain, joined outside before C is added, or rounded beside C
    assert mma.gemm(A, B, C, spec, backend=backend).item() == 1.0
    assert mma.gemm(A, B, C, spec, KOrder(split=16), backend=backend).item() == 1.0 + 2.0**-23
    assert mma.gemm(A, B, C, spec, KOrder(promote=16), backend=backend).item() == 1.0  # two ties to even
    assert mma.gemm(A, B, C, spec, KOrder(split=32), backend=backend).item() == 1.0 + 2.0**-23


def test_residue_first_moves_the_blocks():
    # the documented case: slices of 104 in tiles of 64 run blocks of 16, 16, 8 and then 16 each
    spec = mma.spec("hopper", "fp16", "fp32")
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((4, 104)).astype(np.float16), rng.standard_normal((104, 5)).astype(np.float16)
    order = KOrder(split=104, tile=64, residue_first=True)
    acc = np.zeros((4, 5), np.float32)
    for start, stop in ((0, 16), (16, 32), (32, 40), (40, 56), (56, 72), (72, 88), (88, 104)):
        acc = mma.gemm(A[:, start:stop], B[start:stop], acc, spec)
    assert np.array_equal(bits(mma.gemm(A, B, None, spec, order)), bits(acc))
    assert not np.array_equal(bits(mma.gemm(A, B, None, spec)), bits(acc))


def test_a_split_longer_than_k_is_one_chain_joined_with_c_last():
    spec = mma.spec("ampere", "fp16", "fp32")
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((4, 50)).astype(np.float16), rng.standard_normal((50, 5)).astype(np.float16)
    assert np.array_equal(bits(mma.gemm(A, B, None, spec, KOrder(split=64))), bits(mma.gemm(A, B, None, spec)))
    assert np.array_equal(bits(mma.gemm(A, B, None, spec, KOrder(promote=64))), bits(mma.gemm(A, B, None, spec)))


def test_an_fp16_result_of_a_split_is_rounded_once_from_fp32():
    spec = mma.spec("hopper", "fp16", "fp16")
    A, B = one_row([1.0, 2.0**-11, 2.0**-24]), one_row([1.0, 1.0, 1.0]).T
    # 1 + 2^-11 is a tie in fp16; the third slice, kept in fp32 beside it, decides
    assert mma.gemm(A, B, None, spec, KOrder(split=1)).dtype == np.float16
    assert (
        mma.gemm(A, B, None, spec, KOrder(split=1, join="descending")).item() == 1.0
    )  # 2^-11 + 2^-24, then + 1: a tie
    A = one_row([1.0, 2.0**-11, 2.0**-23])
    assert mma.gemm(A, B, None, spec, KOrder(split=1)).item() == 1.0 + 2.0**-10
    assert mma.gemm(A, B, None, spec).item() == 1.0 + 2.0**-10


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"split": value}, "split = ") for value in (0, -4, 2.5, "16", True, float("nan"))),
        *(({"tile": value}, "tile = ") for value in (0, -1, 1.0)),
        *(({"promote": value}, "promote = ") for value in (0, -16, "instruction", 16.0)),
        *(({"join": value}, "unknown join") for value in ("up", None, "", "Ascending ")),
        ({"join": "decending"}, "did you mean 'descending'"),
        ({"residue_first": True}, "residue_first needs a tile"),
    ],
)
def test_wrong_orders(fields, message):
    with pytest.raises(InputError, match=message) as e:
        KOrder(**fields)
    assert "\n" not in str(e.value)


def test_orders_are_frozen_and_equal_by_value():
    assert KOrder(split=4) == KOrder(4)
    assert len({KOrder(), KOrder()}) == 1
    assert KOrder(split=np.int64(4)) == KOrder(split=4)
    with pytest.raises(AttributeError):
        KOrder().split = 3


@pytest.mark.parametrize("order", ["ascending", 16, (16,), {"split": 16}])
def test_only_an_order_is_taken_as_order(order):
    x = np.zeros((2, 2), np.float16)
    with pytest.raises(InputError):
        mma.gemm(x, x, None, SPECS[0], order)


def test_a_lone_position_of_an_integer_tree_is_added_in_integers():
    spec, K = mma.spec("H200", "int8"), 3001
    rng = np.random.default_rng(0)
    A, B = rng.integers(100, 128, (4, K)).astype(np.int8), rng.integers(100, 128, (K, 4)).astype(np.int8)
    blocks = tuple(tuple(range(k, min(k + 32, K - 1))) for k in range(0, K - 1, 32))
    tree = canonical(Sum((Chain(blocks), Chain(((K - 1,),)))), exact=True)
    assert isinstance(tree, Chain)
    assert tree.kind == "fma"
    for backend in ("compiled", "numpy"):
        D = mma.gemm(A, B, None, spec, tree, backend=backend)
        assert np.array_equal(D, A.astype(np.int64) @ B.astype(np.int64))  # beyond 2^24: no float32 holds the sums


@pytest.mark.parametrize(
    "first",
    [Sum((Chain((tuple(range(16)),)), Chain((tuple(range(16, 32)),)))), Chain(tuple((k,) for k in range(32)), "fma")],
)
def test_a_sum_outside_is_rounded_for_the_fp16_accumulator_that_goes_on_from_it(first):
    spec = mma.spec("H200", "fp16", "fp16")
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape).astype(np.float16) for shape in ((20, 48), (48, 20)))
    tree = Chain((tuple(range(32, 48)),), "instruction", first)
    begun = mma.gemm(A[:, :32], B[:32], None, spec, first)
    expected = mma.gemm(A[:, 32:], B[32:], begun, spec)
    for backend in ("compiled", "numpy"):
        assert np.array_equal(mma.gemm(A, B, None, spec, tree, backend=backend), expected)


# --- one serialisation
positions = st.integers(0, 40) | st.integers(0, 2**31)
chains = st.one_of(
    st.builds(lambda ks: Chain(tuple((k,) for k in ks), "fma"), st.lists(positions, min_size=1, max_size=20)),
    st.builds(
        lambda blocks: Chain(tuple(map(tuple, blocks))),
        st.lists(st.lists(positions, min_size=1, max_size=9), min_size=1, max_size=9),
    ),
    st.builds(
        lambda first, step, block, count: Chain(
            tuple(tuple(range(k, k + block)) for k in range(first, first + count * step, step))
        ),
        positions,
        st.integers(1, 40),
        st.integers(1, 17),
        st.integers(1, 40),
    ),
)
any_tree = st.recursive(
    chains,
    lambda trees: st.one_of(
        st.builds(
            Sum,
            st.lists(trees, min_size=1, max_size=5).map(tuple),
            st.sampled_from([None, "fp16", "fp32"]),
            st.sampled_from([None, "fp16", "bf16"]),
        ),
        st.builds(lambda tree, count: Sum((tree,) * count), trees, st.integers(1, 9)),
        st.builds(lambda chain, start: Chain(chain.blocks, chain.kind, start), chains, trees),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(orders | any_tree)
def test_every_order_and_every_tree_is_read_back_from_its_dict(order):
    data = to_dict(order)
    assert from_dict(data) == order
    assert from_dict(json.loads(json.dumps(data))) == order
    if isinstance(order, KOrder):
        assert KOrder.from_dict(data) == eval(repr(order)) == order


def outcome(call):
    """The message of an InputError ("" without one), and the result."""
    try:
        return "", call()
    except InputError as problem:
        return str(problem), None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.text(max_size=4)
    | st.just("0..3")
    | st.sampled_from(["3..0", "0..99999999", "fp16", 10**400, b"", ()]),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["sum", "fma", "instruction", "start", "of", "count", "step", "fmt", "stored", "split", "x\n"]
            )
            | st.integers(0, 1),
            values,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(json_values)
def test_other_data_are_an_order_or_one_line(data):
    message, order = outcome(lambda: from_dict(data))
    assert "\n" not in message
    assert len(message) < 250
    assert message or from_dict(to_dict(order)) == order


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "order is not a table of fields"),
        ({"splt": 3}, "order: unknown field 'splt': did you mean 'split'"),
        ({3: 3}, "order: unknown field 3"),
        ({"split": "3"}, "order: split is '3', not an integer"),
        ({"fma": [{"of": 5, "count": 3, "step": -3}]}, "below 0"),
        ({"fma": [-1]}, "-1 stands in place of a position"),
        ({"fma": ["0..99999999"]}, "more than 4194304 positions"),
        ({"fma": [{"of": 0, "count": 10**5000, "step": 1}]}, "more than 4194304 positions"),
        ({"fma": [{"of": 0, "count": True, "step": 1}]}, "count = True"),
        ({"fma": [0], "kind": "fma"}, "fields"),
        ({"fma": [[0]]}, "in place of a position"),
        ({"sum": [{"fma": [0]}], "fmt": ["fp16"]}, "no name of a format"),
        ({"sum": [{"fma": [0]}], "stored": "fp17"}, "fp17"),
        ({"fma": [0], "start": {"of": {"fma": [1]}, "count": 2, "step": 1}}, "begins with"),
    ],
)
def test_a_malformed_dict_is_one_line(data, message):
    with pytest.raises(InputError, match=message) as problem:
        from_dict(data)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("depth", [100, 4000])
@pytest.mark.parametrize(
    "nest",
    [
        lambda inner: Sum((Chain(((0,),)), inner), "fp16"),
        lambda inner: Sum((inner,), "fp16"),
        lambda inner: Chain(((0,),), "instruction", inner),
    ],
)
def test_trees_of_any_depth_are_drawn_and_read_or_refused_in_one_line(tmp_path, nest, depth):
    tree = Chain(((0,),))
    for _ in range(depth):
        tree = nest(tree)
    data = to_dict(tree)
    assert len(text(tree, 30).splitlines()) == 30
    for call in (lambda: from_dict(data), lambda: probing.save(tree, tmp_path / "tree.json")):
        message, _ = outcome(call)
        assert message == ("the tree is nested too deep" if depth > 100 else "")


# --- the results of reveal as orders
def test_products_take_the_result_of_reveal():
    spec, order = SPECS[0], KOrder(split=40)
    revealed = probing.reveal(lambda A, B: mma.gemm(A, B, None, spec, order), 100, spec)
    assert isinstance(revealed, Revealed)
    assert revealed.order == order
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape).astype(np.float16) for shape in ((20, 100), (100, 20)))
    lanes = Sum(tuple(Chain(tuple((k,) for k in range(i, 100, 2)), "fma") for i in range(2)))
    for result, plain in ((revealed, order), (Revealed(lanes, None, 100, 0), lanes)):
        for product in (
            lambda way: mma.gemm(A, B, None, spec, way),
            lambda way: mma.chain([(A, B)], None, spec, way),
            lambda way: simt.gemm(A, B, fmt="fp16", order=way),
            lambda way: fpemu.gemm(A, B, scheme="sgemm", order=way),
            lambda way: fpemu.gemm(A, B, scheme="fp16", hardware="hopper", order=way),
        ):
            assert product(result).tobytes() == product(plain).tobytes()
        assert fpemu.conformance.verify(mma.gemm(A, B, None, spec, plain), A, B, hardware=spec, order=result).equal
    D = fpemu.gemm(A, B, scheme="ootomo", hardware="hopper", order=revealed)
    assert D.tobytes() == fpemu.gemm(A, B, scheme="ootomo", hardware="hopper", order=order).tobytes()


def test_a_tree_is_refused_by_schemes_of_several_products():
    A = np.ones((4, 4))
    tree = Revealed(Chain(tuple((k,) for k in range(4)), "fma"), None, 4, 0)
    for scheme, options in (
        ("ootomo", {}),
        ("h2sgemm", {}),
        ("ozaki", {}),
        ("ozaki2", {}),
        ("staged-int8", {}),
        ("egemm", {}),
        ("fp16", {"promote": 64}),
    ):
        with pytest.raises(InputError, match="a tree is an order of one plain product"):
            fpemu.gemm(A, A, scheme=scheme, hardware="hopper", order=tree, **options)
    for call in (lambda: fpemu.gpu.gemm(A, A, scheme="fp16", order=tree), lambda: mma.tree.order_of(tree, trees=False)):
        with pytest.raises(InputError, match="no KOrder is equal to it"):
            call()
    with pytest.raises(InputError, match=r"order must be a fpemu\.mma\.KOrder or a tree, not namespace"):
        mma.gemm(A, A, None, SPECS[0], SimpleNamespace(order=5))


def test_a_kernel_order_of_a_record_has_the_same_fields_as_before():
    order = KOrder(tile=64, residue_first=True, promote=128)
    assert order.to_dict() == {"tile": 64, "residue_first": True, "promote": 128}
    assert KOrder().to_dict() == {}
    assert to_dict(from_order(KOrder(), 100, SPECS[0])) == {
        "instruction": [{"of": ["0..15"], "count": 6, "step": 16}, ["96..99"]]
    }


@pytest.mark.parametrize("kind", ["sum", "chain"])
def test_a_tree_of_any_depth_is_evaluated(kind):
    deep = Chain(((0,),), "fma")
    for k in range(1, 2000):
        deep = Sum((deep, Chain(((k,),)))) if kind == "sum" else Chain(((k,),), "fma" if k % 2 else "instruction", deep)
    A = np.ones((1, 2000), np.float16)
    assert mma.gemm(A, A.T, None, mma.spec("hopper"), deep).item() == 2000


def test_the_runs_of_a_long_k_are_not_kept(monkeypatch):
    A, spec = np.ones((1, 40), np.float16), mma.spec("ampere", "fp16", "fp32")
    order = KOrder(split=24, tile=5, promote=10)
    kept = mma.gemm(A, A.T, None, spec, order)
    monkeypatch.setattr(sys.modules["fpemu.mma.gemm"], "_LONGEST_KEPT", 39)
    before = sys.modules["fpemu.mma.gemm"]._slices.cache_info()
    assert (mma.gemm(A, A.T, None, spec, order) == kept).all()
    assert sys.modules["fpemu.mma.gemm"]._slices.cache_info() == before


def test_a_block_of_a_tree_is_no_longer_than_a_block_of_the_instruction():
    A, spec = np.ones((1, 16), np.float16), mma.spec("ampere", "fp16", "fp32", k=16)  # two blocks of eight
    with pytest.raises(InputError, match=r"a block of 9 positions, one of .* takes 8"):
        mma.gemm(A, A.T, None, spec, Chain((tuple(range(9)), tuple(range(9, 16)))))
    assert mma.gemm(A, A.T, None, spec, Chain((tuple(range(8)), tuple(range(8, 16))))).item() == 16.0


def test_a_tree_consists_of_chains_and_sums_and_rounds_no_integers():
    with pytest.raises(InputError, match="a part 1 must be a Chain or a Sum"):
        Sum((Chain(((0,),)), 1))
    with pytest.raises(InputError, match="start = 'zero' must be a Chain or a Sum"):
        Chain(((0,),), start="zero")
    A = np.full((1, 4), 127, np.int8)
    for rounded in ({"fmt": "fp16"}, {"stored": "fp16"}):
        tree = Sum((Chain(((0, 1),)), Chain(((2, 3),))), **rounded)
        with pytest.raises(InputError, match="rounds sums to fp16"):
            mma.gemm(A, A.T, None, mma.spec("hopper", "int8"), tree)


def test_the_longer_run_of_positions_is_compressed():
    assert to_dict(Chain(((0, 8, 9, 10),))) == {"instruction": [[0, "8..10"]]}
    assert to_dict(Chain(((0, 1, 8, 9),))) == {"instruction": [[{"of": "0..1", "count": 2, "step": 8}]]}


def test_a_residue_that_comes_first_counts_as_a_whole_tile():
    """K = 168 is 40 + 64 + 64: promoted after two tiles of 64, the second of which ends at 104."""
    order = KOrder(tile=64, residue_first=True, promote=128)
    assert order.segments(168) == [[[(0, 40), (40, 104)], [(104, 168)]]]
    assert KOrder(tile=64, promote=128).segments(168) == [[[(0, 64), (64, 128)], [(128, 168)]]]
