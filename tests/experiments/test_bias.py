"""The predicted bias of truncating accumulation, against enumerations, chains in fractions and the instructions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from experiments.magma import _bias as bias
from fpemu import inputs, mma, simt, theory


def _spec(gpu, words="fp16", out="fp32"):
    return mma.spec(gpu, words, out)


@pytest.mark.parametrize(
    ("gpu", "words", "ulps"),
    [
        ("volta", "fp16", 1 / 2),
        ("ampere", "fp16", 9 / 32),
        ("hopper", "fp16", 19 / 128),
        ("hopper", "bf16", 19 / 128),
        ("hopper", "e4m3", 1 / 2),
        ("cdna3", "fp16", 2.0**-12),
        ("ideal", "fp16", 0.0),
        ("cdna2", "fp16", 0.0),
    ],
)
def test_what_a_product_loses_is_measured_on_a_sum_within_one_binade(gpu, words, ulps):
    spec = _spec(gpu, words)
    # words above 1/2, whose products end far below the last places that are cut: 8 bits of e4m3, 11 and more of others
    K, top = 256, 12 if words == "e4m3" else 20
    last = 2.0 ** (top - (spec.fraction_bits or 23))
    A, B = (inputs.make("uniform", shape, 7, words, low=0.5, high=1.0) for shape in ((64, K), (K, 64)))
    start = 2.0**top * 1.25 + last * np.arange(64 * 64).reshape(64, 64) % 64
    D = mma.gemm(A, B, start.astype(np.float32), spec=spec).astype(np.float64)
    exact = A.astype(np.float64) @ B.astype(np.float64) + start
    assert 2**top < D.min() <= D.max() < 2 ** (top + 1)
    lost = (exact - D) / (K * last)
    error = lost.std() / math.sqrt(lost.size)
    assert abs(lost.mean() - ulps) < 4 * error + (0.04 if words == "e4m3" else 0.005) * ulps


@pytest.mark.parametrize(("gpu", "ulps"), [("volta", 1 / 2), ("ampere", 9 / 32), ("hopper", 19 / 128)])
def test_long_sums_lose_a_product_s_loss_times_the_mean_last_place(gpu, ulps):
    # k products of mean 1/4: last places 2^-23 2^floor(log2 c_t) add up to k 2^-23 c_k / 3 at a power of two
    assert bias.positive(_spec(gpu), 2**16) == pytest.approx(ulps * 2**16 / 3 * 2.0**-23, rel=0.05)


@pytest.mark.parametrize(("gpu", "loss"), [("volta", 0.7), ("ampere", 0.5)])
def test_long_fp16_sums_absorb_the_products(gpu, loss):
    spec, k = _spec(gpu, out="fp16"), 2**16
    A, B = inputs.operands("tsm2", 4, 4, k, 1, "fp16")
    exact = A.astype(np.float64) @ B.astype(np.float64)
    measured = float(np.mean(1 - mma.gemm(A, B, spec=spec).astype(np.float64) / exact))
    assert bias.positive(spec, k) == pytest.approx(measured, rel=0.05)
    assert measured == pytest.approx(loss, abs=0.02)


def test_exact_sums_that_are_truncated_once_drift():
    spec = _spec("ideal").replace(final="RZ")
    assert bias.positive(spec, 2**16) == pytest.approx(2**16 / 32 / 3 * 2.0**-23, rel=0.05)
    norms = theory.Norms.sample("uniform", 4096, rows=16, low=0.0)
    assert theory.chain(spec, norms).bias == pytest.approx(bias.positive(spec, 4096), rel=0.05)


@pytest.mark.parametrize("gpu", ["volta", "ampere", "hopper"])
def test_the_bound_s_bias_and_the_model_of_the_page_agree(gpu):
    norms = theory.Norms.sample("uniform", 4096, rows=16, low=0.0)
    assert theory.chain(_spec(gpu), norms).bias == pytest.approx(bias.positive(_spec(gpu), 4096), rel=0.02)


@pytest.mark.parametrize("gpu", ["volta", "hopper", "cdna3"])
def test_no_more_than_the_whole_sum_is_lost(gpu):
    assert bias.positive(_spec(gpu), 2**50) == 1
    assert bias.towards_zero(_spec(gpu), 2**60) <= math.sqrt(2 / math.pi)


# --- the prediction of the bias
def test_mean_of_a_product_modulo_a_power_of_two_by_enumeration():
    for j in range(1, 8):
        mean = Fraction(sum(x * y % 2**j for x in range(2**j) for y in range(2**j)), 4**j)
        assert mean == (2**j - 1 - Fraction(j, 2)) / 2


def _chain(x, y, block, F, bits):
    """A chain of truncated blocks in exact fractions: sums of positive normal numbers."""
    c = Fraction(0)
    for start in range(0, len(x), block):
        pairs = [(a, b) for a, b in zip(x[start : start + block], y[start : start + block], strict=True) if a and b]
        exponents = [math.frexp(a)[1] + math.frexp(b)[1] - 2 for a, b in pairs]
        terms = [Fraction(a) * Fraction(b) for a, b in pairs]
        if c:
            exponents.append(math.frexp(c)[1] - 1)
            terms.append(c)
        unit = Fraction(2) ** (max(exponents) - F)
        total = sum(term // unit for term in terms) * unit
        last = Fraction(2) ** (math.frexp(total)[1] - 1 - bits)
        c = total // last * last
    return c


@pytest.mark.parametrize(
    ("block", "F", "bits", "k"), [(4, 23, 23, 256), (8, 24, 23, 256), (4, 14, 12, 128), (2, 12, 12, 64)]
)
def test_predicted_loss_against_chains_in_fractions(block, F, bits, k):
    spec = mma.MmaSpec("fp16", "fp16", "fp32", k=block, block=block, F=F, fraction_bits=bits)
    X = inputs.make("uniform", (2, 60, k), 5, "fp16", low=0.01, high=1.0)
    losses = []
    for x, y in zip(X[0].tolist(), X[1].tolist(), strict=True):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True))
        computed = _chain(x, y, block, F, bits)
        assert computed == Fraction(float(mma.gemm([x], np.array(y)[:, None], spec=spec)[0, 0]))
        losses.append(float((exact - computed) / exact))
    error = np.std(losses) / math.sqrt(len(losses))
    # low = 0.01 keeps out numbers that fp16 holds with fewer bits; it shifts the mean product by 2 %
    assert abs(np.mean(losses) - bias.positive(spec, k)) < 4 * error + 0.03 * np.mean(losses)


@pytest.mark.parametrize(("block", "F", "bits"), [(4, 12, 12), (8, 14, 12), (8, 18, 12)])
def test_predicted_loss_of_sums_of_both_signs_against_the_instruction(block, F, bits):
    spec = mma.MmaSpec("fp16", "fp16", "fp32", k=block, block=block, F=F, fraction_bits=bits)
    A, B = inputs.operands("uniform", 96, 96, 512, 3, "fp16", low=-1.0, high=1.0)
    D = mma.gemm(A, B, spec=spec).astype(float)
    exact = simt.gemm(A.astype(float), B.astype(float), fmt="fp64")
    shrunk = (exact - D) * np.sign(exact) / np.sqrt(np.mean(exact**2))
    error = np.std(shrunk) / math.sqrt(shrunk.size)
    predicted = bias.towards_zero(spec, 512)
    assert predicted > 10 * error
    assert abs(np.mean(shrunk) - predicted) < max(4 * error, 0.1 * predicted)


def test_the_bias_is_linear_in_k_and_absent_where_nothing_is_truncated():
    hopper, volta, ideal = (mma.spec(gpu, "fp16", "fp32") for gpu in ("hopper", "volta", "ideal"))
    for spec in (hopper, volta):
        assert bias.positive(spec, 2**16) / bias.positive(spec, 2**12) == pytest.approx(16, rel=0.05)
    assert bias.towards_zero(hopper, 2**16) / bias.towards_zero(hopper, 2**12) == pytest.approx(16, rel=0.05)
    assert bias.positive(ideal, 1000) == bias.towards_zero(ideal, 1000) == 0
    assert bias.downwards(hopper, 1000) == 0 < bias.downwards(mma.spec("cdna3", "fp16", "fp32"), 2**16)
