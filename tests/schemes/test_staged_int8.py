"""`staged-int8` and `strassen`: what they compute, their bounds, and their kernels as far as no GPU is needed."""

from __future__ import annotations

import ctypes
import subprocess
from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu import mma, schemes, theory
from fpemu.errors import InputError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import compiler
from fpemu.mma import KOrder
from fpemu.schemes import staged_int8, strassen
from fpemu.schemes.staged import Staged
from fpemu.theory import Norms
from fpemu.theory.bounds import corrections

SPEC = schemes.get("staged-int8").spec("H200")
OPTIONS = (None, 1, 2, 5)
needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))


def draw(rng, shape, kind="uniform"):
    if kind == "uniform":
        x = rng.uniform(-1, 1, shape)
    elif kind == "phi":
        x = (rng.random(shape) - 0.5) * np.exp(0.5 * rng.standard_normal(shape))
    elif kind == "wide":
        x = (
            rng.standard_normal(shape)
            * 2.0 ** rng.integers(-30, 31, shape)
            * 2.0 ** rng.integers(-60, 20, (shape[0], 1))
        )
        x[rng.random(shape) < 0.1] = 0
    else:
        x = np.full(shape, 1.9999)
    return x.astype(np.float32)


def error(D, A, B):
    exact = A.astype(float) @ B.astype(float)
    return np.linalg.norm(D - exact) / np.linalg.norm(exact)


# --- staged-int8


def words(row, exact, stage):
    """j, e, and for each entry h, r in fp16, qh, qr, by exact fractions."""
    top = max(abs(Fraction(float(x))) for x in row)
    e, j = 0, 8
    if top:
        while top * 8 * Fraction(2) ** e >= 2**13:
            e -= 1
        while top * 8 * Fraction(2) ** (e + 1) < 2**13:
            e += 1
        j = max(j for j in range(8, 16) if top * j * Fraction(2) ** e < 2**13)
    out = []
    for k, x in enumerate(row):
        y = Fraction(float(x)) * j * Fraction(2) ** e
        h = Fraction(float(np.float16(np.float32(float(y)))))
        r, slow = y - h, exact is not None and k // stage % exact == 0
        high, low = (max(-127, min(127, round(v))) for v in (h / 64, r * 64))
        out.append((float(h), float(np.float16(float(r))) * slow, high * (not slow), low * (not slow)))
    return j, e, np.array(out).T


@pytest.mark.parametrize("stage", [64, 128])
@pytest.mark.parametrize("exact", OPTIONS)
def test_the_result_is_that_of_the_formulas(exact, stage):
    rng = np.random.default_rng(1)
    for kind, K in (("uniform", 400), ("wide", 130), ("phi", 64), ("wide", 1)):
        A, B = draw(rng, (3, K), kind), draw(rng, (2, K), kind).T
        found = fpemu.gemm(A, B, scheme="staged-int8", hardware="H200", exact=exact, stage=stage)
        for i in range(3):
            for n in range(2):
                (ja, ea, a), (jb, eb, b) = words(A[i], exact, stage), words(B[:, n], exact, stage)
                total = np.float32(0)
                for start in range(0, K, stage):
                    acc = None
                    for k in range(start, min(start + stage, K), 64):
                        at = slice(k, min(k + 64, start + stage))
                        for x, y in ((a[1], b[0]), (a[0], b[1]), (a[0], b[0])):
                            acc = mma.gemm(x[None, at].astype(np.float16), y[at, None].astype(np.float16), acc, SPEC)
                    total = total + acc[0, 0]
                total = total + np.float32(int(a[3] @ b[2] + a[2] @ b[3]))
                value = Fraction(float(total)) / (ja * jb) / Fraction(2) ** (ea + eb)
                assert found[i, n] == np.float32(float(value)), (kind, K, i, n)


def test_int32_holds_the_corrections_of_a_chunk_and_no_more_is_summed():
    assert 2 * 127**2 * staged_int8.CHUNK < 2**31
    K = staged_int8.CHUNK + 100
    A, B = np.full((1, K), 1.999, np.float32), np.full((K, 1), 1.999, np.float32)
    found = fpemu.gemm(A, B, scheme="staged-int8", hardware="H200")
    # the same from two products, the first chunk's sum carried over as the kernel carries it
    scheme = schemes.get("staged-int8")
    a, b = scheme.split_operand(A, "A", "raise"), scheme.split_operand(B, "B", "raise")
    total = np.zeros((1, 1), np.float32)
    for k in (slice(0, staged_int8.CHUNK), slice(staged_int8.CHUNK, K)):
        ha, hb = a.h[:, k].astype(np.float16), b.h[k].astype(np.float16)
        total = mma.gemm(ha, hb, total, SPEC, KOrder(promote=64))
        total = total + (a.low[:, k] @ b.high[k] + a.high[:, k] @ b.low[k]).astype(np.float32)
    wide = total.astype(np.float64) / (a.factors * b.factors)
    assert np.array_equal(found, np.ldexp(wide, -(a.exponents + b.exponents)).astype(np.float32))


