"""`fpemu.torch`: operators, gradients, compiled functions and routed products have the bits of the emulator.

The tests run on the GPU where PyTorch finds one, otherwise on the CPU, where the operators emulate an H200.
"""

from __future__ import annotations

from importlib.util import find_spec
from threading import Thread

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.gpu.gemm import choice
from fpemu.mma import KOrder

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fpemu.torch import gemm, hcgemm, hgemm, matmul, multiply, operators

ON_A_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_A_GPU else "cpu"
HALF, WIDE = torch.float16, torch.float64
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not ON_A_GPU, reason="needs a GPU")]
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    # of inductor, of cuBLAS in another thread, of nested tensors, of vmap, of opcheck and of torch.jit.trace
    *(
        pytest.mark.filterwarnings(f"ignore:{text}")
        for text in (
            "TensorFloat32",
            "Attempting to run",
            "The PyTorch API",
            "There is a performance drop",
            "The .grad attribute of a Tensor that is not a leaf",
            "`torch.jit",
        )
    ),
]


def draw(*shape, dtype=torch.float32, grad=False):
    values = np.random.default_rng([7, *shape]).standard_normal(shape)
    return torch.tensor(values).to(dtype).to(DEVICE).requires_grad_(grad)


def arrays(*tensors):
    return [None if X is None else X.detach().resolve_neg().cpu().numpy() for X in tensors]


def emulated(A, B, C=None, scheme="staged", **options):
    """The product of an H200 by the emulator."""
    hardware = {"hardware": "H200"} if fpemu.schemes.get(scheme).needs_hardware else {}
    return fpemu.gemm(*arrays(A, B, C), scheme=scheme, **hardware | options)


def half(A, B, C=None, **options):
    """The batched product of an H200 by the emulator."""
    where = {"hardware": "H200", "instruction": "mma"} if options.get("kernel") != "magma-small" else {}
    function = fpemu.batched.hcgemm if "layout" in options else fpemu.batched.hgemm
    return function(*arrays(A, B, C), **where, **options)


def chains(A, B):
    """The tall and skinny product by the emulator."""
    return fpemu.simt.tsm2(*arrays(A, B), fmt="fp64" if A.dtype == WIDE else "fp32")


def assert_same(*pairs):
    """Compare pairs of a tensor and the tensor or array that it must equal."""
    for got, want in zip(pairs[::2], pairs[1::2], strict=True):
        (got,), want = arrays(got), np.asarray(arrays(want)[0] if isinstance(want, Tensor) else want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes()


def grads(D, *inputs):
    """The gradients of the sum of D weighted by random numbers, and these."""
    weights = draw(*D.shape, dtype=D.dtype)
    return *torch.autograd.grad(D, inputs, weights), weights


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="inductor" if ON_A_GPU else "aot_eager", **options)


# --- the operator of gemm
STAGED = fpemu.schemes.staged.Staged(stage=128)
PRODUCTS = [
    *({"scheme": name} for name in ("staged", "ootomo", "legemm", "bf16x6", "sgemm", "dgemm", "ozaki", STAGED)),
    {"scheme": STAGED, "stage": 32},  # the option of the call replaces the scheme's
    {"scheme": "ootomo", "on_range": "scale-rows", "promote": None},
    {"scheme": "ootomo", "high_rounding": "RZ", "residual_scale": 1024, "promote": np.int64(64)},
    {"scheme": "ootomo", "products": ["rr", "hh", "rh", "hr"], "order": KOrder(split=16)},
    *([] if ON_A_GPU else [{"scheme": "fp16", "hardware": "V100"}]),
]


@pytest.mark.parametrize("options", PRODUCTS, ids=str)
def test_products_have_the_emulators_bits(options):
    dtype = WIDE if options["scheme"] in ("dgemm", "ozaki") else torch.float32
    A, B, C = draw(33, 170, dtype=dtype), draw(170, 20, dtype=dtype), draw(33, 20, dtype=dtype)
    D, E = gemm(A, B, **options), gemm(A, B, C, alpha=np.float32(0.75), beta=-2, **options)
    assert D.device == A.device
    assert D.is_contiguous()
    assert_same(D, emulated(A, B, **options), E, emulated(A, B, C, alpha=0.75, beta=-2, **options))


