"""Flat products and those whose matrices come by Hopper's copy engine: bits, neighbours, memory, and who gets them."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tuning
from fpemu import InputError, mma
from fpemu.gpu.batched import choice, memory
from fpemu.gpu.batched import configuration as conf
from fpemu.gpu.batched.configuration import Block
from fpemu.gpu.batched.source import TaskKernel, plan
from fpemu.gpu.batched.task import Task
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import compiler, device, modules
from fpemu.verification.batched import Batched
from fpemu.verification.records import Record
from tests import batched_on_cpu as harness
from tests.batched_on_cpu import Simulated, differing, gpu, hostile, needs_compiler
from tests.gpu.test_gpu_batched import needs_nvrtc
from tests.gpu.test_gpu_tensorcores_choice import frames

pytestmark = pytest.mark.slow

__all__ = ["gpu"]

MANY = 16
"""`resident` of blocks for which D has the tiles' memory"""
SHARED = 227 * 1024
RECORD = Path(__file__).parents[1] / "data" / "verified" / "h200_batched_bulk.json"


def flat(side, threads=(16, 8), **ways):
    sides = side if isinstance(side, tuple) else (side,) * 3
    known = {"stages": 1, "direct": True, "flat": True, "persistent": True, "bulk": True}
    return Block(block=sides, threads=threads, **(known | ways))


class Watched(Simulated):
    """A kernel that aborts if it writes shared memory beyond the size of its launch."""

    def prepare(self, name, grid, block, *args, shared=0, **options):
        made = super().prepare(name, grid, block, *args, shared=shared, **options)
        memory = (ctypes.c_ubyte * (1 << 18)).in_dll(self.library, "memory")
        queue = made.queue

        def watched(stream=0):
            queue(stream)
            if (np.frombuffer(memory, np.uint8)[shared:] != 0x7E).any():
                os.abort()

        made.queue = watched
        return made


