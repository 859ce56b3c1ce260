"""The memory of the arrays of a path: addresses, gaps and strides, and faults that only some of them show."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import replace

import numpy as np
import pytest
from fpemu.gpu.gemm.recorded import products
from fpemu.gpu.runtime.recording import placeholder
from tests.gpu.test_calls import gpu, processor, simulated

import fpemu
from fpemu.gpu.batched import call
from fpemu.gpu.batched import products as batched_products
from fpemu.gpu.runtime import launches, tensors
from fpemu.gpu.tallskinny import launch as tallskinny_launch
from fpemu.gpu.tallskinny import problem
from fpemu.verification import cases, paths
from fpemu.verification.batched import Batched
from fpemu.verification.cases import LAYOUTS, DeviceArray, Draw, Placement, arrange, codes
from fpemu.verification.kernels import Kernels
from fpemu.verification.tallskinny import TallSkinny
from tests import simulated_driver
from tests.verification.test_paths import simulated as on_processor

__all__ = ["gpu", "on_processor", "processor"]
RECORDED = ("eager", "plan", "prepared", "graph", "graph-plan", "graph-prepared")


def twice(**operands):
    """Placeholders whose offset is the alignment: the launch reads at the address plus the address modulo 16."""
    return {
        name: None if X is None else replace(X, pointer=placeholder(name, X.pointer % 16), owner=None)
        for name, X in operands.items()
    }


# --- faults that aligned addresses hide
@pytest.mark.parametrize("path", RECORDED)
def test_a_recording_that_adds_the_alignment_to_the_address_is_found(on_processor, monkeypatch, path):
    def outcomes():
        suite = Kernels(0, 20, ["ootomo"], published=True, emulated_on="cpu", paths=[path])
        products.clear()
        small = [n for n in suite.numbers("ootomo") if suite.case("ootomo", n).products < 2**14]
        return [suite.compare("ootomo", number) for number in small]

    assert all(outcome.ok for outcome in outcomes())
    monkeypatch.setattr(tensors, "place", twice)
    assert sum(not outcome.ok for outcome in outcomes()) >= 2
    monkeypatch.setattr(Draw, "below", lambda draw, n: 0)  # aligned addresses
    assert all(outcome.ok for outcome in outcomes())


@pytest.fixture
def kernels(gpu, monkeypatch):
    """The simulated driver, whose batched and tall and skinny kernels are the emulator on the launch's parameters."""
    prepare, plan, issue = call.prepare, tallskinny_launch.Plan.prepare, launches.Launch.issue

    def batched(A, B, C, D, arithmetic, scaling, choose, **more):
        product = prepare(A, B, C, D, arithmetic, scaling, choose, **more)
        product.launch.run = lambda launch: multiply_batched(launch.arguments[0][0], product.task)
        return product

    def tallskinny(plan_, given):
        launch = plan(plan_, given)
        launch.run = lambda launch: multiply(launch.arguments[0].reshape(-1), given.fmt)
        return launch

    def run(launch, stream=0):
        issue(launch, stream)
        getattr(launch, "run", copy)(launch)

    def tensor(X):
        memory = (ctypes.c_uint8 * (X.count * X.dtype.itemsize)).from_address(X.buffer.pointer)
        strides = [s * X.dtype.itemsize for s in X.steps]
        flat = np.frombuffer(memory, X.dtype)[X.first :]
        return simulated_driver.Tensor(np.lib.stride_tricks.as_strided(flat, X.shape, strides), "cuda")

    monkeypatch.setattr(call, "prepare", batched)
    monkeypatch.setattr(tallskinny_launch.Plan, "prepare", tallskinny)
    monkeypatch.setattr(launches.Launch, "issue", run)
    monkeypatch.setattr(paths, "missing", lambda path: None)
    monkeypatch.setattr(paths, "capture", lambda call: call)
    monkeypatch.setattr(cases, "_tensor", tensor)
    monkeypatch.setattr(paths, "_streams", lambda side: [contextlib.nullcontext] * 2)
    return gpu


def view(pointer, shape, strides, dtype):
    if 0 in shape:
        return np.zeros(shape, dtype)
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    before = -sum(x for x in reach if x < 0)
    memory = (ctypes.c_uint8 * (sum(map(abs, reach)) + np.dtype(dtype).itemsize)).from_address(int(pointer) - before)
    return np.ndarray(shape, dtype, memory, before, strides)


