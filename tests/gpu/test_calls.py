"""Repeated calls, plans and deferred range errors: on a GPU with torch, else by a simulated driver.

The simulated driver lists the launches and runs none: the tests on it cover validation, launches, allocations and
synchronisation.
`test_gpu_call` covers bits where a processor stands in for a GPU, and `tests/verification/test_paths.py` on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.gpu.batched import call as batched_call
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import (
    compiler,
    device,
    faults,
    graphs,
    launches,
    matrices,
    native,
    recording,
    repeats,
    sequence,
    tensors,
)
from fpemu.gpu.runtime.recording import placeholder
from tests import cuda_on_cpu, simulated_driver
from tests.gpu.test_gpu_call import Lent, assert_same
from tests.gpu.test_gpu_call import draw as numbers

call, choice, recorded, run = (sys.modules[f"fpemu.gpu.gemm.{name}"] for name in ("call", "choice", "recorded", "run"))
ON_A_GPU = device.missing() is None
needs_gpu = pytest.mark.skipif(not ON_A_GPU, reason=str(device.missing()))
simulated = pytest.mark.skipif(
    ON_A_GPU or compiler.compiler_missing() is not None, reason="there is a GPU, or no compiler of kernels"
)
SCHEMES = ("staged", "ootomo", "legemm", "h2sgemm", "bf16x9", "egemm", "markidis", "staged-int8", "sgemm")


def forget():
    """Empty all caches of the GPU's modules: what they hold belongs to a GPU, or to its simulation.

    Memory that a cache releases is freed by the GPU in `device`, whose own caches are therefore emptied last.
    """
    sequence.captured.clear()
    device._unused.clear()
    modules = [module for name, module in sys.modules.items() if name.startswith("fpemu.gpu") and module is not device]
    for module in [*modules, device]:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
            elif isinstance(value, tensors.Cache | sequence.Arenas):
                value.clear()


@pytest.fixture
def gpu():
    """The simulated driver, in place of CUDA's."""
    from cuda import core

    forget()
    driver: Any = simulated_driver.Driver()
    driver.synchronised = 0
    driver.allocated = []

    def synchronize():
        driver.synchronised += 1
        return (simulated_driver.SUCCESS,)

    allocate = driver.cuMemAlloc
    driver.cuCtxSynchronize = synchronize
    driver.cuMemAlloc = lambda nbytes: driver.allocated.append(nbytes) or allocate(nbytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "Device", lambda number: simulated_driver.GPU)
        patch.setattr(core, "ObjectCode", simulated_driver.ObjectCode)
        patch.setattr(device, "bindings", lambda: driver)
        patch.setattr(native, "calls", lambda: None)
        patch.setitem(sys.modules, "torch", simulated_driver.torch())
        for name in ("_pools", "_entries", "_messages"):
            patch.setattr(faults, name, [])
        patch.setattr(faults, "_free", {})
        yield driver
        forget()
    forget()  # the counters, too, were freed on the simulated GPU
    assert not device._opened.cache_info().currsize, "later tests would find the simulated GPU"


def draw(*shape, dtype="float32"):
    torch = sys.modules["torch"]
    return torch.randn(*shape, dtype=getattr(torch, dtype), device="cuda")


