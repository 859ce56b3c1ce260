"""Entries that the words cannot hold, scaling and its undoing, NaN and Inf."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpemu import InputError, reference, schemes
from fpemu.schemes import SplitScheme, gemm, get

SPLIT = [s for s in schemes.names() if isinstance(get(s), SplitScheme)]
FP16_WORDS = [s for s in SPLIT if get(s).rules()[0].format.name == "fp16"]
UNSCALED = [s for s in FP16_WORDS if not get(s).scales_rows]
POLICIES = ("raise", "propagate", "scale", "scale-rows")
ONE = np.ones((2, 2), np.float32)


def run(A, B, scheme="ootomo", **options):
    return gemm(A, B, scheme=scheme, hardware="hopper", **options)


def with_entry(value, shape=(3, 4), at=(1, 2)):
    X = np.ones(shape, np.float32)
    X[at] = value
    return X


# --- raise


@pytest.mark.parametrize("scheme", UNSCALED)
@pytest.mark.parametrize("who", ["A", "B"])
def test_overflow_of_the_high_part_is_counted(scheme, who):
    X = with_entry(7e4, (4, 4))
    X[2, 0] = -1e6
    operands = (X, np.ones((4, 4), np.float32)) if who == "A" else (np.ones((4, 4), np.float32), X)
    with pytest.raises(InputError) as error:
        run(*operands, scheme=scheme)
    text = str(error.value)
    assert text.startswith(f"{who}: the fp16 part {'1' if scheme == 'multiword' else 'h'} of {scheme} overflows: ")
    assert "2 of 16 entries, first at [1, 2]: 70000.0" in text
    assert "on_range='scale'" in text
    assert "on_range='propagate'" in text


@pytest.mark.parametrize("scheme", UNSCALED)
def test_the_boundary_of_overflow(scheme):
    # h rounds to nearest up to 65520 (excluded); LE-GEMM cuts and so reaches 65536 (excluded)
    first = 65536.0 if scheme == "legemm" else 65520.0
    below = float(np.nextafter(np.float32(first), np.float32(0)))
    for sign in (1, -1):
        with pytest.raises(InputError, match="overflows: 1 of 12"):
            run(with_entry(sign * first), np.ones((4, 2)), scheme=scheme)
        if scheme in ("ape", "h2sgemm"):
            continue  # there the residual of 15.996 overflows instead: the next test
        D = run(with_entry(sign * below), np.ones((4, 2)), scheme=scheme)
        assert abs(D[1, 0] - (sign * below + 3)) < (64 if scheme == "fp16" else 0.25)


@pytest.mark.parametrize("scheme", ["ape", "h2sgemm"])
def test_a_scale_of_2_to_the_12_overflows_on_midpoints_of_the_top_binade(scheme):
    # 2^15 + 16 lies halfway between two fp16 numbers: 16 times 2^12 is 2^16
    with pytest.raises(InputError, match=r"part r \(times 2\^12\) of .* overflows: 1 of 12 entries, .* 32784"):
        run(with_entry(2.0**15 + 16), np.ones((4, 2)), scheme)
    for value in (2.0**15 + 15.984375, 65504 + 15.984375, 2.0**15 - 8):
        D = run(with_entry(value), np.ones((4, 2)), scheme)
        assert abs(D[1, 0] - (value + 3)) < 0.02


@pytest.mark.parametrize(("mode", "first"), [("RZ", 65536.0), ("RU", 65504.004), ("RNA", 65520.0), ("ODD", 65536.0)])
def test_the_boundary_follows_the_rounding(mode, first):
    first = float(np.float32(first))
    with pytest.raises(InputError, match="overflows"):
        run(with_entry(first), np.ones((4, 2)), high_rounding=mode)
    below = np.nextafter(np.float32(first), np.float32(0))
    small = {"residual_scale": 2**10}  # toward zero the residual reaches 32
    assert np.isfinite(run(with_entry(below), np.ones((4, 2)), high_rounding=mode, **small)).all()
    if mode == "RU":
        assert np.isfinite(run(with_entry(-65535.0), np.ones((4, 2)), high_rounding=mode, **small)).all()


def test_overflow_of_the_residual():
    # the residual of 3001 is 1 (fp16 has steps of 2 there): times 2^16 it overflows
    A = with_entry(3001.0)
    assert np.isfinite(run(A, np.ones((4, 2)), "h2sgemm", sb=15)).all()
    with pytest.raises(InputError) as error:
        run(A, np.ones((4, 2)), "h2sgemm", sb=16)
    assert "A: the fp16 part r (times 2^16) of h2sgemm overflows: 1 of 12 entries, first at [1, 2]: 3001.0" in str(
        error.value
    )
    assert "a smaller residual scale" in str(error.value)
    # scaling cannot help there: 3001 goes up to 12004, its residual to 4
    with pytest.raises(InputError, match="a smaller residual scale keeps it in range, on_range='propagate'"):
        run(A, np.ones((4, 2)), "h2sgemm", sb=16, on_range="scale")
    assert np.isfinite(run(A, np.ones((4, 2)), "h2sgemm", sb=13, on_range="scale")).all()


@pytest.mark.parametrize("scheme", SPLIT)
def test_nan_and_inf_are_refused(scheme):
    for value, shown in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")):
        with pytest.raises(
            InputError, match=rf"B: NaN or infinite: 1 of 8 entries, first at \[3, 1\]: {shown}; on_range="
        ):
            run(np.ones((2, 4)), with_entry(value, (4, 2), (3, 1)), scheme=scheme)


def test_formats_with_the_exponents_of_fp32_reach_nearly_as_far():
    big = np.float32(2.0**127 * (2 - 2.0**-7))  # the largest bf16 number
    A = np.array([[big]], np.float32)
    for scheme in ("ootomo-tf32", "bf16x9"):
        assert run(A, np.full((1, 1), 2.0**-20), scheme).item() == big * np.float32(2.0**-20)
        with pytest.raises(InputError, match="overflows"):
            run(np.full((1, 1), np.finfo(np.float32).max), A, scheme)


@pytest.mark.parametrize("policy", POLICIES)
def test_baselines_have_no_range(policy):
    A = np.array([[1e30, np.inf], [np.nan, 1e-40]], np.float32)
    for scheme in ("sgemm", "dgemm"):
        D = gemm(A, np.eye(2, dtype=np.float32), scheme=scheme, on_range=policy)
        np.testing.assert_array_equal(np.isnan(D), [[True, False], [True, True]])  # Inf times 0 is NaN
        assert D[0, 1] == np.inf


# --- propagate: what the hardware gives


def test_propagated_overflow():
    A = with_entry(7e4)
    plain = run(A, np.ones((4, 2)), "fp16", on_range="propagate")
    assert np.isposinf(plain[1]).all()
    assert np.isfinite(plain[[0, 2]]).all()
    # h = Inf leaves a residual of -Inf: Inf - Inf on the way
    corrected = run(A, np.ones((4, 2)), "ootomo", on_range="propagate")
    assert np.isnan(corrected[1]).all()
    np.testing.assert_array_equal(corrected[[0, 2]], 4)
    # a residual that overflows by itself: Inf outright
    residual = run(with_entry(3001.0), np.ones((4, 2)), "h2sgemm", sb=16, on_range="propagate")
    assert np.isposinf(residual[1]).all()
    # toward zero saturates h, and then the residual
    cut = run(A, np.ones((4, 2)), "ootomo", high_rounding="RZ", residual_rounding="RZ", on_range="propagate")
    assert cut[1, 0] == 65504 + 65504 / 2**11 + 3


def test_propagate_changes_nothing_in_range():
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((5, 40)).astype(np.float32), rng.standard_normal((40, 6)).astype(np.float32)
    for scheme in SPLIT:
        np.testing.assert_array_equal(run(A, B, scheme), run(A, B, scheme, on_range="propagate"))


SPECIALS = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0, -2.5])


@given(st.lists(SPECIALS, min_size=21, max_size=21), st.sampled_from(POLICIES[1:]), st.sampled_from(SPLIT))
def test_specials_are_those_of_sgemm(values, policy, scheme):
    A = np.array(values[:9], np.float32).reshape(3, 3)
    B = np.array(values[9:], np.float32).reshape(3, 4)
    D = run(A, B, scheme, on_range=policy)
    rows = ~np.isfinite(A).all(axis=1)
    columns = ~np.isfinite(B).all(axis=0)
    for i in range(3):
        for j in range(4):
            if not (rows[i] or columns[j]):
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                # the same in fp64, where no product of two fp32 numbers overflows
                expected = float(sum(float(a) * float(b) for a, b in zip(A[i], B[:, j], strict=True)))
            np.testing.assert_array_equal(D[i, j], expected)


def test_specials_in_batches_of_broadcast_operands():
    rng = np.random.default_rng(2)
    A = rng.standard_normal((2, 1, 3, 5)).astype(np.float32)
    B = rng.standard_normal((4, 5, 6)).astype(np.float32)
    A[1, 0, 2, 0], B[3, 1, 4] = np.inf, np.nan
    for scheme in ("ootomo", "staged", "fp16"):
        D = run(A, B, scheme, on_range="propagate")
        S = gemm(A, B, scheme="sgemm")
        reached = np.zeros(D.shape, bool)
        reached[1, :, 2, :] = True
        reached[:, 3, :, 4] = True
        np.testing.assert_array_equal(D[reached], S[reached])
        assert np.isfinite(D[~reached]).all()


def test_specials_with_alpha_beta_and_an_infinite_c():
    A, C = with_entry(np.inf), np.zeros((3, 4), np.float32)
    C[0, 0], C[1, 1] = -np.inf, -np.inf
    D = run(A, np.ones((4, 4)), "ootomo", on_range="propagate", alpha=2.0, beta=1.0, C=C)
    assert D[0, 0] == -np.inf
    assert np.isnan(D[1, 1])
    assert D[1, 0] == np.inf


# --- scale


def powers(x):
    return np.floor(np.log2(x))


@pytest.mark.parametrize("scheme", SPLIT)
@pytest.mark.parametrize("policy", ["scale", "scale-rows"])
def test_scaling_reaches_all_of_fp32(scheme, policy):
    rng = np.random.default_rng(3)
    A, B = rng.uniform(-1, 1, (6, 48)), rng.uniform(-1, 1, (48, 5))
    loss = {"fp16": 2e-3, "bf16x3": 2e-4}.get(scheme, 1e-5)
    for a, b in ((127, -127), (-126, 120), (100, -200 + 60), (-140, 0), (0, 127 - 10)):
        X, Y = (A * 2.0**a).astype(np.float32), (B * 2.0**b).astype(np.float32)
        D = run(X, Y, scheme, on_range=policy)
        exact = reference.matmul(X, Y, out="fp64")
        sizes = np.abs(X).astype(np.float64) @ np.abs(Y).astype(np.float64)
        assert (np.abs(D - exact) <= loss * sizes + 2.0**-149).all()


def test_what_scaling_does_to_the_words():
    rng = np.random.default_rng(4)
    A = (rng.standard_normal((6, 9)) * 10.0 ** rng.integers(-30, 30, (6, 1))).astype(np.float32)
    A[3] = 0
    rules = get("ootomo").rules()
    whole = schemes.words.prepare(A, "A", rules, "scale", "scale", "ootomo")
    assert whole.exponents.shape == (1, 1)
    assert 2.0**13 <= np.abs(whole.values).max() < 2.0**14
    np.testing.assert_array_equal(whole.values, A.astype(np.float64) * 2.0**whole.exponents)
    rows = schemes.words.prepare(A, "A", rules, "scale-rows", "scale-rows", "ootomo")
    largest = np.abs(rows.values).max(axis=1)
    assert ((largest >= 2.0**13) & (largest < 2.0**14))[[0, 1, 2, 4, 5]].all()
    assert rows.exponents[3] == 0
    columns = schemes.words.prepare(A.T, "B", rules, "scale-rows", "scale-rows", "ootomo")
    np.testing.assert_array_equal(columns.exponents, rows.exponents.T)
    small = schemes.words.prepare(A, "A", get("multiword").rules()[:1], "scale", "scale", "x")
    assert small.exponents == whole.exponents
    brain = schemes.words.prepare(A, "A", get("bf16x9").rules(), "scale", "scale", "x")
    assert brain.exponents == whole.exponents
    e4m3 = schemes.build("multiword", {"fmt": "e4m3"}).rules()
    assert 2.0**6 <= np.abs(schemes.words.prepare(A, "A", e4m3, "scale", "scale", "x").values).max() < 2.0**7


def test_exact_powers_of_two_stay_where_they_are():
    rules = get("ootomo").rules()
    for e in range(-149, 128):
        X = np.full((1, 1), 2.0**e, np.float32)
        assert schemes.words.prepare(X, "A", rules, "scale", "scale", "x").values == 2.0**13


def test_each_matrix_of_a_batch_has_a_power_of_its_own():
    A = np.ones((3, 2, 2), np.float32) * np.float32([1, 2.0**30, 2.0**-40])[:, None, None]
    D = run(A, ONE, on_range="scale")
    np.testing.assert_array_equal(D, A @ ONE)
    ready = schemes.words.prepare(A, "A", get("ootomo").rules(), "scale", "scale", "x")
    np.testing.assert_array_equal(ready.exponents.ravel(), [13, -17, 53])


def test_no_overflow_or_underflow_on_the_way_out():
    # the scaled product is far from 1, the powers of two leave fp32, the result is an ordinary number
    for scheme in FP16_WORDS:
        D = run(np.full((1, 1), 2.0**-149), np.full((1, 1), 2.0**127), scheme, on_range="scale")
        assert D.item() == 2.0**-22
        D = run(np.full((1, 1), 2.0**127), np.full((1, 1), 2.0**-149), scheme, on_range="scale-rows")
        assert D.item() == 2.0**-22
        assert run(np.full((1, 1), 2.0**100), np.full((1, 1), 2.0**100), scheme, on_range="scale").item() == np.inf
        assert run(np.full((1, 1), 2.0**-100), np.full((1, 1), -(2.0**-100)), scheme, on_range="scale").item() == 0


@given(st.integers(1, 2**24 - 1), st.integers(-149, -120), st.integers(-30, 4))
def test_a_subnormal_result_is_rounded_once(significand, e, shift):
    # the product of a 24-bit number and a power of two is exact in the scaled words (bf16x9): only the undoing rounds
    x = np.float32(np.ldexp(float(significand), e))
    if not np.isfinite(x) or float(x) != np.ldexp(float(significand), e):
        return
    D = run(np.full((1, 1), x), np.full((1, 1), 2.0**shift), "bf16x9", on_range="scale").item()
    exact = Fraction(float(x)) * Fraction(2) ** shift
    quantum = Fraction(2) ** max(-149, int(np.floor(np.log2(float(x)))) + shift - 23)
    steps, rest = divmod(exact, quantum)
    up = rest * 2 > quantum or (rest * 2 == quantum and steps % 2 == 1)
    assert Fraction(D) == (steps + up) * quantum


@pytest.mark.parametrize("policy", POLICIES)
def test_staged_scales_by_itself(policy):
    rng = np.random.default_rng(5)
    A = (rng.standard_normal((6, 200)) * 10.0 ** rng.integers(-30, 30, (6, 1))).astype(np.float32)
    B = (rng.standard_normal((200, 5)) * 10.0 ** rng.integers(-7, 7, (1, 5))).astype(np.float32)
    D = run(A, B, "staged", on_range=policy)
    np.testing.assert_array_equal(D.view(np.uint32), run(A, B, "staged").view(np.uint32))
    sizes = np.abs(A).astype(np.float64) @ np.abs(B).astype(np.float64)
    exact = reference.matmul(A, B, out="fp64")
    assert (np.abs(D - exact) <= 1e-6 * sizes).all()
    A[0, 0] = np.inf
    if policy != "raise":
        assert not np.isfinite(run(A, B, "staged", on_range=policy)[0]).any()


def test_rows_of_very_different_size_need_a_scale_each():
    A = np.array([[1.0 + 2.0**-20] * 8, [2.0**-60 * (1 + 2.0**-20)] * 8], np.float32)
    B = np.ones((8, 3), np.float32)
    exact = (A.astype(np.float64) @ B).astype(np.float32)
    assert (run(A, B, on_range="scale")[1] == 0).all()
    np.testing.assert_array_equal(run(A, B, on_range="scale-rows"), exact)


def test_zero_rows_columns_and_matrices():
    Z = np.zeros((3, 4), np.float32)
    for scheme in SPLIT:
        for policy in POLICIES:
            assert (run(Z, np.ones((4, 2)), scheme, on_range=policy).view(np.uint32) == 0).all()
            A = Z.copy()
            A[1] = 3
            B = np.zeros((4, 2), np.float32)
            B[:, 1] = 5
            np.testing.assert_array_equal(run(A, B, scheme, on_range=policy), [[0, 0], [0, 60], [0, 0]])
