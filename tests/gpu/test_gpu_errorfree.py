"""The Ozaki family on the GPU, without one: its kernels compiled for a processor, NumPy in the place of cuBLAS."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu.errors import GpuError, InputError
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree import operands
from fpemu.gpu.errorfree import residues as modular
from fpemu.gpu.runtime import compiler, cublas, device
from fpemu.gpu.runtime.compiler import compile, kernel_source
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.schemes.base import build
from tests import processor
from tests.processor import PRODUCTS, matrix, view

needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
needs_gpu = pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))


base = processor.work


@pytest.fixture
def work(base, monkeypatch):
    """A workspace on this processor; mode CR takes 24 moduli or none, so that few kernels have to be compiled."""
    found = modular.moduli_for
    monkeypatch.setattr(modular, "moduli_for", lambda bits: 24 if (found(bits) or 99) <= 24 else None)
    monkeypatch.setattr(modular, "words_of", lambda longest: 6 if longest <= 88 else 9)
    return base


@contextmanager
def by(method):
    """Compute mode CR by slices, as for exponents that are too far apart for residues, or by the method chosen."""
    with pytest.MonkeyPatch.context() as patch:
        if method == "slices":
            patch.setattr(modular, "moduli_for", lambda bits: None)
        yield


def both(work, A, B, C=None, alpha=1.0, beta=0.0, *, scheme="ozaki", method="auto", **options):
    """Codes of the result here and on the CPU, and both reports."""
    chosen = build(scheme, options)
    spec = chosen.spec("H200")
    want = fpemu.certify(A, B, C, scheme=scheme, hardware="H200", alpha=alpha, beta=beta, **options)
    given = [None if X is None else matrix(np.asarray(X, chosen.operand.dtype)) for X in (A, B, C)]
    D = np.full(want.D.shape, 7, chosen.operand.dtype)
    c = given[2] if beta else None
    with by(method):
        report = errorfree.gemm(given[0], given[1], matrix(D), chosen, spec, alpha, beta, c, work=work)
    code = chosen.operand.code_dtype
    return D.view(code), np.ascontiguousarray(want.D).view(code), report, want.report


def agree(work, *args, **options):
    D, want, report, expected = both(work, *args, **options)
    assert report.ok == expected.ok
    if report.ok:
        assert np.array_equal(D, want), f"{np.count_nonzero(want != D)} of {D.size} differ, {options}"
    return report, expected


def wide(rng, shape, phi=1.0):
    return (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))


# --- the schemes, bit for bit
SLICED = [
    {"words": "int8"},
    {"words": "int8", "split": "balanced"},
    {"words": "fp16", "slices": "printed"},
    {"mode": "SP"},
    {"words": "e4m3", "slices": 3, "fast": False},
    {"words": "fp16", "k_block": 24, "slices": 4},
    {"words": "fp64"},
    {"scheme": "ozimmu"},
    {"scheme": "ozimmu", "sums": "group", "split": "nearest", "headroom": 0},
    {"scheme": "ozimmu", "loss": 2.0, "sums": "group", "group": 3, "precision": "fp32"},
]


@pytest.mark.parametrize("options", SLICED, ids=str)
def test_sums_of_slices_and_reports_equal_the_cpus(work, options):
    rng = np.random.default_rng(1)
    narrow = options.get("mode") == "SP" or options.get("precision") == "fp32"
    for phi, alpha, beta in ((0.1, 1.0, 0.0), (2.0, -1.5, 0.75)):
        A, B, C = (wide(rng, s, phi).astype("f4" if narrow else "f8") for s in ((9, 300), (300, 7), (9, 7)))
        report, expected = agree(work, np.asfortranarray(A), B, C, alpha, beta, **options)
        for name in ("bits", "slices", "products", "fast", "complete", "fill", "sum_bound", "int32_bound", "underflow"):
            assert getattr(report, name) == getattr(expected, name), name


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({"words": "int8"}, "auto"),
        ({"words": "int8"}, "slices"),
        ({"words": "fp16"}, "slices"),
        ({"precision": "fp32"}, "auto"),
    ],
    ids=str,
)
def test_the_exact_sum_is_rounded_once_by_either_method(work, options, method):
    rng = np.random.default_rng(2)
    narrow = "precision" in options
    for alpha, beta in ((1.0, 0.0), (-0.7 if not narrow else -0.75, 1.3 if not narrow else 1.25), (math.inf, 1.0)):
        A, B, C = (wide(rng, s).astype("f4" if narrow else "f8") for s in ((6, 130), (130, 5), (6, 5)))
        C[0, 0], C[1, 1] = -(A @ B)[0, 0], np.inf
        agree(work, A, B, C, alpha, beta, mode="CR", method=method, **options)


def test_moderate_exponents_use_floating_point_kernels_and_others_integers(work):
    rng = np.random.default_rng(13)
    A, B = wide(rng, (5, 300)), wide(rng, (300, 6))
    for options in ({"words": "int8"}, {"mode": "SP"}, {"scheme": "ozimmu"}):
        agree(work, A.astype("f4"), B.astype("f4"), **options)
    assert {"cut_doubles", "criterion_doubles", "add_tame_products"} <= work.queue.kernels
    assert not {"cut", "criterion", "add_products"} & work.queue.kernels
    A[0, 0], A[1, 1] = 2.0**-1000, 2.0**950
    for options in ({"words": "int8"}, {"scheme": "ozimmu"}):
        agree(work, A, B, **options)
    assert {"cut", "criterion", "add_products"} <= work.queue.kernels


@pytest.mark.parametrize("scaling", ["accurate", "fast", "invariant"])
def test_scheme_two_has_the_same_powers_of_two_and_integers(work, scaling):
    rng = np.random.default_rng(3)
    faults = 0
    for shape, size in (((5, 33, 6), 1.0), ((4, 700, 3), 2.0**-20), ((3, 8, 3), 2.0**40)):
        A, B = size * wide(rng, shape[:2]), wide(rng, shape[1:])
        A[0], B[:, 1] = 0, 0
        report, _ = agree(work, A, B, scheme="ozaki2", scaling=scaling)
        faults += not report.ok
    assert faults == 0


def test_scheme_two_multiplies_in_fp64_only_where_norms_do_not_confirm_its_conditions(work):
    rng = np.random.default_rng(14)
    B = wide(rng, (64, 5))
    small, half = np.full((4, 256), 2.0**-6), np.arange(256) < 128  # "fast" makes integers of its rows too large
    for scaling in ("accurate", "invariant", "fast"):
        report, _ = agree(work, wide(rng, (4, 64)), B, scheme="ozaki2", scaling=scaling)
        assert report.ok
    assert {step.kind for step in work.queue.products} == {"int8"}
    for A, Y, ok in ((small, small.T, False), (small * half, small.T * ~half[:, None], True)):  # parallel; orthogonal
        work.queue.steps.clear()
        report, expected = agree(work, A, Y, scheme="ozaki2", scaling="fast")
        assert report.ok == ok
        assert {step.kind for step in work.queue.products} == {"int8", "fp64"}
        assert [f.message for f in report.faults] == [f.message for f in expected.faults]
        assert report.crt_bits == expected.crt_bits


@pytest.mark.parametrize(
    "options",
    [*({"scheme": "ozaki2", "scaling": rule} for rule in ("accurate", "fast", "invariant")), {"words": "int8"}],
    ids=str,
)
def test_rows_too_long_for_shared_memory_are_read_again(work, monkeypatch, options):
    rng = np.random.default_rng(5)
    monkeypatch.setattr(device, "most_shared", lambda: 64 + 7 * 1024)
    agree(work, wide(rng, (5, 90)), wide(rng, (90, 4)), **options)


@pytest.mark.parametrize("scheme", ["ozaki", "ozimmu", "ozaki2"])
def test_no_kernel_takes_more_shared_memory_than_the_gpu_has(work, monkeypatch, scheme):
    monkeypatch.setattr(device, "most_shared", lambda: 99 * 1024)
    monkeypatch.setattr(device, "arch", lambda: "sm_86")  # cuBLAS multiplies int8
    rng = np.random.default_rng(6)
    for K in (13000, 9000):
        options = {"scaling": "fast"} if scheme == "ozaki2" else {}
        agree(work, wide(rng, (1, K)), wide(rng, (K, 1)), scheme=scheme, **options)
    assert 0 < max(getattr(step, "shared", 0) for step in work.queue.steps) <= 99 * 1024
    for n in (1500000, 2**31 - 1):
        with pytest.raises(InputError, match=rf"^ozaki: the partial sums of {n} terms .*: give the number of slices"):
            errorfree.pairwise(work, n)


def test_the_lists_of_a_pairing_stay_in_memory_together_when_full_tables_are_freed(work):
    for i in range(257):
        work.table(np.array([i, -1], np.int32))
    argument, _ = errorfree.pairwise(work, 361)
    how = errorfree.pairing(361)
    for name, values in zip(("starts", "sizes", "merges", "levels"), how, strict=True):
        expected = np.array(values).reshape(-1)
        assert np.array_equal(view(int(argument[name][0]), expected.shape, (1,), np.int32), expected)


def hostile(kind, rng, shape):
    X = rng.standard_normal(shape)
    if kind == "tiny":
        return X * np.exp2(rng.integers(-1074, -1030, shape).astype(float))
    if kind == "huge":
        return X * np.exp2(rng.integers(1000, 1022, shape).astype(float))
    if kind == "far apart":
        return X * np.exp2(rng.integers(-120, 120, shape).astype(float))
    if kind == "special":
        X.flat[rng.integers(0, X.size, 3)] = np.nan, np.inf, -np.inf
    return np.zeros(shape) if kind == "zeros" else X


def test_special_cases_run_in_kernels_of_their_own(work, monkeypatch):
    rng = np.random.default_rng(12)
    far, integers = rng.integers(-50, 1, (3, 40)).astype(float), rng.integers(-9, 10, (40, 4)).astype(float)
    agree(
        work, rng.standard_normal((3, 40)) * np.exp2(far), integers, mode="CR", words="int8"
    )  # too wide for fp32 sums
    assert {"residues", "residues_by_pieces", "rebuild"} <= work.queue.kernels
    monkeypatch.setattr(modular, "LONGEST", 128)  # leading bits of a long K are summed in parts
    A, B = wide(rng, (5, 700)), np.full((700, 3), 1.0)
    A[3], B[:, 1] = 2.0, 0
    agree(work, A, B, scheme="ozaki2", scaling="accurate")
    assert "largest_long_sums" in work.queue.kernels
    A, B = hostile("far apart", rng, (4, 900)), hostile("far apart", rng, (900, 3))  # slices narrower than for k_block
    agree(work, A, B, mode="CR", words="fp16", k_block=16)
    report, expected = agree(work, np.array([[2.0**1000, 2.0**-1000]]), np.ones((2, 1)), scheme="ozimmu", bits=1)
    assert expected.slices[0] > 2000
    assert report.fill == expected.fill


@pytest.mark.parametrize("kind", ["tiny", "huge", "far apart", "special", "zeros"])
def test_extreme_ranges_and_special_values_equal_the_cpus(work, kind):
    rng = np.random.default_rng(4)
    for options in (
        {"words": "int8"},
        {"mode": "CR", "words": "int8"},
        {"mode": "CR", "method": "slices", "words": "int8"},
        {"scheme": "ozaki2"},
        {"scheme": "ozimmu"},
    ):
        A, B = hostile(kind, rng, (2, 3)), hostile(kind, rng, (3, 4))
        agree(work, A, B, **options)


def test_batches_single_entries_and_views(work):
    rng = np.random.default_rng(5)
    A, B = wide(rng, (2, 1, 6, 9)), wide(rng, (3, 9, 4))
    D = np.empty((2, 3, 6, 4))
    chosen = build("ozaki2", {})
    strided = np.zeros((2, 1, 12, 18))
    strided[..., ::2, ::2] = A
    a = matrix(strided[..., ::2, ::2])
    errorfree.gemm(a, matrix(B), matrix(D), chosen, chosen.spec("H200"), work=work)
    assert np.array_equal(D, fpemu.gemm(A, B, scheme="ozaki2", hardware="H200"))
    agree(work, np.array([[0.1]]), np.array([[3.0]]), mode="CR")


def test_rows_beyond_the_memory_are_computed_in_panels(work, monkeypatch):
    rng = np.random.default_rng(6)
    A, B = wide(rng, (50, 20)), wide(rng, (20, 9))
    monkeypatch.setattr(operands, "PANEL", 1)
    monkeypatch.setattr(modular, "CHAIN", 64)
    for options in (
        {"words": "int8", "slices": 3},
        {"mode": "CR"},
        {"mode": "CR", "method": "slices"},
        {"scheme": "ozaki2"},
    ):
        agree(work, A, B, **options)
    assert {step.M for step in work.queue.products} >= {16}
    agree(work, wide(rng, (3, 200)), wide(rng, (200, 2)), scheme="ozaki2")  # parts of K


def test_a_corrupted_product_is_detected(work):
    rng = np.random.default_rng(7)
    A, B = wide(rng, (8, 40)), wide(rng, (40, 8))
    run = work.queue

    def spoilt(step):
        run(step)
        if hasattr(step, "kind"):
            view(step.D.pointer, (1,), (1,), PRODUCTS[step.kind][1])[0] += 1
        if getattr(step, "kernel", "") == "byte_gemm":
            view(int(step.arguments[2]["sums"]), (1,), (1,), np.int32)[0] += 1

    work.queue = spoilt
    for options in ({"words": "int8"}, {"mode": "CR"}, {"scheme": "ozaki2"}, {"scheme": "ozimmu"}):
        D, want, *_ = both(work, A, B, **options)
        assert (want != D).any(), options


# --- conditions and errors
def test_a_violated_condition_is_the_same_fault(work):
    rng = np.random.default_rng(8)
    A, B = wide(rng, (2, 20000)), wide(rng, (20000, 2))
    for options in (
        {"bits": 7, "words": "fp16", "slices": 3},
        {"scheme": "ozimmu", "sums": "group", "bits": 7, "group": 40, "slices": 41},
        {"scheme": "ozaki2", "moduli": 2, "scaling": "fast"},
        {"mode": "CR", "words": "int8", "bits": 8},
    ):
        report, expected = agree(work, A, B, **options)
        assert not report.ok
        assert [f.kind for f in report.faults] == [f.kind for f in expected.faults]
    report, _ = agree(work, 0 * A, 0 * B, mode="CR", words="int8", bits=8)  # there are no digits to be too large
    assert report.ok


def far(M, K, N):
    """Operands of any size, of which only the first entries exist."""
    A = matrix(np.array([[2.0**-1000, 2.0**1000], [1.0, 1.0]]))
    return [
        replace(A, shape=shape, strides=A.strides if max(shape) == 2 else (0, 0)) for shape in ((M, K), (K, N), (M, N))
    ]


@pytest.mark.parametrize(
    ("scheme", "options", "sizes", "message"),
    [
        ("ozaki", {"exponents": "row"}, (2, 2, 2), r"only fpemu\.gemm checks"),
        ("ozaki", {"memory": 100}, (2, 2, 2), r"^ozaki: memory=100 bounds the work space of fpemu\.gemm"),
        ("ozaki2", {}, (2**31, 1, 2), r"ozaki2: M, N and K are .* split the product"),
        ("ozaki2", {}, (1, 2**31 - 1, 2), r"ozaki2: M, N and K are .* split the product"),
    ],
)
def test_unsupported_requests_raise_one_line(work, scheme, options, sizes, message):
    chosen, spec = build(scheme, options), fpemu.mma.spec("H200", "int8")
    with pytest.raises(InputError, match=message):
        errorfree.gemm(*far(*sizes), chosen, spec, work=work)


@pytest.mark.skipif(device.missing() is None, reason="there is a GPU here")
def test_without_a_gpu_cublas_names_the_missing_package():
    with pytest.raises(GpuError):
        cublas.Blas()


# --- the pieces
def test_sums_are_in_numpys_order():
    rng = np.random.default_rng(9)
    for n in (1, 5, 8, 100, 128, 129, 137, 1000, 4097):
        x = wide(rng, n, 3)
        how = errorfree.pairing(n)
        parts = []
        for start, size in zip(how.starts, how.sizes, strict=True):
            whole = size - size % 8 if size >= 8 else 0
            turns = x[start : start + whole].reshape(-1, 8)
            r = np.zeros(8)
            for k, turn in enumerate(turns):
                r = r + turn if k else turn
            total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
            for value in x[start + whole : start + size]:
                total = total + value
            parts.append(total)
        for left, right in how.merges:
            parts[left] = parts[left] + parts[right]
        assert parts[0] == x.sum() == np.stack([x, x]).sum(axis=1)[0], n


def test_moduli_are_coprime_and_their_product_suffices():
    assert all(math.gcd(p, q) == 1 for i, p in enumerate(modular.ALL) for q in modular.ALL[:i])
    for bits in (1, 14, 100, 250):
        count = modular.moduli_for(bits)
        assert math.prod(modular.ALL[:count]) > 2 ** (bits + 1)
        assert count == 2 or math.prod(modular.ALL[: count - 1]) < 2 ** (bits + 2)


@pytest.mark.parametrize("pieces", range(1, 9))
def test_fp32_sums_for_residues_are_exact(pieces):
    for p in modular.ALL:
        factors = [modular._centred(pow(2, 15 * j, p), p) for j in range(pieces)]
        largest = 2**14 * sum(map(abs, factors))
        assert largest < 2**24
        quotient = Fraction(float(np.float32(1) / np.float32(p)))
        error = abs(quotient * p - 1) * largest / p  # of sum / p before it is rounded to an integer
        assert error < Fraction(1, 2 * p) or Fraction(p, 2) + p * error < 128, p


@needs_nvrtc
def test_the_kernels_compile_for_gpus():
    names = ("slices.cu", "counting.cu", "exact_sums.cu", "scaling.cu")
    sources = [*map(kernel_source, names), modular.crt_source(15), modular.residues_source(15, 5)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda source: compile(source, "sm_80"), sources)
        assert all(cubin[:4] == b"\x7fELF" for cubin in found)


# --- a GPU
@needs_gpu
@pytest.mark.parametrize(
    "options", [*SLICED, {"mode": "CR"}, {"mode": "CR", "method": "slices"}, {"scheme": "ozaki2"}], ids=str
)
def test_the_gpus_bits_equal_the_cpus(options):
    rng = np.random.default_rng(10)
    narrow = options.get("mode") == "SP" or options.get("precision") == "fp32"
    A, B = (wide(rng, s).astype("f4" if narrow else "f8") for s in ((70, 300), (300, 41)))
    options = dict(options)
    scheme, method = options.pop("scheme", "ozaki"), options.pop("method", "auto")
    chosen = build(scheme, options)
    buffers = [device.Buffer.of(A), device.Buffer.of(B), device.Buffer.poisoned(70 * 41 * A.itemsize)]
    shapes = (A.shape, B.shape, (70, 41))
    a, b, d = (Matrix(x.pointer, A.dtype, s, (s[1], 1), x) for x, s in zip(buffers, shapes, strict=True))
    with by(method):
        errorfree.gemm(a, b, d, chosen, chosen.spec("H200"))
    want = fpemu.gemm(A, B, scheme=scheme, hardware="H200", **options)
    code = chosen.operand.code_dtype
    assert np.array_equal(buffers[2].array((70, 41), code), want.view(code))
