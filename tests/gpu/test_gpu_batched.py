"""The batched kernels on the CPU: the bits of fpemu.batched, and nothing touched besides the matrices."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tuning import task_of
from fpemu.gpu.batched import products
from fpemu.gpu.batched.configuration import Block, Packed, Small, Task, Warp, parse, shared_memory, table, text
from fpemu.gpu.batched.source import plan
from fpemu.gpu.runtime import compiler
from fpemu.verification.batched import Batched
from fpemu.verification.records import Record
from tests import batched_on_cpu as harness
from tests.batched_on_cpu import Code, Foreign, differing, gpu, hostile, needs_compiler
from tests.gpu.test_gpu_tensorcores_choice import frames

__all__ = ["gpu"]

slow = pytest.mark.slow
needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
VERIFIED = Path(__file__).parents[1] / "data" / "verified"
MANY = 16
"""`resident` of blocks for which D has the tiles' memory"""


def flat(side, threads=(16, 8), **ways):
    sides = side if isinstance(side, tuple) else (side,) * 3
    known = {"stages": 1, "direct": True, "flat": True, "persistent": True, "bulk": True}
    return Block(block=sides, threads=threads, **(known | ways))


def drawn(seed, batch, M, N, K, transposes="NN", parts=()):
    """A and B as they lie in memory."""
    rng = np.random.default_rng([seed, M, N, K])
    a, b = ((K, M) if transposes[0] != "N" else (M, K)), ((N, K) if transposes[1] != "N" else (K, N))
    return hostile(rng, batch, *a, *parts), hostile(rng, batch, *b, *parts)


def turned(transposes):
    return {"transa": transposes[0], "transb": transposes[1]}


def alternating(names, rows):
    """Parametrise with the rows and, as the last value, True and False in turn."""
    return pytest.mark.parametrize(names, [(*row, index % 2 == 0) for index, row in enumerate(rows)])


@pytest.fixture
def one(gpu, monkeypatch):
    """One thread block takes all products."""
    monkeypatch.setattr(Code, "most", 1)


# --- blocks, warps, packed and small kernels
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
def test_lines_come_in_whole_pieces_of_as_many_bytes_as_they_are_aligned_to(one, sizes, transposes):
    persistent = transposes == "TT"
    batch = 5 if persistent and sizes[2] < 16 else 2
    block = Block((16, 16, 16), (48, 48, 48), (16, 6), 1, 1 + persistent, True, True, persistent=persistent)
    assert differing(*drawn(6, batch, *sizes, transposes), configuration=block, **turned(transposes)) == 0


@needs_compiler
@pytest.mark.parametrize("direct", [True, False])
def test_a_row_may_have_more_than_two_gigabytes(gpu, monkeypatch, direct):
    A, B, D = np.float16([[2]]), *(np.zeros((1, 2**30 + 64), np.float16) for _ in range(2))  # pages that are never read
    for ends in (slice(64), slice(-64, None)):  # columns of the first and the last thread block
        B[0, ends] = np.arange(1, 65)
    configuration = Block((16, 16, 16), (64, 64, 32), (16, 8), 1, 2, direct, True)
    arrays = {"A": Foreign(A), "B": Foreign(B), "out": Foreign(D)}
    queue = products.BatchedRequest(configuration=configuration).queued(arrays)
    monkeypatch.setattr(Code, "ends", True)

    def call():
        queue()
        assert all((D[0, ends] == 2 * B[0, ends]).all() for ends in (slice(64), slice(-64, None)))

    harness.run(call, (A, B, D))


@needs_compiler
@pytest.mark.parametrize("layout", ["interleaved", "planar"])
def test_blocks_of_complex_matrices_transposed_and_added_to_c(gpu, layout):
    rng = np.random.default_rng(2)
    tensor = (8, 32, 16) if layout == "planar" else (32, 8, 16)
    block = Block(tensor, (32, 32, 16), (8, 8), 1, 2, direct=layout == "interleaved")
    shapes = [(2, *s, 2) if layout == "interleaved" else (2, 2, *s) for s in ((37, 19), (21, 37), (19, 21))]
    A, B, C = (hostile(rng, *shape) for shape in shapes)
    for count in (4, 3) if layout == "interleaved" else (4,):
        options = {"transa": "C", "transb": "T", "alpha": 1.7 - 0.3j, "beta": 0.25, "products": count}
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
def test_products_of_planar_arrays_can_be_four_calls(gpu):
    rng = np.random.default_rng(4)
    A, B, C = (hostile(rng, 2, 3, *shape) for shape in ((6, 5), (5, 4), (6, 4)))
    configuration = Warp(1, 1, 1, 2)
    assert differing(A, B, C, layout="planar", configuration=configuration, alpha=0.7, beta=-2.0) == 0