def test_rows_fill_the_words_to_eight_ninths():
    rng = np.random.default_rng(2)
    largest = np.abs(draw(rng, (1, 4000), "wide"))[0]
    largest = np.concatenate([largest[largest > 0], [2.0**-149, 3.4e38, 1.0, np.nextafter(np.float32(2), 0)]])
    j, e = staged_int8.scales(largest.astype(np.float64))
    scaled = np.ldexp(largest.astype(np.float64) * j, e)
    assert set(j) <= set(range(8, 16))
    assert (scaled < 2**13).all()
    assert (scaled >= 2**13 * 8 / 9).all()


def test_exact_everywhere_is_staged_where_the_scales_are_powers_of_two():
    rng = np.random.default_rng(3)
    A, B = draw(rng, (20, 300)), draw(rng, (300, 30))
    A[:, 7], B[9] = 1.99999, 1.99999  # j = 8
    one = fpemu.gemm(A, B, scheme="staged", hardware="H200")
    other = fpemu.gemm(A, B, scheme="staged-int8", hardware="H200", exact=1)
    assert np.array_equal(one, other)


def test_integers_small_enough_come_out_exact_whatever_the_scale():
    rng = np.random.default_rng(4)
    A, B = (rng.integers(-60, 61, s).astype(np.float32) for s in ((9, 200), (200, 8)))
    assert np.array_equal(fpemu.gemm(A, B, scheme="staged-int8", hardware="H200"), A @ B)


def test_the_error_is_what_two_units_of_time_can_give():
    rng = np.random.default_rng(5)
    for kind, least, most in (("uniform", 1.4e-6, 1.9e-6), ("phi", 4e-6, 1e-5)):
        A, B = draw(rng, (64, 1536), kind), draw(rng, (64, 1536), kind).T
        errors = [error(fpemu.gemm(A, B, scheme="staged-int8", hardware="H200", exact=x), A, B) for x in (None, 4, 2)]
        assert least < errors[0] < most
        assert np.allclose([e / errors[0] for e in errors[1:]], [0.75**0.5, 0.5**0.5], rtol=0.06)  # the share of stages


def test_the_bounds_hold():
    rng = np.random.default_rng(6)
    for kind in ("uniform", "phi", "wide", "constant"):
        for K in (1, 70, 400):
            A, B = draw(rng, (24, K), kind), draw(rng, (20, K), kind).T
            exact, size = A.astype(float) @ B.astype(float), abs(A.astype(float)) @ abs(B.astype(float))
            for option in OPTIONS:
                scheme = schemes.build("staged-int8", {"exact": option})
                lost = abs(fpemu.gemm(A, B, scheme=scheme, hardware="H200") - exact)
                assert (lost <= theory.entrywise(scheme, "H200", A=A, B=B)).all(), (kind, K, option)
                if kind != "wide":
                    norms = Norms.of(A, B)
                    more = theory.bound("staged", "H200", norms=norms).worst
                    worst = sum(p.worst for p in corrections(scheme, norms)) + more
                    assert (lost <= worst * size).all(), (kind, K, option)


def test_the_part_of_eight_bits_is_typical_of_random_operands():
    rng = np.random.default_rng(7)
    for kind in ("uniform", "phi"):
        A, B = draw(rng, (48, 700), kind), draw(rng, (48, 700), kind).T
        size = abs(A.astype(float)) @ abs(B.astype(float))
        D = fpemu.gemm(A, B, scheme="staged-int8", hardware="H200")
        found = np.sqrt(np.mean(((D - A.astype(float) @ B.astype(float)) / size) ** 2))
        part, _ = corrections(schemes.get("staged-int8"), Norms.of(A, B))
        assert 0.6 < found / part.deviation < 1.2


def test_rows_with_nan_or_infinity_are_those_of_sgemm_and_refused_by_default():
    rng = np.random.default_rng(8)
    A, B = draw(rng, (6, 80)), draw(rng, (80, 5))
    A[2, 3], B[7, 1] = np.nan, np.inf
    for scheme in ("staged-int8", Staged(levels=1)):
        with pytest.raises(InputError, match="NaN or infinite"):
            fpemu.gemm(A, B, scheme=scheme, hardware="H200")
        D = fpemu.gemm(A, B, scheme=scheme, hardware="H200", on_range="propagate")
        S = fpemu.gemm(A, B, scheme="sgemm")
        assert np.array_equal(np.isnan(D), np.isnan(S))
        assert np.array_equal(np.isinf(D), np.isinf(S))
        assert np.isfinite(D[0, 0])


