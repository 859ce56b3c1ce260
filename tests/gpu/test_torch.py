"""`fpemu.torch`: operators, gradients, compiled functions and routed products have the bits of the emulator.

The tests run on the GPU where PyTorch finds one, otherwise on the CPU, where the operators emulate an H200.
"""

from __future__ import annotations

import contextlib
import threading
from importlib.util import find_spec

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.gpu.gemm import choice
from fpemu.gpu.runtime import native, tensors
from fpemu.mma import KOrder

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fpemu.torch import calls, operators
from fpemu.torch.options import real, real_or_complex

ON_A_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_A_GPU else "cpu"
BACKEND = "inductor" if ON_A_GPU else "aot_eager"
SCHEMES = ("staged", "ootomo", "legemm", "bf16x6", "sgemm", "dgemm", "ozaki")
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # on a GPU, from inductor
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),  # on a GPU, in another thread
]


def draw(*shape, dtype=torch.float32, grad=False):
    values = np.random.default_rng([7, *shape]).standard_normal(shape)
    return torch.tensor(values).to(dtype).to(DEVICE).requires_grad_(grad)


def emulated(A, B, C=None, scheme="staged", **options):
    """The product of an H200 by the emulator."""
    a, b, c = (None if X is None else X.detach().cpu().numpy() for X in (A, B, C))
    needs = fpemu.schemes.get(scheme).needs_hardware
    hardware = {"hardware": "H200"} if needs else {}
    return fpemu.gemm(a, b, c, scheme=scheme, **hardware, **options)


def half(A, B, C=None, layout=None, **options):
    """The batched product of an H200 by the emulator."""
    a, b, c = (None if X is None else X.detach().cpu().numpy() for X in (A, B, C))
    where = {"hardware": "H200", "instruction": "mma"} if options.get("kernel") != "magma-small" else {}
    if layout is None:
        return fpemu.batched.hgemm(a, b, c, **where, **options)
    return fpemu.batched.hcgemm(a, b, c, layout=layout, **where, **options)


def assert_same(got, want):
    got = got.detach().cpu().numpy()
    want = want.detach().cpu().numpy() if isinstance(want, torch.Tensor) else np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    codes = f"u{got.dtype.itemsize}"
    wrong = np.ascontiguousarray(got).view(codes) != np.ascontiguousarray(want).view(codes)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} entries differ, the first at {np.argwhere(wrong)[0]}"


def grads(D, *inputs):
    """The gradients of the sum of D weighted by random numbers, and these."""
    weights = draw(*D.shape, dtype=D.dtype)
    return torch.autograd.grad(D, inputs, weights), weights


def grads_of_backward(D, *inputs):
    """The same by ``backward``."""
    weights = draw(*D.shape, dtype=D.dtype)
    D.backward(weights)
    return [X.grad for X in inputs], weights


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=BACKEND, **options)


# --- the operator of gemm
@pytest.mark.parametrize("scheme", SCHEMES)
def test_products_have_the_emulators_bits(scheme):
    dtype = torch.float64 if scheme in ("dgemm", "ozaki") else torch.float32
    A, B, C = draw(33, 70, dtype=dtype), draw(70, 20, dtype=dtype), draw(33, 20, dtype=dtype)
    D = fpemu.torch.gemm(A, B, scheme=scheme)
    assert D.device == A.device
    assert D.is_contiguous()
    assert_same(D, emulated(A, B, scheme=scheme))
    D = fpemu.torch.gemm(A, B, C, scheme=scheme, alpha=0.3, beta=-2)
    assert_same(D, emulated(A, B, C, scheme=scheme, alpha=0.3, beta=-2))


@pytest.mark.parametrize(
    "options",
    [
        {"on_range": "scale-rows"},
        {"promote": None},
        {"high_rounding": "RZ", "residual_scale": 1024},
        {"products": ["rr", "hh", "rh", "hr"]},
        {"order": KOrder(split=16)},
        {"promote": np.int64(64)},
    ],
    ids=str,
)
def test_options_reach_the_scheme(options):
    A, B = draw(20, 100), draw(100, 40)
    assert_same(fpemu.torch.gemm(A, B, scheme="ootomo", **options), emulated(A, B, scheme="ootomo", **options))


def test_numbers_of_numpy_are_numbers_of_python():
    for value in (np.float64(2), np.float32(2), np.int64(2), 2):
        assert real(value, "alpha").__class__ is float
        assert real_or_complex(value, "alpha").__class__ is float
    for value in (np.complex128(2j), np.complex64(2j), 2j):
        assert real_or_complex(value, "alpha").__class__ is complex


def test_the_order_is_the_order_of_the_kernel():
    A, B = draw(8, 8192), draw(8192, 16)
    if ON_A_GPU:
        order = fpemu.gpu.kernel("staged", 8, 16, 8192).order
    else:
        staged = fpemu.schemes.get("staged")
        order = choice.find(staged, staged.spec("H200"), (8, 16, 8192), None).order
    D = fpemu.torch.gemm(A, B, scheme="staged")
    assert_same(D, emulated(A, B, order=order))
    assert not torch.equal(D.cpu(), torch.from_numpy(emulated(A, B)))  # K is split
    assert_same(fpemu.torch.gemm(A, B, scheme="staged", order=KOrder()), emulated(A, B, order=KOrder()))


def test_a_scheme_object_is_its_name_and_its_options():
    A, B = draw(20, 100), draw(100, 40)
    scheme = fpemu.schemes.staged.Staged(stage=128)
    assert_same(fpemu.torch.gemm(A, B, scheme=scheme), emulated(A, B, scheme="staged", stage=128))


