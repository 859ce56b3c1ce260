"""The results of ozaki (CR, DP, SP) and ozimmu, bit for bit, against tests/oracle/ozaki.py.

Reports and refusals are in test_ozaki_guarantees.py, ozaki2 in test_ozaki2.py.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fpemu
from fpemu import reference
from fpemu.mma import KOrder
from tests.equal import same as same_bits
from tests.hostile import examples
from tests.oracle import ozaki as oracle

TINY, MIN_NORMAL, MAX = 2.0**-1074, 2.0**-1022, float(np.finfo(np.float64).max)
BIG, MAX32 = 2.0**1000, float(np.finfo(np.float32).max)
CARRIERS = ("blas", "compiled", "numpy")
same = partial(same_bits, any_nan=True)


def cr(A, B, C=None, hardware="hopper", **options):
    return fpemu.gemm(A, B, C, scheme="ozaki", mode="CR", hardware=hardware, **options)


def paper(shape, phi, rng):
    """(rand - 0.5)·exp(phi·randn), section 5.1 of the DGEMM-TC paper."""
    return (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))


def spread(shape, rng, low=-1000, high=1000):
    """Full significands, exponents anywhere in [low, high)."""
    return np.ldexp(rng.uniform(0.5, 1, shape) * rng.choice([-1, 1], shape), rng.integers(low, high, shape))


# --- CR: one rounding of the exact result


def check_cr(A, B, C=None, precision="fp64", **options):
    A, B = np.asarray(A, np.float64), np.asarray(B, np.float64)
    alpha, beta = options.get("alpha", 1.0), options.get("beta", 0.0)
    D = cr(A, B, C, precision=precision, **options)
    same(D, oracle.product(A, B, alpha, beta, C, precision))
    out = {"alpha": alpha, "beta": beta, "out": precision}
    same(D, reference.matmul(A, B, C if beta else None, method="flint", **out))
    if A.size + B.size <= 100:
        same(D, reference.matmul(A, B, C if beta else None, method="mpmath", **out))
    return D


def column(*values):
    return [[v] for v in values]


# name: (A, B, the double expected, by hand)
ADVERSARIAL = {
    "tie to even, down": ([[1, 2**-53]], column(1, 1), 1.0),
    "tie to even, up": ([[1, 2**-52, 2**-53]], column(1, 1, 1), 1 + 2**-51),
    "tie broken upward far below": ([[1, 2**-53, 2.0**-1000]], column(1, 1, 2.0**-1000), 1 + 2**-52),
    "tie broken downward far below": ([[1, 2**-52, 2**-53, 2.0**-1000]], column(1, 1, 1, -(2.0**-1000)), 1 + 2**-52),
    "tie broken 3000 binades below": ([[BIG, 2.0**947, TINY]], column(2.0**23, 2.0**23, TINY), 2.0**1023 + 2.0**971),
    "cancellation to one bit": ([[MAX, -MAX, TINY]], column(1, 1, 1), TINY),
    "cancellation to zero": ([[MAX, -MAX]], column(1, 1), 0.0),
    "cancellation to the lowest product": ([[BIG, 2.0**-500, -BIG]], column(BIG, 2.0**-500, BIG), 2.0**-1000),
    "squares that differ in the last bit": ([[1 + 2**-52, -1]], column(1 - 2**-52, 1), -(2.0**-104)),
    "partial sums overflow": ([[MAX, MAX, -MAX, -MAX]], column(MAX, 1, MAX, 0.5), 0.5 * MAX),
    "largest double": ([[MAX]], column(1), MAX),
    "overflow, just below the threshold": ([[MAX, 2.0**970, -TINY]], column(1, 1, TINY), MAX),
    "overflow, at the threshold": ([[MAX, 2.0**970]], column(1, 1), math.inf),
    "overflow below, at the threshold": ([[MAX, 2.0**970]], column(-1, -1), -math.inf),
    "overflow, far": ([[MAX]], column(MAX), math.inf),
    "underflow to +0": ([[2.0**-600]], column(2.0**-600), 0.0),
    "underflow to -0": ([[2.0**-600]], column(-(2.0**-600)), -0.0),
    "underflow, half of the smallest, tie": ([[2.0**-537]], column(2.0**-538), 0.0),
    "underflow, half of the smallest, tie, negative": ([[-(2.0**-537)]], column(2.0**-538), -0.0),
    "underflow, half of the smallest, broken": ([[2.0**-537, TINY]], column(2.0**-538, TINY), TINY),
    "subnormal tie to even": ([[3 * TINY]], column(0.5), 2 * TINY),
    "subnormal inputs": ([[TINY, 5 * TINY]], column(3, 2.0), 13 * TINY),
    "subnormals times the largest": ([[TINY, MIN_NORMAL]], column(2.0**1023, 2.0**1023), 2.0 + 2.0**-51),
    "subnormal rounds up to normal": ([[MIN_NORMAL - TINY, TINY]], column(1, 0.5), MIN_NORMAL),
    "one element": ([[0.1]], column(0.3), 0.1 * 0.3),
    "zeros": ([[0.0, -0.0]], column(-1, 1), 0.0),
    "negative zero is plus zero": ([[-0.0]], column(1), 0.0),
    "zero times subnormal": ([[0.0, TINY]], column(MAX, 0.0), 0.0),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_cr_of_adversarial_sums(name):
    A, B, expected = ADVERSARIAL[name]
    same(check_cr(A, B), np.array([[expected]]))


FP32_ADVERSARIAL = {
    "tie to even, down": ([[1, 2**-24]], column(1, 1), 1.0),
    "tie broken far below": ([[1, 2**-24, 2**-100]], column(1, 1, 2**-100), 1 + 2**-23),
    "no double rounding": ([[1, 2**-24, 2**-60]], column(1, 1, -1), 1.0),
    "no double rounding, up": ([[1, 2**-23, 2**-24, 2**-60]], column(1, 1, 1, -1), 1 + 2**-23),
    "overflow, just below": ([[MAX32, 2.0**103, -(2.0**-149)]], column(1, 1, 2.0**-149), MAX32),
    "overflow, at the threshold": ([[MAX32, 2.0**103]], column(1, 1), math.inf),
    "underflow tie": ([[2.0**-75]], column(2.0**-75), 0.0),
    "underflow tie, negative": ([[2.0**-75]], column(-(2.0**-75)), -0.0),
    "underflow broken": ([[2.0**-75, 2.0**-149]], column(2.0**-75, 2.0**-149), 2.0**-149),
    "cancellation": ([[MAX32, 2.0**-149, -MAX32]], column(MAX32, 1, MAX32), 2.0**-149),
}


@pytest.mark.parametrize("name", FP32_ADVERSARIAL)
def test_cr_in_fp32_of_adversarial_sums(name):
    A, B, expected = FP32_ADVERSARIAL[name]
    same(check_cr(A, B, precision="fp32"), np.array([[expected]], np.float32))


DOUBLES = st.one_of(
    st.floats(width=64, allow_nan=False, allow_infinity=False),
    st.floats(-4, 4, width=16),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, TINY, -TINY, MIN_NORMAL, MAX, -MAX, 2.0**-53, 1 + 2**-52, 1 - 2**-53]),
)
SINGLES = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-4, 4, width=16),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, 2.0**-126, MAX32, -MAX32, 2.0**-24, 1 + 2**-23]),
)


def matrices(elements):
    """A (M, K), B (K, N), C (M, N), alpha, beta of these elements; sometimes the second half of K undoes the first."""

    @st.composite
    def draw(draw_):
        M, K, N = draw_(st.integers(1, 3)), draw_(st.integers(1, 6)), draw_(st.integers(1, 3))

        def matrix(m, n):
            return np.array(draw_(st.lists(elements, min_size=m * n, max_size=m * n)), np.float64).reshape(m, n)

        A, B, C = matrix(M, K), matrix(K, N), matrix(M, N)
        if K >= 3 and draw_(st.booleans()):
            half = (K - 1) // 2
            A[:, half : 2 * half], B[half : 2 * half] = -A[:, :half], B[:half]
        return A, B, C, draw_(elements), draw_(elements)

    return draw()


@settings(max_examples=examples(60))
@given(matrices(DOUBLES))
def test_cr_of_any_doubles(operands):
    A, B, *_ = operands
    check_cr(A, B)


@settings(max_examples=examples(50))
@given(matrices(DOUBLES))
def test_cr_with_any_alpha_beta_and_c(operands):
    A, B, C, alpha, beta = operands
    assume(alpha)  # 0 has a separate test
    check_cr(A, B, C, alpha=alpha, beta=beta)


@settings(max_examples=examples(40))
@given(matrices(SINGLES))
def test_cr_in_fp32_with_any_alpha_beta_and_c(operands):
    A, B, C, alpha, beta = operands
    assume(alpha)  # 0 has a separate test
    check_cr(A, B, C, alpha=alpha, beta=beta, precision="fp32")


@pytest.mark.parametrize(
    ("alpha", "beta", "c", "expected"),
    [
        (1.0, 2.0**-1000, TINY, 1.0 + 2.0**-52),  # beta·C = 2^-2074 breaks the tie of 1 + 2^-53
        (1.0, 2.0**-1000, -TINY, 1.0),
        (1.0, 0.0, math.nan, 1.0),  # a tie, and C is not read
        (2.0**-1074, 0.0, 0.0, TINY),
        (TINY, TINY, 0.5, 2 * TINY),  # (1 + 2^-53 + 1/2) units: above the tie
        (-1.0, 1.0, 1.0, -(2.0**-53)),  # what plain arithmetic loses
        (2.0**1000, -(2.0**1000), 1.0, 2.0**947),
        (2.0**1023, 2.0**1023, 1.0, math.inf),
        (0.0, 0.1, 3.0, 0.1 * 3.0),
        (MAX, -MAX, 1.0, MAX * 2.0**-53),
    ],
)
def test_cr_alpha_and_beta_share_the_one_rounding(alpha, beta, c, expected):
    A, B, C = np.array([[1, 2.0**-53]]), np.ones((2, 1)), np.array([[c]])
    same(cr(A, B, C, alpha=alpha, beta=beta), np.array([[expected]]))
    if math.isfinite(c):
        same(oracle.product(A, B, alpha, beta, C), np.array([[expected]]))


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize(("alpha", "K"), [(0.0, 2), (1.0, 0), (0.0, 0), (1.0, 2)])
def test_cr_where_only_beta_c_is_left(precision, alpha, K):
    """One rounding of beta·C, by the same rules: an exact zero is +0, whatever the signs of the factors."""
    C = np.array([[0.0, -0.0, 1.5, -1.5, 2.0**-149, -(2.0**-149)]])
    for beta in (1.0, -1.0, 0.25, -(2.0**-100)):
        D = cr(np.zeros((1, K)), np.zeros((K, 6)), C, alpha=alpha, beta=beta, precision=precision)
        same(D, oracle.as_array([[Fraction(beta) * Fraction(c) for c in C[0].tolist()]], (1, 6), precision))


def test_cr_without_double_rounding_of_alpha_and_beta_in_plain_data():
    rng = np.random.default_rng(3)
    A, B, C = (rng.uniform(-1, 1, shape) for shape in ((9, 30), (30, 8), (9, 8)))
    alpha, beta = 0.1, -0.7
    D = check_cr(A, B, C, alpha=alpha, beta=beta)
    assert (alpha * cr(A, B) + beta * C != D).any()  # else this test shows nothing


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 17, 1), (5, 1, 4), (1, 9, 7), (7, 9, 1), (3, 33, 5), (16, 40, 2)])
@pytest.mark.parametrize("kind", ["paper", "spread", "rows", "cancel", "subnormal", "sparse"])
def test_cr_of_shapes_and_ranges(shape, kind):
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    A, B = paper((M, K), 2.0, rng), paper((K, N), 2.0, rng)
    if kind == "spread":  # 2000 binades in a row
        A, B = spread((M, K), rng), spread((K, N), rng)
        A[:, 8:], B[8:] = 0, 0
    elif kind == "rows":
        A = np.ldexp(A, rng.integers(-1060, 1000, (M, 1)))
        B = np.ldexp(B, rng.integers(-1060, 1000, (1, N)))
    elif kind == "cancel":
        half = K // 2
        A[:, half : 2 * half] = -A[:, :half]
        B[half : 2 * half] = B[:half] * (1 + 2.0**-52)
    elif kind == "subnormal":
        A, B = np.ldexp(A, -1060), np.ldexp(B, -6)
    elif kind == "sparse":
        A, B = np.where(rng.random(A.shape) < 0.7, 0, A), np.where(rng.random(B.shape) < 0.7, 0, B)
    with np.errstate(all="ignore"):
        check_cr(A, B)


def test_cr_broadcasts_batches():
    rng = np.random.default_rng(5)
    A, B, C = paper((2, 1, 4, 9), 3.0, rng), paper((3, 9, 5), 3.0, rng), paper((3, 4, 5), 1.0, rng)
    D = cr(A, B, C, alpha=0.3, beta=1.7)
    assert D.shape == (2, 3, 4, 5)
    for i in range(2):
        for j in range(3):
            same(D[i, j], oracle.product(A[i, 0], B[j], 0.3, 1.7, C[j]))


CONFIGURATIONS = [
    ("ozaki", {"mode": "CR"}),
    ("ozaki", {"mode": "CR", "precision": "fp32"}),
    ("ozaki", {"mode": "DP"}),
    ("ozaki", {"mode": "SP"}),
    ("ozimmu", {}),
    ("ozaki2", {}),
    ("ozaki2", {"precision": "fp32"}),
]
every = pytest.mark.parametrize(("scheme", "options"), CONFIGURATIONS, ids=str)


def result_type(options):
    return np.float32 if options.get("precision") == "fp32" or options.get("mode") == "SP" else np.float64


@every
def test_zeros_and_products_that_vanish_are_plus_zero(scheme, options):
    dtype = result_type(options)
    for A, B in (
        (np.zeros((2, 3)), np.ones((3, 2))),
        (np.ones((2, 3)), -np.zeros((3, 2))),
        (-np.ones((2, 3)), np.zeros((3, 2))),
        (np.array([[1.0, 0.0], [-3.0, 0.0]]), np.array([[0.0, 0.0], [0.1, 7.0]])),
    ):
        A, B = A.astype(np.float32), B.astype(np.float32)
        D = fpemu.gemm(A, B, scheme=scheme, hardware="hopper", **options)
        same(D, np.zeros((2, 2), dtype))


@every
def test_one_row_of_zeros_does_not_disturb_the_others(scheme, options):
    rng = np.random.default_rng(7)
    A, B = rng.uniform(-1, 1, (3, 8)).astype(np.float32), rng.uniform(-1, 1, (8, 3)).astype(np.float32)
    A[1], B[:, 2] = 0, 0
    D = fpemu.gemm(A, B, scheme=scheme, hardware="hopper", **options)
    same(D[1], np.zeros(3, D.dtype))
    same(D[:, 2], np.zeros(3, D.dtype))
    limit = 2.0**-20 if D.dtype == np.float32 else 2.0**-48
    assert (abs(D - A.astype(np.float64) @ B) <= limit * (abs(A) @ abs(B))).all()


# --- the same bits whatever it runs on


WORDS = [
    ("fp16", "ideal"),
    ("fp16", "volta"),
    ("fp16", "turing"),
    ("fp16", "ampere"),
    ("fp16", "H200"),
    ("fp16", "B200"),
    ("fp16", "cdna1"),
    ("fp16", "cdna2"),
    ("fp16", "cdna3"),
    ("fp16", "ascend910a"),
    ("bf16", "ampere"),
    ("bf16", "hopper"),
    ("bf16", "cdna1"),
    ("bf16", "cdna3"),
    ("bf16", "ideal"),
    ("tf32", "ampere"),
    ("tf32", "hopper"),
    pytest.param("tf32", "cdna3", marks=pytest.mark.slow),
    ("e4m3", "ada"),
    ("e4m3", "hopper"),
    ("e4m3", "blackwell"),
    pytest.param("e4m3", "cdna3", marks=pytest.mark.slow),
    ("e5m2", "hopper"),
    ("int8", "ampere"),
    ("int8", "hopper"),
    ("int8", "cdna2"),
    ("int8", "ideal"),
    pytest.param("fp64", "ampere", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def plain():
    """Operands with some range in each row, and their product."""
    rng = np.random.default_rng(8)
    A, B = paper((5, 37), 3.0, rng), paper((37, 4), 3.0, rng)
    A[0, :18], A[0, 18:36] = A[0, 0], -A[0, 0]
    B[:18, 0] = B[18:36, 0]
    return A, B, oracle.product(A, B)


@pytest.mark.parametrize(("words", "hardware"), WORDS)
def test_cr_has_the_same_bits_with_all_words_and_hardware(plain, words, hardware):
    A, B, expected = plain
    same(cr(A, B, words=words, hardware=hardware), expected)
    same(cr(A, B, words=words, hardware=hardware, carrier="compiled"), expected)


@pytest.mark.parametrize("split", ["published", "balanced"])
@pytest.mark.parametrize(("words", "hardware"), [("fp64", "ampere"), ("fp16", "hopper"), ("int8", "hopper")])
def test_sums_of_k_blocks_are_joined_exactly(words, hardware, split):
    """Blocks that are exact one by one, of as many bits as that allows: their sum must be, too."""
    for K, k_block in ((11, 8), (9, 4), (40, 2)):
        A, B = np.full((1, K), 1 - 2.0**-53), np.full((K, 1), -1 + 2.0**-53)
        A[0, 0] = -1.0
        same(cr(A, B, words=words, hardware=hardware, split=split, k_block=k_block), oracle.product(A, B))


@pytest.mark.parametrize(
    "options",
    [
        *({"words": w, "split": s} for w in ("fp16", "bf16", "int8") for s in ("published", "balanced")),
        *({"instruction": "mma", "k": k} for k in (8, 16)),
        *({"k_block": k} for k in (1, 16, 37)),
        *({"bits": bits} for bits in (2, 5, 8)),
        {"order": KOrder(split=16)},
        {"order": KOrder(promote=16)},
        {"order": KOrder(split=20, tile=8, residue_first=True, join="pairwise")},
    ],
    ids=str,
)
def test_cr_has_the_same_bits_with_all_carriers_and_options(plain, options):
    A, B, expected = plain
    for carrier in CARRIERS:
        same(cr(A, B, carrier=carrier, **options), expected)


def test_cr_has_the_same_bits_for_any_number_of_threads(plain, monkeypatch):
    A, B, expected = plain
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("FPEMU_THREADS", threads)
        same(cr(A, B, carrier="compiled"), expected)
        same(cr(A, B), expected)


def smaller_blocks(A, B, **arguments):
    """certify for ever less memory, until it is refused; the first entry has no limit."""
    results = [fpemu.certify(A, B, scheme="ozaki", hardware="hopper", **arguments)]
    for exponent in range(28, 8, -1):
        try:
            results.append(fpemu.certify(A, B, scheme="ozaki", hardware="hopper", memory=1 << exponent, **arguments))
        except fpemu.InputError:
            break
    return results


@pytest.mark.parametrize("mode", ["CR", "DP"])
def test_blocks_for_less_memory_change_no_bit(mode):
    rng = np.random.default_rng(9)
    A, B, C = paper((26, 20), 1.0, rng), paper((20, 17), 1.0, rng), paper((26, 17), 1.0, rng)
    A[::7] *= 2.0**40  # blocks that would choose other numbers of slices
    A[:, 5] *= np.where(np.arange(26) < 13, 1, 2.0**-30)
    results = smaller_blocks(A, B, C=C, alpha=0.7, beta=-1.5, mode=mode)
    blocks = {r.report.block for r in results}
    assert len(blocks) > 5, "the limits on memory made no blocks"
    assert (1, 1) in blocks
    assert all(m <= 26 and n <= 17 for m, n in blocks)
    for r in results:
        same(r.D, results[0].D)
        assert r.report.slices == results[0].report.slices
    if mode == "CR":
        same(results[0].D, oracle.product(A, B, 0.7, -1.5, C))


# --- NaN and Inf


@every
def test_nan_and_inf_go_where_dgemm_sends_them(scheme, options):
    rng = np.random.default_rng(10)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    for case in range(40):
        A = rng.integers(-8, 9, (4, 6)) / np.float32(4)
        B = rng.integers(-8, 9, (6, 5)) / np.float32(4)
        C = rng.integers(-8, 9, (4, 5)) / np.float32(4)
        for X, most in ((A, 3), (B, 3), (C, 2)):
            for _ in range(rng.integers(0, most)):
                X[rng.integers(X.shape[0]), rng.integers(X.shape[1])] = rng.choice(special)
        scale = {"alpha": float(rng.choice([1, -2, 0.5, 0])), "beta": float(rng.choice([0, 1, -3]))}
        expected = fpemu.gemm(A, B, C, scheme="dgemm", **scale)
        on_range = ("raise", "propagate", "scale")[case % 3]
        D = fpemu.gemm(A, B, C, scheme=scheme, hardware="hopper", on_range=on_range, **scale, **options)
        assert (np.isnan(D) == np.isnan(expected)).all()
        infinite = np.isinf(expected)
        assert (np.isinf(D) == infinite).all()
        assert (D[infinite] == expected[infinite]).all()
        finite = np.isfinite(expected)
        # multiples of 1/16 and of 1/8 of modest size: every scheme is exact here (Ozaki-II truncates nothing)
        assert (D[finite] == expected[finite]).all()


def test_a_nan_leaves_the_other_entries_correctly_rounded():
    rng = np.random.default_rng(11)
    A, B = spread((4, 6), rng), spread((6, 4), rng, -20, 20)
    A[1, 2], B[3, 3] = np.nan, -np.inf
    with np.errstate(all="ignore"):
        D, expected = cr(A, B), reference.matmul(A, B)
    assert np.isnan(D).any()
    assert np.isinf(D).any()
    same(D, expected)


# --- DP and SP: Algorithms 1, 2 and 3


def run(A, B, C=None, hardware="hopper", **options):
    return fpemu.certify(A, B, C, scheme="ozaki", hardware=hardware, **options)


SHAPES = [(4, 40, 3), (3, 16, 5), (1, 130, 1), (2, 5, 2), (3, 300, 2)]
MODES = [("DP", "fp64", np.float64), ("SP", "fp32", np.float32)]
in_both = pytest.mark.parametrize(("mode", "precision", "dtype"), MODES)


def operands(shape, phi, dtype):
    """Every third number far below the others, so that Algorithm 3 ends well before Algorithm 1."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N, int(10 * phi)])
    A, B = paper((M, K), phi, rng), paper((K, N), phi, rng)
    A[:, ::3] *= 2.0**-40
    B[1::3] *= 2.0**-40
    return A.astype(dtype), B.astype(dtype)


