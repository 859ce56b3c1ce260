"""Tall and skinny kernels: their tests without a GPU, and the results of an H200."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fpemu import InputError, simt
from fpemu.errors import GpuError
from fpemu.gpu import tallskinny
from fpemu.gpu.runtime import compiler, device
from fpemu.gpu.tallskinny import hopper
from fpemu.gpu.tallskinny.problem import Problem
from fpemu.verification import paths
from fpemu.verification import tallskinny as suite
from fpemu.verification.cases import Case, codes
from fpemu.verification.paths import POISON, Memory
from fpemu.verification.records import Record
from fpemu.verification.suite import Run
from fpemu.verification.tallskinny import TallSkinny
from tests import processor, tallskinny_on_cpu
from tests.gpu_fixtures import forget, gpu
from tests.hostile import FACTOR

__all__ = ["gpu"]

FILE = Path(__file__).parents[1] / "data" / "verified" / "h200_tallskinny.json"
needs_a_gpu = pytest.mark.skipif(device.missing() is not None, reason=device.missing() or "a GPU is here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def ampere(monkeypatch, folder):
    """This machine in the place of an A100."""
    from cuda import core

    tallskinny_on_cpu.cuda_on_cpu.stand_in(monkeypatch, folder, (8, 0))
    monkeypatch.setattr(core, "ObjectCode", tallskinny_on_cpu.Code)
    yield
    forget()


def case(fmt, sizes, layouts, kinds=("uniform", "uniform"), key=1, **options):
    """A product with parameters of the kernels; sizes are m, n, k."""
    defaults = {"t1": 32, "t2": 3, "t3": 4, "tcf": 1, "kernel": "V0"}
    return Case(fmt, 0, key, sizes, kinds, layouts, options=defaults | options)


def mismatches(kernel, case):
    """Mismatching outputs of a kernel and elements outside C that it changed."""
    want = suite.emulate(*suite.operands(case), case.subject)
    function, fixed, drawn = suite.KERNELS[kernel]
    given = TallSkinny().product(case, None)
    a, b, c = (Memory(X if X.base is None else X.base, case.key % 3) for X in (*given.operands[:2], given.like))
    for memory in (c.content, c.buffer):
        memory.fill(POISON)
    arrays = (
        memory.array(X, tensor=False) for memory, X in zip((a, b, c), (*given.operands[:2], given.like), strict=True)
    )
    options = fixed | {name: case.options[name] for name in drawn}
    tallskinny.TallSkinnyRequest(function, options).queued(dict(zip(("A", "B", "out"), arrays, strict=True)))()
    wrong = np.count_nonzero(codes(c.view(given.like, c.read())) != want)
    return wrong + c.changed(given.like) + a.changed() + b.changed(), want.size


@pytest.mark.parametrize("fmt", suite.FORMATS)
def test_the_published_kernels_return_the_emulations_bits(ampere, fmt):
    """Two texts of kernels, so that few are compiled: the other parameters are drawn."""
    names = [name for name in suite.KERNELS if "hopper" not in name]
    outputs = dict.fromkeys(names, 0)
    for number in range(0, 3 * suite.SWEPT, 30 if FACTOR == 1 else 1):
        drawn = suite.case(fmt, number, 1)
        sizes, layouts = tuple(np.minimum(drawn.sizes, (70, 4, 70)).tolist()), ("spaced", *drawn.layouts[1:])
        if sizes[1] < 3:
            continue
        product = case(fmt, sizes, layouts, drawn.kinds, drawn.key, tcf=drawn.options["tcf"])
        for name in names:
            wrong, count = mismatches(name, product)
            assert wrong == 0, (name, str(product))
            outputs[name] += count
    assert min(outputs.values()) > 500


def test_a_kernel_that_is_changed_is_detected(ampere, monkeypatch):
    text = compiler.kernel_source("tsm2.cu").replace(
        "c = fused(*at_a(o, row, j), *at_b(o, j, i), c)", "c += *at_a(o, row, j) * *at_b(o, j, i)"
    )
    assert text != compiler.kernel_source("tsm2.cu")
    monkeypatch.setattr(compiler, "kernel_source", lambda name: text)
    assert mismatches("V0", case("fp32", (40, 5, 33), ("spaced", "rows", "columns")))[0] > 10


def test_numpy_arrays_go_there_and_back(ampere):
    rng, dtype = np.random.default_rng(0), np.float32
    A, B = (rng.standard_normal(shape).astype(dtype) for shape in ((37, 6, 10), (9, 10, 3)))
    A, B = A[:, ::2, :].reshape(37, 30)[::-1, ::3], B[3]
    want = simt.gemm(A, B, fmt="fp32")
    for C in (
        tallskinny.tsm2(A, B, version="V1"),
        tallskinny.tsm2(A, B, t1=32, t2=3, t3=4),
        tallskinny.ism2(A, B, optimisation=1, tcf=2, t1=32, t2=3, t3=4),
        tallskinny.multiply(A, B),
    ):
        assert C.dtype == dtype
        assert (want == C).all()


def test_empty_matrices_give_empty_or_zero_results(ampere):
    for shape in ((0, 3, 2), (3, 2, 0)):
        assert tallskinny.tsm2(*_zeros(*shape)).shape == (shape[0], shape[2])
    for compute in (tallskinny.tsm2, tallskinny.ism2, tallskinny.multiply):
        C = compute(*_zeros(5, 0, 3))
        assert C.shape == (5, 3)
        assert not C.view(np.uint32).any()


def _zeros(m, k, n):
    return np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)


# --- the kernels for Hopper, run by this machine's processor
def by_stand_ins(product, make, folder):
    """Mismatching outputs of a case, elements outside C that changed, and the plan's parameters."""
    A, B = suite.operands(product)
    want = suite.emulate(A, B, product.subject)
    matrices = (A, B, np.zeros(want.shape, A.dtype))
    A, B, C = (suite.arrange(X, layout) for X, layout in zip(matrices, product.layouts, strict=True))
    memory = (C if C.base is None else C.base).reshape(-1).view(np.uint8)
    memory[:] = POISON
    problem = Problem(*map(processor.matrix, (A, B, C)))
    plan = make(problem)
    tallskinny_on_cpu.run(plan, problem, folder)
    wrong = (codes(C) != want).sum()
    C[...] = np.frombuffer(bytes([POISON]) * C.itemsize, C.dtype)[0]
    return wrong, (memory != POISON).sum(), plan.parameters


