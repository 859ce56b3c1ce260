"""Calls on torch tensors: freed memory, copies after the work of the caller's stream, GPUs of two generations, and
options that equal others of another type; on the simulated driver of `test_calls`."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.gpu.batched import choice
from fpemu.gpu.batched.task import Task
from fpemu.gpu.emulation import chains
from fpemu.gpu.runtime import callers, device, launches
from tests import simulated_driver
from tests.gpu.test_calls import draw, far, gpu, simulated, two_gpus  # noqa: F401 (fixtures)

STREAM = 7
hgemm, hcgemm = fpemu.gpu.batched.hgemm, fpemu.gpu.batched.hcgemm
tsm2, ism2 = fpemu.gpu.tallskinny.tsm2, fpemu.gpu.tallskinny.ism2


def half(*shape):
    return draw(*shape, dtype="float16")


def view(X, change):
    """A tensor that shares the memory of X."""
    return simulated_driver.Tensor(change(X._array), "cuda")


# --- GPUs of two generations
@pytest.fixture
def generations(two_gpus, monkeypatch):  # noqa: F811
    """The first simulated GPU of compute capability 9.0, the second of 8.6 with less memory."""
    from cuda import core

    simulated_gpu, capabilities = core.Device, ((9, 0), (8, 6))

    def of_generation(number):
        return SimpleNamespace(**vars(simulated_gpu(number)) | {"compute_capability": capabilities[number]})

    monkeypatch.setattr(core, "Device", of_generation)
    two_gpus.cuMemGetInfo = lambda: (simulated_driver.SUCCESS, 0, 2**30 * two_gpus.context)
    return two_gpus


@simulated
def test_the_kernel_of_a_gpu_is_chosen_by_its_properties(generations):
    task = Task(47, 47, 47, contiguous=True)
    chosen, memory = [], []
    for index in (0, 1, 0):
        with device.entered(index):
            chosen.append(choice.choose(task, 500))
            assert choice.limits("fp32")["bulk"] == (index == 0)
            memory.append(chains._memory())
    assert [getattr(c, "bulk", False) for c in chosen] == [True, False, True]
    assert memory == [2**30, 2**31, 2**30]


@simulated
def test_no_bulk_copies_are_compiled_for_a_gpu_without_them(generations, monkeypatch):
    compiled, module = [], fpemu.gpu.batched.call.module

    def listed(source, name):
        compiled.append((device.capability(), "bool BULK = true" in source))
        return module(source, name)

    monkeypatch.setattr(fpemu.gpu.batched.call, "module", listed)
    near, second = ([half(500, 47, 47) for _ in "ABD"] for _ in range(2))
    for X in second:
        X.device = SimpleNamespace(type="cuda", index=1)
        generations.far.add(X.data_ptr())
    for A, B, D in (near, second):
        hgemm(A, B, out=D)
    assert compiled == [((9, 0), True), ((8, 6), False)]


# --- copies on the default stream, and the streams of the caller
@pytest.fixture
def events(gpu, monkeypatch):  # noqa: F811
    """The launches with their streams, and the waits (consumer, producer), where torch's current stream is another."""
    torch, issue, result = sys.modules["torch"], launches.Launch.issue, []
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=STREAM)
    torch._C._cuda_getCurrentRawStream = lambda number: STREAM

    def issued(launch, stream=0):
        result.append((launch.name, stream))
        issue(launch, stream)

    monkeypatch.setattr(launches.Launch, "issue", issued)
    monkeypatch.setattr(
        callers,
        "_stream",
        lambda handle: SimpleNamespace(handle=handle, wait=lambda producer: result.append((handle, producer.handle))),
    )
    return result


def double_precision():
    """A call whose fp64 operands are checked on the CPU; A is transposed."""
    A, B = (draw(64, 64, dtype="float64") for _ in "AB")
    A, B = (view(X, np.round) for X in (A, B))
    return lambda: fpemu.gpu.gemm(view(A, np.transpose), B, scheme="staged")


def uneven_batch():
    """A call with a batch whose addresses follow no single step, and an A that is copied."""
    A, B = half(2, 3, 16, 16), half(3, 8, 8)
    return lambda: hgemm(view(A, lambda x: x[:, :, ::2, ::2]), B)


def prepared():
    """Launches for measurements, with an A that is copied."""
    A, B, D = half(3, 16, 16), half(3, 8, 8), half(3, 8, 8)
    return lambda: fpemu.gpu.batched.products.prepare(view(A, lambda x: x[:, ::2, ::2]), B, out=D)


@simulated
@pytest.mark.parametrize(("call", "copy"), [(double_precision, "copy8"), (uneven_batch, "copy2"), (prepared, "copy2")])
def test_an_operand_is_copied_after_the_work_queued_on_its_stream(events, call, copy):
    call()()
    assert (copy, 0) in events
    assert (0, STREAM) in events[: events.index((copy, 0))]


