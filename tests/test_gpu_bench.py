"""The measurement of speed without a GPU: what is measured, how, what is kept of it, and what figures read of it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from fpemu import InputError
from fpemu.cli import main
from fpemu.gpu import compiler
from fpemu.gpu.bench import applications, battery, choosing, contenders, reading, record, running, timing
from fpemu.sweep import experiments

ROOT = Path(__file__).resolve().parents[1]
HEAD = {"format": 1, "device": {"gpu": "NVIDIA H200", "driver": "1", "library": "cuBLAS 13"},
        "runs": [{"date": "2026-01-01"}]}  # fmt: skip
needs_compiler = pytest.mark.skipif(compiler.compiler_missing() is not None, reason="NVRTC is not here")


# --- timing
class Machine:
    """A GPU in a few lines: launches take what they take, in order; the host needs time to queue them."""

    def __init__(self, seconds, host=1e-5, slow_after=math.inf):
        self.seconds, self.host, self.slow_after = seconds, host, slow_after
        self.now = self.free = 0.0
        self.launches = 0
        self.marks, self.slept = {}, []

    def launch(self):
        self.now += self.host
        took = self.seconds * (2 if self.free > self.slow_after else 1)
        self.free = max(self.free, self.now) + took
        self.launches += 1

    def hold(self, seconds):
        self.free = max(self.free, self.now) + seconds

    def synchronize(self):
        self.now = max(self.now, self.free)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def of(self, count):
        machine = self

        class Marks:
            def record(self, which):
                assert which < count
                machine.marks[which] = max(machine.free, machine.now)

            def seconds(self, count):
                machine.synchronize()
                return [machine.marks[i + 1] - machine.marks[i] for i in range(count)]

        return Marks()

    def measure(self, rules, monkeypatch):
        class Watch:
            def stop(self):
                return None

        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        return timing.measure(self.launch, rules, marks=self.of, hold=self.hold, synchronize=self.synchronize,
                              sleep=self.sleep, watch=Watch)  # fmt: skip


@pytest.mark.parametrize(("seconds", "host"), [(4e-3, 1e-5), (3e-6, 4e-5), (1e-4, 4e-5)])
def test_what_the_host_needs_is_not_counted(seconds, host, monkeypatch):
    found = Machine(seconds, host).measure(timing.FULL, monkeypatch)
    assert found.first == pytest.approx(seconds, rel=1e-6)
    assert found.sustained == pytest.approx(seconds, rel=1e-6)


def test_a_limiter_shows_in_the_second_half_and_not_in_the_first_launches(monkeypatch):
    machine = Machine(4e-3, slow_after=1.2)
    found = machine.measure(timing.FULL, monkeypatch)
    assert found.first == pytest.approx(4e-3)
    assert found.sustained == pytest.approx(8e-3)
    assert machine.slept == [timing.FULL.idle]


def test_a_slow_product_is_launched_three_times_before_the_run(monkeypatch):
    machine = Machine(0.5)
    found = machine.measure(timing.Rules(run=0.0), monkeypatch)
    assert machine.launches == 2 + 3
    assert found.sustained is None


# --- what is measured
def test_rows_are_measured_once_the_most_important_first():
    tasks = battery.tasks()
    keys = [tuple(task.wanted.values()) for task in tasks]
    assert len(set(keys)) == len(keys)
    assert [task.contender for task in tasks[:3]] == ["fp16", "staged", "staged-int8 exact=8"]
    assert {tuple(task.wanted.values()) for task in battery.tasks(None, quick=True)} <= set(keys)
    assert all(contenders.find(task.contender).name == task.contender for task in tasks if task.kind == "product")


def test_every_page_of_speed_has_rows():
    pages = {name for name in experiments.names() if experiments.load(name).kind == "G"}
    assert pages
    assert pages <= set(battery.figures())


def test_a_row_that_two_figures_show_is_measured_with_the_more_careful_rules():
    place = (8192, 8192, 8192, "symmetric", "fp16")
    task = next(t for t in battery.tasks() if (t.M, t.N, t.K, t.data, t.contender) == place)
    assert task.rules == "full"
    assert {"speed/frontier", "legemm/fig9", "h2sgemm/fig11"} <= set(task.figures)


def test_a_paper_or_a_page_chooses_rows():
    one, all_of = battery.tasks(["dgemm_tc/fig9"]), battery.tasks(["dgemm_tc"])
    assert {task.contender for task in one} == {"sgemm", "ozaki SP"}
    assert len(one) < len(all_of) < len(battery.tasks())
    with pytest.raises(InputError, match="unknown figure 'legemm/fig99'"):
        battery.tasks(["legemm/fig99"])


@pytest.mark.parametrize("name", ["turbo", "legemm 64y64", "legemm fast"])
def test_an_unknown_contender_or_hint_is_named(name):
    with pytest.raises(InputError, match="unknown"):
        contenders.find(name)


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernels_of_the_measurement_compile(arch):
    text = compiler.kernel_source("bench.cu")
    cubin = compiler.compile(text, arch)
    for name in ("draw_fp32", "draw_fp64", "widen", "words_rows", "words_columns", "compare_fp32", "compare_fp64",
                 "digest_32", "digest_64", "hold", "nothing"):  # fmt: skip
        assert name.encode() in cubin


# --- the run
def _run(tasks, kept, evaluate, **more):
    return list(running.rows(tasks, kept, evaluate=evaluate, make=lambda task: task.K, **more))


def _fake(task, made):
    if task.kind == "product":
        assert made == task.K
    if task.contender == "tf32":
        raise choosing.MissingKernelError("not yet")
    return {"first_s": 1e-3, "relative_l2": 1e-7}


def test_what_is_kept_is_not_measured_again_and_what_failed_is(tmp_path):
    tasks = battery.tasks(["speed/frontier"])
    kept = record.Record(HEAD)
    rows = _run(tasks, kept, _fake)
    assert len(rows) == len(tasks)
    failed = [row for row in rows if "failed" in row]
    assert {row["contender"] for row in failed} == {"tf32"}
    assert failed[0]["failed"] == "not there: not yet"
    path = tmp_path / "record.json"
    record.keep(kept, path)
    again = record.resume(path, HEAD)
    assert again.rows == kept.rows
    assert len(again.head["runs"]) == 2
    more = _run(tasks, again, lambda task, made: {"first_s": 2e-3})
    assert {row["contender"] for row in more} == {"tf32"}
    assert {row["run"] for row in more} == {1}
    assert all(again.done(task.wanted) for task in tasks)


def test_an_interrupt_keeps_the_rows_before_it(tmp_path):
    tasks, kept = battery.tasks(["speed/sizes"]), record.Record(HEAD)

    def evaluate(task, made):
        if task.contender == "staged":
            raise KeyboardInterrupt
        return {"first_s": 1.0}

    path = tmp_path / "record.json"

    def measure():
        for _ in running.rows(tasks, kept, evaluate=evaluate, make=lambda task: ()):
            record.keep(kept, path)

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert [row["contender"] for row in record.read(path).rows] == ["fp16"]


def test_no_row_is_begun_beyond_the_budget():
    ticks = iter(range(1000))
    tasks, kept = battery.tasks(), record.Record(HEAD)
    rows = _run(tasks, kept, lambda task, made: {}, budget=20, clock=lambda: float(next(ticks)))
    assert 0 < len(rows) < 10


def test_a_record_of_another_gpu_or_none_at_all_is_refused(tmp_path):
    path = tmp_path / "record.json"
    record.keep(record.Record(HEAD), path)
    other = {**HEAD, "device": {**HEAD["device"], "gpu": "NVIDIA A100"}}
    with pytest.raises(InputError, match=r"was measured on NVIDIA H200, and this is NVIDIA A100"):
        record.resume(path, other)
    path.write_text("{}")
    with pytest.raises(InputError, match="is no record"):
        record.resume(path, HEAD)


def test_ratios_are_those_of_the_same_run_where_it_has_both():
    place = {"kind": "product", "M": 1000, "N": 1000, "K": 1000, "data": "symmetric"}
    rows = [{**place, "contender": who, "run": run, "first_s": s} for who, run, s in
            (("sgemm", 0, 4e-3), ("staged", 1, 1e-3), ("sgemm", 1, 2e-3), ("ootomo", 2, 1e-3))]  # fmt: skip
    assert reading.rate(rows[1]) == 2.0
    assert reading.ratio(rows, rows[1], "sgemm") == 2.0
    assert reading.ratio(rows, rows[3], "sgemm", by=3) == 6.0
    assert reading.ratio(rows, rows[1], "dgemm") is None


# --- the command
def test_the_command_lists_without_a_gpu(capsys):
    assert main(["bench", "gpu", "--list", "--figure", "dgemm_tc/fig9"]) == 0
    assert "dgemm_tc/fig9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--budget", "0"], "--budget is 0"), (["--output", "x.txt", "--quick"], "written as .json"),
     (["--figure", "nothing"], "unknown figure")],
)  # fmt: skip
def test_bad_arguments_are_told_before_anything_runs(arguments, message, capsys):
    assert main(["bench", "gpu", *arguments]) == 2
    assert message in capsys.readouterr().err


# --- figures
def _pages():
    return [name for name in experiments.names() if experiments.load(name).kind == "G"]


@pytest.mark.parametrize("name", _pages())
def test_claims_and_findings_work_on_any_part_of_the_rows(name):
    page = experiments.load(name)
    rows = [{**cell, **page.evaluate(cell)} for cell in page.cells("quick")]
    for some in (rows, rows[::2], rows[:1], []):
        claims = page.claims(some)
        assert all(claim.claim for claim in claims)
        assert isinstance(page.finding(some), str)
    assert page.claims(rows)
    assert page.finding(rows)


def test_figures_are_drawn_from_the_record_as_it_is():
    """The rows of committed figures name the record that they are from."""
    path = ROOT / "experiments" / "speed" / "h200.json"
    kept = record.read(path)
    assert path.read_text(encoding="utf-8") == kept.text()
    assert not any(row.get("mismatches") for row in kept.rows)
    assert all(row["again"] for row in kept.rows if "again" in row)
    for name in _pages():
        page = experiments.load(name)
        figure = ROOT / "figures" / f"{name}.csv"
        assert page.cells("quick")[0]["record"] in figure.read_text(encoding="utf-8").splitlines()[1]


# --- applications
def test_applications_say_what_they_need(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(Exception, match="need PyTorch with CUDA"):
        applications.pytorch()


def test_lloyds_iterations_end_at_the_means():
    """With a few of PyTorch's functions made of NumPy's: the steps are the ones that run on the GPU."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-4, 4, (5, 3))
    X = np.concatenate([c + 0.05 * rng.standard_normal((40, 3)) for c in centres])
    points, C, count = applications.lloyd(
        Arrays, Array(X), Array(X[::40] + 0.5), lambda C: lambda Y: Array(Y.x @ C.x.T)
    )
    assert 1 < count < 10
    assert json.dumps(sorted(np.bincount(points.x).tolist())) == "[40, 40, 40, 40, 40]"
    for number in range(5):
        assert np.allclose(C.x[number], X[points.x == number].mean(axis=0))


