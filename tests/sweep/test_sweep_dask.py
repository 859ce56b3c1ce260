"""Sweeps on Dask: the rows of a run here, bit for bit, and what is said where nothing answers."""

import logging
import sys

import pytest

pytest.importorskip("distributed")
import distributed

from fpemu.errors import InputError
from fpemu.reproduce import pages
from fpemu.sweep import CellError, Grid, Store, run
from fpemu.sweep.workers import DIED
from tests import toy

pytestmark = pytest.mark.slow

PAGE = """
import os, signal

PAPER, CAPTION, ASSUMPTIONS = "A paper", "a caption", []


def cells(size):
    return [{"n": n} for n in range(6)]


def evaluate(cell):
    if cell["n"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if cell["n"] == 4:
        raise ValueError("no luck")
    return {"value": cell["n"] / 3}


def draw(rows):
    return None

"""


@pytest.fixture(scope="module")
def address():
    """Two worker processes of one thread each, as a scheduler with an address."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as local,
    ):
        yield local.scheduler_address


@pytest.fixture
def grid():
    return Grid(
        inputs=[{"name": "offset_symmetric", "exponent": "-4:0:2"}],
        schemes=["ootomo", "sgemm", "dgemm"],
        seeds=3,
        hardware=["ampere", "volta"],
        M=8,
        N=8,
        K=[24, 40],
        metrics=["relative_l2", "max_ulps"],
    )


def test_the_rows_are_those_of_a_run_here(tmp_path, grid, address):
    with Store(tmp_path / "here.sqlite") as results:
        here = run(grid, results=results)
    with Store(tmp_path / "there.sqlite") as results:
        there = run(grid, results=results, scheduler=address)
        assert len(results) == len(grid.cells()) == 72
        assert run(grid, results=results) == there  # all stored: no worker evaluates a cell
    assert [{k: v.hex() if isinstance(v, float) else v for k, v in row.items()} for row in there] == [
        {k: v.hex() if isinstance(v, float) else v for k, v in row.items()} for row in here
    ]


def test_cells_that_fail_or_kill_their_worker(tmp_path, address):
    toy.write_page(tmp_path / "papers", "paper/fig1", PAGE + toy.PAGE.format(""))
    experiment = pages.load("paper/fig1", tmp_path / "papers")
    with Store(tmp_path / "r.sqlite") as results:
        with pytest.raises(CellError, match="2 of 6 cells failed"):
            run(experiment, results=results, scheduler=address)
        rows = run(experiment, results=results, scheduler=address, keep_failures=True)
    expected = [0.0, 1 / 3, 2 / 3, DIED, "ValueError: no luck", 5 / 3]
    assert [row.get("value", row.get("error")) for row in rows] == expected


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nothing://here", "no address"])
def test_a_scheduler_that_does_not_answer(tmp_path, grid, address):
    with Store(tmp_path / "r.sqlite") as results, pytest.raises(InputError, match="no Dask scheduler answers at"):
        run(grid, results=results, scheduler=address)


def test_without_dask(tmp_path, grid, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with Store(tmp_path / "r.sqlite") as results, pytest.raises(InputError, match=r"pip install 'fpemu\[dask\]'"):
        run(grid, results=results, executor="dask")
