"""Arguments of repeated calls and plans: converted operands, prepared operands, orders, NaN, and variants of a plan.

All tests run on the simulated driver of `test_calls`, or where a processor stands in for a GPU.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.gpu.runtime import matrices, tensors
from fpemu.gpu.runtime.launches import Launch
from fpemu.mma import KOrder
from tests import simulated_driver
from tests.gpu.test_calls import draw, gpu, numbers, processor, recorded, simulated, written
from tests.gpu.test_gpu_call import Lent, assert_same

__all__ = ["gpu", "processor"]


@pytest.fixture
def launches(gpu, monkeypatch):
    """Words of the parameters of all launches; torch's conversion to fp32 is simulated too."""

    def converted(X):
        return simulated_driver.Tensor(X._array.astype(np.float32), X.device.type)

    words, issue = [], Launch.issue

    def listed(launch, stream=0):
        words.extend(written(launch))
        issue(launch, stream)

    monkeypatch.setattr(simulated_driver.Tensor, "float", converted, raising=False)
    monkeypatch.setattr(Launch, "issue", listed)
    return words


def negated(X, monkeypatch):
    """A tensor that is a view with negated signs."""
    monkeypatch.setattr(X, "is_neg", lambda: True, raising=False)
    monkeypatch.setattr(X, "resolve_neg", lambda: simulated_driver.Tensor(-X._array, "cuda"), raising=False)
    return X


# --- arrays of other libraries
@simulated
@pytest.mark.parametrize("function", ["hgemm", "hcgemm", "multiply", "tsm2", "ism2"])
def test_batched_and_tall_products_of_arrays_of_the_default_stream_repeat(launches, monkeypatch, function):
    narrow, parts = function.startswith("h"), (2,) * (function == "hcgemm")
    module = fpemu.gpu.batched if narrow else fpemu.gpu.tallskinny
    call, shapes = getattr(module, function), ((5, 16, 16), (5, 16, 16)) if narrow else ((300, 16), (16, 4))

    def lent(shape):
        return Lent(np.ones((*shape, *parts), np.float16 if narrow else np.float32), stream=1)

    out = lent((*shapes[0][:-1], shapes[1][-1]))
    call(*map(lent, shapes), out=out)
    recorded = list(launches)
    with monkeypatch.context() as patch:
        patch.setattr(matrices, "take", lambda *_, **__: pytest.fail("validated again"))
        for _ in range(2):
            launches.clear()
            operands = [lent(shape) for shape in shapes]
            assert call(*operands, out=out) is out
            assert len(launches) == len(recorded)
            assert {X.matrix.pointer for X in (*operands, out)} <= set(launches)
    assert call(*operands).shape == out.x.shape
    backwards = lent(shapes[0])
    strides = np.array(backwards.x.strides)
    strides[0] *= -1
    place = backwards.matrix.pointer - (shapes[0][0] - 1) * int(strides[0])
    backwards.__cuda_array_interface__ |= {"strides": tuple(strides.tolist()), "data": (place, False)}
    for _ in range(3):
        launches.clear()
        call(backwards, operands[1], out=out)
        assert len(launches) > len(recorded)  # every call copies A


# --- operands that torch converts
@simulated
@pytest.mark.parametrize("k", [64, 0])
@pytest.mark.parametrize("narrow", ["AB", "A", "B"])
@pytest.mark.parametrize("function", ["multiply", "tsm2", "ism2"])
def test_tall_and_skinny_products_of_half_precision_are_converted_by_every_call(launches, function, narrow, k):
    A, B = (
        draw(*shape, dtype="float16" if name in narrow else "float32")
        for name, shape in (("A", (300, k)), ("B", (k, 4)))
    )
    call, out = getattr(fpemu.gpu.tallskinny, function), draw(300, 4)
    for _ in range(3):
        launches.clear()
        assert call(A, B).dtype is sys.modules["torch"].float32
        assert call(A, B, out=out) is out
        assert launches
        for name, X in (("A", A), ("B", B)):
            assert name not in narrow or not X._array.size or X.data_ptr() not in launches
    assert not fpemu.gpu.tallskinny.problem._recorded


@simulated
def test_a_plan_converts_no_operands(launches, monkeypatch):
    A, B, C, D = draw(64, 64), draw(64, 64), draw(64, 64), draw(64, 64)
    X = draw(64, 64, dtype="float16")
    text = " has float16 and must be float32: a plan converts no operands"
    with pytest.raises(InputError, match="^A" + text):
        fpemu.gpu.plan("staged", X, B)
    with pytest.raises(InputError, match="^C" + text):
        fpemu.gpu.plan("staged", A, B, X, beta=1.0)
    plan, added = fpemu.gpu.plan("staged", A, B), fpemu.gpu.plan("staged", A, B, C, beta=1.0)
    ready = plan.prepare(B)
    for name, call in (
        ("A", lambda: plan(X, B)),
        ("B", lambda: plan(A, X)),
        ("A", lambda: plan(X, ready)),
        ("C", lambda: added(A, B, X)),
        ("B", lambda: plan.prepare(X)),
        ("A", lambda: plan.prepare(X, "A")),
        ("out", lambda: plan(A, B, out=X)),
    ):
        launches.clear()
        for _ in range(2):
            with pytest.raises(InputError, match="^" + name + text):
                call()
        assert not launches
    assert plan(A, B, out=D) is D
    with pytest.raises(InputError, match=r"^A has float64 and must be float32"):
        plan(draw(64, 64, dtype="float64"), B)


