"""The parts of the error-free schemes, each on its own: splits, merged products, blocks, memory, error bounds."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpemu
from fpemu import InputError, mma, reference
from fpemu.schemes import build
from fpemu.schemes.errorfree import sums
from fpemu.schemes.errorfree.plan import Counts, SlicePlan, levels
from fpemu.schemes.errorfree.products import SliceProducts, carrier
from fpemu.schemes.errorfree.split import ADAPTIVE, FIXED, BlockCost, block, even, pieces, split
from tests import calls

RULES = (*ADAPTIVE, *FIXED)
doubles = st.floats(allow_nan=False, allow_infinity=False)


def spread(shape, binades, seed=0):
    """Signed numbers whose exponents lie anywhere in so many binades, some zero."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-binades // 2, binades // 2 + 1, shape)
    return np.ldexp(rng.standard_normal(shape), exponents) * (rng.random(shape) < 0.9)


def exactly(slices, shape):
    """The sum of the slices and of what they leave, as Fractions."""
    total = np.full(shape, Fraction(0))
    parts = [(s.digits, s.exponents) for s in slices.items] + [(slices.rest.left, slices.rest.exponents)]
    for values, exponents in parts:
        for at, e in np.ndenumerate(np.broadcast_to(exponents, shape)):
            total[at] += Fraction(float(values[at])) * Fraction(2) ** int(e)
    return total


# --- splits


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("binades", [20, 300, 1900])
@pytest.mark.parametrize("count", [1, 3, None])
def test_slices_and_rest_add_up_exactly(rule, axis, binades, count):
    X = spread((5, 9), binades, binades)
    X[2, 3], X[4] = 5e-324, 0
    bits = 7
    limit = 2**bits - 1 if rule in FIXED else None
    got = split(X, axis, bits, rule, count, limit)
    assert (exactly(got, X.shape) == np.vectorize(Fraction, otypes=[object])(X)).all()
    assert got.complete == (count is None)
    assert got.largest <= (2**bits if limit is None else limit)
    assert all((s.digits == np.rint(s.digits)).all() for s in got.items)
    leftover = np.abs(np.ldexp(got.rest.left, got.rest.exponents))
    half = 0.5 if rule in ("balanced", "nearest") else 1.0
    with np.errstate(under="ignore"):
        assert (leftover <= np.ldexp(half, got.items[-1].exponents)).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(doubles, min_size=1, max_size=6), st.sampled_from(RULES), st.integers(2, 11))
def test_any_doubles_are_split_without_loss(values, rule, bits):
    X = np.array([values])
    got = split(X, 1, bits, rule, None, 2**bits - 1)
    assert got.complete
    assert (exactly(got, X.shape) == np.vectorize(Fraction, otypes=[object])(X)).all()
    # rows are split each for itself, and a column as the row that it is
    both = split(np.vstack([X, 3 * np.ones_like(X)]), 1, bits, rule, None, 2**bits - 1)
    turned = split(X.T, 0, bits, rule, None, 2**bits - 1)
    for one, two, three in zip(got.items, both.items, turned.items, strict=False):
        assert (one.digits[0] == two.digits[0]).all()
        assert (one.digits == three.digits.T).all()
        assert (one.exponents == three.exponents.T).all()


def test_algorithm_1_in_units_is_algorithm_1_in_floating_point():
    rng = np.random.default_rng(4)
    x = (rng.random(300) - 0.5) * np.exp(2 * rng.standard_normal(300))
    bits, left, expected = 7, x.copy(), []
    while left.any():
        tau = np.ceil(np.log2(np.abs(left).max()))
        sigma = 2.0 ** (53 - bits + tau)
        expected.append((left + sigma) - sigma)
        left = left - expected[-1]
    got = split(x[None], 1, bits, "published")
    assert got.slices == len(expected)
    for item, piece in zip(got.items, expected, strict=True):
        assert (np.ldexp(item.digits[0].astype(np.float64), item.exponents[0]) == piece).all()


