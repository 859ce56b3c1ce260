"""Memory that CUDA graphs of the caller read, deferred errors of several threads, and interrupted calls.

The simulated driver of `test_calls` lists launches and runs none.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

import fpemu
from fpemu import GpuError, InputError
from fpemu.gpu.runtime import device, faults, graphs, modules, native, sequence, tensors
from fpemu.mma.order import KOrder
from tests import simulated_driver
from tests.gpu import test_calls
from tests.gpu.test_calls import Lent, Step, draw, far, recorded, sequence_of, simulated, written

batched = sys.modules["fpemu.gpu.batched.products"], sys.modules["fpemu.gpu.batched.call"]
FAILED = simulated_driver.real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
SUCCESS = simulated_driver.SUCCESS
fake, family, gpu, two_gpus = test_calls.fake, test_calls.family, test_calls.gpu, test_calls.two_gpus
SIDE = 7  # handle of a stream


def on_stream(handle):
    """Make a stream torch's current one."""
    torch: Any = sys.modules["torch"]
    torch._C._cuda_getCurrentRawStream = lambda index: handle


def capture(gpu, call):
    """Make a call on a captured stream."""
    gpu.cuStreamIsCapturing = lambda stream: (SUCCESS, int(stream == SIDE))
    on_stream(SIDE)
    call()
    on_stream(0)


def counts_of(product, name):
    """The counters of an operand, in the simulated memory."""
    return np.ctypeslib.as_array((ctypes.c_uint64 * 4).from_address(product.sequence.counters[name].pointer))


def run(function, seconds=0.3):
    """Start a thread, wait a while for its end, and return it with the list of what it raised."""
    raised: list = []

    def target():
        try:
            function()
        except Exception as problem:
            raised.append(problem)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(seconds)
    return thread, raised


# --- memory that graphs read
@simulated
@pytest.mark.parametrize("way", ["released", "evicted", "plan"])
@pytest.mark.parametrize("recorded_before", [False, True])
@pytest.mark.parametrize(("scheme", "lead"), [("sgemm", ()), ("staged", (3,)), ("bf16x3", (3,))])
def test_the_buffers_and_counters_of_a_captured_call_are_kept(gpu, monkeypatch, scheme, lead, recorded_before, way):
    A, B, D = (draw(*lead, 64, 64) for _ in range(3))
    call: Any = fpemu.gpu.plan(scheme, A, B) if way == "plan" else fpemu.gpu.gemm
    options = {} if way == "plan" else {"scheme": scheme}
    if recorded_before:
        call(A, B, out=D, **options)
    capture(gpu, partial(call, A, B, out=D, **options))
    products = list((recorded.products if way != "plan" else call._products).values())
    launches = [step for step in products[-1].sequence._keep if hasattr(step, "arguments")]
    read = {word for launch in launches for word in written(launch)} & set(gpu.memory)
    assert read
    entries = [counters.entry for counters in products[-1].sequence.counters.values()]
    del products, launches
    del call
    if way == "evicted":
        monkeypatch.setattr(tensors, "_MOST", 4)
        for k in range(8, 16):
            fpemu.gpu.gemm(draw(8, k), draw(k, 8), scheme=scheme)
    else:
        fpemu.gpu.release()
    sys.modules["fpemu.gpu.runtime.matrices"].forget()
    gc.collect()
    assert not read - set(gpu.memory)
    assert not any(entry.dropped for entry in entries)


@simulated
def test_the_modules_of_a_captured_launch_without_workspace_are_kept(gpu):
    products, call = batched
    A, B, D = (draw(3, 8, 8, dtype="float16") for _ in range(3))
    fpemu.gpu.batched.hgemm(A, B, out=D)
    (product,) = products._recorded.values()
    assert product.sequence.alone
    kept = weakref.ref(product.sequence)
    capture(gpu, lambda: fpemu.gpu.batched.hgemm(A, B, out=D))
    del product
    products._recorded.clear()
    call.module.cache_clear()
    gc.collect()
    assert kept() in sequence.captured


@simulated
def test_calls_outside_of_a_capture_are_not_kept(gpu):
    fpemu.gpu.gemm(draw(64, 64), draw(64, 64), scheme="staged")
    on_stream(SIDE)
    for _ in range(2):
        fpemu.gpu.gemm(draw(64, 64), draw(64, 64), scheme="staged")
        fpemu.gpu.batched.hgemm(draw(3, 8, 8, dtype="float16"), draw(3, 8, 8, dtype="float16"))
    assert not sequence.captured