def written(launch):
    """The parameters of a launch, as 64-bit words."""
    words = []
    for values in launch.arguments:
        data = values.reshape(-1).view(np.uint8)
        words += data[: len(data) // 8 * 8].view(np.uint64).tolist()
    return words


# --- repeated calls
@simulated
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_repeated_call_validates_allocates_and_synchronises_nothing(gpu, monkeypatch, scheme):
    A, B, D = draw(256, 192), draw(192, 128), draw(256, 128)
    assert fpemu.gpu.gemm(A, B, scheme=scheme, out=D) is D
    kernels = list(gpu.launched)
    assert kernels

    def refused(*_, **__):
        raise AssertionError("validated again")

    for module, name in ((run, "validate"), (call, "check_out"), (matrices, "take"), (device, "fetch")):
        monkeypatch.setattr(module, name, refused)
    before = gpu.synchronised, len(gpu.allocated)
    gpu.launched.clear()
    for _ in range(3):
        assert fpemu.gpu.gemm(draw(256, 192), draw(192, 128), scheme=scheme, out=D) is D
    assert gpu.launched == 3 * kernels
    assert (gpu.synchronised, len(gpu.allocated)) == before


@simulated
def test_batched_and_tall_and_skinny_products_repeat_their_launches(gpu, monkeypatch):
    calls = [
        (fpemu.gpu.batched.hgemm, draw(5, 8, 8, dtype="float16"), draw(5, 8, 8, dtype="float16")),
        (fpemu.gpu.batched.hcgemm, draw(5, 8, 8, 2, dtype="float16"), draw(5, 8, 8, 2, dtype="float16")),
        (fpemu.gpu.tallskinny.multiply, draw(300, 40), draw(40, 4)),
        (fpemu.gpu.tallskinny.tsm2, draw(300, 64, dtype="float64"), draw(64, 4, dtype="float64")),
        (fpemu.gpu.tallskinny.ism2, draw(300, 16), draw(16, 4)),
    ]
    for call, A, B in calls:
        D = call(A, B)
        call(A, B, out=D)
        gpu.launched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(matrices, "take", lambda *_, **__: pytest.fail("validated again"))
            assert call(A, B).shape == D.shape
            assert call(A, B, out=D) is D
        assert len(gpu.launched) == 2


@simulated
def test_other_addresses_are_written_into_the_launches(gpu):
    A, B, D = draw(64, 64), draw(64, 64), draw(64, 64)
    fpemu.gpu.gemm(A, B, scheme="staged", out=D)
    (product,) = recorded.products.values()
    for X, Y, Z in ((A, B, D), (draw(64, 64), A, draw(64, 64)), (A, A, B)):
        fpemu.gpu.gemm(X, Y, scheme="staged", out=Z)
        assert len(recorded.products) == 1
        words = [word for step in product.sequence._keep for word in written(step)]
        assert not any(recording.region(word) for word in words)
        for tensor in (X, Y, Z):
            assert tensor.data_ptr() in words


@simulated
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_operands_of_any_alignment_are_read_at_their_addresses(gpu, monkeypatch, offset):
    def shifted(*shape, dtype="float32"):
        size = int(np.prod(shape))
        flat = draw(size + 16, dtype=dtype)._array
        start = -flat.ctypes.data % 16 // flat.itemsize + offset
        return simulated_driver.Tensor(flat[start : start + size].reshape(shape), "cuda")

    words, issue = [], launches.Launch.issue

    def listed(launch, stream=0):
        words.extend(written(launch))
        issue(launch, stream)

    monkeypatch.setattr(launches.Launch, "issue", listed)
    A, B, C = shifted(33, 40), shifted(40, 36), shifted(33, 36)
    E, F, G = (shifted(5, 8, 8, dtype="float16") for _ in range(3))
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
        D = shifted(*(G if E in operands else C).shape, dtype=operands[0].dtype.name)
        for _ in range(2):  # recorded, and repeated
            words.clear()
            call(D)
            for X in (*operands, D):
                assert X.data_ptr() % 16 == offset * X.dtype.itemsize
                assert {word for word in words if 0 <= word - X.data_ptr() < X._array.nbytes} == {X.data_ptr()}


@simulated
def test_shapes_strides_dtypes_alignment_options_and_scalars_are_told_apart(gpu):
    A, B, C = draw(64, 64), draw(64, 64), draw(64, 64)
    calls = [
        lambda: fpemu.gpu.gemm(A, B, scheme="ootomo"),
        lambda: fpemu.gpu.gemm(A, B, scheme="staged"),
        lambda: fpemu.gpu.gemm(A, B, scheme="ootomo", promote=64),
        lambda: fpemu.gpu.gemm(A, B, scheme="ootomo", on_range="propagate"),
        lambda: fpemu.gpu.gemm(A, B, scheme="ootomo", alpha=2.0),
        lambda: fpemu.gpu.gemm(A, B, C, scheme="ootomo", beta=2.0),
        lambda: fpemu.gpu.gemm(A, B, C, scheme="ootomo", beta=-2.0),
        lambda: fpemu.gpu.gemm(A, simulated_driver.Tensor(B._array.T, "cuda"), scheme="ootomo"),
        lambda: fpemu.gpu.gemm(draw(65, 64), B, scheme="ootomo"),
        lambda: fpemu.gpu.gemm(
            simulated_driver.Tensor(draw(4097)._array[1:].reshape(64, 64), "cuda"), B, scheme="ootomo"
        ),
    ]
    for count, call in enumerate(calls, 1):
        call()
        call()
        assert len(recorded.products) == count
    with pytest.raises(InputError, match="promote"):
        fpemu.gpu.gemm(A, B, scheme="ootomo", promote=64.0)
    with pytest.raises(InputError, match="scheme"):
        fpemu.gpu.gemm(A, B, scheme="otomo")


@simulated
def test_an_output_that_shares_memory_is_refused_also_by_a_repeated_call(gpu):
    A, B, D = draw(64, 64), draw(64, 64), draw(64, 64)
    plan = fpemu.gpu.plan("staged", A, B)
    for call in (
        lambda out: fpemu.gpu.gemm(A, B, scheme="staged", out=out),
        lambda out: fpemu.gpu.tallskinny.multiply(A, B, out=out),
        lambda out: plan(A, B, out=out),
    ):
        call(D)
        with pytest.raises(InputError, match="out shares memory with A"):
            call(A)
        call(D)


@simulated
def test_every_stream_has_a_workspace_and_a_capture_has_one_of_the_graph(gpu, monkeypatch):
    torch = sys.modules["torch"]
    A, B, D = draw(64, 64), draw(64, 64), draw(64, 64)
    fpemu.gpu.gemm(A, B, scheme="staged", out=D)
    streams = []
    (product,) = recorded.products.values()
    queue = product.sequence.queue

    def listed(addresses, stream, **more):
        streams.append((addresses[4], stream))
        queue(addresses, stream, **more)

    product.sequence.queue = listed
    for stream in (0, 7, 9, 7):
        torch._C._cuda_getCurrentRawStream = lambda number, stream=stream: stream
        fpemu.gpu.gemm(A, B, scheme="staged", out=D)
    assert [stream for _, stream in streams] == [0, 7, 9, 7]
    assert len({work for work, _ in streams}) == 3
    assert streams[1] == streams[3]
    gpu.cuStreamIsCapturing = lambda stream: (simulated_driver.SUCCESS, 1)
    allocated = len(gpu.allocated)
    fpemu.gpu.gemm(A, B, scheme="staged", out=D)
    assert streams[4][0] not in {work for work, _ in streams[:4]}
    assert len(gpu.allocated) == allocated
    with pytest.raises(InputError, match="which a CUDA graph cannot capture"):
        fpemu.gpu.gemm(A, B, scheme="staged", on_range="raise", out=D)


@simulated
def test_a_product_that_is_not_recorded_cannot_be_captured(gpu):
    A, B, D = (draw(*lead, 8, 8, dtype="float16") for lead in ((2, 3), (3,), (2, 3)))  # the kernels read a table
    fpemu.gpu.batched.hgemm(A, B, out=D)
    launches = len(gpu.launched)
    sys.modules["torch"].cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=7)
    gpu.cuStreamIsCapturing = lambda stream: (simulated_driver.SUCCESS, int(stream == 7))
    with pytest.raises(InputError, match="a CUDA graph cannot capture this call"):
        fpemu.gpu.batched.hgemm(A, B, out=D)
    assert len(gpu.launched) == launches


