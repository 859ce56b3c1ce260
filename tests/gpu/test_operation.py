"""Repeated calls, plans and deferred range errors, on the simulated driver: it notes launches and runs none.

The tests cover validation, parameters, streams, allocations and waits; `test_gpu_arrays` covers bits where a processor
stands in for a GPU, and `tests/verification` those on a GPU.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.plan import Workspace
from fpemu.mma import KOrder
from tests import simulated_driver
from tests.calls import count
from tests.gpu_fixtures import Lent, capture, draw, far, gpu, on_stream, simulated, two_gpus

__all__ = ["gpu", "two_gpus"]
pytestmark = simulated
SCHEMES = ("staged", "ootomo", "legemm", "h2sgemm", "bf16x9", "egemm", "markidis", "staged-int8", "sgemm")
SIDE = 7  # handle of a stream
_TABLE = 2048 * 64  # bytes of the counters of a GPU
half = partial(draw, dtype="float16")


def view(X, change):
    """A tensor that shares the memory of X."""
    return simulated_driver.Tensor(change(X._array), "cuda")


def shifted(offset, *shape, dtype="float32"):
    """A tensor that begins some entries behind a multiple of 16 bytes."""
    size = int(np.prod(shape))
    flat = draw(size + 16, dtype=dtype)._array
    start = -flat.ctypes.data % 16 // flat.itemsize + offset
    return simulated_driver.Tensor(flat[start : start + size].reshape(shape), "cuda")


def words(gpu):
    """The words of the parameters of all launches."""
    return [word for launch in gpu.launches for word in launch.words]


def counters(gpu, launch, operand):
    """The counters of an operand, in the simulated memory."""
    tables = [at for at, block in gpu.memory.items() if len(block) == _TABLE + 1024]
    (slot,) = {(word - at) // 64 * 64 + at for word in launch.words for at in tables if 0 <= word - at < _TABLE}
    return np.ctypeslib.as_array((ctypes.c_uint64 * 4).from_address(slot + 32 * "AB".index(operand)))


CALLS = {
    "gemm": (partial(fpemu.gpu.gemm, scheme="staged"), lambda: (draw(64, 48), draw(48, 40))),
    "any order": (
        partial(fpemu.gpu.gemm, scheme="ootomo", order=KOrder(split=16)),
        lambda: (draw(64, 48), draw(48, 40)),
    ),
    "nothing": (partial(fpemu.gpu.gemm, scheme="staged", alpha=0.0), lambda: (draw(64, 48), draw(48, 40))),
    "hgemm": (fpemu.gpu.batched.hgemm, lambda: (half(5, 8, 8), half(5, 8, 8))),
    "hcgemm": (fpemu.gpu.batched.hcgemm, lambda: (half(5, 8, 8, 2), half(5, 8, 8, 2))),
    "multiply": (fpemu.gpu.tallskinny.multiply, lambda: (draw(300, 40), draw(40, 4))),
    "tsm2": (fpemu.gpu.tallskinny.tsm2, lambda: (draw(300, 64, dtype="float64"), draw(64, 4, dtype="float64"))),
    "ism2": (fpemu.gpu.tallskinny.ism2, lambda: (draw(300, 16), draw(16, 4))),
    "plan": (lambda A, B, **out: PLANS.setdefault(id(A), fpemu.gpu.plan("ootomo", A, B))(A, B, **out), None),
}
PLANS: dict = {}
REPEATED = [name for name in CALLS if name not in ("plan", "nothing")]


# --- repeated calls
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_repeated_call_allocates_and_waits_for_nothing_and_passes_few_functions(gpu, scheme):
    A, B, D = draw(256, 192), draw(192, 128), draw(256, 128)
    assert fpemu.gpu.gemm(A, B, scheme=scheme, out=D) is D
    kernels = list(gpu.launched)
    assert kernels
    before = gpu.synchronised, len(gpu.allocated)
    gpu.launches.clear()
    for _ in range(3):
        E, F = draw(256, 192), draw(192, 128)
        assert fpemu.gpu.gemm(E, F, scheme=scheme, out=D) is D
    assert gpu.launched == 3 * kernels
    assert (gpu.synchronised, len(gpu.allocated)) == before
    fpemu.gpu.gemm(E, F, scheme=scheme, out=D)
    calls = count(lambda: fpemu.gpu.gemm(E, F, scheme=scheme, out=D))
    assert calls.total <= 25
    assert len(calls.files) <= 8


@pytest.mark.parametrize("same_address", [False, True])
def test_mode_cr_reads_extents_and_keeps_a_plan_for_each_number_of_moduli(gpu, monkeypatch, same_address):
    extents = [9, 20, 9, 20]
    monkeypatch.setattr(device, "fetch", lambda *_: np.array(extents, np.int32))
    A, B, D = (draw(70, 70, dtype="float64") for _ in range(3))
    grow, arena = Workspace.grow, np.zeros(1 << 24, np.uint8)

    def grow_in_place(held, *given):
        grow(held, *given)
        assert held.nbytes[0] < arena.nbytes
        held.pointers[0] = arena.ctypes.data

    if same_address:  # as a driver may do, after the old memory was freed
        monkeypatch.setattr(Workspace, "grow", grow_in_place)
    before, after = ["summaries"], ["residue_bytes", "byte_gemm", "residue_sum"]
    for found, grows in (([9, 20, 9, 20], True), ([40, 40, 40, 40], True), ([9, 20, 9, 20], False)):
        extents[:] = found
        gpu.launches.clear()
        assert fpemu.gpu.gemm(A, B, scheme="ozaki", mode="CR", out=D) is D
        assert gpu.launched == [*before, *before * grows, *after]  # what was read is not in a new workspace
        assert {A.data_ptr(), B.data_ptr(), D.data_ptr()} <= set(words(gpu))
    with pytest.raises(InputError, match="for which a CUDA graph cannot wait"):
        capture(gpu, lambda: fpemu.gpu.gemm(A, B, scheme="ozaki", mode="CR"))


@pytest.mark.parametrize("name", REPEATED)
def test_every_function_repeats_its_launches_with_given_and_new_outputs(gpu, name):
    call, drawn = CALLS[name]
    A, B = drawn()
    D = call(A, B)
    call(A, B, out=D)
    kernels, allocated = gpu.launched, len(gpu.allocated)
    gpu.launches.clear()
    E, F = drawn()
    assert call(E, F).shape == D.shape
    assert call(E, F, out=D) is D
    assert gpu.launched == kernels
    assert len(gpu.allocated) == allocated
    assert {E.data_ptr(), F.data_ptr(), D.data_ptr()} <= set(words(gpu))
    assert not {A.data_ptr(), B.data_ptr()} & set(words(gpu))


@pytest.mark.parametrize("scheme", ["staged", "h2sgemm"])
def test_launches_with_addresses_that_come_again_become_one_graph(gpu, scheme):
    A, B, D = draw(64, 64), draw(64, 64), draw(64, 64)
    graphs, launch = [], gpu.cuGraphLaunch

    def launched(graph, stream):
        graphs.append(stream)
        return launch(graph, stream)

    gpu.cuGraphLaunch = launched
    fpemu.gpu.gemm(A, B, scheme=scheme, out=D)
    first = list(gpu.launches)
    for stream, expected in ((0, 0), (0, 1), (SIDE, 0), (SIDE, 0), (SIDE, 1), (0, 1)):
        on_stream(stream)
        graphs.clear()
        gpu.launches.clear()
        fpemu.gpu.gemm(A, B, scheme=scheme, out=D)
        assert graphs == [stream] * expected
        assert {launch.stream for launch in gpu.launches} == {stream}
        if not stream:
            assert gpu.launches == first
    gpu.launches.clear()
    fpemu.gpu.gemm(B, A, scheme=scheme, out=D)
    assert gpu.launches != first
    for _ in range(100):  # no more than 32 graphs
        X = draw(64, 64)
        fpemu.gpu.gemm(X, B, scheme=scheme, out=D)
        fpemu.gpu.gemm(X, B, scheme=scheme, out=D)
    graphs.clear()
    fpemu.gpu.gemm(X, B, scheme=scheme, out=D)
    assert graphs == [0]


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_operands_of_any_alignment_are_read_at_their_addresses(gpu, offset):
    A, B, C = shifted(offset, 33, 40), shifted(offset, 40, 36), shifted(offset, 33, 36)
    E, F, G = (shifted(offset, 5, 8, 8, dtype="float16") for _ in range(3))
    plan = fpemu.gpu.plan("ootomo", A, B)
    ready = plan.prepare(B)
    for operands, call in (
        ((A, B, C), lambda D: fpemu.gpu.gemm(A, B, C, scheme="staged", beta=0.5, out=D)),
        ((A, B, C), lambda D: fpemu.gpu.gemm(A, B, C, scheme="sgemm", beta=0.5, out=D)),
        ((A, B), lambda D: plan(A, B, out=D)),
        ((A,), lambda D: plan(A, ready, out=D)),
        ((A, B), lambda D: fpemu.gpu.tallskinny.tsm2(A, B, out=D)),
        ((E, F, G), lambda D: fpemu.gpu.batched.hgemm(E, F, G, beta=0.5, out=D)),
    ):
        D = shifted(offset, *(G if E in operands else C).shape, dtype=operands[0].dtype.name)
        for _ in range(2):  # validated, and repeated
            gpu.launches.clear()
            call(D)
            for X in (*operands, D):
                assert X.data_ptr() % 16 == offset * X.dtype.itemsize
                within = {word for word in words(gpu) if 0 <= word - X.data_ptr() < X._array.nbytes}
                assert within == {X.data_ptr()}


def test_shapes_strides_dtypes_alignment_options_and_scalars_are_told_apart(gpu):
    A, B, C = draw(64, 64), draw(64, 64), draw(64, 64)
    gemm = partial(fpemu.gpu.gemm, scheme="ootomo")
    calls = [
        lambda: gemm(A, B),
        lambda: fpemu.gpu.gemm(A, B, scheme="staged"),
        lambda: gemm(A, B, promote=64),
        lambda: gemm(A, B, alpha=2.0),
        lambda: gemm(A, B, C, beta=2.0),
        lambda: gemm(A, B, C, beta=-2.0),
        lambda: gemm(A, B, C, alpha=0.0, beta=1.0),
        lambda: gemm(A, B, C, alpha=-0.0, beta=1.0),
        lambda: gemm(A, view(B, np.transpose)),
        lambda: gemm(draw(65, 64), B),
        lambda: gemm(shifted(1, 64, 64), B),
        lambda: gemm(A, B, order=KOrder(split=64)),
    ]
    allocated = []
    for call in calls:  # each needs its own counters, workspace or constants, or other launches
        gpu.launches.clear()
        call()
        first = [(launch.kernel, [len(data) for data in launch.parameters]) for launch in gpu.launches]
        before = len(gpu.allocated)
        gpu.launches.clear()
        call()
        assert [(launch.kernel, [len(data) for data in launch.parameters]) for launch in gpu.launches] == first
        allocated.append(len(gpu.allocated) - before)
    assert not any(allocated[:6])
    scalars = {np.float32(x).tobytes() for x in (2.0, -2.0)}
    gpu.launches.clear()
    for beta in (2.0, -2.0, 2.0):
        gemm(A, B, C, beta=beta)
    for beta in scalars:
        assert any(beta in data for launch in gpu.launches for data in launch.parameters)
    with pytest.raises(InputError, match="promote"):
        gemm(A, B, promote=64.0)
    with pytest.raises(InputError, match="scheme"):
        fpemu.gpu.gemm(A, B, scheme="otomo")


def test_a_result_with_an_order_is_its_order(gpu):
    class Result:
        order, tree = KOrder(), None

    A, B, result = draw(64, 640), draw(640, 64), Result()
    for order in (KOrder(), KOrder(split=64), KOrder()):
        result.order = order
        gpu.launches.clear()
        fpemu.gpu.gemm(A, B, scheme="sgemm", order=result)
        fpemu.gpu.gemm(A, B, scheme="sgemm", order=order)
        first, second = gpu.launches
        assert first.words[:-6] == second.words[:-6]


@pytest.mark.parametrize("scalar", [0.0, np.float32(2), float("nan")])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_unusual_scalars_and_arrays_of_the_cpu_are_multiplied(gpu, scalar, lead):
    A, B, C = draw(*lead, 32, 32), draw(32, 32), draw(32, 32)
    for _ in range(2):
        assert fpemu.gpu.gemm(A, B, scheme="staged", alpha=scalar).shape == (*lead, 32, 32)
        assert fpemu.gpu.gemm(A, B, C, scheme="staged", beta=scalar).shape == (*lead, 32, 32)
    assert fpemu.gpu.gemm(A._array, B._array, scheme="staged", alpha=scalar).shape == (*lead, 32, 32)


WRONG = {
    "dtype": (lambda A, B, D: (draw(64, 48, dtype="float64"), B, D), "not fp32 numbers"),
    "shape": (lambda A, B, D: (A, draw(49, 40), D), "A of shape|do not fit|K ="),
    "out": (lambda A, B, D: (A, B, draw(64, 41)), r"out must be an array on the GPU of shape \(64, 40\)"),
    "place": (lambda A, B, D: (A._array, B, D), "A in the CPU's memory and B"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arrays_are_refused_also_after_a_repeated_call(gpu, wrong):
    operands, (change, text) = (draw(64, 48), draw(48, 40), draw(64, 40)), WRONG[wrong]
    for _ in range(2):
        fpemu.gpu.gemm(*operands[:2], scheme="staged", out=operands[2])
        gpu.launches.clear()
        A, B, D = change(*operands)
        with pytest.raises(InputError, match=text):
            fpemu.gpu.gemm(A, B, scheme="staged", out=D)
        assert not gpu.launched


@pytest.mark.parametrize("name", ["gemm", "multiply", "plan"])
def test_an_output_that_shares_memory_is_refused_also_by_a_repeated_call(gpu, name):
    A, B, D = draw(64, 64), draw(64, 64), draw(64, 64)
    call = CALLS[name][0]
    for _ in range(2):
        call(A, B, out=D)
        for X, operand in ((A, "A"), (view(A, lambda x: x[::-1][::-1]), "A")):
            with pytest.raises(InputError, match=f"out shares memory with {operand}"):
                call(A, B, out=X)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("name", ["gemm", "multiply", "hgemm", "plan"])
def test_a_tensor_without_memory_is_refused(gpu, monkeypatch, name, repeated):
    call = CALLS[name][0]
    operands = {name_: draw(64, 64, dtype="float16" if name == "hgemm" else "float32") for name_ in ("A", "B", "out")}
    A, B, D = operands.values()
    if repeated or name == "plan":
        call(A, B, out=D)
    gpu.launches.clear()
    for operand, X in operands.items():
        with monkeypatch.context() as patch:
            patch.setattr(X, "data_ptr", lambda: 0, raising=False)
            with pytest.raises(InputError, match=f"^{operand} has entries and no memory: its storage was freed"):
                call(A, B, out=D)
    assert not gpu.launched
    call(A, B, out=D)
    assert gpu.launched
    empty = draw(0, 64)
    monkeypatch.setattr(empty, "data_ptr", lambda: 0, raising=False)
    assert fpemu.gpu.gemm(empty, draw(64, 64), scheme="staged").shape == (0, 64)


def test_arrays_that_state_the_default_stream_repeat_and_others_are_ordered(gpu):
    A, B = (Lent(np.ones(shape, np.float32), stream=1) for shape in ((64, 48), (48, 40)))
    D = fpemu.gpu.gemm(A, B, scheme="staged")
    allocated = len(gpu.allocated)
    gpu.launches.clear()
    assert fpemu.gpu.gemm(A, B, scheme="staged", out=D) is D
    assert len(gpu.allocated) == allocated
    assert {A.matrix.pointer, B.matrix.pointer} <= set(words(gpu))
    backwards = Lent(np.ones((64, 48), np.float32), stream=1)
    step = backwards.x.strides
    place = backwards.matrix.pointer + 63 * step[0]
    backwards.__cuda_array_interface__ |= {"strides": (-step[0], step[1]), "data": (place, False)}
    for _ in range(2):
        gpu.launches.clear()
        fpemu.gpu.gemm(backwards, B, scheme="staged", out=D)
        assert gpu.launched[0] == "copy4"


# --- streams and captures
def test_every_stream_has_a_workspace_and_a_capture_has_one_of_the_graph(gpu):
    A, B, D = draw(64, 64), draw(64, 64), draw(64, 64)
    fpemu.gpu.gemm(A, B, scheme="staged", out=D)

    def call(stream):
        on_stream(stream)
        gpu.launches.clear()
        fpemu.gpu.gemm(A, B, scheme="staged", out=D)
        assert {launch.stream for launch in gpu.launches} == {stream}
        return frozenset(words(gpu)) - {X.data_ptr() for X in (A, B, D)}

    first, side, other, again = (call(stream) for stream in (0, SIDE, 9, SIDE))
    assert side == again
    assert len({first, side, other}) == 3
    allocated = len(gpu.allocated)
    gpu.captured.add(SIDE)
    assert call(SIDE) != side
    assert len(gpu.allocated) == allocated + 1  # the counters that a replay adds to
    with pytest.raises(InputError, match="which a CUDA graph cannot capture"):
        fpemu.gpu.gemm(A, B, scheme="staged", on_range="raise", out=D)


@pytest.mark.parametrize("dropped", ["released", "evicted"])
@pytest.mark.parametrize("name", ["gemm", "any order", "hgemm", "plan"])
def test_the_memory_that_a_captured_call_reads_is_kept(gpu, name, dropped):
    call = CALLS[name][0]
    lead = (3,) if name != "any order" else ()
    A, B, D = (draw(*lead, 64, 64, dtype="float16" if name == "hgemm" else "float32") for _ in range(3))
    call(A, B, out=D)
    gpu.launches.clear()
    capture(gpu, lambda: call(A, B, out=D), SIDE)
    read = set(words(gpu)) & set(gpu.memory)
    PLANS.clear()
    if dropped == "evicted":
        for k in range(8, 300):
            fpemu.gpu.gemm(draw(8, k), draw(k, 8), scheme="sgemm")
    fpemu.gpu.release()
    gc.collect()
    assert not read - set(gpu.memory)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fpemu.gpu.gemm(
            view(draw(64, 64, dtype="float64"), lambda x: np.round(x).T), draw(64, 64), scheme="staged"
        ),
        lambda: fpemu.gpu.gemm(draw(64, 64, dtype="float64"), draw(64, 64, dtype="float64"), scheme="ozaki"),
    ],
)
def test_a_call_that_waits_for_the_host_cannot_be_captured(gpu, call):
    with pytest.raises(InputError, match="a CUDA graph cannot capture this call"):
        capture(gpu, call, SIDE)
    assert not gpu.launched


@pytest.mark.parametrize("kind", ["torch", "interface", "numpy"])
@pytest.mark.parametrize("name", ["gemm", "any order", "hgemm", "multiply", "raise"])
def test_a_call_leaves_the_capture_of_another_thread_valid(gpu, name, kind):
    """It allocates in the relaxed mode, and waits for no other streams than its own."""
    raising = partial(fpemu.gpu.gemm, scheme="ootomo", on_range="raise"), CALLS["gemm"][1]
    call, drawn = CALLS.get(name, raising)
    operands = [
        X._array if kind == "numpy" else Lent(X._array, stream=1) if kind == "interface" else X for X in drawn()
    ]
    relaxed, modes = gpu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED, [0]
    failed = simulated_driver.real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

    def exchange(mode):
        modes.append(mode)
        return simulated_driver.SUCCESS, modes[-2]

    def only_relaxed(function):
        return lambda *given: function(*given) if modes[-1] == relaxed else (failed, None)

    call(*operands)
    gpu.cuThreadExchangeStreamCaptureMode = exchange
    for function in ("cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8", "cuCtxSynchronize"):
        setattr(gpu, function, only_relaxed(getattr(gpu, function)))
    for _ in range(2):
        synchronised = gpu.synchronised
        call(*operands)
        assert gpu.synchronised == synchronised
        assert modes[-1] == 0


def test_threads_never_launch_with_each_others_addresses(gpu):
    operands = [[draw(64, 64) for _ in range(3)] for _ in range(4)]

    def work(A, B, D):
        for _ in range(100):
            fpemu.gpu.gemm(A, B, scheme="staged", out=D)

    threads = [threading.Thread(target=work, args=three) for three in operands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owners = {three[0].data_ptr(): three[2].data_ptr() for three in operands}
    assert len(gpu.launches) == 800
    for split, product in zip(gpu.launches[::2], gpu.launches[1::2], strict=True):
        (A,) = {word for word in split.words if word in owners}
        assert owners[A] in product.words


# --- several GPUs
@pytest.mark.parametrize("scheme", ["staged", "bf16x3", "sgemm"])
def test_a_call_runs_on_the_gpu_of_its_operands(two_gpus, scheme):
    near, second = [draw(64, 64) for _ in range(3)], [far(two_gpus, 64, 64) for _ in range(3)]
    plans = [fpemu.gpu.plan(scheme, *operands[:2]) for operands in (near, second)]
    for context, (A, B, D), plan in [(1, near, plans[0]), (2, second, plans[1])] * 3:
        for call in (partial(fpemu.gpu.gemm, scheme=scheme), plan, fpemu.gpu.tallskinny.multiply):
            for before in (1, 0):  # 0: a thread without a context
                two_gpus.launches.clear()
                two_gpus.context = before
                call(A, B, out=D)
                assert {launch.context for launch in two_gpus.launches} == {context}
                assert two_gpus.context in (before, 1)
    two_gpus.context = 1


def test_arrays_of_two_gpus_are_refused(two_gpus):
    A, B, second = draw(32, 32), draw(32, 32), far(two_gpus, 32, 32)
    plan = fpemu.gpu.plan("staged", A, B)
    for call in (
        lambda: fpemu.gpu.gemm(A, second, scheme="staged"),
        lambda: fpemu.gpu.gemm(A, B, scheme="staged", out=second),
        lambda: fpemu.gpu.tallskinny.multiply(A, second),
        lambda: plan(A, second),
        lambda: plan(second, second),
    ):
        with pytest.raises(InputError, match=r"lies on GPU 1, and the call runs on GPU 0: copy all arrays to one GPU"):
            call()
    assert two_gpus.context == 1


# --- deferred errors
@pytest.mark.parametrize("on_range", [None, "propagate", "raise"])
def test_entries_out_of_range_raise_when_their_counts_are_read(gpu, on_range):
    A, B, D = draw(64, 48), draw(48, 64), draw(64, 64)
    fpemu.gpu.gemm(A, B, scheme="ootomo", on_range=on_range, out=D)
    counts = counters(gpu, gpu.launches[0], "B")
    counts[:] = 3, 1, 2**64 - 1 - (64 + 6), 2**64 - 1
    if on_range == "raise":
        B._array[1, 6] = np.nan
        with pytest.raises(InputError, match=r"^B: NaN or infinite: 1 of 3072 entries, first at \[1, 6\]"):
            fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="raise", out=D)
    elif on_range == "propagate":
        fpemu.gpu.check()
    else:
        text = (
            r"^B of ootomo: NaN or infinite: 3 entries, first at \[1, 6\]; "
            r"beyond their words: 1 entry, first at \[0, 0\], since the last check"
        )
        synchronised = gpu.synchronised
        fpemu.gpu.gemm(A, B, scheme="ootomo", on_range=on_range, out=D)
        assert gpu.synchronised == synchronised
        with pytest.raises(InputError, match=text):
            fpemu.gpu.check()
    assert not counts.any()
    fpemu.gpu.check()


@pytest.mark.parametrize("dropped", ["release", "evict", "none"])
def test_counts_outlive_their_plan_and_are_read_on_every_gpu(two_gpus, dropped):
    A, B, D = (far(two_gpus, 32, 32) for _ in range(3))
    fpemu.gpu.gemm(A, B, scheme="ootomo", out=D)
    counters(two_gpus, two_gpus.launches[0], "A")[:] = 2, 0, 2**64 - 1 - 33, 0
    fpemu.gpu.gemm(draw(32, 32), draw(32, 32), scheme="ootomo")
    if dropped == "release":
        fpemu.gpu.release()
    for n in range(300 if dropped == "evict" else 0):
        fpemu.gpu.gemm(draw(8, 8), draw(8, 8), scheme="ootomo", alpha=n + 1.0)
    gc.collect()
    with pytest.raises(InputError, match=r"^A of ootomo: NaN or infinite: 2 entries, first at \[1, 1\], since"):
        fpemu.gpu.check()
    fpemu.gpu.check()


def test_an_interrupted_call_leaves_no_counts(gpu, monkeypatch):
    A, B, D = draw(64, 64), draw(64, 64), draw(64, 64)
    raising = partial(fpemu.gpu.gemm, A, B, scheme="ootomo", on_range="raise")
    for out in ({}, {"out": D}):
        raising(**out)
        counts = counters(gpu, gpu.launches[0], "A")

        def interrupted(*_, counts=counts):
            counts[:] = 1, 0, 2**64 - 1, 0
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(gpu, "cuMemcpyDtoH", interrupted)
            with pytest.raises(KeyboardInterrupt):
                raising(**out)
        assert not counts.any()
        raising(**out)


# --- plans
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plan_multiplies_without_validation_and_prepares_an_operand_once(gpu, scheme):
    A, B, D = draw(256, 192), draw(192, 128), draw(256, 128)
    plan = fpemu.gpu.plan(scheme, A, B)
    assert not gpu.launched
    assert plan(A, B, out=D) is D
    assert [name for name in plan.kernels if name != "fill"] == gpu.launched
    assert plan.describe().startswith(fpemu.gpu.kernel(scheme, 256, 128, 192).describe())
    assert plan.shapes == {"A": (256, 192), "B": (192, 128), "D": (256, 128)}
    for operand in "BA":
        ready = plan.prepare(B if operand == "B" else A, operand)
        arguments = (A, ready) if operand == "B" else (ready, B)
        plan(*arguments, out=D)
        before = gpu.synchronised, len(gpu.allocated)
        assert plan(*arguments, out=D) is D
        assert plan(*arguments).shape == (256, 128)
        assert (gpu.synchronised, len(gpu.allocated)) == before
    assert ready.bytes <= plan.bytes + 4096
    for _ in range(2):
        plan(A, B, out=D)
    assert count(lambda: plan(A, B, out=D)).total <= 25


def test_plans_of_ozaki2_and_repeated_calls_of_narrower_operands(gpu):
    wide = partial(draw, dtype="float64")
    A, B, D = wide(64, 32), wide(32, 16), wide(64, 16)
    plan = fpemu.gpu.plan("ozaki2", A, B, scaling="invariant")
    assert plan(A, B, out=D) is D
    assert [name for name in plan.kernels if name != "fill"] == gpu.launched
    assert plan.describe().startswith("ozaki2 on hopper wgmma")
    with pytest.raises(InputError, match=r"^ozaki2 prepares no operand"):
        plan.prepare(B)
    for _ in range(3):  # a new array has the dtype of the scheme, not that of A
        D = fpemu.gpu.gemm(draw(64, 32), draw(32, 16), scheme="ozaki2")
        assert str(D.dtype).endswith("float64")


def test_plans_refuse_other_operands(gpu):
    A, B, C = draw(64, 32), draw(32, 16), draw(64, 16)
    plan, added = fpemu.gpu.plan("staged", A, B), fpemu.gpu.plan("staged", A, B, C, beta=1.0)
    other, X = fpemu.gpu.plan("staged", A, B), draw(64, 32, dtype="float16")
    left, right = plan.prepare(A, "A"), plan.prepare(B)
    converts = " has float16 and must be float32: a plan converts no operands"
    gpu.launches.clear()
    for text, call in (
        (r"A must be an array on the GPU of the plan's shape \(64, 32\)", lambda: plan(B, A)),
        ("the plan adds no C", lambda: plan(A, B, C)),
        ("C is missing", lambda: added(A, B)),
        ("prepared by another plan", lambda: other(A, right)),
        ("operand = 'C' must be", lambda: plan.prepare(C, "C")),
        ("A and B must be on the GPU", lambda: fpemu.gpu.plan("staged", A._array, B._array)),
        (r"call fpemu\.gpu\.gemm", lambda: fpemu.gpu.plan("ozaki", *(draw(8, 8, dtype="float64") for _ in "AB"))),
        ("nothing to multiply", lambda: fpemu.gpu.plan("staged", A, B, alpha=0.0)),
        ("^A" + converts, lambda: fpemu.gpu.plan("staged", X, B)),
        ("^A" + converts, lambda: plan(X, B)),
        ("^A" + converts, lambda: plan(X, right)),
        ("^A" + converts, lambda: plan.prepare(X, "A")),
        ("^A has float64 and must be float32", lambda: plan(draw(64, 32, dtype="float64"), B)),
        ("^A was prepared as B: prepare it with operand='A'", lambda: plan(right, B)),
        ("^A was prepared as B: prepare it with operand='A'", lambda: plan(right, right)),
        ("^B was prepared as A: prepare it with operand='B'", lambda: plan(A, left)),
        ("^A and B are prepared: pass one of them as an array", lambda: plan(left, right)),
    ):
        for _ in range(2):
            with pytest.raises(InputError, match=text):
                call()
    assert not gpu.launched
    assert plan(left, B).shape == plan(A, right).shape == (64, 16)


def test_negated_views_are_copied_for_every_call(gpu, monkeypatch):
    A, B, N = draw(64, 64), draw(64, 64), draw(64, 64)
    monkeypatch.setattr(N, "is_neg", lambda: True, raising=False)
    monkeypatch.setattr(N, "resolve_neg", lambda: simulated_driver.Tensor(-N._array, "cuda"), raising=False)
    plan = fpemu.gpu.plan("staged", N, B)
    left, right = plan.prepare(N, "A"), plan.prepare(N)
    gemm = partial(fpemu.gpu.gemm, scheme="staged")
    for call in (
        partial(plan, N, B),
        partial(plan, A, N),
        partial(plan, left, B),
        partial(plan, A, right),
        partial(gemm, N, B),
    ):
        for _ in range(2):
            gpu.launches.clear()
            assert call().shape == (64, 64)
            assert gpu.launched
            assert N.data_ptr() not in words(gpu)


def test_variants_of_a_plan_are_limited(gpu):
    A, B = draw(64, 64), draw(64, 64)
    plan = fpemu.gpu.plan("staged", A, B)
    ready, first = plan.prepare(B), (plan.describe(), plan.kernels, plan.bytes)
    for more in range(1, 300):
        X = view(draw(64, 64 + more), lambda x: x[:, :64])
        assert plan(X, B).shape == plan(X, ready).shape == (64, 64)
    assert (plan.describe(), plan.kernels, plan.bytes) == first


# --- memory
class OutOfMemoryError(RuntimeError):
    """PyTorch's error."""


