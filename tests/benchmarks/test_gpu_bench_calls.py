"""The benchmark of whole calls without a GPU: its timer, its record, and its cases on the simulated driver."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.calls import __main__ as command
from benchmarks.calls import run
from benchmarks.calls.sections import BATCHES, SECTIONS, Section
from benchmarks.calls.timer import CALLS, HOST, LONGEST, TURN, WHOLE, Timer
from experiments.speed import calls as page
from fpemu import InputError
from fpemu.gpu.runtime import device
from tests.gpu_fixtures import gpu
from tests.simulated_driver import Tensor

__all__ = ["gpu"]
HEAD = {"gpu": "NVIDIA H200", "torch": "2.11.0", "date": "2026-01-02", "code": "0123456789ab"}


class Machine:
    """A GPU that works through its queue, and a host that needs time for each call."""

    def __init__(self, empty_cache=lambda: None):
        self.time = self.free = 0.0
        self.log = []
        cuda = SimpleNamespace(synchronize=self.synchronize, empty_cache=empty_cache)
        backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)))
        self.torch = SimpleNamespace(cuda=cuda, backends=backends)
        self.timer = Timer(self.torch, lambda: self.time)

    def synchronize(self):
        self.time = max(self.time, self.free)

    def call(self, name, on_host, on_gpu):
        def queue():
            self.log.append(name)
            self.time += on_host
            self.free = max(self.free, self.time) + on_gpu

        return queue


def test_host_times_exclude_the_gpu_and_whole_times_include_it():
    machine = Machine()
    calls = {"short": machine.call("short", 2e-6, 50e-6), "long": machine.call("long", 5e-6, 20e-3)}
    assert machine.timer.host(calls) == {"short": 2.0, "long": 5.0}
    whole = machine.timer.whole(calls)
    assert whole["short"] == pytest.approx(50, rel=1e-2)
    assert whole["long"] == pytest.approx(20e3, rel=1e-2)
    assert machine.torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize(("kind", "repetitions"), [("host", HOST), ("whole", WHOLE)])
def test_the_calls_of_a_case_alternate_and_long_ones_are_fewer(kind, repetitions):
    machine = Machine()
    getattr(machine.timer, kind)({"a": machine.call("a", 1e-6, 1e-5), "b": machine.call("b", 1e-6, LONGEST / 7)})
    first = ["a"] * 6 + ["b"] * 6
    assert machine.log == first + repetitions * (["a"] * CALLS + ["b"] * 6)


def test_sustained_calls_alternate_and_the_second_half_counts():
    machine = Machine()

    def heating(name, cold, hot):  # microseconds on the GPU, before and after a second of work
        return lambda: machine.call(name, 0.0, 1e-6 * (hot if machine.time > 1 else cold))()

    row = machine.timer.sustained({"a": heating("a", 4e3, 5e3), "b": heating("b", 5e4, 6e4)})
    assert row == {"a": 5000.0, "b": 60000.0}
    turns = [turn for turn in "".join(machine.log).split("b") if turn]
    assert turns[0] == "a" * 4  # before the repetitions
    assert {*turns[1:]} == {"a" * int(TURN / 4e-3)}


# --- the record
@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(run, "Watch", lambda: SimpleNamespace(stop=lambda: None))
    return Machine()


def section(machine, seconds, **cases):
    """Cases that take some seconds, or raise."""

    def row(value):
        def measure(timer):
            if isinstance(value, BaseException):
                raise value
            machine.time += value
            return {"call": value}

        return measure

    return Section(seconds, {name: row(value) for name, value in cases.items()})


def measure(machine, file, sections, record=None, **more):
    record = run.new(HEAD) if record is None else record
    given = {"seconds": 100.0, "report": lambda text: None, "now": lambda: machine.time} | more
    run.measure(sections, machine.timer, record, file, HEAD, **given)
    return json.loads(file.read_text())


def test_every_case_is_saved_as_it_completes_and_failures_have_their_traceback(machine, tmp_path):
    file, saved = tmp_path / "calls.json", []
    sections = {"x": section(machine, 50, a=1.0, b=ValueError("no kernel"), c=2.0), "y": section(machine, 50, d=3.0)}
    record = measure(machine, file, sections, report=lambda text: saved.append(json.loads(file.read_text())))
    assert [list(content.get("x", {})) for content in saved] == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]]
    assert record["x"]["c"] == {"call": 2.0}
    assert record["x"]["b"]["error"].endswith("ValueError: no kernel\n")
    assert record["about"]["x"] == {"date": "2026-01-02", "code": "0123456789ab", "seconds": 3.0}
    assert record["gpu"] == "NVIDIA H200"
    assert "date" not in record


def test_no_case_begins_after_the_limit_of_its_section_or_of_the_run(machine, tmp_path):
    sections = {"x": section(machine, 5, a=4.0, b=4.0, c=1.0), "y": section(machine, 50, d=9.0, e=1.0)}
    record = measure(machine, tmp_path / "calls.json", sections, seconds=15.0)
    assert list(record["x"]) == ["a", "b"]
    assert record["about"]["x"]["not measured"] == ["c"]
    assert list(record["y"]) == ["d"]
    assert record["about"]["y"]["not measured"] == ["e"]


def test_an_interrupted_run_leaves_the_finished_cases_and_names_the_others(machine, tmp_path):
    file = tmp_path / "calls.json"
    with pytest.raises(KeyboardInterrupt):
        measure(machine, file, {"x": section(machine, 50, a=1.0, b=KeyboardInterrupt(), c=1.0)})
    record = json.loads(file.read_text())
    assert record["x"] == {"a": {"call": 1.0}}
    assert record["about"]["x"]["not measured"] == ["b", "c"]


def test_other_sections_stay_and_another_gpu_is_refused(machine, tmp_path):
    file = tmp_path / "calls.json"
    measure(machine, file, {"x": section(machine, 50, a=1.0), "y": section(machine, 50, b=1.0)})
    later = HEAD | {"date": "2026-03-04", "code": "ba9876543210"}
    record = measure(machine, file, {"y": section(machine, 50, b=2.0)}, run.resume(file, later))
    assert (record["x"], record["y"]) == ({"a": {"call": 1.0}}, {"b": {"call": 2.0}})
    with pytest.raises(InputError, match=r"was measured with torch 2\.11\.0, now 2\.12\.0: give another file"):
        run.resume(file, HEAD | {"torch": "2.12.0"})
    assert run.resume(tmp_path / "new.json", HEAD) == run.new(HEAD)


def test_the_command_names_what_is_wrong(capsys, monkeypatch):
    assert command.main(["--sections", "host,batched"]) == 2
    assert "unknown section 'batched': did you mean 'batches'?" in capsys.readouterr().err
    monkeypatch.setattr(device, "missing", lambda: "no NVIDIA GPU is usable here (according to a test)")
    assert command.main([]) == 1
    assert capsys.readouterr().err == "error: no NVIDIA GPU is usable here (according to a test)\n"


# --- the sections
def test_the_sections_fit_into_the_limit_and_the_figure_names_them_all():
    assert sum(section.seconds for section in SECTIONS.values()) <= 150
    assert set(SECTIONS) == set(page.SECTIONS)
    assert not set(SECTIONS) & {"gpu", "arch", "driver", "torch", "python", "about"}


@pytest.fixture
def timer(gpu, monkeypatch):
    """A timer that makes each call twice, on the simulated driver; the row has the number of its kernels."""
    torch = sys.modules["torch"]

    def product(A, B, out=None):
        shape = (*A.shape[:-1], B.shape[-1])
        assert A.shape[-1] == B.shape[-2]
        assert out is None or out.shape == shape
        return out

    torch.mm = torch.bmm = product
    torch.empty_like = lambda A: Tensor(np.zeros_like(A._array), "cuda")
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)))
    monkeypatch.setattr(Tensor, "half", lambda A: Tensor(A._array.astype(np.float16), "cuda"), raising=False)
    result = Timer(torch)

    def row(calls):
        counts = {}
        for name, call in calls.items():
            call()
            gpu.launches.clear()
            call()
            counts[name] = len(gpu.launched)
        return counts

    for name in ("host", "whole", "whole_and_replayed"):
        monkeypatch.setattr(result, name, row)
    monkeypatch.setattr(result, "graph", lambda call: call)
    return result


# --- the figure
@pytest.fixture
def shown(tmp_path, monkeypatch):
    """A function from sections of a record to the rows of the figure."""

    def rows(**sections):
        file = tmp_path / "record.json"
        file.write_text(json.dumps({"torch": "2.11.0", "about": {}} | sections))
        monkeypatch.setattr(page, "_path", lambda: file)
        page._record.cache_clear()
        return [cell | page.evaluate(cell) for cell in page.cells()]

    yield rows
    page._record.cache_clear()


HOST_ROW = {"torch.mm(out=)": 10.0, "eager": 3.0, "plan": 2.0, "replayed": 1.0}


def test_the_figure_shows_the_sections_of_the_record(shown):
    rows = shown(
        host=dict.fromkeys(page.SCHEMES, HOST_ROW),
        batches={"8 x 5": {"bmm": 9.0, "fpemu": 3.0, "bmm graph": 8.0, "fpemu graph": 2.0}},
        products={"512": {"SGEMM": 8.0, "staged": 4.0, "three fp16": 2.0}, "1024": {"error": "no kernel"}},
        sustained={"16384": {"three fp16": 2000.0, "staged": 4000.0}},
        long_sums={"16x16x65536": {"SGEMM": 3.0, "staged": 6.0}},
        tall={"300x32x4 float64": {"torch.mm": 2.0, "multiply": 1.0}},
        ozaki2={"8192": {"DGEMM": 3.0, "fast": 2.0, "accurate": 4.0}},
        split={"512": {"split": 1.0, "product": 3.0, "both": 4.0}},
        operators={"gradients": {"torch.mm": 1, "fpemu.torch.gemm": 3, "torch.mm and backward": 2}},
    )
    ratios = {(row["kind"], row["way"]): row["ratio"] for row in rows}
    assert ratios["host", "eager"] == 0.3
    assert (ratios["batches", "fpemu"], ratios["batches", "fpemu graph"]) == (3.0, 4.0)
    assert (ratios["products", "staged"], ratios["products", "three fp16"]) == (2.0, 4.0)
    assert (ratios["sustained", "staged"], ratios["long_sums", "staged"], ratios["tall", "multiply"]) == (0.5, 0.5, 2.0)
    assert (ratios["ozaki2", "fast"], ratios["split", "split"], ratios["operators", "fpemu.torch.gemm"]) == (
        1.5,
        0.25,
        3,
    )
    (late,) = (row for row in rows if (row["kind"], row["way"]) == ("sustained", "staged"))
    assert late["time_us"] == 4000.0
    assert "ot measured" not in page.finding(rows)
    assert "call, n = 16384: 0.5." in page.finding(rows)
    assert [text.get_text() for axis in page.draw(rows).axes for text in axis.texts] == []


def test_the_figure_states_which_sections_are_not_measured(shown):
    batch = {"8 x 5": {"bmm": 9.0, "fpemu": 3.0}}
    rows = shown(
        host=dict.fromkeys(page.SCHEMES, HOST_ROW), batches=batch, products={"512": {"SGEMM": 8.0, "staged": 4.0}}
    )
    missing = "sustained products, long sums, tall and skinny products, Ozaki scheme II, split alone"
    assert page.finding(rows).endswith(f"Not measured: {missing}, operators of fpemu.torch.")
    assert [text.get_text() for axis in page.draw(rows).axes for text in axis.texts] == 3 * ["not measured"]


def test_an_incomplete_section_has_no_minimum_and_its_missing_cases_are_named(shown):
    batches = {f"{n} x {count}": {"bmm": 9.0, "fpemu": 3.0} for n, count in BATCHES.items()}
    hosts = dict.fromkeys(page.SCHEMES, HOST_ROW)

    def names(**more):
        return [measure.name for measure in page.measures(shown(**{"host": hosts, "batches": batches} | more))]

    assert names() == ["calls_host", "calls_host", "calls_batches"]
    slowest, _ = batches.popitem()
    assert names() == ["calls_host", "calls_host"]
    assert names(batches=batches | {slowest: {"error": "no kernel"}}) == ["calls_host", "calls_host"]
    about = {"batches": {"date": "2026-01-02", "not measured": ["16 x 5", "32 x 5"]}}
    rows = shown(host=hosts | {"legemm": {"error": "no kernel"}}, batches=batches, about=about)
    assert [measure.name for measure in page.measures(rows)] == []
    finding = page.finding(rows)
    assert "Not measured: batches (16 x 5, 32 x 5), products, " in finding
    assert finding.endswith("Failed: host time (legemm).")
