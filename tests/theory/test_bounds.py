"""A-priori bounds: by hand where a hand can, never below a measured error, and not far above it on random data."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fpemu
from fpemu import inputs, mma, reference, schemes
from fpemu.mma import KOrder
from fpemu.schemes.lowering import Chains
from fpemu.schemes.words import Word, split
from fpemu.theory import Bound, Norms, Part, bound, entrywise
from fpemu.theory.accumulation import chain
from fpemu.theory.entrywise import _lost
from fpemu.theory.splits import Operands, Size, _points, worst

ARCHITECTURES = ("volta", "ampere", "hopper", "cdna2", "cdna3", "ideal")
PLAIN = [name for name in schemes.names() if not schemes.get(name).error_free]
RANDOM = {
    "of one sign": ("tsm2", {}),
    "of zero mean": ("uniform", {}),
    "normal": ("normal", {}),
    "phi = 1": ("phi", {"phi": 1.0}),
}
HOSTILE = {
    "wide": ("wide", {"low": -25, "high": 8}),
    "lognormal": ("lognormal", {"sigma": 4.0}),
    "cancelling": ("cancellation", {}),
    "powers": ("powers", {}),
    "tiny": ("offset_symmetric", {"exponent": -130}),
}


def errors(D: Any, A: Any, B: Any) -> Any:
    """|D - AB| / |A||B|, entry by entry, in long double: 0 / 0 is 0."""
    a, b = (np.asarray(X, np.longdouble) for X in (A, B))
    S = np.abs(a) @ np.abs(b)
    return np.asarray(np.abs(D - a @ b) / np.where(S == 0, 1, S), np.float64)


def has(scheme: str, hardware: str, **options: Any) -> bool:
    """Whether the hardware has the scheme's instruction."""
    try:
        schemes.build(scheme, options).spec(hardware)
    except fpemu.InputError:
        return False
    return True


# --- by hand


@pytest.mark.parametrize("scheme", PLAIN)
def test_nothing_is_lost_of_a_product_without_terms(scheme: str) -> None:
    for A, B in (
        (np.zeros((2, 3)), np.ones((3, 2))),
        (np.ones((2, 0)), np.ones((0, 2))),
        (np.ones((0, 3)), np.ones((3, 2))),
    ):
        assert bound(scheme, "ampere", norms=Norms.of(A, B)).probable() == 0.0
        assert bound(scheme, "ampere", norms=Norms.of(A, B)).worst == 0.0


def test_a_block_of_each_arithmetic_has_the_constants_of_the_specification() -> None:
    for hardware, tau, rho in (
        ("volta", 4 * 2.0**-23, 2.0**-23),
        ("ampere", 8 * 2.0**-24, 2.0**-23),
        ("hopper", 16 * 2.0**-25, 2.0**-23),
        ("ideal", 0.0, 2.0**-24),
    ):
        spec = mma.spec(hardware)
        step = spec.rules.loss(spec)
        assert (step.tau, step.rho) == (tau, rho)