@simulated
def test_negated_views_are_copied_for_every_call_of_a_plan(launches, monkeypatch):
    A, B, N = draw(64, 64), draw(64, 64), negated(draw(64, 64), monkeypatch)
    plan = fpemu.gpu.plan("staged", N, B)
    left, right = plan.prepare(N, "A"), plan.prepare(N)
    for call in (lambda: plan(N, B), lambda: plan(A, N), lambda: plan(left, B), lambda: plan(A, right)):
        for _ in range(2):
            launches.clear()
            assert call().shape == (64, 64)
            assert launches
            assert N.data_ptr() not in launches
    for ready in (left, right):
        assert ready.matrix.pointer != N.data_ptr()


# --- prepared operands
@simulated
@pytest.mark.parametrize(("M", "N", "K"), [(64, 64, 64), (64, 16, 32)])
def test_an_operand_prepared_as_the_other_one_raises(launches, M, N, K):
    A, B = draw(M, K), draw(K, N)
    plan = fpemu.gpu.plan("staged", A, B)
    left, right = plan.prepare(A, "A"), plan.prepare(B)
    assert plan(left, B).shape == plan(A, right).shape == (M, N)
    launches.clear()
    for operands in ((right, B), (right, A), (right, right)):
        with pytest.raises(InputError, match=r"^A was prepared as B: prepare it with operand='A'"):
            plan(*operands)
    for operands in ((A, left), (left, left)):
        with pytest.raises(InputError, match=r"^B was prepared as A: prepare it with operand='B'"):
            plan(*operands)
    with pytest.raises(InputError, match=r"^A and B are prepared: pass one of them as an array"):
        plan(left, right)
    assert not launches


def test_an_operand_prepared_as_the_other_one_raises_for_arrays_of_other_libraries(processor):
    A, B = numbers((40, 40)), numbers((40, 40), seed=1)
    plan = processor.plan("ootomo", Lent(A), Lent(B))
    with pytest.raises(InputError, match=r"^A was prepared as B"):
        plan(plan.prepare(Lent(A)), Lent(B))
    arguments = processor.kernel("ootomo", 40, 40, 40).arguments
    D = plan(plan.prepare(Lent(A), "A"), Lent(B))
    assert_same(D.get(), fpemu.gemm(A, B, **arguments))


# --- requests
@simulated
def test_an_order_that_changes_is_read_by_every_call(gpu):
    class Result:
        order, tree = KOrder(), None

    A, B, result = draw(64, 640), draw(640, 64), Result()
    for order, count in ((KOrder(), 1), (KOrder(split=64), 2), (KOrder(), 2)):
        result.order = order
        fpemu.gpu.gemm(A, B, scheme="sgemm", order=result)
        assert len(recorded.products) == count
        fpemu.gpu.gemm(A, B, scheme="sgemm", order=order)
        assert len(recorded.products) == count, "an order and a result with this order are one request"
    assert {product.kernel.order for product in recorded.products.values()} == {KOrder(), KOrder(split=64)}


@simulated
def test_products_with_nan_as_a_scalar_are_recorded_once(gpu):
    A, B, C = draw(32, 32), draw(32, 32), draw(32, 32)
    for scalars in ({"alpha": 1.0, "beta": np.nan}, {"alpha": np.nan, "beta": 1.0}):
        recorded.products.clear()
        for _ in range(3):
            fpemu.gpu.gemm(A, B, C, scheme="staged", **scalars)
        assert len(recorded.products) == 1
    for beta, count in ((0.0, 2), (-0.0, 3), (2.0, 4)):
        fpemu.gpu.gemm(A._array, B._array, C._array, scheme="staged", alpha=np.nan, beta=beta)
        assert len(recorded.products) == count


@simulated
def test_the_variants_of_a_plan_are_limited(gpu, monkeypatch):
    monkeypatch.setattr(tensors, "_MOST", 4)
    A, B = draw(64, 64), draw(64, 64)
    plan = fpemu.gpu.plan("staged", A, B)
    ready, first = plan.prepare(B), (plan.describe(), plan.kernels, plan.bytes)
    for more in range(1, 10):
        X = simulated_driver.Tensor(draw(64, 64 + more)._array[:, :64], "cuda")
        for other in (B, ready):
            assert plan(X, other).shape == (64, 64)
            assert 0 < len(plan._products) <= 4
    assert (plan.describe(), plan.kernels, plan.bytes) == first
    assert plan(A, B).shape == (64, 64)
