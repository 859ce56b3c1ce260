"""Runs that are killed, disks that are full, folders that cannot be written: what was stored is there afterwards."""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fpemu.cli import main
from fpemu.reproduce import pages
from fpemu.sweep import CellError, Store, run
from fpemu.sweep.run import survey
from tests import toy
from tests.hostile import FACTOR

ROOT = Path(__file__).resolve().parents[2]
CELLS = 240
KILLS = 2 if FACTOR == 1 else 20  # each costs the start of a process
PAGE = f'''
"""Cells of a few milliseconds that say in a log that they are evaluated."""
import math, os, signal, time

PAPER, CAPTION, ASSUMPTIONS = "A paper", "a caption", []


def cells(size):
    return [{{"n": n}} for n in range({CELLS} if size == "full" else 12)]


def evaluate(cell):
    n = cell["n"]
    log = os.open(os.environ["FPEMU_TEST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{{n}} {{os.getpid()}}\\n".encode())
    os.close(log)
    if os.environ.get("FPEMU_TEST_KILL") == str(n):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(float(os.environ.get("FPEMU_TEST_SLEEP", "0")))
    return {{"sine": math.sin(n), "none": math.nan, "large": math.exp(n) * 1e300}} if n < 700 else {{}}


def draw(rows):
    raise ValueError("not drawn")

'''
# what a killed process runs: no figures, no command line, so that it starts quickly
RUN = """
import sys
from fpemu.reproduce import pages
from fpemu.sweep import Store, run

if __name__ == "__main__":
    with Store() as results:
        run(pages.load("paper/fig1"), "full", results=results, jobs=int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPEMU_TEST_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FPEMU_EXPERIMENTS", str(tmp_path / "papers"))
    monkeypatch.setenv("FPEMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    toy.write_page(tmp_path / "papers", "paper/fig1", PAGE + toy.PAGE.format(""))
    (tmp_path / "run.py").write_text(RUN)
    return tmp_path


def _stored(path):
    """The stored cells, n and the bits of the numbers, read by SQLite alone; and what it says about the file."""
    import json

    if not path.exists():
        return {}, "ok"
    db = sqlite3.connect(path)
    try:
        (state,) = db.execute("PRAGMA integrity_check").fetchone()
        rows = db.execute("SELECT cell, numbers FROM cells").fetchall()
    except sqlite3.OperationalError:  # killed before the tables were there
        return {}, "ok"
    finally:
        db.close()
    found = {}
    for cell, numbers in rows:
        n = json.loads(cell)["n"]
        assert n not in found
        found[n] = {name: np.float64(value).tobytes() for name, value in json.loads(numbers).items()}
    return found, state


def _log(folder):
    log = folder / "log"
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_is_killed_again_and_again_loses_nothing(folder, monkeypatch, jobs):
    kills = KILLS if jobs == 1 else 1
    monkeypatch.setenv("FPEMU_TEST_SLEEP", "0.005")
    path, moment = folder / "cache" / "cells.sqlite", random.Random(jobs)
    again = killed = 0
    for _ in range(kills):
        before, _state = _stored(path)
        seen = len(_log(folder))
        child = subprocess.Popen([sys.executable, "run.py", str(jobs)], stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 60
        while len(_log(folder)) == seen and child.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(moment.uniform(0, 0.15))  # at 5 ms a cell: anywhere in the first cells, or in a write
        child.send_signal(signal.SIGKILL)
        child.wait()
        killed += child.returncode == -signal.SIGKILL
        _wait_for_orphans(folder)
        evaluated = _log(folder)[seen:]
        assert not set(evaluated) & set(before)  # nothing that was stored was evaluated again
        again += len(evaluated)
        after, state = _stored(path)
        assert state == "ok"
        assert before.items() <= after.items()
    assert killed == kills  # none of them came to its end
    assert 0 < len(after) < CELLS
    subprocess.run([sys.executable, "run.py", str(jobs)], check=True, timeout=120)
    found, state = _stored(path)
    assert state == "ok"
    assert sorted(found) == list(range(CELLS))
    lost = len(_log(folder)) - CELLS  # evaluated, but not stored when the run was killed
    assert 0 <= lost <= 25 * kills
    monkeypatch.setenv("FPEMU_TEST_SLEEP", "0")
    with Store(folder / "other.sqlite") as results:
        run(pages.load("paper/fig1"), "full", results=results)
    assert _stored(folder / "other.sqlite") == (found, "ok")
    print(f"{kills} kills, {len(after)} of {CELLS} cells stored by then, {lost} cells evaluated again")


def _wait_for_orphans(folder):
    """Workers whose parent was killed end by themselves within a second."""
    log = folder / "log"
    if not log.exists():
        return
    pids = {int(line.split()[1]) for line in log.read_text().splitlines()}
    limit = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < limit:
        time.sleep(0.02)


def test_a_cell_that_kills_its_worker_fails_and_the_rest_goes_on(folder, monkeypatch, capsys):
    monkeypatch.setenv("FPEMU_TEST_KILL", "5")
    experiment = pages.load("paper/fig1")
    with Store() as results:
        with pytest.raises(CellError, match=r'1 of 12 cells failed; the first, {"n":5}: its worker process died'):
            run(experiment, results=results, jobs=2)
        assert len(results) == 11
        plan = survey(experiment, "quick", results)
        assert len(plan.failed_before) == 1
        assert _log(folder).count(5) == 2
    assert main(["reproduce", "paper/fig1", "-j", "2"]) == 1
    assert "1 of 12 cells failed" in capsys.readouterr().err
    monkeypatch.delenv("FPEMU_TEST_KILL")
    with Store() as results:
        assert len(run(experiment, results=results)) == 12
        assert survey(experiment, "quick", results).failed_before == set()


@pytest.mark.slow
def test_a_script_without_a_main_guard_gets_an_error_that_says_so(folder):
    (folder / "bare.py").write_text(RUN.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run([sys.executable, "bare.py", "2"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "must do so under if __name__ == '__main__'" in done.stderr
    assert _stored(folder / "cache" / "cells.sqlite")[0] == {}


# --- Ctrl-C
@pytest.mark.slow
@pytest.mark.parametrize("how", [["-j", "3"], ["--executor", "dask", "-j", "2"]], ids=["processes", "dask"])
def test_ctrl_c_at_any_moment_of_the_start_is_one_line(folder, how):
    if "dask" in how:
        pytest.importorskip("distributed")
    (folder / "g.toml").write_text('inputs = ["uniform"]\nschemes = ["sgemm"]\nM = 256\nN = 256\nseeds = 20000\n')
    moment = random.Random(len(how))
    for _ in range(2 if FACTOR == 1 else 30):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "fpemu", "sweep", "g.toml", *how],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            limit = time.monotonic() + 60
            while not (folder / "cache" / "cells.sqlite").exists() and time.monotonic() < limit:
                time.sleep(0.005)
            time.sleep(moment.uniform(0, 2))
            err, signals = None, 0
            while err is None and time.monotonic() < limit + 60:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
                signals += 1
                with contextlib.suppress(subprocess.TimeoutExpired):  # ignored while processes start
                    _, err = process.communicate(timeout=10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        # a second signal may end the interpreter on its way out, which is status 130 of a shell too
        assert process.returncode == 130 or (signals > 1 and process.returncode == -signal.SIGINT), err
        assert "Traceback" not in err
        assert err.splitlines()[-1].startswith("fpemu: interrupted"), err
        assert _stored_state(folder) == "ok"


def _stored_state(folder):
    with contextlib.closing(sqlite3.connect(folder / "cache" / "cells.sqlite")) as db:
        return db.execute("PRAGMA integrity_check").fetchone()[0]


def test_two_processes_may_create_the_results_file_at_the_same_time(tmp_path):
    path = tmp_path / "cells.sqlite"
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")  # as while another process creates the tables
        release = threading.Timer(0.1, other.rollback)
        release.start()
        with Store(path) as store:
            assert len(store) == 0
        release.join()
