"""Emulated GEMMs on a GPU have NumPy's bits: on the GPU if there is one, else the kernel compiled for this machine."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma
from fpemu.gpu.emulation import chains
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import compiler, device
from fpemu.mma import KOrder
from fpemu.mma import device as devices
from fpemu.mma import operand_streams as streams
from fpemu.mma.arithmetic import Operands
from fpemu.mma.codes import code_dtype, values
from tests import hostile
from tests.cuda_on_cpu import processor
from tests.hostile import bits

__all__ = ["processor"]
ON_A_GPU = device.missing() is None


def rows():
    """Of the catalog, the longest instruction of each kind of block; with FPEMU_EXAMPLES of each block there is."""
    found: list = []
    seen: set = set()
    for row in sorted((row for row in mma.catalog.rows() if row.has_cuda), key=lambda row: -row.k):
        if hostile.FACTOR > 1:
            news = {re.sub(r"K = \d+, |NAN_CODE = \d+", "", emulation.definition(row))}
        else:
            news = {(row.arithmetic, row.block, str(row.d_format)), str(row.a_format)}
        if news - seen and (str(row.a_format) in hostile.FORMATS or row.is_integer):
            found.append(row)
            seen |= news
    return found


BASE = mma.spec("ampere")
CUSTOM = [
    mma.spec("ada", ("e4m3", "e5m2"), "fp16"),
    BASE.replace(E0=None, name="no floor"),
    BASE.replace(F=35, final="RNE", name="F = 35"),
    BASE.replace(F=23, k=24, block=6, name="blocks of 6"),
    BASE.replace(F=23, k=64, block=64, name="blocks of 64"),
    BASE.replace(a_format="fp32", b_format="bf16", block=1, name="blocks of 1"),
    mma.spec("ideal").replace(final="RZ", name="ideal RZ"),
    mma.MmaSpec("fp16", "fp16", "fp16", k=4, block=1, arithmetic="fma", name="fp16 fma"),
]
SPECS = [*rows(), *CUSTOM]
WAYS = [  # order, terms, step
    (KOrder(), 1, None),
    (KOrder(promote=48), 1, None),
    (KOrder(split=60, join="pairwise"), 2, None),
    (KOrder(), 3, "instruction"),
    (KOrder(split=50, tile=32, residue_first=True, promote=64, join="descending"), 1, None),
    (KOrder(tile=40, promote=80), 2, 24),
]
needs_device = pytest.mark.skipif(
    not ON_A_GPU and emulation.compiler() is None, reason="neither a GPU nor a C++ compiler here"
)
needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))


@pytest.fixture
def cuda(request):
    """`device="cuda"`: the GPU, or this machine in its place."""
    return None if ON_A_GPU else request.getfixturevalue("processor")()


def draw(fmt, kind, rng, shape):
    if isinstance(fmt, str):
        return rng.integers(0, 2 ** (8 * code_dtype(fmt).itemsize), shape).astype(code_dtype(fmt))
    return hostile.draw(str(fmt), kind, rng, shape)


def operands(spec, kind, seed, M, N, K, terms=1):
    rng = np.random.default_rng([seed, *kind.encode()])
    a, b, c = streams.formats(spec)
    pairs = [(values(draw(a, kind, rng, (M, K)), a), values(draw(b, kind, rng, (N, K)), b).T) for _ in range(terms)]
    if isinstance(c, str):
        return pairs, values(draw(c, kind, rng, (M, N)), c)
    return pairs, values(hostile.accumulators(str(a), str(b), str(c), kind, rng, M * N).reshape(M, N), c)


def assert_same(got, want, what=""):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    wrong = bits(got) != bits(want)
    assert not wrong.any(), f"{what}: {wrong.sum()} of {wrong.size} differ, the first at {np.argwhere(wrong)[0]}"


@needs_device
@pytest.mark.parametrize("spec", SPECS, ids=[spec.name for spec in SPECS])
def test_hostile_operands_give_the_bits_of_the_readable_form_in_any_order(spec, cuda):
    slow = str(spec.d_format) == "fp64"  # in NumPy
    for number, kind in enumerate(hostile.CLASSES[:5] if spec.is_integer else hostile.CLASSES):
        order, terms, step = WAYS[number % len(WAYS)] if number % 3 == 0 else WAYS[0]
        K = 40 if slow else (3 * spec.k, 2 * spec.k + 1, 70)[number % 3]
        pairs, C = operands(spec, kind, number, *((4, 3) if slow else (20, 10)), K, terms)
        C = C if number % 4 else None
        got = mma.chain(pairs, C, spec, order, step=step, device="cuda")
        assert_same(got, mma.chain(pairs, C, spec, order, step=step, backend="numpy"), f"{kind} {order} {step}")


@needs_device
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("hardware", ["volta", "hopper", "cdna2"])
def test_tiles_at_every_edge_and_terms_in_turn(way, hardware, cuda):
    order, terms, step = way
    spec = mma.spec(hardware)
    for M, N, K in ((65, 130, 100), (1, 64, 33), (64, 1, 200)):
        pairs, C = operands(spec, "finite", K, M, N, K, terms)
        got = mma.chain(pairs, C, spec, order, step=step, device="cuda")
        assert_same(got, mma.chain(pairs, C, spec, order, step=step, backend="numpy"), f"{M} x {N} x {K}")


@needs_device
def test_one_nan_and_one_huge_accumulator_leave_the_fast_arithmetic_alone_elsewhere(cuda):
    spec, rng = mma.spec("hopper"), np.random.default_rng(1)
    A, B = rng.standard_normal((80, 96)).astype(np.float16), rng.standard_normal((96, 150)).astype(np.float16)
    C = np.zeros((80, 150), np.float32)
    A[3, 40], B[50, 149], C[70, 9], C[0, 70] = np.nan, -np.inf, 3e38, 2.0**119
    got = mma.gemm(A, B, C, spec, device="cuda")
    assert_same(got, mma.gemm(A, B, C, spec, backend="numpy"))
    assert np.isnan(got[3]).all()
    assert np.isfinite(got[4, :149]).all()


@needs_device
@pytest.mark.parametrize("bytes_at_once", [2**32, 9000])
def test_leading_axes_broadcast_and_large_products_run_in_stripes(bytes_at_once, cuda, monkeypatch):
    monkeypatch.setattr(chains, "_BYTES", bytes_at_once)
    spec, rng = mma.spec("ampere"), np.random.default_rng(2)
    A = rng.standard_normal((3, 1, 70, 33)).astype(np.float16)
    B = rng.standard_normal((2, 33, 140)).astype(np.float16)
    C = rng.standard_normal((70, 140)).astype(np.float32)
    for order in (None, KOrder(promote=16)):
        got = mma.gemm(A, B, C, spec, order, device="cuda")
        assert_same(got, mma.gemm(A, B, C, spec, order, backend="numpy"))
    assert mma.gemm(A[:, :, :0], B, spec=spec, device="cuda").shape == (3, 2, 0, 140)
    assert not mma.gemm(A[..., :0], B[:, :0], spec=spec, device="cuda").any()


@needs_device
@pytest.mark.parametrize("limit", [{"_BYTES": 2**16}, {"_memory": lambda: 2**20}], ids=["", "of a small GPU"])
@pytest.mark.parametrize(("M", "N", "K"), [(300, 300, 16), (3, 20000, 16), (300, 3, 400)])
def test_no_array_on_the_gpu_is_larger_than_the_limit(M, N, K, limit, cuda, monkeypatch):
    """Nor is D, however short K is."""
    for name, value in limit.items():
        monkeypatch.setattr(chains, name, value)
    sizes, product = [], chains.product

    def watched(x, spec):
        sizes.append(max(x.A.nbytes, x.B.nbytes, x.C.nbytes))
        return product(x, spec)

    monkeypatch.setattr(chains, "product", watched)
    spec, rng = mma.spec("ampere"), np.random.default_rng(2)
    A, B = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((K, N)).astype(np.float16)
    assert_same(mma.gemm(A, B, spec=spec, device="cuda"), mma.gemm(A, B, spec=spec))
    assert len(sizes) > 1
    assert max(sizes) <= max(2**16, 64 * 4 * K)


@needs_device
def test_every_scheme_runs_on_the_device_with_the_same_bits(cuda, monkeypatch):
    rng = np.random.default_rng(3)
    A, B = rng.standard_normal((9, 70)).astype(np.float32), rng.standard_normal((70, 8)).astype(np.float32)
    chosen, used = devices.implementation, []

    def watched(*arguments):
        used.append(chosen(*arguments))
        return used[-1]

    for scheme in fpemu.schemes.names():
        hardware = "ampere"
        a, b = (A[:3, :20], B[:20, :2]) if scheme == "dgemm" else (A, B)
        errorfree = fpemu.schemes.get(scheme).error_free
        options = {"carrier": "compiled"} if errorfree else {}  # not by BLAS
        monkeypatch.setattr(devices, "implementation", watched)
        used.clear()
        got = fpemu.gemm(a, b, scheme=scheme, hardware=hardware, device="cuda", **options)
        assert used
        assert set(used) == {"cuda"}, scheme
        monkeypatch.setattr(devices, "implementation", lambda device, backend: "numpy")
        assert_same(got, fpemu.gemm(a, b, scheme=scheme, hardware=hardware, **options), scheme)


@needs_device
@pytest.mark.parametrize(("dtype", "digit"), [(np.float64, 2**22 - 1), (np.float32, 2**8)])
def test_exact_products_of_integers_are_those_of_blas(dtype, digit, cuda):
    rng = np.random.default_rng(4)
    X, Y = (rng.integers(-digit, digit + 1, shape).astype(dtype) for shape in ((2, 65, 250), (2, 250, 3)))
    X[:, :40], Y[..., 0] = digit, digit  # sums that come near 2^53, or 2^24
    assert_same(chains.matmul(X, Y), np.matmul(X, Y))
    A, B = rng.standard_normal((30, 40)), rng.standard_normal((40, 20))
    want = fpemu.reference.matmul(A, B)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "matmul_gains", lambda X, Y: True)
        assert_same(fpemu.reference.matmul(A, B, device="cuda"), want)


@needs_device
def test_a_changed_arithmetic_is_noticed(cuda):
    spec = mma.spec("hopper")
    pairs, C = operands(spec, "leftover", 4, 30, 30, 64)
    want = mma.chain(pairs, C, spec, backend="numpy")
    for changed in (spec.replace(F=24), spec.replace(block=8), spec.replace(final="RNE")):
        assert (bits(mma.chain(pairs, C, changed, device="cuda")) != bits(want)).any()


@needs_device
def test_k_beyond_the_counters_of_the_kernel_is_refused(cuda):
    K, spec, one = 2**31 - 1, mma.spec("ampere", "int8"), np.zeros(1, np.int64)
    A, B = (np.broadcast_to(np.int8(1), shape) for shape in ((1, 1, K), (1, K, 1)))
    with pytest.raises(InputError, match=r"^device = 'cuda': K = 2147483647 is more than .*: take device='cpu'$"):
        chains.chain(Operands(A, B, one, one, np.zeros((1, 1, 1), np.int32), np.zeros(1, np.bool_)), spec)


@needs_nvrtc
def test_the_kernel_of_every_arithmetic_compiles():
    kernels = {row.arithmetic: row for row in SPECS}
    assert set(kernels) == {"truncated", "exact", "fma", "flushed", "cdna3", "cdna3-fp8", "via-half", "integer"}
    kernels["narrow"] = BASE
    for row, arch in zip(kernels.values(), itertools.cycle(["sm_80", "sm_90a", "sm_100a"]), strict=False):
        assert compiler.compile(chains.source(row), arch, name="emulated_gemm.cu")[:4] == b"\x7fELF"