def test_a_chain_costs_one_block_for_each_sixteen_products_on_hopper() -> None:
    norms = Norms.of(np.ones((1, 1024)), np.ones((1024, 1)))
    one = 2.0**-21 + 2.0**-23
    for order, blocks in (
        (KOrder(), 64),
        (KOrder(tile=8), 128),
        (KOrder(split=256), 16),
        (KOrder(promote=64), 4),
        (KOrder(split=100), 7),
    ):
        slices = -(-1024 // (order.split or 1024))
        outside = (slices - 1 + (1024 // order.promote - 1 if order.promote else 0)) * 2.0**-24
        found = chain(mma.spec("hopper"), norms, order).worst
        assert found == pytest.approx(blocks * one + outside, rel=1e-4), order


def test_pairwise_joins_cost_a_logarithm() -> None:
    found = Chains.of(KOrder(split=16), 1600, 16)
    assert (found.joins(KOrder()), found.joins(KOrder(join="pairwise"))) == (99, 7)


@pytest.mark.parametrize(
    "order",
    [
        KOrder(),
        KOrder(tile=24),
        KOrder(tile=24, residue_first=True),
        KOrder(split=70, tile=20, promote=30),
        KOrder(promote=33),
        KOrder(split=64, promote=40),
    ],
)
@pytest.mark.parametrize("step", [None, 16, 40])
def test_chains_are_counted_as_the_plan_lays_them_out(order: KOrder, step: int | None) -> None:
    K, L = 333, 8
    laid = mma.order.plan(order, K, 2, step)
    found = Chains.of(order, K, L, step)
    first = [[sum(-(-(r.stop - r.start) // L) for r in runs if r.term == 0) for runs in chains] for chains in laid]
    assert found.slices == len(laid)
    assert found.chains == max(map(len, laid))
    assert found.blocks == max(max(counts) for counts in first)
    assert found.total_blocks == sum(map(sum, first))
    assert found.total == sum(map(len, laid))


def test_a_split_loses_what_its_words_cannot_hold() -> None:
    halves = (Word("h", fpemu.FP16), Word("r", fpemu.FP16, exponent=11))
    rng = np.random.default_rng(3)
    for low, high in ((0, 4), (-14, 2), (-24, -10), (-40, -20)):
        x = np.ldexp(rng.uniform(1, 2, 20000), rng.integers(low, high, 20000)).astype(np.float32)
        for flushed in (False, True):
            found = worst(halves, float(x.max()), float(x.min()), flushed)
            values = [v.astype(np.float64) for v in split(x, halves)]
            if flushed:
                values = [np.where(np.abs(v) < 2.0**-14, 0, v) for v in values]
            left = np.abs(x - values[0] - values[1] * 2.0**-11)
            assert (left <= found.left.relative * x + found.left.absolute).all()
            size = np.abs(values[1]) * 2.0**-11
            assert (size <= found.words[1].relative * x + found.words[1].absolute).all()
    assert worst(halves, 4.0, 1.0).left == Size(2.0**-22)


def test_the_words_of_staged_int8_are_bounded_under_the_scale_of_its_rows() -> None:
    """The largest entry becomes 7282, not 2^13 or more; 2^-25 beside it is lost."""
    A, B = np.float32([[1.777832, 2.0**-25 / 2.0**12]]), np.float32([[0.0], [1.0]])
    D = fpemu.gemm(A, B, scheme="staged-int8", hardware="hopper", exact=1)
    assert D.item() == 0
    assert bound("staged-int8", "hopper", norms=Norms.of(A, B), exact=1).worst >= 1


def test_scaling_by_rows_makes_amounts_relative_to_the_rows() -> None:
    norms = Norms.of(np.diag([1.0, 2.0**-20]) + 2.0**-22, np.ones((2, 2)))
    assert Operands.of(norms, "scale-rows", 15).over_A == norms.row_A / 2.0**13
    assert Operands.of(norms, "raise", 15).over_A == norms.flat_A / norms.max_A


# --- against measurements


@pytest.mark.parametrize("scheme", PLAIN)
def test_no_error_is_larger_than_the_worst_case(scheme: str) -> None:
    orders = (None, KOrder(split=40, tile=24), KOrder(split=100, join="pairwise"))
    policies = ("propagate", "scale", "scale-rows")
    for index, (name, parameters) in enumerate(HOSTILE.values()):
        for offset, hardware in enumerate(h for h in ARCHITECTURES if has(scheme, h)):
            A, B = inputs.operands(name, 4, 5, 150, seed=index, **parameters)
            order, policy = orders[(index + offset) % 3], policies[(index + offset) % 3]
            D = fpemu.gemm(A, B, scheme=scheme, hardware=hardware, order=order, on_range=policy)
            found = bound(scheme, hardware, norms=Norms.of(A, B), order=order, on_range=policy)
            slack = 2.0**-56 * 150 if scheme == "dgemm" else 0.0
            assert errors(D, A, B).max() <= found.worst + slack, (name, hardware, order, policy)


@pytest.mark.parametrize("hardware", ARCHITECTURES)
@pytest.mark.parametrize("data", RANDOM)
def test_the_probable_bound_holds_and_is_within_a_factor_of_ten(hardware: str, data: str) -> None:
    name, parameters = RANDOM[data]
    for K in (64, 1000):
        A, B = inputs.operands(name, 12, 12, K, seed=[K, 5], **parameters)
        norms, S = Norms.of(A, B), reference.matmul(np.abs(A), np.abs(B))
        for scheme in PLAIN:
            if not has(scheme, hardware):
                continue
            D = fpemu.gemm(A, B, scheme=scheme, hardware=hardware)
            # the error of fp64 sums is beyond long double
            error = np.abs(reference.matmul(A, B, D, beta=-1)) / S if scheme == "dgemm" else errors(D, A, B)
            found = bound(scheme, hardware, norms=norms, M=12, N=12)
            assert error.max() <= found.probable() <= 10 * error.max(), (scheme, K)
            # rare elements that a flushed word loses make a single sample's mean square uncertain
            # and sums of few fp64 numbers of 52 random bits are often exact
            wide = 4 if hardware == "cdna2" else 3 if scheme == "dgemm" else 2
            assert found.rms / wide <= math.sqrt(np.mean(error**2)) <= found.rms * wide, (scheme, K)


def one_sign(K: int, large: slice) -> tuple[np.ndarray, np.ndarray]:
    """Uniform numbers in [0.5, 1), those of A in one slice of k 256 times as large."""
    rng = np.random.default_rng(K)
    A, B = rng.uniform(0.5, 1, (12, K)), rng.uniform(0.5, 1, (K, 12))
    A[:, large] *= 256
    return A.astype(np.float32), B.astype(np.float32)


@pytest.mark.parametrize("hardware", ["A100", "H200"])
@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("multiword", {"words": 3, "fmt": "bf16", "promote": None}),
        ("ootomo", {"promote": None}),
        ("bf16x9", {}),
        ("markidis", {}),
    ],
)
@pytest.mark.parametrize("block", [8, 16, 32, "first", "falling"])
def test_the_probable_bound_holds_where_magnitudes_have_a_structure_along_k(
    scheme: str, options: dict[str, object], hardware: str, block: int | str
) -> None:
    """A large entry in every block of the instruction, large entries first, and magnitudes that fall along k."""
    for K in (256, 1024):
        slices = {"first": slice(0, K // 8), "falling": slice(0, 0)}
        A, B = one_sign(K, slices[block] if isinstance(block, str) else slice(0, K, block))
        if block == "falling":
            A *= np.float32(256) ** -np.linspace(0, 1, K, dtype=np.float32)
        found = bound(scheme, hardware, norms=Norms.of(A, B), M=12, N=12, **options)
        error = errors(fpemu.gemm(A, B, scheme=scheme, hardware=hardware, **options), A, B).max()
        assert error <= found.probable() <= 10 * error


@pytest.mark.parametrize("hardware", ["volta", "ampere", "hopper"])
def test_the_bias_of_truncation_is_foreseen(hardware: str) -> None:
    A, B = inputs.operands("tsm2", 16, 16, 2048, seed=7)
    lost = 1 - fpemu.gemm(A, B, scheme="markidis", hardware=hardware) / (A.astype(np.float64) @ B)
    found = bound("markidis", hardware, norms=Norms.of(A, B))
    assert found.bias == pytest.approx(float(lost.mean()), rel=0.15)


@pytest.mark.parametrize(
    ("ab", "d", "hardware", "instruction"),
    [
        ("e4m3", "fp32", "hopper", "wgmma"),
        ("e5m2", "fp16", "ada", None),
        ("e4m3", "fp32", "hopper", "mma"),
        ("tf32", "fp32", "ampere", None),
        ("fp16", "fp16", "volta", None),
        ("bf16", "fp32", "cdna2", None),
        ("e5m2", "fp32", "cdna3", None),
        ("fp32", "fp32", "cdna1", None),
    ],
)
def test_a_bare_chain_of_every_arithmetic_keeps_its_bound(
    ab: str, d: str, hardware: str, instruction: str | None
) -> None:
    spec = mma.spec(hardware, ab, d, instruction)
    fmt = spec.operand_formats[0]
    for seed, (low, high) in enumerate(((-1, 1), (0, 1))):
        rng = np.random.default_rng(seed)
        A, B = (fpemu.round_to(rng.uniform(low, high, shape), fmt) for shape in ((6, 200), (200, 6)))
        for order in (None, KOrder(promote=64), KOrder(split=70, tile=40)):
            error = errors(mma.gemm(A, B, spec=spec, order=order), A, B).max()
            found = chain(spec, Norms.of(A, B), order, M=6, N=6)
            assert error <= found.worst
            # sums of products of six bits are exact but for rare small terms, which no deviation describes
            assert error <= found.probable() or ab == "e5m2"
    tiny = [np.full(shape, fmt.min_subnormal) for shape in ((2, 40), (40, 2))]
    assert errors(mma.gemm(*tiny, spec=spec), *tiny).max() <= chain(spec, Norms.of(*tiny)).worst


# --- what is out of range, and what is refused


def test_operands_out_of_range_have_no_bound_until_they_are_scaled() -> None:
    A, B = np.full((2, 8), 1e6, np.float32), np.ones((8, 2), np.float32)
    norms = Norms.of(A, B)
    for scheme in ("fp16", "ootomo", "legemm"):
        for policy in ("raise", "propagate"):
            found = bound(scheme, "hopper", norms=norms, on_range=policy)
            assert found.worst == math.inf == found.probable()
        assert bound(scheme, "hopper", norms=norms, on_range="scale").worst < 2e-3
    assert bound("staged", "hopper", norms=norms).worst < 1e-5
    assert bound("bf16x9", "hopper", norms=norms).worst < 1e-5


def test_products_below_the_smallest_number_have_no_finite_bound_in_fp64() -> None:
    A, B = np.full((1, 3), 1e-200), np.full((3, 1), 1e-200)
    assert bound("dgemm", norms=Norms.of(A, B)).worst == math.inf
    assert bound("dgemm", norms=Norms.of(A, 1 / A.T)).worst < 1e-15


def test_a_word_out_of_range_has_no_bound_beside_zeros_either() -> None:
    norms = Norms.of(np.full((2, 8), 1e6, np.float32), np.zeros((8, 2), np.float32))
    assert bound("fp16", "hopper", norms=norms, on_range="propagate").worst == math.inf
    assert bound("fp16", "hopper", norms=norms, on_range="scale").worst == 0.0


def test_a_residual_that_may_overflow_is_out_of_range() -> None:
    norms = Norms.of(np.full((1, 4), 40000.0, np.float32), np.ones((4, 1), np.float32))
    assert bound("ape", "ampere", norms=norms).worst == math.inf
    assert bound("ootomo", "ampere", norms=norms).worst < 1e-5


def test_sums_that_may_overflow_have_no_bound() -> None:
    norms = Norms.of(np.full((1, 4096), 8.0), np.full((4096, 1), 4.0))
    assert bound("fp16", "hopper", norms=norms, accumulator="fp16").worst == math.inf
    assert bound("fp16", "hopper", norms=norms).worst < 0.1


def test_what_gemm_refuses_has_no_bound() -> None:
    norms = Norms.sample("uniform", 64, rows=4)
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("otomo", {}, "did you mean"),
        ("ootomo", {"promot": 3}, "did you mean"),
        ("ootomo", {"promote": 64, "order": KOrder(promote=32)}, "twice"),
        ("ootomo", {"on_range": "scales"}, "did you mean"),
        ("ootomo", {"order": 64}, "KOrder"),
        ("h2sgemm", {"combine": "element-wise", "order": KOrder(promote=32)}, "outlives"),
        ("fp16", {"accumulator": "fp16", "on_range": "scale"}, "fp16 accumulator"),
    ]
    for scheme, options, word in refused:
        with pytest.raises(fpemu.InputError, match=word):
            bound(scheme, "hopper", norms=norms, **options)
    with pytest.raises(fpemu.InputError, match="Norms"):
        bound("ootomo", "hopper", norms=64)
    for M, N in ((-1, 1), (1, 2.0), (True, 1)):
        with pytest.raises(fpemu.InputError, match="must be an integer"):
            bound("ootomo", "hopper", norms=norms, M=M, N=N)
        with pytest.raises(fpemu.InputError, match="must be an integer"):
            chain(mma.spec("hopper"), norms, M=M, N=N)
    with pytest.raises(fpemu.InputError, match="exact modulo"):
        chain(mma.spec("hopper", "int8"), norms)


# --- the sum of parts


def test_a_bound_adds_worst_cases_and_biases_but_not_deviations() -> None:
    found = Bound((Part("one", 3.0, 0.25, 0.3), Part("two", 4.0, -0.5, 0.4, tail=2.0)), entries=50)
    assert (found.worst, found.bias, found.deviation) == (7.0, -0.25, 0.5)
    tail = math.sqrt(2 * math.log(2 * 50 / 0.01))
    assert found.probable() == pytest.approx(1.1 * 0.25 + tail * math.hypot(0.3, 0.8))
    assert Bound((Part("one", 0.1, 0.0, 1.0),)).probable() == 0.1
    assert found.probable(1e-6) > found.probable(0.1)
    for failure in (0.0, 1.0, -0.5, math.nan, "0.01"):
        with pytest.raises(fpemu.InputError, match="must be a number"):
            found.probable(failure)
    assert [line.split()[0] for line in found.table().splitlines()] == ["part", "one", "two", "all", "probable"]


def test_the_bound_over_the_norm_of_the_result_holds_for_the_relative_error() -> None:
    for name in ("uniform", "tsm2"):
        A, B = inputs.operands(name, 24, 24, 700, seed=3)
        norms = Norms.of(A, B)
        D = fpemu.gemm(A, B, scheme="legemm", hardware="ampere")
        measured = fpemu.metrics.relative_l2(D, A.astype(np.float64) @ B)
        found = bound("legemm", "ampere", norms=norms).relative_l2(norms)
        assert measured <= found.worst
        assert found.rms == pytest.approx(measured, rel=0.5)


def test_no_bound_over_the_norm_of_the_result_holds_where_float64_does_not_show_that_norm() -> None:
    A, B = np.float32([[2.0**53, 1.5, -(2.0**53), -1.5]]), np.ones((4, 1), np.float32)  # AB = 0, not so in float64
    found = bound("sgemm", norms=Norms.of(A, B)).relative_l2(Norms.of(A, B))
    assert fpemu.metrics.relative_l2(fpemu.gemm(A, B, scheme="sgemm"), [[0.0]]) == math.inf == found.worst


@pytest.mark.parametrize("rounding", ["RU", "RD"])
@pytest.mark.parametrize(("scheme", "hardware", "products"), [("ootomo", "ampere", ("hh",)), ("egemm", "cdna2", None)])
def test_the_probable_bound_counts_residuals_of_one_sign(
    scheme: str, hardware: str, products: tuple[str, ...] | None, rounding: str
) -> None:
    """Of products left out, and of subnormal words that the hardware reads as zero."""
    options = {"high_rounding": rounding} | ({} if products is None else {"products": products})
    A, B = inputs.operands("tsm2", 8, 8, 2000, 1)
    D = fpemu.gemm(A, B, scheme=scheme, hardware=hardware, **options)
    found = bound(scheme, hardware, norms=Norms.of(A, B), M=8, N=8, **options)
    assert errors(D, A, B).max() <= found.probable() <= 10 * errors(D, A, B).max()


@pytest.mark.parametrize("K", [1, 3])
def test_the_probable_bound_of_few_terms_counts_the_subnormal_words_that_a_scheme_leaves_out(K: int) -> None:
    exceeded = 0
    for seed in range(20):
        A, B = inputs.operands("offset_nonnegative", 8, 8, K, seed, exponent=-20)
        D = fpemu.gemm(A, B, scheme="ootomo", hardware="hopper")
        found = bound("ootomo", "hopper", norms=Norms.of(A, B), M=8, N=8)
        exceeded += errors(D, A, B).max() > found.probable()
    assert exceeded <= 1


@pytest.mark.parametrize("size", [1e-200, 1e-60, 1e60, 1e200])
@pytest.mark.parametrize("scheme", ["ootomo", "fp16", "sgemm", "staged"])
def test_norms_of_numbers_beyond_the_operand_format_are_refused(scheme: str, size: float) -> None:
    norms = Norms.of(np.full((2, 3), size), np.ones((3, 2)))
    with pytest.raises(fpemu.InputError, match=r"the largest entry of A, 1e.* is no fp32 number"):
        bound(scheme, "hopper", norms=norms)


def test_a_published_promotion_of_a_scheme_gives_way_to_that_of_the_order() -> None:
    norms = Norms.sample("tsm2", 2048, rows=8)

    def main(order: KOrder | None) -> float:
        return next(
            p.worst for p in bound("ootomo", "hopper", norms=norms, order=order).parts if p.name == "sums of hh"
        )

    assert main(None) == main(KOrder(promote=16)) > main(KOrder(promote=64))


def test_a_bound_takes_milliseconds_however_long_the_sum() -> None:
    norms = Norms.sample("uniform", 65536, rows=2)
    for scheme in ("ootomo", "bf16x9", "h2sgemm"):
        bound(scheme, "hopper", norms=norms)
        start = time.process_time()
        for _ in range(5):
            bound(scheme, "hopper", norms=norms)
        assert time.process_time() - start < 5 * 0.05


@pytest.mark.parametrize(("a", "b"), [(1.3, 2.0**-1023), (1 + 2.0**-40, 2.0**-1074), (2.0**-600, 2.0**-600)])
def test_the_bound_of_an_entry_below_the_normal_numbers_is_not_rounded_to_zero(a, b):
    D = fpemu.gemm([[a]], [[b]], scheme="dgemm")
    error = abs(Fraction(D.item()) - Fraction(a) * Fraction(b))
    assert 0 < error <= entrywise("dgemm", A=[[a]], B=[[b]]).item()


def test_no_bound_is_given_for_a_word_that_overflows_beside_zeros():
    A, B = np.float32([[1e6, 1.0]]), np.float32([[0.0], [1.0]])
    arguments = {"hardware": "hopper", "on_range": "propagate"}
    assert np.isnan(fpemu.gemm(A, B, scheme="fp16", **arguments)).all()
    assert entrywise("fp16", A=A, B=B, **arguments).item() == math.inf
    assert entrywise("fp16", A=A, B=B * np.float32([[1], [0]]), **arguments).item() == math.inf
    assert entrywise("fp16", A=A * 0, B=B, **arguments).item() == 0


@pytest.mark.parametrize("policy", ["scale", "scale-rows"])
def test_a_scale_of_the_residual_that_overflows_beside_zeros_leaves_no_bound(policy):
    A, B = np.float32([[np.pi]]), np.float32([[0.0]])
    arguments = {"hardware": "ampere", "on_range": policy}
    with pytest.raises(fpemu.InputError, match="overflows"):
        fpemu.gemm(A, B, scheme="h2sgemm", sb=20, **arguments)
    assert bound("h2sgemm", norms=Norms.of(A, B), sb=20, **arguments).worst == math.inf
    assert bound("h2sgemm", norms=Norms.of(A, B), sb=11, **arguments).worst == 0


def test_cdna3_floors_to_31_bits_and_rounds_to_24():
    spec = fpemu.mma.spec("cdna3", "fp16", "fp32")
    rho = spec.rules.loss(spec).rho
    assert (1 + Fraction(1, 2**24)) * (1 + Fraction(1, 2**31)) - 1 <= Fraction(rho) < 2.0**-24 + 2.0**-31 + 2.0**-53


def test_a_sum_of_two_blocks_rounds_once_relative_to_both():
    """Strassen's A11 + A22 and A21, of blocks 1, 2, 4, 8: one rounding of at most 9 · 2^-24, and none."""
    (both,), (one,) = (x.ravel() for x in _lost(np.array([[1.0, 2.0], [4.0, 8.0]]), ("11 22", "21")))
    assert math.isclose(both, 9 * 2.0**-24, rel_tol=1e-6)
    assert one == 0


def test_the_points_of_integrals_are_uniform_and_normal_numbers():
    uniform, normal, weight = _points()
    assert ((uniform > 0) & (uniform < 1)).all()
    assert [float(weight @ uniform**n) for n in (1, 2, 3)] == pytest.approx([1 / 2, 1 / 3, 1 / 4], rel=2e-3)
    assert [float(np.mean(normal**n)) for n in (1, 2, 4)] == pytest.approx([0, 1, 3], abs=0.05)


def test_a_product_of_more_bits_than_the_alignment_keeps_is_truncated_too():
    half = mma.spec("hopper", "fp16", "fp16")  # products of 21 bits, sums of 11
    losses = [half.rules.loss(half.replace(F=F)) for F in (20, 19, 10, 9)]
    assert [loss.tau for loss in losses] == [n * 2.0**-F for n, F in ((16, 20), (17, 19), (17, 10), (17, 9))]