def test_an_option_of_a_call_replaces_that_of_the_scheme_object():
    A, B = draw(8, 512), draw(512, 8)
    coarse, fine = fpemu.schemes.staged.Staged(stage=128), emulated(A, B, stage=32)
    assert not np.array_equal(emulated(A, B, stage=128), fine)
    assert_same(fpemu.torch.gemm(A, B, scheme=coarse, stage=32), fine)
    with fpemu.torch.matmul(coarse, stage=32):
        assert_same(A @ B, fine)


@pytest.mark.skipif(ON_A_GPU, reason="tensors of a GPU are multiplied by that GPU")
def test_the_emulated_gpu_is_an_option_of_the_cpu():
    A, B = draw(20, 100), draw(100, 40)
    D = fpemu.torch.gemm(A, B, scheme="fp16", hardware="V100")
    assert_same(D, fpemu.gemm(A.numpy(), B.numpy(), scheme="fp16", hardware="V100"))
    assert not torch.equal(D, fpemu.torch.gemm(A, B, scheme="fp16"))


@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 1), (1, 1)),
        ((0, 3), (3, 2)),
        ((4, 0), (0, 2)),
        ((2, 0, 3), (3, 2)),
        ((0, 4, 3), (3, 2)),
        ((2, 1, 5, 6), (3, 6, 7)),
        ((5, 6), (2, 2, 6, 3)),
    ],
    ids=str,
)
def test_shapes_without_entries_and_broadcast_batches(shapes):
    A, B = (draw(*shape) for shape in shapes)
    assert_same(fpemu.torch.gemm(A, B, scheme="staged"), emulated(A, B))
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    C = draw(3, *(1 for _ in batch), A.shape[-2], B.shape[-1])
    assert_same(fpemu.torch.gemm(A, B, C, scheme="staged", beta=1), emulated(A, B, C, beta=1))


def test_strides_narrow_dtypes_and_conjugate_views():
    A, B = draw(70, 33).mT[::2], draw(20, 70).mT
    assert_same(fpemu.torch.gemm(A, B, scheme="staged"), emulated(A, B))
    A, B = draw(33, 70, dtype=torch.bfloat16), torch.view_as_complex(draw(70, 20, 2)).conj().imag
    assert B.is_neg()
    assert_same(fpemu.torch.gemm(A, B, scheme="staged"), emulated(A.float(), B.resolve_neg()))
    P, B = torch.nn.Parameter(draw(33, 70)), draw(70, 20)
    assert_same(fpemu.torch.gemm(P, B, scheme="staged"), emulated(P, B))


def test_the_operator_passes_pytorchs_checks():
    A, B, C = draw(2, 5, 6, grad=True), draw(6, 7, grad=True), draw(3, 2, 5, 7, grad=True)
    operators = torch.ops.fpemu
    for operator, arguments in (
        (operators.gemm, (A, B, None, "staged")),
        (operators.gemm, (A, B, C, "ootomo", 0.5, 2.0, "{'promote': None}")),
        (operators.gemm, (A.detach().double(), B.detach().double(), None, "ozaki")),
        (operators.tallskinny, (A[0].detach().requires_grad_(), B)),
        (operators.batched, (A.detach().half(), B.detach().half().requires_grad_(), None)),
        (
            operators.batched,
            (
                draw(2, 5, 6, 2, dtype=torch.float16),
                draw(6, 7, 2, dtype=torch.float16),
                None,
                1j,
                0.0,
                "interleaved",
                "{'transa': 'N'}",
            ),
        ),
    ):
        torch.library.opcheck(operator.default, arguments, test_utils=CHECKS)


VIEWS = {
    "plain": lambda X: X,
    "transposed": lambda X: X.mT.contiguous().mT,
    "negated": lambda X: torch._neg_view(-X),
    "strided": lambda X: torch.stack((X, X), -1)[..., 1],
}


@pytest.mark.parametrize("views", [("plain", "transposed"), ("negated", "strided"), ("transposed", "negated")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_operators_pass_pytorchs_checks_for_every_dtype_and_view(dtype, views):
    wide = torch.promote_types(dtype, torch.float32)
    fmt, operators = "fp64" if dtype == torch.float64 else "fp32", torch.ops.fpemu
    for (M, K, N), grad in (((5, 6, 7), 0), ((1, 6, 1), 1), ((0, 6, 7), 1), ((5, 0, 7), 0)):
        A, B = (VIEWS[v](draw(*s, dtype=dtype)) for v, s in zip(views, ((M, K), (K, N)), strict=True))
        (B if grad else A).requires_grad_()
        a, b = (X.detach().to(wide).cpu().resolve_neg().numpy() for X in (A, B))
        cases = [
            (operators.tallskinny, (A, B), fpemu.simt.tsm2(a, b, fmt=fmt)),
            (operators.gemm, (A, B, None, "dgemm"), fpemu.gemm(a, b, scheme="dgemm")),
        ]
        if dtype == torch.float16:
            cases.append((operators.batched, (A, B, None), half(A.resolve_neg(), B.resolve_neg())))
        for operator, arguments, want in cases:
            torch.library.opcheck(operator.default, arguments, test_utils=CHECKS)
            assert_same(operator(*arguments), want)


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5), None), ((2, 1, 3, 4), (7, 4, 5), (9, 1, 1, 3, 5))], ids=str)
def test_fake_tensors_have_the_result_s_shape_dtype_and_strides(shapes):
    real = [None if shape is None else draw(*shape) for shape in shapes]
    with FakeTensorMode() as mode:
        fake = [None if X is None else mode.from_tensor(X) for X in real]
        D = fpemu.torch.gemm(*fake, scheme="staged", beta=float(real[2] is not None))
        E = fpemu.torch.gemm(*fake[:2], scheme="sgemm")
        with fpemu.torch.matmul("staged"):
            F = fake[0] @ fake[1]
    for result, want in (
        (D, fpemu.torch.gemm(*real, scheme="staged", beta=float(real[2] is not None))),
        (E, fpemu.torch.gemm(*real[:2], scheme="sgemm")),
        (F, real[0] @ real[1]),
    ):
        assert (result.shape, result.dtype, result.device) == (want.shape, want.dtype, want.device)
        assert result.stride() == want.stride()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A, C: fpemu.torch.gemm(A, A, C, scheme="staged", beta=1.0), "C of shape (1, 4) does not fit"),
        (lambda A, C: fpemu.torch.gemm(A, A, C, scheme="staged"), "C of shape (1, 4) does not fit"),
        (lambda A, C: fpemu.torch.hgemm(A.half(), A.half(), C.half(), beta=1.0), "C of shape (1, 4) does not fit"),
        (lambda A, C: fpemu.torch.multiply(A[None], A), "A has shape (1, 4, 4): one matrix, with two axes, is needed"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_for_fake_tensors_too(call, message):
    operands = draw(4, 4), draw(1, 4)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(X) for X in operands]
    for given, context in ((operands, contextlib.nullcontext()), (fake, mode)):
        with context, pytest.raises(InputError) as caught:
            call(*given)
        assert message in str(caught.value)


