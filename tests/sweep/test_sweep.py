"""Cells, their store, and the runs over them: what is kept, what is evaluated again, what an interrupt leaves."""

import contextlib
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import _system, schemes
from fpemu.errors import InputError
from fpemu.reproduce import pages
from fpemu.sweep import CellError, Grid, Store, run, tables
from fpemu.sweep import store as store_module
from fpemu.sweep.run import survey
from fpemu.sweep.store import Result
from fpemu.sweep.tables import export, medians
from fpemu.sweep.workers import Workers
from tests import toy

PAGE = '''
"""A made-up figure."""
import os
from pathlib import Path

PAPER, CAPTION, ASSUMPTIONS = "A paper", "a caption\\n  in two lines", ["one"]
SCALE = {scale}


def cells(size):
    return [{{"n": n, "kind": "odd" if n % 2 else "even"}} for n in range(4 if size == "quick" else 8)]


def evaluate(cell):
    """{doc}"""
    log = Path(os.environ["FPEMU_TEST_LOG"])
    log.write_text((log.read_text() if log.exists() else "") + f"{{cell['n']}} ")
    if os.environ.get("FPEMU_TEST_FAIL") == str(cell["n"]):
        raise ValueError("no luck")
    if os.environ.get("FPEMU_TEST_INTERRUPT") == str(cell["n"]):
        raise KeyboardInterrupt
    return {{"value": SCALE * cell["n"], "odd": float("nan")}}


def draw(rows):
    from fpemu import plotting

    figure, axes = plotting.figure(1, width=plotting.SINGLE)
    look = plotting.Series("value", plotting.BLUE, "o")
    plotting.band(axes[0, 0], [row["n"] for row in rows], [[row["value"] + 1] for row in rows], look)
    return figure


def measures(rows):
    {comment}
    from fpemu.reproduce import Measure

    return [Measure("something", 2.5)]
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPEMU_TEST_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FPEMU_EXPERIMENTS", str(tmp_path / "papers"))
    monkeypatch.delenv("FPEMU_CACHE", raising=False)
    _page(tmp_path)
    return tmp_path


def _page(folder, paper="paper", figure="fig2", scale="0.1", doc="Text.", comment="pass"):
    text = PAGE.format(scale=scale, doc=doc, comment=comment) + toy.PAGE.format(", measures=measures")
    return toy.write_page(folder / "papers", f"{paper}/{figure}", text)


def _evaluated(folder):
    log = folder / "log"
    done = sorted(int(n) for n in log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return done


# --- the store
def test_numbers_come_back_as_they_went_in(tmp_path):
    values = {"a": 0.1, "tiny": 5e-324, "nan": float("nan"), "inf": float("-inf"), "count": 3.0}
    path = tmp_path / "deep" / "cells.sqlite"
    with Store(path) as results:
        results.keep([("k", {"n": 1}, Result(values, "", 0.5)), ("f", {}, Result(None, "no file b\udcff", 0.0))])
        results.keep([("k", {"n": 1}, Result(None, "a later failure", 0.5))])
        assert results.read(["other"]) == {}
    with Store(path) as results:
        back = results.read(["k", "f"])
        assert len(results) == 1
    assert back["f"] == (None, "no file b\udcff", 0.0)
    assert {name: np.float64(value).tobytes() for name, value in back["k"].values.items()} == {
        name: np.float64(value).tobytes() for name, value in values.items()
    }


def test_keys_depend_on_everything_and_on_nothing_else():
    cell = {"n": 64, "hardware": "a100"}
    same = store_module.key("e", cell, "c")
    assert store_module.key("e", {"hardware": "a100", "n": np.int64(64)}, "c") == same
    others = [("f", cell, "c"), ("e", cell, "d"), ("e", {**cell, "n": 65}, "c"), ("e", {**cell, "n": 64.5}, "c")]
    assert len({same, *(store_module.key(*other) for other in others)}) == 5


@pytest.mark.parametrize("content", [b"something that someone may want to keep" * 20, "CREATE TABLE cells (a)"])
def test_a_file_that_is_no_store_is_left_alone(tmp_path, content):
    path = tmp_path / "cells.sqlite"
    if isinstance(content, str):
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute(content)
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"cannot open the results file .*; move it away"):
        Store(path)
    assert path.read_bytes() == before


def test_the_store_is_where_it_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FPEMU_CACHE", raising=False)
    (tmp_path / ".fpemu").mkdir()
    (tmp_path / ".fpemu" / "results.sqlite").write_bytes(b"of a former version")
    Store().close()
    assert (tmp_path / ".fpemu" / "cells.sqlite").is_file()
    assert (tmp_path / ".fpemu" / "results.sqlite").read_bytes() == b"of a former version"
    monkeypatch.setenv("FPEMU_CACHE", str(tmp_path / "elsewhere"))
    Store().close()
    assert (tmp_path / "elsewhere" / "cells.sqlite").is_file()


# --- runs
def test_rows_in_the_order_of_cells_and_nothing_twice(folder):
    experiment = pages.load("paper/fig2")
    with Store() as results:
        rows = run(experiment, results=results)
        assert [(row["n"], row["kind"], row["value"]) for row in rows] == [
            (0, "even", 0.0),
            (1, "odd", 0.1),
            (2, "even", 0.2),
            (3, "odd", 3 * 0.1),
        ]
        assert _evaluated(folder) == [0, 1, 2, 3]
        run(experiment, "full", results=results)
        assert _evaluated(folder) == [4, 5, 6, 7]
        run(experiment, "full", results=results)
        assert _evaluated(folder) == []
        done: set[str] = set()
        run(experiment, "quick", results=results, fresh=True, done=done)
        assert _evaluated(folder) == [0, 1, 2, 3]
        run(experiment, "full", results=results, fresh=True, done=done)
        assert _evaluated(folder) == [4, 5, 6, 7]


@pytest.mark.parametrize("how", ["FPEMU_TEST_FAIL", "FPEMU_TEST_INTERRUPT"])
def test_what_was_finished_before_the_end_is_kept_and_a_fresh_run_loses_nothing(folder, monkeypatch, how):
    experiment = pages.load("paper/fig2")
    with Store() as results:
        monkeypatch.setenv(how, "2")
        expected = CellError if how == "FPEMU_TEST_FAIL" else KeyboardInterrupt
        with pytest.raises(expected) as problem:
            run(experiment, results=results)
        failed = expected is CellError
        if failed:
            message = 'paper/fig2: 1 of 4 cells failed; the first, {"kind":"even","n":2}: ValueError: no luck'
            assert str(problem.value) == message
        assert len(results) == 3 if failed else 2  # the rest goes on
        monkeypatch.delenv(how)
        _evaluated(folder)
        rows = run(experiment, results=results)
        assert len(rows) == len(results) == 4
        assert _evaluated(folder) == ([2] if failed else [2, 3])
        monkeypatch.setenv(how, "1")
        with pytest.raises(expected):
            run(experiment, results=results, fresh=True)
        monkeypatch.delenv(how)
        assert len(results) == 4
        _evaluated(folder)
        assert str(run(experiment, results=results)) == str(rows)
        assert _evaluated(folder) == []


def test_processes_give_the_same_rows(folder, monkeypatch):
    experiment = pages.load("paper/fig2")
    with Store(folder / "one.sqlite") as results:
        alone = run(experiment, results=results)
    with Store(folder / "two.sqlite") as results:
        together = run(experiment, results=results, jobs=2)
        assert len(results) == 4
        monkeypatch.setenv("FPEMU_TEST_FAIL", "5")
        with pytest.raises(CellError, match="no luck"):
            run(experiment, "full", results=results, jobs=2)
    assert str(alone) == str(together)


def test_rows_of_failed_cells_are_returned_on_request(folder, monkeypatch):
    monkeypatch.setenv("FPEMU_TEST_FAIL", "1")
    experiment = pages.load("paper/fig2")
    with Store() as results:
        rows = run(experiment, results=results, keep_failures=True)
        assert rows[1] == {"n": 1, "kind": "odd", "error": "ValueError: no luck"}
        plan = survey(experiment, "quick", results)
        assert plan.failed_before == {plan.keys[1]}
        assert set(plan.stored) == {plan.keys[0], *plan.keys[2:]}
        monkeypatch.delenv("FPEMU_TEST_FAIL")
        assert "error" not in run(experiment, results=results, keep_failures=True)[1]
        assert survey(experiment, "quick", results).failed_before == set()


# --- the progress bar


# --- the choice of processes


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ('"value": "text"', r"4 of 4 cells failed; .*: ValueError: could not convert"),
        ('"n": 1.0', "4 of 4 cells failed; .*: n is both a parameter and a number"),
    ],
)
def test_a_result_is_a_number_under_a_name_of_its_own(folder, result, message):
    path = _page(folder, figure="fig3")
    path.write_text(path.read_text().replace('"value": SCALE * cell["n"]', result))
    with Store() as results, pytest.raises(CellError, match=message):
        run(pages.load("paper/fig3"), results=results)


def test_workers_refuse_other_code(folder, monkeypatch):
    """The page changes between its load here and in the worker; nothing is stored under either key."""
    experiment = pages.load("paper/fig2")
    _page(folder, scale="0.25")
    monkeypatch.setattr(store_module, "code", lambda sources: "0" * 64)
    with Store() as results:
        with pytest.raises(InputError, match=r"a worker has other code than this process: code [0-9a-f]{12}, NumPy"):
            run(experiment, results=results, jobs=2)
        shutil.rmtree(folder / "papers")
        with pytest.raises(InputError, match="a worker cannot evaluate the cells: unknown experiment 'paper/fig2'"):
            run(experiment, results=results, jobs=2)
        assert len(results) == 0


@pytest.mark.parametrize(("setting", "share"), [("1", "1"), ("", "4"), ("5", "4")])
def test_processes_have_as_many_threads_as_the_user_allows(folder, monkeypatch, setting, share):
    monkeypatch.setenv("FPEMU_THREADS", setting)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    path = _page(folder, figure="fig3")
    names = ("FPEMU_THREADS", "OMP_NUM_THREADS", "FPEMU_PROCESSES")
    returned = "{name: float(os.environ[name]) for name in " + str(names) + "}  # {"
    path.write_text(path.read_text().replace('{"value"', returned))
    with Store() as results:
        row, *_ = run(pages.load("paper/fig3"), results=results, jobs=2)
    assert [row[name] for name in names] == [float(share), float(share), 2.0]
    assert os.environ["FPEMU_THREADS"] == setting


def test_pages_share_the_processes_of_a_pool(folder):
    """The second page is evaluated by the process of the first; the pool survives a page that fails."""
    for figure, result in (("fig3", "os.getpid()"), ("fig4", "os.getpid()"), ("fig5", "None")):
        path = _page(folder, figure=figure)
        path.write_text(path.read_text().replace('SCALE * cell["n"]', result))
    with Store() as results, Workers(1) as shared:
        first = run(pages.load("paper/fig3"), results=results, workers=shared)
        with pytest.raises(CellError, match="4 of 4 cells failed"):
            run(pages.load("paper/fig5"), results=results, workers=shared)
        second = run(pages.load("paper/fig4"), results=results, workers=shared)
    assert len({row["value"] for row in first + second}) == 1
    assert first[0]["value"] != os.getpid()


def test_a_cell_that_exceeds_the_memory_is_refused_before_the_run(tmp_path):
    grid = Grid(inputs=["uniform"], schemes=["sgemm"], M=[2, 10**6], N=10**6, K=2)
    with Store(tmp_path / "r.sqlite") as results:
        with pytest.raises(InputError, match=r"M×N×K = 1000000×1000000×2 take 8000 GB, and this machine has"):
            run(grid, results=results)
        assert len(results) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "mpi"}, "unknown executor"),
        ({"executor": "processes", "scheduler": "x"}, "needs the executor dask"),
        ({"jobs": 0}, "jobs is 0"),
    ],
)
def test_options_of_a_run_that_are_refused(folder, options, message):
    with Store() as results, pytest.raises(InputError, match=message):
        run(pages.load("paper/fig2"), results=results, **options)


# --- experiments and their code
def test_names_in_natural_order_and_selected_by_paper(folder):
    for paper, figure in (("paper", "fig10"), ("paper", "fig1"), ("another", "fig3")):
        _page(folder, paper, figure)
    assert pages.names() == ["another/fig3", "paper/fig1", "paper/fig2", "paper/fig10"]
    assert pages.select(None) == pages.names()
    assert pages.select("paper") == ["paper/fig1", "paper/fig2", "paper/fig10"]
    assert pages.select("paper/fig1") == ["paper/fig1"]
    with pytest.raises(InputError, match="unknown experiment 'paper/fig22': did you mean 'paper/fig2'"):
        pages.select("paper/fig22")
    for name in ("paper", "paper/fig9", "../paper/fig1", "paper/../paper/fig1"):
        with pytest.raises(InputError, match="unknown experiment"):
            pages.load(name)


def test_a_page_that_was_changed_after_its_load_writes_under_no_key(folder, monkeypatch):
    """A process with the older code stores nothing under the key of the newer, which another process then evaluates."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # bytecode of a page of equal size and second counts as valid
    experiment = pages.load("paper/fig2")
    with Store() as results:
        run(experiment, results=results)
        before = survey(experiment, "quick", results).code
        path = _page(folder, scale="0.2")
        with pytest.raises(InputError, match=r"fig2\.py was changed after this process loaded it: start the process"):
            run(experiment, "full", results=results)
        assert len(results) == 4
        script = "import sys; from fpemu.cli import main; sys.exit(main(['reproduce', 'paper/fig2', '-j', '1']))"
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
        assert len(results) == 8
        lines = Path("figures/paper/fig2.csv").read_text().splitlines()
        assert [line.split(",")[2] for line in lines[1:]] == ["0.0", "0.2", "0.4", "0.6"]
        _page(folder)
        os.utime(path)  # the bytes of the load with another time
        assert survey(experiment, "quick", results).code == before
        assert len(run(experiment, "full", results=results)) == 8


def test_a_module_of_the_package_that_is_newer_than_the_process_is_refused(tmp_path):
    (tmp_path / "loaded.py").write_text("")
    with pytest.raises(InputError, match=r"loaded\.py was changed after this process loaded it: start the process"):
        _system.seen(tmp_path / "loaded.py", loaded=True)
    assert _system.seen(tmp_path / "loaded.py") == _system.sha256(tmp_path / "loaded.py")


def test_every_numeric_module_counts():
    """No module that computes a number imports one that is not in the number's key."""
    # these modules raise errors or read files, and leave every number as it is
    uncounted = {"errors", "files", "kernelcache", "digests", "reading"}
    listed = {name.removesuffix(".py") for name in store_module._NUMERIC}
    paths = [path for name in store_module._NUMERIC for path in Path(fpemu.__file__).parent.glob(f"{name}/**/*.py")]
    assert len(paths) > 80
    for path in paths:
        text = path.read_text()
        names = set(re.findall(r"^from fpemu\.(\w+)", text, re.MULTILINE))
        names |= {
            name for line in re.findall(r"^from fpemu import (.+)$", text, re.MULTILINE) for name in line.split(", ")
        }
        names -= {"probing", "digests"} if path.parent.name == "library" else set()  # names and checks of records
        assert names - uncounted <= listed, path


def test_the_bytes_of_the_sources_count(tmp_path):
    """Every file of code or data of a folder, and its name, but not the folder's place, texts and pictures."""
    versions = []
    for place, name, text in (
        (0, "x.json", "1"),
        (1, "x.json", "1"),
        (2, "y.json", "1"),
        (3, "x.json", "2"),
        (4, "x.csv", "1"),
        (5, "x.npz", "1"),
    ):
        folder = tmp_path / str(place) / "papers"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / name).write_text(text)
        (folder / "notes.md").write_text(str(place))
        versions.append(store_module.code([folder]))
    assert versions[0] == versions[1]
    assert len(set(versions)) == 5


def test_an_option_given_as_its_default_and_one_omitted_are_one_cell(tmp_path):
    def keys(*schemes, **changes):
        grid = Grid(
            inputs=changes.pop("inputs", ["uniform"]), schemes=schemes, M=4, N=4, K=32, hardware="ampere", **changes
        )
        with Store(tmp_path / "r.sqlite") as results:
            return survey(grid, "quick", results).keys

    for name in schemes.names():
        plain = schemes.get(name)
        given = {option.name: getattr(plain, option.name) for option in plain.info.options}
        given = {option: list(value) if isinstance(value, tuple) else value for option, value in given.items()}
        for option, value in given.items():
            chosen = ",".join(value) if isinstance(value, list) else "none" if value is None else value
            assert keys({"name": name, option: chosen}) == keys(name), (name, option)
    assert keys({"name": "h2sgemm", "sb": 11}) != keys("h2sgemm")
    assert keys("sgemm", inputs=[{"name": "uniform", "low": -1}]) == keys("sgemm")
    assert keys("sgemm", orders=[{"split": 2, "join": "ascending"}]) == keys("sgemm", orders=[{"split": 2}])
    assert keys("sgemm", orders=[{"split": 2, "join": "descending"}]) != keys("sgemm", orders=[{"split": 2}])


def test_a_module_beside_the_page_that_was_changed_under_the_process_is_refused(folder):
    path, helper = _page(folder, figure="fig6"), folder / "papers" / "paper" / "_scale.py"
    path.write_text(path.read_text().replace("SCALE = 0.1", "from ._scale import SCALE"))
    helper.write_text("SCALE = 0.1\n")
    experiment = pages.load("paper/fig6")
    helper.write_text("SCALE = 0.2\n")
    with Store() as results, pytest.raises(InputError, match=r"_scale\.py was changed after this process loaded it"):
        run(experiment, results=results)
    assert _evaluated(folder) == []


# --- what is written out


def test_an_error_message_that_is_no_text_is_written_escaped(tmp_path):
    assert tables.table([{"error": "no file b\udcff"}]) == b"error\nno file b\\udcff\n"
    for name in ("t.csv", "t.parquet"):
        export([{"scheme": "sgemm", "error": "no file b\udcff"}], str(tmp_path / name))
    assert (tmp_path / "t.csv").read_text() == "scheme,error\nsgemm,no file b\\udcff\n"


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_a_median_does_not_depend_on_the_order_of_the_cells(order):
    rows = [
        {"scheme": "sgemm", "hardware": None, "m": (1.0, 0.5, math.nan)[i], "n": (1.0, math.inf, 4.0)[i]} for i in order
    ]
    ((_, _, (m, n), count),) = medians(rows, ["m", "n"])
    assert math.isnan(m)
    assert (n, count) == (4.0, 3)
