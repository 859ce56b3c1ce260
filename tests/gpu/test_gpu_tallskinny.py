"""Tall and skinny kernels: their tests without a GPU, and the results of an H200."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fpemu import InputError, gpu, simt
from fpemu.errors import GpuError
from fpemu.gpu import tallskinny
from fpemu.gpu.runtime import compiler, device, modules, properties
from fpemu.gpu.tallskinny import Problem, hopper, launch
from fpemu.verification import tallskinny as suite
from fpemu.verification.cases import Case, codes
from fpemu.verification.paths import POISON, Memory
from fpemu.verification.records import Record
from fpemu.verification.suite import Run
from fpemu.verification.tallskinny import TallSkinny
from tests import cuda_on_cpu, tallskinny_on_cpu
from tests.hostile import FACTOR

FILE = Path(__file__).parents[1] / "data" / "verified" / "h200_tallskinny.json"
needs_a_gpu = pytest.mark.skipif(device.missing() is not None, reason=device.missing() or "a GPU is here")
H200 = "NVIDIA H200"


@pytest.fixture
def an_h200(monkeypatch):
    """Plans are made as on an H200."""
    monkeypatch.setattr(device, "describe", lambda: {"gpu": H200})
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    monkeypatch.setattr(properties, "multiprocessors", lambda: 132)


# --- the published kernels, run by this machine's processor
WORDS = """
#include <cmath>
#define __align__(n)
#undef __shared__
#define __shared__
#define __fmaf_rn __builtin_fmaf
#define __fma_rn __builtin_fma
#include "integers.cuh"
"""


class Module(cuda_on_cpu.HostModule):
    """With the struct of these kernels' operands, and shared memory of any size."""

    def __init__(self, source, *, options=(), name="kernel.cu"):
        macros = source[: source.index("//")]
        super().__init__(f"{macros}{WORDS}REAL curr_b[1 << 16];\n{source[len(macros) :]}")

    def prepare(self, name, grid, block, *arguments, keep=None, shared=0, **_):
        assert shared <= 4 << 16
        packed = [np.ascontiguousarray(x) for x in arguments]
        pointers = (cuda_on_cpu.ctypes.c_void_p * len(packed))(*(p.ctypes.data for p in packed))
        run = getattr(self.library, f"run_{name}")

        class Launch:
            def queue(self, stream=0):
                assert grid[1] == 1
                run(grid[0], block, pointers)

        return Launch()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def processor(monkeypatch, folder):
    """This machine in the place of the GPU."""
    cuda_on_cpu.stand_in(monkeypatch, folder, (8, 0))
    monkeypatch.setattr(modules, "Module", Module)
    monkeypatch.setattr(device, "describe", lambda: {"gpu": "NVIDIA A100", "arch": "sm_80"})
    launch._module.cache_clear()
    yield
    launch._module.cache_clear()


def case(fmt, sizes, layouts, kinds=("uniform", "uniform"), key=1, **options):
    """A product with parameters of the kernels; sizes are m, n, k."""
    defaults = {"t1": 32, "t2": 3, "t3": 4, "tcf": 1, "kernel": "V0"}
    return Case(fmt, 0, key, sizes, kinds, layouts, options=defaults | options)


def mismatches(kernel, case):
    """Mismatching outputs of a kernel and elements outside C that it changed."""
    want = suite.emulate(*suite.operands(case), case.subject)
    function, fixed, drawn = suite.KERNELS[kernel]
    given = TallSkinny().product(case, "eager")
    a, b, c = (Memory(X if X.base is None else X.base, case.key % 3) for X in (*given.operands[:2], given.like))
    for memory in (c.content, c.buffer):
        memory.fill(POISON)
    arrays = (
        memory.array(X, tensor=False) for memory, X in zip((a, b, c), (*given.operands[:2], given.like), strict=True)
    )
    options = fixed | {name: case.options[name] for name in drawn}
    tallskinny.prepare(*arrays, function, **options).queue()
    wrong = np.count_nonzero(codes(c.view(given.like, c.read())) != want)
    return wrong + c.changed(given.like) + a.changed() + b.changed(), want.size


@pytest.mark.parametrize("fmt", suite.FORMATS)
def test_the_published_kernels_return_the_emulations_bits(processor, fmt):
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


def test_a_kernel_that_is_changed_is_detected(processor, monkeypatch):
    text = compiler.kernel_source("tsm2.cu").replace(
        "c = fused(*at_a(o, row, j), *at_b(o, j, i), c)", "c += *at_a(o, row, j) * *at_b(o, j, i)"
    )
    assert text != compiler.kernel_source("tsm2.cu")
    monkeypatch.setattr(compiler, "kernel_source", lambda name: text)
    assert mismatches("V0", case("fp32", (40, 5, 33), ("spaced", "rows", "columns")))[0] > 10