# --- gradients
def test_gradients_are_products_by_the_scheme():
    A, B, C = draw(33, 70, grad=True), draw(70, 20, grad=True), draw(33, 20, grad=True)
    (dA, dB, dC), dD = grads(fpemu.torch.gemm(A, B, C, scheme="ootomo", alpha=0.3, beta=-2, promote=64), A, B, C)
    assert_same(dA, emulated(dD, B.mT, scheme="ootomo", alpha=0.3, promote=64))
    assert_same(dB, emulated(A.mT, dD, scheme="ootomo", alpha=0.3, promote=64))
    assert_same(dC, -2 * dD)


@pytest.mark.parametrize("dispatched", [False, True])
def test_an_addend_alone_has_a_gradient(dispatched):
    A, B, C = draw(9, 8), draw(8, 7), draw(9, 7, grad=True)
    half = draw(9, 7, dtype=torch.float16, grad=True)
    if dispatched:
        D = torch.ops.fpemu.gemm(A, B, C, "staged", 1.0, 2.0)
        E = torch.ops.fpemu.batched(A.half(), B.half(), half, 1.0, 2.0)
    else:
        D = fpemu.torch.gemm(A, B, C, scheme="staged", beta=2.0)
        E = fpemu.torch.hgemm(A.half(), B.half(), half, beta=2.0)
    for product, addend in ((D, C), (E, half)):
        assert_same(torch.autograd.grad(product.sum(), addend)[0], torch.full((9, 7), 2.0, dtype=addend.dtype))


def test_gradients_of_single_operands_and_without_any():
    A, B = draw(9, 8), draw(8, 7, grad=True)
    (dB,), dD = grads(fpemu.torch.gemm(A, B, scheme="staged"), B)
    assert_same(dB, emulated(A.mT, dD))
    with torch.no_grad():
        assert not fpemu.torch.gemm(A, B, scheme="staged").requires_grad
    assert not fpemu.torch.gemm(A, B.detach(), scheme="staged").requires_grad
    with torch.inference_mode():
        assert_same(fpemu.torch.gemm(A, B, scheme="staged"), emulated(A, B))
    C = draw(9, 7, grad=True)
    D = fpemu.torch.gemm(A, B, C, scheme="staged", beta=0)
    assert torch.autograd.grad(D.sum(), C, allow_unused=True) == (None,)


def test_gradients_summed_over_broadcast_batches_are_one_product():
    A, B, C = draw(3, 1, 5, 6, grad=True), draw(4, 6, 7, grad=True), draw(2, 1, 4, 5, 7, grad=True)
    D = fpemu.torch.gemm(A, B, C, scheme="staged", beta=1.0)
    assert D.shape == (2, 3, 4, 5, 7)
    (dA, dB, dC), dD = grads(D, A, B, C)
    # dA[i] sums over the batch axes (p, j) and N, dB[j] over (p, i) and M
    b = B.detach().expand(2, 3, 4, 6, 7)
    left = dD.permute(1, 3, 0, 2, 4).reshape(3, 5, 2 * 4 * 7)
    right = b.permute(1, 0, 2, 4, 3).reshape(3, 2 * 4 * 7, 6)
    assert_same(dA, emulated(left, right)[:, None])
    a = A.detach().expand(2, 3, 4, 5, 6)
    left = a.permute(2, 4, 0, 1, 3).reshape(4, 6, 2 * 3 * 5)
    right = dD.permute(2, 0, 1, 3, 4).reshape(4, 2 * 3 * 5, 7)
    assert_same(dB, emulated(left, right))
    assert_same(dC, dD.sum(1, keepdim=True))


def test_gradients_have_the_operands_dtypes():
    A, B = draw(5, 6, dtype=torch.bfloat16, grad=True), draw(6, 7, grad=True)
    (dA, dB), dD = grads(fpemu.torch.gemm(A, B, scheme="staged"), A, B)
    assert dA.dtype == torch.bfloat16
    assert torch.equal(dA, torch.from_numpy(emulated(dD, B.mT)).to(dA))
    assert_same(dB, emulated(A.float().mT, dD))


def test_second_derivatives_are_products_by_the_scheme():
    A, B = draw(5, 6, grad=True), draw(6, 7, grad=True)
    D = fpemu.torch.gemm(A, B, scheme="staged")
    dD = draw(5, 7)
    (dA,) = torch.autograd.grad(D, A, dD, create_graph=True)
    (second,) = torch.autograd.grad(dA, B, w := draw(5, 6))
    assert_same(second, emulated(dD.mT, w).T)


