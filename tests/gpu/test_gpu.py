"""On a GPU: every instruction it has, against the emulator, on hostile bits."""

from __future__ import annotations

import numpy as np
import pytest

from fpemu import gpu, mma
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import device, modules, plan
from tests.hostile import CLASSES, bits, carrier, operands

pytestmark = pytest.mark.skipif(gpu.available() is not None, reason=gpu.available() or "there is a GPU")

SPECS = instructions.rows() if gpu.available() is None else []


def hostile(spec, kind, seed, count):
    """Operands of one class, eight dot products a test: A (tests, 8, k), B (tests, k, 8), C (tests, 8, 8) by rows."""
    a, b, d = str(spec.a_format), str(spec.b_format), str(spec.d_format)
    A, B, C = operands(a, b, d, kind, seed, count, spec.k)
    A, B, C = carrier(A, a).reshape(-1, 8, spec.k), carrier(B, b).reshape(-1, 8, spec.k), carrier(C, d).reshape(-1, 8)
    return A, np.swapaxes(B, -1, -2), np.broadcast_to(C[:, :, None], (*C.shape, 8))


def assert_same(got, want, what):
    wrong = bits(got) != bits(want)
    assert not wrong.any(), f"{what}: {wrong.sum()} of {wrong.size} outputs differ"


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_instruction_equals_the_emulator(spec):
    if spec.is_integer:
        rng = np.random.default_rng(1)
        A, B = rng.integers(-128, 128, (50, 20, spec.k)), rng.integers(-128, 128, (50, spec.k, 11))
        C = rng.integers(-(2**31), 2**31, (50, 20, 11))
        assert_same(gpu.execute(A, B, C, spec), mma.execute(A, B, C, spec), spec.name)
        return
    for seed, kind in enumerate(CLASSES):
        A, B, C = hostile(spec, kind, seed, 64)
        assert_same(gpu.execute(A, B, C, spec), mma.execute(A, B, C, spec), f"{spec}, {kind}")


@pytest.mark.parametrize("spec", [s for s in SPECS if s.instruction == "wgmma"], ids=str)
def test_every_width_of_wgmma_equals_the_emulator(spec):
    rng = np.random.default_rng(2)
    A, B = rng.integers(-7, 8, (70, spec.k)), rng.integers(-7, 8, (spec.k, 260))
    C = rng.integers(-50, 50, (70, 260))
    want = mma.execute(A, B, C, spec)
    for n in instructions.widths(spec):
        assert_same(gpu.execute(A, B, C, spec, n=n), want, f"{spec}, n = {n}")


@pytest.mark.parametrize("shape", [(1, 1), (17, 9), (64, 8), (130, 300)])
def test_leading_axes_broadcast_and_any_m_and_n_are_tiled(shape):
    spec = SPECS[0]
    rng = np.random.default_rng(4)
    M, N = shape
    A, B = rng.integers(-9, 9, (3, 1, M, spec.k)), rng.integers(-9, 9, (2, spec.k, N))
    C = rng.integers(-9, 9, (M, N))
    got = gpu.execute(A, B, C, spec)
    assert got.shape == (3, 2, M, N)
    assert_same(got, mma.execute(A, B, C, spec), f"{M} x {N}")


def test_a_failed_launch_raises():
    module = modules.Module('extern "C" __global__ void f(int* x) { *x = 1; }')
    with pytest.raises(device.GpuError, match="CUDA: "):
        plan.queue(module.step("f", 1, 4096, np.uint64(0)))
    with pytest.raises(device.GpuError, match="CUDA: "):
        plan.queue(module.step("missing", 1, 1))


def test_an_unwritten_output_raises():
    module = modules.Module('extern "C" __global__ void f(int* x) { if (threadIdx.x != 3) x[threadIdx.x] = 1; }')
    with pytest.raises(device.GpuError, match="7 of 8"):
        device.collect(lambda out: plan.queue(module.step("f", 1, 8, out)), (8,), np.int32)


def test_an_output_equal_to_the_poison_is_accepted():
    module = modules.Module('extern "C" __global__ void f(unsigned* x) { x[threadIdx.x] = 0xABABABAB; }')
    out = device.collect(lambda out: plan.queue(module.step("f", 1, 8, out)), (8,), np.uint32)
    assert (out == 0xABABABAB).all()
