"""The paths of a caller on stand-ins for the GPU: each path runs, and a wrong bit of one path is found.

CUDA graphs are simulated by a second call. PyTorch's operators run on the CPU, where they emulate an H200.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util

import numpy as np
import pytest
from tests.gpu.test_calls import processor

import fpemu
from fpemu import schemes
from fpemu.errors import InputError
from fpemu.gpu.batched import products
from fpemu.gpu.gemm import plans
from fpemu.gpu.runtime import device, faults, matrices
from fpemu.verification import batched, cases, kernels, paths, tallskinny
from fpemu.verification.arguments import Arguments
from fpemu.verification.batched import Batched
from fpemu.verification.kernels import Kernels
from fpemu.verification.paths import OPERATORS, PATHS, Functions
from fpemu.verification.records import Outcome
from fpemu.verification.runner import Run
from fpemu.verification.suite import by_path
from fpemu.verification.tallskinny import TallSkinny
from tests import cuda_on_cpu
from tests.commands import refusal

__all__ = ["processor"]
WITH_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not WITH_TORCH, reason="PyTorch is not installed")
every_path = pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[needs_torch] * (path in OPERATORS)) for path in PATHS]
)
CASES, SCHEME = 5, "ootomo"


@pytest.fixture
def simulated(processor, monkeypatch):
    """All paths on this processor."""
    monkeypatch.setattr(paths, "missing", lambda path: None)
    monkeypatch.setattr(paths, "capture", lambda call: call)
    interface = lambda X: cases._interface(X, X.first, X.shape, [s * X.dtype.itemsize for s in X.steps])  # noqa: E731
    monkeypatch.setattr(cases, "_tensor", interface)
    monkeypatch.setattr(paths, "_streams", lambda side: [contextlib.nullcontext] * 2)
    return processor


def flat(X):
    """A tensor of the CPU on all memory of a buffer of the simulation."""
    return importlib.import_module("torch").from_numpy(X.buffer.memory[: X.count * X.dtype.itemsize].view(X.dtype))


TENSOR = cases._tensor


def as_tensors(monkeypatch):
    """Tensors of PyTorch on the CPU in the place of those on a GPU."""
    monkeypatch.setattr(cases, "_tensor", TENSOR)
    monkeypatch.setattr(cases, "_flat", flat)


def compare(path, monkeypatch):
    if path in OPERATORS:
        as_tensors(monkeypatch)
    return Kernels(0, CASES, [SCHEME], published=True, emulated_on="cpu", paths=[path]).run(SCHEME)


def flip(D):
    """Change the last bit of the first element of a result, and return it."""
    if isinstance(D, np.ndarray):
        D.reshape(-1).view(np.uint8)[0] ^= 1
    elif hasattr(D, "__cuda_array_interface__"):
        ctypes.c_uint8.from_address(D.__cuda_array_interface__["data"][0]).value ^= 1
    else:
        ctypes.c_uint8.from_address(D.data_ptr()).value ^= 1
    return D


def seen(X):
    """An array of the simulated GPU as a NumPy array."""
    X = matrices.take(X, "X", write=True)
    return cuda_on_cpu.view(X)


def prepared(plan, *operands, **out):
    return any(isinstance(X, plans.PreparedOperand) for X in operands)


def within(path, replays):
    """Whether a call is one of the path: for a graph, one of its replays."""
    return bool(replays) or not path.startswith("graph")


def spoil(path, monkeypatch):
    """Spoil the results of the function that one path alone calls; return the list of its calls."""
    calls = []

    def replace(place, name, applies):
        function = getattr(place, name)

        def spoilt(*given, **more):
            D = function(*given, **more)
            if applies(*given, **more):
                calls.append(name)
                flip(D[0] if isinstance(D, tuple) else D)
            return D

        monkeypatch.setattr(place, name, spoilt)

    def always(*given, **more):
        return True

    def captured(call):
        def replay():
            replays.append(path)
            D = call()
            replays.pop()
            return D

        return replay

    replays: list[str] = []
    base = path.replace("graph-", "").replace("graph", "eager")
    if base != path:
        monkeypatch.setattr(paths, "capture", captured)
    if base in ("host", "eager"):
        replace(
            fpemu.gpu, "gemm", lambda *X, **more: (more["out"] is None) == (base == "host") and within(path, replays)
        )
    elif base in ("plan", "prepared"):
        replace(plans.Plan, "__call__", lambda *X, **_: prepared(*X) == (base == "prepared") and within(path, replays))
    elif path == "torch":
        replace(fpemu.torch, "gemm", always)
    elif path == "routed":
        for name in ("matmul", "addmm", "baddbmm"):
            replace(importlib.import_module("torch"), name, always)
    else:
        replace(importlib.import_module("torch").autograd, "grad", always)
    return calls


@every_path
def test_a_path_is_run_and_its_wrong_bit_is_found(simulated, monkeypatch, path):
    outcome = compare(path, monkeypatch)
    assert outcome.ok, outcome.first
    count, *others = by_path([outcome], path)
    assert count >= 1
    assert others == [outcome.outputs, 0, 0]
    assert outcome.outputs > 0
    calls = spoil(path, monkeypatch)
    wrong = compare(path, monkeypatch)
    assert calls
    assert by_path([wrong], path) == [count, outcome.outputs, wrong.mismatches, 0]
    assert wrong.mismatches >= 1
    assert f"by {path}, " in wrong.first[0]
    again = list(Kernels(0, CASES, paths=[path]).explain(wrong))[-1]
    number = int(wrong.first[0].partition(":")[0])
    assert again == f"  again: fpemu.verification.kernels.Kernels(0, paths=['{path}']).compare('{SCHEME}', {number})"
    suite = Kernels(0, paths=[path], emulated_on="cpu")
    assert suite.compare(SCHEME, number).mismatches >= 1
    monkeypatch.undo()


@pytest.mark.parametrize("path", ["eager", "plan", "graph", "graph-plan"])
def test_a_result_of_an_earlier_call_is_no_result(simulated, path):
    """The last call writes nothing, as launches that keep the addresses of earlier operands."""
    calls = []

    def multiply(A, B, C, out):
        calls.append(out)
        return fpemu.gpu.gemm(A, B, C, scheme="sgemm", out=out) if len(calls) < last else out

    A, B = (np.ones((3, 3), np.float32) for _ in "AB")
    given = (Functions(multiply, lambda *operands: multiply), path, (A, B, None), (3, 3), np.float32)
    last = 100
    assert (paths.run(*given).result == 0x40400000).all()
    last = len(calls)
    calls.clear()
    assert (paths.run(*given).result == 0xABABABAB).all()


@pytest.mark.parametrize("path", [pytest.param(p, marks=[needs_torch] * (p in OPERATORS)) for p in Batched.supported])
@pytest.mark.parametrize("group", ["hgemm fp32", "hcgemm interleaved fp32", "hcgemm planar, four calls, fp16"])
def test_batched_products_are_computed_by_every_path(simulated, monkeypatch, group, path):
    """The stand-in for a kernel writes the emulator's product to `out`."""

    def stand_in(name):
        def multiply(*operands, out=None, configuration, **arguments):
            arrays = [X if X is None or isinstance(X, np.ndarray) else seen(X) for X in operands]
            magma = {"hardware": "hopper", "instruction": "mma"}
            D = getattr(fpemu.batched, name)(*arrays, **arguments, **magma)
            if out is None:
                return D
            seen(out)[...] = D
            return out

        return multiply

    monkeypatch.setattr(products, "arguments_of", lambda: {"hardware": "hopper", "instruction": "mma"})
    for name in ("hgemm", "hcgemm"):
        monkeypatch.setattr(products, name, stand_in(name))
    if path in OPERATORS:
        as_tensors(monkeypatch)
    suite = Batched(0, paths=[path])
    numbers = [number for number in range(12) if not suite.case(group, number).options["pointers"]]
    outcomes = [suite.compare(group, number) for number in numbers]
    assert all(outcome.ok for outcome in outcomes), [outcome.first for outcome in outcomes]
    assert (by_path(outcomes, path)[1] > 0) != (path == "gradient" and "hc" in group)
    calls, value = [], np.uint16(1)
    run = paths.run

    def spoilt(*given, **more):
        computed = run(*given, **more)
        calls.append(given[1])
        computed.result = computed.result ^ value
        return computed

    monkeypatch.setattr(paths, "run", spoilt)
    assert all(
        suite.compare(group, number).mismatches for number in numbers if suite.paths_of(suite.case(group, number))
    )
    assert {*calls} <= {path}


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=[needs_torch] * (p in OPERATORS)) for p in TallSkinny.supported]
)
def test_tall_and_skinny_products_are_computed_by_every_path(simulated, monkeypatch, path):
    spoilt: list[int] = []

    def multiply(A, B, out=None):
        A, B = (X if isinstance(X, np.ndarray) else seen(X) for X in (A, B))
        D = fpemu.simt.gemm(A, B, fmt="fp32" if A.itemsize == 4 else "fp64")
        if out is not None:
            seen(out)[...] = D
        for _ in spoilt:
            flip(D if out is None else out)
        return D

    monkeypatch.setattr(tallskinny.tallskinny, "multiply", multiply)
    if path in OPERATORS:
        as_tensors(monkeypatch)
    suite = TallSkinny(0, paths=[path])
    for wrong in (False, True):
        for fmt in tallskinny.FORMATS:
            outcomes = [suite.compare(f"multiply in {fmt}", number) for number in range(6)]
            assert all(outcome.ok for outcome in outcomes) != wrong, [outcome.first for outcome in outcomes]
            assert by_path(outcomes, path)[0] == 6
        if path in OPERATORS:
            break
        spoilt.append(1)


