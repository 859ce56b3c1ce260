"""`fpemu.gpu.gemm` is `fpemu.gemm` on the GPU: arrays of all kinds, the same bits, the same errors.

Where there is no GPU, this machine stands in for an A100: the kernels run here, compiled for the processor.
"""

from __future__ import annotations

import contextlib
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.errors import GpuError, GuaranteeError
from fpemu.gpu.gemm import ordinary
from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder
from tests.cuda_on_cpu import processor
from tests.gpu_fixtures import ON_A_GPU, Lent, needs_gpu
from tests.hostile import bits
from tests.simulated_driver import Stream

__all__ = ["processor"]
PAIRS = KOrder(split=7, join="pairwise")
stand_in_only = pytest.mark.skipif(ON_A_GPU, reason="there is a GPU")


@pytest.fixture
def gpu(request):
    """The GPU, or this machine in its place."""
    if not ON_A_GPU:
        request.getfixturevalue("processor")((8, 0))
    return fpemu.gpu


@pytest.fixture
def driver(processor):
    """The simulated driver of an A100, whose launches run."""
    return processor((8, 0))


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def assert_same(got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    wrong = bits(got) != bits(want)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} differ, the first at {np.argwhere(wrong)[0]}"


def emulated(scheme, A, B, C=None, **options):
    """The emulator's product by the kernel of the GPU."""
    sizes = A.shape[-2], B.shape[-1], A.shape[-1]
    return fpemu.gemm(A, B, C, **fpemu.gpu.kernel(scheme, *sizes).arguments, **options)


def part(x, shape, strides, offset=0, **more):
    """Another array in the memory of a Lent."""
    interface = {"shape": shape, "strides": strides, "data": (x.matrix.pointer + offset, False)}
    return SimpleNamespace(__cuda_array_interface__=x.__cuda_array_interface__ | interface | more, base=x)


# --- bits
@pytest.mark.parametrize(
    "order", [None, PAIRS, KOrder(split=9, tile=5, residue_first=True, promote=4, join="descending")], ids=str
)
def test_chains_of_fmas_in_any_order(order, gpu):
    for scheme, dtype in (("sgemm", np.float32), ("dgemm", np.float64)):
        A, B, C = draw((2, 1, 70, 33), dtype), draw((3, 33, 65), dtype), draw((70, 65), dtype)
        A[0, 0, 0, 0], B[1, 5, 5], A[1, 0, 8, 3] = np.nan, np.inf, 1e-30
        got = gpu.gemm(A, B, C, scheme=scheme, alpha=0.5, beta=-2.0, order=order)
        assert_same(got, fpemu.gemm(A, B, C, scheme=scheme, alpha=0.5, beta=-2.0, order=order))


def assert_same_parts(got, want):
    assert_same(got.view(got.real.dtype), want.view(want.real.dtype))


def complex_draw(shape, dtype):
    return draw((*shape, 2), dtype).view(np.result_type(dtype, np.complex64))[..., 0]