def test_the_order_is_the_order_of_the_kernel():
    A, B, staged = draw(8, 8192), draw(8192, 16), fpemu.schemes.get("staged")
    kernel = choice.find(staged, staged.spec("H200"), (8, 16, 8192), None) if not ON_A_GPU else None
    order = (kernel or fpemu.gpu.kernel("staged", 8, 16, 8192)).order
    D = gemm(A, B, scheme="staged")
    assert_same(D, emulated(A, B, order=order), gemm(A, B, scheme="staged", order=KOrder()), emulated(A, B))
    assert not np.array_equal(*arrays(D), emulated(A, B))  # K is split


@pytest.mark.parametrize("shapes", ["1,1 1,1", "0,3 3,2", "4,0 0,2", "0,4,3 3,2", "2,1,5,6 3,6,7", "5,6 2,2,6,3"])
def test_shapes_without_entries_and_broadcast_batches(shapes):
    A, B = (draw(*map(int, shape.split(","))) for shape in shapes.split())
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    C = draw(3, *(1 for _ in batch), A.shape[-2], B.shape[-1])
    D, E = gemm(A, B, scheme="staged"), gemm(A, B, C, scheme="staged", beta=1)
    assert_same(D, emulated(A, B), E, emulated(A, B, C, beta=1))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32, WIDE], ids=str)
def test_operators_pass_pytorchs_checks_for_every_dtype_and_view(dtype, strided):
    ops, wide = torch.ops.fpemu, torch.promote_types(dtype, torch.float32)
    for (M, K, N), grad in (((5, 6, 7), 0), ((1, 6, 1), 1), ((0, 6, 7), 1), ((5, 0, 7), 0)):
        A, B = draw(M, K, dtype=dtype), draw(K, N, dtype=dtype)
        A, B = (torch._neg_view(-A), torch.stack((B, B), -1)[..., 1]) if strided else (A, B.mT.contiguous().mT)
        (B if grad else A).requires_grad_()
        a, b = A.detach().to(wide), B.detach().to(wide)
        check(ops.tallskinny, A, B, want=chains(a, b))
        check(ops.gemm, A, B, None, "dgemm", want=emulated(a, b, None, "dgemm"))
        if dtype == HALF:
            check(ops.batched, A, B, None, want=half(A, B))
    if dtype == torch.float32:
        A, B, C = draw(2, 5, 6, grad=True), draw(6, 7, grad=True), draw(3, 2, 5, 7, grad=True)
        want = emulated(A, B, C, "ootomo", alpha=0.5, beta=2.0, promote=None)
        check(ops.gemm, A, B, C, "ootomo", 0.5, 2.0, "{'promote': None}", want=want)
        X, Y = draw(2, 5, 6, 2, dtype=HALF), draw(6, 7, 2, dtype=HALF)
        want = half(X, Y, layout="interleaved", alpha=1j)
        check(ops.batched, X, Y, None, "interleaved", 1j, 0.0, "{'transa': 'N'}", want=want)


def check(operator, *arguments, want):
    torch.library.opcheck(operator.default, arguments, test_utils=CHECKS)
    assert_same(operator(*arguments), want)


# --- gradients
def test_gradients_are_products_by_the_scheme():
    A, B, C = draw(33, 70, grad=True), draw(70, 20, grad=True), draw(33, 20, grad=True)
    options = {"scheme": "ootomo", "alpha": 0.3, "promote": 64}
    dA, dB, dC, dD = grads(gemm(A, B, C, beta=-2, **options), A, B, C)
    assert_same(dA, emulated(dD, B.mT, **options), dB, emulated(A.mT, dD, **options), dC, -2 * dD)
    a, b = draw(33, 70, dtype=torch.bfloat16, grad=True), B.detach()
    da, dB, dD = grads(gemm(a, B, scheme="staged"), a, B)
    assert_same(da.float(), torch.from_numpy(emulated(dD, B.mT)).to(a.dtype).float(), dB, emulated(a.float().mT, dD))
    for D in (gemm(A.detach(), b, C, scheme="staged", beta=2.0), torch.ops.fpemu.gemm(a, b, C, "staged", 1.0, 2.0)):
        dC, dD = grads(D, C)
        assert_same(dC, 2 * dD)
    assert torch.autograd.grad(gemm(A, B, C, scheme="staged").sum(), C, allow_unused=True) == (None,)
    assert not gemm(A.detach(), b, scheme="staged").requires_grad
    with torch.no_grad():
        assert not gemm(A, B, scheme="staged").requires_grad
    with torch.inference_mode():
        assert gemm(A, B, scheme="staged").is_inference()