@pytest.mark.gpu
@pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))
def test_a_gpu_returns_the_emulators_bits_by_every_path():
    """Small products of some schemes, of batches, and of tall and skinny matrices."""
    chosen = ["staged", "legemm", "h2sgemm", "bf16x3", "sgemm", "staged-int8", "ozaki"]
    small = Kernels(5, 4, chosen, published=True), Batched(5, 3), TallSkinny(5, 8, names=["multiply"])
    for suite in (*small, Arguments(5, 1)):
        record = Run(suite).finish()
        assert record.ok, [outcome.first for outcome in record.outcomes if not outcome.ok]
        assert all(by_path(record.outcomes, path)[1] for path in suite.paths)


# --- deferred errors, and memory beside the result
class Faulty:
    """A function of a product that writes beside D, raises after writing, or loses a deferred error."""

    def __init__(self, fault):
        self.fault = fault

    def __call__(self, A, B, C, out):
        pointer = out.__cuda_array_interface__["data"][0]
        if self.fault == "gap":
            ctypes.c_uint8.from_address(pointer + 3 * 4).value = 0
        if self.fault == "written":
            ctypes.c_uint8.from_address(pointer).value = 0
            raise InputError("no")
        if self.fault == "deferred":
            faults.defer("A: NaN")
        return fpemu.gpu.gemm(A, B, C, scheme="sgemm", out=out)