# --- batched, and tall and skinny
def test_hgemm_and_its_gradients():
    A, B, C = (draw(*s, dtype=torch.float16, grad=True) for s in ((4, 9, 8), (7, 9), (4, 8, 7)))
    options = {"transa": "T", "transb": "t", "accumulate": "fp16"}
    D = fpemu.torch.hgemm(A, B, C, alpha=0.5, beta=2.0, **options)
    assert_same(D, half(A, B, C, alpha=0.5, beta=2.0, transa="T", transb="T", accumulate="fp16"))
    (dA, dB, dC), dD = grads(D, A, B, C)
    plain = {"alpha": 0.5, "accumulate": "fp16"}
    assert_same(dA, half(dD, B, **plain).swapaxes(1, 2))
    assert_same(dB, half(A.permute(1, 0, 2).reshape(9, 32), dD.reshape(32, 7), **plain).T)
    assert_same(dC, 2.0 * dD)


@pytest.mark.parametrize("shapes", [((100, 8, 8), (8, 8)), ((8, 9), (4, 1, 5, 9, 3))], ids=str)
def test_gradients_of_magma_small_over_a_broadcast_batch_are_sums_of_products(shapes):
    A, B = (draw(*shape, dtype=torch.float16, grad=True) for shape in shapes)
    (dA, dB), dD = grads(fpemu.torch.hgemm(A, B, alpha=0.5, kernel="magma-small"), A, B)
    for dX, X, operands in ((dA, A, (dD, B.mT)), (dB, B, (A.mT, dD))):
        products = torch.from_numpy(half(*operands, alpha=0.5, kernel="magma-small")).to(DEVICE)  # K of 9 at most
        assert_same(dX, products.sum_to_size(X.shape))


@pytest.mark.parametrize("kernel", ["tensor", "magma-small"])
@pytest.mark.parametrize("layout", ["interleaved", "planar"])
@pytest.mark.parametrize(("transa", "transb"), [("N", "N"), ("T", "C"), ("C", "T"), ("C", "N")])
def test_hcgemm_and_its_gradients(layout, transa, transb, kernel):
    def parts(z):
        """Complex numbers of small integers as fp16 in the layout: all products are exact."""
        pair = torch.stack((z.real, z.imag), 0 if layout == "planar" else -1)
        return pair.to(torch.float16).to(DEVICE).requires_grad_()

    def integers(*shape):
        values = np.random.default_rng([5, *shape]).integers(-3, 4, (2, *shape))
        return torch.tensor(values[0] + 1j * values[1])

    def op(z, transpose):
        return {"N": z, "T": z.mT, "C": z.mH}[transpose]

    a = op(integers(3, 1, 4, 5), {"C": "T"}.get(transa, transa))
    b = op(integers(2, 5, 6), {"C": "T"}.get(transb, transb))
    c, w = integers(1, 2, 4, 6), integers(3, 2, 4, 6)
    A, B, C, W = (parts(z) for z in (a, b, c, w))
    options = {"layout": layout, "algorithm": "fused", "kernel": kernel}
    D = fpemu.torch.hcgemm(A, B, C, alpha=1 + 2j, beta=-1j, transa=transa, transb=transb, **options)
    for z in (a, b, c):
        z.requires_grad_()
    want = (1 + 2j) * (op(a, transa) @ op(b, transb)) - 1j * c
    assert_same(D, parts(want))
    got = torch.autograd.grad(D, (A, B, C), W)
    for dX, dz in zip(got, torch.autograd.grad(want, (a, b, c), w.to(want)), strict=True):
        assert torch.equal(dX, parts(dz))


