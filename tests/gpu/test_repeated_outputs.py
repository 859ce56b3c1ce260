"""Repeated calls with a new output, on the simulated driver with the compiled call: nothing is validated again."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.gpu.runtime import callers, graphs, matrices, native, repeats, tensors
from tests import simulated_driver
from tests.gpu.test_calls import FakeDriver, draw, gpu, simulated

__all__ = ["gpu"]
pytestmark = simulated
CONTEXT = simulated_driver.GPU.context.handle


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def read(X, at):
    X.axes = np.array([X.shape, X.stride()], np.int64)
    shape, strides = (axis.ctypes.data for axis in X.axes)
    kind = 2 | X.dtype.itemsize << 11
    (ctypes.c_uint64 * 6).from_address(at)[:] = X.data_ptr(), 2, len(X.shape) | kind << 32, shape, strides, 0
    return 0


@pytest.fixture
def compiled(gpu, monkeypatch):
    """The driver of the compiled call: `done` lists its launches with their streams, `words` their parameters."""
    pytest.importorskip("llvmlite")
    driver, names = FakeDriver(), []

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    def current(kind, index, at):
        ctypes.c_uint64.from_address(at).value = driver.stream
        return 0

    def function(name):
        names.append(name)
        return simulated_driver.SUCCESS, len(names)

    def refused(queue):
        raise fpemu.GpuError("no graphs here")

    driver.context, driver.stream, driver.keep, driver.names = CONTEXT, 0, current, names
    functions = native.compiled(driver.addresses)
    monkeypatch.setattr(native, "calls", lambda: functions)
    addresses = tuple(ctypes.cast(f, ctypes.c_void_p).value for f in (read, current))
    monkeypatch.setattr(native, "exchange", lambda kind: addresses)
    monkeypatch.setattr(graphs, "Graph", refused)
    gpu.cuKernelGetFunction = function
    torch = sys.modules["torch"]
    torch._C._cuda_getCurrentRawStream = lambda index: driver.stream
    monkeypatch.setattr(callers, "ordered", lambda handles: contextlib.nullcontext())
    torch.cuda.empty_cache = lambda: None
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=driver.stream)
    gpu.cuStreamIsCapturing = lambda stream: (simulated_driver.SUCCESS, int(stream in driver.captured))
    return driver


@contextlib.contextmanager
def repeated_only():
    """Within, no call reaches Python code that follows the compiled call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "read", lambda *_: pytest.fail("the compiled call did not repeat"))
        patch.setattr(matrices, "take", lambda *_, **__: pytest.fail("validated again"))
        yield


def halves(*shapes):
    return tuple(draw(*shape, dtype="float16") for shape in shapes)