def test_a_balanced_slice_takes_a_bit_more():
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (4, 4096))
    tops = {rule: [s.exponents for s in split(X, 1, 7, rule, 5).items] for rule in ADAPTIVE}
    assert (tops["published"][0] - tops["published"][4] == 4 * 7).all()
    assert (tops["balanced"][0] - tops["balanced"][4] == 4 * 8).all()


# --- products


def test_carriers_are_chosen_by_the_largest_sum():
    assert carrier(2**24) == np.float32
    assert carrier(2**24 + 1) == np.float64
    assert carrier(2**53) == np.float64
    with pytest.raises(ValueError, match="2\\^53"):
        carrier(2**53 + 1)


@pytest.mark.parametrize("hardware", ["volta", "turing", "hopper", "cdna1", "cdna2", "cdna3", "ascend910a"])
def test_merged_sums_are_the_sum_of_the_products_on_the_instruction(hardware):
    A, B = spread((13, 40), 60, 1), spread((40, 11), 60, 2)
    spec = mma.spec(hardware)
    a, b = split(A, 1, 8, "published"), split(B, 0, 8, "published")
    assert sums.stride(40, 8) is not None
    plan = SlicePlan("ozaki", spec, None, 40, 8, "published", False, None)
    every = [sums.exact_sum(SliceProducts(plan, a, b, how)) for how in ("blas", "compiled", "numpy")]
    exact = reference.matmul(A, B, method="flint")
    for total, broken in every:
        assert not broken.any()
        assert (total.round_to("fp64") == exact).all()


@pytest.mark.parametrize("tiny", [2.0**-30, 2.0**-90])
def test_merged_sums_with_almost_empty_last_bins(tiny):
    rng = np.random.default_rng(8)
    A, B = (rng.integers(-1000, 1000, (90, 90)) / 1024 for _ in range(2))
    A[3, 5], A[70, 1], B[5, 3], B[89, 0] = tiny, -3 * tiny, 5 * tiny, tiny
    spec = mma.spec("turing")
    a, b = split(A, 1, 8, "published"), split(B, 0, 8, "published")
    w = sums.stride(90, 8)
    assert any(sums.thin(x) for x in sums.merge(a, w, 1)[1])
    plan = SlicePlan("ozaki", spec, None, 90, 8, "published", False, None)
    D = sums.exact_sum(SliceProducts(plan, a, b, "blas"))[0].round_to("fp64")
    assert np.array_equal(D, reference.matmul(A, B, method="flint"))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.booleans(), st.sampled_from([None, 1, 2, 5]))
def test_a_plan_has_every_product_once_and_sums_those_of_equal_weight(a, b, d, fast, shared):
    plan = SlicePlan("ozimmu", None, None, 8, 7, "truncate", True, fpemu.FP64, shared=shared)
    groups = plan.groups(a, b, d, fast)
    pairs = [pair for group in groups for pair in group]
    assert sorted(pairs) == [(p, q) for p in range(a) for q in range(b) if not fast or p + q < d]
    assert sum(levels(a, b, d, fast)) == len(pairs)
    assert plan.sums(a, b, d, fast) == len(groups)
    if shared is None:
        assert pairs == sorted(pairs, key=lambda pair: pair[::-1])
    else:
        assert pairs == sorted(pairs, key=lambda pair: (sum(pair), pair[0]))
        assert all(len(group) <= shared and len({p + q for p, q in group}) == 1 for group in groups)


# --- blocks


def test_blocks_are_even_and_the_papers():
    assert even(7168, 3584) == 3584
    assert even(10240, 3584) == 3414
    assert even(5, 100) == 5
    assert [(s.start, s.stop) for s in pieces(10, 4)] == [(0, 4), (4, 8), (8, 10)]
    assert block(7168, 100, BlockCost(0, 0, 0), None, 3584, "x") == (3584, 100)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 10**4), st.integers(1, 500), st.integers(1, 10**9))
