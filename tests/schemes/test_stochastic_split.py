"""Splits whose words are rounded stochastically: an oracle in fractions, random bits by position, statistics."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma, schemes, theory
from fpemu.gpu.gemm import choice
from fpemu.schemes import words
from fpemu.schemes.words import Word
from fpemu.sweep import Grid
from tests.equal import same
from tests.mma.test_stochastic import random_word
from tests.oracle.values import TARGETS, round_value

SR = {"high_rounding": "SR", "residual_rounding": "SR", "random_bits": 5, "seed": 3}


def made(name, **options):
    return schemes.build(name, options)


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ootomo", SR),
        ("ootomo-tf32", SR),
        ("h2sgemm", {**SR, "high_rounding": "RNE"}),
        ("bf16x3", {"rounding": "SR", "random_bits": 5, "seed": 3}),
        ("multiword", {**SR, "fmt": "tf32", "words": 3}),
    ],
    ids=str,
)
@pytest.mark.parametrize("operand", ["A", "B"])
def test_every_word_is_that_of_fractions(name, options, operand):
    """Word w of entry (i, k) takes its bits from the seed, the operand, w, i and k."""
    scheme = made(name, **options)
    x = drawn(4, 5) * np.exp2(np.arange(-3, 2, dtype=np.float32))
    got = scheme.split(x, operand)
    for i, k in np.ndindex(x.shape):
        left = Fraction(float(x[i, k]))
        for w, word in enumerate(scheme.rules()):
            mode = word.rounding
            seed = random_word(3, 63, "AB".index(operand), w) if mode == "SR" else 0
            bits = random_word(seed, 5, i, k)
            target = TARGETS[word.format.name]
            value = round_value(left * Fraction(2) ** word.exponent, target, mode, word=bits, width=5)
            assert float(got[w][i, k]) == value, (i, k, w)
            left -= Fraction(value) / Fraction(2) ** word.exponent


def test_products_follow_their_words():
    """A product has the bits of its words' products, also in stacks, leading parts and the table of a split."""
    A, B = drawn(20, 64), drawn(64, 17, seed=2)
    scheme = made("ootomo", **SR)
    D = fpemu.gemm(A, B, scheme=scheme, hardware="A100")
    (ha, ra), (hb, rb) = scheme.split(A), scheme.split(B, "B")
    spec = scheme.spec("A100")
    high = mma.gemm(ha, hb, None, spec, mma.KOrder(promote=spec.k))
    low = mma.chain([(ra, hb), (ha, rb)], None, spec, step="instruction")
    same(D, high + low / np.float32(2048))
    same(fpemu.gemm(A[:7], B[:, :3], scheme=scheme, hardware="A100"), D[:7, :3])
    same(fpemu.gemm(np.stack([A, A]), B, scheme=scheme, hardware="A100"), np.stack([D, D]))
    assert (fpemu.gemm(A, B, scheme="ootomo", hardware="A100", **{**SR, "seed": 4}) != D).mean() > 0.5
    assert schemes.split_table(A[0, 0], scheme).rows[0].value == float(ha[0, 0])
    same(scheme.split(A[0])[0], ha[0])


def test_the_operands_have_different_bits():
    x = drawn(30, 30)
    scheme = made("fp16", high_rounding="SR", seed=1)
    assert (scheme.split(x, "A")[0] != scheme.split(x, "B")[0]).mean() > 0.3


@pytest.mark.parametrize("bits", [1, 4, 32])
def test_words_are_as_frequent_as_their_distances(bits):
    """1 + f 2^-10 rounds up with probability floor(2^r f) / 2^r: 5.4 standard deviations, 7e-8 false alarms a case."""
    for fraction in (0.0, 0.25, 0.7, 0.999):
        x = np.full((300, 400), np.float32(1 + fraction * 2.0**-10))
        exact = (Fraction(float(x[0, 0])) - 1) * 1024
        ups = np.count_nonzero(made("fp16", high_rounding="SR", random_bits=bits, seed=9).split(x)[0] > 1)
        p = math.floor(exact * 2**bits) / 2**bits
        assert abs(ups - x.size * p) <= 5.4 * math.sqrt(x.size * p * (1 - p)), fraction


def test_inner_products_of_words_are_unbiased_with_many_random_bits():
    """1024 sums of 4096 words: the mean error is within 5.4 standard deviations of zero with 32 bits, not with 1."""
    x = np.full((1024, 4096), np.float32(1 + 0.3 * 2.0**-10))
    for bits, unbiased in ((32, True), (1, False)):
        word = made("fp16", high_rounding="SR", random_bits=bits, seed=2).split(x)[0]
        errors = (word.astype(np.float64) - x).sum(axis=1)
        assert (abs(errors.mean()) < 5.4 * errors.std() / 32) == unbiased


def test_numbers_of_the_format_have_no_random_bit():
    x = np.round(drawn(50, 50) * 16)
    for bits in (1, 64):
        high, residual = made("ootomo", **{**SR, "random_bits": bits}).split(x)
        same(high, x.astype(np.float16))
        assert not residual.any()