class Array:
    """As much of a tensor as `lloyd` uses."""

    device = "cpu"

    def __init__(self, x):
        self.x = np.asarray(x)
        self.shape, self.dtype = self.x.shape, self.x.dtype

    def __len__(self):
        return len(self.x)

    def __bool__(self):
        return bool(self.x)

    def __mul__(self, other):
        return Array(self.x * getattr(other, "x", other))

    __rmul__ = __mul__

    def __sub__(self, other):
        return Array(self.x - getattr(other, "x", other))

    def __truediv__(self, other):
        return Array(self.x / other.x)

    def __eq__(self, other):
        return Array(self.x == other.x)

    __hash__ = None

    def __getitem__(self, key):
        return Array(self.x[key])

    def all(self):
        return Array(self.x.all())

    def sum(self, axis):
        return Array(self.x.sum(axis))

    def argmin(self, axis):
        return Array(self.x.argmin(axis))

    def clamp(self, min):
        return Array(np.maximum(self.x, min))

    def to(self, dtype):
        return Array(self.x.astype(dtype))

    def double(self):
        return self.to(np.float64)

    def index_add_(self, axis, index, values):
        np.add.at(self.x, index.x, values.x)
        return self


class Arrays:
    """As much of PyTorch."""

    int64, float64 = np.int64, np.float64

    @staticmethod
    def zeros(shape, dtype, device):
        return Array(np.zeros(shape, dtype))

    @staticmethod
    def bincount(x, minlength):
        return Array(np.bincount(x.x, minlength=minlength))


def test_the_kernels_that_add_up_are_known_by_name():
    from fpemu.gpu.bench import parts

    text = "".join((ROOT / "fpemu" / "gpu" / "errorfree" / f"{name}.py").read_text() for name in ("sums", "residues"))
    assert all(f'"{name}"' in text for name in parts.SUMS)
    launched = set(re.findall(r'source\("exact_sums.cu"\), "(\w+)"', text))
    assert launched
    assert launched <= parts.SUMS