@simulated
def test_batched_products_with_complex_or_zero_scalars_are_recorded_and_captured(gpu, monkeypatch):
    torch, hcgemm = sys.modules["torch"], fpemu.gpu.batched.hcgemm
    A, B, C, D = (draw(3, 8, 8, 2, dtype="float16") for _ in "ABCD")
    scalars = [(2 - 0.5j, 0.5j), (2 + 0.5j, 0.5j), (complex(2, 0.0), 0.0), (complex(2, -0.0), 0.0), (0.0, 1), (-0.0, 1)]
    words, issue = [], launches.Launch.issue

    def listed(launch, stream=0):
        problem = next(x for x in launch.arguments if x.dtype == batched_call.PROBLEM)
        words.append((stream, problem["alpha"].tobytes(), problem["beta"].tobytes()))
        issue(launch, stream)

    monkeypatch.setattr(launches.Launch, "issue", listed)
    for alpha, beta in scalars:
        hcgemm(A, B, C, alpha=alpha, beta=beta, out=D)
    recorded_words = words.copy()
    assert len({*recorded_words}) == len(scalars)
    words.clear()
    torch._C._cuda_getCurrentRawStream = lambda index: 7
    with monkeypatch.context() as patch:
        patch.setattr(matrices, "take", lambda *_, **__: pytest.fail("validated again"))
        gpu.cuStreamIsCapturing = lambda stream: (simulated_driver.SUCCESS, 1)
        for alpha, beta in scalars:
            hcgemm(A, B, C, alpha=alpha, beta=beta, out=D)
    assert words == [(7, *parts) for _, *parts in recorded_words]
    torch._C._cuda_getCurrentRawStream = lambda index: 0
    for alpha in (complex("nan"), float("nan"), np.float32(2)):
        assert hcgemm(A, B, C, alpha=alpha, beta=0.5j).shape == D.shape