PADDED, ODD = ("columns padded",) * 3, ("rows odd", "rows odd", "spaced")


@pytest.mark.parametrize(
    ("fmt", "sizes", "layouts", "algorithm", "changes", "macros"),
    [
        ("fp32", (200, 70, 16), PADDED, "tsm2", {"ROWS": 5}, {"BULK": 1, "B_COLUMNS": 1, "SHARE": 2}),
        ("fp32", (130, 131, 5), ODD, "tsm2", {"ROWS": 2, "sms": 1}, {"BULK": 0, "PRODUCERS": 4}),
        pytest.param(
            *("fp32", (130, 96, 8), ("rows",) * 3, "tsm2", {"ROWS": 4, "STAGES": 2}, {"BULK": 1, "B_ROWS": 1}),
            marks=pytest.mark.slow,
        ),
        ("fp32", (70, 64, 20), ("rows",) * 3, "tsm2", {}, {"BULK": 1, "B_ROWS": 1, "WIDTH": 16}),
        ("fp32", (192, 40, 2), PADDED, "tsm2", {"ROWS": 3, "DEPTH": 64}, {"ONE_BOX": 1, "SHARE": 2}),
        pytest.param(
            *("fp32", (192, 160, 16), PADDED, "tsm2", {"ROWS": 1, "DEPTH": 64, "ONE_BOX": 0, "sms": 2}, {"SHARE": 2}),
            marks=pytest.mark.slow,
        ),
        ("fp32", (192, 80, 8), PADDED, "tsm2", {"ROWS": 5, "CONSUMERS": 4, "SHARE": 4}, {"ONE_BOX": 1}),
        ("fp64", (192, 37, 16), PADDED, "tsm2", {"ROWS": 3, "sms": 1}, {"BULK": 1, "DMMA": 1, "ONE_BOX": 1}),
        pytest.param(
            *("fp64", (200, 70, 16), PADDED, "tsm2", {"ROWS": 4, "DEPTH": 32}, {"BULK": 1, "STAGES": 5}),
            marks=pytest.mark.slow,
        ),
        ("fp32", (601, 16, 12), ("rows",) * 3, "ism2", {"spread": 0}, {"A_VECTOR": 4, "C_LINEAR": 1}),
        ("fp32", (602, 2, 2), ("rows",) * 3, "ism2", {"spread": 0}, {"FLAT": 1, "C_FLAT": 1, "B_KEPT": 1}),
        ("fp64", (601, 7, 5), PADDED, "ism2", {}, {"VECTORS": 1, "C_COLUMNS": 1, "WHOLE_K": 1}),
        pytest.param(
            *("fp64", (601, 16, 5), PADDED, "ism2", {"spread": 0, "tcf": 2}, {"TILES": 4}), marks=pytest.mark.slow
        ),
        pytest.param(*("fp32", (601, 4, 4), PADDED, "ism2", {}, {"B_KEPT": 1, "ROWS": 1}), marks=pytest.mark.slow),
        ("fp32", (300, 8, 12), ("rows",) * 3, "ism2", {}, {"DIRECT": 1, "WIDTH": 4, "C_DIRECT": 1}),
    ],
)
def test_the_kernels_for_hopper_return_the_emulations_bits(folder, fmt, sizes, layouts, algorithm, changes, macros):
    make = hopper.tsm2 if algorithm == "tsm2" else hopper.ism2
    sms = changes.get("sms", 132)
    changes = {name: value for name, value in changes.items() if name != "sms"}
    m, k, n = sizes
    for key, kinds in enumerate((("mixed", "uniform"), ("any-bits", "small"), ("zeros", "zeros"), ("large", "cancel"))):
        product = case(fmt, (m, n, k), layouts, kinds, key)
        wrong, outside, parameters = by_stand_ins(product, lambda problem: make(problem, sms, **changes), folder)
        assert parameters.items() >= macros.items()
        assert (wrong, outside) == (0, 0), kinds