# --- flat products, and those whose matrices come by Hopper's copy engine
@slow
@needs_compiler
@alternating(
    ("sizes", "side", "threads", "bulk"),
    [
        ((33, 35, 37), 48, (16, 8)),
        ((35, 34, 47), 48, (16, 6)),
        ((48, 47, 33), 48, (16, 16)),
        ((47, 41, 48), 64, (16, 8)),
        ((63, 50, 61), 64, (16, 16)),
        ((64, 63, 64), 64, (16, 32)),
        ((65, 79, 71), 80, (16, 8)),
        ((79, 77, 49), (80, 112, 64), (16, 16)),
        ((81, 47, 33), (96, 64, 64), (16, 32)),
        ((97, 111, 99), 112, (16, 8)),
        ((100, 90, 94), 112, (16, 16)),
        ((127, 121, 65), (128, 128, 80), (16, 16)),
        ((113, 35, 18), (128, 64, 32), (16, 32)),
        ((239, 17, 33), (240, 32, 48), (16, 16)),
    ],
)
def test_products_of_any_shape_have_the_emulators_bits(one, sizes, side, threads, bulk):
    separate = sum(sizes) % 2 == 1
    c = flat(side, threads, bulk=bulk, resident=1 if separate else MANY)
    A, B = drawn(1, 3 if max(sizes) < 90 else 2, *sizes)
    assert differing(A, B, configuration=c) == 0
    assert not bulk or shared_memory(c, Task(*sizes, contiguous=True)).result_apart == separate


@slow
@needs_compiler
@alternating(
    ("transposes", "sizes", "side", "threads", "bulk"),
    [
        (transposes, *shape)
        for pair, shape in (
            # what follows a line of whole eights is no part of it
            (("NN", "TT"), ((40, 24, 40), (48, 48, 64), (16, 8))),
            (("NT", "TN"), ((33, 35, 24), (48, 48, 64), (16, 8))),
            (("TT", "NN"), ((33, 35, 37), 48, (16, 8))),
            (("TN", "NT"), ((65, 50, 79), 80, (16, 16))),
            (("NN", "NT"), ((95, 33, 17), (96, 64, 32), (16, 32))),
        )
        for transposes in pair
    ],
)
def test_transposed_flat_products(one, sizes, side, threads, transposes, bulk):
    c = flat(side, threads, bulk=bulk, resident=1 if transposes == "TN" else MANY)
    assert differing(*drawn(2, 3, *sizes, transposes), configuration=c, **turned(transposes)) == 0


@slow
@needs_compiler
@pytest.mark.parametrize(
    ("most", "stages", "resident"), [(1, 1, 1), (3, 1, MANY), (3, 2, 1), (1, 2, MANY), (1, 4, 1), (3, 4, MANY)]
)
def test_thread_blocks_take_more_products_than_they_have_buffers_for(one, monkeypatch, most, stages, resident):
    monkeypatch.setattr(Code, "most", most)
    for batch in (1, 2 * stages + 3):
        assert differing(*drawn(4, batch, 33, 35, 37), configuration=flat(48, stages=stages, resident=resident)) == 0


@slow
@needs_compiler
@pytest.mark.parametrize(("tensor", "bulk"), [((8, 32, 16), True), ((32, 8, 16), True), ((32, 8, 16), False)])
def test_instructions_of_other_shapes_and_sums_of_fp16_added_to_c(one, tensor, bulk):
    c = replace(flat(64, (16, 16), bulk=bulk, resident=MANY), tensor=tensor)
    A, B = drawn(6, 3, 61, 63, 37)
    C = hostile(np.random.default_rng(6), 3, 61, 63)
    assert differing(A, B, C, configuration=c, alpha=1.7, beta=-0.3, accumulate="fp16") == 0
    assert differing(A, B, configuration=c, accumulate="fp16") == 0