def test_gradients_summed_over_broadcast_batches_are_one_product():
    A, B, C = draw(3, 1, 5, 6, grad=True), draw(4, 6, 7, grad=True), draw(2, 1, 4, 5, 7, grad=True)
    dA, dB, dC, dD = grads(gemm(A, B, C, scheme="staged", beta=1.0), A, B, C)
    assert dD.shape == (2, 3, 4, 5, 7)
    # dA[i] sums over the batch axes (p, j) and N, dB[j] over (p, i) and M
    left = dD.permute(1, 3, 0, 2, 4).reshape(3, 5, 2 * 4 * 7)
    right = B.expand(2, 3, 4, 6, 7).permute(1, 0, 2, 4, 3).reshape(3, 2 * 4 * 7, 6)
    assert_same(dA, emulated(left, right)[:, None])
    left = A.expand(2, 3, 4, 5, 6).permute(2, 4, 0, 1, 3).reshape(4, 6, 2 * 3 * 5)
    right = dD.permute(2, 0, 1, 3, 4).reshape(4, 2 * 3 * 5, 7)
    assert_same(dB, emulated(left, right), dC, dD.sum(1, keepdim=True))


def test_second_derivatives_are_products_by_the_scheme():
    A, B, dD, w = draw(5, 6, grad=True), draw(6, 7, grad=True), draw(5, 7), draw(5, 6)
    for D in (gemm(A, B, scheme="staged"), torch.ops.fpemu.gemm(A, B, None, "staged")):
        (dA,) = torch.autograd.grad(D, A, dD, create_graph=True)
        assert_same(torch.autograd.grad(dA, B, w)[0], emulated(dD.mT, w).T)


# --- batched, and tall and skinny
def test_hgemm_and_its_gradients():
    A, B, C = (draw(*s, dtype=HALF, grad=True) for s in ((4, 9, 8), (7, 9), (4, 8, 7)))
    plain = {"alpha": 0.5, "accumulate": "fp16"}
    D = hgemm(A, B, C, beta=2.0, transa="T", transb="t", **plain)
    assert_same(D, half(A, B, C, beta=2.0, transa="T", transb="T", **plain))
    dA, dB, dC, dD = grads(D, A, B, C)
    assert_same(dA, half(dD, B, **plain).swapaxes(1, 2), dC, 2.0 * dD)
    assert_same(dB, half(A.permute(1, 0, 2).reshape(9, 32), dD.reshape(32, 7), **plain).T)


@pytest.mark.parametrize("shapes", [((100, 8, 8), (8, 8)), ((8, 9), (4, 1, 5, 9, 3))], ids=str)
def test_gradients_of_magma_small_over_a_broadcast_batch_are_sums_of_products(shapes):
    (A, B), options = (draw(*shape, dtype=HALF, grad=True) for shape in shapes), {"alpha": 0.5, "kernel": "magma-small"}
    D = hgemm(A, B, **options)
    dA, dB, dD = grads(D, A, B)
    products = [torch.from_numpy(half(*X, **options)).to(DEVICE) for X in ((dD, B.mT), (A.mT, dD))]  # K of 9 at most
    assert_same(D, half(A, B, **options), dA, products[0].sum_to_size(A.shape), dB, products[1].sum_to_size(B.shape))


@pytest.mark.parametrize("kernel", ["tensor", "magma-small"])
@pytest.mark.parametrize("layout", ["interleaved", "planar"])
@pytest.mark.parametrize(("transa", "transb"), [("N", "N"), ("T", "C"), ("C", "T"), ("C", "N")])
def test_hcgemm_and_its_gradients(layout, transa, transb, kernel):
    def parts(z):
        """Complex numbers of small integers as fp16 in the layout: all products are exact."""
        pair = torch.stack((z.real, z.imag), 0 if layout == "planar" else -1)
        return pair.to(HALF).to(DEVICE).requires_grad_()

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
    D = hcgemm(A, B, C, alpha=1 + 2j, beta=np.complex64(-1j), transa=transa, transb=transb, **options)
    for z in (a, b, c):
        z.requires_grad_()
    want = (1 + 2j) * (op(a, transa) @ op(b, transb)) - 1j * c
    assert_same(D, parts(want))
    got = torch.autograd.grad(D, (A, B, C), W)
    for dX, dz in zip(got, torch.autograd.grad(want, (a, b, c), w.to(want)), strict=True):
        assert torch.equal(dX, parts(dz))


