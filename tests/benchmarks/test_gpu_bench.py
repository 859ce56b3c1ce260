"""The measurement of speed without a GPU: what is measured, and how."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks import timing
from benchmarks.gpu import implementations, record, suite
from benchmarks.gpu.case import Case
from fpemu import InputError
from fpemu.gpu.gemm import choice
from fpemu.gpu.runtime import compiler, device
from fpemu.reproduce import pages
from fpemu.schemes.staged import Staged

needs_compiler = pytest.mark.skipif(compiler.compiler_missing() is not None, reason="NVRTC is not here")


# --- timing
class Machine:
    """A GPU in a few lines: launches take what they take, in order; the host needs time to queue them."""

    def __init__(self, seconds, host=1e-5, slow_after=math.inf):
        self.seconds, self.host, self.slow_after = seconds, host, slow_after
        self.time = self.free = 0.0
        self.launches = 0
        self.marks, self.slept = {}, []

    def launch(self):
        self.time += self.host
        took = self.seconds * (2 if self.free > self.slow_after else 1)
        self.free = max(self.free, self.time) + took
        self.launches += 1

    def hold(self, seconds):
        self.free = max(self.free, self.time) + seconds

    def synchronize(self):
        self.time = max(self.time, self.free)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds

    def mark(self, which):
        self.marks[which] = max(self.free, self.time)

    def intervals(self, count):
        self.synchronize()
        return [self.marks[i + 1] - self.marks[i] for i in range(count)]

    def watch(self):
        class Watch:
            def stop(self):
                return None

        return Watch()

    def away(self):
        return 0.0

    def now(self):
        return self.time

    def measure(self, rules):
        return timing.measure(self.launch, rules, self)


@pytest.mark.parametrize(("seconds", "host"), [(4e-3, 1e-5), (3e-6, 4e-5), (1e-4, 4e-5)])
def test_the_hosts_time_is_not_counted(seconds, host):
    found = Machine(seconds, host).measure(timing.FULL)
    assert found.median == pytest.approx(seconds, rel=1e-6)
    assert found.sustained == pytest.approx(seconds, rel=1e-6)


def test_a_limiter_shows_in_the_second_half_and_not_in_the_first_launches():
    machine = Machine(4e-3, slow_after=1.2)
    found = machine.measure(timing.FULL)
    assert found.median == pytest.approx(4e-3)
    assert found.sustained == pytest.approx(8e-3)
    assert machine.slept == [timing.FULL.idle]


def test_a_call_that_waits_for_the_gpu_is_not_repeated_for_long(monkeypatch):
    """Where the host needs as long as the GPU nothing can queue up: two hundred launches would take ten seconds."""
    machine = Machine(0.05)
    queue = machine.launch

    def launch():
        queue()
        machine.synchronize()

    monkeypatch.setattr(machine, "launch", launch)
    found = machine.measure(timing.SHORT)
    assert found.median == pytest.approx(0.05, rel=1e-3)
    assert machine.launches < 15
    assert machine.time < 3 * timing.seconds(timing.SHORT, 0.05)


@pytest.mark.parametrize("each", [2e-5, 4e-4, 5e-3, 0.3])
@pytest.mark.parametrize("name", list(timing.RULES))
def test_the_duration_of_a_measurement_is_estimated(name, each):
    rules = timing.RULES[name][0]
    machine = Machine(each)
    machine.measure(rules)
    assert machine.time == pytest.approx(timing.seconds(rules, each), rel=0.5, abs=0.06)


def test_a_row_records_that_another_process_used_the_gpu(monkeypatch):
    gone = iter([2.4e-3, 9e-7])  # before this measurement, and in it
    machine = Machine(4e-3)
    monkeypatch.setattr(machine, "away", lambda: next(gone))
    found = machine.measure(timing.FIRST)
    assert found.away == 9e-7
    assert "away_s" not in timing.fields(found)
    assert timing.fields(replace(found, away=2.4e-3), "split_")["away_s"] == 2.4e-3


# --- what is measured
def test_rows_are_measured_once_the_most_important_first():
    tasks = suite.cases()
    keys = [tuple(task.fields.values()) for task in tasks]
    assert len(set(keys)) == len(keys)
    assert [task.implementation for task in tasks[:3]] == ["fp16", "staged", "staged-int8 exact=8"]
    assert {tuple(task.fields.values()) for task in suite.cases(None, quick=True)} <= set(keys)
    assert all(
        implementations.find(task.implementation).name == task.implementation
        for task in tasks
        if task.kind == "product"
    )


def test_every_page_of_speed_has_rows():
    speeds = {name for name in pages.names() if pages.load(name).page.kind == "G"}
    assert speeds
    assert speeds - {"speed/calls"} <= set(suite.figures())  # whole calls: benchmarks.calls measures them


def test_a_paper_or_a_page_chooses_rows():
    one, all_of = suite.cases(["dgemm_tc/fig9"]), suite.cases(["dgemm_tc"])
    assert {task.implementation for task in one} == {"sgemm", "ozaki SP"}
    assert len(one) < len(all_of) < len(suite.cases())
    with pytest.raises(InputError, match="unknown figure 'legemm/fig99'"):
        suite.cases(["legemm/fig99"])


def test_every_kind_lists_its_rows_and_their_duration():
    for kind in suite.MODULES:
        module = suite.module(kind)
        tasks = list(module.cases(True))
        assert tasks
        assert {task.kind for task in tasks} == {kind}
        assert all(0 < module.seconds(task) < 60 for task in tasks)
        assert suite.base(kind) in {task.implementation for task in tasks} | {"sgemm"}
    assert suite.seconds(suite.cases(None, quick=True)) < suite.seconds(suite.cases())


def test_rows_of_a_batch_differ_by_how_many_there_are():
    one = Case("batched", 16, 16, 16, "real", "cublas", "many", "fp16", ())
    many = replace(one, batch=1000)
    assert record.key(one.fields) != record.key(many.fields)
    assert record.key({**one.fields, "batch": 1}) == record.key(one.fields)
    assert one.operands != many.operands
    row = {**many.fields, "first_s": 1e-3}
    assert record.rate(row) == pytest.approx(2 * 16**3 * 1000 / 1e-3 * 1e-12)
    assert record.rate({**row, "operations": 1e9}) == pytest.approx(1.0)


def test_a_single_product_by_chosen_implementations():
    tasks = suite.chosen("512x64x100", ["staged stage=128", "sgemm"], "phi 1")
    assert [(t.M, t.N, t.K, t.implementation, t.fmt) for t in tasks] == [
        (512, 64, 100, "staged stage=128", "fp32"),
        (512, 64, 100, "sgemm", "fp32"),
    ]
    assert {t.fmt for t in suite.chosen("64", ["ozaki CR", "dgemm"])} == {"fp64"}
    refused: list[tuple] = [("4y",), ("4x4",), ("0x1x1",), ("64", ["turbo"]), ("64", [], "nice")]
    for arguments in refused:
        with pytest.raises(InputError):
            suite.chosen(*arguments)


def test_strassen_is_found_outside_of_the_registry():
    who = implementations.find("strassen levels=2")
    assert implementations.scheme(who) == Staged(levels=2)
    assert implementations.scheme(implementations.find("staged stage=128")).stage == 128


@pytest.mark.parametrize("name", ["turbo", "legemm 64y64", "legemm fast"])
def test_an_unknown_contender_or_hint_is_named(name):
    with pytest.raises(InputError, match="unknown"):
        implementations.find(name)


@pytest.fixture
def hopper(monkeypatch):
    """What kernels ask of the GPU, without one."""
    monkeypatch.setattr(choice, "architecture", lambda: "hopper")
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(device, "most_shared", lambda: 232448)


def test_the_kernels_of_all_schemes_are_known_before_they_are_measured(hopper):
    """Products and splits: what is not compiled beforehand takes a second of the time of its row."""
    found: dict = {}
    for task in suite.cases():
        who = implementations.find(task.implementation) if task.kind == "product" else None
        if who is not None and who.scheme not in (None, "ozaki", "ozimmu", "ozaki2"):
            found.setdefault(who.name, implementations.sources((task.M, task.N, task.K), who.name))
    assert {name for name, texts in found.items() if len(texts) < 2} == set()
    assert {"staged", "staged-int8", "strassen", "markidis", "legemm mma", "legemm fused"} <= set(found)
    assert any("wgmma" in text for text in found["staged"])
    layers = [task for task in suite.cases(["legemm/fig15"]) if task.implementation in ("legemm", "fp16")]
    assert {task.implementation: bool(suite.module("application").sources(task)) for task in layers} == {
        "legemm": True,
        "fp16": False,
    }


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernels_of_the_measurement_compile(arch):
    text = compiler.kernel_source("bench.cu")
    cubin = compiler.compile(text, arch)
    names = "widen words_rows words_columns compare_fp32 compare_fp64 draw_fp32 draw_fp64 digest_32 digest_64 hold"
    for name in (*names.split(), "nothing"):
        assert name.encode() in cubin