@pytest.mark.parametrize(
    ("fault", "outside", "deferred"), [("", 0, False), ("gap", 1, False), ("written", 1, False), ("deferred", 0, True)]
)
def test_writes_beside_the_result_and_deferred_errors_are_counted(simulated, fault, outside, deferred):
    A, B = (np.ones((3, 3), np.float32) for _ in "AB")
    computed = paths.run(Functions(Faulty(fault)), "eager", (A, B, None), (3, 3), np.float32, number=1, deferred=True)
    assert (computed.outside, computed.deferred) == (outside, deferred)
    assert isinstance(computed.result, str) == (fault == "written")


@pytest.mark.parametrize("lost", [False, True])
def test_a_deferred_range_error_that_is_lost_is_a_mismatch(simulated, monkeypatch, lost):
    suite = Kernels(0, 36, [SCHEME], emulated_on="cpu", paths=["eager"])
    cases = [suite.case(SCHEME, number) for number in suite.numbers(SCHEME)]
    deferred = [case for case in cases if kernels._policy(case, "eager") is None and case.number % 2]
    if lost:
        monkeypatch.setattr(faults, "check", lambda: None)
    outcomes = [suite.compare(SCHEME, case.number) for case in deferred if case.products < 2**15]
    assert any("a range error was lost" in text for outcome in outcomes for text in outcome.first) == lost
    assert all(outcome.ok for outcome in outcomes) != lost
    assert outcomes