@simulated
def test_threads_never_see_each_others_addresses(gpu):
    operands = [[draw(64, 64) for _ in range(3)] for _ in range(4)]
    fpemu.gpu.gemm(*operands[0][:2], scheme="staged", out=operands[0][2])
    (product,) = recorded.products.values()
    seen, issue = [], product.sequence._issue
    first, last = product.sequence._keep[0], product.sequence._keep[1]

    def recording(launch, issued):
        def issue_recorded(stream):
            seen.append(written(launch))
            issued(stream)

        return issue_recorded

    product.sequence._issue = [recording(first, issue[0]), recording(last, issue[1]), *issue[2:]]

    def work(A, B, D):
        for _ in range(200):
            fpemu.gpu.gemm(A, B, scheme="staged", out=D)

    threads = [threading.Thread(target=work, args=three) for three in operands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1600
    owners = {three[0].data_ptr(): three[2].data_ptr() for three in operands}
    for split, multiply in zip(seen[::2], seen[1::2], strict=True):
        (A,) = {word for word in split if word in owners}
        assert owners[A] in multiply


@simulated
def test_unusual_arguments_are_validated_as_before(gpu):
    A, B = draw(32, 32), draw(32, 32)
    for more in ({"alpha": 0.0}, {"alpha": np.float32(2)}, {"alpha": float("nan")}):
        for _ in range(2):
            assert fpemu.gpu.gemm(A, B, scheme="staged", **more).shape == (32, 32)
    half = draw(32, 32, dtype="float64")
    with pytest.raises(InputError, match="not fp32 numbers"):
        fpemu.gpu.gemm(half, B, scheme="staged")
    assert fpemu.gpu.gemm(A._array, B._array, scheme="staged").shape == (32, 32)
    assert fpemu.gpu.gemm(draw(2, 3, 32, 32), draw(3, 32, 32), scheme="staged").shape == (2, 3, 32, 32)


@simulated
def test_release_and_a_full_cache_drop_the_recordings(gpu, monkeypatch):
    A, B = draw(32, 32), draw(32, 32)
    fpemu.gpu.gemm(A, B, scheme="staged")
    assert recorded.products
    assert sequence.arenas
    fpemu.gpu.release()
    assert not recorded.products
    assert not sequence.arenas
    monkeypatch.setattr(tensors, "_MOST", 2)
    for n in (8, 16, 24):
        fpemu.gpu.gemm(draw(n, n), draw(n, n), scheme="staged")
    assert len(recorded.products) == 1


# --- several GPUs
@pytest.fixture
def two_gpus(gpu, monkeypatch):
    """Two simulated GPUs with the contexts 1 and 2; `contexts`: the current one of each launch."""
    from cuda import core

    def change(context):
        gpu.context = int(context)
        return (simulated_driver.SUCCESS,)

    def launch(*given, plain=gpu.cuLaunchKernelEx):
        gpu.contexts.append(gpu.context)
        return plain(*given)

    def simulated_gpu(number):
        context = SimpleNamespace(handle=number + 1)
        return SimpleNamespace(**{**vars(simulated_driver.GPU), "context": context})

    gpu.context, gpu.contexts, gpu.far = 1, [], set()
    gpu.cuCtxGetCurrent = lambda: (simulated_driver.SUCCESS, gpu.context)
    gpu.cuCtxSetCurrent, gpu.cuLaunchKernelEx = change, launch
    gpu.cuPointerGetAttribute = lambda attribute, at: (simulated_driver.SUCCESS, int(int(at) in gpu.far))
    monkeypatch.setattr(core, "Device", simulated_gpu)
    return gpu


def far(gpu, *shape, dtype="float32"):
    """A tensor on the second GPU."""
    X = draw(*shape, dtype=dtype)
    X.device = SimpleNamespace(type="cuda", index=1)
    gpu.far.add(X.data_ptr())
    return X


@simulated
def test_a_prepared_batched_product_is_one_of_the_gpu_of_its_operands(two_gpus):
    A, B, D = (far(two_gpus, 3, 16, 16, dtype="float16") for _ in range(3))
    (product,) = fpemu.gpu.batched.prepare(A, B, out=D)
    assert two_gpus.context == 1
    with device.entered(1):
        product.queue()
    assert two_gpus.contexts == [2]


@simulated
@pytest.mark.parametrize("scheme", ["staged", "bf16x3", "sgemm"])
def test_a_call_runs_on_the_gpu_of_its_operands(two_gpus, scheme):
    near, second = [draw(64, 64) for _ in range(3)], [far(two_gpus, 64, 64) for _ in range(3)]
    plans = [fpemu.gpu.plan(scheme, *operands[:2]) for operands in (near, second)]
    for number, (A, B, D) in [(1, near), (2, second)] * 3:
        for call in (
            lambda A=A, B=B, D=D: fpemu.gpu.gemm(A, B, scheme=scheme, out=D),
            lambda A=A, B=B, D=D, plan=plans[number - 1]: plan(A, B, out=D),
            lambda A=A, B=B, D=D: fpemu.gpu.tallskinny.multiply(A, B, out=D),
        ):
            two_gpus.contexts.clear()
            call()
            assert set(two_gpus.contexts) == {number}
            assert two_gpus.context == 1
    assert len(recorded.products) == 2
    assert {index for index, _ in sequence.arenas} <= {0, 1}


@simulated
def test_arrays_of_two_gpus_are_refused(two_gpus):
    A, B, second = draw(32, 32), draw(32, 32), far(two_gpus, 32, 32)
    plan = fpemu.gpu.plan("staged", A, B)
    for call in (
        lambda: fpemu.gpu.gemm(A, second, scheme="staged"),
        lambda: fpemu.gpu.gemm(A, B, scheme="staged", out=second),
        lambda: fpemu.gpu.tallskinny.multiply(A, second),
        lambda: plan(A, second),
    ):
        with pytest.raises(InputError, match=r"lies on GPU 1, and the call runs on GPU 0: copy all arrays to one GPU"):
            call()
    with pytest.raises(InputError, match="A lies on GPU 1, and the call runs on GPU 0"):
        plan(second, second)
    assert two_gpus.context == 1


@simulated
def test_deferred_errors_of_every_gpu_are_read(two_gpus):
    A, B, D = (far(two_gpus, 32, 32) for _ in range(3))
    fpemu.gpu.gemm(A, B, scheme="ootomo", out=D)
    fpemu.gpu.gemm(draw(32, 32), draw(32, 32), scheme="ootomo")
    assert [index for index, _ in faults._pools] == [1, 0]
    far_product = next(iter(recorded.products.values()))
    counters = far_product.sequence.counters["A"]
    words = np.ctypeslib.as_array((ctypes.c_uint64 * 4).from_address(counters.pointer))
    words[:] = 2, 0, 2**64 - 1 - 33, 0
    with pytest.raises(InputError, match=r"^A of ootomo: NaN or infinite: 2 entries, first at \[1, 1\]"):
        fpemu.gpu.check()
    assert not words.any()
    assert two_gpus.context == 1


# --- deferred errors
@simulated
@pytest.mark.parametrize("on_range", [None, "propagate", "raise"])
def test_faults_raise_when_they_are_read(gpu, on_range):
    A, B, D = draw(64, 48), draw(48, 64), draw(64, 64)
    fpemu.gpu.gemm(A, B, scheme="ootomo", on_range=on_range, out=D)
    (product,) = recorded.products.values()
    counters = product.sequence.counters["B"]
    words = np.ctypeslib.as_array((simulated_driver.ctypes.c_uint64 * 4).from_address(counters.pointer))
    words[:] = 3, 1, 2**64 - 1 - (64 + 6), 2**64 - 1
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
    assert not words.any()
    fpemu.gpu.check()


@simulated
def test_counts_outlive_the_recording(gpu):
    A, B = draw(64, 48), draw(48, 64)
    fpemu.gpu.gemm(A, B, scheme="staged")
    (product,) = recorded.products.values()
    counters = product.sequence.counters["A"]
    simulated_driver.ctypes.memset(counters.pointer, 1, 1)
    del product, counters
    fpemu.gpu.release()
    with pytest.raises(InputError, match="A of staged: NaN or infinite: 1 entry, since"):
        fpemu.gpu.check()
    assert not faults._entries
    fpemu.gpu.check()


# --- plans
@simulated
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plan_multiplies_without_validation_and_prepares_an_operand_once(gpu, monkeypatch, scheme):
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
        with monkeypatch.context() as patch:
            patch.setattr(matrices, "take", lambda *_, **__: pytest.fail("validated again"))
            before = gpu.synchronised, len(gpu.allocated)
            assert plan(*arguments, out=D) is D
            assert (gpu.synchronised, len(gpu.allocated)) == before
    assert ready.bytes <= plan.bytes + 4096


@simulated
def test_plans_refuse_other_operands(gpu):
    A, B, C = draw(64, 32), draw(32, 16), draw(64, 16)
    plan = fpemu.gpu.plan("staged", A, B)
    with pytest.raises(InputError, match=r"A must be an array on the GPU of the plan's shape \(64, 32\)"):
        plan(B, A)
    with pytest.raises(InputError, match="the plan adds no C"):
        plan(A, B, C)
    with pytest.raises(InputError, match="C is missing"):
        fpemu.gpu.plan("staged", A, B, C, beta=1.0)(A, B)
    with pytest.raises(InputError, match="prepared by another plan"):
        plan(A, fpemu.gpu.plan("staged", A, B).prepare(B))
    with pytest.raises(InputError, match="operand = 'C' must be"):
        plan.prepare(C, "C")
    with pytest.raises(InputError, match="A and B must be on the GPU"):
        fpemu.gpu.plan("staged", A._array, B._array)
    with pytest.raises(InputError, match=r"call fpemu\.gpu\.gemm"):
        fpemu.gpu.plan("ozaki", draw(8, 8, dtype="float64"), draw(8, 8, dtype="float64"))
    with pytest.raises(InputError, match="nothing to multiply"):
        fpemu.gpu.plan("staged", A, B, alpha=0.0)


# --- bits, where this machine's processor stands in for a GPU
class At:
    """Memory at an address, as a buffer that can be read."""

    def __init__(self, pointer):
        self.pointer = int(pointer)

    def array(self, shape, dtype):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (simulated_driver.ctypes.c_uint8 * count).from_address(self.pointer)
        return np.frombuffer(memory, dtype).reshape(shape).copy()


class EmulatedLaunch(launches.Launch):
    """The emulator's product of words in memory, as a launch."""

    name = "emulated"

    def __init__(self, kernel, a, b, D, alpha, beta, C):
        self.given = kernel, a, b, D, alpha, beta, C
        buffers = [*a.words, a.exponents, *b.words, b.exponents, D, C]
        self.arguments = [np.array([0 if X is None else X.pointer for X in buffers], np.uint64)]

    def issue(self, stream=0):
        kernel, *sides, D, alpha, beta, C = self.given
        pointers = iter(self.arguments[0])
        moved = []
        for x in sides:
            words = tuple(At(next(pointers)) for _ in x.words)
            moved.append(replace(x, words=words, exponents=At(p) if (p := next(pointers)) else None))
        D = replace(D, pointer=int(next(pointers)))
        C = None if C is None else replace(C, pointer=int(next(pointers)))
        cuda_on_cpu.Emulated.multiply(kernel, *moved, D, alpha, beta, C)


class RecordableKernel(cuda_on_cpu.Emulated):
    """The emulator as a kernel that can be recorded."""

    recordable = True

    def multiply(self, a, b, D, alpha, beta, C):
        EmulatedLaunch(self, a, b, D, alpha, beta, C).queue()


@pytest.fixture
def processor(tmp_path_factory, monkeypatch):
    if ON_A_GPU or emulation.compiler() is None:
        pytest.skip("there is a GPU, or no C++ compiler")
    forget()
    cuda_on_cpu.stand_in(monkeypatch, tmp_path_factory.mktemp("kernels"))
    monkeypatch.setattr(choice, "BUILDERS", (lambda scheme, spec, sizes, order: RecordableKernel(scheme, spec, order),))
    yield fpemu.gpu
    forget()


@pytest.mark.parametrize("Lent", [Lent, partial(Lent, stream=1)], ids=["unknown stream", "default stream"])
@pytest.mark.parametrize("on_range", [None, "propagate", "scale", "scale-rows", "raise"])
@pytest.mark.parametrize("scheme", ["ootomo", "bf16x3"])
def test_recorded_products_have_the_emulators_bits_for_every_policy(processor, scheme, on_range, Lent):
    policy = on_range or "propagate"
    out = Lent(np.zeros((2, 9, 7), np.float32))
    for seed in range(4):  # the later ones are repetitions, at other addresses
        A, B, C = numbers((2, 9, 40), seed=seed), numbers((40, 7), seed=seed), numbers((9, 7), seed=seed)
        special = seed % 2 and on_range != "raise"
        if special:
            A[1, 2, 3], B[5, 6], A[0, 1, 1] = np.nan, np.inf, 3e6
        lent = [Lent(X) for X in (A, B, C)]
        arguments = processor.kernel(scheme, 9, 7, 40).arguments
        got = processor.gemm(*lent, scheme=scheme, alpha=0.5, beta=-2.0, on_range=on_range, out=out)
        assert_same(got.content, fpemu.gemm(A, B, C, alpha=0.5, beta=-2.0, on_range=policy, **arguments))
        assert len(recorded.products) == 1
        if special and on_range is None:
            with pytest.raises(InputError, match=f"^A of {scheme}: NaN or infinite: 1 entry.*and 1 other operands"):
                processor.check()
        processor.check()


@pytest.mark.parametrize("Lent", [Lent, partial(Lent, stream=1)], ids=["unknown stream", "default stream"])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_a_prepared_operand_keeps_its_words_and_special_rows(processor, operand, Lent):
    A, B = numbers((2, 9, 40)), numbers((40, 7))
    A[1, 2, 3], B[5, 6] = np.nan, np.inf
    plan = processor.plan("ootomo", Lent(A), Lent(B))
    lent = {"A": Lent(A), "B": Lent(B)}
    ready = plan.prepare(lent[operand], operand)
    with pytest.raises(InputError, match=f"^{operand}: NaN or infinite: 1 of "):
        processor.check()
    arguments = processor.kernel("ootomo", 9, 7, 40).arguments
    for seed in range(3):
        other = numbers((40, 7) if operand == "A" else (2, 9, 40), seed=seed)
        pair = (A, other) if operand == "A" else (other, B)
        D = plan(*((ready, Lent(other)) if operand == "A" else (Lent(other), ready)))
        assert_same(D._matrix and matrices.download(D._matrix), fpemu.gemm(*pair, on_range="propagate", **arguments))
        plan(Lent(-A), Lent(-B))
    with pytest.raises(InputError, match="A of ootomo: NaN or infinite: 3 entries"):
        processor.check()
    plan = processor.plan("ootomo", Lent(A), Lent(B), on_range="raise")
    with pytest.raises(InputError, match=f"^{operand}: NaN or infinite: 1 of "):
        plan.prepare(lent[operand], operand)


def test_a_copy_to_the_host_raises_the_deferred_errors(processor):
    A = numbers((5, 5))
    A[0, 0] = np.inf
    D = processor.gemm(Lent(A), Lent(A), scheme="ootomo")
    with pytest.raises(InputError, match="A of ootomo: NaN or infinite: 1 entry"):
        D.get()
    assert D.get().shape == (5, 5)


# --- recordings and the compiled loop
def test_a_recording_refuses_what_waits_for_the_host():
    with recording.start() as steps, pytest.raises(recording.NotRecordableError):
        device.synchronize()
    assert recording.active() is None
    assert not steps.steps


def test_buffers_filled_by_every_call_become_one_fill(monkeypatch):
    monkeypatch.setattr(native, "calls", lambda: None)
    with recording.start() as steps:
        first, second, other = (device.Buffer(100, where) for where in ("cleared", "cleared", None))
        for buffer in (first, second):
            buffer.fill(0)
        other.fill(1)
    result = sequence.Sequence(steps, 2)
    assert (result.kernels, result.mark, result.work) == (["fill", "fill"], 1, 3072)
    filled = []
    monkeypatch.setattr(device, "fill_async", lambda *given: filled.append(given))
    monkeypatch.setattr(device, "entered", contextlib.nullcontext)
    result.queue([0, 0, 0, 0, 4096, 0, 0], 5)
    assert filled == [(4096 + 1024, 0, 2048, 5), (4096, 1, 100, 5)]


class FakeDriver:
    """The driver's functions that the compiled code calls, as callbacks that list their arguments."""

    def __init__(self):
        self.done, self.failures, self.context, self.captured = [], {}, OWN, set()
        word, number = ctypes.c_uint64, ctypes.c_int
        kinds = {
            "cuCtxGetCurrent": (self.current, [word]),
            "cuCtxSetCurrent": (self.change, [word]),
            "cuLaunchKernelEx": (self.launch, [word] * 4),
            "cuMemsetD8Async": (self.fill, [word, ctypes.c_ubyte, word, word]),
            "cuGraphLaunch": (self.replay, [word] * 2),
            "cuStreamIsCapturing": (self.capturing, [word] * 2),
        }
        self.callbacks = {name: ctypes.CFUNCTYPE(number, *given)(call) for name, (call, given) in kinds.items()}
        self.addresses = {name: ctypes.cast(call, ctypes.c_void_p).value for name, call in self.callbacks.items()}

    def current(self, at):
        ctypes.c_uint64.from_address(at).value = self.context
        return 0

    def change(self, context):
        self.context = context
        self.done.append(("context", context))
        return 0

    def launch(self, config, function, parameters, extra):
        stream = ctypes.c_uint64.from_address(config + 32).value
        self.done.append(("launch", function, stream))
        return self.failures.get(function, 0)

    def fill(self, *given):
        self.done.append(("fill", *given))
        return 0

    def replay(self, graph, stream):
        self.done.append(("graph", graph, stream))
        return self.failures.get(graph, 0)

    def capturing(self, stream, at):
        ctypes.c_int.from_address(at).value = stream in self.captured
        return 0


OWN, OTHER = 1 << 20, 2 << 20  # contexts


@pytest.fixture
def fake(monkeypatch):
    """Compiled functions for a driver of callbacks."""
    pytest.importorskip("llvmlite")
    driver = FakeDriver()
    functions = native.compiled(driver.addresses)
    monkeypatch.setattr(native, "calls", lambda: functions)
    monkeypatch.setattr(device, "context", lambda: OWN)
    monkeypatch.setattr(device, "entered", contextlib.nullcontext)
    return driver


class Step:
    """A launch whose only parameter is an address."""

    name = "kernel"

    def __init__(self, where, function=11):
        self.arguments = [np.array([placeholder(where, 8)], np.uint64)]
        self.config, self.function = np.zeros(8, np.uint64), function

    def issue(self, stream):
        raise AssertionError("the compiled code issues it")

    def row(self):
        return native.LAUNCH, self.config.ctypes.data, self.function, self.arguments[0].ctypes.data


def sequence_of(*steps, work=0):
    return sequence.Sequence(recording.Recording(steps=list(steps), nbytes={**EMPTY, "work": work}))


EMPTY = dict.fromkeys(recording.REGIONS[4:], 0)


def test_the_compiled_code_issues_launches_and_fills_and_stops_at_a_failure(fake, monkeypatch):
    steps = [recording.Fill(placeholder("B", 16), 7, 64), *(Step("A", function) for function in (11, 99, 12))]
    several = sequence_of(*steps)
    several.graphs = False
    several.queue([1000, 2000, 0, 0, 0, 0, 0], 77)
    assert fake.done == [("fill", 2016, 7, 64, 77), *(("launch", f, 77) for f in (11, 99, 12))]
    assert [int(step.arguments[0][0]) for step in steps[1:]] == [1008] * 3
    fake.done.clear()
    several.queue([1000, 2000, 0, 0, 0, 0, 0], 78, 1, 3)
    assert fake.done == [("launch", 11, 78), ("launch", 99, 78)]
    fake.done.clear()
    fake.failures[99] = 719
    status: list = []
    monkeypatch.setattr(device, "check_status", status.append)
    several.queue([1000, 2000, 0, 0, 0, 0, 0], 78)
    assert status == [719]
    assert [what for what, *_ in fake.done] == ["fill", "launch", "launch"]
    assert sequence_of()._queue(several.address, 0, 0, 4, 0, *[0] * 7) == 2 << 34 | 719 << 2 | native.FAILED


def test_the_callers_context_is_current_again_after_the_launches(fake):
    one = sequence_of(Step("A"))
    for before, expected in ((OWN, []), (0, [OWN]), (OTHER, [OWN, OTHER])):
        fake.context = before
        fake.done.clear()
        one.queue([64, 0, 0, 0, 0, 0, 0], 7)
        assert [given for what, given, *_ in fake.done if what == "context"] == expected
        assert fake.context == before or not before


def test_launches_with_addresses_that_come_again_become_a_graph(fake, monkeypatch):
    class Graph:
        count = 0

        def __init__(self, queue):
            assert queue(5) == native.DONE_BY_LAUNCHES
            Graph.count += 1
            self.handle = Graph.count

    monkeypatch.setattr(graphs, "Graph", Graph)
    several, one = (sequence_of(*(Step("A") for _ in range(n))) for n in (3, 1))
    first, second = [64, 0, 0, 0, 0, 0, 0], [128, 0, 0, 0, 0, 0, 0]
    launches = [("launch", 11, 7)] * 3
    captured = [("launch", 11, 5)] * 3
    for addresses, expected in (
        (first, launches),
        (second, launches),
        (first, launches + captured),
        (first, [("graph", 1, 7)]),
        (second, launches + captured),
        (first, [("graph", 1, 7)]),
        (second, [("graph", 2, 7)]),
    ):
        fake.done.clear()
        several.queue(addresses, 7)
        assert fake.done == expected
    assert [step.arguments[0][0] for step in several._keep] == [136] * 3  # of the last launches
    for more in ({"capture": True}, {"start": 1}, {"stop": 3}):
        fake.done.clear()
        several.queue(first, 7, **more)
        assert fake.done == launches[: 2 if "start" in more else 3]
        assert [step.arguments[0][0] for step in several._keep] == [72] * 3
    for _ in range(3):
        fake.done.clear()
        one.queue(first, 7)
        assert fake.done == launches[:1]
    fake.failures[1] = 1
    fake.done.clear()
    several.queue(first, 7)
    assert fake.done[:4] == [("graph", 1, 7), *launches]
    for address in range(100):
        for _ in range(2):
            several.queue([address, 0, 0, 0, 0, 0, 0], 7)
    assert len(several._graphs) <= 32
    fake.done.clear()
    several.queue([99, 0, 0, 0, 0, 0, 0], 7)
    assert fake.done == [("graph", several._graphs[99, 0, 0, 0, 0, 0, 0].handle, 7)]


# --- calls that the compiled code recognises
class Tensor:
    """What `native.call` reads of a tensor."""

    def __init__(self, pointer, shape, strides=None, *, index=0, dtype=0x2002, negative=False, offset=0):
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))] if strides is None else strides
        self.pointer, self.shape, self.offset, self.negative = pointer, tuple(shape), offset, negative
        self.axes = np.array([shape, strides], np.int64)
        self.kind = 2 | index << 32, len(shape) | dtype << 32

    def dim(self):
        return len(self.shape)

    def is_neg(self):
        if self.negative is None:
            raise RuntimeError
        return self.negative