def test_the_kernels_of_batched_products_are_options():
    A, B = draw(3, 9, 8, dtype=torch.float16), draw(8, 7, dtype=torch.float16)
    assert_same(fpemu.torch.hgemm(A, B, kernel="magma-small"), half(A, B, kernel="magma-small"))
    A, B = draw(3, 9, 8, 2, dtype=torch.float16), draw(8, 7, 2, dtype=torch.float16)
    for options in ({"products": 3}, {"algorithm": "calls"}, {"algorithm": "calls", "transa": "C"}):
        X = draw(3, 8, 9, 2, dtype=torch.float16) if "transa" in options else A
        assert_same(fpemu.torch.hcgemm(X, B, **options), half(X, B, layout="interleaved", **options))
    P, Q = A.movedim(-1, 0).detach().requires_grad_(), B.movedim(-1, 0)
    D = fpemu.torch.hcgemm(P, Q, layout="planar", transa="N")
    assert_same(D, half(P, Q, layout="planar"))
    (dP,), dD = grads(D, P)
    assert_same(dP, half(dD, Q, layout="planar", transb="C"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multiply_and_its_gradients(dtype):
    A, B = draw(300, 9, dtype=dtype, grad=True), draw(9, 4, dtype=dtype, grad=True)
    fmt = "fp32" if dtype == torch.float32 else "fp64"

    def chains(X, Y):
        return fpemu.simt.tsm2(X.detach().cpu().numpy(), Y.detach().cpu().numpy(), fmt=fmt)

    C = fpemu.torch.multiply(A, B)
    assert_same(C, chains(A, B))
    (dA, dB), dC = grads(C, A, B)
    assert_same(dA, chains(dC, B.mT))
    assert_same(dB, chains(A.mT, dC))
    assert fpemu.torch.multiply(A[:0], B).shape == (0, 4)


# --- torch.compile
def test_compiled_functions_have_the_same_bits_and_gradients():
    def function(A, B, C, X, Y):
        D = fpemu.torch.gemm(A, B, C, scheme="staged", alpha=2, beta=0.5, stage=128, on_range="propagate")
        H = fpemu.torch.hgemm(X, Y, alpha=2.0)
        Z = fpemu.torch.hcgemm(X, Y, alpha=1j, transb="C", layout="planar", algorithm="fused")
        T = fpemu.torch.multiply(A, B)
        return 2 * D + T, 2 * H, Z.abs()

    A, B, C = draw(33, 70, grad=True), draw(70, 20, grad=True), draw(33, 20, grad=True)
    X, Y = draw(2, 4, 4, dtype=torch.float16, grad=True), draw(2, 4, 4, dtype=torch.float16, grad=True)
    want, got = function(A, B, C, X, Y), compiled(function)(A, B, C, X, Y)
    dD = draw(33, 20)
    for part in range(3):
        assert_same(got[part], want[part])
    product = compiled(lambda A, B: fpemu.torch.gemm(A, B, scheme="staged"))
    assert_same(product(A, B), emulated(A, B))
    dA, dB = torch.autograd.grad(product(A, B), (A, B), dD)
    assert_same(dA, emulated(dD, B.mT))
    assert_same(dB, emulated(A.mT, dD))


def test_sizes_can_be_dynamic():
    product = compiled(lambda A, B: fpemu.torch.gemm(A, B, scheme="staged"), dynamic=True)
    for M, N, K in ((33, 20, 70), (5, 6, 7), (64, 64, 64)):
        A, B = draw(M, K), draw(K, N)
        assert_same(product(A, B), emulated(A, B))


def test_routed_products_compile_within_and_around_the_function():
    def within(A, B):
        with fpemu.torch.matmul("ootomo", promote=64):
            D = A @ B
        return D, torch.mm(A, B)

    def around(A, B, bias):
        return torch.addmm(bias, A, B), functional.linear(A, B.mT, bias), torch.mm(A, mat2=B)

    A, B, bias = draw(33, 70), draw(70, 20), draw(20)
    got = compiled(within)(A, B)
    assert_same(got[0], emulated(A, B, scheme="ootomo", promote=64))
    assert_same(got[1], torch.mm(A, B))
    function, plain = compiled(around), around(A, B, bias)
    for scheme in ("staged", None, "ootomo"):  # a function is compiled again for another context
        if scheme is None:
            assert_same(function(A, B, bias)[2], plain[2])
            continue
        with fpemu.torch.matmul(scheme):
            results = function(A, B, bias)
        C = bias.expand(33, 20)
        for D, added in zip(results, (C, C, None), strict=True):
            assert_same(D, emulated(A, B, added, scheme=scheme, beta=float(added is not None)))


def test_an_exported_module_contains_the_operator():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 8)

        def forward(self, X):
            with fpemu.torch.matmul("staged", stage=128):
                return self.layer(X)

    model, X = Model().to(DEVICE), draw(3, 16)
    program = torch.export.export(model, (X,))
    assert "torch.ops.fpemu.gemm" in str(program.graph)
    assert_same(program.module()(X), model(X))


def test_a_compiled_module_trains_by_the_scheme():
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 8).to(DEVICE)
    X, dD = draw(3, 5, 16), draw(3, 5, 8)
    for function in (layer, compiled(layer)):
        layer.zero_grad()
        with fpemu.torch.matmul("staged"):
            D = function(X)
        D.backward(dD)  # after the context
        C = layer.bias.expand(15, 8)
        assert_same(D, emulated(X.reshape(15, 16), layer.weight.mT, C, beta=1.0).reshape(3, 5, 8))
        assert_same(layer.weight.grad, emulated(X.reshape(15, 16).mT, dD.reshape(15, 8)).T)


# --- the context manager
def products(A, B, c, stack):
    """Calls that are routed, by name."""
    a, b = stack
    return {
        "matmul": (lambda: torch.matmul(A, B), A, B, None),
        "@": (lambda: A @ B, A, B, None),
        "__rmatmul__": (lambda: B.__rmatmul__(A), A, B, None),
        "Tensor.matmul": (lambda: A.matmul(B), A, B, None),
        "linalg.matmul": (lambda: torch.linalg.matmul(A, B), A, B, None),
        "mm": (lambda: torch.mm(A, B), A, B, None),
        "Tensor.mm": (lambda: A.mm(B), A, B, None),
        "out": (lambda: torch.mm(A, B, out=torch.empty(0, device=DEVICE)), A, B, None),
        "bmm": (lambda: torch.bmm(a, b), a, b, None),
        "Tensor.bmm": (lambda: a.bmm(mat2=b), a, b, None),
        "batches": (lambda: a @ B, a, B, None),
        "batches of B": (lambda: A @ b, A, b, None),
        "linear": (lambda: functional.linear(a, B.mT, c), a, B, c),
        "linear without bias": (lambda: functional.linear(A, B.mT), A, B, None),
        "addmm": (lambda: torch.addmm(c, A, B), A, B, c),
        "Tensor.addmm": (lambda: c.addmm(A, mat2=B), A, B, c),
        "baddbmm": (lambda: torch.baddbmm(c, a, b), a, b, c),
        "Tensor.baddbmm": (lambda: c.baddbmm(batch1=a, batch2=b), a, b, c),
        "addmm_": (lambda: c.expand(33, 20).clone().addmm_(A, B), A, B, c),
        "baddbmm_": (lambda: c.expand(3, 33, 20).clone().baddbmm_(a, b), a, b, c),
    }


OPERANDS = (33, 70), (70, 20), (20,), ((3, 33, 70), (3, 70, 20))
NAMES = sorted(products(*[None] * 3, (None, None)))


@pytest.mark.parametrize("name", NAMES)
def test_products_within_the_context_are_those_of_the_scheme(name):
    *single, stack = OPERANDS
    call, A, B, c = products(*(draw(*shape) for shape in single), [draw(*shape) for shape in stack])[name]
    C = None if c is None else c.expand(*np.broadcast_shapes(A.shape[:-2], B.shape[:-2]), A.shape[-2], B.shape[-1])
    want = emulated(A, B, C, beta=float(c is not None))
    with fpemu.torch.matmul("staged"):
        assert_same(call(), want)
    assert not torch.equal(call().cpu(), torch.from_numpy(want))