@pytest.fixture
def one(gpu, monkeypatch):
    """One thread block takes all products."""
    monkeypatch.setattr(modules, "Module", Watched)
    monkeypatch.setattr(
        TaskKernel, "blocks", lambda self, M, N, batch: 1 if self.persistent else -(-batch // self.groups)
    )


def drawn(seed, batch, M, N, K, transposes="NN", parts=()):
    """A and B as they lie in memory."""
    rng = np.random.default_rng([seed, M, N, K])
    a, b = ((K, M) if transposes[0] != "N" else (M, K)), ((N, K) if transposes[1] != "N" else (K, N))
    return hostile(rng, batch, *a, *parts), hostile(rng, batch, *b, *parts)


def turned(transposes):
    return {"transa": transposes[0], "transb": transposes[1]}


# ---- bits
@needs_compiler
@pytest.mark.parametrize("bulk", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("sizes", "side", "threads"),
    [
        ((33, 35, 37), 48, (16, 8)),
        pytest.param(*((35, 34, 47), 48, (16, 6)), marks=pytest.mark.slow),
        pytest.param(*((48, 47, 33), 48, (16, 16)), marks=pytest.mark.slow),
        ((47, 41, 48), 64, (16, 8)),
        pytest.param(*((63, 50, 61), 64, (16, 16)), marks=pytest.mark.slow),
        ((64, 63, 64), 64, (16, 32)),
        pytest.param(*((65, 79, 71), 80, (16, 8)), marks=pytest.mark.slow),
        ((79, 77, 49), (80, 112, 64), (16, 16)),
        pytest.param(*((81, 47, 33), (96, 64, 64), (16, 32)), marks=pytest.mark.slow),
        pytest.param(*((97, 111, 99), 112, (16, 8)), marks=pytest.mark.slow),
        pytest.param(*((100, 90, 94), 112, (16, 16)), marks=pytest.mark.slow),
        ((127, 121, 65), (128, 128, 80), (16, 16)),
        ((113, 35, 18), (128, 64, 32), (16, 32)),
        pytest.param(*((239, 17, 33), (240, 32, 48), (16, 16)), marks=pytest.mark.slow),
    ],
)
def test_products_of_any_shape_have_the_emulators_bits(one, sizes, side, threads, bulk):
    apart = sum(sizes) % 2 == 1
    c = flat(side, threads, bulk=bulk, resident=1 if apart else MANY)
    A, B = drawn(1, 3 if max(sizes) < 90 else 2, *sizes)
    assert differing(A, B, configuration=c) == 0
    if bulk:
        task = Task(*sizes, contiguous=True)
        assert memory.result_apart(c, task) == apart


@needs_compiler
@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("transposes", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("sizes", [(40, 24, 40), (33, 35, 24)])
@pytest.mark.slow
def test_what_follows_a_line_of_whole_eights_is_no_part_of_it(one, sizes, transposes, bulk):
    A, B = drawn(2, 3, *sizes, transposes)
    c = flat((48, 48, 64), bulk=bulk)
    assert differing(A, B, configuration=c, **turned(transposes)) == 0


@needs_compiler
@pytest.mark.parametrize("transposes", ["TN", "NT", "TT"])
@pytest.mark.parametrize(
    ("sizes", "side", "threads"),
    [((33, 35, 37), 48, (16, 8)), ((65, 50, 79), 80, (16, 16)), ((95, 33, 17), (96, 64, 32), (16, 32))],
)
@pytest.mark.slow
def test_lines_run_the_other_way_where_operands_are_transposed(one, transposes, sizes, side, threads):
    A, B = drawn(3, 2, *sizes, transposes)
    c = flat(side, threads, resident=1 if transposes == "TN" else MANY)
    assert differing(A, B, configuration=c, **turned(transposes)) == 0


@needs_compiler
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("resident", [1, MANY])
@pytest.mark.slow
def test_a_thread_block_takes_more_products_than_it_has_buffers_for(one, stages, resident):
    c = flat(48, stages=stages, resident=resident)
    for batch in (1, 2 * stages + 3):
        A, B = drawn(4, batch, 33, 35, 37)
        assert differing(A, B, configuration=c) == 0, batch


@needs_compiler
def test_thread_blocks_take_products_in_turns(one, monkeypatch):
    monkeypatch.setattr(TaskKernel, "blocks", lambda self, M, N, batch: 3)
    A, B = drawn(5, 8, 35, 33, 34)
    assert differing(A, B, configuration=flat(48, stages=2)) == 0


@needs_compiler
@pytest.mark.parametrize(
    ("tensor", "bulk"),
    [((8, 32, 16), True), pytest.param((32, 8, 16), True, marks=pytest.mark.slow), ((32, 8, 16), False)],
)
def test_instructions_of_other_shapes_and_sums_of_fp16_added_to_c(one, tensor, bulk):
    c = replace(flat(64, (16, 16), bulk=bulk, resident=MANY), tensor=tensor)
    A, B = drawn(6, 3, 61, 63, 37)
    C = hostile(np.random.default_rng(6), 3, 61, 63)
    assert differing(A, B, C, configuration=c, alpha=1.7, beta=-0.3, accumulate="fp16") == 0
    assert differing(A, B, configuration=c, accumulate="fp16") == 0


@needs_compiler
@pytest.mark.parametrize(
    ("transposes", "products", "resident"),
    [
        pytest.param("NN", 4, 1, marks=pytest.mark.slow),
        ("CT", 3, MANY),
        pytest.param("TC", 4, MANY, marks=pytest.mark.slow),
    ],
)
def test_interleaved_complex_products(one, transposes, products, resident):
    for sizes, side, threads in (((33, 35, 37), 48, (16, 8)), ((65, 63, 40), (80, 64, 48), (16, 16))):
        A, B = drawn(7, 3, *sizes, transposes, parts=(2,))
        C = hostile(np.random.default_rng(7), 3, *sizes[:2], 2)
        how = {"layout": "interleaved", "products": products, **turned(transposes)}
        c = flat(side, threads, resident=resident)
        assert differing(A, B, configuration=c, **how) == 0
        assert differing(A, B, C, configuration=c, alpha=0.5 - 2j, beta=1.5j, algorithm="fused", **how) == 0


@needs_compiler
def test_flat_products_whose_tiles_have_the_memory_of_what_was_copied(one):
    sizes = 127, 125, 121
    c = flat(128, (16, 16), stages=2, bulk=False)
    assert not memory.apart(c, Task(*sizes, contiguous=True))
    A, B = drawn(8, 2, *sizes)
    assert differing(A, B, configuration=c) == 0


@needs_compiler
def test_several_flat_products_of_a_thread_block(one):
    A, B = drawn(9, 5, 33, 35, 37)
    assert differing(A, B, configuration=flat(48, products=2, persistent=False, bulk=False)) == 0


# ---- ends of a stack
@pytest.fixture
def set_off(monkeypatch):
    """Stacks begin so many bytes after a multiple of 16, or end so many before a page."""
    fenced = harness.fenced

    def begin(elements):
        def moved(x, at_end):
            room = np.full(elements, 0xCDCD, np.uint16).view(np.float16)
            parts = (x.ravel(), room) if at_end else (room, x.ravel())
            own = fenced(np.concatenate(parts), at_end)
            return (own[: x.size] if at_end else own[elements:]).reshape(x.shape)

        monkeypatch.setattr(harness, "fenced", moved)

    return begin


@needs_compiler
@pytest.mark.parametrize(
    ("elements", "bulk"),
    [
        pytest.param(1, True, marks=pytest.mark.slow),
        (3, True),
        pytest.param(7, True, marks=pytest.mark.slow),
        (5, False),
    ],
)
def test_stacks_may_begin_and_end_between_two_multiples_of_16_bytes(one, set_off, elements, bulk):
    set_off(elements)
    for batch, *sizes in ((3, 33, 35, 37), (3, 40, 32, 48), (1, 33, 34, 35)):
        A, B = drawn(10, batch, *sizes)
        assert differing(A, B, configuration=flat(48, bulk=bulk)) == 0, sizes
    set_off(2 * elements)
    A, B = drawn(10, 2, 19, 33, 17, parts=(2,))
    assert differing(A, B, configuration=flat(48, bulk=bulk), layout="interleaved") == 0


@needs_compiler
@pytest.mark.parametrize("elements", [0, 5])
@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 3, 2), (2, 2, 5)])
@pytest.mark.slow
def test_matrices_of_less_than_16_bytes_share_a_piece_with_their_neighbours(one, set_off, elements, bulk, sizes):
    set_off(elements)
    for batch in (1, 9):
        A, B = drawn(11, batch, *sizes)
        assert differing(A, B, configuration=flat(16, (16, 2), bulk=bulk)) == 0, batch


