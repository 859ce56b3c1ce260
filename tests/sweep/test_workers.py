"""The order in which workers take cells, their GPUs, and the rate from which the time left is estimated."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from fpemu.errors import InputError
from fpemu.reproduce import pages
from fpemu.sweep import Grid, Store, run
from fpemu.sweep.run import estimate, survey
from fpemu.sweep.store import Result
from fpemu.sweep.workers import Workers, _Queues, _share, chosen_gpus, visible
from tests import toy

PAGE = """
import os

PAPER, CAPTION, ASSUMPTIONS = "A paper", "a caption", []


def cells(size):
    return [{"n": n} for n in range(12)]


def evaluate(cell):
    return {"gpu": float(os.environ["CUDA_VISIBLE_DEVICES"]), "process": os.getpid()}


def draw(rows):
    raise ValueError("not drawn")

"""


def _grid(M, sb, seeds):
    return Grid(inputs="uniform", schemes=[{"name": "h2sgemm", "sb": sb}], hardware="A100", M=M, N=M, K=M, seeds=seeds)


def _todo(grid):
    return {str(number): cell for number, cell in enumerate(grid.cells())}


def test_a_worker_ends_a_set_of_operands_before_it_begins_another():
    grid = _grid(1024, [10, 11, 12, 13], 2)
    queues, order = _Queues(grid, _todo(grid)), []
    for slot in (0, 1, 1, 0, 0, 0, 0, 1, 1, 0):
        order.append([name for name, _ in queues.task(slot)])
    # slot 0 has no cells after its four, and takes half of those that slot 1 has left
    assert order == [["0"], ["4"], ["5"], ["1"], ["2"], ["3"], ["7"], ["6"], [], []]


def test_quick_cells_are_one_task_and_pages_cells_are_single():
    grid = _grid(32, list(range(60)), 2)
    queues, sizes = _Queues(grid, _todo(grid)), []
    while task := queues.task("slot"):
        assert len({cell["seed"] for _, cell in task}) == 1
        sizes.append(len(task))
    assert sum(sizes) == 120
    assert max(sizes) == sizes[0] > 40
    queues = _Queues(SimpleNamespace(cost=lambda cell: 1.0), {"a": {"n": 1}, "b": {"n": 2}})
    assert [len(queues.task(0)) for _ in range(3)] == [1, 1, 0]


def test_workers_have_the_gpus_in_turn(tmp_path, monkeypatch):
    monkeypatch.setenv("FPEMU_EXPERIMENTS", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    toy.write_page(tmp_path, "paper/fig1", PAGE + toy.PAGE.format(""))
    with Store(tmp_path / "results.sqlite") as results:
        rows = run(pages.load("paper/fig1"), results=results, jobs=2, gpus=("7", "3"), device="cpu")
    assert {row["gpu"] for row in rows} == {7.0, 3.0}
    assert len({(row["gpu"], row["process"]) for row in rows}) == 2
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert [_share(4, gpus)["FPEMU_PROCESSES"] for gpus in ((), ("7", "3"), tuple("0123"), tuple("01234567"))] == list(
        "4211"
    )
    assert Workers(2, ["7"]).gpus == ("7",)


def test_chosen_gpus_are_among_the_visible_ones(monkeypatch):
    monkeypatch.setattr("fpemu.sweep.workers.resolve", lambda device: device)
    monkeypatch.setattr("fpemu.sweep.workers.gpu_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (visible("cuda"), visible("cpu")) == (("0", "1", "2"), ())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-1a")
    assert visible("cuda") == ("4", "GPU-1a")
    assert chosen_gpus("1,0,1", "cuda") == ("GPU-1a", "4")
    for text in ("2", "-1", "", "0,,1", "x"):
        with pytest.raises(InputError, match=r"none of the 2 visible GPUs, counted from 0"):
            chosen_gpus(text, "cuda")
    with pytest.raises(InputError, match="none of the 0 visible"):
        chosen_gpus("0", "cpu")


def test_an_estimate_leaves_out_cells_that_are_not_timed(tmp_path):
    grid = _grid(32, [10, 11, 12, 13], 1)
    with Store(tmp_path / "results.sqlite") as results:
        plan = survey(grid, "quick", results)
        seconds = (0.0, 2.0, 3.0)
        results.keep(
            (name, plan.cells[name], Result({"x": 1.0}, "", s)) for name, s in zip(plan.keys, seconds, strict=False)
        )
        estimated, basis = estimate(grid, survey(grid, "quick", results), 1)
    assert (estimated, basis) == (pytest.approx(2.5), "from 2 stored cells")