def copy(launch):
    """Copy one matrix as kernels/strided_copy.cu does."""
    assert launch.name.startswith("copy")
    source, target, *tables, count, rows, columns, s0, s1, t0, t1 = (int(x.view(np.int64)[0]) for x in launch.arguments)
    size = int(launch.name[4:])
    for offsets in zip(*(view(table, (count,), (8,), np.int64) for table in tables), strict=True):
        x, y = (
            view(p + size * offset, (rows, columns), (size * s, size * t), f"u{size}")
            for p, offset, s, t in zip((source, target), offsets, (s0, t0), (s1, t1), strict=True)
        )
        y[...] = x


def multiply_batched(problem, task):
    """Compute what the kernel of a task computes from its struct Problem: real matrices, or planar complex ones."""
    M, N, K, batch = (int(problem[name]) for name in ("M", "N", "K", "batch"))

    def stack(name, rows, columns, along_columns, entry=2):
        s, strides = problem[name], (entry, int(problem[name]["line"]))
        first = s["first"] + np.arange(batch) * s["step"]
        if s["table"]:
            first = view(s["table"], (batch,), (8,), np.uint64)
        planes = [int(s["plane"]) * i for i in range(2 if task.planar else 1)]
        strides = strides[::-1] if along_columns else strides
        return [[view(int(p) + plane, (rows, columns), strides, np.float16) for p in first] for plane in planes]

    A, B = stack("a", M, K, task.a_along_k), stack("b", K, N, not task.b_along_k)
    C = stack("c", M, N, True, int(problem["c_entry"])) if problem["added"] else None
    more = {"accumulate": task.accumulate, "hardware": "hopper", "instruction": "mma"}
    scalars = {name: complex(*problem[name].tolist()) for name in ("alpha", "beta")}
    function = fpemu.batched.hgemm
    if task.planar:
        function, more = (
            fpemu.batched.hcgemm,
            {**more, "layout": "planar", "products": task.products, "algorithm": "fused"},
        )
    else:
        scalars, A, B, C = {n: x.real for n, x in scalars.items()}, A[0], B[0], C and C[0]
    with np.errstate(all="ignore"):
        result = function(np.array(A), np.array(B), None if C is None else np.array(C), **scalars, **more)
    D = stack("d", M, N, True)
    for to, x in zip((x for plane in D for x in plane), result.reshape(-1, M, N), strict=True):
        to[...] = x


def multiply(words, fmt):
    """Compute what a tall and skinny kernel computes from its struct Operands."""
    A, a0, a1, B, b0, b1, C, c0, c1, m, k, n = words.view(np.int64).tolist()
    dtype, size = (np.float32, 4) if fmt == "fp32" else (np.float64, 8)
    x, y, z = (
        view(p, shape, (size * s, size * t), dtype)
        for p, shape, s, t in ((A, (m, k), a0, a1), (B, (k, n), b0, b1), (C, (m, n), c0, c1))
    )
    with np.errstate(all="ignore"):
        z[...] = fpemu.simt.gemm(x, y, fmt=fmt)


@simulated
@pytest.mark.parametrize("path", ["eager", "graph"])
@pytest.mark.parametrize("name", ["batched", "tallskinny"])
def test_batched_and_tall_recordings_that_add_the_alignment_to_the_address_are_found(kernels, monkeypatch, name, path):
    monkeypatch.setattr(batched_products, "arguments_of", lambda: {"hardware": "hopper", "instruction": "mma"})
    suite, group = (
        (Batched(0, paths=[path]), "hgemm fp32")
        if name == "batched"
        else (TallSkinny(0, paths=[path]), "multiply in fp32")
    )

    def outcomes():
        return [suite.compare(group, number) for number in (2, 3, 5, 6)]

    good = outcomes()
    assert all(outcome.ok for outcome in good), [outcome.first for outcome in good]
    cache = batched_products._recorded if name == "batched" else problem._recorded
    assert cache
    cache.clear()
    monkeypatch.setattr(tensors, "place", twice)
    assert not all(outcome.ok for outcome in outcomes())


