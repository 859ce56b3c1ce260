"""What a measurement of speed keeps, and what figures read of it, without a GPU."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import implementations, record, run, suite
from experiments.speed import _record as speed
from fpemu import InputError
from fpemu.cli import main
from fpemu.gpu.runtime import device
from fpemu.reproduce import pages
from tests.loaded import PAGES

ROOT = Path(__file__).resolve().parents[2]
HEAD: dict = {
    "format": 1,
    "device": {"gpu": "NVIDIA H200", "driver": "1", "library": "cuBLAS 13"},
    "runs": [{"date": "2026-01-01"}],
}


# --- the run
def _run(tasks, kept, evaluate, **more):
    return list(run.rows(tasks, kept, evaluate=evaluate, make=lambda task: task.K, **more))


def _fake(task, made):
    if task.kind == "product":
        assert made == task.K
    if task.implementation == "tf32":
        raise implementations.MissingKernelError("not yet")
    return {"first_s": 1e-3, "relative_l2": 1e-7}


def test_saved_rows_are_not_measured_again_and_failed_rows_are(tmp_path):
    tasks = suite.cases(["speed/frontier"])
    kept = record.Record(HEAD)
    rows = _run(tasks, kept, _fake)
    assert len(rows) == len(tasks)
    failed = [row for row in rows if "failed" in row]
    assert {row["contender"] for row in failed} == {"tf32"}
    assert failed[0]["failed"] == "not there: not yet"
    path = tmp_path / "record.json"
    record.save(kept, path)
    again = record.resume(path, HEAD)
    assert again.rows == kept.rows
    assert len(again.head["runs"]) == 2
    more = _run(tasks, again, lambda task, made: {"first_s": 2e-3})
    assert {row["contender"] for row in more} == {"tf32"}
    assert {row["run"] for row in more} == {1}
    assert all(again.done(task.fields) for task in tasks)


def test_rows_of_replaced_kernels_remain_until_the_next_measurement(tmp_path):
    tasks = suite.cases(["speed/sizes"])
    kept = record.Record(HEAD)
    _run(
        tasks,
        kept,
        lambda task, made: {"first_s": 1.0, "kernel": "mma" if task.implementation == "staged" else "cuBLAS"},
    )
    for row in kept.rows:
        row |= {"older": True} if row["kernel"] == "mma" else {}
    path = tmp_path / "record.json"
    record.save(kept, path)
    again = record.read(path)
    assert {task.implementation for task in run.missing(tasks, again)} == {"staged"}
    again.add({**next(row for row in again.rows if row.get("older")), "failed": "busy"})
    assert not any("failed" in row for row in again.rows)
    _run(tasks, again, lambda task, made: {"first_s": 2.0})
    assert {row["first_s"] for row in again.rows if row["contender"] == "staged"} == {2.0}
    assert not any(row.get("older") for row in again.rows)


def test_an_interrupt_keeps_the_rows_before_it(tmp_path):
    tasks, kept = suite.cases(["speed/sizes"]), record.Record(HEAD)

    def evaluate(task, made):
        if task.implementation == "staged":
            raise KeyboardInterrupt
        return {"first_s": 1.0}

    path = tmp_path / "record.json"

    def measure():
        for _ in run.rows(tasks, kept, evaluate=evaluate, make=lambda task: ()):
            record.save(kept, path)

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert [row["contender"] for row in record.read(path).rows] == ["fp16"]


def test_no_row_is_begun_beyond_the_budget():
    ticks = itertools.count()
    tasks, kept = suite.cases(), record.Record(HEAD)
    rows = _run(tasks, kept, lambda task, made: {}, budget=20, clock=lambda: float(next(ticks)))
    assert 0 < len(rows) < 10


def test_again_replaces_rows_but_not_by_failures():
    tasks = suite.cases(["speed/sizes"])
    kept = record.Record({**HEAD, "runs": [{}]})
    _run(tasks, kept, lambda task, made: {"first_s": 1.0})
    kept.head["runs"].append({})

    def evaluate(task, made):
        if task.implementation == "sgemm":
            raise ValueError("busy")
        return {"first_s": 2.0}

    assert run.missing(tasks, kept) == []
    assert len(run.missing(tasks, kept, again=True)) == len(tasks)
    _run(tasks, kept, evaluate, again=True)
    assert {row["first_s"] for row in kept.rows if row["contender"] == "sgemm"} == {1.0}
    assert {(row["first_s"], row["run"]) for row in kept.rows if row["contender"] != "sgemm"} == {(2.0, 1)}
    assert {task.implementation for task in run.missing(tasks, kept, again=True)} == {"sgemm"}


def test_a_record_of_another_gpu_or_an_invalid_one_raises(tmp_path):
    path = tmp_path / "record.json"
    record.save(record.Record(HEAD), path)
    other = {**HEAD, "device": {**HEAD["device"], "gpu": "NVIDIA A100"}}
    with pytest.raises(InputError, match=r"was measured on NVIDIA H200, and this is NVIDIA A100"):
        record.resume(path, other)
    path.write_text("{}")
    with pytest.raises(InputError, match="is no record"):
        record.resume(path, HEAD)


def test_ratios_are_those_of_the_same_run_where_it_has_both():
    place = {"kind": "product", "M": 1000, "N": 1000, "K": 1000, "data": "symmetric"}
    rows = [
        {**place, "contender": who, "run": run, "first_s": s}
        for who, run, s in (("sgemm", 0, 4e-3), ("staged", 1, 1e-3), ("sgemm", 1, 2e-3), ("ootomo", 2, 1e-3))
    ]
    assert record.rate(rows[1]) == 2.0
    assert record.ratio(rows, rows[1], "sgemm") == 2.0
    assert record.ratio(rows, rows[3], "sgemm", by=3) == 6.0
    assert record.ratio(rows, rows[1], "dgemm") is None


# --- the command
def test_the_command_lists_without_a_gpu(capsys):
    assert main(["bench", "gpu", "--list", "--figure", "dgemm_tc/fig9"]) == 0
    assert "dgemm_tc/fig9" in capsys.readouterr().out
    assert main(["bench", "gpu", "--list", "--shape", "512x64x100", "--implementation", "staged stage=128"]) == 0
    assert "1 row, about" in capsys.readouterr().out


@pytest.fixture
def measured(monkeypatch):
    """A GPU that answers at once; its fields can be changed."""
    fields = {"first_s": 2e-3, "best_s": 1e-3, "relative_l2": 1e-7, "again": True, "checked": 256, "mismatches": 0}
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(run, "head", lambda: HEAD)
    monkeypatch.setattr(run, "compile_all", lambda tasks: None)
    monkeypatch.setattr(suite, "make", lambda task: None)
    monkeypatch.setattr(suite, "measure", lambda task, made: dict(fields))
    return fields


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "-1"], "'--budget'"),
        (["--output", "x.txt", "--quick"], "written as .json"),
        (["--figure", "nothing"], "unknown figure"),
        *((["--shape", shape], f"'{shape}' is no shape") for shape in ("4y", "4x4", "0x1x1")),
        (["--implementation", "sgemm"], "such as --shape 4096"),
        (["--shape", "64", "--figure", "dgemm_tc"], "leave one out"),
        (["--shape", "64", "--implementation", "turbo"], "unknown contender 'turbo'"),
        (["--shape", "64", "--data", "nice"], "unknown kind of data 'nice'"),
    ],
)
def test_bad_arguments_raise_before_any_measurement(arguments, message, capsys):
    assert main(["bench", "gpu", *arguments]) == 2
    assert message in capsys.readouterr().err


# --- the checkout
@pytest.mark.parametrize("command", [["bench", "cpu"], ["bench", "gpu", "--list"], ["tune", "batched"]])
def test_a_package_without_its_checkout_reports_missing_benchmarks(command, monkeypatch, workdir, capsys):
    """A folder `benchmarks` in the working directory, or of another project beside the package, is not run."""
    for folder in (workdir, workdir / "site-packages"):
        (folder / "benchmarks").mkdir(parents=True)
        (folder / "benchmarks" / "__init__.py").write_text("raise SystemExit('code of another project')")
    (workdir / "benchmarks" / "gpu").mkdir()
    (workdir / "benchmarks" / "gpu" / "suite.py").write_text("raise SystemExit('code in the working directory')")
    monkeypatch.setattr(pages, "_CHECKOUT", workdir / "site-packages" / "experiments")
    monkeypatch.delitem(sys.modules, "benchmarks")
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"{' '.join(command[:2])}: the benchmarks come with a checkout of fpemu" in said
    assert said.count("\n") == 1


def test_the_commands_run_from_any_folder(tmp_path):
    """Without the checkout on sys.path, as the installed command runs."""
    code = f"import sys; sys.path[:] = [p for p in sys.path if p not in ('', {str(ROOT)!r})]; sys.path.append('x'); "
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "fpemu").symlink_to(ROOT / "fpemu")
    code += "from fpemu.cli import main; sys.exit(main(['bench', 'gpu', '--list', '--figure', 'dgemm_tc/fig9']))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={name: x for name, x in os.environ.items() if name != "PYTHONPATH"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "dgemm_tc/fig9" in done.stdout


# --- figures
OF_A_RECORD = [name for name, page in PAGES.items() if page.kind == "G"]


@pytest.mark.parametrize("name", OF_A_RECORD)
def test_measures_and_findings_are_those_of_the_record(name):
    page = pages.load(name)
    rows = [{**cell, **page.evaluate(cell)} for cell in page.cells("quick")]
    assert all(math.isfinite(one.value) for one in page.measures(rows))
    assert page.measures(rows) or page.finding(rows)


def test_figures_are_drawn_from_the_record_as_it_is():
    """The rows of committed figures name the record that they are from."""
    path = ROOT / "experiments" / "speed" / "h200.json"
    kept = record.read(path)
    assert path.read_text(encoding="utf-8") == kept.text()
    runs = kept.head["runs"]
    assert all(run["gpu"] == kept.head["device"]["gpu"] and run["date"] and run["library"] for run in runs)
    assert {row["run"] for row in kept.rows} <= set(range(len(runs)))
    assert {row["rules"] for row in kept.rows} <= {*kept.head["rules"], "errors"}
    assert not any(row.get("mismatches") for row in kept.rows)
    assert all(row["again"] for row in kept.rows if "again" in row)
    for name in OF_A_RECORD:
        page = pages.load(name)
        figure = ROOT / "figures" / f"{name}.csv"
        assert page.cells("quick")[0]["record"] in figure.read_text(encoding="utf-8").splitlines()[1]


@pytest.fixture
def changed_record(tmp_path, monkeypatch):
    """A function that changes the content of the speed record that the figures read, in a copy of the file."""

    def change(function):
        content = json.loads((ROOT / "experiments" / "speed" / "h200.json").read_text(encoding="utf-8"))
        function(content)
        file = tmp_path / "h200.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        monkeypatch.setenv("FPEMU_SPEED", str(file))
        speed.read.cache_clear()

    yield change
    speed.read.cache_clear()


@pytest.mark.parametrize("name", ["sizes", "shapes"])
def test_speeds_of_different_runs_have_no_ratio(name, changed_record):
    page = pages.load(f"speed/{name}")
    place = {"kind": "product", "contender": "staged", "M": 1024, "N": 1024, "K": 1024, "data": "symmetric"}

    def ratios():
        row = next(cell for cell in page.cells("quick") if place.items() <= cell.items())
        return {column for column in page.evaluate(row) if column.endswith(("/ sgemm", "/ three products"))}

    def other_run(content):
        for row in content["rows"]:
            if row["contender"] in ("sgemm", "fp16"):
                row["run"] = 0

    assert {"first / sgemm", "first / three products"} <= ratios()
    changed_record(other_run)
    assert not ratios()


# --- parts of the error-free products
def test_the_summation_kernels_are_listed():
    from benchmarks.gpu import phases
    from fpemu.gpu.runtime.compiler import kernel_source

    text = "".join((ROOT / "fpemu" / "gpu" / "errorfree" / f"{name}.py").read_text() for name in ("sums", "residues"))
    assert all(f'"{name}"' in text for name in phases.SUMS)
    kernels = re.findall(r"__global__ void __launch_bounds__\(256\)\s+(\w+)", kernel_source("exact_sums.cu"))
    assert {"finish", *kernels} <= phases.SUMS