class Parameter(Tensor):
    pass


class Derived(Tensor):
    pass


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
def read_tensor(X, at):
    if X.pointer is None:
        return -1
    shape, strides = (axis.ctypes.data for axis in X.axes)
    words = (ctypes.c_uint64 * 6).from_address(at)
    words[:] = X.pointer, X.kind[0], X.kind[1] & 2**64 - 1, shape, strides, X.offset
    return 0


@pytest.fixture
def family(fake, monkeypatch):
    """A family with one sequence of one step and a workspace on stream 7; streams: the current ones of GPUs."""
    streams = {0: 7}

    def current(kind, index, at):
        ctypes.c_uint64.from_address(at).value = streams[index]
        return 0

    stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(current)
    addresses = tuple(ctypes.cast(f, ctypes.c_void_p).value for f in (read_tensor, stream))
    monkeypatch.setattr(repeats, "classes", lambda: (Tensor, Parameter))
    monkeypatch.setattr(native, "exchange", lambda kind: addresses)
    workspace = sequence.Arenas()
    workspace[0, 7] = arena = sequence.Arena()
    arena.work, arena.zeros, arena.nbytes = 1 << 30, 1 << 31, [4096, 0]
    workspace._list(workspace._table(0), 0)
    steps = [Step(name) for name in ("A", "D", "work")]
    kernels = sequence_of(*steps, work=4096)
    kernels.graphs = False
    result = repeats.Repeats()
    A, B, D = (Tensor(n << 16, (4, 4)) for n in (1, 2, 3))
    result.add(kernels, workspace, (A, B, None, D), (64, 64, 0, 64))
    result.add(kernels, workspace, (A, B, None, D), (64, 64, 0, 64))  # once only
    return SimpleNamespace(
        family=result,
        call=lambda *given: result.call(result.address, *given),
        operands=(A, B, None, D),
        addresses=lambda: [int(step.arguments[0][0]) - 8 for step in steps],
        workspace=workspace,
        streams=streams,
        keep=stream,
        sequence=kernels,
    )