@slow
@needs_compiler
@pytest.mark.parametrize(
    ("transposes", "count", "resident", "sizes", "side", "threads"),
    [
        ("NN", 4, 1, (33, 35, 37), 48, (16, 8)),
        ("CT", 3, MANY, (65, 63, 40), (80, 64, 48), (16, 16)),
        ("TC", 4, MANY, (33, 35, 37), 48, (16, 8)),
    ],
)
def test_interleaved_complex_products(one, transposes, count, resident, sizes, side, threads):
    A, B = drawn(7, 3, *sizes, transposes, parts=(2,))
    C = hostile(np.random.default_rng(7), 3, *sizes[:2], 2)
    how = {"layout": "interleaved", "products": count, **turned(transposes)}
    c = flat(side, threads, resident=resident)
    assert differing(A, B, configuration=c, **how) == 0
    assert differing(A, B, C, configuration=c, alpha=0.5 - 2j, beta=1.5j, algorithm="fused", **how) == 0


@slow
@needs_compiler
def test_flat_products_whose_tiles_have_the_memory_of_what_was_copied_and_several_of_a_thread_block(one):
    c = flat(128, (16, 16), stages=2, bulk=False)
    assert not shared_memory(c, Task(127, 125, 121, contiguous=True)).matrices_apart
    assert differing(*drawn(8, 2, 127, 125, 121), configuration=c) == 0
    c = flat(48, products=2, persistent=False, bulk=False)
    assert differing(*drawn(9, 5, 33, 35, 37), configuration=c) == 0
    c = flat((16, 32, 16), (16, 2), persistent=False, bulk=False)
    assert differing(*drawn(5, 3, 9, 21, 15, parts=(2,)), configuration=c, layout="interleaved") == 0


@slow
@needs_compiler
@alternating(("elements", "bulk"), [(0,), (1,), (3,), (7,), (5,)])
def test_stacks_may_begin_and_end_between_two_multiples_of_16_bytes(one, monkeypatch, elements, bulk):
    """They begin so many elements after a multiple of 16 bytes, or end so many before a page."""
    fenced = harness.fenced

    def moved(x, at_end):
        room = np.full(elements * (2 if x.ndim == 4 else 1), 0xCDCD, np.uint16).view(np.float16)
        own = fenced(np.concatenate((x.ravel(), room) if at_end else (room, x.ravel())), at_end)
        return (own[: x.size] if at_end else own[room.size :]).reshape(x.shape)

    monkeypatch.setattr(harness, "fenced", moved)
    for batch, *sizes in ((3, 33, 35, 37), (3, 40, 32, 48), (1, 33, 34, 35)):
        assert differing(*drawn(10, batch, *sizes), configuration=flat(48, bulk=bulk)) == 0, sizes
    A, B = drawn(10, 2, 19, 33, 17, parts=(2,))
    assert differing(A, B, configuration=flat(48, bulk=bulk), layout="interleaved") == 0
    for sizes in ((1, 1, 1), (1, 3, 2), (2, 2, 5)):  # matrices share 16 bytes with their neighbours
        for batch in (1, 9):
            assert differing(*drawn(11, batch, *sizes), configuration=flat(16, (16, 2), bulk=bulk)) == 0, sizes
    for N in (7, 35):  # a single row that does not end at a multiple of 16 bytes
        A, B = drawn(12, 1, 1, N, 8, "NT")
        assert differing(A, B, configuration=flat(48, bulk=bulk), transb="T") == 0


# --- the kernels' own counts
@slow
@needs_compiler
def test_rows_and_lines_map_to_each_other_for_blocks_of_any_side():
    for side in (16, 32, 48, 64, 112, 128, 240, 256):
        source = plan(Task(side, 31, 16, contiguous=True), flat((side, 32, 16), (16, 4), bulk=False)).source
        of_kernel = """
#include "batched_contiguous.cuh"
extern "C" int line(int row) { return line_of_row(row); }
extern "C" int row(int line) { return row_of_line(line); }
"""
        library = ctypes.CDLL(harness.library(harness.head(source) + of_kernel))
        lines = [library.line(row) for row in range(side)]
        assert sorted(lines) == list(range(side)), side
        assert [library.row(line) for line in lines] == list(range(side)), side
        assert (lines == list(range(side))) == (side <= 32), side