def test_the_algorithms_of_hcgemm_are_options():
    A, B, X = draw(3, 9, 8, 2, dtype=HALF), draw(8, 7, 2, dtype=HALF), draw(3, 8, 9, 2, dtype=HALF)
    for Y, options in ((A, {"products": 3}), (A, {"algorithm": "calls"}), (X, {"algorithm": "calls", "transa": "C"})):
        assert_same(hcgemm(Y, B, **options), half(Y, B, layout="interleaved", **options))
    P, Q = A.movedim(-1, 0).detach().requires_grad_(), B.movedim(-1, 0)
    D = hcgemm(P, Q, layout="planar", algorithm=None)
    dP, dD = grads(D, P)
    assert_same(D, half(P, Q, layout="planar"), dP, half(dD, Q, layout="planar", transb="C"))


@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_multiply_and_its_gradients(dtype):
    A, B = draw(300, 9, dtype=dtype, grad=True), draw(9, 4, dtype=dtype, grad=True)
    C = multiply(A, B)
    dA, dB, dC = grads(C, A, B)
    assert_same(C, chains(A, B), dA, chains(dC, B.mT), dB, chains(A.mT, dC))
    assert multiply(A[:0], B).shape == (0, 4)


# --- torch.compile
def test_compiled_functions_have_the_same_bits_and_gradients():
    def function(A, B, C, X, Y):
        D = gemm(A, B, C, scheme="staged", alpha=2, beta=0.5, stage=128, on_range="propagate")
        Z = hcgemm(X, Y, alpha=1j, transb="C", layout="planar", algorithm="fused")
        return 2 * D + multiply(A, B), 2 * hgemm(X, Y, alpha=2.0), Z.abs()

    A, B, C = draw(33, 70, grad=True), draw(70, 20, grad=True), draw(33, 20, grad=True)
    X, Y = draw(2, 4, 4, dtype=HALF, grad=True), draw(2, 4, 4, dtype=HALF, grad=True)
    for got, want in zip(compiled(function)(A, B, C, X, Y), function(A, B, C, X, Y), strict=True):
        assert_same(got, want)
    D = compiled(lambda A, B: gemm(A, B, scheme="staged"))(A, B)
    dA, dB, dD = grads(D, A, B)
    assert_same(D, emulated(A, B), dA, emulated(dD, B.mT), dB, emulated(A.mT, dD))
    product = compiled(lambda A, B: gemm(A, B, scheme="staged"), dynamic=True)
    for M, N, K in ((33, 20, 70), (5, 6, 7), (64, 64, 64)):
        A, B = draw(M, K), draw(K, N)
        assert_same(product(A, B), emulated(A, B))


def test_routed_products_compile_within_and_around_the_function():
    def within(A, B):
        with matmul("ootomo", promote=64):
            D = A @ B
        return D, torch.mm(A, B)

    def around(A, B, bias):
        return torch.addmm(bias, A, B), functional.linear(A, B.mT, bias), torch.mm(A, mat2=B)

    A, B, bias = draw(33, 70, grad=True), draw(70, 20), draw(20)
    D, plain = compiled(within)(A, B)
    assert_same(D, emulated(A, B, scheme="ootomo", promote=64), plain, torch.mm(A, B))
    function, C = compiled(around), bias.expand(33, 20)
    for scheme in ("staged", "ootomo"):  # the function is compiled again for another context, and for none
        with matmul(scheme):
            D, E, F = function(A, B, bias)
        want, (dA, dD) = emulated(A, B, C, scheme=scheme, beta=1.0), grads(D, A)  # after the context
        assert_same(D, want, E, want, F, emulated(A, B, scheme=scheme), dA, emulated(dD, B.mT, scheme=scheme))
        assert_same(function(A, B, bias)[2], plain)


