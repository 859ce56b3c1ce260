"""The Ozaki family on the GPU, without one: its kernels compiled for a processor, NumPy in the place of cuBLAS."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu.errors import GpuError, InputError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree import operands
from fpemu.gpu.errorfree import residues as modular
from fpemu.gpu.errorfree.operands import Workspace
from fpemu.gpu.runtime import compiler, cublas, device
from fpemu.gpu.runtime.compiler import compile, kernel_source
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.schemes.base import build
from tests.processor import PRODUCTS, Processor, matrix, view
from tests.simulated import Buffer

needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
needs_gpu = pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return Processor(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def work(processor, monkeypatch):
    """A workspace on the processor; mode CR takes 24 moduli or none, so that few kernels have to be compiled."""
    found = modular.moduli_for
    monkeypatch.setattr(modular, "moduli_for", lambda bits: 24 if (found(bits) or 99) <= 24 else None)
    monkeypatch.setattr(modular, "words_of", lambda longest: 6 if longest <= 88 else 9)
    return Workspace(processor)


def both(work, A, B, C=None, alpha=1.0, beta=0.0, *, scheme="ozaki", method="auto", **options):
    """Codes of the result here and on the CPU, and both reports."""
    chosen = build(scheme, options)
    spec = chosen.spec("H200")
    want = fpemu.certify(A, B, C, scheme=scheme, hardware="H200", alpha=alpha, beta=beta, **options)
    given = [None if X is None else matrix(np.asarray(X, chosen.operand.dtype)) for X in (A, B, C)]
    D = np.full(want.D.shape, 7, chosen.operand.dtype)
    c = given[2] if beta else None
    report = errorfree.gemm(given[0], given[1], matrix(D), chosen, spec, alpha, beta, c, method=method, work=work)
    code = chosen.operand.code_dtype
    return D.view(code), np.ascontiguousarray(want.D).view(code), report, want.report


def launched(work, monkeypatch):
    """The names of the kernels that run from now on."""
    names, launch = [], work.machine.launch

    def watched(source, kernel, *args, **more):
        names.append(kernel)
        launch(source, kernel, *args, **more)

    monkeypatch.setattr(work.machine, "launch", watched)
    return names


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


@needs_compiler
@pytest.mark.parametrize("options", SLICED, ids=str)
def test_sums_of_slices_and_reports_equal_the_cpus(work, options):
    rng = np.random.default_rng(1)
    narrow = options.get("mode") == "SP" or options.get("precision") == "fp32"
    for phi, alpha, beta in ((0.1, 1.0, 0.0), (2.0, -1.5, 0.75)):
        A, B, C = (wide(rng, s, phi).astype("f4" if narrow else "f8") for s in ((9, 300), (300, 7), (9, 7)))
        report, expected = agree(work, np.asfortranarray(A), B, C, alpha, beta, **options)
        for name in ("bits", "slices", "products", "fast", "complete", "fill", "sum_bound", "int32_bound", "underflow"):
            assert getattr(report, name) == getattr(expected, name), name


@needs_compiler
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


@needs_compiler
def test_moderate_exponents_use_floating_point_kernels_and_others_integers(work, monkeypatch):
    rng = np.random.default_rng(13)
    A, B = wide(rng, (5, 300)), wide(rng, (300, 6))
    names = launched(work, monkeypatch)
    for options in ({"words": "int8"}, {"mode": "SP"}, {"scheme": "ozimmu"}):
        agree(work, A.astype("f4"), B.astype("f4"), **options)
    assert {"cut_doubles", "criterion_doubles", "add_tame_products"} <= set(names)
    assert not {"cut", "criterion", "add_products"} & set(names)
    names.clear()
    A[0, 0], A[1, 1] = 2.0**-1000, 2.0**950
    for options in ({"words": "int8"}, {"scheme": "ozimmu"}):
        agree(work, A, B, **options)
    assert {"cut", "criterion", "add_products"} <= set(names)


@needs_compiler
def test_integers_too_wide_for_fp32_sums_have_residues_by_integer_arithmetic(work, monkeypatch):
    rng = np.random.default_rng(12)
    A = rng.standard_normal((3, 40)) * np.exp2(rng.integers(-50, 1, (3, 40)).astype(float))
    B = rng.integers(-9, 10, (40, 4)).astype(float)
    names = launched(work, monkeypatch)
    agree(work, A, B, mode="CR", words="int8")
    assert {"residues", "residues_by_pieces", "rebuild"} <= set(names)


@needs_compiler
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


@needs_compiler
def test_scheme_two_reads_its_conditions_once_and_multiplies_in_fp64_only_where_norms_do_not_confirm_them(
    work, monkeypatch
):
    reads, array = [], Buffer.array

    def read(self, *shape):
        reads.append(shape)
        return array(self, *shape)

    monkeypatch.setattr(Buffer, "array", read)
    rng = np.random.default_rng(14)
    B = wide(rng, (64, 5))
    small, half = np.full((4, 256), 2.0**-6), np.arange(256) < 128  # "fast" makes integers of its rows too large
    for scaling in ("accurate", "invariant", "fast"):
        reads.clear()
        work.machine.products.clear()
        report, _ = agree(work, wide(rng, (4, 64)), B, scheme="ozaki2", scaling=scaling)
        assert report.ok
        assert len(reads) == 1
        assert {kind for kind, *_ in work.machine.products} == {"int8"}
    for A, Y, ok in ((small, small.T, False), (small * half, small.T * ~half[:, None], True)):  # parallel; orthogonal
        reads.clear()
        report, expected = agree(work, A, Y, scheme="ozaki2", scaling="fast")
        assert report.ok == ok
        assert len(reads) > 1
        assert [f.message for f in report.faults] == [f.message for f in expected.faults]
        assert report.crt_bits == expected.crt_bits


@needs_compiler
def test_leading_bits_of_a_long_k_are_summed_in_parts(work, monkeypatch):
    rng = np.random.default_rng(4)
    A, B = wide(rng, (5, 700)), np.full((700, 3), 1.0)
    A[3], B[:, 1] = 2.0, 0
    monkeypatch.setattr(modular, "LONGEST", 128)
    names = launched(work, monkeypatch)
    agree(work, A, B, scheme="ozaki2", scaling="accurate")
    assert "largest_long_sums" in names


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [*({"scheme": "ozaki2", "scaling": rule} for rule in ("accurate", "fast", "invariant")), {"words": "int8"}],
    ids=str,
)
def test_rows_too_long_for_shared_memory_are_read_again(work, monkeypatch, options):
    rng = np.random.default_rng(5)
    for module in (modular, operands, errorfree):
        monkeypatch.setattr(module, "most_shared", lambda: 64)
    agree(work, wide(rng, (5, 90)), wide(rng, (90, 4)), **options)


@needs_compiler
@pytest.mark.parametrize("scheme", ["ozaki", "ozimmu", "ozaki2"])
def test_no_kernel_takes_more_shared_memory_than_the_gpu_has(work, monkeypatch, scheme):
    largest, launch = [0], work.machine.launch

    def watched(*args, shared=0):
        largest.append(shared)
        launch(*args, shared=shared)

    monkeypatch.setattr(work.machine, "launch", watched)
    monkeypatch.setattr(device, "most_shared", lambda: 99 * 1024)
    rng = np.random.default_rng(6)
    for K in (13000, 9000):
        agree(
            work,
            wide(rng, (1, K)),
            wide(rng, (K, 1)),
            scheme=scheme,
            **({"scaling": "fast"} if scheme == "ozaki2" else {}),
        )
    assert 0 < max(largest) <= 99 * 1024
    for n in (1500000, 2**31 - 1):
        with pytest.raises(InputError, match=rf"^ozaki: the partial sums of {n} terms .*: give the number of slices"):
            errorfree._plan(work, n)


@needs_compiler
def test_full_tables_are_freed_between_launches_alone(work):
    """The four lists of a plan stay in memory together, whichever table is the last before all are freed."""
    for held in range(250, 258):
        work._tables.clear()
        for i in range(held):
            work.table(np.array([i, -1], np.int32))
        plan, _ = errorfree._plan(work, 361)
        live = [(x.pointer, x.pointer + x.nbytes) for x in work._tables.values()]
        for name in ("starts", "sizes", "merges", "levels"):
            assert any(first <= plan[name][0] < end for first, end in live), (held, name)


@needs_compiler
def test_every_slice_of_a_wide_range_is_counted(work):
    A, B = np.array([[2.0**1000, 2.0**-1000]]), np.ones((2, 1))
    report, expected = agree(work, A, B, scheme="ozimmu", bits=1)
    assert expected.slices[0] > 2000
    assert report.fill == expected.fill


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


@needs_compiler
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


@needs_compiler
def test_slices_for_short_blocks_of_k_are_narrower_if_all_of_k_is_one_sum(work):
    rng = np.random.default_rng(2)
    A, B = hostile("far apart", rng, (4, 900)), hostile("far apart", rng, (900, 3))
    agree(work, A, B, mode="CR", words="fp16", k_block=16)


@needs_compiler
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


@needs_compiler
def test_rows_beyond_the_memory_are_computed_in_panels(work, monkeypatch):
    rng = np.random.default_rng(6)
    A, B = wide(rng, (50, 20)), wide(rng, (20, 9))
    monkeypatch.setattr(modular, "PANEL", 1)
    monkeypatch.setattr(modular, "CHAIN", 64)
    for options in (
        {"words": "int8", "slices": 3},
        {"mode": "CR"},
        {"mode": "CR", "method": "slices"},
        {"scheme": "ozaki2"},
    ):
        agree(work, A, B, **options)
    assert {M for _, M, *_ in work.machine.products} >= {16}
    agree(work, wide(rng, (3, 200)), wide(rng, (200, 2)), scheme="ozaki2")  # parts of K


@needs_compiler
def test_a_corrupted_product_is_detected(work):
    rng = np.random.default_rng(7)
    A, B = wide(rng, (8, 40)), wide(rng, (40, 8))
    machine, honest = work.machine, work.machine.gemm

    def spoilt(kind, M, N, K, A, B, D, *, batch=1):
        honest(kind, M, N, K, A, B, D, batch=batch)
        view(D.pointer, (1,), (1,), PRODUCTS[kind][1])[0] += 1

    machine.gemm = spoilt
    try:
        for options in ({"words": "int8"}, {"mode": "CR"}, {"scheme": "ozaki2"}, {"scheme": "ozimmu"}):
            D, want, *_ = both(work, A, B, **options)
            assert (want != D).any(), options
    finally:
        machine.gemm = honest


# --- conditions and errors
@needs_compiler
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


@needs_compiler
def test_unsupported_requests_raise_one_line(work, processor):
    A, D = matrix(np.ones((2, 2))), matrix(np.empty((2, 2)))
    spec = fpemu.mma.spec("H200", "int8")
    with pytest.raises(InputError, match="did you mean 'residues'"):
        errorfree.gemm(A, A, D, build("ozaki", {"mode": "CR", "words": "int8"}), spec, method="residue", work=work)
    with pytest.raises(InputError, match="not of the Ozaki family"):
        errorfree.gemm(A, A, D, build("ootomo", {}), spec, work=work)
    with pytest.raises(InputError, match=r"only fpemu\.gemm checks"):
        errorfree.gemm(A, A, D, build("ozaki", {"exponents": "row"}), spec, work=work)
    with pytest.raises(InputError, match=r"^ozaki: memory=100 bounds the work space of fpemu\.gemm"):
        errorfree.gemm(A, A, D, build("ozaki", {"memory": 100}), spec, work=work)
    for M, K in ((2**31, 1), (1, 2**31 - 1)):
        long, out = (Matrix(A.pointer, A.dtype, shape, (0, 0), A) for shape in ((M, K), (M, 2)))
        with pytest.raises(InputError, match=r"ozaki2: M, N and K are .* split the product"):
            errorfree.gemm(long, replace(long, shape=(K, 2)), out, build("ozaki2", {}), spec, work=work)
    far = matrix(np.array([[2.0**-1000, 2.0**1000], [1.0, 1.0]]))
    with pytest.raises(InputError, match="take method='slices'"):
        errorfree.gemm(far, far, D, build("ozaki", {"mode": "CR", "words": "int8"}), spec, method="residues", work=work)
    small = Processor(processor.folder)
    small._libraries, small.free = processor._libraries, 1000
    with pytest.raises(GpuError, match="fewer rows of A"):
        errorfree.gemm(A, A, D, build("ozaki2", {}), spec, work=Workspace(small))


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
    errorfree.gemm(a, b, d, chosen, chosen.spec("H200"), method=method)
    want = fpemu.gemm(A, B, scheme=scheme, hardware="H200", **options)
    code = chosen.operand.code_dtype
    assert np.array_equal(buffers[2].array((70, 41), code), want.view(code))