@slow
@needs_compiler
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("resident", [1, 2, MANY])
def test_the_configuration_counts_the_bytes_that_the_kernel_has(stages, resident):
    seen = set()
    for task, side in (
        (Task(33, 35, 37, contiguous=True), 48),
        (Task(79, 65, 71, contiguous=True, a_along_k=False, b_along_k=True), 80),
        (Task(90, 94, 94, contiguous=True, width=4), (96, 112, 96)),
        (Task(1, 90, 8, contiguous=True), (16, 96, 16)),
        (Task(45, 46, 47, complex=True, contiguous=True, width=4), 48),
    ):
        c = flat(side, (16, 2), stages=stages, resident=resident)
        shared, _, separate = shared_memory(c, task)
        seen.add(separate)
        counts = f'static_assert(SHARED == {shared} && STAGE_APART == {int(separate)}, "bytes");'
        of_kernel = f'\n#include "batched_block.cuh"\n{counts}\n'
        harness.library(harness.head(plan(task, c).source) + of_kernel, "-fsyntax-only")
    assert (True in seen) if resident == 1 else (False in seen) if resident == MANY else seen


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernels_compile_for_gpus(arch):
    small = Block((16, 16, 16), (16, 16, 16), (8, 4), 2, 1, direct=True, staged=True)
    early = Block((16, 16, 16), (16, 16, 16), (8, 4), 1, 2, direct=True, staged=True, persistent=True, ahead=True)
    for task, configuration in (
        (Task(16, 16, 16, width=16), small),
        (Task(15, 15, 15, contiguous=True), early),
        (Task(33, 35, 37, contiguous=True), flat(48, stages=2, resident=2)),
        (Task(9, 9, 9, complex=True, width=4, plain=False), Warp(1, 1, 1, 4)),
        (Task(7, 7, 7), Packed()),
        (Task(3, 3, 3, complex=True, products=3, width=4, accumulate="fp16"), Small()),
    ):
        made = plan(task, configuration)
        assert compiler.compile(made.source, arch, name=made.name)[:4] == b"\x7fELF"


@slow
@needs_nvrtc
def test_the_widest_kernels_in_bulk_of_the_table_need_no_local_memory():
    rows = [(name, *row) for name, of_form in table().items() if name != "measured" for row in of_form.items()]
    found = [(parse(line), task_of(int(most), name.startswith("complex"))) for name, most, line in rows]
    found = sorted(
        ((c, task) for c, task in found if getattr(c, "bulk", False)), key=lambda row: (-row[1].M, row[1].width)
    )
    widest = [(c, task) for c, task in found if task.M == found[0][1].M or c.threads == (16, 16)][:2]
    crowded = max(found, key=lambda row: row[0].resident * row[0].warps * row[1].M)
    for c, task in (*widest, crowded):
        made = plan(task, c)
        assert frames(compiler.compile(made.source, "sm_90a", name=made.name)) == [0], text(c)


# --- what a GPU returned
@pytest.mark.parametrize(
    ("name", "failed"), [("h200_batched.json", 0), pytest.param("h200_batched_bulk.json", 3, marks=slow)]
)
def test_the_records_have_no_mismatch_and_their_products_can_be_emulated_again(name, failed):
    record = Record.read(VERIFIED / name)
    assert record.total("mismatches") == 0
    assert record.text() == (VERIFIED / name).read_text()
    # three cases required more shared memory than a thread block has; the kernels require less now
    errors = [line for outcome in record.outcomes for line in outcome.first]
    assert len(errors) == record.total("failed") == failed
    assert all("bytes of shared memory, and a thread block has" in line for line in errors)
    assert failed or [outcome.group for outcome in record.outcomes] == list(Batched().groups)
    for outcome in record.outcomes:
        number, digest = list(outcome.digests.items())[-1 if failed else 0]
        assert Batched(record.seed).replay(record, outcome, number) == digest, outcome.group