def test_exported_modules_contain_the_operator():
    class Model(torch.nn.Linear):
        def forward(self, X):
            with matmul("staged", stage=128):
                return super().forward(X)

    class OnTheGpu(torch.nn.Module):
        def forward(self, A, B):
            return fpemu.gpu.gemm(A, B, scheme="staged", stage=128, order=KOrder(split=2)) + 1

    model, X = Model(16, 8).to(DEVICE), draw(3, 16)
    program = torch.export.export(model, (X,))
    assert_same(program.module()(X), model(X))
    with FakeTensorMode():
        operands = torch.empty(4, 8, device="cuda"), torch.empty(8, 6, device="cuda")
        traced = torch.export.export(OnTheGpu(), operands, strict=True)
    for graph, options in ((program.graph, "'stage': 128"), (traced.graph, "'order': {'split': 2}")):
        assert "torch.ops.fpemu.gemm" in str(graph)
        assert options in str(graph)


# --- the context manager
def test_products_within_the_context_are_those_of_the_scheme():
    shapes = (33, 70), (70, 20), (20,), (3, 33, 70), (3, 70, 20)
    A, B, c, a, b = (draw(*shape) for shape in shapes)

    def products():
        for call in (torch.matmul, torch.linalg.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm):
            yield call(A, B), A, B, None
        yield B.__rmatmul__(A), A, B, None
        yield torch.mm(A, B, out=A.new_empty(0)), A, B, None
        for X, Y in ((a, B), (A, b), (a, b)):
            yield X @ Y, X, Y, None
        yield torch.bmm(a, b), a, b, None
        yield a.bmm(mat2=b), a, b, None
        yield functional.linear(A, B.mT), A, B, None
        yield functional.linear(a, B.mT, c), a, B, c
        for D in (torch.addmm(c, A, B), c.addmm(A, mat2=B), c.expand(33, 20).clone().addmm_(A, B)):
            yield D, A, B, c
        for D in (torch.baddbmm(c, a, b), c.baddbmm(batch1=a, batch2=b), c.expand(3, 33, 20).clone().baddbmm_(a, b)):
            yield D, a, b, c

    with matmul("staged"):
        routed = list(products())
    for (D, X, Y, addend), (plain, *_) in zip(routed, products(), strict=True):
        C = None if addend is None else addend.expand(D.shape)
        assert_same(D, emulated(X, Y, C, beta=float(C is not None)))
        assert not torch.equal(D, plain)


def test_vectors_scalars_and_empty_matrices_are_routed():
    A, x, y, stack = draw(33, 70), draw(70), draw(33), draw(2, 3, 33, 70)
    with matmul("staged"):
        assert_same(A @ x, emulated(A, x[:, None])[:, 0], y @ A, emulated(y[None], A)[0])
        assert_same(x @ x, emulated(x[None], x[:, None])[0, 0], functional.linear(x, A), emulated(x[None], A.mT)[0])
        assert_same(stack @ x, emulated(stack.reshape(-1, 70), x[:, None]).reshape(2, 3, 33))
        assert_same(y @ stack, emulated(y[None], stack)[..., 0, :], A[:0] @ x[:, None], A.new_empty(0, 1))
        assert_same(A[:, :0] @ x[:0, None], np.zeros((33, 1), np.float32))
        assert_same(torch.addmm(y, A[:, :0], A.new_empty(0, 33)), y.expand(33, 33))
        assert_same(torch.addmm(torch.full((1, 33), np.nan, device=DEVICE), A, A.mT, beta=0), emulated(A, A.mT))
        assert_same(torch.addmm(y, A, A.mT, beta=2, alpha=3), emulated(A, A.mT, y.expand(33, 33), alpha=3, beta=2))
        assert_same(torch.addmm(y, A, A.mT, beta=False, alpha=torch.tensor(3.0)), emulated(A, A.mT, alpha=3))