def test_blocks_stay_below_the_memory(M, N, line, entry, memory):
    cost = BlockCost(line, line, entry)
    if memory < cost.bytes(1, 1):
        with pytest.raises(InputError, match=str(cost.bytes(1, 1))):
            block(M, N, cost, memory, 3584, "ozaki")
        return
    rows, columns = block(M, N, cost, memory, 3584, "ozaki")
    assert cost.bytes(rows, columns) <= memory
    assert 1 <= rows <= M
    assert 1 <= columns <= N


@pytest.mark.parametrize("mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in ("DP", "CR")), "SP"])
def test_memory_is_bounded(mode):
    rng = np.random.default_rng(9)
    dtype = np.float32 if mode == "SP" else np.float64
    A, B = rng.uniform(-1, 1, (900, 500)).astype(dtype), rng.uniform(-1, 1, (500, 800)).astype(dtype)
    memory = 12 * 2**20
    fpemu.gemm(A[:2], B, scheme="ozaki", hardware="turing", mode=mode)  # what is loaded once
    tracemalloc.start()
    try:
        found = fpemu.certify(A, B, scheme="ozaki", hardware="turing", mode=mode, memory=memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.report.block[0] < 900
    assert found.report.block[1] < 800
    copies = 8 * (A.size + B.size) + 2 * found.D.nbytes  # operands in fp64, result
    assert peak <= memory + copies


def test_memory_is_bounded_where_rows_are_wide():
    A, B = spread((256, 400), 1800, 1), spread((400, 1), 0, 2)
    tracemalloc.start()
    try:
        fpemu.schemes.ozaki.counts(A, B, hardware="turing", mode="CR", memory=10**7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10**7


# --- error bounds


BOUNDED = [
    ("ozaki", {"mode": "DP"}),
    ("ozaki", {"slices": 2}),
    ("ozaki", {"slices": 4, "fast": False}),
    ("ozaki", {"mode": "SP"}),
    ("ozaki", {"mode": "CR"}),
    ("ozaki", {"mode": "CR", "precision": "fp32"}),
    ("ozimmu", {}),
    ("ozimmu", {"slices": 3}),
    ("ozimmu", {"slices": 4, "split": "nearest", "sums": "group"}),
    ("ozimmu", {"precision": "fp32"}),
    ("ozaki2", {}),
    ("ozaki2", {"moduli": 5}),
    ("ozaki2", {"moduli": 9, "scaling": "invariant"}),
    ("ozaki2", {"precision": "fp32"}),
]


@pytest.mark.parametrize(("scheme", "options"), BOUNDED)
@pytest.mark.parametrize("binades", [0, 40])
def test_the_error_is_below_its_bound(scheme, options, binades):
    chosen = build(scheme, options)
    A, B = spread((7, 50), binades, 3), spread((50, 6), binades, 4)
    A, B = A.astype(chosen.operand.dtype), B.astype(chosen.operand.dtype)
    D = fpemu.gemm(A, B, scheme=scheme, hardware="turing", **options)
    exact = reference.matmul(A, B, out="exact")
    bound = chosen.error_bound(A, B, "turing")
    assert np.isfinite(bound).all()
    worst = 0.0
    for at in np.ndindex(*D.shape):
        error = abs(Fraction(float(D[at])) - exact.fraction(*at))
        assert error <= Fraction(float(bound[at]))
        worst = max(worst, float(error) / float(bound[at]))
    # a bound that means something: within a few thousand of the error
    assert worst > 2e-4


def test_slices_that_are_lost_show_in_the_bound():
    A, B = np.array([[1 / 3, 2.0**-60]]), np.array([[0.0], [1.0]])
    for scheme, options in (("ozaki", {"slices": 3}), ("ozimmu", {"slices": 3}), ("ozaki2", {"moduli": 5})):
        D = fpemu.gemm(A, B, scheme=scheme, hardware="turing", **options)
        bound = build(scheme, options).error_bound(A, B, "turing")
        assert D[0, 0] == 0
        assert bound[0, 0] >= 2.0**-60


def test_no_bound_where_a_condition_is_broken():
    A = np.full((2, 64), 2047.0)
    assert np.isinf(build("ozaki", {"bits": 11, "mode": "CR"}).error_bound(A, A.T, "A100")).all()
    assert np.isfinite(build("ozaki", {"mode": "CR"}).error_bound(A, A.T, "A100")).all()
    A = np.full((1, 2**18), 1 - 2.0**-20)
    assert np.isinf(build("ozimmu", {"bits": 7}).error_bound(A, A.T)).all()
    assert np.isfinite(build("ozimmu", {}).error_bound(A, A.T)).all()
    for scheme in ("ozaki", "ozimmu", "ozaki2"):
        with pytest.raises(InputError, match=r"B: NaN or infinite.*1 of 4"):
            build(scheme, {}).error_bound(np.eye(2), np.array([[np.nan, 0], [0, 1]]), "A100")


def test_bounds_hold_where_products_underflow():
    K = 2**12
    A, B = np.full((1, K + 1), 2.0**-600), np.full((K + 1, 1), 2.0**-475)
    A[0, 0], B[0, 0] = 1, 0
    exact = reference.matmul(A, B, out="exact").fraction(0, 0)
    for scheme in ("ozaki", "ozimmu", "ozaki2"):
        options = {} if scheme == "ozaki2" else {"slices": 1}
        D = fpemu.gemm(A, B, scheme=scheme, hardware="turing", **options)
        bound = build(scheme, options).error_bound(A, B, "turing")
        assert abs(Fraction(float(D[0, 0])) - exact) <= Fraction(float(bound[0, 0]))


# --- what only some combinations show


def test_sums_near_overflow_do_not_lose_small_entries():
    """The row is scaled for its largest entry, which meets a zero."""
    A, B = np.array([[2.0**1000, 2.0**-500, 0.0]]), np.array([[0.0], [1.0], [2.0**1000]])
    for scheme, options in (("ozaki", {"fast": False, "slices": 6}), ("ozimmu", {"slices": 500})):
        assert fpemu.gemm(A, B, scheme=scheme, hardware="turing", **options).item() == 2.0**-500
    big = np.full((1, 3), 1.5 * 2.0**511)
    for scheme in ("ozaki", "ozimmu"):  # 3 · 2.25 · 2^1022 is beyond the range, 2.25 · 2^1022 is not
        assert np.isposinf(fpemu.gemm(big, big.T, scheme=scheme, hardware="turing"))
        mixed = big.T * [[1.0], [1.0], [-1.0]]
        assert fpemu.gemm(big, mixed, scheme=scheme, hardware="turing").item() == 2.25 * 2.0**1022


def test_slices_count_entries_that_no_slice_has_reached():
    """Algorithm 3 as printed takes them for done: their digits are zero."""
    A, B = np.array([[1.3 * 2.0**60, 1.7]]), np.array([[2.0**-200], [1.0]])
    assert fpemu.gemm(A, B, scheme="ozaki", hardware="A100").item() == 1.7
    assert fpemu.gemm(A, B, scheme="ozaki", hardware="A100", slices="printed").item() < 1e-40
    assert fpemu.schemes.ozaki.algorithm3(A, B, printed=True) == 2
    assert fpemu.schemes.ozaki.algorithm3(A, B) > 6


@pytest.mark.parametrize(
    ("hardware", "words"), [("H200", "bf16"), ("MI250X", "bf16"), ("MI300X", "bf16"), ("fp16", "fp16")]
)
def test_one_exponent_for_all_slices_reports_what_the_instruction_drops(hardware, words):
    tiny = 2.0**-14 if hardware == "fp16" else 2.0**-80
    spec = mma.spec("A100", "fp16", "fp16") if hardware == "fp16" else hardware
    A, B = np.array([[1.0, tiny, 0]]), np.array([[0.0], [tiny], [1.0]])
    options = {"scheme": "ozaki", "hardware": spec, "words": words, "mode": "CR", "exponents": "row"}
    found = [fpemu.certify(A, B, **options, carrier=how) for how in ("blas", "compiled")]
    assert found[0].D == found[1].D
    assert [f.kind for f in found[0].report.faults] == ["underflow"]
    with pytest.raises(fpemu.GuaranteeError, match="exponents='slice'"):
        fpemu.gemm(A, B, **options)


def test_the_last_k_block_may_have_the_longest_chain():
    order = mma.KOrder(tile=21, promote=65, residue_first=True)
    K = 85 + 84
    A, B = np.full((1, K), 16.0), np.full((K, 1), 16.0)
    A[0, 85] = B[85, 0] = 1
    for how in ("blas", "compiled"):
        found = fpemu.certify(
            A,
            B,
            scheme="ozaki",
            hardware="H200",
            words="e4m3",
            k_block=85,
            order=order,
            mode="CR",
            carrier=how,
            split="balanced",
        )
        assert found.report.ok
        assert found.D.item() == 43009


@pytest.mark.parametrize("mode", ["CR", "DP"])
def test_special_values_beside_finite_ones_that_would_overflow(mode):
    A, B = np.array([[np.inf, 1.0], [1.0, 2.0]]), np.eye(2)
    C = np.full((2, 2), 1.7e308)
    D = fpemu.gemm(A, B, C, beta=-2.0, scheme="ozaki", hardware="A100", mode="CR")
    assert D[0, 0] == np.inf
    assert (D[1] == -np.inf).all()
    zero = np.zeros((2, 2))
    for alpha, K in ((0.0, 2), (1.0, 0)):
        X, Y = np.ones((2, K)), np.ones((K, 2))
        D = fpemu.gemm(X, Y, zero, alpha=alpha, beta=np.nan, scheme="ozaki", hardware="A100", mode=mode)
        assert np.isnan(D).all()
    tiny = np.array([[5e-324]])
    for sign in (1, -1):  # the exact product is not zero
        D = fpemu.gemm(sign * tiny * 2.0**60, tiny, scheme="ozaki", hardware="A100", mode="CR", alpha=np.inf)
        assert D.item() == sign * np.inf
    empty = fpemu.gemm(np.eye(2), B, np.zeros((0, 2, 2)), beta=1.0, scheme="ozaki", hardware="A100", mode=mode)
    assert empty.shape == (0, 2, 2)


def test_rows_with_gaps_take_no_more_products_than_their_slices():
    A = np.where(np.arange(64) % 2, 2.0**500, 2.0**-500)[None].repeat(64, 0)
    a, b = split(A, 1, 9, "published"), split(A.T, 0, 9, "published")
    assert a.slices == b.slices == 2
    assert sums.bins(a, sums.stride(64, 9)) > 50
    found = fpemu.certify(A, A.T, scheme="ozaki", hardware="turing", mode="CR", memory=3 * 2**20)
    assert found.report.products == 4
    assert np.array_equal(found.D, reference.matmul(A, A.T, method="flint"))


def test_infinite_products_of_slices_end_as_nan():
    spec = mma.spec("A100", "fp16", "fp16")
    A = np.ones((1, 70000))
    order = mma.KOrder(promote=1024)
    found = fpemu.certify(A, A.T, scheme="ozaki", hardware=spec, mode="CR", bits=3, order=order)
    assert np.isnan(found.D).all()
    assert [f.kind for f in found.report.faults] == ["inexact-product"]


def test_the_first_slices_may_overflow_where_the_sum_does_not():
    """The first slices are rounded up to 2^512 and 2^511: their K = 2 products add up to 2^1024."""
    A, B = np.full((1, 2), 2.0**512 * (1 - 2.0**-30)), np.full((2, 1), 2.0**511)
    assert fpemu.gemm(A, B, scheme="ozaki", hardware="A100").item() == 2.0**1023 * (2 - 2.0**-29)


def test_one_slice_fills_one_bin():
    a = split(np.array([[1.0, -3.0], [1.0, 64.0]]), 1, 7, "published")
    assert a.slices == 1
    assert [sums.bins(a, w) for w in (8, 15)] == [1, 1]
    assert sums.lowest(a, 15).tolist() == [[2 - 15 - 6], [6 - 15 - 6]]


def test_the_memory_of_correct_rounding_has_all_limbs_of_the_sum():
    scheme, K = build("ozaki", {"mode": "CR"}), 100
    for spread in range(100, 160):
        cost = scheme._cost(K, Counts((3, 4), 4, False, 7, spread))
        total = sums.ExactSum(np.zeros((1, 1), int), np.zeros((1, 1), int), spread + K.bit_length() + 2)
        assert cost.entry == 96 + 16 * len(total._limbs)


# --- stacks of small products


STACKED = {
    "ozaki": [
        *({}, {"mode": "CR"}, {"mode": "SP"}, {"slices": "printed", "words": "int8"}, {"slices": 4, "fast": False}),
        *({"mode": "CR", "exponents": "row", "words": "bf16"}, {"memory": 4000}, {"carrier": "compiled", "mode": "CR"}),
    ],
    "ozimmu": [{}, {"slices": 4}, {"sums": "group"}, {"sums": "group", "group": 2}, {"loss": 2.0, "split": "nearest"}],
    "ozaki2": [{}, {"scaling": "fast"}, {"scaling": "invariant"}, {"moduli": 2}, {"carrier": "compiled"}],
}


@pytest.mark.parametrize(("scheme", "options"), [(s, o) for s, every in STACKED.items() for o in every], ids=str)
@pytest.mark.parametrize("leads", [((18,), (18,), (18,)), ((3, 1), (4,), (1, 4)), ((), (5,), ()), ((0,), (), (0,))])
def test_a_stack_has_the_bits_and_the_reports_of_its_products(scheme, options, leads):
    """Matrices of zeros, subnormal, huge and special numbers, of few and of many slices, beside ordinary ones."""
    generator = np.random.default_rng(11)
    shapes = [(*lead, *size) for lead, size in zip(leads, ((3, 5), (5, 2), (3, 2)), strict=True)]
    A, B, C = (generator.standard_normal(s) for s in shapes)
    for X in (A, B):
        X *= np.exp2(generator.integers(-40, 40, X.shape) * generator.integers(0, 2, (*X.shape[:-2], 1, 1)))
        for i, x in enumerate(X.reshape(-1, *X.shape[-2:])):
            x[...] = [x, 0 * x, 5e-324 * np.rint(4 * x), 2.0**980 * np.sign(x), np.rint(4 * x), x][i % 6]
            x[i % 3, i % 2] = [x[0, 0], np.nan, -np.inf][generator.integers(0, 3)] if i % 6 == 5 else x[0, 1]
    dtype = np.float32 if options.get("mode") == "SP" else np.float64
    with np.errstate(over="ignore"):
        A, B, C = (X.astype(dtype) for X in (A, B, C))
    lead = np.broadcast_shapes(*leads)
    left, right, addend = (np.broadcast_to(X, lead + X.shape[-2:]) for X in (A, B, C))
    for alpha, beta in ((1.0, 0.0), (0.3, -1.7), (np.inf, 1.0)):
        call = {"scheme": scheme, "hardware": "A100", "alpha": alpha, "beta": beta, **options}
        whole = fpemu.certify(A, B, C, **call)
        each = [fpemu.certify(left[i], right[i], addend[i], **call) for i in np.ndindex(*lead)]
        assert whole.D.shape == (*lead, 3, 2)
        assert whole.D.tobytes() == b"".join(one.D.tobytes() for one in each)
        assert whole.reports == tuple(one.report for one in each)
        assert not each or whole.report == next((one.report for one in each if not one.report.ok), each[0].report)
        assert len(each) < 18 or scheme == "ozaki2" or len({report.slices for report in whole.reports}) > 2


@pytest.mark.parametrize("scheme", STACKED)
def test_a_stack_of_small_products_takes_one_pass(scheme):
    A, B = np.random.default_rng(2).standard_normal((2, 100, 4, 4))
    one, many = (
        calls.count(lambda n=n: fpemu.gemm(A[:n], B[:n], scheme=scheme, hardware="A100")).total for n in (2, 100)
    )
    assert many < 20 * one  # not 50: only the reports are made one by one