# --- refusals
A, B = _zeros(100, 50, 8)
X, Y = _zeros(4, 3, 2)
REFUSED = [
    *(
        (tallskinny.tsm2, operands, {}, said)
        for operands, said in (
            ((X, Y[:2]), r"A \(4, 3\) and B \(2, 2\) do not fit"),
            ((X.astype(np.float64), Y), "A has float64 and B float32"),
            ((X.astype(np.int32), Y), "A has int32"),
            ((X, Y[None]), "one matrix"),
            ((X, [[1.0]]), "B is a list"),
            ((X, Y.astype(np.float16)), "B has float16"),
            ((X.astype(">f4"), Y), "A has"),
        )
    ),
    *(
        (tallskinny.tsm2, (A, B), options, said)
        for options, said in (
            ({"out": np.zeros((100, 8), np.float32)}, "out in the GPU's memory|out on the GPU|out must be an array"),
            ({"version": "V4"}, "'V4': known: V0, V1, V2, V3, hopper"),
            ({"version": "V0", "t1": 32}, "V0 has no tiles: leave t1 out"),
            ({"t1": 100}, "t1 = 100"),
            ({"t1": 2048}, "t1 = 2048"),
            ({"t2": 9}, "t2 = 9 exceeds n = 8"),
            ({"t1": 64, "t3": 3}, "t3 = 3 does not divide t1"),
            ({"t3": 0}, "t3 = 0 must be"),
            ({"t2": True}, "t2 = True"),
            ({"t1": 1024, "t2": 8, "t3": 64}, "registers"),
            ({"t1": 256, "t2": 8, "t3": 128}, "registers a thread"),
            ({"version": "hopper", "t1": 32, "t3": 4}, "leave t1 and t3 out"),
        )
    ),
    *(
        (tallskinny.ism2, (A, B), options, said)
        for options, said in (
            ({"optimisation": 3}, "optimisation = 3"),
            ({"optimisation": True}, "optimisation = True"),
            ({"optimisation": 2.0}, "optimisation = 2.0"),
            ({"tcf": 0}, "tcf = 0"),
            ({"tcf": 1.5}, "tcf = 1.5"),
            ({"optimisation": "hopper", "tcf": 0}, "tcf = 0"),
        )
    ),
]


@pytest.mark.parametrize(("function", "operands", "options", "said"), REFUSED)
def test_wrong_arguments_are_refused(gpu, function, operands, options, said):
    with pytest.raises(InputError, match=said):
        function(*operands, **options)


@pytest.mark.parametrize("options", [{"version": "hopper"}, {"optimisation": "hopper"}])
def test_the_kernels_for_hopper_are_for_hopper(ampere, options):
    function = tallskinny.tsm2 if "version" in options else tallskinny.ism2
    with pytest.raises(GpuError, match=r"needs compute capability 9\.0; this processor has 8\.0"):
        function(A, B, **options)


# --- a GPU, and the record of one
@needs_a_gpu
@pytest.mark.gpu
def test_the_gpus_kernels_return_the_emulations_bits():
    for outcome in Run(TallSkinny(3, 29)).run_missing(1).outcomes:
        assert outcome.ok, outcome.first


def test_an_h200_returned_the_emulations_bits_and_they_are_computed_again_here(gpu, monkeypatch):
    monkeypatch.setattr(paths, "missing", {"graph": "simulated", "torch": "simulated"}.get)
    record = Record.read(FILE)
    assert record.ok
    assert record.text() == FILE.read_text()
    assert FILE.stat().st_size < 100_000
    replayed = TallSkinny(record.seed, huge=True, names=suite.KERNELS)
    assert [outcome.group for outcome in record.outcomes] == list(replayed.groups)
    assert sum(len(outcome.facts.get("products", [])) for outcome in record.outcomes) == 96
    kernels = [outcome for outcome in record.outcomes if "huge" not in outcome.group]
    assert all(outcome.cases == suite.CASES for outcome in kernels)
    digests = {
        (o.group.rpartition(" ")[2], number): (o, digest) for o in kernels for number, digest in o.digests.items()
    }
    assert len(digests) >= 2 * replayed.kept
    for (_, number), (outcome, digest) in list(digests.items())[:: 1 if FACTOR > 1 else 2]:
        assert replayed.replay(record, outcome, number) == digest
    for fmt in suite.FORMATS:  # one chain, one digest, for every kernel
        assert len({outcome.digest for outcome in kernels if outcome.group.endswith(fmt)}) == 1