def test_a_call_that_repeats_is_queued_with_its_addresses_on_its_stream(fake, family):
    A, B, _, D = family.operands
    assert family.call(A, B, None, D) == native.DONE_BY_LAUNCHES
    assert family.addresses() == [1 << 16, 3 << 16, 1 << 30]
    assert fake.done == [("launch", 11, 7)] * 3
    other = Parameter(5 << 16, (4, 4), offset=32)
    assert family.call(other, A, None, B) == native.DONE_BY_LAUNCHES
    assert family.addresses() == [(5 << 16) + 32, 2 << 16, 1 << 30]
    assert len(family.family._entries) == 1


@pytest.mark.parametrize(
    "X",
    [
        Tensor(9 << 16, (4, 5)),
        Tensor(9 << 16, (5, 4)),
        Tensor(9 << 16, (4, 4), (1, 4)),
        Tensor(9 << 16, (4, 4, 1)),
        Tensor((9 << 16) + 4, (4, 4)),
        Tensor(9 << 16, (4, 4), offset=4),
        Tensor(9 << 16, (4, 4), index=1),
        Tensor(9 << 16, (4, 4), dtype=0x4002),
        Tensor(9 << 16, (4, 4), negative=True),
        Tensor(9 << 16, (4, 4), negative=None),
        Tensor(0, (4, 4)),
        Tensor(None, (4, 4)),
        Derived(9 << 16, (4, 4)),
        None,
        3.5,
    ],
)
def test_other_operands_are_left_to_python(fake, family, X):
    A, B, _, D = family.operands
    for given in ((X, B, None, D), (A, X, None, D), (A, B, None, X)):
        assert family.call(*given) == native.UNKNOWN
    assert family.call(A, B, A, D) == native.UNKNOWN
    assert not fake.done