def test_the_compiled_call_leaves_a_captured_launch_without_workspace_to_python(fake, family):
    alone = sequence_of(Step("A"))
    assert alone.alone
    A, B, _, D = family.operands
    E = type(A)(7 << 16, (2, 4))
    family.family.add(alone, family.workspace, (E, B, None, D), (32, 64, 0, 64))
    fake.captured.add(SIDE)
    assert family.call(E, B, None, D) == native.UNKNOWN
    for stream, captured in ((SIDE, set()), (0, {SIDE})):
        fake.captured, family.streams[0] = captured, stream
        assert family.call(E, B, None, D) == native.DONE_BY_LAUNCHES


@pytest.fixture
def modes(gpu):
    """Capture modes of the thread, while another thread captures a stream in the global mode."""
    relaxed, modes = gpu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED, [0]

    def exchange(mode):
        modes.append(mode)
        return SUCCESS, modes[-2]

    def only_relaxed(function):
        return lambda *given: function(*given) if modes[-1] == relaxed else (FAILED, None)

    def start():
        gpu.cuThreadExchangeStreamCaptureMode = exchange
        for name in ("cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8", "cuCtxSynchronize"):
            setattr(gpu, name, only_relaxed(getattr(gpu, name)))
        return modes

    return start


@simulated
@pytest.mark.parametrize("kind", ["torch", "interface", "numpy"])
@pytest.mark.parametrize(
    "product",
    [
        *(partial(fpemu.gpu.gemm, scheme=scheme) for scheme in ("staged", "ootomo", "egemm", "sgemm", "bf16x3")),
        partial(fpemu.gpu.gemm, scheme="ootomo", on_range="raise"),
        partial(fpemu.gpu.gemm, scheme="ootomo", order=KOrder(split=2)),
        fpemu.gpu.batched.hgemm,
        fpemu.gpu.tallskinny.multiply,
        lambda A, B: fpemu.gpu.plan("staged", A, B)(A, B),
        lambda A, B: (lambda plan: plan(A, plan.prepare(B)))(fpemu.gpu.plan("staged", A, B, on_range="raise")),
    ],
)
def test_a_call_leaves_the_capture_of_another_thread_valid(gpu, modes, product, kind):
    """It allocates in the relaxed mode, and waits for no other streams than its own."""
    if kind == "numpy" and product.__class__ is not partial and product.__name__ == "<lambda>":
        pytest.skip("plans multiply arrays of the GPU")
    fmt = "float16" if product is fpemu.gpu.batched.hgemm else "float32"
    operands = [draw(*shape, dtype=fmt) for shape in ((300, 48), (48, 16))]
    if kind != "torch":
        operands = [X._array if kind == "numpy" else Lent(X._array, stream=1) for X in operands]
    now = modes()
    for _ in range(2):
        synchronised = gpu.synchronised
        product(*operands)
        assert gpu.synchronised == synchronised
        assert now[-1] == 0


@simulated
def test_memory_is_freed_and_allocated_while_a_stream_is_captured(gpu, modes):
    A, B, D = (draw(64, 64) for _ in range(3))
    fpemu.gpu.gemm(A, B, scheme="staged", out=D)
    plan = fpemu.gpu.plan("staged", A, B)
    plan(A, B)
    before = set(gpu.memory)
    now = modes()
    on_stream(9)
    fpemu.gpu.gemm(A, B, scheme="staged", out=D)  # in a thread, while another one captures
    assert (0, 9) in sequence.arenas
    freed = {buffer.pointer for arena in plan._arenas.values() for buffer in arena._buffers if buffer is not None}
    assert freed <= before
    del plan
    gc.collect()
    assert not freed & set(gpu.memory)
    synchronised = gpu.synchronised
    module = modules.Module('extern "C" __global__ void kernel() {}')
    module.function("kernel")
    code = weakref.ref(module._object_code())
    del module
    assert code() is not None  # a kernel of it may run
    assert gpu.synchronised == synchronised
    with device.entered():
        device.synchronize()
    assert code() is None
    assert now[-1] == 0


@simulated
def test_zeros_of_a_workspace_are_queued_on_its_stream(gpu):
    filled, fill = [], gpu.cuMemsetD8Async

    def listed(*given):
        filled.append(given)
        return fill(*given)

    gpu.cuMemsetD8Async = listed
    arena, synchronised = sequence.Arena(), gpu.synchronised
    arena.grow(64, 128, SIDE)
    assert filled == [(arena.zeros, 0, 128, SIDE)]
    assert gpu.synchronised == synchronised