@pytest.mark.parametrize("scheme", ["ootomo", "sgemm", "dgemm"])
def test_a_complex_product_is_a_real_product_of_the_parts(scheme, gpu):
    real = np.float64 if scheme == "dgemm" else np.float32
    A, B, C = (complex_draw(shape, real) for shape in ((2, 1, 20, 33), (3, 33, 18), (20, 18)))
    A[0, 0, 0, 0], B[1, 5, 5] = np.inf, complex(0, np.nan)
    options = fpemu.gpu.kernel(scheme, 20, 36, 66).arguments | {"alpha": -1.5, "beta": 0.5, "on_range": "propagate"}
    want = fpemu.gemm(A, B, C, **options)
    request = {"scheme": scheme, "alpha": -1.5, "beta": 0.5, "on_range": "propagate"}
    assert_same_parts(gpu.gemm(A, B, C, **request), want)
    turned = np.ascontiguousarray(C.T).T
    for a, b, c in ((A, B, C), (np.asfortranarray(A), np.asfortranarray(B), turned)):
        given = [Lent(x, stream=1) for x in (a, b, c)]
        for _ in range(2):
            assert_same_parts(read(gpu.gemm(*given, **request)), want)
    out = Lent(np.zeros_like(want), stream=1)
    gpu.gemm(*given[:2], **request | {"beta": 0.0}, out=out)
    assert_same_parts(out.content, fpemu.gemm(A, B, **options | {"beta": 0.0}))
    assert_same_parts(gpu.gemm(A, B, C, **request | {"alpha": 0.0}), fpemu.gemm(A, B, C, **options | {"alpha": 0.0}))
    assert_same_parts(gpu.gemm(A, B.real, C, **request), fpemu.gemm(A, B.real, C, **options))
    for scalars in ({"alpha": 0.3 - 1.7j, "beta": 0.5 + 2j}, {"alpha": 2.0, "beta": 1j}, {"alpha": 0, "beta": 0.3j}):
        want = fpemu.gemm(A, B, C, **options | scalars)
        assert_same_parts(gpu.gemm(A, B, turned, **request | scalars), want)
        got = gpu.gemm(*(Lent(x, stream=1) for x in (A, B, turned)), **request | scalars)
        assert_same_parts(read(got), want)
    want = fpemu.gemm(A, B, **options | {"alpha": 1j, "beta": 0.0})
    assert_same_parts(gpu.gemm(A, B, **request | {"alpha": 1j, "beta": 0.0}), want)


def test_products_of_nothing_read_narrow_addends(gpu):
    A, B, C = draw((5, 0), np.float64), draw((0, 4), np.float64), draw((5, 4))
    C[0] = 0, -0.0, np.nan, np.inf
    for scheme, scalars in (
        ("ozaki2", {"beta": -0.3}),
        ("ozimmu", {"beta": 2.0}),
        ("ozaki", {"beta": -0.3, "mode": "CR"}),
    ):
        want = fpemu.gemm(A, B, C, scheme=scheme, hardware="A100", **scalars)
        got = read(gpu.gemm(*(Lent(x, stream=1) for x in (A, B, C)), scheme=scheme, **scalars))
        assert_same(got, want)
    Z = complex_draw((5, 4), np.float32)
    got = read(gpu.gemm(*(Lent(x, stream=1) for x in (A + 0j, B + 0j, Z)), scheme="ozaki2", beta=0.5 - 1j))
    assert_same_parts(got, fpemu.gemm(A + 0j, B + 0j, Z, scheme="ozaki2", hardware="A100", beta=0.5 - 1j))


@pytest.mark.parametrize("on_range", [None, "propagate", "scale-rows", "raise"])
@pytest.mark.parametrize("scheme", ["ootomo", "dgemm"])
def test_plans_of_complex_products_have_the_emulators_bits(scheme, on_range, gpu):
    if scheme == "dgemm" and on_range == "scale-rows":
        pytest.skip("dgemm scales nothing")
    real, plan = np.float64 if scheme == "dgemm" else np.float32, None
    policy = {"on_range": "propagate" if on_range is None else on_range}
    for turned in (False, True):
        A, B, C = (complex_draw(shape, real) for shape in ((33, 20), (20, 18), (33, 18)))
        B[3, 4] = complex(0, np.inf) if on_range == "propagate" else B[3, 4]
        given = [Lent(np.asfortranarray(x) if turned else x, stream=1) for x in (A, B, C)]
        for alpha in (-1.5, 0.5 - 2j):
            plan = gpu.plan(scheme, *given, alpha=alpha, beta=0.5j, on_range=on_range)
            sizes = fpemu.gpu.kernel(scheme, 33, 36, 40).arguments
            want = fpemu.gemm(A, B, C, alpha=alpha, beta=0.5j, **sizes, **policy)
            assert_same_parts(read(plan(*given)), want)
            for name in "AB":
                ready = plan.prepare(given["AB".index(name)], name)
                operands = [ready, given[1]] if name == "A" else [given[0], ready]
                assert_same_parts(read(plan(*operands, given[2])), want)
    assert plan.shapes["D"] == (33, 18)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "ozaki", "mode": "CR", "alpha": 1j}, "rounds once, with real alpha and beta"),
        ({"form": "3M"}, "form='3M' of sgemm runs on the CPU"),
        ({"form": "2M"}, "unknown form '2M'"),
    ],
)
def test_complex_requests_that_no_kernel_runs_are_refused(options, message, gpu):
    with pytest.raises(InputError, match=message):
        gpu.gemm(np.ones((2, 2), np.complex64), np.ones((2, 2), np.complex64), **{"scheme": "sgemm"} | options)