def test_shared_memory_streams_and_captures_are_left_to_python(fake, family):
    A, B = family.operands[:2]
    near = Tensor((1 << 16) + 48, (4, 4))
    for given in ((A, B, None, near), (B, A, None, near), (A, B, None, A), (near, B, None, A)):
        assert family.call(*given) == native.UNKNOWN
    assert family.call(A, A, None, Tensor((1 << 16) + 64, (4, 4))) == native.DONE_BY_LAUNCHES
    fake.captured.add(7)
    assert family.call(*family.operands) == native.UNKNOWN
    fake.captured.clear()
    family.streams[0] = 9
    assert family.call(*family.operands) == native.UNKNOWN
    family.streams[0] = 7
    assert family.call(*family.operands) == native.DONE_BY_LAUNCHES
    family.workspace.clear()
    assert family.call(*family.operands) == native.UNKNOWN
    family.family.clear()
    assert family.call(*family.operands) == native.UNKNOWN
    assert len([x for x in fake.done if x[0] == "launch"]) == 6


def test_several_launches_without_workspace_repeat_on_a_listed_stream(fake, family):
    none = sequence_of(Step("A"), Step("B"))
    none.graphs = False
    E, F = Tensor(7 << 16, (2, 4)), Tensor(8 << 16, (2, 4))
    workspace = sequence.Arenas()
    family.family.add(none, workspace, (E, E, None, F), (32, 32, 0, 32))
    assert family.call(E, E, None, F) == native.UNKNOWN
    workspace.of(7, none)
    assert family.call(E, E, None, F) == native.DONE_BY_LAUNCHES


def test_a_family_has_entries_of_several_shapes_and_an_operand_prepared_in_advance(fake, family, monkeypatch):
    A, B, _, D = family.operands
    E, F = Tensor(7 << 16, (2, 4)), Tensor(8 << 16, (2, 4))
    other, step = sequence_of(Step("B"), Step("prepared")), []
    other.graphs = False
    step = other._keep
    family.family.add(other, family.workspace, (E, B, None, F), (32, 64, 0, 32), {1: 0x5000}, 0x7000)
    assert family.call(E, None, None, F) == native.DONE_BY_LAUNCHES
    assert [int(s.arguments[0][0]) for s in step] == [0x5008, 0x7008]
    assert family.call(A, B, None, D) == native.DONE_BY_LAUNCHES
    assert family.call(E, B, None, F) == native.UNKNOWN
    status: list = []
    monkeypatch.setattr(device, "check_status", status.append)
    fake.failures[11] = 700
    family.family.follow(family.call(A, B, None, D))
    assert status == [700]


