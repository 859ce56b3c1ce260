"""`fpemu.mma.scaled_gemm`: each multiplication and addition in fractions, rounded once; refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fpemu import InputError, mma, round_to
from fpemu.mma import KOrder
from tests.equal import same

SPEC = mma.spec("H200", "e4m3")
RNG = np.random.default_rng(5)
M, N, K = 5, 3, 300
A, B = (np.asarray(round_to(RNG.standard_normal(shape), "e4m3")) for shape in ((M, K), (K, N)))


def rounded(x):
    """A fraction as fp32, to nearest even; all numbers here are normal."""
    if not x:
        return Fraction(0)
    e = -30
    while Fraction(2) ** (e + 1) <= abs(x):
        e += 1
    while Fraction(2) ** e > abs(x):
        e -= 1
    return round(x / Fraction(2) ** (e - 23)) * Fraction(2) ** (e - 23)


def times(p, a, b, multiply):
    """The two factors of the last multiplication."""
    first = {"scales-first": (a, b), "a-first": (p, a), "b-first": (p, b)}[multiply]
    return rounded(first[0] * first[1]), {"scales-first": p, "a-first": b, "b-first": a}[multiply]


def draw(*shape):
    return (RNG.uniform(0.5, 2, shape) * 2.0 ** RNG.integers(-9, 9, shape) * RNG.choice([-1, 1], shape)).astype("f4")


@pytest.mark.parametrize("multiply", ["scales-first", "a-first", "b-first"])
@pytest.mark.parametrize(("of_a", "of_b"), [((), ()), ((M, 1), (1, N)), ((M, 1), (1, 1)), ((1, 1), ())])
def test_scales_of_tensors_and_rows_multiply_the_sum(of_a, of_b, multiply):
    a, b, p = draw(*of_a), draw(*of_b), mma.gemm(A, B, None, SPEC, KOrder(promote=128))
    D = mma.scaled_gemm(A, B, a, b, SPEC, KOrder(promote=128), multiply=multiply)
    factors = np.broadcast_arrays(p, a, b)
    for i in np.ndindex(M, N):
        x, y = times(*(Fraction(float(f[i])) for f in factors), multiply)
        assert Fraction(float(D[i])) == rounded(x * y)
    for out in ("bf16", "fp16"):
        narrow = mma.scaled_gemm(A, B, a, b, SPEC, KOrder(promote=128), multiply=multiply, out=out)
        same(narrow, np.asarray(round_to(D, out)))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("multiply", ["scales-first", "a-first", "b-first"])
@pytest.mark.parametrize(("rows_a", "columns_b"), [(M, N), (M, 1), (1, N)])
def test_scales_of_blocks_multiply_the_sums_of_128(rows_a, columns_b, multiply, fused):
    a, b = draw(rows_a, 3), draw(3, columns_b)
    D = mma.scaled_gemm(A, B, a, b, SPEC, block=128, multiply=multiply, fused=fused)
    parts = [mma.gemm(A[:, k : k + 128], B[k : k + 128], None, SPEC) for k in (0, 128, 256)]
    a, b = np.broadcast_to(a, (M, 3)), np.broadcast_to(b, (3, N))
    for i, j in np.ndindex(M, N):
        total = Fraction(0)
        for q, p in enumerate(parts):
            x, y = times(*(Fraction(float(v)) for v in (p[i, j], a[i, q], b[q, j])), multiply)
            total = rounded(total + (x * y if fused else rounded(x * y)))
        assert Fraction(float(D[i, j])) == total


@pytest.mark.parametrize(
    ("a", "b", "block", "multiply"),
    [
        (draw(), draw(1, 1), None, "scales-first"),
        (draw(M, 1), draw(1, N), None, "b-first"),
        (draw(M, 3), draw(3, 1), 128, "scales-first"),
        (draw(1, 3), draw(3, N), 128, "scales-first"),
        (draw(M, 3), draw(3, N), 128, "a-first"),
    ],
)
def test_the_default_is_the_order_of_an_h200(a, b, block, multiply):
    D = mma.scaled_gemm(A, B, a, b, SPEC, block=block)
    same(D, mma.scaled_gemm(A, B, a, b, SPEC, block=block, multiply=multiply))


@pytest.mark.parametrize(
    ("p", "a", "b", "tensor", "rows"),
    [  # codes of D as on an H200: an exact zero of scales first is +0, a result below 2^-149 keeps its sign
        (0.0, -1.8338461813982576e-05, 3.869548237389608e-09, 0x00000000, 0x80000000),
        (1.0, -(2.0**-75), 2.0**-75, 0x00000000, 0x80000000),
        (2.0**-3, -(2.0**-75), 2.0**-73, 0x80000000, 0x80000000),
    ],
)
def test_zeros_have_the_signs_of_hardware(p, a, b, tensor, rows):
    x, y = np.full((2, 1), p, np.float32), np.ones((1, 2), np.float32)
    D = mma.scaled_gemm(x, y, np.float32(a), np.float32(b), SPEC)
    assert (D.view(np.uint32) == tensor).all()
    D = mma.scaled_gemm(x, y, np.full((2, 1), a, np.float32), np.full((1, 2), b, np.float32), SPEC)
    assert (D.view(np.uint32) == rows).all()


def test_hostile_scales_and_coarse_blocks_of_rows():
    x, y = np.ones((300, 128), np.float32), np.ones((128, 2), np.float32)
    a = np.array([[1.0], [2.0], [np.nan]], np.float32)
    D = mma.scaled_gemm(x, y, a, [[1.0, 2.0**-149]], SPEC, block=128)
    same(D[[0, 127, 128, 255], 0], np.array([128, 128, 256, 256], np.float32))
    same(D[0, 1], np.float32(2.0**-142))
    assert (D[256:].view(np.uint32) == 0x7FC00000).all()
    assert np.isposinf(mma.scaled_gemm(x, y, 2.0**127, 2.0**100, SPEC)).all()
    assert np.isnan(mma.scaled_gemm(x, y, np.inf, 0.0, SPEC)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mma.scaled_gemm(A, B, [[1.0, 2.0]], 1.0, SPEC), r"scale_a has shape \(1, 2\): it must be \(5, 1\) or"),
        (lambda: mma.scaled_gemm(A, B, draw(M, 3), draw(2, N), SPEC, block=128), r"\(2, 3\): it must be \(3, 3\) or"),
        (lambda: mma.scaled_gemm(A, B, 0.1, 1.0, SPEC), "scale_a has entries that are not values of fp32"),
        (lambda: mma.scaled_gemm(A, B, 1.0, 1.0, mma.spec("A100", d := "fp16", d)), "an instruction with fp32 results"),
        (lambda: mma.scaled_gemm(A, B, 1.0, 1.0, SPEC, multiply="c"), "unknown multiply 'c'"),
        (lambda: mma.scaled_gemm(A, B.T, 1.0, 1.0, SPEC), "must be matrices"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()
