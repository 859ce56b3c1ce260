"""The bias of truncating accumulation and the best promotion interval, against the instructions themselves.

The derivation of the predictions is tested with the page that draws them, in `test_shape_pages.py`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.magma import _bias as bias
from fpemu import inputs, mma, simt, theory
from fpemu.errors import InputError


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
    assert bias.per_product(spec) == ulps
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


@pytest.mark.parametrize("gpu", ["volta", "ampere", "hopper"])
def test_long_sums_lose_a_product_s_loss_times_the_mean_last_place(gpu):
    spec = _spec(gpu)
    # k products of mean 1/4: last places 2^-23 2^floor(log2 c_t) add up to k 2^-23 c_k / 3 at a power of two
    assert bias.positive(spec, 2**16) == pytest.approx(bias.per_product(spec) * 2**16 / 3 * 2.0**-23, rel=0.05)


def test_a_final_rounding_to_nearest_and_a_coarse_grid_count():
    spec = mma.MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=24)
    assert bias.per_product(replace(spec, final="RNE")) == 1 / 4
    assert bias.per_product(replace(spec, F=22)) == 1 + 1 / 16  # the sum itself is cut by 2 last places or 0


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
    assert bias.per_product(spec) == 1 / 32
    assert bias.positive(spec, 2**16) == pytest.approx(2**16 / 32 / 3 * 2.0**-23, rel=0.05)
    norms = theory.Norms.sample("uniform", 4096, rows=16, low=0.0)
    assert theory.chain(spec, norms).bias == pytest.approx(bias.positive(spec, 4096), rel=0.05)


@pytest.mark.parametrize("gpu", ["volta", "ampere", "hopper"])
def test_the_bound_s_bias_and_the_model_of_the_page_agree(gpu):
    norms = theory.Norms.sample("uniform", 4096, rows=16, low=0.0)
    assert theory.chain(_spec(gpu), norms).bias == pytest.approx(bias.positive(_spec(gpu), 4096), rel=0.02)


@pytest.mark.parametrize("k", [2**8, 2**12, 2**15])
def test_intervals_where_nothing_is_truncated_are_the_known_ones(k):
    ideal, chain = _spec("ideal"), _spec("hopper", "fp64", "fp64")
    assert (ideal.block, chain.arithmetic, chain.block) == (16, "fma", 1)
    assert abs(bias.promotion_interval(ideal, k) - 2 * k ** (2 / 3)) <= ideal.k / 2
    assert abs(bias.promotion_interval(chain, k) - (k * k / 2) ** (1 / 3)) <= chain.k / 2
    assert bias.promotion_interval(ideal, 7) == 7  # never


@functools.cache
def _problem(k):
    A, B = inputs.operands("uniform", 24, 24, k, 3, "fp16", low=0.0, high=1.0)
    return A, B, A.astype(np.float64) @ B.astype(np.float64)


def _error(spec, k, interval):
    A, B, exact = _problem(k)
    D = mma.gemm(A, B, spec=spec, order=mma.KOrder(promote=interval)).astype(np.float64)
    return math.sqrt(np.mean(((D - exact) / exact) ** 2))


@pytest.mark.parametrize(
    ("gpu", "k"), [("ideal", 1024), ("ideal", 4096), ("cdna3", 4096), ("hopper", 4096), ("volta", 1024)]
)
def test_no_interval_is_much_better_than_the_predicted_one(gpu, k):
    spec = _spec(gpu)
    best = bias.promotion_interval(spec, k)
    others = [n for n in (best // 4, best // 2, 2 * best, 4 * best, 16 * best) if n >= spec.k]
    errors = [_error(spec, k, n) for n in others]
    predicted = _error(spec, k, best)
    assert predicted < 1.3 * min(errors)
    assert predicted < 0.5 * max(errors)


def test_truncating_units_want_short_intervals_that_grow_as_the_cube_root():
    hopper = _spec("hopper")
    near = (2**16 / (12 * (19 / 128) ** 2 / math.log(2))) ** (1 / 3)
    assert abs(bias.promotion_interval(hopper, 2**16) - near) <= 8
    assert bias.promotion_interval(hopper, 2**31) == pytest.approx(8 * bias.promotion_interval(hopper, 2**22), rel=0.02)
    assert bias.promotion_interval(_spec("hopper", "e4m3"), 4096) == 32  # 13 fraction bits: every instruction


def test_the_interval_of_a_chain_of_fmas_by_emulation():
    spec = mma.MmaSpec("fp32", "fp32", "fp32", k=1, block=1, arithmetic="fma")
    k, errors = 1024, {}
    A, B = inputs.operands("uniform", 48, 48, k, 5, "fp32", low=0.0, high=1.0)
    exact = A.astype(np.float64) @ B.astype(np.float64)
    best = bias.promotion_interval(spec, k)
    for interval in (best // 8, best, 8 * best):
        sums = np.float32([simt.gemm(A[:, i : i + interval], B[i : i + interval]) for i in range(0, k, interval)])
        total = functools.reduce(np.add, sums)  # one after another, in fp32
        errors[interval] = np.sqrt(np.mean(((total - exact) / exact) ** 2))
    assert min(errors, key=errors.get) == best


def test_what_is_not_modelled_is_refused():
    with pytest.raises(InputError, match="'integer'; known: truncated"):
        bias.positive(mma.spec("hopper", "int8"), 16)
    with pytest.raises(InputError, match="'via-half'"):
        bias.promotion_interval(replace(_spec("hopper", "e4m3"), arithmetic="via-half"), 16)
    for k in (0, -1, 1.5, True, "64"):
        for function in (bias.positive, bias.towards_zero, bias.downwards, bias.promotion_interval):
            with pytest.raises(InputError, match=r"(positive|an) integer"):
                function(_spec("ampere"), k)


@pytest.mark.parametrize("gpu", ["volta", "hopper", "cdna3"])
def test_no_more_than_the_whole_sum_is_lost(gpu):
    assert bias.positive(_spec(gpu), 2**50) == 1
    assert bias.towards_zero(_spec(gpu), 2**60) <= math.sqrt(2 / math.pi)