FAMILIES = {
    "gemm": (
        lambda A, B, **out: fpemu.gpu.gemm(A, B, scheme="staged", **out),
        lambda: [(draw(64, 48), draw(48, 40)), (draw(40, 48), draw(48, 64)), (draw(3, 16, 48), draw(48, 40))],
    ),
    "gemm with C": (
        lambda A, B, C, **out: fpemu.gpu.gemm(A, B, C, scheme="ootomo", beta=0.5, **out),
        lambda: [(draw(64, 48), draw(48, 40), draw(64, 40)), (draw(64, 48), draw(48, 40), draw(2, 64, 40))],
    ),
    "hgemm": (
        fpemu.gpu.batched.hgemm,
        lambda: [halves((5, 8, 16), (5, 16, 8)), halves((6, 16, 8), (6, 8, 24)), halves((2, 6, 4, 8), (8, 8))],
    ),
    "hcgemm": (
        lambda A, B, **out: fpemu.gpu.batched.hcgemm(A, B, transa="C", **out),
        lambda: [halves((5, 8, 8, 2), (5, 8, 8, 2)), halves((6, 8, 16, 2), (6, 8, 24, 2))],
    ),
    "multiply": (fpemu.gpu.tallskinny.multiply, lambda: [(draw(300, 40), draw(40, 4)), (draw(500, 16), draw(16, 8))]),
    "tsm2": (
        fpemu.gpu.tallskinny.tsm2,
        lambda: [(draw(300, 64), draw(64, 4)), tuple(draw(*s, dtype="float64") for s in ((200, 64), (64, 3)))],
    ),
    "ism2": (fpemu.gpu.tallskinny.ism2, lambda: [(draw(300, 16), draw(16, 4)), (draw(200, 12), draw(12, 4))]),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_with_new_outputs_of_several_shapes_repeat_in_turn(compiled, name):
    call, draws = FAMILIES[name]
    cases = draws()
    want = [call(*operands) for operands in cases]
    for operands, D in zip(cases, want, strict=True):
        for out in ({}, {}, {"out": D}, {"out": D}):
            call(*operands, **out)
    with repeated_only():
        for operands, other, D in zip(2 * cases, 2 * draws(), 2 * want, strict=True):
            for given in (operands, other):
                compiled.done.clear()
                new = call(*given)
                assert (new.shape, new.dtype, new.data_ptr() != D.data_ptr()) == (D.shape, D.dtype, True)
                assert any(what == "launch" for what, *_ in compiled.done)


@pytest.mark.parametrize("name", ["gemm", "hgemm", "multiply"])
def test_new_outputs_are_queued_on_the_current_stream_and_captured(compiled, name):
    call, draws = FAMILIES[name]
    operands = draws()[0]
    for stream in (0, 7, 9):
        compiled.stream = stream
        for _ in range(3):
            call(*operands)
        compiled.done.clear()
        with repeated_only():
            call(*operands)
        assert {given[-1] for what, *given in compiled.done if what != "context"} == {stream}
    compiled.captured.add(9)
    compiled.done.clear()
    assert call(*operands).shape == (*operands[0].shape[:-1], operands[1].shape[-1])
    assert {given[-1] for what, *given in compiled.done if what != "context"} == {9}


@pytest.mark.parametrize("name", ["gemm", "hgemm", "multiply"])
def test_other_operands_raise_after_a_repeated_call(compiled, name):
    call, draws = FAMILIES[name]
    A, B = draws()[0]
    for _ in range(3):
        call(A, B)
    compiled.done.clear()
    for X, Y in ((A, A), (A._array, B), (A, 3.0), (A, B._array.astype(np.int64))):
        with pytest.raises(InputError):
            call(X, Y)
    assert not compiled.done
    with repeated_only():
        call(A, B)


def test_the_entries_of_a_family_are_limited(compiled, monkeypatch):
    monkeypatch.setattr(repeats, "_MOST", 2)
    call = FAMILIES["multiply"][0]
    cases = [(draw(100 + m, 16), draw(16, 4)) for m in range(4)]
    for operands in cases:
        call(*operands)
        call(*operands)
    (family,) = fpemu.gpu.tallskinny.problem._recorded.families.values()
    assert list(family.shapes.values()) == [(102, 4), (103, 4)]
    with repeated_only():
        call(*cases[3])
    assert call(*cases[0]).shape == (100, 4)


def test_a_plan_and_its_prepared_operands_repeat_with_new_outputs(compiled):
    A, B = draw(64, 48), draw(48, 40)
    plan = fpemu.gpu.plan("staged", A, B)
    right, left = plan.prepare(B), plan.prepare(A, "A")
    for X, Y in ((A, B), (A, right), (left, B)):
        for _ in range(2):
            plan(X, Y)
        with repeated_only():
            assert plan(X, Y).shape == (64, 40)
        with pytest.raises(InputError, match="plan's shape"):
            plan(*(draw(30, 30) if Z is A or Z is B else Z for Z in (X, Y)))


class OutOfMemoryError(RuntimeError):
    """PyTorch's error."""


def no_memory(*_, **__):
    raise OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(("name", "sizes"), [("hgemm", "the batch, M or N"), ("multiply", "the sizes of A or B")])
def test_batched_and_tall_products_state_the_sizes_to_lower(compiled, monkeypatch, name, sizes):
    call, draws = FAMILIES[name]
    operands, other = draws()[:2]
    for _ in range(3):
        call(*operands)
    with monkeypatch.context() as patch:
        patch.setattr(simulated_driver.Tensor, "new_empty", no_memory)
        patch.setattr(sys.modules["torch"], "empty", no_memory)
        for given in (operands, other):  # repeated, and for the first time
            with pytest.raises(fpemu.GpuError, match=rf"^out of memory: 0\.00 GB are needed .* free: lower {sizes}$"):
                call(*given)
    assert call(*operands).shape == call(*operands).shape
    assert call(*other).dtype == other[0].dtype


def test_calls_and_plans_state_the_same_error_where_memory_does_not_suffice(compiled, gpu, monkeypatch):
    A, B, D = draw(64, 48), draw(48, 40), draw(64, 40)
    plan = fpemu.gpu.plan("staged", A, B)
    ready = plan.prepare(B)
    calls = [
        lambda **out: fpemu.gpu.gemm(A, B, scheme="staged", **out),
        lambda **out: plan(A, B, **out),
        lambda **out: plan(A, ready, **out),
    ]
    text = (
        r"^out of memory: A, B, D and their words take 0\.00 GB or more.*, and 100\.00 GB are free: "
        r"lower the batch \(1\), M \(64\) or N \(40\)$"
    )
    for call in calls:
        call(out=D)
    allocate, new = gpu.cuMemAlloc, simulated_driver.Tensor.new_empty
    full = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
    compiled.stream = 5  # whose workspace is not allocated yet

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "cuMemAlloc", lambda nbytes: (full, 0))
        for call in (*calls, lambda **out: plan.prepare(B), lambda **out: plan.prepare(A, "A")):
            compiled.done.clear()
            with pytest.raises(fpemu.GpuError, match=text):
                call(out=D)
            assert not [what for what, *_ in compiled.done if what == "launch"]
    assert gpu.cuMemAlloc is allocate
    for call in calls:
        for _ in range(3):
            call()
        with monkeypatch.context() as patch:
            patch.setattr(simulated_driver.Tensor, "new_empty", no_memory)
            patch.setattr(sys.modules["torch"], "empty", no_memory)
            with pytest.raises(fpemu.GpuError, match=text):
                call()
        assert simulated_driver.Tensor.new_empty is new
        assert call().shape == (64, 40)
