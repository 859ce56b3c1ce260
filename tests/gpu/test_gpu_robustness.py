"""Calls under load and after failures: threads and streams, too little memory, failed launches, a second GPU."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import pytest

import fpemu
from fpemu import GpuError, InputError
from fpemu.gpu.runtime import device, modules, plan

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
SCHEMES = ("staged", "ootomo", "legemm", "bf16x3", "sgemm")
M, N, K = 200, 150, 300


@cache
def drawn():
    rng = np.random.default_rng(3)
    return rng.standard_normal((M, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)


@cache
def emulated(scheme):
    return fpemu.gemm(*drawn(), on_range="propagate", **fpemu.gpu.kernel(scheme, M, N, K).arguments)


def operands(index=0):
    return [torch.from_numpy(X).to(f"cuda:{index}") for X in drawn()]


def mismatches(D, expected):
    D = D.cpu().numpy() if isinstance(D, torch.Tensor) else np.asarray(D)
    return int(np.count_nonzero(D.view(f"u{D.itemsize}") != expected.view(f"u{expected.itemsize}")))


def on_threads(count, work):
    """Run ``work(n)`` on threads; their exceptions, and what they returned."""
    results, errors = [None] * count, []

    def run(n):
        try:
            results[n] = work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors, results


def test_threads_on_several_streams_return_the_bits_of_one_thread():
    cases = []
    for n in range(8):
        generator = torch.Generator(device="cuda").manual_seed(n)
        A, B = (torch.randn(*shape, device="cuda", generator=generator) for shape in ((128, 192), (192, 96)))
        scheme = ("staged", "ootomo", "bf16x3", "staged")[n % 4]
        plan = fpemu.gpu.plan(scheme, A, B)
        cases.append((A, B, scheme, plan, plan.prepare(B), fpemu.gpu.gemm(A, B, scheme=scheme)))
    torch.cuda.synchronize()

    def work(n):
        A, B, scheme, plan, ready, want = cases[n]
        streams = [torch.cuda.Stream() for _ in range(4)]
        outputs = [torch.full_like(want, 5.0) for _ in streams]
        counts = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
        torch.cuda.synchronize()
        for call in range(3000):
            i = call % len(streams)
            with torch.cuda.stream(streams[i]):
                if call % 3 == 0:
                    fpemu.gpu.gemm(A, B, scheme=scheme, out=outputs[i])
                else:
                    plan(A, B if call % 3 == 1 else ready, out=outputs[i])
                if call % 5 == 0:
                    counts[i].add_((outputs[i] != want).sum())
                    outputs[i].fill_(5.0)
        torch.cuda.synchronize()
        return sum(int(count) for count in counts)

    errors, counts = on_threads(8, work)
    assert errors == []
    assert counts == [0] * 8


def test_calls_work_after_one_that_needs_more_than_all_memory():
    A, B = operands()
    want = emulated("staged")
    n = int(1.1 * (torch.cuda.mem_get_info()[1] / 4) ** 0.5)  # the words of n × n entries exceed the memory by a fifth
    large, narrow = torch.ones(1, n, device="cuda").expand(n, n), torch.ones(n, 8, device="cuda")
    plan = fpemu.gpu.plan("staged", large, narrow)
    for call in (lambda: fpemu.gpu.gemm(large, narrow, scheme="staged"), lambda: plan(large, narrow)):
        for _ in range(2):
            with pytest.raises(GpuError, match=r"^out of memory: .*: lower the batch, M or N$"):
                call()
            assert mismatches(fpemu.gpu.gemm(A, B, scheme="staged"), want) == 0
    torch.cuda.synchronize()


def test_calls_work_after_a_launch_with_too_many_threads():
    module = modules.Module('extern "C" __global__ void nothing() {}', name="nothing.cu")
    with pytest.raises(GpuError, match="CUDA_ERROR_INVALID_VALUE"):
        plan.queue(module.step("nothing", 1, 2048))
    assert mismatches(fpemu.gpu.gemm(*operands(), scheme="staged"), emulated("staged")) == 0


# --- a second GPU
@two_gpus
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_calls_alternate_between_two_gpus_and_leave_the_current_one(scheme, current):
    with torch.cuda.device(current):
        pairs = [operands(index) for index in (0, 1)]
        outputs = [torch.empty(M, N, device=f"cuda:{index}") for index in (0, 1)]
        for index in 4 * (0, 1, 1, 0):
            outputs[index].fill_(7)
            assert fpemu.gpu.gemm(*pairs[index], scheme=scheme, out=outputs[index]) is outputs[index]
            new = fpemu.gpu.gemm(*pairs[index], scheme=scheme)
            assert new.get_device() == index
            assert mismatches(outputs[index], emulated(scheme)) == mismatches(new, emulated(scheme)) == 0
            assert torch.cuda.current_device() == current


@two_gpus
@pytest.mark.parametrize("index", [1, 0])
@pytest.mark.parametrize("scheme", ["staged", "ootomo"])
def test_plans_and_graphs_run_on_the_gpu_of_their_operands(scheme, index):
    A, B = operands(index)
    plan, want = fpemu.gpu.plan(scheme, A, B), emulated(scheme)
    ready = plan.prepare(B)
    for _ in range(4):
        assert mismatches(plan(A, B), want) == mismatches(plan(A, ready), want) == 0
    D = torch.zeros(M, N, device=f"cuda:{index}")
    with torch.cuda.device(index):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(index)):  # the default one may be of another GPU
            plan(A, B, out=D)
        D.zero_()
        graph.replay()
    assert mismatches(D, want) == 0
    with pytest.raises(InputError, match=f"lies on GPU {1 - index}, and the call runs on GPU {index}"):
        plan(*operands(1 - index))
    assert torch.cuda.current_device() == 0


@two_gpus
def test_threads_on_two_gpus_return_equal_bits():
    pairs = [operands(index) for index in (0, 1)]
    want = [fpemu.gpu.gemm(*pair, scheme="staged") for pair in pairs]
    assert mismatches(want[1], want[0].cpu().numpy()) == 0

    def work(n):
        index = n % 2
        torch.cuda.set_device(n // 2 % 2)  # for half of the threads the other GPU
        current = torch.cuda.current_device()
        count = torch.zeros((), dtype=torch.int64, device=f"cuda:{index}")
        D = torch.empty_like(want[index])
        streams = torch.cuda.Stream(index), torch.cuda.current_stream(index)
        torch.cuda.synchronize(index)
        for call in range(500):
            with torch.cuda.device(index), torch.cuda.stream(streams[call % 2]):
                fpemu.gpu.gemm(*pairs[index], scheme="staged", out=D)
                count += (want[index] != D).sum()
                D.fill_(3)
            streams[call % 2].synchronize()
            assert torch.cuda.current_device() == current
        return int(count)

    errors, counts = on_threads(8, work)
    assert errors == []
    assert counts == [0] * 8


@two_gpus
def test_batched_tall_and_error_free_products_run_on_both_gpus():
    rng = np.random.default_rng(4)
    A, B = (X.astype(np.float64) for X in drawn())
    a, b = rng.standard_normal((2, 30, 16, 16)).astype(np.float16)
    X, Y = rng.standard_normal((3000, 32)).astype(np.float32), rng.standard_normal((32, 4)).astype(np.float32)
    cases = [
        (fpemu.gpu.batched.hgemm, a, b, fpemu.batched.hgemm(a, b, **fpemu.gpu.batched.arguments())),
        (fpemu.gpu.tallskinny.multiply, X, Y, fpemu.simt.tsm2(X, Y)),
        (lambda A, B: fpemu.gpu.gemm(A, B, scheme="ozaki2"), A, B, fpemu.gpu.gemm(A, B, scheme="ozaki2")),
    ]
    for index in (1, 0, 1):
        for call, left, right, want in cases:
            for _ in range(3):
                pair = (torch.from_numpy(x).to(f"cuda:{index}") for x in (left, right))
                assert mismatches(call(*pair), want) == 0


@two_gpus
def test_arrays_of_the_cpu_are_multiplied_on_the_current_gpu():
    for index in (1, 0):
        with torch.cuda.device(index):
            assert mismatches(fpemu.gpu.gemm(*drawn(), scheme="staged"), emulated("staged")) == 0
            assert device.current() == index
    (A, _), (_, B) = operands(0), operands(1)
    for pair in ((A, B), (B.mT, A.mT)):
        with pytest.raises(InputError, match="copy all arrays to one GPU"):
            fpemu.gpu.gemm(*pair, scheme="staged")


@two_gpus
def test_deferred_errors_name_the_entries_of_each_gpu():
    for index, row, column in ((1, 3, 5), (0, 199, 299)):
        A, B = operands(index)
        A[row, column] = float("nan")
        for _ in range(3):
            fpemu.gpu.gemm(A, B, scheme="ootomo")
        with pytest.raises(InputError, match=rf"^A of ootomo: NaN or infinite: .* first at \[{row}, {column}\]"):
            fpemu.gpu.check()
    A, B = operands(1)
    with pytest.raises(InputError, match=r"^A: the fp16 part h of ootomo overflows"):
        fpemu.gpu.gemm(torch.full_like(A, 1e30), B, scheme="ootomo", on_range="raise")
    fpemu.gpu.release()
    assert mismatches(fpemu.gpu.gemm(A, B, scheme="staged"), emulated("staged")) == 0
