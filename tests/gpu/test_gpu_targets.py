"""Targets and scaling along k on the GPU: their kernels on a processor, and public calls on a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu.arguments import real_factor, real_view
from fpemu.errors import GuaranteeError, InputError
from fpemu.gpu import operation
from fpemu.gpu.errorfree import target
from fpemu.gpu.runtime import compiler, device
from fpemu.schemes.base import build
from fpemu.schemes.call import validate
from fpemu.schemes.errorfree.split import inside
from tests import processor
from tests.processor import matrix, view
from tests.schemes.test_target import SCHEMES, _planted

work = processor.work
KINDS = ("random", "tiny rows", "ranges", "graded", "spread", "zeros")


def numbers(X):
    """The entries of a matrix of the simulated memory."""
    steps = [X.strides[i] for i in range(2)]
    return view(X.pointer, X.shape, steps, X.dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=str)
def test_numbers_and_certificates_are_the_cpus(work, scheme, options, kind):
    single = build(scheme, options).operand.name == "fp32"
    A, B = _planted(kind, 90, dtype=np.float32 if single else np.float64)
    A[5, 7] = np.nan if kind == "spread" else A[5, 7]
    for limit in ("sgemm" if single else "dgemm", 1e-9):
        chosen = build(scheme, options | {"target": limit})
        result, got = target.within(work, chosen, matrix(A), matrix(B), chosen.spec("H200"))
        want = fpemu.certify(A, B, scheme=chosen, hardware="H200").report.certificate
        assert (got.number, got.met) == (want.number, want.met) == (getattr(result, want.counted), want.met)
        assert got.bound == pytest.approx(want.bound, rel=1e-12)
        assert got.at == want.at or not want.met


@pytest.mark.parametrize(
    "options", [{}, {"scaling": "invariant", "rounding": "nearest"}, {"scheme": "ozimmu"}], ids=str
)
@pytest.mark.parametrize("kind", ["random", "ranges", "zeros"])
def test_numbers_for_complex_operands_are_the_cpus(work, options, kind):
    (A, B), (C, D) = _planted(kind, 40, 1), _planted(kind, 40, 2)
    Z, W = A + 1j * C, (B + 1j * D)[:, ::2]
    chosen = build("ozaki2", {}) if "scheme" not in options else build(options["scheme"], {})
    chosen = build(chosen, {name: x for name, x in options.items() if name != "scheme"} | {"target": 1e-10})
    operands = matrix(real_view(Z)), matrix(real_factor(W))
    _, got = target.within(work, chosen, *operands, chosen.spec("H200"), paired=True)
    want = fpemu.certify(Z, W, scheme=chosen, hardware="H200").report.certificate
    assert (got.number, got.met) == (want.number, want.met)
    assert got.bound == pytest.approx(want.bound, rel=1e-12)


@pytest.mark.parametrize("ends", [30, 500, 1000])
@pytest.mark.parametrize("parts", [1, 2])
def test_scaling_along_k_has_the_cpus_bits(work, ends, parts):
    rng = np.random.default_rng(2)
    A, B = (
        rng.standard_normal((*shape, parts)) * 2.0 ** rng.integers(-ends, ends, (*shape, 1))
        for shape in ((5, 12), (12, 4))
    )
    A[:, 3], B[5], A[1, 1, 0], B[0, 0] = 0, 0, 2.0**-1074, 2.0**-1050
    A, B = (X[..., 0] if parts == 1 else X.view(complex)[..., 0] for X in (A, B))
    if parts == 1:
        x, y = inside(A, B)
    else:
        x, y = inside(real_view(A), real_factor(B), paired=True)
        x, y = x.view(complex), np.ascontiguousarray(y[::2]).view(complex)
    for a, b in ((A, B), (A.T.copy().T, B.T.copy().T)):
        X, Y = target.balanced(work, matrix(a), matrix(b))
        assert np.array_equal(numbers(X), x)
        assert np.array_equal(numbers(Y), y)
    with np.errstate(over="ignore"):
        narrow = [X.astype(np.complex64 if parts == 2 else np.float32) for X in (A, B)]
    narrow[0].flat[3] = np.nan
    X, Y = target.balanced(work, *map(matrix, narrow))
    wide = [np.where(np.isfinite(X), X, 0).astype(np.float64) for X in narrow] if parts == 1 else None
    assert np.isnan(numbers(X).flat[3])
    if wide is not None:
        want, same = inside(*wide)[0], np.isfinite(narrow[0])
        assert np.array_equal(numbers(X)[same], want[same])


def test_each_product_of_a_batch_has_its_number_and_scaled_operands(work, monkeypatch):
    (A, B), queued = _planted("random", 30), []
    stack, grade = np.stack([A, A * 2.0 ** np.linspace(-15, 15, 30)]), 2.0 ** np.linspace(-9, 9, 30)
    monkeypatch.setattr(operation.errorfree, "workspace", lambda: work)
    monkeypatch.setattr(operation, "queue", lambda *steps: [work.queue(step) for step in steps])
    monkeypatch.setattr(operation.matrices, "facts_of", lambda *placed: ())
    built = []

    def stub(placed, call):
        built.append(call.scheme)

        def queue(pointers, stream, *, private):
            steps = [X.strides for X in placed[:2]]
            operands = (view(at, X.shape, s, X.dtype).copy() for at, X, s in zip(pointers, placed, steps, strict=False))
            queued.append((call.scheme, *operands))

        return SimpleNamespace(queue=queue)

    monkeypatch.setattr(operation, "_error_free", stub)
    D = matrix(np.zeros((2, 9, 7)))
    for options in ({"target": 1e-12}, {"inside_scaling": True}, {"target": 1e-12, "inside_scaling": True}):
        X, Y = (stack, B) if "inside_scaling" not in options else (stack * grade, B / grade[:, None])
        call = validate(X, Y, None, "ozaki2", "H200", 1.0, 0.0, "raise", None, "cpu", options, form="4M")
        product = operation._FromData.__new__(operation._FromData)
        product.call, product._operations = call, {}
        built.clear()
        for _ in range(2):
            queued.clear()
            product.multiply({"A": matrix(X), "B": matrix(Y), "C": None, "D": D})
        assert len(built) == len(set(built)) <= 2
        want = fpemu.certify(X, Y, scheme="ozaki2", hardware="H200", **options).reports
        for (scheme, a, b), report, x in zip(queued, want, X, strict=True):
            assert (scheme.target, scheme.inside_scaling) == (None, None)
            assert scheme.moduli == (report.certificate and report.certificate.number)
            x, y = inside(x, Y) if "inside_scaling" in options else (x, Y)
            assert np.array_equal(a, x)
            assert np.array_equal(b, y)
    product.call = validate(X, Y, None, "ozaki2", "H200", 1.0, 0.0, "raise", None, "cpu", {"target": 1e-17}, form="4M")
    with pytest.raises(GuaranteeError, match=r"moduli have an error of at most .*the target is 1e-17"):
        product.multiply({"A": matrix(X), "B": matrix(Y), "C": None, "D": D})
    product.call = validate(
        X, Y, None, "ozaki2", "H200", 1.0, 0.0, "raise", None, "cpu", {"target": 1.0, "scaling": "fast"}
    )
    with pytest.raises(InputError, match="scaling='fast' runs on the CPU"):
        product.multiply({"A": matrix(X), "B": matrix(Y), "C": None, "D": D})


@pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
def test_the_kernels_compile():
    for name in ("targets.cu", "scaling.cu"):
        assert compiler.compile(compiler.kernel_source(name), "sm_90a")[:4] == b"\x7fELF"


# --- a GPU
@pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["ozaki2", "ozaki", "ozimmu"])
def test_the_gpus_bits_of_products_with_a_target_equal_the_cpus(scheme, kind):
    A, B = _planted(kind, 500)
    for options in ({"target": 1e-11}, {"inside_scaling": True}, {"target": 1e-9, "inside_scaling": True}):
        for X, Y in ((A, B), (A + 1j * A[::-1], B[:, ::-1] - 2j * B)):
            try:
                want = fpemu.gemm(X, Y, scheme=scheme, hardware="H200", **options)
            except GuaranteeError:
                with pytest.raises(GuaranteeError, match="the target is"):
                    fpemu.gpu.gemm(X, Y, scheme=scheme, **options)
                continue
            got = fpemu.gpu.gemm(X, Y, scheme=scheme, **options)
            assert np.array_equal(got.view(np.uint64), want.view(np.uint64))
