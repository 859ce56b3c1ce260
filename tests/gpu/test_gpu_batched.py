"""The batched kernels on a simulated GPU: the bits of fpemu.batched, and nothing touched besides the matrices."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest

from fpemu.gpu.batched import products
from fpemu.gpu.batched.configuration import Block, Packed, Small, Warp
from fpemu.gpu.batched.source import plan
from fpemu.gpu.batched.task import Task
from fpemu.gpu.runtime import compiler, properties
from fpemu.verification.batched import Batched
from fpemu.verification.records import Record
from tests import batched_on_cpu as harness
from tests.batched_on_cpu import differing, gpu, hostile, needs_compiler

__all__ = ["gpu"]

needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
ONE_BLOCK = """
extern "C" void run_one_block(unsigned number, unsigned grid, unsigned threads, void** args) {
  using namespace simulation;
  argument = args;
  body = [](void* args) { batched_block(*(Problem*)*(void**)args); };
  blockDim = {threads, 1, 1}, gridDim = {grid, 1, 1}, blockIdx = {number, 0, 0}, block(threads);
}
"""
RECORD = Path(__file__).parents[1] / "data" / "verified" / "h200_batched.json"


@needs_compiler
def test_blocks_of_real_matrices_have_the_emulators_bits_at_any_size_and_alignment(gpu):
    rng = np.random.default_rng(1)
    block = Block((16, 16, 16), (32, 32, 32), (16, 4), 2, 2, direct=True, staged=True)
    for batch, M, N, K in ((3, 1, 1, 1), (2, 33, 35, 41), (3, 32, 17, 32)):
        full = hostile(rng, batch, M + 1, K + 2)
        A, B = full[:, 1:, 1 : K + 1], hostile(rng, batch, K, N | 1)[..., :N]
        assert differing(A, B, configuration=block) == 0, (M, N, K)
    A, B = hostile(rng, 3, 9, 21), hostile(rng, 3, 21, 13)
    assert differing(A, B, configuration=block, pointers=True) == 0


@needs_compiler
@pytest.mark.parametrize("sizes", [(33, 35, 41), (18, 22, 10), (20, 12, 28), (16, 24, 8)])
@pytest.mark.parametrize("transposes", ["NN", "TT"])
def test_lines_come_in_whole_pieces_of_as_many_bytes_as_they_are_aligned_to(gpu, monkeypatch, sizes, transposes):
    monkeypatch.setattr(properties, "multiprocessors", lambda: 1)
    M, N, K = sizes
    turned = transposes == "TT"
    batch = 5 if turned and K < 16 else 2
    rng = np.random.default_rng([6, *sizes])
    A, B = hostile(rng, batch, M, K), hostile(rng, batch, K, N)
    if turned:
        A, B = (np.ascontiguousarray(np.swapaxes(X, 1, 2)) for X in (A, B))
    block = Block((16, 16, 16), (48, 48, 48), (16, 6), 1, 1 + turned, direct=True, staged=True, persistent=turned)
    assert differing(A, B, configuration=block, transa=transposes[0], transb=transposes[1]) == 0


@needs_compiler
@pytest.mark.parametrize("direct", [True, False])
def test_a_row_may_have_more_than_two_gigabytes(gpu, monkeypatch, direct):
    monkeypatch.setitem(harness._OF_KERNEL, "batched_block", harness._OF_KERNEL["batched_block"] + ONE_BLOCK)
    A, B, D = np.float16([[2]]), *(np.zeros((1, 2**30 + 64), np.float16) for _ in range(2))  # pages that are never read
    for ends in (slice(64), slice(-64, None)):  # columns of the first and the last thread block
        B[0, ends] = np.arange(1, 65)
    configuration = Block((16, 16, 16), (64, 64, 32), (16, 8), 1, 2, direct, True)
    matrices = [harness.matrix(X) for X in (A, B, D)]
    (product,) = products.prepare(*matrices[:2], out=matrices[2], configuration=configuration)
    _, grid, threads, arguments, _ = product.launch.all
    child = os.fork()  # it dies if a byte is read that is no operand's
    if not child:
        product.launch.only((A, B, D))
        for number in (0, grid - 1):
            block = (ctypes.c_uint(n) for n in (number, grid, threads))
            product.launch.library.run_one_block(*block, ctypes.c_void_p(arguments.ctypes.data))
        os._exit(not all((D[0, ends] == 2 * B[0, ends]).all() for ends in (slice(64), slice(-64, None))))
    assert os.waitpid(child, 0)[1] == 0


@needs_compiler
@pytest.mark.parametrize("layout", ["interleaved", "planar"])
def test_blocks_of_complex_matrices_transposed_and_added_to_c(gpu, layout):
    rng = np.random.default_rng(2)
    tensor = (8, 32, 16) if layout == "planar" else (32, 8, 16)
    block = Block(tensor, (32, 32, 16), (8, 8), 1, 2, direct=layout == "interleaved")
    shapes = [(2, *s, 2) if layout == "interleaved" else (2, 2, *s) for s in ((37, 19), (21, 37), (19, 21))]
    A, B, C = (hostile(rng, *shape) for shape in shapes)
    for products_ in (4, 3) if layout == "interleaved" else (4,):
        options = {"transa": "C", "transb": "T", "alpha": 1.7 - 0.3j, "beta": 0.25, "products": products_}
        fused = {"algorithm": "fused", "layout": layout, "configuration": block}
        assert differing(A, B, C, **options, **fused) == 0


@needs_compiler
def test_kernels_without_shared_memory_have_the_emulators_bits(gpu):
    rng = np.random.default_rng(3)
    A, B = hostile(rng, 9, 5, 7), hostile(rng, 9, 7, 3)
    for configuration in (Warp(1, 1, 1, 2), Packed(2)):
        assert differing(A, B, configuration=configuration, accumulate="fp16") == 0, configuration
    assert differing(A, B, configuration=Small(64), kernel="magma-small", accumulate="fp16") == 0
    A, B = hostile(rng, 2, 20, 33, 2), hostile(rng, 2, 33, 18, 2)
    assert differing(A, B, configuration=Warp(1, 2, 1, 3), layout="interleaved") == 0


@needs_compiler
@pytest.mark.parametrize(("persistent", "stages"), [(False, 1), (True, 1), (True, 2)])
def test_flat_products_have_the_emulators_bits_and_leave_their_neighbours_alone(gpu, monkeypatch, persistent, stages):
    monkeypatch.setattr(properties, "multiprocessors", lambda: 1)
    rng = np.random.default_rng(5)
    block = Block((16, 16, 16), (16, 32, 16), (16, 2), 1, stages, direct=True, flat=True, persistent=persistent)
    A, B = hostile(rng, 4, 9, 15), hostile(rng, 4, 15, 21)
    assert differing(A, B, configuration=block) == 0
    A, B = hostile(rng, 3, 9, 15, 2), hostile(rng, 3, 15, 21, 2)
    assert differing(A, B, configuration=block, layout="interleaved") == 0


@needs_compiler
def test_products_of_planar_arrays_can_be_four_calls(gpu):
    rng = np.random.default_rng(4)
    A, B, C = (hostile(rng, 2, 3, *shape) for shape in ((6, 5), (5, 4), (6, 4)))
    configuration = Warp(1, 1, 1, 2)
    assert differing(A, B, C, layout="planar", configuration=configuration, alpha=0.7, beta=-2.0) == 0


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernels_compile_for_gpus(arch):
    small = Block((16, 16, 16), (16, 16, 16), (8, 4), 2, 1, direct=True, staged=True)
    early = Block((16, 16, 16), (16, 16, 16), (8, 4), 1, 2, direct=True, staged=True, persistent=True, ahead=True)
    for task, configuration in (
        (Task(16, 16, 16, width=16), small),
        (Task(15, 15, 15, contiguous=True), early),
        (Task(9, 9, 9, complex=True, width=4, plain=False), Warp(1, 1, 1, 4)),
        (Task(7, 7, 7), Packed()),
        (Task(3, 3, 3, complex=True, products=3, width=4, accumulate="fp16"), Small()),
    ):
        made = plan(task, configuration)
        assert compiler.compile(made.source, arch, name=made.name)


def test_the_record_has_no_mismatch_and_its_products_can_be_emulated_again():
    record = Record.read(RECORD)
    assert record.ok
    assert record.text() == RECORD.read_text()
    assert [outcome.group for outcome in record.outcomes] == Batched().groups()
    for outcome in record.outcomes:
        number, digest = next(iter(outcome.digests.items()))
        assert Batched(record.seed).replay(record, outcome, number) == digest, outcome.group