def test_the_positions_of_an_order_are_those_of_its_segments():
    order = KOrder(split=20, tile=8, residue_first=True, promote=16, join="descending")
    ks, ends = ordinary.sequence(order, 45)
    chains = [chain for chains in order.sequence(order.segments(45)) for chain in chains]
    flat = [k for chain in chains for start, stop in chain for k in range(start, stop)]
    assert ks.tolist() == flat
    assert sorted(flat) == list(range(45))
    assert np.count_nonzero(ends & 2) == 3
    assert np.count_nonzero(ends & 1) == len(chains)


@pytest.mark.parametrize("on_range", [None, "propagate", "scale", "scale-rows", "raise"])
@pytest.mark.parametrize("scheme", ["ootomo", "bf16x3", "sgemm"])
@pytest.mark.parametrize("stream", [None, 1], ids=["unknown stream", "default stream"])
def test_repeated_calls_and_plans_have_the_emulators_bits_for_every_policy(scheme, on_range, stream, gpu):
    policy = "propagate" if on_range is None else on_range
    if scheme == "sgemm" and "scale" in policy:
        pytest.skip("sgemm scales nothing")
    plan, ready = None, None
    for seed in range(3):
        A, B, C = draw((33, 40), seed=seed), draw((40, 18), seed=seed), draw((33, 18), seed=seed)
        if on_range != "raise" and seed == 1:
            A[3, 4], B[5, 6] = np.inf, np.nan
        if "scale" in policy:
            A, B = A * np.float32(2.0**18), B * np.float32(2.0**-20)
        given = [Lent(x, stream=stream) for x in (A, B, C)]
        want = emulated(scheme, A, B, C, beta=0.5, on_range=policy)
        for _ in range(2):
            assert_same(read(gpu.gemm(*given, scheme=scheme, beta=0.5, on_range=on_range)), want)
        plan = plan or gpu.plan(scheme, *given, beta=0.5, on_range=on_range)
        assert_same(read(plan(*given)), want)
        if scheme != "sgemm" and (seed != 1 or on_range == "propagate"):
            ready = plan.prepare(given[1])
            assert_same(read(plan(given[0], ready, given[2])), want)
            assert_same(read(plan(plan.prepare(given[0], "A"), given[1], given[2])), want)
    if on_range is None and scheme != "sgemm":
        with pytest.raises(InputError, match=rf"^A of {scheme}: NaN or infinite: .*first at \[3, 4\], since"):
            gpu.check()
    gpu.check()


def read(D):
    """The content of a result, without the check of `get`."""
    interface = D.__cuda_array_interface__
    return device.fetch(interface["data"][0], interface["shape"], interface["typestr"])


@pytest.mark.parametrize(
    "shapes", [((0, 3), (3, 2)), ((4, 0), (0, 2)), ((2, 0, 3), (3, 2)), ((0, 4, 3), (3, 2))], ids=str
)
@pytest.mark.parametrize("lent", [False, True])
def test_matrices_without_entries_and_alpha_zero(shapes, lent, gpu):
    def check(arrays, scheme, **scalars):
        given = [x if x is None or not lent else Lent(x) for x in arrays]
        got = gpu.gemm(*given, scheme=scheme, **scalars)
        assert_same(got.get() if lent else got, fpemu.gemm(*arrays, scheme=scheme, hardware="A100", **scalars))

    A, B = (np.zeros(shape, np.float32) for shape in shapes)
    C = draw((*np.broadcast_shapes(A.shape[:-2], B.shape[:-2]), A.shape[-2], B.shape[-1]))
    if C.size:
        C[0] = -0.0
    for scheme in ("ootomo", "sgemm"):
        check((A, B, None), scheme)
        check((A, B, C), scheme, beta=-2.0)
    X, Y, Z = draw((3, 4)), draw((4, 2)), draw((3, 2))
    X[0, 0] = np.nan  # not read
    check((X, Y, Z), "ootomo", alpha=0, beta=3.0)