def test_numpy_arrays_go_there_and_back(processor):
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


def test_empty_matrices_give_empty_or_zero_results(processor):
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
    memory, (m, n, k) = (C if C.base is None else C.base).reshape(-1).view(np.uint8), product.sizes
    memory[:] = POISON
    steps = ((X.strides[0] // X.itemsize, X.strides[1] // X.itemsize) for X in (A, B, C))
    problem = Problem(product.subject, m, k, n, *steps, tuple(X.ctypes.data for X in (A, B, C)))
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
def test_the_kernels_for_hopper_return_the_emulations_bits(
    an_h200, folder, fmt, sizes, layouts, algorithm, changes, macros
):
    make = hopper.tsm2 if algorithm == "tsm2" else hopper.ism2
    sms = changes.get("sms", 132)
    changes = {name: value for name, value in changes.items() if name != "sms"}
    m, k, n = sizes
    for key, kinds in enumerate((("mixed", "uniform"), ("any-bits", "small"), ("zeros", "zeros"), ("large", "cancel"))):
        product = case(fmt, (m, n, k), layouts, kinds, key)
        wrong, outside, parameters = by_stand_ins(product, lambda problem: make(problem, sms, **changes), folder)
        assert parameters.items() >= macros.items()
        assert (wrong, outside) == (0, 0), kinds


# --- what users do wrong
def test_arrays_that_no_product_takes_are_refused(processor):
    A, B = _zeros(4, 3, 2)
    for a, b, words in (
        (A, B[:2], r"A \(4, 3\) and B \(2, 2\) do not fit"),
        (A.astype(np.float64), B, "A has float64 and B float32"),
        (A.astype(np.int32), B, "A has int32"),
        (A, B[None], "one matrix"),
        (A, [[1.0]], "B is a list"),
        (A, B.astype(np.float16), "B has float16"),
        (A.astype(">f4"), B, "A has"),
    ):
        with pytest.raises(InputError, match=words):
            tallskinny.tsm2(a, b)
    with pytest.raises(InputError, match="out must be an array on the GPU"):
        tallskinny.tsm2(A, B, out=np.zeros((4, 2), np.float32))


def test_parameters_are_refused_by_name(processor):
    A, B = _zeros(100, 50, 8)
    for options, words in (
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
    ):
        with pytest.raises(InputError, match=words):
            tallskinny.tsm2(A, B, **options)
    for options, words in (
        ({"optimisation": 3}, "optimisation = 3"),
        ({"optimisation": True}, "optimisation = True"),
        ({"optimisation": 2.0}, "optimisation = 2.0"),
        ({"tcf": 0}, "tcf = 0"),
        ({"tcf": 1.5}, "tcf = 1.5"),
    ):
        with pytest.raises(InputError, match=words):
            tallskinny.ism2(A, B, **options)


def test_the_kernels_for_hopper_are_for_hopper_and_have_tiles_of_their_own(processor, monkeypatch):
    A, B = _zeros(100, 50, 8)
    for compute, options in ((tallskinny.tsm2, {"version": "hopper"}), (tallskinny.ism2, {"optimisation": "hopper"})):
        with pytest.raises(GpuError, match=r"needs compute capability 9\.0; NVIDIA A100 has 8\.0"):
            compute(A, B, **options)
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    monkeypatch.setattr(properties, "multiprocessors", lambda: 132)
    with pytest.raises(InputError, match="leave t1 and t3 out"):
        tallskinny.tsm2(A, B, version="hopper", t1=32, t3=4)
    with pytest.raises(InputError, match="tcf = 0"):
        tallskinny.ism2(A, B, optimisation="hopper", tcf=0)


# --- a GPU, and the record of one
@needs_a_gpu
@pytest.mark.gpu
def test_the_gpus_kernels_return_the_emulations_bits():
    for outcome in Run(TallSkinny(3, 29)).finish(1).outcomes:
        assert outcome.ok, outcome.first


def test_an_h200_returned_the_emulations_bits_and_they_are_computed_again_here(an_h200):
    record = Record.read(FILE)
    assert record.ok
    assert record.text() == FILE.read_text()
    assert FILE.stat().st_size < 100_000
    replayed = TallSkinny(record.seed, huge=True, names=suite.KERNELS)
    assert [outcome.group for outcome in record.outcomes] == replayed.groups()
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


def test_the_package_is_reached_through_fpemu_gpu():
    assert gpu.tallskinny is tallskinny
