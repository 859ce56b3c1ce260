"""The measurement of small and of tall products without a GPU: what is measured, errors, operands."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import seeded
from benchmarks.gpu import batched, memory, prepared, record, shapes, suite
from fpemu.gpu import batched as gpu_batched
from fpemu.gpu.batched import configuration
from fpemu.gpu.runtime import compiler

needs_compiler = pytest.mark.skipif(compiler.compiler_missing() is not None, reason="NVRTC is not here")


# --- a GPU of NumPy


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
