"""The measurement of speed without a GPU: what is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu import implementations, record, suite
from benchmarks.gpu.case import Case
from fpemu import InputError
from fpemu.gpu.gemm import choice
from fpemu.gpu.gemm.wgmma import words
from fpemu.gpu.runtime import compiler, device
from fpemu.reproduce import pages
from fpemu.schemes.staged import Staged
from tests.simulated import Buffer

needs_compiler = pytest.mark.skipif(compiler.compiler_missing() is not None, reason="NVRTC is not here")


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
    # whole calls, which benchmarks.calls and benchmarks.errorfree.fp64 measure, and the orders of layers
    assert speeds - {"speed/calls", "speed/fp64", "parallel/invariance"} <= set(suite.figures())


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
    monkeypatch.setattr(words, "Buffer", Buffer)
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