@needs_compiler
@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("N", [7, 35])
@pytest.mark.slow
def test_a_single_row_may_begin_at_a_multiple_of_16_bytes_and_not_end_at_one(one, set_off, N, bulk):
    set_off(0)
    A, B = drawn(12, 1, 1, N, 8, "NT")
    assert differing(A, B, configuration=flat(48, bulk=bulk), transb="T") == 0


# ---- what the kernel's text says
def head(task, c):
    """What comes before the kernel's text."""
    text = plan(task, c).source
    spec = mma.spec("hopper", "fp16", "fp32", "mma")
    return "\n".join([emulation.definition(spec), harness._TOGETHER, text[: text.index("\n};") + 3]])


@needs_compiler
@pytest.mark.parametrize(
    "sides", [(16, 48, 128, 240), pytest.param(range(16, 257, 16), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_rows_and_lines_map_to_each_other_for_blocks_of_any_side(tmp_path, sides):
    for side in sides:
        task = Task(side, 31, 16, contiguous=True)
        text = head(task, flat((side, 32, 16), (16, 4), bulk=False))
        text += '\n#include "batched_contiguous.cuh"\nextern "C" int line(int row) { return line_of_row(row); }\n'
        text += 'extern "C" int row(int line) { return row_of_line(line); }\n'
        (tmp_path / f"{side}.cpp").write_text(text)
        made = str(tmp_path / f"{side}.so")
        common = str(harness._folder() / "common.h")
        harness._compile("-include", common, "-shared", str(tmp_path / f"{side}.cpp"), "-o", made)
        library = ctypes.CDLL(made)
        lines = [library.line(row) for row in range(side)]
        assert sorted(lines) == list(range(side)), side
        assert [library.row(line) for line in lines] == list(range(side)), side
        assert (lines == list(range(side))) == (side <= 32), side


@needs_compiler
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("resident", [1, 2, MANY])
def test_the_configuration_counts_the_bytes_that_the_kernel_has(tmp_path, stages, resident):
    seen = set()
    for number, (task, side) in enumerate(
        (
            (Task(33, 35, 37, contiguous=True), 48),
            (Task(79, 65, 71, contiguous=True, a_along_k=False, b_along_k=True), 80),
            (Task(90, 94, 94, contiguous=True, width=4), (96, 112, 96)),
            (Task(1, 90, 8, contiguous=True), (16, 96, 16)),
            (Task(45, 46, 47, complex=True, contiguous=True, width=4), 48),
        )
    ):
        c = flat(side, (16, 2), stages=stages, resident=resident)
        apart, shared = memory.result_apart(c, task), memory.shared_bytes(c, task)
        seen.add(apart)
        text = (
            f'#include "batched_block.cuh"\nstatic_assert(SHARED == {shared} && STAGE_APART == {int(apart)}, "bytes");'
        )
        file = tmp_path / f"{number}.cpp"
        file.write_text(f"{head(task, c)}\n{text}\n")
        harness._compile("-include", str(harness._folder() / "common.h"), "-fsyntax-only", str(file))
    assert (True in seen) if resident == 1 else (False in seen) if resident == MANY else seen


# ---- configurations
@pytest.mark.parametrize("missing", ["flat", "persistent"])
def test_bulk_is_refused_by_name_without_what_it_needs(missing):
    task = Task(33, 35, 37, contiguous=True)
    conf.validate(flat(48), task)
    with pytest.raises(InputError, match="bulk is for flat products of persistent thread blocks"):
        conf.validate(replace(flat(48), **{missing: False}), task)


def test_bulk_is_refused_and_left_out_where_there_is_no_copy_engine():
    c, task = flat(48, stages=2, resident=3), Task(33, 35, 37, contiguous=True)
    with pytest.raises(InputError, match=r"compute capability 9\.0"):
        conf.validate(c, task, bulk=False)
    assert conf.fitted(c, task) == c
    assert conf.fitted(c, task, bulk=False) == replace(c, bulk=False)
    for other in (replace(task, contiguous=False), replace(task, K=49), replace(task, complex=True, planar=True)):
        found = conf.fitted(c, other)
        assert not found.bulk, other
        conf.validate(found, other)


def test_bulk_is_written_and_read_back():
    c = flat((48, 64, 80), (16, 16), stages=2, resident=3)
    assert conf.text(c).endswith("stages=2 direct=1 flat=1 persistent=1 bulk=1 resident=3")
    assert conf.parse(conf.text(c)) == c
    assert "bulk" not in conf.text(replace(c, bulk=False))


def test_a_result_is_apart_where_as_many_thread_blocks_fit_with_it():
    task = Task(63, 63, 63, contiguous=True)
    seen = []
    for resident in range(1, 17):
        c = flat(64, resident=resident)
        need = memory.shared_bytes(c, task)
        seen.append(memory.result_apart(c, task))
        assert need <= SHARED
        assert not seen[-1] or resident * (need + 1024) <= 228 * 1024
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {True, False}


# ---- choices
@pytest.fixture
def on(monkeypatch):
    """The GPU that `choose` queries has a compute capability."""

    def of(capability):
        monkeypatch.setattr(device, "missing", lambda: None)
        monkeypatch.setattr(device, "capability", lambda: capability)
        monkeypatch.setattr(device, "arch", lambda: "sm_{}{}".format(*capability))
        choice.limits.cache_clear()
        choice.choose.cache_clear()

    yield of
    choice.limits.cache_clear()
    choice.choose.cache_clear()


def tasks():
    """Square products of all sizes and alignments, and some that are not square."""
    for size in range(1, 131):
        for complex in (False, True):
            task = tuning.task_of(size, complex)
            yield from {task, replace(task, width=2 + 2 * complex), replace(task, accumulate="fp16")}
    yield from (Task(33, 35, 40, contiguous=True), Task(1, 127, 64, contiguous=True), Task(47, 46, 1, contiguous=True))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9)])