# --- strassen


def test_strassen_is_exact_on_small_integers_of_any_shape():
    rng = np.random.default_rng(9)
    for lead, M, N, K in (((), 1, 1, 1), ((), 5, 8, 7), ((2,), 4, 3, 66), ((), 33, 2, 130)):
        A, B = (rng.integers(-9, 10, (*lead, *s)).astype(np.float32) for s in ((M, K), (K, N)))
        for levels in (1, 2):
            assert np.array_equal(fpemu.gemm(A, B, scheme=Staged(levels=levels), hardware="H200"), A @ B)


def test_strassen_takes_seven_products_and_meets_its_bound_and_sgemms_error():
    assert len(strassen.left(np.ones((2, 2)))) == len(strassen.right(np.ones((2, 2)))) == 7
    rng = np.random.default_rng(10)
    for kind in ("uniform", "phi", "wide", "constant"):
        A, B = draw(rng, (48, 1024), kind), draw(rng, (32, 1024), kind).T
        for levels in (1, 2):
            D = fpemu.gemm(A, B, scheme=Staged(levels=levels), hardware="H200")
            bound = theory.entrywise(Staged(levels=levels), "H200", A=A, B=B)
            assert (abs(D - A.astype(float) @ B.astype(float)) <= bound).all()
            if kind in ("uniform", "phi"):
                assert error(D, A, B) < (0.6, 1.6)[levels - 1] * error(fpemu.gemm(A, B, scheme="sgemm"), A, B)


def test_strassen_refuses_entries_whose_sums_overflow():
    A = np.full((2, 2), 2.0**124, np.float32)
    with pytest.raises(InputError, match="overflow"):
        fpemu.gemm(A, A / A, scheme=Staged(levels=1), hardware="H200")


def test_the_former_name_of_strassens_algorithm_warns_and_is_staged_with_levels():
    with pytest.warns(DeprecationWarning, match="'staged' with levels=1"):
        chosen = schemes.get("strassen")
    assert (chosen.name, chosen.levels) == ("staged", 1)
    assert "strassen" not in schemes.names()
    assert (Staged().limited, Staged().runs_by_plan) == (False, True)
    assert (Staged(levels=1).limited, Staged(levels=1).runs_by_plan) == (True, False)


def test_no_bound_relative_to_the_magnitudes_of_strassens_algorithm_is_stated():
    with pytest.raises(InputError, match="no bound relative to"):
        theory.bound("staged", "H200", norms=Norms.sample("uniform", 64, rows=4), levels=1)


