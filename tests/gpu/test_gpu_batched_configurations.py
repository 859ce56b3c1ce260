"""Configurations of the batched kernels: their constraints, the table of the fastest, and its measurement."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks import tuning
from fpemu import InputError
from fpemu.gpu.batched import configuration as conf
from fpemu.gpu.batched.configuration import Block, Limits, Packed, Small, Task
from tests import simulated_driver
from tests.commands import refusal
from tests.gpu_fixtures import forget, gpu

__all__ = ["gpu"]
ORDINARY = Task(64, 64, 64, width=16)
CONTIGUOUS = Task(33, 35, 37, contiguous=True)
BULK = Block((16, 16, 16), (48, 48, 48), (16, 8), 1, 1, True, flat=True, persistent=True, bulk=True)


@pytest.mark.parametrize(
    ("configuration", "task", "said"),
    [
        (Block(block=(64, 64, 40)), ORDINARY, "TC_K = 16 does not divide BLK_K = 40"),
        (Block(threads=(64, 1)), ORDINARY, "DIM_X = 64 does not divide BLK_M = 32"),
        (Block(threads=(8, 2)), ORDINARY, "is not a multiple of 32"),
        (Block(block=(64, 64, 32), stages=1), ORDINARY, "stages = 1 is for other products"),
        (Block(stages=3), ORDINARY, "stages = 3 is for other products"),
        (Block(block=(256, 256, 256), threads=(16, 16), stages=2), ORDINARY, "bytes of shared memory"),
        (Block(products=16), ORDINARY, "barriers for 15"),
        (Block(staged=True), Task(64, 64, 64, complex=True, width=16), "staged = True is for other products"),
        (replace(BULK, flat=False), CONTIGUOUS, "bulk = True is for other products"),
        (replace(BULK, persistent=False), CONTIGUOUS, "bulk = True is for other products"),
        (Packed(), ORDINARY, "8 is the longest side"),
        (Small(), ORDINARY, "32 is the longest side"),
    ],
)
def test_a_configuration_is_refused_by_the_name_of_what_is_wrong(configuration, task, said):
    with pytest.raises(InputError, match=said):
        conf.validate(configuration, task)


def test_several_products_in_an_instruction_keep_to_its_sums():
    conf.validate(Packed(), Task(4, 4, 4), Limits(block_of=8))
    with pytest.raises(InputError, match="K = 3 lies across the 8 products"):
        conf.validate(Packed(), Task(3, 3, 3), Limits(block_of=8))


def test_bulk_is_refused_and_left_out_where_there_is_no_copy_engine():
    c = replace(BULK, stages=2, resident=3)
    conf.validate(c, CONTIGUOUS)
    with pytest.raises(InputError, match=r"bulk = True is for other products or GPUs"):
        conf.validate(c, CONTIGUOUS, Limits(hopper=False))
    assert conf.fitted(c, CONTIGUOUS) == c
    assert conf.fitted(c, CONTIGUOUS, hopper=False) == replace(c, bulk=False)
    for changes in ({"contiguous": False}, {"K": 49}, {"complex": True, "planar": True}):
        task = replace(CONTIGUOUS, **changes)
        fitted = conf.fitted(c, task)
        assert not fitted.bulk, task
        conf.validate(fitted, task)


def test_a_result_is_apart_where_as_many_thread_blocks_fit_with_it():
    task, separate = Task(63, 63, 63, contiguous=True), []
    for resident in range(1, 17):
        c = replace(BULK, block=(64, 64, 64), resident=resident)
        need, _, apart = conf.shared_memory(c, task)
        separate.append(apart)
        assert need <= conf.SHARED
        assert not separate[-1] or resident * (need + 1024) <= 228 * 1024
    assert separate == sorted(separate, reverse=True)
    assert set(separate) == {True, False}


# --- choices
def tasks():
    """Square products of all sizes and alignments, and some that are not square."""
    for size in (*range(1, 131), 300):
        for is_complex in (False, True):
            task = tuning.task_of(size, is_complex)
            yield from {task, replace(task, width=2 + 2 * is_complex), replace(task, accumulate="fp16")}
    yield from (Task(33, 35, 40, contiguous=True), Task(1, 127, 64, contiguous=True), Task(47, 46, 1, contiguous=True))


def test_lines_of_the_table_are_read_back_and_nonsense_is_refused():
    for task in (ORDINARY, tuning.task_of(7, False), tuning.task_of(40, True)):
        for c in tuning.candidates(task):
            assert conf.parse(conf.text(c)) == c
            conf.validate(c, task)
    assert conf.text(replace(BULK, resident=3)).endswith("stages=1 direct=1 flat=1 persistent=1 bulk=1 resident=3")
    for line in ("blok", "block tensro=1", "warp rows=x", "warp rows=1x2", "block tensor=1", ""):
        with pytest.raises(InputError):
            conf.parse(line)


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0)])
def test_every_size_has_a_valid_configuration_on_every_gpu(gpu, monkeypatch, capability):
    """GPUs before Hopper never get bulk copies."""
    from cuda import core

    older = SimpleNamespace(**{**vars(simulated_driver.GPU), "compute_capability": capability})
    monkeypatch.setattr(core, "Device", lambda number: older)
    forget()
    for task in tasks():
        for found in (conf.choose(task), conf.fitted(conf.by_size(task), task)):
            conf.validate(found, task, conf.limits(task.accumulate))
            assert capability >= (9, 0) or not getattr(found, "bulk", False)


def test_hopper_gets_the_configurations_of_the_table(gpu):
    rows = [(name, of_form) for name, of_form in conf.table().items() if name != "measured"]
    for name, of_form in rows:
        before = 0
        for most, line in of_form.items():
            c, sizes = conf.parse(line), range(before + 1, int(most) + 1)
            of_row = [tuning.task_of(n, name.startswith("complex")) for n in sizes]
            of_row = [task for task in of_row if conf.form(task) == name]
            assert of_row, (name, most)
            for task in of_row:
                conf.validate(c, task)
                assert conf.choose(task) == c, (name, task)
            before = int(most)
    assert any("bulk=1" in line for _, of_form in rows for line in of_form.values())


# --- tune
@pytest.mark.parametrize("sizes", ["x", "9-2", "0-3", "2000"])
def test_tune_refuses_sizes_that_are_none(capsys, sizes):
    assert "--sizes" in refusal(capsys, "tune", "batched", "--sizes", sizes)