@simulated
def test_copies_and_zeros_are_complete_before_other_streams_read_them(gpu):
    done: list = []

    def listed(what, function):
        def call(*given):
            done.append(what)
            return function(*given)

        return call

    gpu.cuMemcpyHtoD, gpu.cuMemsetD8 = listed("copy", gpu.cuMemcpyHtoD), listed("zero", gpu.cuMemsetD8)
    gpu.cuStreamSynchronize = listed("wait", gpu.cuStreamSynchronize)
    device.Buffer.of(np.zeros(8))
    assert done == ["copy", "wait"]
    done.clear()
    faults._take()
    assert done == ["zero", "wait"]


@simulated
@pytest.mark.parametrize("private", [False, True])
def test_a_refused_operand_leaves_the_capture_of_another_thread_valid(gpu, private):
    A, B, D = draw(64, 64), draw(64, 64), None if private else draw(64, 64)
    A._array[0, 0] = np.nan
    fpemu.gpu.gemm(draw(64, 64), B, scheme="ootomo", on_range="raise", out=D)
    (product,) = recorded.products.values()
    split, synchronised = product.sequence._issue[0], gpu.synchronised

    def issued(stream):
        split(stream)
        counts_of(product, "A")[:] = 1, 0, 2**64 - 1, 0

    product.sequence._issue[0] = issued
    with pytest.raises(InputError, match=r"^A: NaN or infinite: 1 of 4096 entries"):
        fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="raise", out=D)
    assert gpu.synchronised == synchronised
    assert not counts_of(product, "A").any()


# --- deferred errors of several threads
@simulated
def test_a_check_in_another_thread_takes_no_counts_from_a_call_that_raises(gpu):
    A, B, D = draw(64, 48), draw(48, 64), draw(64, 64)
    fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="raise", out=D)
    (product,) = recorded.products.values()
    split, threads = product.sequence._issue[0], []

    def issued(stream):
        split(stream)
        counts_of(product, "B")[:] = 1, 0, 2**64 - 1, 0
        threads.append(run(fpemu.gpu.check))

    product.sequence._issue[0] = issued
    B._array[0, 0] = np.nan
    with pytest.raises(InputError, match=r"^B: NaN or infinite: 1 of 3072 entries, first at \[0, 0\]"):
        fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="raise", out=D)
    for thread, raised in threads:
        thread.join()
        assert not raised


@simulated
def test_two_threads_check_at_once(gpu, monkeypatch):
    fpemu.gpu.gemm(draw(64, 48), draw(48, 64), scheme="staged")
    fpemu.gpu.release()
    threads: list = []
    message = faults.message

    def hook(*given):
        if not threads:
            threads.append(None)
            threads[0] = run(fpemu.gpu.check)
        return message(*given)

    monkeypatch.setattr(faults, "message", hook)
    fpemu.gpu.check()
    thread, raised = threads[0]
    thread.join()
    assert not raised
    assert not faults._entries


@simulated
def test_a_check_beside_a_first_call_on_another_gpu(two_gpus, monkeypatch):
    fpemu.gpu.gemm(draw(32, 32), draw(32, 32), scheme="ootomo")
    operands = [far(two_gpus, 32, 32) for _ in range(3)]
    threads: list = []

    class Entries(list):
        def copy(self):
            threads.append(run(lambda: fpemu.gpu.gemm(*operands[:2], scheme="ootomo", out=operands[2]), 1))
            return list(self)

    monkeypatch.setattr(faults, "_entries", Entries(faults._entries))
    fpemu.gpu.check()
    for thread, raised in threads:
        thread.join()
        assert not raised
    assert [index for index, _ in faults._pools] == [0, 1]


@simulated
def test_the_counters_of_dropped_recordings_are_used_again(gpu, monkeypatch):
    monkeypatch.setattr(faults, "_SLOTS", 8)
    for n in range(8, 20):
        fpemu.gpu.gemm(draw(64, n), draw(n, 64), scheme="ootomo")
        if n == 9:
            counts_of(list(recorded.products.values())[-1], "A")[:] = 2, 0, 2**64 - 1 - 10, 0
        fpemu.gpu.release()
        gc.collect()
    assert len(faults._pools) == 1
    assert len(faults._entries) <= 8
    with pytest.raises(InputError, match=r"^A of ootomo: NaN or infinite: 2 entries, first at \[1, 1\], since"):
        fpemu.gpu.check()
    fpemu.gpu.check()


