"""What splits the operands of Hopper's kernels: its buffers from call to call; on a GPU, Strassen's bits."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import mma
from fpemu.gpu.gemm.wgmma import splits, strassen
from fpemu.gpu.gemm.wgmma import words as hopper
from fpemu.gpu.runtime import device, matrices, properties
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder
from fpemu.schemes.staged import Staged

SPEC = mma.spec("hopper", "fp16", "fp32")
needs_hopper = pytest.mark.skipif(
    device.missing() is not None or device.arch() != "sm_90a", reason=device.missing() or "the GPU here is no Hopper"
)


@pytest.fixture
def queued(monkeypatch):
    """Launches that a `ChunkSplitter` queues, as structs, on a GPU that is none."""
    launches, memory = [], iter(range(2**20, 2**60, 2**40))

    class Buffer:
        def __init__(self, nbytes, where=None):
            self.nbytes, self.pointer = nbytes, next(memory)

        @classmethod
        def zeroed(cls, nbytes):
            return cls(nbytes)

        def fill(self, byte):
            assert byte == 0

    class Launch:
        def __init__(self, operands):
            self.operands = operands

        def queue(self):
            launches.append(self.operands)

    class Module:
        def prepare(self, name, grid, threads, operands, **more):
            return Launch(operands[0])

    monkeypatch.setattr(device, "Buffer", Buffer)
    monkeypatch.setattr(splits, "_module", lambda kind: Module())
    monkeypatch.setattr(properties, "multiprocessors", lambda: 132)
    monkeypatch.setattr(matrices, "table", lambda X: Buffer(8))
    return launches


def operand(*shape):
    steps = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return Matrix(4096, np.dtype(np.float32), shape, tuple(steps))


@pytest.mark.parametrize("kind", list(splits.KINDS))
def test_each_launch_zeroes_the_counts_of_faults_for_the_one_after_it(queued, kind):
    splitter, rng = splits.ChunkSplitter(kind, {}), np.random.default_rng(1)
    zero: dict = {}  # by pointer, once it has been used
    sizes = [(rng.integers(1, 700), rng.integers(1, 3000)) for _ in range(8)]
    for turn in range(60):
        rows, k = sizes[rng.integers(0, 8)]
        sides = [(operand(rows, k), "A"), (operand(k, rows), "B")]
        splitter.prepare(sides if turn % 3 else sides[:1] if turn % 2 else sides[1:], "scale-rows")
    for launch in queued:
        if launch["phases"] == splits.MAKE:  # the second launch of a split
            continue
        for op in launch["of"][launch["of"]["rows"] > 0]:
            assert zero.get(int(op["faults"]), True)
            zero |= {int(op["faults"]): False, int(op["next_faults"]): True}


def test_operands_that_come_again_are_launches_that_exist(queued):
    splitter = splits.ChunkSplitter("halves", {})
    sides = [(operand(300, 200), "A"), (operand(200, 100), "B")]
    for _ in range(10):
        splitter.prepare(sides, "scale-rows")
    assert len(queued) == 10
    assert len({id(operands) for operands in queued}) == 2  # in turns


@needs_hopper
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 5), (257, 131, 333), (130, 72, 264), (40, 66, 60_000)])
def test_a_gpu_gives_the_bits_of_strassens_algorithm(levels, shape):
    (M, N, K), rng = shape, np.random.default_rng(5)
    kernel = strassen.kernel(Staged(levels=levels), SPEC, shape, None)
    A = np.ldexp(rng.uniform(-1, 1, (2, M, K)), rng.integers(-60, 60, (2, M, 1))).astype(np.float32)
    B = rng.standard_normal((K, N)).astype(np.float32)
    want = fpemu.gemm(A, B, **kernel.arguments)
    for x, y in ((A, B), (A.swapaxes(1, 2).copy().swapaxes(1, 2), np.asfortranarray(B))):
        a, b, D = matrices.upload(x), matrices.upload(y), matrices.empty((2, M, N), np.float32)
        for _ in range(2):
            D.owner.fill(device.POISON)
            kernel.multiply(*kernel.both(a, b, "raise"), D, np.float32(1), np.float32(0), None)
        assert (matrices.download(D).view(np.uint32) == want.view(np.uint32)).all()


def test_two_levels_of_strassens_algorithm_refuse_more_rows_than_their_grid_has():
    for levels, rows, exists in ((2, 4 * 16 * 65535, True), (2, 4 * 16 * 65535 + 1, False), (1, 2**23, True)):
        kernel = strassen.kernel(Staged(levels=levels), SPEC, (rows, 64, 64), None)
        assert (kernel is not None) == exists


def test_the_kernel_of_strassen_is_one_of_a_batch_of_products_of_blocks():
    kernel = strassen.kernel(Staged(levels=1), SPEC, (300, 200, 100), KOrder(split=128))
    assert kernel.inner.schedule.split == 128
    assert kernel.inner.tile == hopper.kernel(Staged(), SPEC, (7 * 150, 100, 50), None).tile