# --- arrays of other libraries
@pytest.mark.parametrize("scheme", ["sgemm", "ootomo"])
def test_arrays_of_the_gpu_in_any_layout_stay_there_and_as_they_were(scheme, gpu):
    A, B, C = draw((2, 9, 20)), draw((20, 7)), draw((9, 7))
    wide = np.full((9, 12), np.nan, np.float32)
    wide[:, :7] = C
    arrays = [A, np.asfortranarray(B), wide[:, :7]]
    lent = [Lent(x) for x in arrays]
    D = gpu.gemm(*lent, scheme=scheme, alpha=2.0, beta=0.5)
    assert_same(D.get(), emulated(scheme, A, B, C, alpha=2.0, beta=0.5))
    interface = D.__cuda_array_interface__
    assert (interface["shape"], interface["stream"], interface["version"]) == ((2, 9, 7), 1, 3)
    for x, before in zip(lent, arrays, strict=True):
        assert_same(x.content, np.ascontiguousarray(before))


def test_negative_strides_and_other_dtypes(gpu):
    A, B = draw((6, 8)), draw((8, 5))
    want = fpemu.gemm(A[::-1, ::-1], B[::-1], scheme="sgemm")
    a, b = Lent(A), Lent(B)
    a.__cuda_array_interface__ |= {"data": (a.matrix.pointer + 47 * 4, False), "strides": (-32, -4)}
    b.__cuda_array_interface__ |= {"data": (b.matrix.pointer + 35 * 4, False), "strides": (-20, 4)}
    assert_same(gpu.gemm(a, b, scheme="sgemm").get(), want)
    assert_same(gpu.gemm(A[::-1, ::-1], B[::-1], scheme="sgemm"), want)
    for dtype in (np.float64, np.float16, np.int32):
        X = (A * 100).astype(dtype)
        got = gpu.gemm(Lent(X), Lent(B), scheme="sgemm").get()
        assert_same(got, fpemu.gemm(X.astype(np.float32), B, scheme="sgemm"))


def test_unusual_array_interfaces_are_read_or_refused(gpu):
    A, B = draw((6, 8)), Lent(draw((8, 5)))
    swapped = Lent(A.byteswap(), typestr=">f4")
    assert_same(gpu.gemm(swapped, B, scheme="sgemm").get(), fpemu.gemm(A, B.x, scheme="sgemm"))
    turned = part(Lent(A.astype(complex)), (6, 8), (-128, 16), 640)
    assert_same(gpu.gemm(turned, B, scheme="sgemm").get(), fpemu.gemm(A[::-1].astype(complex), B.x, scheme="sgemm"))
    words = Lent(np.zeros((6, 8), np.uint64), typestr="|V8")
    for x, text in (
        (words, r"A takes real numbers of at most 64 bits, not \|V8"),
        (Lent(A, mask=B), "A is a masked array"),
        (Lent(A, strides=(34, 4)), r"A has strides of \(34, 4\) bytes"),
        (Lent(A, data=(0, False)), "A has entries and no memory"),
    ):
        with pytest.raises(InputError, match=f"^{text}"):
            gpu.gemm(x, B, scheme="sgemm")


def test_cached_calls_distinguish_64_from_its_float(gpu):
    A, B = Lent(draw((6, 8), np.float16)), Lent(draw((8, 5)))
    gpu.gemm(A, B, scheme="ootomo", promote=64)
    with pytest.raises(InputError) as want:
        fpemu.gemm(A.x, B.x, scheme="ootomo", hardware="A100", promote=64.0)
    with pytest.raises(InputError) as got:
        gpu.gemm(A, B, scheme="ootomo", promote=64.0)
    assert str(got.value) == str(want.value)


class Exported:
    """An array with DLPack only, which lists the requests of its readers."""

    def __init__(self, x, where):
        self.x, self.where, self.requests = x, where, []

    def __dlpack__(self, **request):
        self.requests.append(request)
        return (self.x + 0).__dlpack__(max_version=request.get("max_version"))

    def __dlpack_device__(self):
        return self.where, 0