def no_memory(*_, **__):
    raise OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, "lower the batch, M or N$") for name in ("gemm", "plan", "hgemm")),
        ("multiply", "lower the sizes of A or B$"),
    ],
)
def test_too_little_memory_states_the_sizes_to_lower(gpu, monkeypatch, name, text):
    call, drawn = CALLS[name]
    A, B = (drawn or CALLS["gemm"][1])()
    call(A, B)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(simulated_driver.Tensor, "new_empty", no_memory)
            patch.setattr(sys.modules["torch"], "empty", no_memory)
            with pytest.raises(fpemu.GpuError, match="^out of memory: .*" + text):
                call(A, B)
        assert call(A, B).shape[-1] == B.shape[-1]
    if name in ("gemm", "plan"):
        D = call(A, B)
        on_stream(5)  # whose workspace is not allocated yet
        full = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
        monkeypatch.setattr(gpu, "cuMemAlloc", lambda nbytes: (full, 0))
        with pytest.raises(fpemu.GpuError, match="^out of memory: .*" + text):
            call(A, B, out=D)


def test_release_frees_what_calls_keep(gpu):
    before = len(gpu.memory)
    for name in ("gemm", "any order", "multiply", "hgemm"):
        call, drawn = CALLS[name]
        call(*drawn())
    assert len(gpu.memory) > before
    fpemu.gpu.release()
    gc.collect()
    with device.entered():
        device.synchronize()
    kept = [len(block) - 1024 for block in gpu.memory.values()]
    assert sum(kept) < 2**16, "constants of kernels remain, no workspace"
