"""Operands as users have them: vectors, truth values, tensors of PyTorch; sparse and complex ones with what to do."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma, reference

GENERATOR = np.random.default_rng(5)
HALF = mma.spec("A100", "fp16")
MULTIPLY = {
    "sgemm": lambda A, B, C=None: fpemu.gemm(A, B, C, beta=0 if C is None else 1, scheme="sgemm"),
    "ootomo": lambda A, B, C=None: fpemu.gemm(A, B, C, beta=0 if C is None else 1, scheme="ootomo", hardware="A100"),
    "ozaki2": lambda A, B, C=None: (
        fpemu.certify(A, B, C, beta=0 if C is None else 1, scheme="ozaki2", hardware="A100").D
    ),
    "mma.gemm": lambda A, B, C=None: mma.gemm(A, B, C, HALF),
    "mma.execute": lambda A, B, C=None: mma.execute(A, B, C, HALF),
    "mma.chain": lambda A, B, C=None: mma.chain([(A, B)], C, HALF),
    "reference": lambda A, B, C=None: reference.matmul(A, B, C, beta=0 if C is None else 1),
}
SHAPES = [((16,), (16,)), ((16,), (16, 3)), ((5, 16), (16,)), ((2, 5, 16), (16,)), ((16,), (4, 16, 3))]


def _integers(shape):
    """Integers whose products are exact in every format."""
    return GENERATOR.integers(-8, 9, shape).astype(np.float32)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("multiply", MULTIPLY)
def test_vectors_are_those_of_numpy(multiply, shapes):
    A, B = map(_integers, shapes)
    expected = np.matmul(A, B)
    C = _integers(expected.shape)
    for D, right in ((MULTIPLY[multiply](A, B), expected), (MULTIPLY[multiply](A, B, C), expected + C)):
        assert np.shape(D) == np.shape(right)
        assert (right == D).all()


@pytest.mark.parametrize("multiply", MULTIPLY)
def test_shapes_that_do_not_fit_are_refused(multiply):
    for A, B in (((16,), (3, 16)), ((3,), (16,)), ((), (16,)), ((16,), ())):
        with pytest.raises(InputError):
            MULTIPLY[multiply](np.ones(A), np.ones(B))
    with pytest.raises(InputError, match="C"):
        MULTIPLY[multiply](np.ones(16), np.ones((16, 3)), np.ones((1, 5)))


@pytest.mark.parametrize("multiply", MULTIPLY)
def test_truth_values_are_0_and_1(multiply):
    A, B = GENERATOR.random((4, 16)) < 0.5, GENERATOR.random((16, 3)) < 0.5
    D = MULTIPLY[multiply](A, B)
    assert (A.astype(int) @ B.astype(int) == D).all()
    assert fpemu.round_to(A, "fp16").tolist() == A.tolist()


@pytest.mark.parametrize("multiply", MULTIPLY)
def test_sparse_matrices_are_refused_and_complex_ones_by_instructions(multiply):
    sparse = pytest.importorskip("scipy.sparse")
    for matrix in (sparse.csr_matrix(np.eye(16)), sparse.coo_array(np.eye(16))):
        with pytest.raises(InputError, match=r"A is a sparse matrix \(c.*\): give its entries, A\.toarray\(\)"):
            MULTIPLY[multiply](matrix, np.eye(16))
    A, B = _integers((16, 16)), np.eye(16) * 1j
    if multiply.startswith("mma"):
        with pytest.raises(InputError, match=r"B takes real numbers.*complex128.*fpemu\.gemm multiplies them.*B\.real"):
            MULTIPLY[multiply](A, B)
    else:
        assert (MULTIPLY[multiply](A, B) == A * 1j).all()


FORMATS = {"bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float16": "fp16", "float32": None}


@pytest.mark.parametrize("dtype", FORMATS)
def test_tensors_of_pytorch(dtype):
    torch = pytest.importorskip("torch")
    A, B = (torch.tensor(_integers((16, 16)) / 8).to(getattr(torch, dtype)) for _ in "AB")
    a, b = A.float().numpy(), B.float().numpy()
    for X in (A, A.T.contiguous().T, A.clone().requires_grad_(), torch._neg_view(-A) if dtype == "float32" else A):
        assert (fpemu.round_to(X, "fp32") == a).all()
        assert (fpemu.gemm(X, B, scheme="sgemm") == fpemu.gemm(a, b, scheme="sgemm")).all()
        assert (reference.matmul(X, B) == reference.matmul(a, b)).all()
    spec = mma.spec("H100", FORMATS[dtype] or "tf32")
    part = slice(None), slice(0, spec.k)
    if spec.k <= 16:
        D = mma.execute(A[part].requires_grad_(), B.T[part].T, None, spec)
        assert D.tobytes() == mma.execute(a[part], b.T[part].T, None, spec).tobytes()
    D = mma.gemm(A, B, spec=spec)
    assert fpemu.verify(torch.tensor(D), A.requires_grad_(), B, hardware="H100", fmt=FORMATS[dtype] or "tf32").equal


def test_tensors_that_numpy_cannot_hold_are_refused():
    torch = pytest.importorskip("torch")
    for A in (torch.ones(2, 2).to_sparse(), torch.ones(2, 2, device="meta")):
        with pytest.raises(InputError, match="A is no array"):
            fpemu.gemm(A, np.ones((2, 2)), scheme="sgemm")
    assert (fpemu.gemm(torch.ones(2, 2) * 1j, np.ones((2, 2)), scheme="sgemm") == 2j).all()


def test_subnormal_numbers_that_pytorch_flushes():
    torch = pytest.importorskip("torch")
    torch.set_flush_denormal(True)
    try:
        D = fpemu.gemm([[2.0**-100]], [[2.0**-40]], scheme="sgemm").view(np.uint32)
        R = reference.matmul([[1e-200]], [[1e-120]]).view(np.uint64)
        x = fpemu.round_to(torch.tensor([1], dtype=torch.int16).view(torch.bfloat16), "fp32").view(np.uint32)
        certified = fpemu.certify([[1e-200]], [[1e-120]], scheme="ozaki", hardware="A100", mode="CR").D.view(np.uint64)
    finally:
        torch.set_flush_denormal(False)
    assert (D.item(), x.item()) == (2**9, 2**16)
    assert R.item() == certified.item() == np.float64(1e-320).view(np.uint64)
