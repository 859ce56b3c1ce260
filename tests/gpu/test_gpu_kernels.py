"""On a GPU: every kernel of `fpemu.gpu.gemm` gives the bits of the emulator, for all layouts and overflow policies."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma
from fpemu.gpu import batched as gpu_batched
from fpemu.gpu.gemm.wgmma import schedules, words
from fpemu.gpu.runtime import device
from fpemu.mma import KOrder
from fpemu.schemes import build
from tests.batched_on_cpu import hostile
from tests.cuda_on_cpu import multiply
from tests.gpu.test_gpu_batched_callers import UNUSUAL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))]
needs_hopper = pytest.mark.skipif(
    device.missing() is not None or device.arch() != "sm_90a", reason="needs a Hopper GPU"
)

KERNELS = {
    "one wgmma sum": ("staged", {}, None),
    "stages of two chunks": ("staged", {"stage": 128}, None),
    "another order of products": ("staged", {"products": ("rh", "hh", "hr")}, None),
    "bands": ("staged", {"accumulators": "band"}, None),
    "balanced words": ("staged", {"high_rounding": "balanced"}, None),
    "corrections beside a promoted sum": ("ootomo", {"promote": 64, "step": 64}, None),
    "a promotion of two chunks": ("ootomo", {"promote": 128, "step": 64}, None),
    "a promotion of every instruction": ("ootomo", {}, None),
    "two sums": ("legemm", {}, None),
    "one word": ("fp16", {}, None),
    "one word, promoted": ("fp16", {"promote": 128}, None),
    "an order that promotes": ("fp16", {}, KOrder(promote=64)),
    "slices": ("staged", {}, KOrder(split=128)),
    "slices of one word": ("fp16", {}, KOrder(split=64)),
    "strassen": ("staged", {"levels": 1}, None),
    "strassen twice": ("staged", {"levels": 2}, None),
    "int8 corrections": ("staged-int8", {}, None),
    "three words by mma.sync": ("bf16x9", {}, None),
    "any order": ("ootomo", {}, KOrder(split=56, tile=32, residue_first=True)),
    "ordinary cores": ("sgemm", {}, None),
    "ordinary cores in slices": ("sgemm", {}, KOrder(split=100, join="pairwise")),
}
SHAPES = [(1, 1, 1), (130, 72, 264), (257, 515, 129), (300, 301, 1000), (64, 256, 8192), (40, 66, 20_000)]
LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": lambda X: np.ascontiguousarray(X.swapaxes(-1, -2)).swapaxes(-1, -2),
    "spaced": lambda X: np.repeat(X, 2, -1)[..., ::2],
}
POLICIES = ("raise", "propagate", "scale", "scale-rows")


def assert_same(D, want):
    if isinstance(want, str):
        assert want == D
        return
    assert (D.dtype, D.shape) == (want.dtype, want.shape)
    assert (D.view(np.uint32) == want.view(np.uint32)).all()


def outcome(gemm, *operands, **options):
    """Return a product, or the message of its error: some schemes scale nothing."""
    try:
        return gemm(*operands, **options)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_gpu_gives_the_bits_of_the_order_that_its_kernel_names(name, layout, policy):
    scheme, options, order = KERNELS[name]
    for number, (M, N, K) in enumerate(SHAPES):
        rng, lead = np.random.default_rng([number, *name.encode()]), (2,) if number % 2 else ()
        A, B, C = (rng.standard_normal(shape).astype(np.float32) for shape in ((*lead, M, K), (K, N), (M, N)))
        if policy != "raise":
            A[..., M // 2, K // 2], B[K // 3, N // 3] = np.nan, np.inf
        if policy == "scale-rows":
            A *= np.exp2(rng.integers(-60, 60, (*lead, M, 1))).astype(np.float32)
        kernel = fpemu.gpu.kernel(scheme, M, N, K, order=order, **options)
        for addend, scalars in ((None, {}), (C, {"alpha": -0.7, "beta": 2.5})):
            want = outcome(fpemu.gemm, A, B, addend, on_range=policy, **kernel.arguments, **scalars)
            given = LAYOUTS[layout](A), LAYOUTS[layout](B), addend
            more = {"scheme": scheme, "order": order, "on_range": policy} | options | scalars
            for _ in range(2):
                assert_same(outcome(fpemu.gpu.gemm, *given, **more), want)


@needs_hopper
@pytest.mark.parametrize("columns", [32, 64, 128, 176, 192, 208])
def test_a_hopper_gpu_gives_them_with_every_tile(columns):
    scheme, spec, rng = build("staged", {}), mma.spec("hopper", "fp16", "fp32"), np.random.default_rng(6)
    schedule = schedules.schedule(scheme.lowering(spec))
    kernel = words.Hopper(scheme, spec, None, schedule, schedules.Tile(columns, group=1))
    A, B = (
        np.ldexp(rng.uniform(-1, 1, x), rng.integers(-60, 60, x)).astype(np.float32) for x in ((600, 200), (200, 1000))
    )
    assert_same(multiply(kernel, A, B, policy="raise", calls=3), fpemu.gemm(A, B, **kernel.arguments))


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_cuda_graph_captures_copied_and_uneven_operands(name):
    torch = pytest.importorskip("torch")
    rng, (make, options) = np.random.default_rng(9), UNUSUAL[name]
    function = getattr(gpu_batched, "hcgemm" if options else "hgemm")
    held, tensors = [], []
    for X in make(partial(hostile, rng)):  # the same strides and alignment on the GPU
        base = X if X.base is None else X.base
        held.append(torch.from_numpy(base).cuda())
        start = (X.ctypes.data - base.ctypes.data) // 2
        tensors.append(torch.as_strided(held[-1], X.shape, [s // 2 for s in X.strides], start))
    expected = function(*tensors, **options)
    graph, D = torch.cuda.CUDAGraph(), torch.empty_like(expected)
    function(*tensors, out=D, **options)  # constants are uploaded outside of the capture
    with torch.cuda.graph(graph):
        function(*tensors, out=D, **options)
    for base in held:
        base.neg_()  # of A and B: the product keeps its sign, and its bits but for those of NaN and zeros
    expected = function(*tensors, **options)
    D.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    assert (D.view(torch.int16) == expected.view(torch.int16)).all()