@simulated
@pytest.mark.parametrize("call", [double_precision, uneven_batch])
def test_a_captured_call_that_needs_copies_raises_before_it_queues_anything(gpu, events, call):  # noqa: F811
    multiply = call()
    for captured in (True, False, True):
        gpu.cuStreamIsCapturing = lambda stream, on=captured: (simulated_driver.SUCCESS, int(on and stream == STREAM))
        events.clear()
        if captured:
            synchronised = gpu.synchronised
            with pytest.raises(InputError, match="a CUDA graph cannot capture this call"):
                multiply()
            assert not events
            assert gpu.synchronised == synchronised
        else:
            multiply()
            assert events


@simulated
def test_copies_of_a_recorded_call_are_queued_on_its_stream_also_in_a_capture(gpu, events):  # noqa: F811
    A, B, D = half(3, 16, 16), half(3, 8, 8), half(3, 8, 8)
    gpu.cuStreamIsCapturing = lambda stream: (simulated_driver.SUCCESS, int(stream == STREAM))
    for _ in range(2):
        events.clear()
        hgemm(view(A, lambda x: x[:, ::2, ::2]), B, out=D)
        assert events[0] == ("copy2", STREAM)
        assert {stream for _, stream in events} == {STREAM}


# --- tensors whose storage was freed
CALLS = {
    "gemm": (lambda A, B, D: fpemu.gpu.gemm(A, B, scheme="staged", out=D), "float32"),
    "multiply": (lambda A, B, D: fpemu.gpu.tallskinny.multiply(A, B, out=D), "float32"),
    "hgemm": (lambda A, B, D: hgemm(A, B, out=D), "float16"),
}


@simulated
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("name", [*CALLS, "plan"])
def test_a_tensor_without_memory_is_refused(gpu, monkeypatch, name, repeated):  # noqa: F811
    call, dtype = CALLS.get(name, (None, "float32"))
    operands = {name: draw(64, 64, dtype=dtype) for name in ("A", "B", "out")}
    if call is None:
        plan = fpemu.gpu.plan("staged", *list(operands.values())[:2])
        call = lambda A, B, D: plan(A, B, out=D)  # noqa: E731
    if repeated:
        call(*operands.values())
    gpu.launched.clear()
    for operand, X in operands.items():
        with monkeypatch.context() as patch:
            patch.setattr(X, "data_ptr", lambda: 0, raising=False)
            with pytest.raises(InputError, match=f"^{operand} has entries and no memory: its storage was freed"):
                call(*operands.values())
    assert not gpu.launched
    call(*operands.values())
    assert gpu.launched


@simulated
def test_a_half_tensor_without_memory_is_refused_before_its_conversion(gpu, monkeypatch):  # noqa: F811
    A, B = half(64, 64), draw(64, 64)
    monkeypatch.setattr(A, "data_ptr", lambda: 0, raising=False)
    monkeypatch.setattr(A, "float", lambda: pytest.fail("torch reads the memory"), raising=False)
    with pytest.raises(InputError, match=r"^A has entries and no memory"):
        fpemu.gpu.gemm(A, B, scheme="staged")


@simulated
def test_tensors_without_entries_need_no_memory(gpu, monkeypatch):  # noqa: F811
    A, B = draw(0, 64), draw(64, 64)
    monkeypatch.setattr(A, "data_ptr", lambda: 0, raising=False)
    for _ in range(2):
        assert fpemu.gpu.gemm(A, B, scheme="staged").shape == (0, 64)


# --- options that equal others of another type
@simulated
@pytest.mark.parametrize(
    ("call", "option", "value", "text"),
    [
        (tsm2, "t1", 128, "t1 = 128.0 must be a positive integer"),
        (tsm2, "t2", 4, "t2 = 4.0 must be a positive integer"),
        (tsm2, "t3", 4, "t3 = 4.0 must be a positive integer"),
        (ism2, "t1", 128, "t1 = 128.0 must be a positive integer"),
        (ism2, "tcf", 2, "tcf = 2.0 must be a positive integer"),
        (ism2, "optimisation", 2, "optimisation"),
        (hcgemm, "products", 4, "products = 4.0 must be 4 or 3"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused_also_after_its_equal(gpu, call, option, value, text):  # noqa: F811
    A, B = (half(5, 8, 8, 2), half(5, 8, 8, 2)) if call is hcgemm else (draw(300, 64), draw(64, 4))
    for _ in range(2):
        with pytest.raises(InputError, match=text):
            call(A, B, **{option: float(value)})
        call(A, B, **{option: value})
        gpu.launched.clear()
        call(A, B, **{option: value})
        assert gpu.launched


@simulated
@pytest.mark.parametrize("layout", [None, "interleave", ["planar"]])
def test_half_complex_products_need_a_layout(gpu, layout):  # noqa: F811
    A = half(5, 8, 8)
    hgemm(A, A)
    with pytest.raises(InputError, match="unknown layout"):
        hcgemm(A, A, layout=layout)