def test_vectors_scalars_and_empty_matrices_are_routed():
    A, x, y, stack = draw(33, 70), draw(70), draw(33), draw(2, 3, 33, 70)
    with fpemu.torch.matmul("staged"):
        assert_same(A @ x, emulated(A, x[:, None])[:, 0])
        assert_same(y @ A, emulated(y[None], A)[0])
        assert_same(x @ x, emulated(x[None], x[:, None])[0, 0])
        assert_same(stack @ x, emulated(stack.reshape(-1, 70), x[:, None]).reshape(2, 3, 33))
        assert_same(y @ stack, emulated(y[None], stack)[..., 0, :])
        assert_same(functional.linear(x, A), emulated(x[None], A.mT)[0])
        assert (A[:0] @ x[:, None]).shape == (0, 1)
        assert_same(A[:, :0] @ x[:0, None], np.zeros((33, 1), np.float32))
        assert_same(torch.addmm(y, A[:, :0], A[:0].mT[:0].new_empty(0, 33)), y.expand(33, 33))
        assert_same(torch.addmm(torch.full((1, 33), np.nan, device=DEVICE), A, A.mT, beta=0), emulated(A, A.mT))
        assert_same(torch.addmm(y, A, A.mT, beta=2, alpha=3), emulated(A, A.mT, y.expand(33, 33), alpha=3, beta=2))
        assert_same(torch.addmm(y, A, A.mT, beta=False, alpha=torch.tensor(3.0)), emulated(A, A.mT, alpha=3))


def test_other_dtypes_and_layouts_run_unchanged():
    cases = [(draw(9, 8, dtype=dtype), draw(8, 7, dtype=dtype)) for dtype in (torch.float64, torch.float16)]
    cases += [(torch.ones(2, 3, dtype=torch.complex64), torch.ones(3, 2, dtype=torch.complex64))]
    cases += [(torch.eye(4).to_sparse(), torch.eye(4))]
    for A, B in cases:
        want = torch.matmul(A, B)
        with fpemu.torch.matmul("staged"):
            D = A @ B
        assert D.dtype == want.dtype
        assert torch.equal(D, want)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_run_unchanged():
    stack = torch.nested.nested_tensor([draw(2, 4), draw(3, 4)])
    with fpemu.torch.matmul("staged"):
        D = functional.linear(stack, B := draw(5, 4))
    assert_same(D[1], functional.linear(stack[1], B))


@pytest.mark.parametrize("name", ["matmul", "linalg.matmul", "mm", "bmm", "addmm", "baddbmm", "linear"])
def test_an_output_that_pytorch_refuses_raises_its_error(name):
    functions = {"linalg.matmul": torch.linalg.matmul, "linear": functional.linear}
    function = functions.get(name) or getattr(torch, name)
    stack = (2,) if "bmm" in name else ()
    operands = [draw(*stack, 4, 4) for _ in range(3 if "add" in name else 2)]
    recorded = [*operands[:-1], operands[-1].clone().requires_grad_()]
    out = torch.zeros(*stack, 4, 4, device=DEVICE)
    refused = (
        (operands, out.double(), "dtype"),
        (operands, out.half(), "dtype"),
        (operands, out.to("meta"), "device"),
        (recorded, out, "automatic differentiation"),
        (operands, out.clone().requires_grad_(), "automatic differentiation"),
    )
    with fpemu.torch.matmul("staged"):
        for arguments, result, message in refused:
            with pytest.raises(RuntimeError, match=message):
                function(*arguments, out=result)
        assert not out.any()
        with torch.no_grad():
            assert function(*recorded, out=out) is out
        assert_same(out, function(*operands))


def test_a_scalar_tensor_of_another_device_does_not_decide_about_the_output():
    C, A, B = (torch.zeros(4, 4, device="meta") for _ in range(3))
    routing = fpemu.torch.matmul("staged")
    assert routing.stores((C, A, B, torch.tensor(2.0)), C)
    assert not routing.stores((C, A, torch.zeros(4, 4)), C)


def test_nested_contexts_and_errors_within_them():
    A, B = draw(33, 70), draw(70, 20)
    a, b = A.double(), B.double()
    plain = A @ B
    outer = fpemu.torch.matmul("staged")
    with outer:
        with fpemu.torch.matmul("ootomo"):
            assert_same(A @ B, emulated(A, B, scheme="ootomo"))
            with outer:
                assert_same(A @ B, emulated(A, B))
        with fpemu.torch.matmul("ozaki", mode="CR"):
            assert_same(A @ B, emulated(A, B))
            assert_same(a @ b, emulated(a, b, scheme="ozaki", mode="CR"))
        with pytest.raises(ZeroDivisionError), fpemu.torch.matmul("ootomo"):
            raise ZeroDivisionError
        with pytest.raises(InputError):
            A @ A
        assert_same(A @ B, emulated(A, B))
    assert_same(A @ B, plain)


def test_a_context_applies_to_its_thread():
    A, B = draw(33, 70), draw(70, 20)
    plain, results = A @ B, {}
    inside, done = threading.Event(), threading.Event()

    def other():
        inside.wait(60)
        results["plain"] = A @ B
        with fpemu.torch.matmul("ootomo"):
            results["ootomo"] = A @ B
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with fpemu.torch.matmul("staged"):
        inside.set()
        assert done.wait(60)
        assert_same(A @ B, emulated(A, B))
    thread.join()
    assert_same(results["plain"], plain)
    assert_same(results["ootomo"], emulated(A, B, scheme="ootomo"))