@pytest.mark.parametrize("scheme", ["staged", "ozaki2", "ozimmu"])
def test_complex_products_and_their_gradients(scheme):
    single = scheme == "staged"
    kind, alpha = torch.complex64 if single else torch.complex128, 0.5 - 2j
    A, B, C = (draw(*shape, 2, dtype=kind.to_real()) for shape in ((2, 9, 20), (20, 7), (9, 7)))
    A, B, C = (torch.view_as_complex(X).requires_grad_() for X in (A, B, C))

    def product(X, Y, Z=None, **scalars):
        sizes = X.shape[-2], 2 * Y.shape[-1], 2 * X.shape[-1]
        order = {"order": operators.kernel_order(scheme, "", *sizes)} if single else {}
        X, Y, Z = (W if W is None else W.detach().resolve_conj() for W in (X, Y, Z))
        return emulated(X, Y, Z, scheme=scheme, hardware="H200", **order, **scalars)

    def parts(X):
        return torch.view_as_real(X if isinstance(X, Tensor) else torch.tensor(X))

    D, conjugate = gemm(A, B, C, scheme=scheme, alpha=alpha, beta=0.5j), alpha.conjugate()
    dD = torch.view_as_complex(draw(*D.shape, 2, dtype=kind.to_real()) - 0.25)
    dA, dB, dC = torch.autograd.grad(D, (A, B, C), dD)
    rows = A.detach().flatten(0, 1), dD.flatten(0, 1)  # the batch is part of the sums of dB
    assert_same(parts(D), parts(product(A, B, C, alpha=alpha, beta=0.5j)))
    assert_same(parts(dA), parts(product(dD, B.mH, alpha=conjugate)), parts(dC), parts((-0.5j * dD).sum(0)))
    assert_same(parts(dB), parts(product(rows[0].mH, rows[1], alpha=conjugate)))
    X = A.real.detach().contiguous().requires_grad_()  # a real operand has a real gradient
    D = gemm(X, B, scheme=scheme)
    (dX,) = torch.autograd.grad(D, (X,), dD)
    assert_same(dX, product(dD, B.mH).real)
    mode = FakeTensorMode()
    operands = [mode.from_tensor(Y.detach().cpu()) for Y in (X, B)]
    with mode:
        fake = gemm(*operands, scheme=scheme, alpha=1j)
    assert (fake.dtype, fake.shape) == (kind, D.shape)


def test_other_dtypes_and_layouts_run_unchanged():
    cases = [(draw(9, 8, dtype=dtype), draw(8, 7, dtype=dtype)) for dtype in (WIDE, HALF, torch.complex64)]
    cases += [(torch.eye(4).to_sparse(), torch.eye(4))]
    stack, B = torch.nested.nested_tensor([draw(2, 4), draw(3, 4)]), draw(5, 4)
    with matmul("staged"):
        results, D = [X @ Y for X, Y in cases], functional.linear(stack, B)
    for result, (X, Y) in zip(results, cases, strict=True):
        assert_same(result, X @ Y)
    assert_same(D[1], functional.linear(stack, B)[1])  # PyTorch may sum the product of stack[1] alone in another order


@pytest.mark.parametrize("name", ["matmul", "linalg.matmul", "mm", "bmm", "addmm", "baddbmm", "linear"])
def test_an_output_that_pytorch_refuses_raises_its_error(name):
    functions = {"linalg.matmul": torch.linalg.matmul, "linear": functional.linear}
    function, stack = functions.get(name) or getattr(torch, name), (2,) if "bmm" in name else ()
    operands = [draw(*stack, 4, 4) for _ in range(3 if "add" in name else 2)]
    recorded, out = [*operands[:-1], operands[-1].clone().requires_grad_()], torch.zeros(*stack, 4, 4, device=DEVICE)
    with matmul("staged"):
        for arguments, result, message in (
            (operands, out.half(), "dtype"),
            (operands, out.to("meta"), "device"),
            (recorded, out, "automatic differentiation"),
            (operands, out.clone().requires_grad_(), "automatic differentiation"),
        ):
            with pytest.raises(RuntimeError, match=message):
                function(*arguments, out=result)
        assert not out.any()
        with torch.no_grad():
            assert function(*recorded, out=out) is out
        assert_same(out, function(*operands))
        if "add" in name:  # a scalar of the CPU is no operand
            assert_same(function(*operands, alpha=torch.tensor(1.0), out=out), function(*operands))