@stand_in_only
def test_dlpack_exports_to_the_default_stream_of_the_gpu_and_without_a_stream_on_the_cpu(gpu):
    A, B = draw((60, 80)), np.asfortranarray(draw((80, 50)))
    want = fpemu.gemm(A, B, scheme="sgemm")
    for where in (2, 13):  # a GPU's memory, managed memory
        a, b = Exported(A, where), Exported(B, where)
        assert_same(gpu.gemm(a, b, scheme="sgemm").get(), want)
        for x in (a, b):
            assert [request["stream"] for request in x.requests] == [1]  # the legacy default stream
    for where in (1, 3, 11):  # memory of the CPU, pinned for CUDA, pinned for ROCm
        a, b = Exported(A, where), Exported(B, where)
        assert_same(gpu.gemm(a, b, scheme="sgemm"), want)
        assert all(request.get("stream") is None for x in (a, b) for request in x.requests)
    with pytest.raises(InputError, match=r"^A in the CPU's memory and B on the GPU"):
        gpu.gemm(Exported(A, 1), Exported(B, 2), scheme="sgemm")
    got = gpu.gemm(Exported(A * np.complex64(1j), 2), Exported(B * np.complex64(1j), 2), scheme="sgemm")
    assert_same(got.get(), fpemu.gemm(A * np.complex64(1j), B * np.complex64(1j), scheme="sgemm"))
    for where in (7, 8, 10, 14):  # Vulkan, Metal, ROCm, oneAPI
        x = Exported(A, where)
        with pytest.raises(InputError, match=rf"^A lies on a device of DLPack's type {where}: pass an array"):
            gpu.gemm(x, x, scheme="sgemm")
        assert not x.requests

    class Refuses(Exported):
        def __dlpack__(self, **_):
            raise BufferError("no export\nof this")

    for where in (1, 2):
        with pytest.raises(InputError, match=r"^A cannot be read by DLPack: no export$"):
            gpu.gemm(Refuses(A, where), Exported(B, where), scheme="sgemm")


# --- out
def test_the_result_can_be_written_into_an_array_of_the_caller(gpu):
    A, B = Lent(draw((6, 8))), Lent(draw((8, 5)))
    out = Lent(np.full((6, 9), 7, np.float32)[:, :5])
    assert gpu.gemm(A, B, scheme="sgemm", out=out) is out
    assert_same(out.content, fpemu.gemm(A.x, B.x, scheme="sgemm"))
    room = Lent(np.full((6, 5), 7, np.float32))
    for wrong in (
        Lent(np.zeros((5, 6), np.float32)),
        Lent(np.zeros((6, 5))),
        Lent(np.zeros((6, 5), np.float16)),
        Lent(np.zeros((5, 6), np.float32).T),
        part(room, (6, 5), (-20, 4), 100),  # rows backwards
        part(room, (6, 5), (0, 4)),  # the same row
        part(room, (6, 5), (8, 4)),  # rows into each other
    ):
        with pytest.raises(InputError, match=r"^out must be an array on the GPU of shape \(6, 5\) and dtype float32"):
            gpu.gemm(A, B, scheme="sgemm", out=wrong)
    with pytest.raises(InputError, match=r"^out in the CPU's memory and A and B on the GPU"):
        gpu.gemm(A, B, scheme="sgemm", out=np.zeros((6, 5), np.float32))
    with pytest.raises(InputError, match=r"^out is read-only"):
        gpu.gemm(A, B, scheme="sgemm", out=part(room, (6, 5), (20, 4), data=(room.matrix.pointer, True)))
    assert (room.content == 7).all()
    with pytest.raises(InputError, match=r"^out must be an array on the GPU of shape \(0, 5\)"):
        gpu.gemm(np.zeros((0, 8), np.float32), B.x, scheme="sgemm", out=np.zeros((0, 5), np.float32))