def test_gradients_of_routed_products_are_those_of_the_scheme():
    A, B, c = draw(3, 33, 70, grad=True), draw(70, 20, grad=True), draw(20, grad=True)
    with fpemu.torch.matmul("staged"):
        D = functional.linear(A, B.mT, c)
        E = A @ B
    (dA, dB, dc), dD = grads(D, A, B, c)
    flat, d = A.reshape(99, 70), dD.reshape(99, 20)
    assert_same(dA, emulated(d, B.mT).reshape(3, 33, 70))
    assert_same(dB, emulated(flat.mT, d))
    assert_same(dc, d.sum(0))
    (dA, dB), dD = grads(E, A, B)
    assert_same(dB, emulated(flat.mT, dD.reshape(99, 20)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_function_enters_the_context(reentrant):
    from torch.utils.checkpoint import checkpoint

    def function(A, B):
        with fpemu.torch.matmul("staged"):
            return A @ B

    A, B = draw(9, 8, grad=True), draw(8, 7, grad=True)
    (dA, dB), dD = grads_of_backward(checkpoint(function, A, B, use_reentrant=reentrant), A, B)
    assert_same(dA, emulated(dD, B.mT))
    assert_same(dB, emulated(A.mT, dD))


# --- transformations and observers of operators
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_runs_the_operator_for_every_matrix():
    A, B = draw(3, 9, 8), draw(8, 7)
    D = torch.func.vmap(lambda a: fpemu.torch.gemm(a, B, scheme="staged"))(A)
    assert_same(D, emulated(A, B))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_derivatives_of_torch_func_are_products_by_the_scheme():
    A, B, W = draw(3, 9, 8), draw(8, 7), draw(9, 7)

    def weighted(a, b):
        return (fpemu.torch.gemm(a, b, scheme="staged") * W).sum()

    first, by_b = torch.func.grad(weighted), torch.func.grad(weighted, argnums=1)
    assert_same(first(A[0], B), emulated(W, B.mT))
    assert_same(torch.func.vmap(first, (0, None))(A, B), np.stack([emulated(W, B.mT)] * 3))
    assert_same(torch.func.vmap(by_b, (0, None))(A, B), np.stack([emulated(a.mT, W) for a in A]))
    second = torch.func.grad(lambda b: (first(A[0], b) * A[1]).sum())(B)
    assert_same(second, emulated(W.mT, A[1]).T)
    _, pull = torch.func.vjp(lambda a, b: fpemu.torch.gemm(a, b, scheme="staged"), A[0], B)
    for got, want in zip(pull(W), (emulated(W, B.mT), emulated(A[0].mT, W)), strict=True):
        assert_same(got, want)


def test_forward_mode_derivatives_raise():
    A, B = draw(9, 8), draw(8, 7)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        fpemu.torch.gemm(forward_ad.make_dual(A, A), B, scheme="staged")


def test_modes_tracers_and_profilers_observe_the_operator(monkeypatch):
    A, B = draw(9, 8), draw(8, 7)
    want, seen = emulated(A, B), []

    def call():
        return fpemu.torch.gemm(A, B, scheme="staged")

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    operator = torch.ops.fpemu.gemm.default
    for mode in (Dispatched, Function):
        with mode():
            D = call()
        assert seen == [operator]
        assert_same(D, want)
        seen.clear()
    with torch.autograd.profiler.profile() as profile:
        call()
    assert "fpemu::gemm" in [event.key for event in profile.key_averages()]
    assert "fpemu::gemm" in str(torch.jit.trace(lambda a, b: fpemu.torch.gemm(a, b, scheme="staged") + 1, (A, B)).graph)
    graph = make_fx(lambda a, b: fpemu.torch.gemm(a, b, scheme="staged"))(A, B).graph
    assert operator in [node.target for node in graph.nodes]
    D = fpemu.torch.gemm(torch._efficientzerotensor((9, 8), device=DEVICE), B, scheme="staged")  # has no memory
    assert_same(D, emulated(torch.zeros(9, 8), B))
    monkeypatch.setattr(calls._GEMM, "dispatched", None)  # without an observer, nothing calls the dispatcher
    for each in (A, torch.nn.Parameter(A), A.detach().requires_grad_()):
        D = fpemu.torch.gemm(each, B, scheme="staged")
        assert_same(D, want)
        if D.requires_grad:
            assert_same(torch.autograd.grad(D, each, D.detach())[0], emulated(D, B.mT))
    with torch.inference_mode():
        assert call().is_inference()


def test_below_autograd_no_gradient_is_recorded():
    A, B = draw(9, 8, grad=True), draw(8, 7)
    with torch._C._AutoDispatchBelowAutograd():
        assert not fpemu.torch.gemm(A, B, scheme="staged").requires_grad


# --- errors
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A: fpemu.torch.gemm(A, A.cpu().numpy(), scheme="staged"), "B is a ndarray: pass a torch tensor"),
        (lambda A: fpemu.torch.gemm(A, A, 1.0, scheme="staged"), "C is a float: pass a torch tensor"),
        (lambda A: fpemu.torch.gemm(A, A, scheme="stagd"), "did you mean 'staged'"),
        (lambda A: fpemu.torch.gemm(A, A, scheme=3), "unknown scheme 3"),
        (lambda A: fpemu.torch.gemm(A, A, scheme="staged", stge=3), "did you mean 'stage'"),
        (lambda A: fpemu.torch.gemm(A, A, scheme="staged", stage=object()), "stage = <object"),
        (lambda A: fpemu.torch.gemm(A, A, scheme="staged", alpha="1"), "alpha must be one real number"),
        (lambda A: fpemu.torch.gemm(A, A, scheme="staged", beta=1.0), "beta = 1.0 needs C"),
        (lambda A: fpemu.torch.gemm(A, A, scheme="staged", on_range="rais"), "did you mean 'raise'"),
        (lambda A: fpemu.torch.gemm(A, A[:3], scheme="staged"), "A has 4 columns and B 3 rows"),
        (lambda A: fpemu.torch.gemm(A[0], A, scheme="staged"), "A must be a matrix"),
        (lambda A: fpemu.torch.gemm(1e6 * A, A, scheme="ootomo", on_range="raise"), "overflows"),
        (lambda A: fpemu.torch.hgemm(A, A), "float16"),
        (lambda A: fpemu.torch.hgemm(A.half(), A.half(), transa="X"), "transa"),
        (lambda A: fpemu.torch.hcgemm(A.half(), A.half(), layout="X"), "layout"),
        (lambda A: fpemu.torch.multiply(A, A.double()), "A has float32 and B float64"),
        (lambda A: fpemu.torch.matmul("stagd"), "did you mean 'staged'"),
        (lambda A: fpemu.torch.matmul("staged", stge=1), "did you mean 'stage'"),
    ],
)
def test_the_message_states_what_is_wrong(call, message):
    with pytest.raises(InputError) as caught:
        call(draw(4, 4))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_literals_in_the_operator_are_checked():
    A = draw(4, 4)
    for text in ("stage=64", "__import__('os')", "[1]", "{'stage': f()}"):
        with pytest.raises(InputError, match="options = "):
            torch.ops.fpemu.gemm(A, A, None, "staged", 1.0, 0.0, text)


