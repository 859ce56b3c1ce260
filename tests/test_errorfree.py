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
from fpemu.schemes.errorfree import exact_sums
from fpemu.schemes.errorfree.blocks import Cost, block, even, pieces
from fpemu.schemes.errorfree.products import SliceProducts, carrier, integer_product
from fpemu.schemes.errorfree.split import ADAPTIVE, FIXED, split

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
    assert len(got) == len(expected)
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


@pytest.mark.parametrize("largest", [100, 3000])
def test_integer_products(largest):
    rng = np.random.default_rng(6)
    X = rng.integers(-largest, largest + 1, (120, 90))
    Y = rng.integers(-largest, largest + 1, (90, 70))
    got = integer_product(X.astype(np.float64), Y.astype(np.float64), 90 * largest**2)
    assert got.dtype == (np.float32 if largest == 100 else np.float64)
    assert (got == X @ Y).all()


@pytest.mark.parametrize("hardware", ["volta", "turing", "hopper", "cdna1", "cdna2", "cdna3", "ascend910a"])
def test_merged_sums_are_the_sum_of_the_products_on_the_instruction(hardware):
    A, B = spread((13, 40), 60, 1), spread((40, 11), 60, 2)
    spec = mma.spec(hardware)
    a, b = split(A, 1, 8, "published"), split(B, 0, 8, "published")
    assert exact_sums.stride(40, 8) is not None
    every = [exact_sums.exact_sum(SliceProducts(a, b, spec, None, how)) for how in ("blas", "compiled", "numpy")]
    exact = reference.matmul(A, B, method="python")
    for total in every:
        assert (total.round_to("fp64") == exact).all()


@pytest.mark.parametrize("tiny", [2.0**-30, 2.0**-90])
def test_merged_sums_with_almost_empty_last_bins(tiny):
    rng = np.random.default_rng(8)
    A, B = (rng.integers(-1000, 1000, (90, 90)) / 1024 for _ in range(2))
    A[3, 5], A[70, 1], B[5, 3], B[89, 0] = tiny, -3 * tiny, 5 * tiny, tiny
    spec = mma.spec("turing")
    a, b = split(A, 1, 8, "published"), split(B, 0, 8, "published")
    w = exact_sums.stride(90, 8)
    assert any(exact_sums.thin(x) for x in exact_sums.merge(a, w, 1)[1])
    D = exact_sums.exact_sum(SliceProducts(a, b, spec, None, "blas")).round_to("fp64")
    assert np.array_equal(D, reference.matmul(A, B, method="flint"))


# --- blocks


def test_blocks_are_even_and_the_papers():
    assert even(7168, 3584) == 3584
    assert even(10240, 3584) == 3414
    assert even(5, 100) == 5
    assert [(s.start, s.stop) for s in pieces(10, 4)] == [(0, 4), (4, 8), (8, 10)]
    assert block(7168, 100, Cost(0, 0, 0), None, 3584, "x") == (3584, 100)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 10**4), st.integers(1, 500), st.integers(1, 10**9))
def test_blocks_stay_below_the_memory(M, N, line, entry, memory):
    cost = Cost(line, line, entry)
    if memory < cost.bytes(1, 1):
        with pytest.raises(InputError, match=str(cost.bytes(1, 1))):
            block(M, N, cost, memory, 3584, "ozaki")
        return
    rows, columns = block(M, N, cost, memory, 3584, "ozaki")
    assert cost.bytes(rows, columns) <= memory
    assert 1 <= rows <= M
    assert 1 <= columns <= N


@pytest.mark.parametrize("mode", ["DP", "CR", "SP"])
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


# --- error bounds


BOUNDED = [
    ("ozaki", {"mode": "DP"}), ("ozaki", {"slices": 2}), ("ozaki", {"slices": 4, "fast": False}),
    ("ozaki", {"mode": "SP"}), ("ozaki", {"mode": "CR"}), ("ozaki", {"mode": "CR", "precision": "fp32"}),
    ("ozimmu", {}), ("ozimmu", {"slices": 3}), ("ozimmu", {"slices": 4, "split": "nearest", "sums": "group"}),
    ("ozimmu", {"precision": "fp32"}), ("ozaki2", {}), ("ozaki2", {"moduli": 5}),
    ("ozaki2", {"moduli": 9, "scaling": "invariant"}), ("ozaki2", {"precision": "fp32"}),
]  # fmt: skip


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