def test_out_may_share_a_buffer_with_an_operand_without_overlap(gpu):
    whole = Lent(np.full((6, 13), 7, np.float32))
    A, B = draw((6, 8)), draw((8, 5))
    matrices.copy(matrices.upload(A), Matrix(whole.matrix.pointer, A.dtype, A.shape, (13, 1)))
    out = part(whole, (6, 5), (52, 4), 32)
    gpu.gemm(part(whole, (6, 8), (52, 4)), Lent(B), scheme="ootomo", out=out)
    assert_same(whole.content, np.hstack([A, emulated("ootomo", A, B)]))
    with pytest.raises(InputError, match=r"^out shares memory with A"):
        gpu.gemm(part(whole, (6, 8), (52, 4)), Lent(B), scheme="ootomo", out=part(whole, (6, 5), (52, 4), 28))
    column = part(whole, (6, 1), (52, 96), 48)  # the step of an axis of one entry means nothing
    gpu.gemm(part(whole, (6, 8), (52, 4)), Lent(B[:, :1]), scheme="sgemm", out=column)
    assert_same(whole.content[:, 12:], fpemu.gemm(A, B[:, :1], scheme="sgemm"))


def test_after_an_error_out_is_unchanged(gpu):
    A, B = draw((6, 8)), draw((8, 5))
    A[3, 3] = 1e30
    out = Lent(np.full((6, 5), 7, np.float32))
    for _ in range(2):
        with pytest.raises(InputError, match="overflows"):
            gpu.gemm(Lent(A), Lent(B), scheme="ootomo", on_range="raise", out=out)
        assert (out.content == 7).all()


@needs_gpu
def test_after_a_broken_guarantee_out_is_unchanged(gpu):
    out = Lent(np.full((6, 5), 7.0))
    with pytest.raises(GuaranteeError, match="slices of 20 bits are not exact"):
        gpu.gemm(Lent(draw((6, 8), float)), Lent(draw((8, 5), float)), scheme="ozaki", mode="CR", bits=20, out=out)
    assert (out.content == 7).all()


# --- errors
WRONG = {
    "overflow": ({"scheme": "ootomo"}, 3e6, None),
    "NaN": ({"scheme": "ootomo"}, np.nan, None),
    "overflow of a residual": ({"scheme": "h2sgemm"}, 32768 + 15.999, None),
    "scaled all the same": ({"scheme": "ootomo", "residual_scale": 2**20, "on_range": "scale-rows"}, 1, None),
    "scheme": ({"scheme": "otomo"}, 1, None),
    "option": ({"scheme": "ootomo", "promot": 3}, 1, None),
    "policy": ({"scheme": "ootomo", "on_range": "raze"}, 1, None),
    "policy of a scheme": ({"scheme": "fp16", "accumulator": "fp16", "on_range": "scale"}, 1, None),
    "order of a scheme": ({"scheme": "h2sgemm", "combine": "element-wise", "order": KOrder(promote=4)}, 1, None),
    "promotion twice": ({"scheme": "staged", "stage": 32, "order": KOrder(promote=4)}, 1, None),
    "alpha": ({"scheme": "ootomo", "alpha": 1e99}, 1, None),
    "beta": ({"scheme": "ootomo", "beta": 2.0}, 1, None),
    "C": ({"scheme": "ootomo", "beta": 2.0}, 1, (3, 3)),
    "order": ({"scheme": "ootomo", "order": 5}, 1, None),
}


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("what", WRONG)
def test_errors_are_those_of_the_emulator_and_leave_the_arrays_alone(what, lent, gpu):
    options, value, shape = WRONG[what]
    A, B = draw((5, 40)), draw((40, 6))
    B[3, 2] = value
    arrays = [A, B, *([draw(shape)] if shape else [])]
    before = [x.copy() for x in arrays]
    given = [Lent(x) for x in arrays] if lent else arrays
    with pytest.raises(InputError) as got:
        gpu.gemm(*given, **{"on_range": "raise"} | options)
    if what == "order":
        assert str(got.value) == "order must be a fpemu.mma.KOrder, not 5"
    else:
        with pytest.raises(InputError) as want:
            fpemu.gemm(*arrays, **{"hardware": "hopper" if ON_A_GPU else "A100"} | options)
        assert str(got.value) == str(want.value)
    for x, y in zip(given, before, strict=True):
        assert_same(x.content if lent else x, y)