def test_contexts_nest_and_apply_to_their_thread():
    A, B, results = draw(33, 70), draw(70, 20), []
    a, b, plain, outer = A.double(), B.double(), A @ B, matmul("staged")
    with outer:
        with matmul("ootomo"), outer:
            assert_same(A @ B, emulated(A, B))
        with matmul("ootomo"):
            assert_same(A @ B, emulated(A, B, scheme="ootomo"))
        with matmul("ozaki", mode="CR"):
            assert_same(A @ B, emulated(A, B), a @ b, emulated(a, b, scheme="ozaki", mode="CR"))
        with pytest.raises(InputError), matmul("ootomo"):
            A @ A
        thread = Thread(target=lambda: results.append(A @ B))
        thread.start()
        thread.join()
        assert_same(A @ B, emulated(A, B))
    assert_same(A @ B, plain, results[0], plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_of_routed_products_are_those_of_the_scheme(reentrant):
    def function(A, B):
        with matmul("staged"):
            return A @ B

    A, B, c = draw(3, 33, 70, grad=True), draw(70, 20, grad=True), draw(20, grad=True)
    with matmul("staged"):
        D = functional.linear(A, B.mT, c)
    dA, dB, dc, dD = grads(D, A, B, c)
    d = dD.reshape(99, 20)
    assert_same(dA, emulated(d, B.mT).reshape(3, 33, 70), dB, emulated(A.reshape(99, 70).mT, d), dc, d.sum(0))
    checkpoint(function, A, B, use_reentrant=reentrant).backward(dD)
    assert_same(A.grad, dA, B.grad, dB)


# --- transformations and observers of operators
def test_transformations_of_torch_func_apply_to_products():
    A, B, W, P = draw(3, 9, 8), draw(8, 7), draw(9, 7), draw(9, 8, grad=True)
    vmap, derivative = torch.func.vmap, torch.func.grad

    def product(a, b):
        return gemm(a, b, scheme="staged")

    def weighted(a, b):
        return (product(a, b) * W).sum()

    first, dA, dB = derivative(weighted), emulated(W, B.mT), emulated(A[0].mT, W)
    assert_same(vmap(product, (0, None))(A, B), emulated(A, B), first(A[0], B), dA)
    assert_same(vmap(first, (0, None))(A, B), np.stack([dA] * 3))
    assert_same(vmap(derivative(weighted, argnums=1), (0, None))(A, B), np.stack([emulated(a.mT, W) for a in A]))
    assert_same(derivative(lambda stack: vmap(weighted, (0, None))(stack, B).sum())(A), np.stack([dA] * 3))
    assert_same(derivative(lambda b: (first(A[0], b) * A[1]).sum())(B), emulated(W.mT, A[1]).T)
    pulled = torch.func.vjp(product, A[0], B)[1](W)
    assert_same(pulled[0], dA, pulled[1], dB)
    scaled = vmap(lambda x: x * weighted(P, B))(torch.ones(2, device=DEVICE))  # P is no operand of vmap
    assert_same(torch.autograd.grad(scaled[0], P)[0], dA)
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(product, (A[0], B), (A[0], B))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        product(forward_ad.make_dual(A, A), B)


def test_modes_tracers_and_profilers_observe_the_operator():
    A, B, seen, packet = draw(9, 8), draw(8, 7), [], torch.ops.fpemu.gemm

    def call(X, Y):
        return gemm(X, Y, scheme="staged")

    def observe(self, function, types, args=(), kwargs=None):
        seen.append(function)
        return function(*args, **(kwargs or {}))

    want = emulated(A, B)
    for base, method in ((TorchDispatchMode, "__torch_dispatch__"), (TorchFunctionMode, "__torch_function__")):
        with type("Observer", (base,), {method: observe})():
            assert_same(call(A, B), want)
        assert packet in [getattr(function, "overloadpacket", None) for function in seen]
        seen.clear()
    with torch.autograd.profiler.profile() as profile:
        call(A, B)
    assert "fpemu::gemm" in [event.key for event in profile.key_averages()]
    for X in (A, A.clone().requires_grad_()):
        assert "fpemu::gemm" in str(torch.jit.trace(lambda a, b: call(a, b) + 1, (X, B)).graph)
    assert packet.product in [node.target for node in make_fx(call)(A, B).graph.nodes]


# --- errors
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A, C: gemm(A, A.cpu().numpy(), scheme="staged"), "Tensor, ndarray, NoneType as A, B, C: pass torch"),
        (lambda A, C: gemm(A, A, scheme="stagd"), "did you mean 'staged'"),
        (lambda A, C: gemm(A, A, scheme="staged", stage=object()), "stage = <object"),
        (lambda A, C: gemm(A, A, scheme="staged", beta=1.0), "beta = 1.0 needs C"),
        (lambda A, C: gemm(1e6 * A, A, scheme="ootomo", on_range="raise"), "overflows"),
        (lambda A, C: matmul("staged", stge=1), "did you mean 'stage'"),
        # also of tensors without entries
        (lambda A, C: gemm(A, A[:3], scheme="staged"), "A has 4 columns and B 3 rows"),
        (lambda A, C: gemm(A[0], A, scheme="staged"), "A must be a matrix"),
        (lambda A, C: gemm(A, A, C, scheme="staged"), "C of shape (1, 4) does not fit"),
        (lambda A, C: hgemm(A, A), "float16"),
        (lambda A, C: hgemm(A.half(), A.half(), C.half(), beta=1.0), "C of shape (1, 4) does not fit"),
        (lambda A, C: hcgemm(A.half(), A.half(), layout="X"), "layout"),
        (lambda A, C: multiply(A, A.double()), "A has float32 and B float64"),
        (lambda A, C: multiply(A[None], A), "A has shape (1, 4, 4): one matrix, with two axes, is needed"),
    ],
)
def test_the_message_states_what_is_wrong(call, message, request):
    operands = draw(4, 4), draw(1, 4)
    with pytest.raises(InputError) as caught:
        call(*operands)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    if request.node.callspec.indices["call"] >= 6:
        with FakeTensorMode() as mode, pytest.raises(InputError) as caught:
            call(*(mode.from_tensor(X) for X in operands))
        assert message in str(caught.value)