def test_overflow_is_counted_as_it_is_rounded():
    x = np.full((40, 50), np.float32(65512))
    over = np.isinf(made("fp16", high_rounding="SR", seed=1).split(x)[0]).sum()
    assert 0 < over < x.size
    with pytest.raises(InputError, match=rf"overflows: {over} of 2000"):
        fpemu.gemm(x, x.T, scheme="fp16", hardware="A100", high_rounding="SR", seed=1)
    norms = theory.Norms.of(x[:, :4], x.T[:4])
    assert theory.bound("fp16", "A100", norms=norms, high_rounding="SR", seed=1).worst == np.inf


@pytest.mark.parametrize(("name", "options"), [("ootomo", SR), ("fp16", {"high_rounding": "SR", "seed": 1})], ids=str)
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_errors_are_bounded(name, options, kind):
    A, B = fpemu.inputs.operands(kind, 30, 30, 2048, 0, "fp32")
    exact = A.astype(np.float64) @ B
    norms = theory.Norms.of(A, B)
    narrow = mma.spec("A100").replace(F=35, fraction_bits=12, final="SR", seed=1)
    for spec in (mma.spec("A100"), narrow):
        error = np.abs(fpemu.gemm(A, B, scheme=name, hardware=spec, **options) - exact)
        bound = theory.bound(name, spec, norms=norms, M=30, N=30, **options)
        size = np.abs(A).astype(np.float64) @ np.abs(B)
        assert (error <= bound.worst * size).all()
        assert bound.probable() / 20 < (error / size).max() < bound.probable()


def test_blocks_of_element_wise_schemes_have_random_bits():
    A, B = drawn(10, 64), drawn(64, 12, seed=2)
    spec = mma.spec("A100").replace(fraction_bits=8, final="SR", seed=1)
    scheme = made("h2sgemm", combine="element-wise")
    D = fpemu.gemm(A, B, scheme=scheme, hardware=spec)
    assert (fpemu.gemm(A, B, scheme=scheme, hardware=spec.replace(seed=2)) != D).any()
    assert scheme.plan().accumulators == "none"
    error = np.abs(D - A.astype(np.float64) @ B).max() / np.abs(A @ B).max()
    assert 2.0**-9 / 10 < error < 2.0**-9 * 10


def test_sweeps_over_random_bits_and_seeds():
    """Splits and accumulators: a cell for each number of bits and seed, named by what differs; in any process."""
    narrow = mma.spec("A100").replace(fraction_bits=10)
    machines = [narrow.replace(final="SR", random_bits=r, seed=s) for r in (1, 4) for s in (0, 1)]
    grid = Grid(
        inputs="uniform",
        schemes=["fp16", {"name": "fp16", "high_rounding": "SR", "random_bits": [2, 8], "seed": "0:1"}],
        hardware=[*machines, {"base": "A100", "final": "SR", "random_bits": 3, "seed": "7:8"}],
        M=6,
        N=6,
        K=64,
    )
    table = grid.run()
    assert len(table) == 5 * 6
    assert {name for name in table["hardware"] if "fraction_bits" in name} == {
        f"ampere final=SR fraction_bits=10 random_bits={r} seed={s}" for r in (1, 4) for s in (0, 1)
    }
    assert table["relative_l2"].nunique() > 15
    A, B = fpemu.inputs.operands("uniform", 6, 6, 64, 0, "fp32")
    machine = mma.spec("A100").replace(final="SR", random_bits=3, seed=8)
    D = fpemu.gemm(A, B, scheme="fp16", hardware=machine, high_rounding="SR", random_bits=8, seed=1)
    of = table.astype({"scheme.random_bits": str, "scheme.seed": str}).set_index(
        ["hardware", "scheme.random_bits", "scheme.seed"]
    )
    row = of.loc[("A100 final=SR random_bits=3 seed=8", "8", "1")]
    assert row["relative_l2"] == fpemu.metrics.relative_l2(D, fpemu.reference.matmul(A, B))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Word("h", "fp16", "SR"), "word h is rounded by SR, which needs seed="),
        (lambda: Word("h", "fp16", "RNE", seed=1), "no effect on word h, rounded by RNE"),
        (lambda: Word("h", "fp16", "SR", random_bits=65, seed=1), "random_bits of a Word = 65"),
        (lambda: made("ootomo", seed=1), "ootomo: random_bits and seed have no effect"),
        (lambda: made("staged-int8", random_bits=1), "have no effect"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_contradictory_options_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_mode_has_one_name():
    assert Word("h", "fp16", "stochastic", seed=1).rounding == "SR"
    assert words.of_operand((Word("h", "fp16"),), "B") == (Word("h", "fp16"),)


@pytest.mark.parametrize("name", ["ootomo", "staged", "bf16x3"])
def test_no_kernel_of_a_gpu_rounds_words_stochastically(name):
    scheme = made(name, **({"rounding": "SR"} if name == "bf16x3" else {"high_rounding": "SR"}), seed=1)
    with pytest.raises(choice.NoKernelError, match=f"{name}: no kernel rounds words by SR: fpemu.gemm does"):
        choice.find(scheme, scheme.spec("H200"), (64, 64, 64), None)