@simulated
def test_few_dropped_recordings_make_no_call_wait(gpu, monkeypatch):
    monkeypatch.setattr(faults, "_SLOTS", 16)
    for n in range(8, 17):
        fpemu.gpu.gemm(draw(64, n), draw(n, 64), scheme="ootomo")
        if n == 8:
            fpemu.gpu.release()
            gc.collect()
        monkeypatch.setattr(faults, "_collect", lambda: pytest.fail("waits for the GPU"))
    assert sum(entry.dropped for entry in faults._entries) == 2


def test_counters_without_memory_are_dropped_silently(monkeypatch):
    monkeypatch.setattr(faults, "_take", lambda: (_ for _ in ()).throw(GpuError("no memory")))
    with pytest.raises(GpuError, match="no memory"):
        faults.Counters("A")
    gc.collect()  # an unraisable error fails the test


@simulated
def test_a_capture_waits_for_no_counters_of_dropped_recordings(gpu, monkeypatch):
    monkeypatch.setattr(faults, "_SLOTS", 2)
    fpemu.gpu.gemm(draw(64, 8), draw(8, 64), scheme="ootomo")
    fpemu.gpu.release()
    gc.collect()
    with monkeypatch.context() as patch:
        patch.setattr(device, "fetch", lambda *_: pytest.fail("waits for the GPU"))
        capture(gpu, lambda: fpemu.gpu.gemm(draw(64, 9), draw(9, 64), scheme="ootomo"))
    assert len(faults._pools) == 2


# --- interrupted calls
@simulated
@pytest.mark.parametrize("private", [False, True])
def test_counts_of_an_interrupted_call_are_discarded(gpu, monkeypatch, private):
    A, B, D = draw(64, 64), draw(64, 64), None if private else draw(64, 64)
    fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="raise", out=D)
    (product,) = recorded.products.values()

    def interrupted(*_):
        counts_of(product, "A")[:] = 1, 0, 2**64 - 1, 0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(faults, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="raise", out=D)
    fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="raise", out=D)
    fpemu.gpu.check()


@simulated
@pytest.mark.parametrize("failure", ["interrupt", "launch", "instantiate", None])
def test_a_graph_ends_its_capture_and_destroys_what_it_does_not_keep(gpu, failure):
    done = []

    def listed(name, *values, status=SUCCESS):
        def function(*_):
            done.append(name)
            return status, *values

        return function

    graphs._capture_stream.cache_clear()
    gpu.cuStreamCreate = listed("stream", 5)
    gpu.cuStreamBeginCapture = listed("begin")
    gpu.cuStreamEndCapture = listed("end", 11)
    gpu.cuGraphDestroy = listed("destroy")
    gpu.cuGraphExecDestroy = listed("destroy executable")
    gpu.cuGraphInstantiate = listed("instantiate", 12, status=FAILED if failure == "instantiate" else SUCCESS)

    def queue(stream):
        if failure == "interrupt":
            raise KeyboardInterrupt
        return int(FAILED) << 2 | native.FAILED if failure == "launch" else native.DONE_BY_LAUNCHES

    if failure is None:
        assert graphs.Graph(queue).handle == 12
    else:
        with pytest.raises(KeyboardInterrupt if failure == "interrupt" else GpuError):
            graphs.Graph(queue)
    expected = [] if failure in ("interrupt", "launch") else ["instantiate"]
    last = [] if failure else ["destroy executable"]
    assert done == ["stream", "begin", "end", *expected, "destroy", *last]


# --- the context of a thread
@simulated
def test_a_thread_without_a_context_has_none_of_another_gpu_afterwards(two_gpus):
    operands = [far(two_gpus, 64, 64) for _ in range(3)]
    for _ in range(2):
        two_gpus.context = 0
        two_gpus.contexts.clear()
        fpemu.gpu.gemm(*operands[:2], scheme="staged", out=operands[2])
        assert set(two_gpus.contexts) == {2}
        assert two_gpus.context == 0


def test_the_compiled_launches_leave_no_context_of_another_gpu(fake, monkeypatch):
    monkeypatch.setattr(sequence, "current", lambda: 1)
    one = sequence_of(Step("A"))
    fake.context = 0
    one.queue([64, 0, 0, 0, 0, 0, 0], 7)
    assert [what for what, *_ in fake.done] == ["context", "launch", "context"]
    assert fake.context == 0


@simulated
def test_a_stream_is_queried_by_a_thread_without_a_context(two_gpus):
    none = simulated_driver.real.CUresult.CUDA_ERROR_INVALID_CONTEXT
    two_gpus.cuStreamIsCapturing = lambda stream: (SUCCESS, 1) if two_gpus.context else (none, None)
    two_gpus.context = 0
    assert device.captures(SIDE)