# --- the functions of a GPU
def test_products_of_a_gpu_receive_every_argument(monkeypatch):
    received, modules = [], (fpemu.gpu, fpemu.gpu.batched, fpemu.gpu.batched, fpemu.gpu.tallskinny)
    for module, name in zip(modules, ("gemm", "hgemm", "hcgemm", "multiply"), strict=True):
        monkeypatch.setattr(module, name, lambda *given, name=name, **named: received.append((name, given, named)))
    with FakeTensorMode():
        A, B, C = (torch.empty(2, 2, device="cuda") for _ in range(3))
    scalars, options = {"alpha": 2.0, "beta": 3.0}, "{'stage': 64, 'order': {'split': 8}, 'on_range': 'scale'}"
    operators.gemm_product(A, B, C, "staged", 2.0, 3.0, options)
    operators.gemm_product(A, B, None, "ootomo")
    operators.batched_product(A, B, C, None, 2.0, 3.0, "{'transa': 'T'}")
    operators.batched_product(A, B, C, "planar", 2.0, 3.0, "{'products': 3}")
    operators.tallskinny_product(A, B)
    staged = {"scheme": "staged", "stage": 64, "order": KOrder(split=8), "on_range": "scale"}
    assert received == [
        ("gemm", (A, B, C), scalars | staged),
        ("gemm", (A, B, None), {"scheme": "ootomo", "alpha": 1.0, "beta": 0.0}),
        ("hgemm", (A, B, C), scalars | {"transa": "T"}),
        ("hcgemm", (A, B, C), scalars | {"layout": "planar", "products": 3}),
        ("multiply", (A, B), {}),
    ]


class TestOnAGpu:
    pytestmark = on_a_gpu

    def test_compiled_calls_of_gpu_gemm_have_the_same_bits(self):
        A, B, out = draw(64, 64, grad=True), draw(64, 32), draw(64, 32)
        want = fpemu.gpu.gemm(A, B, scheme="staged")
        function = compiled(lambda A, B, out: fpemu.gpu.gemm(A, B, scheme="staged", out=out) + 1)
        D, E = function(A, B, None), function(A, B, out)
        assert not D.requires_grad
        assert_same(D, want + 1, E, want + 1, out, want)
        assert_same(function(A.detach().cpu(), B.cpu(), None), want + 1)

    def test_operands_of_the_gpu_and_the_cpu_do_not_mix(self):
        A = draw(4, 4)
        with pytest.raises((InputError, RuntimeError)):
            gemm(A, A.cpu(), scheme="staged")
        for function, X, options in ((gemm, A, {"scheme": "staged"}), (hgemm, A.half(), {})):
            with pytest.raises((InputError, TypeError), match="hardware"):
                function(X, X, hardware="A100", **options)

    def test_calls_on_parameters_are_captured_in_graphs(self):
        P, B, graph = torch.nn.Parameter(draw(64, 64)), draw(64, 32), torch.cuda.CUDAGraph()
        want = compiled(lambda: gemm(P, B, scheme="staged") + 1)()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph), torch.no_grad():
            D = gemm(P, B, scheme="staged") + 1
        D.zero_()
        graph.replay()
        assert_same(D, want)