# --- the paths of the cases
def test_every_scheme_is_multiplied_by_every_path_that_it_has(simulated):
    suite = Kernels(0)
    assert suite.paths == list(PATHS)
    for scheme in schemes.names():
        cases = [suite.resolve(suite.case(scheme, number)) for number in suite.numbers(scheme)]
        used = {path for case in cases for path in suite.paths_of(case)}
        error_free = schemes.get(scheme).error_free
        assert used == ({"host", "eager", "torch", "routed"} if error_free else {*PATHS}), scheme
    suite = Batched(0)
    for group in suite.groups():
        used = {path for number in range(200) for path in suite.paths_of(suite.case(group, number))}
        assert used == {*Batched.supported} - ({"gradient"} if batched._group(group).layout else set())
    suite = TallSkinny(0, names=["V0", "multiply"])
    assert [suite.paths_of(suite.case(f"{name} in fp32", 0)) for name in suite.names] == [[""], suite.paths]


def test_paths_are_chosen_and_those_without_pytorch_are_listed(monkeypatch):
    monkeypatch.setattr(paths, "missing", lambda path: "PyTorch is not installed" if path in paths.WITH_TORCH else None)
    suite = Kernels(0)
    assert suite.paths == ["host", "eager", "plan", "prepared"] == suite.options["paths"]
    skipped = f"paths {', '.join(paths.WITH_TORCH)}: skipped, PyTorch is not installed"
    assert suite.skipped == [skipped]
    assert Kernels(0, paths=["plan", "eager"]).paths == ["eager", "plan"]
    with pytest.raises(InputError, match="the package torch is not installed"):
        Kernels(0, paths=["graph"])
    with pytest.raises(InputError, match="unknown path 'plann': did you mean 'plan'"):
        Kernels(0, paths=["plann"])
    monkeypatch.setattr(paths, "missing", lambda path: None)
    assert Kernels(0).skipped == []


def test_the_summary_lists_outputs_and_mismatches_by_path_and_paths_without_a_product(monkeypatch):
    suite = TallSkinny(0, paths=["host", "eager"])
    facts = {"paths": {"host": [3, 1200, 2, 0]}}
    monkeypatch.setattr(suite, "record", lambda outcomes: kernels.Record("", "", 0, {}, {"gpu": ""}, "", {}, outcomes))
    record = suite.record([Outcome("multiply in fp32", facts=facts), Outcome("multiply in fp64", facts=facts)])
    table = suite.tables(record)[-1]
    assert table.columns == ("path", "products", "outputs", "mismatches", "failed")
    assert table.rows == [("host", "6", "2,400", "4", "0"), ("eager", "0", "0", "0", "0")]
    assert suite.summary(record) == [*suite.skipped, "paths eager: no product of this run has them"]


@pytest.mark.parametrize(
    ("suite", "path", "message"),
    [
        ("kernels", ",", "--path ',' names no path"),
        ("batched", "plan", "unknown path 'plan'"),
        ("tallskinny", "eagr", "unknown path 'eagr': did you mean 'eager'"),
    ],
)
def test_an_unknown_path_is_one_line(suite, path, message, capsys, monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    assert message in refusal(capsys, "verify", suite, "--path", path)
