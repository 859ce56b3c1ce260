"""Configurations of the batched kernels: which are valid, the table of the fastest, and how it is measured."""

from __future__ import annotations

import shlex
import tomllib

import pytest

from benchmarks import tuning
from fpemu import InputError
from fpemu.cli import main
from fpemu.gpu.batched import choice, products
from fpemu.gpu.batched import configuration as conf
from fpemu.gpu.batched.configuration import Block, Packed, Small, Warp
from fpemu.gpu.batched.task import Task
from fpemu.gpu.runtime import device
from tests.commands import refusal

ORDINARY = Task(64, 64, 64, width=16)


@pytest.mark.parametrize(
    ("configuration", "task", "said"),
    [
        (Block(block=(64, 64, 40)), ORDINARY, "TC_K = 16 does not divide BLK_K = 40"),
        (Block(threads=(64, 1)), ORDINARY, "DIM_X = 64 does not divide BLK_M = 32"),
        (Block(threads=(8, 2)), ORDINARY, "is not a multiple of 32"),
        (Block(block=(64, 64, 32), stages=1), ORDINARY, "needs BLK_K = 32 to be K = 64"),
        (Block(stages=3), ORDINARY, "stages = 3 needs direct"),
        (Block(block=(256, 256, 256), threads=(16, 16), stages=2), ORDINARY, "bytes of shared memory"),
        (Block(products=16), ORDINARY, "barriers for 15"),
        (Block(staged=True), Task(64, 64, 64, complex=True, width=16), "not for interleaved"),
        (Packed(), ORDINARY, "8 is the longest side"),
        (Small(), ORDINARY, "32 is the longest side"),
        (Warp(warps=0), ORDINARY, "warps = 0 must be a positive integer"),
    ],
)
def test_a_configuration_is_refused_by_the_name_of_what_is_wrong(configuration, task, said):
    with pytest.raises(InputError, match=said):
        conf.validate(configuration, task)


def test_several_products_in_an_instruction_keep_to_its_sums():
    conf.validate(Packed(), Task(4, 4, 4), block_of=8)
    with pytest.raises(InputError, match="K = 3 lies across the 8 products"):
        conf.validate(Packed(), Task(3, 3, 3), block_of=8)


def test_lines_of_the_table_are_read_back_and_nonsense_is_refused():
    for task in (ORDINARY, tuning.task_of(7, False), tuning.task_of(40, True)):
        for c in tuning.candidates(task):
            assert conf.parse(conf.text(c)) == c
            conf.validate(c, task)
    for line in ("blok", "block tensro=1", "warp rows=x", ""):
        with pytest.raises(InputError):
            conf.parse(line)


def test_every_size_has_a_valid_configuration_and_the_table_only_valid_ones():
    for name, rows in choice.table().items():
        if name != "measured":
            for line in rows.values():
                conf.parse(line)
    for size in (*range(1, 131), 300):
        for is_complex in (False, True):
            task = tuning.task_of(size, is_complex)
            for found in (choice.choose(task, 1000), conf.fitted(choice.by_size(task), task)):
                conf.validate(found, task)


@pytest.mark.parametrize("sizes", ["x", "9-2", "0-3", "2000"])
def test_tune_refuses_sizes_that_are_none(capsys, sizes):
    assert "--sizes" in refusal(capsys, "tune", "batched", "--sizes", sizes)


def test_an_interrupted_sweep_goes_on_and_writes_its_table_at_last(monkeypatch, tmp_path, capsys):
    from fpemu.cli import bench

    monkeypatch.setattr(bench, "missing", lambda: None)
    monkeypatch.setattr(products, "need_gpu", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: {"gpu": "NVIDIA H200", "nvrtc": "13.0"})
    monkeypatch.setattr(tuning, "compile_all", lambda tasks: list(tasks))
    out, seen = tmp_path / "t.toml", []

    def measure(size, complex, batch):
        if size == 8 and not out.exists() and 8 not in seen:
            seen.append(8)
            raise KeyboardInterrupt
        seen.append(size)
        return [tuning.Measured(*tuning.place(size, complex), "warp rows=1 columns=1 steps=1 warps=8", 1.0)]

    monkeypatch.setattr(tuning, "measure", measure)
    command = ["tune", "batched", "--sizes", "7-9", "--forms", "real", "--batch", "10", "--out", str(out)]
    assert (main(command), out.exists(), seen) == (130, False, [7, 8])
    assert f"'fpemu {shlex.join(command)}' continues from them" in capsys.readouterr().err
    assert main(command) == 0
    assert seen == [7, 8, 8, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["t.toml"]
    assert set(tomllib.loads(out.read_text())) == {"measured", "real 2", "real 16"}