# --- kernels without a GPU
HOST = """
#include "staged_int8_words.cuh"
extern "C" void scales(const unsigned* x, int* out, long n) { for (long i = 0; i < n; i++) out[i] = scale_for(x[i]); }
extern "C" void splits(const float* x, const int* s, unsigned short* h, unsigned short* r, signed char* a,
                       signed char* b, long n) {
  for (long i = 0; i < n; i++) {
    const Numbers w = split(x[i], scale_of(s[i]));
    h[i] = w.h, r[i] = w.r, a[i] = (signed char)w.high, b[i] = (signed char)w.low;
  }
}
extern "C" void back(const float* x, const int* s, const int* t, float* near, float* far, long n) {
  for (long i = 0; i < n; i++) {
    const float j = s[i] & 15, k = t[i] & 15;
    const int e = -((s[i] >> 4) + (t[i] >> 4));
    near[i] = unscaled<true>(x[i], j, k, reciprocal(j), reciprocal(k), e);
    far[i] = unscaled<false>(x[i], j, k, reciprocal(j), reciprocal(k), e);
  }
}
extern "C" long wrong() {  // quotients of all significands that are not the nearest
  long bad = 0;
  for (int j = 8; j < 16; j++)
    for (int k = j; k < 16; k++)
      for (unsigned i = 0; i < 1u << 23; i++) {
        const float x = float_of(0x3F800000 | i);
        bad += unscaled<true>(x, j, k, reciprocal(j), reciprocal(k), 0) != x / (float)(j * k);
      }
  return bad;
}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontier")
    (folder / "host.cpp").write_text(HOST)
    command = [
        str(emulation.compiler()),
        "-O2",
        "-std=c++17",
        "-march=native",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        f"-I{compiler.KERNELS}",
        str(folder / "host.cpp"),
        "-o",
        str(folder / "host.so"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    library = ctypes.CDLL(str(folder / "host.so"))
    library.wrong.restype = ctypes.c_long
    return library


def call(function, *arrays):
    function(*(a.ctypes.data_as(ctypes.c_void_p) for a in arrays), ctypes.c_long(arrays[0].size))


@needs_compiler
def test_the_kernels_words_are_the_schemes(host):
    rng = np.random.default_rng(11)
    X = np.concatenate([draw(rng, (200, 90), kind) for kind in ("uniform", "phi", "wide", "constant")])
    X[0], X[1], X[2, 1:], X[3] = 0, 2.0**-149 * np.arange(90), 0, 3.4e38
    scheme = schemes.get("staged-int8")
    parts = scheme.split_operand(X, "A", "raise")
    largest, codes = np.abs(X).max(axis=1).view(np.uint32), np.empty(len(X), np.int32)
    call(host.scales, largest, codes)
    assert np.array_equal(codes & 15, parts.factors[:, 0])
    assert np.array_equal(codes >> 4, parts.exponents[:, 0])
    every = np.repeat(codes, 90)
    h, r, a, b = (np.empty(X.size, t) for t in (np.float16, np.float16, np.int8, np.int8))
    host.splits(*(x.ctypes.data_as(ctypes.c_void_p) for x in (X, every, h, r, a, b)), ctypes.c_long(X.size))
    slow = schemes.build("staged-int8", {"exact": 1}).split_operand(X, "A", "raise")
    for mine, theirs in ((h, parts.h), (r, slow.r), (a, parts.high), (b, parts.low)):
        assert np.array_equal(mine.astype(np.float64), theirs.reshape(-1))


@needs_compiler
def test_the_kernels_way_back_is_the_schemes(host):
    rng = np.random.default_rng(12)
    x = np.ldexp(rng.standard_normal(20000), rng.integers(-40, 40, 20000)).astype(np.float32)
    x[:3] = 0, 2.0**-48, -(2.0**-48)
    s, t = (16 * rng.integers(-118, 159, x.size, np.int32) + rng.integers(8, 16, x.size, np.int32) for _ in "AB")
    near, far = np.empty_like(x), np.empty_like(x)
    host.back(*(v.ctypes.data_as(ctypes.c_void_p) for v in (x, s, t, near, far)), ctypes.c_long(x.size))
    e = (s >> 4) + (t >> 4)
    with np.errstate(over="ignore", under="ignore"):
        expected = np.ldexp(x.astype(np.float64) / ((s & 15) * (t & 15)), -e).astype(np.float32)
    assert np.array_equal(far, expected)
    plain = (-e >= -70) & (-e <= 127) & ((abs(x) >= 2.0**-48) | (x == 0))
    assert plain.sum() > 3000
    assert np.array_equal(near[plain], expected[plain])


@needs_compiler
def test_the_quotient_by_two_scales_is_the_nearest_for_every_significand(host):
    assert host.wrong() == 0


def test_there_is_a_kernel_for_what_it_does_and_none_for_the_rest():
    from fpemu.gpu.gemm.wgmma import staged_int8, strassen

    shape, scheme = (8, 8, 8), schemes.get("staged-int8")
    assert staged_int8.kernel(scheme, SPEC, shape, None).scheme is scheme
    assert staged_int8.kernel(scheme, SPEC, shape, KOrder(promote=64)) is not None
    assert staged_int8.kernel(schemes.build("staged-int8", {"stage": 128}), SPEC, shape, None) is not None
    assert staged_int8.kernel(scheme, SPEC, shape, KOrder(split=64)) is None
    assert staged_int8.kernel(scheme, mma.spec("ampere"), shape, None) is None
    assert staged_int8.kernel(schemes.build("staged-int8", {"stage": 96}), SPEC, shape, None) is None
    assert staged_int8.kernel(schemes.get("staged"), SPEC, shape, None) is None
    assert strassen.kernel(Staged(levels=1), SPEC, shape, None) is not None
    assert strassen.kernel(Staged(levels=1), mma.spec("ampere"), shape, None) is None


@needs_nvrtc
def test_the_kernels_compile_for_hopper():
    from fpemu.gpu.gemm.wgmma import splits, staged_int8, strassen

    sizes = {"Product": staged_int8._PRODUCT, "Operand": strassen._OPERAND, "Join": strassen._JOIN}
    same = {name: f"static_assert(sizeof({name}) == {dtype.itemsize});\n" for name, dtype in sizes.items()}
    for name, source in (
        ("product", staged_int8.source(32, 2, 2, True) + same["Product"]),
        ("split", splits.KINDS["bytes"].source()),
        ("strassen", strassen.source(2) + same["Operand"] + same["Join"]),
    ):
        assert compiler.compile(source, "sm_90a", name=name)[:4] == b"\x7fELF"