def test_operands_that_do_not_fit_are_named_as_by_the_emulator(gpu):
    A = draw((5, 40))
    for a, b in ((A, draw((6, 40))), (draw((2, 5, 40)), draw((3, 40, 6))), (A, draw((6, 40)) * 1j)):
        with pytest.raises(InputError) as want:
            fpemu.gemm(a, b, scheme="sgemm")
        for given in ((a, b), (Lent(a), Lent(b))):
            with pytest.raises(InputError) as got:
                gpu.gemm(*given, scheme="sgemm")
            assert str(got.value) == str(want.value)
    wide = draw((40, 6), np.float64)
    for given in ((A, wide), (Lent(A), Lent(wide))):
        with pytest.raises(InputError, match=r"^B: not fp32 numbers: 240 of 240 entries"):
            gpu.gemm(*given, scheme="sgemm")
    with pytest.raises(InputError, match=r"^A in the CPU's memory and B on the GPU: copy them to one of the two$"):
        gpu.gemm(A, Lent(draw((40, 6))), scheme="sgemm")
    for call in (gpu.gemm, lambda *given, **more: gpu.kernel(more.pop("scheme"), 4, 4, 4, **more)):
        with pytest.raises(InputError, match=r"^hardware='A100': fpemu\.gpu runs on the current GPU"):
            call(A, A.T, scheme="sgemm", hardware="A100")


@stand_in_only
def test_an_old_gpu_runs_sgemm_alone(processor):
    processor((7, 5))
    A = draw((4, 4))
    with pytest.raises(
        GpuError, match=r"^ootomo on matrix instructions needs compute capability 8\.0 or more; .* has 7\.5$"
    ):
        fpemu.gpu.gemm(A, A, scheme="ootomo")
    assert_same(fpemu.gpu.gemm(A, A, scheme="sgemm"), fpemu.gemm(A, A, scheme="sgemm"))


@pytest.mark.skipif(ON_A_GPU, reason="there is a GPU")
def test_without_a_gpu_every_function_states_what_is_missing():
    A = draw((4, 4))
    for call in (
        lambda: fpemu.gpu.gemm(A, A, scheme="sgemm"),
        lambda: fpemu.gpu.plan("sgemm", A, A),
        lambda: fpemu.gpu.kernel("ootomo", 4, 4, 4),
        lambda: fpemu.gpu.batched.hgemm(A, A),
        lambda: fpemu.gpu.tallskinny.multiply(A, A),
        lambda: fpemu.gpu.execute(np.zeros((2, 16)), np.zeros((16, 2)), None, fpemu.mma.spec("A100")),
    ):
        with pytest.raises(GpuError) as raised:
            call()
        assert str(raised.value) == fpemu.gpu.available()
        assert "\n" not in str(raised.value)


@stand_in_only
def test_too_little_memory_names_its_bytes_and_the_sizes_to_lower(driver):
    full = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
    lent = Lent(np.zeros((9, 90), np.float32))
    turned = part(lent, (9, 90), (-360, 4), 8 * 360)
    allocate = driver.cuMemAlloc
    driver.cuMemAlloc = lambda nbytes: (full, 0) if nbytes > 10**8 else allocate(nbytes)
    text = r"^out of memory: %s GB are needed in one piece, and 100\.00 GB are free: lower the batch, M or N$"
    with pytest.raises(GpuError, match=text % r"0\.12"):
        fpemu.gpu.gemm(np.zeros((2, 90, 9), np.float32), np.zeros((9, 160_000), np.float32), scheme="ootomo")
    driver.cuMemAlloc = lambda nbytes: (full, 0)
    with pytest.raises(GpuError, match=text % r"0\.00"):
        fpemu.gpu.gemm(turned, lent, scheme="ootomo")
    with pytest.raises(GpuError, match=r"^CUDA: CUDA_ERROR_OUT_OF_MEMORY \(1,234,567 bytes\)$") as raised:
        device.Buffer(1_234_567)
    assert raised.value.nbytes == 1_234_567


