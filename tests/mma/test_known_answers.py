"""Answers published for real hardware, and the rules of the specification one by one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fpemu import mma
from fpemu.mma import MmaSpec
from tests.hostile import bits

BACKENDS = ["compiled", "numpy"]
EXACT = -0.875  # the sum of the first example


def dot(a, b, c, spec, backend="compiled"):
    """One output element: the bits of sum a_i b_i + c."""
    dtype = np.float16 if spec.a_format.name == "fp16" else np.float32
    A, B = np.array([a], dtype), np.array([b], dtype).T
    C = np.array([[c]], spec.c_format.dtype)
    return mma.gemm(A, B, C, spec, backend=backend)[0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("hardware", "answer"),
    [
        ("volta", 0x00000000),
        ("turing", 0xBF000000),
        ("ampere", 0xBF000000),
        ("ada", 0xBF000000),
        ("hopper", 0xBF400000),
        ("blackwell", 0xBF400000),
        ("cdna1", np.float32(EXACT).view(np.uint32)),
        ("cdna2", 0x00000000),
        ("cdna3", np.float32(-0.5).view(np.uint32)),
        ("ideal", np.float32(EXACT).view(np.uint32)),
        ("ascend910a", np.float32(EXACT).view(np.uint32)),
        ("V100", 0x00000000),
        ("A800", 0xBF000000),
        ("H200", 0xBF400000),
        ("MI210", 0x00000000),
    ],
)
def test_the_example_that_separates_the_generations(hardware, answer, backend):
    a, b, c = (-(2.0**13), -0.5, -0.25, -0.125), (2.0**10, 1, 1, 1), 2.0**23
    got = dot(a, b, c, mma.spec(hardware, "fp16", "fp32"), backend)
    assert got.dtype == np.float32
    assert bits(got) == answer


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("hardware", "last"), [("volta", 0), ("turing", 1), ("ampere", 1), ("hopper", 2), ("blackwell", 2)]
)
def test_how_far_below_the_largest_product_a_bit_survives(hardware, last, backend):
    spec = mma.spec(hardware, "fp16", "fp32")
    for j in range(8):
        got = dot((2.0**12, -(2.0**12), 2.0**-j), (2.0**11, 2.0**11, 1.0), 0.0, spec, backend)
        assert got == (2.0**-j if j <= last else 0.0), f"j = {j}"


BF16_A = "9b94 19f3 9a2e 1a67 9a25 9b4e 9b29 9a33 99e0 1a14 9914 99d1 9ae9 1b1a 9a9c 1b3a"
BF16_B = "9aaf 99f3 9acc 1b7c 19ed 1b25 9a1b 9a20 9af7 9a48 1ae1 1b32 1b12 1b0e 9a68 1735"


def bf16_row(text):
    return (np.array([int(w, 16) for w in text.split()], np.uint32) << np.uint32(16)).view(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("instruction", ["mma", "wgmma"])
def test_the_exponent_floor_of_a_real_h100(instruction, backend):
    a, b = bf16_row(BF16_A), bf16_row(BF16_B)
    spec = mma.spec("H100", "bf16", "fp32", instruction=instruction, k=16)
    assert bits(dot(a, b, 0.0, spec, backend)) == 0x0000000B
    for floor, answer in ((-133, 0x0B), (-126, 0x0A), (-132, 0x0A), (-134, 0x0A)):
        custom = MmaSpec("bf16", "bf16", "fp32", k=16, block=16, F=25, E0=floor)
        assert bits(dot(a, b, 0.0, custom, backend)) == answer, f"E0 = {floor}"


@pytest.mark.parametrize(
    ("hardware", "F", "E0_fp32", "E0_fp16"),
    [("volta", 23, -131, -19), ("turing", 24, -132, -20), ("ampere", 24, -132, -20), ("hopper", 25, -133, -21)],
)
def test_the_floor_is_the_smallest_exponent_of_the_result_less_f_minus_18(hardware, F, E0_fp32, E0_fp16):
    fp32, fp16 = mma.spec(hardware, "fp16", "fp32"), mma.spec(hardware, "fp16", "fp16")
    assert (F, E0_fp32, E0_fp16) == (fp32.F, fp32.E0, fp16.E0)
    assert (fp32.E0, fp16.E0) == (-126 - (F - 18), -14 - (F - 18))


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_underflow_and_every_other_zero_is_plus_zero(backend):
    spec = mma.spec("hopper", "bf16", "fp32")
    tiny = 2.0**-80
    assert bits(dot((-tiny,), (tiny,), 0.0, spec, backend)) == 0
    assert bits(dot((-tiny,), (tiny,), -0.0, spec, backend)) == 0
    assert bits(dot((-0.0,) * 16, (1.0,) * 16, -0.0, spec, backend)) == 0
    assert bits(dot((-0.0,) * 16, (1.0,) * 16, -0.0, mma.spec("hopper", "fp16", "fp32"), backend)) == 0
    assert bits(dot((1.0, -1.0), (1.0, 1.0), -0.0, spec, backend)) == 0
    half = mma.spec("hopper", "fp16", "fp16")
    assert bits(dot((-(2.0**-14),), (2.0**-14,), -0.0, half, backend)) == 0
    assert bits(dot((-(2.0**-13),), (2.0**-12,), 0.0, half, backend)) == 0  # a tie at half the smallest subnormal
    assert bits(dot((-(2.0**-13), -(2.0**-24)), (2.0**-12, 2.0**-9), 0.0, half, backend)) == 0x8001


@pytest.mark.parametrize("backend", BACKENDS)
def test_subnormal_results_and_operands_are_kept(backend):
    spec = mma.spec("hopper", "bf16", "fp32")
    assert bits(dot((2.0**-100,), (2.0**-49,), 0.0, spec, backend)) == 1
    assert bits(dot((2.0**-133,), (2.0**-16,), 0.0, spec, backend)) == 1  # the smallest bf16
    assert bits(dot((2.0**-133,), (1.0,), 2.0**-149, spec, backend)) == 0x10001
    half = mma.spec("hopper", "fp16", "fp32")
    assert dot((2.0**-24,), (2.0**-24,), 0.0, half, backend) == 2.0**-48


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hardware", ["volta", "ampere", "hopper"])
def test_overflow(hardware, backend):
    half = mma.spec(hardware, "fp16", "fp16")
    assert bits(dot((65504.0, 15.984375), (1.0, 1.0), 0.0, half, backend)) == 0x7BFF
    assert bits(dot((65504.0, 16.0), (1.0, 1.0), 0.0, half, backend)) == 0x7C00
    assert bits(dot((-65504.0, -16.0), (1.0, 1.0), 0.0, half, backend)) == 0xFC00
    assert bits(dot((60000.0, -60000.0), (60000.0, 60000.0), 1024.0, half, backend)) == 0x6400  # products do not
    if hardware != "volta":
        wide = mma.spec(hardware, "bf16", "fp32")
        top = float(np.finfo(np.float32).max)
        assert bits(dot((2.0**100,), (2.0**28,), 0.0, wide, backend)) == 0x7F800000  # Inf, not the largest finite
        assert bits(dot((-(2.0**100),), (2.0**28,), 0.0, wide, backend)) == 0xFF800000
        assert bits(dot((2.0**100, -(2.0**100)), (2.0**100, 2.0**100), 1.0, wide, backend)) == 0  # 1 is truncated away
        assert bits(dot((0.0,), (0.0,), top, wide, backend)) == 0x7F7FFFFF
        assert bits(dot((2.0**100,), (2.0**3,), top, wide, backend)) == 0x7F7FFFFF  # toward zero
        assert bits(dot((2.0**100,), (2.0**4,), top, wide, backend)) == 0x7F800000


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hardware", ["volta", "turing", "ampere", "ada", "hopper", "blackwell"])
@pytest.mark.parametrize(
    ("d", "nan", "inf", "minus"), [("fp32", 0x7FFFFFFF, 0x7F800000, 0xFF800000), ("fp16", 0x7FFF, 0x7C00, 0xFC00)]
)
def test_specials(hardware, d, nan, inf, minus, backend):
    spec = mma.spec(hardware, "fp16", d)

    def got(a, b, c=0.0):
        return bits(dot(a, b, c, spec, backend))

    quiet = np.array([0x7E00, 0xFE00, 0x7C01, 0xFFFF], np.uint16).view(np.float16)  # signs, payloads, signalling
    with np.errstate(invalid="ignore"):
        for x in quiet:
            assert got((x, 1.0), (1.0, 1.0)) == nan
            assert got((1.0, 0.0), (1.0, x)) == nan
            assert got((x, np.inf), (0.0, 1.0)) == nan
        assert got((1.0,), (1.0,), np.nan) == nan
        assert got((1.0,), (1.0,), -np.nan) == nan
    assert got((np.inf, 1.0), (0.0, 1.0)) == nan
    assert got((0.0, 1.0), (-np.inf, 1.0)) == nan
    assert got((np.inf, -np.inf), (1.0, 1.0)) == nan
    assert got((np.inf, 1.0), (1.0, 1.0), -np.inf) == nan
    assert got((np.inf, 1.0), (-1.0, 1.0), -np.inf) == minus
    assert got((1.0, 1.0), (1.0, 1.0), np.inf) == inf
    assert got((-np.inf, 60000.0), (-1.0, 60000.0), np.inf) == inf
    assert got((-np.inf, 60000.0), (2.0**-24, 60000.0)) == minus


@pytest.mark.parametrize("backend", BACKENDS)
def test_e4m3_has_no_inf_and_two_nans(backend):
    spec = mma.spec("hopper", "e4m3", "fp32", instruction="wgmma")
    assert dot((448.0,) * 32, (448.0,) * 32, 0.0, spec, backend) == 448.0 * 448.0 * 32
    for x in (np.nan, -np.nan):
        assert bits(dot((x,), (0.0,), 0.0, spec, backend)) == 0x7FFFFFFF


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hardware", ["ada", "hopper"])
def test_native_fp8_keeps_13_fraction_bits(hardware, backend):
    spec = mma.spec(hardware, "e5m2", "fp32", instruction="wgmma" if hardware == "hopper" else "mma")
    c = np.uint32(0x3FFFFFFF).view(np.float32)
    assert bits(dot((0.0,), (0.0,), c, spec, backend)) == 0x3FFFFC00
    assert bits(dot((0.0,), (0.0,), -c, spec, backend)) == 0xBFFFFC00
    assert bits(dot((1.0,), (2.0**-14,), 1.0, spec, backend)) == 0x3F800000
    assert bits(dot((1.0,), (2.0**-13,), 1.0, spec, backend)) == 0x3F800400


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hardware", ["ampere", "hopper"])
def test_tf32_ignores_the_low_13_bits_of_its_operands(hardware, backend):
    spec = mma.spec(hardware, "tf32", "fp32")
    one_and_a_bit = np.uint32(0x3F801FFF).view(np.float32)
    assert dot((one_and_a_bit,), (one_and_a_bit,), 0.0, spec, backend) == 1.0
    nan_below = np.uint32(0x7F800001).view(np.float32)  # its payload lies in the ignored bits: an infinity
    with np.errstate(invalid="ignore"):
        assert dot((nan_below,), (1.0,), 0.0, spec, backend) == np.inf
    tiny = np.uint32(0x00001FFF).view(np.float32)  # nothing is left of it
    assert np.isnan(dot((tiny,), (np.inf,), 0.0, spec, backend))
    c = np.uint32(0x3F801FFF).view(np.float32)  # c is fp32: all its bits count
    assert dot((0.0,), (0.0,), c, spec, backend) == c


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_follow_one_another_and_nothing_wider_survives(backend):
    # 1 + 2^-24 is cut off after each block of 4 or 8, but seen within one
    a = np.zeros(16)
    a[[0, 8]] = 2.0**-24
    assert dot(a, np.ones(16), 1.0, mma.spec("ampere", "fp16", "fp32", k=16), backend) == 1.0
    together = np.zeros(16)
    together[:2] = 2.0**-24
    assert dot(together, np.ones(16), 1.0, mma.spec("ampere", "fp16", "fp32", k=16), backend) == 1.0 + 2.0**-23
    assert dot(a, np.ones(16), 1.0, mma.spec("hopper", "fp16", "fp32", k=16), backend) == 1.0 + 2.0**-23


@pytest.mark.parametrize("backend", BACKENDS)
def test_cdna2_flushes_and_cdna1_does_not(backend):
    tiny = 2.0**-24  # a subnormal half
    assert dot((tiny,), (1.0,), 0.0, mma.spec("MI210", "fp16", "fp32"), backend) == 0.0
    assert dot((tiny,), (1.0,), 0.0, mma.spec("MI100", "fp16", "fp32"), backend) == tiny
    assert dot((0.0,), (0.0,), 2.0**-130, mma.spec("MI210", "fp16", "fp32"), backend) == 0.0
    assert dot((0.0,), (0.0,), 2.0**-130, mma.spec("MI100", "fp16", "fp32"), backend) == 2.0**-130


@pytest.mark.parametrize("backend", BACKENDS)
def test_cdna2_keeps_a_flushed_accumulator_s_sign_between_blocks(backend):
    spec = mma.spec("cdna2", "bf16", "fp32", "v_mfma_f32_16x16x8bf16")
    assert spec.block == 2
    a, b = [-1.5 * 2.0**-63, 0.0, -(2.0**-70), -(2.0**-70)], [2.0**-63, 0.0, 2.0**-70, 2.0**-70]
    # the first block leaves 2^-126 - 1.5·2^-126, flushed to -0; the second adds (-0) + (-0); then come zeros
    four = MmaSpec("bf16", "bf16", "fp32", k=4, block=2, arithmetic="flushed", final="RNE")
    assert bits(dot(a, b, 2.0**-126, four, backend)) == 0x80000000
    two = four.replace(k=2)
    assert bits(dot(a[:2], b[:2], 2.0**-126, two, backend)) == 0x80000000
    assert bits(dot(a, b, 2.0**-126, spec, backend)) == 0  # blocks of (+0)·(+0) follow
    tiny = [2.0**-70] * 6
    assert bits(dot([*a[:2], *(-x for x in tiny)], [*b[:2], *tiny], 2.0**-126, spec, backend)) == 1 << 31


@pytest.mark.parametrize("backend", BACKENDS)
def test_cdna3_floors_the_sum_31_bits_below_its_own_exponent(backend):
    """The sum is normalised before the last floor: a carry loses a bit more, a cancellation none."""
    spec = mma.spec("cdna3", "fp16", "fp32")
    # 2^-31 beside a carry to 2: cut off, and a tie to even is left
    a = (1.5, 1.5, 1.5, 1.25, 2.0**-12, 2.0**-15)
    b = (1.5 * 2.0**-7,) * 3 + (2.0**-7, 2.0**-11, 2.0**-16)
    assert sum(x * y for x, y in zip(a, b, strict=True)) == 2.0**-4 + 2.0**-23 + 2.0**-31
    assert dot(a, b, 2.0 - 2.0**-4, spec, backend) == 2.0
    # a half, 32 bits below E = 31, is kept when the sum falls below 2^31
    a, b = (2.0**10, -(2.0**5), 8.0, 0.5, 1.0), (2.0**11, 2.0**5, 8.0, 0.5, 0.5)
    assert bits(dot(a, b, -(2.0**31), spec, backend)) == 0xCEFFC007


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [16, 32])
def test_a_zero_accumulator_of_cdna3_has_the_lowest_exponent(k, backend):
    """A zero c aligns nothing: the smallest subnormal of fp32 is left."""
    spec = mma.spec("cdna3", "bf16" if k == 16 else "e5m2fnuz", "fp32", k=k)
    small = 2.0**-70 if k == 16 else 2.0**-16
    for c in (0.0, -0.0):
        other, product = (2.0**-149 / small, 2.0**-149) if k == 16 else (small, 2.0**-32)
        assert dot((small,), (other,), c, spec, backend) == product


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hardware", ["A100", "H100", "MI250"])
def test_double_precision_is_a_chain_of_fused_multiply_adds(hardware, backend):
    spec = mma.spec(hardware, "fp64", "fp64")
    A = np.array([[1 + 2.0**-52, 1.0, 1.0]])
    B = np.array([[1 + 2.0**-52], [-(1 + 2.0**-51)], [2.0**-104]])
    # the first product is rounded with the zero it is added to: 2^-104 is lost there, and comes back with the last
    assert mma.gemm(A, B, None, spec, backend=backend)[0, 0] == 2.0**-104
    C = np.array([[-(1 + 2.0**-51)]])
    assert mma.gemm(A[:, :1], B[:1], C, spec, backend=backend)[0, 0] == 2.0**-104


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hardware", ["ampere", "hopper", "blackwell"])
def test_int8_is_exact(hardware, backend):
    spec = mma.spec(hardware, "int8")
    rng = np.random.default_rng(0)
    A = rng.integers(-128, 128, (5, 70)).astype(np.int8)
    B = rng.integers(-128, 128, (70, 3)).astype(np.int8)
    C = rng.integers(-(2**20), 2**20, (5, 3)).astype(np.int32)
    D = mma.gemm(A, B, C, spec, backend=backend)
    assert D.dtype == np.int32
    assert np.array_equal(D, A.astype(np.int64) @ B.astype(np.int64) + C)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sum_beside_a_tie_is_rounded_once_by_an_fma(backend):
    """1 + 2^-23 + 2^-24 - 2^-52 + 2^-60 - 2^-70: the last bit of the nearest float64 is odd, and the next is a tie."""
    u = 2.0**-14 - 2.0**-23
    a, b, c = 2.0**-12 * (1 + u), 2.0**-12 * (1 - u), 1 + 2.0**-23
    assert Fraction(a) * Fraction(b) + Fraction(c) < Fraction(1) + Fraction(3, 2**24)
    assert dot((a,), (b,), c, mma.spec("cdna2", "fp32", "fp32"), backend) == c
    assert dot((-a,), (b,), -c, mma.spec("cdna2", "fp32", "fp32"), backend) == -c


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_negative_subnormal_c_is_plus_zero_on_cdna2(backend):
    for c in (-(2.0**-130), -0.0):
        assert bits(dot((0.0,) * 16, (-1.0,) * 16, c, mma.spec("MI210", "fp16", "fp32"), backend)) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_product_of_2_to_the_128_is_infinite_on_cdna3(backend):
    spec = mma.spec("MI300X", "bf16", "fp32")
    assert dot((2.0**64,), (2.0**63,), 0.0, spec, backend) == 2.0**127
    assert dot((2.0**64, -(2.0**64)), (2.0**63, 2.0**63), 1.0, spec, backend) == 0.0
    assert bits(dot((2.0**64, -(2.0**63)), (2.0**64, 2.0**64), 0.0, spec, backend)) == 0x7F800000
    assert np.isnan(dot((2.0**64, -(2.0**64)), (2.0**64, 2.0**64), 0.0, spec, backend))
