"""Plans of the tall and skinny kernels: parameters, layouts, sizes, and that their texts compile."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cuda import core

from fpemu import InputError
from fpemu.gpu import tallskinny
from fpemu.gpu.runtime import compiler
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.tallskinny import hopper, published
from fpemu.gpu.tallskinny.problem import Problem, layout
from fpemu.roofline import gpus
from fpemu.roofline.tallskinny import check
from fpemu.verification.tallskinny import FORMATS
from tests import simulated_driver
from tests.gpu_fixtures import forget, gpu

__all__ = ["gpu"]

H200 = "NVIDIA H200"
needs_compiler = pytest.mark.skipif(
    compiler.compiler_missing() is not None, reason=compiler.compiler_missing() or "NVRTC is here"
)


def problem(fmt, m, k, n, *steps, pointers=(2**20, 2**21, 2**22)):
    """A product of matrices with these steps of A, B and C."""
    matrices = zip(pointers, ((m, k), (k, n), (m, n)), steps, strict=True)
    return Problem(*(Matrix(at, np.dtype(f"float{fmt[2:]}"), shape, step) for at, shape, step in matrices))


def columns(fmt, m, k, n, lda=None):
    return problem(fmt, m, k, n, (1, m if lda is None else lda), (1, k), (1, m))


def rows(fmt, m, k, n, lda=None):
    return problem(fmt, m, k, n, (k if lda is None else lda, 1), (n, 1), (n, 1))


def test_parameters_are_the_published_ones_where_the_model_leaves_a_choice():
    model = published.gpu_model("Tesla K40c", (3, 5), "fp64")
    for n in (2, 4, 8, 16):
        assert published.parameters(model, n) == (128, n, 4)
    assert published.parameters(model, 16, t2=4) == (128, 4, 4)
    assert published.parameters(model, 16, t1=64, t3=8)[::2] == (64, 8)


@pytest.mark.parametrize("fmt", FORMATS)
def test_whatever_is_chosen_can_run(fmt):
    for name, capability in ((H200, (9, 0)), ("NVIDIA A100-SXM4-80GB", (8, 0)), ("Tesla V100-SXM2-16GB", (7, 0))):
        model = published.gpu_model(name, capability, fmt)
        for n in (1, 2, 16, 100, 130):
            check(model, *published.parameters(model, n), n)


def test_a_gpus_model_is_found_by_the_drivers_name_or_by_its_generation():
    for name, capability, found in (
        (H200, (9, 0), "H200"),
        ("NVIDIA H100 PCIe", (9, 0), "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "A100 40GB"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "RTX 4090"),
        ("NVIDIA RTX 6000", (8, 9), "A100"),
    ):
        assert published.gpu_model(name, capability, "fp32").gpu == gpus.get(found)


def test_the_busiest_multiprocessor_has_least_to_do():
    for m in (1, 1000, 10240, 20480, 30720, 10**5, 10**6 + 1):
        chosen = hopper.rows(m, 132)
        busiest = {r: -(-m // (32 * r * 132)) * r for r in range(1, 9)}
        assert busiest[chosen] <= min(busiest.values()) * (1 if m < 2**18 else 1.1)


def test_bulk_copies_are_taken_where_steps_and_addresses_are_multiples_of_16_bytes(gpu):
    for fmt, four in (("fp32", 4), ("fp64", 2)):
        for make in (columns, rows):
            for lda, bulk in ((640, 1), (640 + four, 1), (641, 0)):
                found = hopper.tsm2(make(fmt, 600, 600, 8, lda), 132).parameters
                assert found["BULK"] == bulk, (fmt, make, lda)
                assert found["PRODUCERS"] == (2 if bulk else 4)
                assert ("B_COLUMNS" in found, "B_ROWS" in found) == (make is columns, make is rows)
        steps, pointers = ((1, 640), (1, 600), (1, 600)), (2**20 + 8 // four * 2, 2**21, 2**22)
        odd = problem(fmt, 600, 600, 8, *steps, pointers=pointers)
        assert hopper.tsm2(odd, 132).parameters["BULK"] == 0
        assert hopper.tsm2(problem(fmt, 60, 60, 8, (180, 3), (1, 60), (1, 60)), 132).parameters["A_ANY"]


def test_the_copy_engine_is_given_no_empty_copy_and_no_line_many_times(gpu):
    for a, k in (((0, 1), 0), ((1, 8), 0), ((0, 1), 8)):
        found = problem("fp32", 8, k, 2, a, (2, 1), (2, 1))
        assert not hopper.tsm2(found, 132).tensor
        assert hopper.ism2(found, 132).tensor in (None, False)


def test_a_large_a_has_parameters_of_its_own(gpu):
    for make, n, chosen in (
        (columns, 16, {"DEPTH": 64, "SHARE": 2, "CONSUMERS": 4}),
        (columns, 8, {"CONSUMERS": 4, "SHARE": 4}),
        (rows, 16, {"SHARE": 2, "CONSUMERS": 4}),
        (rows, 8, {"SHARE": 2, "CONSUMERS": 2}),
        (columns, 2, {"SHARE": 2}),
    ):
        found = hopper.tsm2(make("fp32", 20480, 20480, n), 132).parameters
        assert found.items() >= chosen.items()
        assert ("ONE_BOX" in found) == (make is columns and n < 16)
        assert hopper.tsm2(make("fp32", 10**6, 512, n), 132).parameters["DEPTH"] == 32


def test_shared_memory_of_a_plan_is_what_a_block_can_have(gpu):
    for fmt in FORMATS:
        for make in (columns, rows):
            for m, n in ((1, 1), (20480, 16), (20480, 2), (30720, 16), (10**6, 5), (300, 40)):
                found = hopper.tsm2(make(fmt, m, 4096, n), 132)
                assert found.shared <= 227 * 1024
                assert found.parameters["STAGES"] >= 2
                small = hopper.ism2(make(fmt, m, 31, n), 132)
                assert small.shared <= 227 * 1024


def test_a_b_too_large_for_shared_memory_and_an_empty_one_are_tsm2s(gpu):
    assert hopper.ism2(columns("fp32", 10, 3000, 16), 132).file == "tsm2_hopper.cu"
    assert hopper.ism2(columns("fp32", 10, 0, 16), 132).file == "tsm2_hopper.cu"
    assert hopper.ism2(columns("fp32", 10, 300, 16), 132).file == "ism2_hopper.cu"


def test_few_rows_are_spread_over_more_threads_and_thread_blocks(gpu):
    for make in (columns, rows):
        blocks = [np.prod(hopper.ism2(make("fp32", 10**4, 16, 16), 132, spread=s).grid) for s in (0, 1, 2)]
        assert blocks[0] < blocks[1] < blocks[2] >= 132
        for m, spread in ((10**4, 2), (10**5, 1), (10**7, 0)):
            assert hopper.ism2(make("fp32", m, 16, 16), 132) == hopper.ism2(make("fp32", m, 16, 16), 132, spread=spread)
        assert hopper.ism2(make("fp64", 10**7, 16, 16), 132) == hopper.ism2(make("fp64", 10**7, 16, 16), 132, 2)


def test_a_b_of_few_elements_is_kept_in_registers(gpu):
    for make in (columns, rows):
        for k, n, kept in ((2, 2, True), (4, 4, True), (1, 3, True), (4, 16, False), (8, 4, False)):
            for spread in (0, 1, 2):
                found = hopper.ism2(make("fp32", 10**6, k, n), 132, spread=spread).parameters
                assert ("B_KEPT" in found) == kept, (make, k, n, spread)


def test_grids_cover_every_row_and_column_also_beyond_32_bits(gpu):
    huge = columns("fp32", 10**9 + 1, 7, 40)
    found = hopper.tsm2(huge, 132)
    assert found.grid == (132, 3)  # which go on to other rows
    assert hopper.tsm2(columns("fp32", 100, 7, 40), 132).grid == (4, 3)
    assert hopper.ism2(huge, 132).grid == (-(-huge.m // 512), 3)
    assert published.tsm2(huge, published.here(huge), "V0").grid == (-(-huge.m // 128), 1)
    with pytest.raises(InputError, match="raise t1"):
        published.tsm2(columns("fp32", 2**40, 7, 4), published.here(huge), t1=32, t2=4, t3=4)
    with pytest.raises(InputError, match="not skinny"):
        hopper.tsm2(columns("fp32", 10, 7, 2**21), 132)


def test_multiply_takes_ism2_for_a_small_b_and_tsm2_for_a_large_a(gpu, monkeypatch):
    assert tallskinny.chosen(10**7, 16, 16) == ("ism2", {"optimisation": "hopper"})
    assert tallskinny.chosen(20480, 20480, 16) == ("tsm2", {"version": "hopper"})
    assert [tallskinny.chosen(10**6, 64, 16, layout)[0] for layout in ("columns", "rows")] == ["ism2", "tsm2"]
    assert tallskinny.chosen(10**4, 64, 16, "columns")[0] == "tsm2"
    older = SimpleNamespace(**{**vars(simulated_driver.GPU), "compute_capability": (8, 0)})
    monkeypatch.setattr(core, "Device", lambda number: older)
    forget()
    assert tallskinny.chosen(10**7, 16, 16) == ("ism2", {"optimisation": 1})
    assert tallskinny.chosen(20480, 20480, 16) == ("tsm2", {"version": "V3"})


def test_steps_determine_the_layout():
    def found(a, m=6, k=5):
        return layout(problem("fp32", m, k, 2, a, (2, 1), (2, 1)).A)

    assert (found((1, 6)), found((5, 1)), found((10, 2)), found((0, 1))) == ("columns", "rows", "any", "rows")
    assert (found((1, 1), k=1), found((1, 9), m=1)) == ("columns", "columns")


@needs_compiler
def test_the_published_kernels_compile(gpu):
    by_columns, by_rows = columns("fp32", 20480, 20480, 6), rows("fp64", 20480, 20480, 6)
    for made, arch in (
        (published.tsm2(by_columns, published.here(by_columns)), "sm_80"),
        (published.ism2(by_rows, published.here(by_rows)), "sm_90a"),
    ):
        assert compiler.compile(made.source, arch, name=made.file)[:4] == b"\x7fELF"


@needs_compiler
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_kernels_for_hopper_compile(fmt, gpu):
    """Those with instructions of the machine's that the stand-ins replace: all of them."""
    for made in [
        hopper.tsm2(columns(fmt, 333, 777, 3), 132),
        hopper.tsm2(rows(fmt, 2048, 777, 4), 132),
        hopper.ism2(columns(fmt, 10**7, 8, 4), 132),
    ]:
        assert compiler.compile(made.source, "sm_90a", name=made.file)[:4] == b"\x7fELF"