@in_both
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("phi", [0.1, 1.0, 4.0])
def test_dp_with_automatic_slices_is_algorithms_1_to_3(mode, precision, dtype, shape, phi):
    A, B = operands(shape, phi, dtype)
    bits = oracle.published_bits(shape[1])
    d = oracle.algorithm3(A, B, bits, precision)
    complete = min(oracle.count(oracle.rows(A, bits)), oracle.count(oracle.rows(B.T, bits)))
    assert d < complete, "choose other operands: here the fast mode is open to argument"
    assert fpemu.schemes.ozaki.algorithm3(A, B, precision=precision) == d
    expected = oracle.dgemm_tc(A, B, d, True, bits, precision)
    got = run(A, B, mode=mode)
    assert got.report.bits == bits
    assert got.report.slices == expected.slices == (d, d)
    assert got.report.products == expected.products == d * (d + 1) // 2
    same(got.D, expected.D)
    same(fpemu.gemm(A, B, scheme="ozaki", mode=mode, hardware="hopper"), expected.D)


@in_both
@pytest.mark.parametrize("slices", [None, 1, 2, 3, 5, 20])
@pytest.mark.parametrize("fast", [True, False])
def test_dp_with_the_fast_mode_given_is_algorithm_2(mode, precision, dtype, slices, fast):
    A, B = operands((3, 40, 4) if slices is None else (3, 24, 4), 1.0, dtype)
    d = slices or oracle.algorithm3(A, B, oracle.published_bits(40), precision)
    expected = oracle.dgemm_tc(A, B, d, fast, precision=precision)
    got = run(A, B, mode=mode, slices=slices, fast=fast)
    assert (got.report.slices, got.report.products) == (expected.slices, expected.products)
    same(got.D, expected.D)


