"""The measurement of small and of tall products without a GPU: what is measured, the library's calls, samples.

The GPU's memory is the CPU's here, and the library a few lines of NumPy that take cuBLAS' arguments.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import seeded, timing
from benchmarks.gpu import (
    batched,
    ceilings,
    cublas,
    implementations,
    memory,
    operands,
    prepared,
    products,
    record,
    shapes,
    suite,
    tallskinny,
)
from benchmarks.gpu.case import SEED, Case
from benchmarks.seeded import drawn
from fpemu import _system
from fpemu.gpu import batched as gpu_batched
from fpemu.gpu.batched import configuration
from fpemu.gpu.runtime import compiler
from tests.simulated import Buffer

needs_compiler = pytest.mark.skipif(compiler.compiler_missing() is not None, reason="NVRTC is not here")
TYPES = {0: np.float32, 1: np.float64, 2: np.float16}


# --- a GPU of NumPy
def at(pointer, count, dtype):
    """Buffer as an array, without a copy."""
    dtype = np.dtype(dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
    return np.frombuffer(raw, dtype)


def gemm(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, d, ldd, dtype, out=None):
    """D = alpha · A·B + beta · D of matrices stored by columns; A may be transposed."""
    assert op_b == 0
    assert lda >= (k if op_a else m)
    assert ldb >= k
    assert ldd >= m
    A = at(a, lda * m, dtype).reshape(m, lda)[:, :k] if op_a else at(a, lda * k, dtype).reshape(k, lda).T[:m]
    B = at(b, ldb * n, dtype).reshape(n, ldb).T[:k]
    D = at(d, ldd * n, out or dtype).reshape(n, ldd).T[:m]
    with np.errstate(over="ignore"):
        D[...] = alpha * (A.astype(np.float64) @ B.astype(np.float64)) + (beta * D if beta else 0)


class Library:
    """cuBLAS, as much of it as is called."""

    def __init__(self):
        self.calls = []

    def cublasGemmStridedBatchedEx(self, *args):  # noqa: N802
        _, op_a, op_b, m, n, k, alpha, A, kind, lda, a, B, _, ldb, b, beta, D, _, ldd, d, count, compute, algo = args
        assert algo == -1
        scalar = np.float16 if compute == 64 else np.float32
        alpha, beta = (at(x.value, 1, scalar)[0] for x in (alpha, beta))
        self.calls.append((m, n, k, count, compute, float(alpha), float(beta)))
        size = np.dtype(TYPES[kind]).itemsize
        for i in range(count):
            places = [x.value + i * step.value * size for x, step in ((A, a), (B, b), (D, d))]
            gemm(op_a, op_b, m, n, k, alpha, places[0], lda, places[1], ldb, beta, places[2], ldd, TYPES[kind])
        return 0

    def cublasGemmEx(self, *args):  # noqa: N802
        _, op_a, op_b, m, n, k, alpha, A, kind, lda, B, _, ldb, beta, D, out, ldd, compute, _ = args
        scalar = {68: np.float32, 70: np.float64, 77: np.float32}[compute]
        alpha, beta = (at(x.value, 1, scalar)[0] for x in (alpha, beta))
        gemm(op_a, op_b, m, n, k, alpha, A.value, lda, B.value, ldb, beta, D.value, ldd, TYPES[kind], TYPES[out])
        return 0


@pytest.fixture
def library(monkeypatch):
    """The GPU of NumPy in place of the real one."""
    made = Library()

    class Blas:
        _library, _handle = made, None

        @staticmethod
        def _check(what, status):
            assert status == 0, what

    def row(array, number):
        rows, columns = array.shape
        flat = at(array.pointer, rows * columns, array.dtype)
        return (flat.reshape(columns, rows).T if array.columns else flat.reshape(rows, columns))[number].copy()

    def draw(*args):
        return Buffer.of(drawn(*args))

    def interleaved(batch, who):
        entries = batch.count * math.prod(batch.sides[who])
        return Buffer.of(at(batch.planes[who].pointer, 2 * entries, np.float16).reshape(2, -1).T)

    monkeypatch.setattr(cublas.cublas, "blas", lambda: Blas)
    monkeypatch.setattr(cublas.device, "driver", lambda: None)
    monkeypatch.setattr(prepared.device, "synchronize", lambda: None)
    monkeypatch.setattr(
        prepared, "digest", lambda pointer, nbytes: _system.digest_text(at(pointer, nbytes // 4, np.uint32))
    )
    monkeypatch.setattr(ceilings, "copy_rate", lambda: 4e12)
    monkeypatch.setattr(ceilings, "launch_time", lambda: 1e-6)
    for module in (batched, tallskinny):
        monkeypatch.setattr(module, "draw", draw)
        monkeypatch.setattr(module, "Buffer", Buffer)
        monkeypatch.setattr(
            module,
            "fetch",
            lambda pointer, first, count, dtype: at(pointer + first * np.dtype(dtype).itemsize, count, dtype).copy(),
        )
    monkeypatch.setattr(memory.DeviceArray, "row", row)
    monkeypatch.setattr(batched.Batch, "_interleaved", interleaved)
    point = timing.Timing(2e-6, 1e-6, None, 160, 3e-6, 1.05, 11, 1, 1e-5, 8e-6)
    monkeypatch.setattr(timing, "measure", lambda launch, rules: [launch() for _ in range(3)] and point)
    return made


# --- what is measured
@pytest.mark.parametrize("quick", [False, True])
def test_each_row_is_requested_once_and_rows_of_a_product_are_adjacent(quick):
    for kind in (shapes.BATCHED, shapes.TALL):
        tasks = list(suite.module(kind).cases(quick))
        assert len({record.key(task.fields) for task in tasks}) == len(tasks)
        order = [task.operands for task in tasks]
        assert [place for i, place in enumerate(order) if place in order[:i] and place != order[i - 1]] == []
        for place in set(order):
            who = [task.implementation for task in tasks if task.operands == place]
            assert who[0] == shapes.BASE
        assert all(task.batch == 1 for task in tasks) == (kind == shapes.TALL)


def test_a_paper_chooses_the_rows_of_its_kinds():
    tasks = [task for kind in (shapes.BATCHED, shapes.TALL) for task in suite.module(kind).cases(False)]
    assert set(suite.cases(["tsm2", "magma"])) == set(tasks)
    assert {page.partition("/")[0] for task in tasks for page in task.figures} == {"magma", "tsm2"}


def test_every_batched_implementation_has_an_existing_configuration():
    for task in batched.cases(False):
        if task.implementation.startswith("cublas"):
            continue
        assert len(batched.sources(task)) == 1, task
        name, shape = task.implementation, (task.M, task.N, task.K)
        found = batched.configuration(name, shape)
        if found is not None:
            assert isinstance(found, gpu_batched.Packed if name == "tiny" else gpu_batched.Block)
            configuration.validate(found, configuration.Task(*shape))


def test_figure_7_has_as_many_threads_as_its_warps_say():
    for dim_x in shapes.DIM_X:
        for count in shapes.WARPS:
            assert batched.configuration(shapes.warps(dim_x, count), (64, 64, 64)).warps == count


@needs_compiler
@pytest.mark.parametrize(
    ("data", "contender", "n"),
    [
        ("real", "ours", 24),
        ("real", "magma", 10),
        ("real", "tiny", 5),
        ("real", "magma 16x16", 64),
        ("complex", "ours", 40),
        ("complex", "ours three products", 32),
        ("complex", "magma-small", 7),
    ],
)
def test_kernels_of_the_measurement_compile(data, contender, n):
    task = next(t for t in batched.cases(False) if (t.data, t.implementation, t.M, t.K) == (data, contender, n, n))
    compiler.compile(batched.sources(task)[0], "sm_90a")


# --- the library
@pytest.mark.parametrize(("M", "N", "K", "batch"), [(3, 5, 7, 4), (1, 1, 1, 1), (8, 2, 1, 3), (2, 9, 16, 2)])
def test_the_librarys_batches_are_the_products_and_their_sample(library, M, N, K, batch):
    made = batched.Batch((M, N, K), batch, False, seed=5)
    A, B = (drawn("fp16", batch * r * c, s, -1.0, 1.0).reshape(batch, r, c) for s, r, c in ((10, M, K), (11, K, N)))
    run = made.library("cublas fp16")
    run.multiply()
    want = (A.astype(np.float64) @ B.astype(np.float64)).astype(np.float16)
    assert library.calls[-1] == (N, M, K, batch, 64, 1.0, 0.0)
    assert np.array_equal(run.sample(), want[made.chosen])
    assert np.array_equal(made.exact.astype(np.float16), want[made.chosen])
    made.library("cublas").multiply()
    assert library.calls[-1][4] == 68


def test_four_calls_in_the_papers_order_are_a_complex_product(library):
    made = batched.Batch((3, 4, 5), 6, True, seed=2)
    run = made.library("cublas")
    run.multiply()
    assert [call[-2:] for call in library.calls] == [(1, 0), (-1, 1), (1, 0), (1, 1)]
    A, B = (
        drawn("fp16", 2 * 6 * r * c, s, -1.0, 1.0).astype(np.float64).reshape(2, 6, r, c)
        for s, r, c in ((4, 3, 5), (5, 5, 4))
    )
    z = (A[0] + 1j * A[1]) @ (B[0] + 1j * B[1])
    exact = np.stack([z.real, z.imag])[:, made.chosen]
    assert np.abs(made.exact - exact).max() < 1e-14
    assert np.abs(run.sample() - exact).max() < 4e-3  # rounded to fp16 twice


def test_both_layouts_hold_the_same_numbers(library):
    made = batched.Batch((3, 4, 5), 6, True)
    for who in "AB":
        assert np.array_equal(made.sample(who, "planar"), made.sample(who, "interleaved"))
    assert made.array("A", "planar").shape == (2, 6, 3, 5)
    assert made.array("B", "interleaved").shape == (6, 5, 4, 2)


def test_cold_launches_alternate_between_copies(library, monkeypatch):
    monkeypatch.setattr(batched, "ROUND", 5 * 3 * 2 * 16 * 1000)
    seen = []

    def prepare(batch, name):
        seen.append(batch)
        return batch.library(name)

    monkeypatch.setattr(batched, "prepare", prepare)
    task = next(
        t for t in batched.cases(True) if (t.data, t.implementation, t.M, t.batch) == ("real", "cublas", 4, 1000)
    )
    made = batched.make(task)
    assert batched.measure(task, made)["cold_s"] == 2e-6
    assert seen == [made, *made.copies]
    assert len({batch.result.pointer for batch in made.copies}) == 5
    other = next(
        t for t in batched.cases(True) if (t.data, t.implementation, t.M, t.batch) == ("real", "cublas", 8, 10)
    )
    assert "cold_s" not in batched.measure(other, batched.make(other))


def bench_cu(name, *arguments):
    """The kernels of bench.cu around a product by the library, in NumPy."""
    if name == "widen":
        out, x, count = arguments
        at(out.pointer, count, np.float64)[:] = at(x.pointer, count, np.float32)
    elif name.startswith("words"):
        high, low, x, *sizes = arguments
        values = at(x.pointer, math.prod(sizes), np.float32).reshape(sizes)
        values = (values.T if name == "words_columns" else values).reshape(-1)
        at(high.pointer, values.size, np.float16)[:] = values
        if isinstance(low, Buffer):
            residual = values - values.astype(np.float16).astype(np.float32)
            at(low.pointer, values.size, np.float16)[:] = residual * np.float32(2048)
    else:
        assert name == "compare_fp32"
        out, D, R, count = arguments
        d, r = at(int(D), count, np.float32).astype(np.float64), at(R.pointer, count, np.float64)
        e, sums = np.abs(d - r), at(out.pointer, 1056 * 7, np.float64).reshape(1056, 7)
        sums[:] = 0
        sums[0, :6] = e @ e, r @ r, (e / r).sum(), e.max(), (e / r).max(), (e / (d + r)).max()


@pytest.fixture
def square(library, monkeypatch):
    """What the products of the kind "product" need besides."""
    module = SimpleNamespace(step=lambda name, grid, block, *arguments: partial(bench_cu, name, *arguments))
    monkeypatch.setattr(operands, "run", bench_cu)
    monkeypatch.setattr(operands, "draw", lambda *args: Buffer.of(drawn(*args[:5])))
    monkeypatch.setattr(
        operands,
        "digest",
        lambda pointer, nbytes, bits: _system.digest_text(at(pointer, 8 * nbytes // bits, f"u{bits // 8}")),
    )
    monkeypatch.setattr(implementations, "kernels", lambda: module)
    monkeypatch.setattr(implementations, "queued", lambda steps: (None, lambda: [step() for step in steps]))
    monkeypatch.setattr(implementations.cublas, "version", lambda: "cuBLAS 13")
    monkeypatch.setattr(
        memory.DeviceArray,
        "column",
        lambda array, j: at(array.pointer, math.prod(array.shape), array.dtype).reshape(array.shape)[:, j].copy(),
    )
    for one in (operands, implementations):
        monkeypatch.setattr(one, "Buffer", Buffer)


@pytest.mark.parametrize(
    ("name", "fmt", "least", "most"),
    [
        ("sgemm", "fp32", 1e-9, 1e-7),
        ("tf32", "fp32", 1e-9, 1e-7),
        ("fp16", "fp32", 1e-5, 1e-3),
        ("three fp16", "fp32", 1e-9, 1e-6),
        ("dgemm", "fp32", 0.0, 1e-15),
        ("dgemm", "fp64", 0.0, 1e-15),
    ],
)
def test_a_product_by_the_library_is_measured_whole(square, name, fmt, least, most):
    """Operands, their words, products that accumulate, the errors of all outputs or of a sample, and the bits."""
    M, N, K = 5, 7, 12
    case = Case("product", M, N, K, "positive", name, "brief", fmt, ())
    made = products.make(case)
    row = products.measure(case, made)
    assert least <= row["relative_l2"] < most
    assert (row["lost"], row["outputs"], row["again"]) == (0, M * N, True)
    assert (row["first_s"], row["best_s"]) == (2e-6, 1e-6)
    assert ("split_first_s" in row) == (name in ("fp16", "three fp16"))
    ready = implementations.prepare(implementations.find(name), made)
    A, B, D = made.sample(ready.D)
    assert np.array_equal(A.reshape(-1), drawn(fmt, M * K, 2 * SEED, 0.0, 1.0))
    assert np.array_equal(B.reshape(-1), drawn(fmt, K * N, 2 * SEED + 1, 0.0, 1.0))
    exact = A.astype(np.float64) @ B.astype(np.float64)
    assert np.linalg.norm(D - exact) / np.linalg.norm(exact) == pytest.approx(row["relative_l2"], rel=1e-3, abs=1e-15)
    assert row["digest"] == made.digest(ready.D)


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("fmt", ["fp32", "fp64"])
def test_the_librarys_tall_products_have_their_layout(library, monkeypatch, fmt, columns):
    monkeypatch.setattr(tallskinny, "ROUND", 2000)
    made = tallskinny.Tall((33, 3, 5), fmt, columns, seed=1)
    assert made.copies == -(-2000 // (made.dtype.itemsize * 33 * 8))
    run = made.library()
    for _ in range(made.copies):
        run.multiply()
    for copy in range(made.copies):
        A, B, D = (made.array(who, copy) for who in "ABD")
        assert A.strides == (
            (made.dtype.itemsize, 33 * made.dtype.itemsize)
            if columns
            else (5 * made.dtype.itemsize, made.dtype.itemsize)
        )
        a, b, d = (
            np.lib.stride_tricks.as_strided(at(x.pointer, math.prod(x.shape), x.dtype), x.shape, x.strides)
            for x in (A, B, D)
        )
        assert np.abs(d - a.astype(np.float64) @ b).max() < 1e-6
    made.array("D")
    assert np.abs(run.sample() - made.exact).max() < 1e-6
    assert len(made.rows()) == tallskinny.SAMPLE
    assert made.sample("B").shape == (5, 3)


def test_rows_contain_speed_bytes_operations_errors_and_bits(library):
    task = next(
        t for t in batched.cases(True) if (t.data, t.implementation, t.M, t.batch) == ("complex", "cublas", 4, 1000)
    )
    found = batched.measure(task, batched.make(task))
    assert found["operations"] == 8 * 4**3 * 1000
    assert found["bytes"] == 4 * 3 * 16 * 1000
    assert found["again"]
    assert found["lost"] == 0
    assert 0 < found["relative_l2"] < 1e-3
    assert (found["first_s"], found["loop_s"]) == (2e-6, 8e-6)
    row = {**task.fields, "run": 0, **found}
    assert record.key(row)[-1] == 1000
    task = next(t for t in tallskinny.cases(True) if t.implementation == "cublas" and t.K == 2 and t.fmt == "fp64")
    small = tallskinny.Tall((100, 2, 2), "fp64", True, 3)
    found = prepared.measure(small.library(), small.buffers["D"], 1600, small.exact)
    assert found["again"]  # though launches went round and wrote the other copies
    assert found["copies"] == tallskinny.MOST
    assert found["relative_l2"] < 1e-15


def test_a_result_that_is_not_finite_counts_as_lost_and_not_as_an_error():
    found = prepared.errors(np.array([1.0, np.nan, np.inf, 2.0]), np.array([1.0, 1.0, 1.0, 2.0]))
    assert found == {"lost": 2, "outputs": 4, "relative_l2": 0.0, "max_relative": 0.0}
    assert prepared.errors(np.array([np.nan]), np.array([1.0])) == {"lost": 1, "outputs": 1}


def test_strides_are_numpys():
    for columns, order in ((False, "C"), (True, "F")):
        x = np.zeros((3, 5), np.float32, order)
        assert memory.DeviceArray(1, x.shape, x.dtype, columns).strides == x.strides
    assert memory.DeviceArray(1, (2, 3, 5), np.dtype(np.float16)).__cuda_array_interface__["strides"] is None


def test_operands_are_splitmix64_of_index_and_seed():
    """The finalizer in Python's integers, as kernels/bench.cu has it."""

    def mixed(x):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ x >> shift) * factor % 2**64
        return x ^ x >> 31

    for seed in (0, 7, 2 * 20260101 + 1):
        u = [(mixed((mixed(4 * i) + seed * 0x9E3779B97F4A7C15) % 2**64) >> 11) * 2.0**-53 for i in range(40)]
        assert seeded.drawn("fp64", 40, seed, 0.0, 1.0).tolist() == u
        wide = [float(np.float32(2 * x - 1)) for x in u]
        assert seeded.drawn("fp32", 40, seed, -1.0, 1.0).tolist() == wide
        assert seeded.drawn("fp16", 40, seed, -1.0, 1.0).tolist() == [float(np.float16(np.float32(x))) for x in wide]