# --- kernels
def test_a_kernel_describes_itself(gpu):
    for scheme, options in (("ootomo", {"promote": 64, "instruction": "mma"}), ("sgemm", {})):
        kernel = gpu.kernel(scheme, 100, 90, 80, **options)
        assert kernel.options == options
        assert kernel.describe().startswith(f"{kernel.name}: {scheme}")
        A, B = draw((100, 80)), draw((80, 90))
        assert_same(gpu.gemm(A, B, scheme=scheme, **options), fpemu.gemm(A, B, **kernel.arguments))
    for sizes, wrong in (
        ((4, 0, 4), "N = 0"),
        ((4.5, 4, 4), "M = 4.5"),
        (("a", 4, 4), "M = 'a'"),
        ((4, 4, True), "K = True"),
    ):
        with pytest.raises(InputError, match=f"{wrong} must be a positive integer"):
            gpu.kernel("sgemm", *sizes)
    with pytest.raises(InputError, match="no kernel to describe"):
        gpu.kernel("ozaki", 4, 4, 4)


# --- streams
@stand_in_only
@pytest.mark.parametrize(("stream", "waits"), [(55, [(0, 55), (55, 0)]), (2, [(0, 2), (2, 0)]), (1, []), (None, [])])
def test_the_stream_of_an_array_interface_orders_the_product(driver, stream, waits):
    A, B, out = Lent(draw((6, 8)), stream=stream), Lent(draw((8, 5)), stream=1), Lent(np.zeros((6, 5), np.float32))
    synchronized: list = []

    def synchronize(handle):
        synchronized.append(handle)
        return (0,)

    driver.cuStreamSynchronize = synchronize
    for _ in range(2):  # the first call copies constants, and waits for them
        synchronized.clear()
        Stream.waits.clear()
        D = fpemu.gpu.gemm(A, B, scheme="sgemm")
    assert Stream.waits == waits
    # without a stream of A, no stream orders later work of the caller: the result is complete on return
    assert synchronized == ([0] if stream is None else [])
    want = fpemu.gemm(A.x, B.x, scheme="sgemm")
    assert_same(D.get(), want)
    assert fpemu.gpu.gemm(A, B, scheme="sgemm", out=out) is out
    assert_same(out.content, want)


@stand_in_only
def test_a_copy_for_negative_strides_waits_for_the_owners_stream(driver, monkeypatch):
    kind = type("ndarray", (), {"__module__": "cupy.simulated"})

    class Device(contextlib.nullcontext):
        id = 0

    def array(lent, **more):
        result = kind()
        result.device, result.lent = Device(), lent
        result.__cuda_array_interface__ = lent.__cuda_array_interface__ | more
        return result

    cupy = types.ModuleType("cupy")
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=55))
    cupy.empty = lambda shape, name: array(Lent(np.zeros(shape, name)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    A, B = draw((6, 8)), draw((8, 5))
    lent = Lent(A)
    turned = array(lent, strides=(-32, 4), data=(lent.matrix.pointer + 160, False))
    got = fpemu.gpu.gemm(turned, array(Lent(B)), scheme="sgemm")
    assert_same(got.lent.content, fpemu.gemm(A[::-1], B, scheme="sgemm"))
    assert Stream.waits[:2] == [(0, 55), (0, 55)]
    assert Stream.waits[-1] == (55, 0)


@needs_gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_torch_and_cupy_on_a_stream_of_their_own(library):
    module = pytest.importorskip(library)
    A, B = draw((2, 130, 70)), draw((70, 90))
    want = emulated("staged", A, B)
    if library == "torch":
        stream = module.cuda.Stream()
        with module.cuda.stream(stream):
            a, b = (module.from_numpy(x).cuda() for x in (A, B))
            got = fpemu.gpu.gemm(a, b * 1, scheme="staged") + 0
        assert got.device.type == "cuda"
        stream.synchronize()
        assert_same(got.cpu().numpy(), want)
        assert isinstance(fpemu.gpu.gemm(module.from_numpy(A), module.from_numpy(B), scheme="sgemm"), module.Tensor)
    else:
        with module.cuda.Stream(non_blocking=True):
            a, b = module.asarray(A), module.asarray(B)
            got = fpemu.gpu.gemm(a, b * 1, scheme="staged") + 0
            assert isinstance(got, module.ndarray)
            assert_same(got.get(), want)