def test_a_gpu_before_hopper_never_gets_bulk(on, capability):
    on(capability)
    for task in tasks():
        found = choice.choose(task, 1000)
        assert not getattr(found, "bulk", False), task
        conf.validate(found, task, **choice.limits(task.accumulate))


def test_hopper_gets_what_the_table_has(on):
    on((9, 0))
    rows = [(name, rows) for name, rows in choice.table().items() if name != "measured"]
    for name, of_form in rows:
        before = 0
        for most, line in of_form.items():
            complex, c = name.startswith("complex"), conf.parse(line)
            here = [
                t
                for t in (tuning.task_of(n, complex) for n in range(before + 1, int(most) + 1))
                if choice.form(t) == name
            ]
            assert here, (name, most)
            for task in here:
                conf.validate(c, task)
                assert choice.choose(task, 1000) == c, (name, task)
            before = int(most)
    assert any("bulk=1" in line for _, of_form in rows for line in of_form.values())
    for task in tasks():
        conf.validate(choice.choose(task, 1000), task, **choice.limits(task.accumulate))


# ---- GPUs
def in_bulk():
    """The table's configurations in bulk with the largest task of each, the widest first."""
    found = []
    for name, rows in choice.table().items():
        for most, line in rows.items() if name != "measured" else ():
            c = conf.parse(line)
            if getattr(c, "bulk", False):
                found.append((c, tuning.task_of(int(most), name.startswith("complex"))))
    return sorted(found, key=lambda row: (-row[1].M, row[1].width))


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_in_bulk_compiles_for_gpus(arch):
    task = Task(33, 35, 37, contiguous=True)
    made = plan(task, flat(48, stages=2, resident=2))
    assert compiler.compile(made.source, arch, name=made.name)[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.slow
def test_the_widest_kernels_in_bulk_of_the_table_need_no_local_memory():
    found = in_bulk()
    assert found
    widest = [(c, task) for c, task in found if task.M == found[0][1].M or c.threads == (16, 16)][:2]
    crowded = max(found, key=lambda row: row[0].resident * row[0].warps * row[1].M)
    for c, task in (*widest, crowded):
        made = plan(task, c)
        assert frames(compiler.compile(made.source, "sm_90a", name=made.name)) == [0], conf.text(c)


# ---- what a GPU returned
def test_the_record_with_these_kernels_has_no_mismatch_and_can_be_emulated_again():
    record = Record.read(RECORD)
    assert record.total("mismatches") == 0
    # three cases required more shared memory than a thread block has; the kernels require less now
    errors = [text for outcome in record.outcomes for text in outcome.first]
    assert len(errors) == record.total("failed") == 3
    assert all("bytes of shared memory, and a thread block has" in text for text in errors)
    for outcome in record.outcomes:
        number, digest = list(outcome.digests.items())[-1]
        assert Batched(record.seed).replay(record, outcome, number) == digest, outcome.group