def test_the_second_call_with_the_same_addresses_makes_a_graph(fake, family, monkeypatch):
    monkeypatch.setattr(graphs, "Graph", lambda queue: SimpleNamespace(handle=queue(5) + 40))
    _, B, _, D = family.operands
    again = sequence_of(Step("A"), Step("B"))
    E = Tensor(7 << 16, (2, 4))
    family.family.add(again, family.workspace, (E, B, None, D), (32, 64, 0, 64))
    for expected in ([("launch", 11, 7)] * 2, [("launch", 11, 7)] * 2 + [("launch", 11, 5)] * 2, [("graph", 41, 7)]):
        fake.done.clear()
        result = family.call(E, B, None, D)
        if result > 0:
            family.family.follow(result)
        assert fake.done == expected


def test_tensors_of_torch_are_recognised(fake, monkeypatch):
    torch = pytest.importorskip("torch")
    if getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) is None:
        pytest.skip("torch before 2.10")

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    def current(kind, index, at):
        ctypes.c_uint64.from_address(at).value = 0
        return 0

    read, _ = native.exchange(torch.Tensor)
    monkeypatch.setattr(native, "exchange", lambda kind: (read, ctypes.cast(current, ctypes.c_void_p).value))
    kernels, workspace = sequence_of(Step("A"), Step("D")), sequence.Arenas()
    kernels.graphs = False
    workspace.of(0, kernels)
    A, B, D = (torch.zeros(32, 32) for _ in range(3))
    family = repeats.Repeats()
    family.add(kernels, workspace, (A, B, None, D), (4096, 4096, 0, 4096))
    assert family.queue(A, B, None, D) is D
    assert [int(step.arguments[0][0]) - 8 for step in kernels._keep] == [A.data_ptr(), D.data_ptr()]
    new = family.new(torch.nn.Parameter(A), B, None)
    assert (new.shape, new.dtype) == (D.shape, D.dtype)
    assert family.queue(torch.nn.Parameter(A), B, None, new) is new
    for X, Y, C in ((A[1:], B, None), (A, B.numpy().tolist(), None), (A, B, D), (A.numpy(), B, None), (None, B, None)):
        assert family.new(X, Y, C) is None
    others = [
        A.t(),
        A.half(),
        A.double(),
        A.to_sparse(),
        A.to("meta"),
        A[1:],
        A[None],
        torch._neg_view(A),
        1.0,
        A.numpy(),
    ]
    for X in others:
        assert family.queue(X, B, None, D) is None
    assert family.queue(A, B, None, A) is None
    assert family.queue(A, B, B, D) is None


def test_placeholders_are_no_addresses_and_the_regions_are_told_apart():
    assert [recording.region(placeholder(name, 40)) for name in recording.REGIONS] == [
        (i, 40) for i in range(len(recording.REGIONS))
    ]
    for value in (0, 1, 0x7F00_0000_0000, 2**63 - 1, int(np.float32([1, np.nan]).view(np.uint64)[0])):
        assert recording.region(value) is None


def test_facts_are_those_of_plain_tensors_on_the_gpu():
    X = SimpleNamespace(shape=(2, 2))
    assert tensors.read(X, X, None, None) is None
    assert tensors.near([0, 100, 0, 150], (10, 60, 0, 10))
    assert not tensors.near([0, 100, 0, 160], (10, 60, 0, 10))


# --- a GPU
@needs_gpu
@pytest.mark.parametrize("scheme", ["staged", "ootomo", "h2sgemm", "bf16x3", "staged-int8", "strassen"])
def test_deferred_errors_name_the_first_index(scheme):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    A, B = (
        torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).cuda() for shape in ((3, 200, 150), (150, 90))
    )
    A[2, 7, 149] = A[2, 8, 0] = float("inf")
    B[70, 2] = B[140, 1] = float("nan")
    options = {} if scheme != "strassen" else {"levels": 2}
    scheme = "staged" if scheme == "strassen" else scheme
    fpemu.gpu.gemm(A, B, scheme=scheme, **options)
    text = rf"^A of {scheme}: NaN or infinite: 2 entries, first at \[2, 7, 149\], since .* \(and 1 other operands\)"
    with pytest.raises(InputError, match=text):
        fpemu.gpu.check()
    fpemu.gpu.gemm(A[:1], B, scheme=scheme, **options)
    with pytest.raises(InputError, match=rf"^B of {scheme}: NaN or infinite: 2 entries, first at \[70, 2\]"):
        fpemu.gpu.check()
    if scheme in ("ootomo", "h2sgemm"):
        A[2, 7, 149], A[2, 8, 0], A[1, 4, 3] = 0, 3e6, 3e6
        fpemu.gpu.gemm(A, torch.ones_like(B), scheme=scheme)
        with pytest.raises(InputError, match=rf"^A of {scheme}: beyond their words: 2 entries, first at \[1, 4, 3\]"):
            fpemu.gpu.check()


@needs_gpu
@pytest.mark.parametrize("name", [*SCHEMES, "ozaki", "multiply", "hgemm", "plan"])
def test_matrices_of_any_alignment_have_the_bits_of_aligned_copies(name):
    torch = pytest.importorskip("torch")
    kind = {"ozaki": torch.float64, "hgemm": torch.float16}.get(name, torch.float32)
    A, B = (torch.randn(*shape, device="cuda").to(kind) for shape in ((9, 7, 9), (9, 9, 5)))
    call = {
        "multiply": fpemu.gpu.tallskinny.multiply,
        "hgemm": fpemu.gpu.batched.hgemm,
        "plan": fpemu.gpu.plan("staged", A[0], B[0]) if name == "plan" else None,
    }.get(name, lambda A, B: fpemu.gpu.gemm(A, B, scheme=name))
    want = [call(a.clone(), b.clone()) for a, b in zip(A, B, strict=True)]
    assert len({X.data_ptr() % 16 for X in A}) > 1
    for _ in range(3):
        for a, b, D in zip(A, B, want, strict=True):
            assert torch.equal(call(a, b), D)


@needs_gpu
def test_threads_and_streams_on_a_gpu():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    pairs = [
        [torch.from_numpy(rng.standard_normal((300, 300)).astype(np.float32)).cuda() for _ in "AB"] for _ in range(4)
    ]
    want = [fpemu.gpu.gemm(*pair, scheme="staged").cpu().numpy() for pair in pairs]
    torch.cuda.synchronize()
    wrong = []

    def work(pair, expected):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                got = fpemu.gpu.gemm(*pair, scheme="staged").cpu().numpy()
                if not np.array_equal(got, expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work, args=given) for given in zip(pairs, want, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