@in_both
def test_dp_turns_the_fast_mode_off_where_the_split_ends_early(mode, precision, dtype):
    """Short significands: Algorithm 1 comes to its end before Algorithm 3 is satisfied."""
    rng = np.random.default_rng(12)
    most = 2**22 if precision == "fp64" else 2**13
    A, B = (rng.integers(most // 2, most, shape).astype(dtype) for shape in ((4, 16), (16, 3)))
    enough = oracle.satisfied(A, B, 10, precision)
    sa, sb = oracle.count(oracle.rows(A, 10)), oracle.count(oracle.rows(B.T, 10))
    assert sa >= 2
    assert sb >= 2
    assert not any(enough(d) for d in range(2, sa + 1))
    got = run(A, B, mode=mode)
    assert got.report.slices == (sa, sb)
    assert got.report.products == sa * sb
    assert got.report.complete
    same(got.D, oracle.dgemm_tc(A, B, max(sa, sb), False, 10, precision).D)
    if precision == "fp64":
        same(got.D, oracle.product(A, B))  # 48 bits: every sum is exact


@in_both
@pytest.mark.parametrize("shape", SHAPES)
def test_dp_of_dense_numbers_is_algorithm_2(mode, precision, dtype, shape):
    """Here Algorithms 1 and 3 end at about the same time, and the paper leaves open which of them decides."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    A, B = paper((M, K), 0.1, rng).astype(dtype), paper((K, N), 0.1, rng).astype(dtype)
    bits = oracle.published_bits(K)
    d = oracle.algorithm3(A, B, bits, precision)
    complete = oracle.count(oracle.rows(A, bits)), oracle.count(oracle.rows(B.T, bits))
    got = run(A, B, mode=mode)
    fast = fpemu.schemes.ozaki.counts(A, B, hardware="hopper", mode=mode).fast
    assert got.report.slices[0] == min(d, complete[0])
    assert min(d, complete[1]) <= got.report.slices[1] <= complete[1]
    if d > complete[0]:
        assert not fast
    expected = oracle.dgemm_tc(A, B, got.report.slices, fast, bits, precision)
    assert got.report.products == expected.products
    same(got.D, expected.D)


@pytest.mark.parametrize("k_block", [5, 16, 32])
def test_dp_with_k_blocks_keeps_more_bits_and_joins_exactly(k_block):
    A, B = operands((3, 300, 2), 1.0, np.float64)
    bits = oracle.published_bits(k_block)
    d = oracle.algorithm3(A, B, bits)
    expected = oracle.dgemm_tc(A, B, d, True, bits)
    got = run(A, B, k_block=k_block)
    assert got.report.bits == bits > oracle.published_bits(300)
    assert got.report.slices == (d, d)
    same(got.D, expected.D)


@in_both
@pytest.mark.parametrize("hardware", ["volta", "ampere", "hopper", "cdna2", "cdna3", "ideal"])
def test_dp_has_the_same_bits_on_all_hardware_and_carriers(mode, precision, dtype, hardware):
    A, B = operands((3, 40, 4), 1.0, dtype)
    bits = oracle.published_bits(40)
    d = oracle.algorithm3(A, B, bits, precision)
    expected = oracle.dgemm_tc(A, B, d, True, bits, precision).D
    for carrier in CARRIERS:
        got = run(A, B, mode=mode, hardware=hardware, carrier=carrier, bits=bits)
        same(got.D, expected)


@in_both
def test_dp_scaled_by_powers_of_two_is_scaled(mode, precision, dtype):
    A, B = operands((4, 24, 5), 0.5, dtype)
    a, b = (700, -900) if mode == "DP" else (60, -70)
    D = run(A, B, mode=mode).D
    same(run(np.ldexp(A, a), np.ldexp(B, b), mode=mode).D, np.ldexp(D, a + b))


def worst(D, A, B):
    """Largest error over |A||B|."""
    return float((oracle.errors(D, A, B) / (abs(A).astype(np.float64) @ abs(B).astype(np.float64))).max())


@pytest.mark.parametrize("phi", [0.1, 1.0, 2.0])
def test_dp_is_about_as_accurate_as_dgemm(phi):
    A, B = operands((12, 256, 12), phi, np.float64)
    ours, plain = worst(run(A, B).D, A, B), worst(fpemu.gemm(A, B, scheme="dgemm"), A, B)
    assert ours <= 4 * plain
    A, B = operands((12, 256, 12), phi, np.float32)
    ours, plain = worst(run(A, B, mode="SP").D, A, B), worst(fpemu.gemm(A, B, scheme="sgemm"), A, B)
    assert ours <= 4 * plain


def test_the_paper_split_does_not_depend_on_signs_but_by_one_bit():
    """Positive numbers are cut on a grid twice as coarse as negative ones: fl(x + sigma) leaves [sigma/2, sigma)."""
    A, B = np.array([[1 + 2**-9, 0, 0, 0, 0]]), np.ones((5, 1))
    assert run(A, B, slices=1, fast=False).report.bits == 10
    plus, minus = (run(sign * A, B, slices=1, fast=False).D.item() for sign in (1, -1))
    assert (plus, minus) == (1.0, -(1 + 2**-9))  # by hand: units of 2^-8 (a tie, to even) and of 2^-9


# --- ozIMMU


def odd(shape, rng, low=0, high=3):
    """Doubles whose significands have all their 53 bits."""
    significands = rng.integers(2**52, 2**53, shape) | 1
    return np.ldexp(significands.astype(np.float64) * rng.choice([-1, 1], shape), rng.integers(low, high, shape) - 53)


def immu(A, B, hardware="ampere", **options):
    return fpemu.certify(A, B, scheme="ozimmu", hardware=hardware, **options)


@pytest.mark.parametrize("sums", ["group", "each"])
@pytest.mark.parametrize("slices", [1, 2, 5, 8, 10])
@pytest.mark.parametrize("shape", [(3, 20, 4), (1, 1, 1), (2, 129, 2)])
@pytest.mark.parametrize("headroom", [0, 1])
def test_ozimmu_is_its_algorithm(shape, slices, sums, headroom):
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    A, B = paper((M, K), 2.0, rng), np.ldexp(paper((K, N), 2.0, rng), rng.integers(-300, 300, (1, N)))
    got = immu(A, B, slices=slices, sums=sums, split="truncate", headroom=headroom)
    assert got.report.ok
    assert got.report.bits == 7
    sa, sb = got.report.slices  # slices beyond the last digit may be left out
    assert max(sa, sb) <= slices
    assert got.report.products == sum(p + q <= slices + 1 for p in range(1, sa + 1) for q in range(1, sb + 1))
    same(got.D, oracle.ozimmu(A, B, slices, sums, headroom=headroom))


def test_ozimmu_group_sums_are_split_at_2_to_the_r():
    """k = 2^13: r = 31 - 14 - 13 = 4, groups of more than 16 products take two int32 sums."""
    rng = np.random.default_rng(15)
    A, B = odd((1, 8192), rng, 0, 70), odd((8192, 1), rng, 0, 70)  # digits in all slices
    for slices in (17, 18):
        got = immu(A, B, slices=slices, sums="group")
        assert got.report.ok
        assert got.report.int32
        same(got.D, oracle.ozimmu(A, B, slices))
        assert (got.D != immu(A, B, slices=slices, sums="each").D).any()  # fewer roundings


@pytest.mark.parametrize("split", ["truncate", "nearest"])
@pytest.mark.parametrize("slices", [2, 4, 8])
def test_ozimmu_error_is_within_the_bound(split, slices):
    rng = np.random.default_rng(16)
    A, B = paper((6, 50), 1.0, rng), paper((50, 5), 1.0, rng)
    results = {
        (sums, carrier, hardware): immu(A, B, hardware, slices=slices, split=split, sums=sums, carrier=carrier)
        for sums in ("group", "each")
        for carrier in CARRIERS
        for hardware in ("ampere", "hopper", "cdna2")
    }
    bound = oracle.ozimmu_bound(A, B, slices)
    for got in results.values():
        assert (oracle.errors(got.D, A, B) <= bound).all()
    for (sums, *_), got in results.items():
        same(got.D, results[sums, "blas", "ampere"].D)


def test_ozimmu_nearest_loses_less_than_truncation():
    rng = np.random.default_rng(17)
    A, B = odd((8, 64), rng), odd((64, 8), rng)
    for slices in (3, 5):
        truncated, nearest = (worst(immu(A, B, slices=slices, split=s).D, A, B) for s in ("truncate", "nearest"))
        assert nearest < truncated


@pytest.mark.parametrize("loss", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("range_", [1, 12, 40])
def test_ozimmu_counts_slices_by_the_average_loss(loss, range_):
    A = odd((6, 40), np.random.default_rng([18, range_]), 0, range_)
    expected = oracle.ozimmu_count(A, 7, loss)
    got = immu(A, A.T, loss=loss).report  # A and B lose the same, so it does not matter how they are averaged
    assert got.slices == (expected, expected)
    assert got.products == expected * (expected + 1) // 2
    assert got.complete == (loss == 0.0 or oracle.mantissa_loss(A, 7, expected) == 0)