class Tagged(torch.Tensor):
    """A tensor of a subclass."""


def test_the_kernels_of_a_gpu_pass_on_every_argument(monkeypatch):
    received = []

    def stand_in(*given, **named):
        received.append((given, named))
        return given[0]

    monkeypatch.setattr(operators, "gpu_gemm", stand_in)
    monkeypatch.setattr(operators.tallskinny, "multiply", stand_in)
    for name in ("hgemm", "hcgemm"):
        monkeypatch.setattr(
            operators.gpu_batched, name, lambda *X, name=name, **named: stand_in(*X, name=name, **named)
        )
    A, B, C = draw(2, 2), torch.nn.Parameter(draw(2, 2)), draw(2, 2).as_subclass(Tagged)
    scalars = {"alpha": 2.0, "beta": 3.0}
    with torch._C.DisableTorchFunctionSubclass():  # as PyTorch calls the kernels of an operator
        operators.gemm_cuda(
            A, B, C, "staged", *scalars.values(), "{'stage': 64, 'order': {'split': 8}, 'on_range': 'scale'}"
        )
        operators.gemm_cuda(A, B, None, "ootomo")
        operators.batched_cuda(A, B, C, *scalars.values(), None, "{'transa': 'T'}")
        operators.batched_cuda(A, B, C, *scalars.values(), "planar", "{'products': 3}")
        operators.tallskinny_cuda(A, B)
    staged = {"scheme": "staged", "stage": 64, "order": KOrder(split=8), "on_range": "scale"}
    assert [named for _, named in received] == [
        scalars | staged,
        {"scheme": "ootomo", "alpha": 1.0, "beta": 0.0},
        scalars | {"name": "hgemm", "transa": "T"},
        scalars | {"name": "hcgemm", "layout": "planar", "products": 3},
        {},
    ]
    for given, _ in received:
        assert given[0] is A
        assert given[1] is B
        if len(given) == 3 and given[2] is not None:
            assert type(given[2]) is torch.Tensor
            assert given[2].data_ptr() == C.data_ptr()
    assert [len(given) for given, _ in received] == [3, 3, 3, 3, 2]
    assert [given[2] is None for given, _ in received[:4]] == [False, True, False, False]
    with pytest.raises(InputError, match="hardware='V100' is for tensors of the CPU"):
        operators.batched_cuda(A, B, C, options="{'hardware': 'V100'}")


@pytest.mark.skipif(not ON_A_GPU, reason="needs a GPU")
@pytest.mark.gpu
def test_operands_of_the_gpu_and_the_cpu_do_not_mix():
    A = draw(4, 4)
    with pytest.raises((InputError, RuntimeError)):
        fpemu.torch.gemm(A, A.cpu(), scheme="staged")
    with pytest.raises(InputError, match="hardware"):
        fpemu.torch.gemm(A, A, scheme="staged", hardware="A100")
    with pytest.raises(InputError, match="hardware"):
        fpemu.torch.hgemm(A.half(), A.half(), hardware="A100")


@pytest.mark.skipif(not ON_A_GPU, reason="needs a GPU")
@pytest.mark.gpu
def test_repeated_calls_on_parameters_are_recorded_and_captured():
    products = fpemu.gpu.gemm.__globals__["products"]
    P, B = torch.nn.Parameter(draw(64, 64)), draw(64, 32)
    function = compiled(lambda: fpemu.torch.gemm(P, B, scheme="staged") + 1)
    want = function()
    count = len(products)
    assert count
    function()
    assert len(products) == count
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        D = fpemu.torch.gemm(P, B, scheme="staged") + 1
    D.zero_()
    graph.replay()
    assert_same(D, want)


@pytest.mark.skipif(not ON_A_GPU or native.exchange(torch.Tensor) is None, reason="needs a GPU and torch 2.10")
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gemm", "hgemm", "multiply"])
def test_products_and_gradients_of_several_shapes_repeat_recorded_kernels(monkeypatch, name):
    kind, lead = (torch.float16, (2,)) if name == "hgemm" else (torch.float32, ())
    options = {"scheme": "staged"} if name == "gemm" else {}
    function = getattr(fpemu.torch, name)
    sizes = ((32, 72, 16), (16, 8, 40), (300, 24, 4))
    cases = [tuple(draw(*lead, *shape, dtype=kind, grad=True) for shape in ((M, K), (K, N))) for M, K, N in sizes]

    def run(A, B):
        D = function(A, B, **options)
        return D, *grads(D, A, B)[0]

    want, *_ = ([run(A, B) for A, B in cases] for _ in range(4))
    with monkeypatch.context() as patch:
        patch.setattr(tensors, "read", lambda *_: pytest.fail("not repeated by the compiled call"))
        got = [run(A, B) for A, B in cases]
    for results, expected in zip(got, want, strict=True):
        for result, first in zip(results, expected, strict=True):
            assert_same(result, first)