@simulated
def test_lists_of_matrices_lie_at_any_address(kernels, monkeypatch):
    monkeypatch.setattr(batched_products, "arguments_of", lambda: {"hardware": "hopper", "instruction": "mma"})
    suite, widths = Batched(0, paths=["host"]), set()
    numbers = [n for n in range(120) if suite.case("hgemm fp32", n).options["pointers"]][:8]
    stack = call.stacks.stack

    def listed(*given):
        result = stack(*given)
        widths.add(result[1])
        return result

    monkeypatch.setattr(call.stacks, "stack", listed)
    outcomes = [suite.compare("hgemm fp32", number) for number in numbers]
    assert all(outcome.ok and outcome.counts["pointers"] for outcome in outcomes), [o.first for o in outcomes]
    assert {2, 16} <= widths


# --- the memory itself
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_multiple_of_the_item_size_occurs_and_half_of_the_cases_are_aligned(on_processor, monkeypatch, dtype):
    places, start = [], DeviceArray.__init__

    def listed(array, x, **more):
        start(array, x, **more)
        places.append((array.buffer.pointer + array.first * array.dtype.itemsize) % 16)

    monkeypatch.setattr(DeviceArray, "__init__", listed)
    functions = paths.Functions(lambda *X, **out: None)
    alone, size = [], np.dtype(dtype).itemsize
    for key in range(160):
        places.clear()
        paths.run(functions, "eager", (np.ones((2, 2), dtype),) * 2 + (None,), (2, 2), dtype, key=key, number=1)
        alone.append(not any(places))
    assert 60 < sum(alone) < 100
    drawn = [Placement.drawn(Draw(key), size) for key in range(300)]
    assert {place.offset for place in drawn} == set(range(16 // size))
    assert {place.stride for place in drawn} == {*cases._STRIDES}
    assert {Placement.drawn(Draw(key), 2, 2).offset % 2 for key in range(50)} == {0}
    assert {place.parameter for place in drawn} == {True, False}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_an_array_is_copied_between_nan(on_processor, layout, lead):
    x = arrange(np.arange(np.prod(lead, dtype=int) * 20).reshape(*lead, 4, 5).astype(np.float32), layout)
    for key in range(12):
        place = Placement.drawn(Draw(key, layout), 4)
        array = DeviceArray(x, tensor=False, place=place)
        elements, others = array.read()
        assert (elements == codes(x)).all()
        assert (others == 0xFFFFFFFF).all()
        assert len(others) >= 32
        assert (array.buffer.pointer + array.start * 4) % 16 == 4 * place.offset
        if lead and place.gap:
            assert array.steps[len(lead) - 1] >= 4 * 5 * (layout != "repeated") + place.gap
        assert array.changed() == 0
        array.buffer.memory[4 * array.first] ^= 1
        assert (array.changed(), array.changed(outside=True)) == (1, 0)
        array.buffer.memory[4 * (array.count - 1)] ^= 1
        assert (array.changed(), array.changed(outside=True)) == (2, 1)


def test_operands_that_share_memory_share_their_copy(on_processor):
    flat = np.arange(60, dtype=np.float32)
    A, B, alone = flat[:24].reshape(4, 6), flat[12:36].reshape(4, 6), np.ones((4, 6), np.float32)

    def held(*operands):
        places = [Placement(1, 3, 7), Placement(2), Placement(3)]
        return cases.Operands(operands, tensor=False, factors=(1, 1, 1), places=places, row=1)

    first = held(A, B.T, alone)
    assert [X.read()[0].view(np.float32).tolist() for X in first._held] == [A.tolist(), B.T.tolist(), alone.tolist()]
    pointers = [X.__cuda_array_interface__["data"][0] for X in first.arrays]
    assert pointers[1] - pointers[0] == 12 * 4
    assert first._held[2].buffer is not first._held[0].buffer
    assert len({id(X) for X in held(alone, alone, alone).arrays}) == 1
    assert len({id(X) for X in held(A, A, None).arrays}) == 2
    assert first.changed() == 0


def test_a_changed_operand_is_a_mismatch(on_processor):
    def multiply(A, B, C, out=None):
        D = fpemu.gpu.gemm(A, B, C, scheme="sgemm", out=out)
        ctypes.c_uint8.from_address(B.__cuda_array_interface__["data"][0]).value ^= 1
        return D

    operands = (*(np.ones((3, 3), np.float32) for _ in "AB"), None)
    assert paths.run(paths.Functions(multiply), "eager", operands, (3, 3), np.float32, number=1).outside == 1
