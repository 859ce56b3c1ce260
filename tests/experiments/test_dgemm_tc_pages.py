"""DGEMM-TC: the published algorithm that is timed, on a simulated GPU, against `fpemu.gemm`; the pages' models."""

import json

import numpy as np
import pytest

import fpemu
from benchmarks.errorfree import dgemm_tc
from fpemu.gpu.runtime import compiler
from fpemu.reproduce import pages
from fpemu.schemes import ozaki
from tests.processor import matrix, work

__all__ = ["work"]

needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))


def published(work, A, B, mode):
    A, B = (np.ascontiguousarray(X, dgemm_tc.MODES[mode].operand.dtype) for X in (A, B))
    D = np.full((len(A), B.shape[1]), 7, A.dtype)
    return D, dgemm_tc.multiply(work, matrix(A), matrix(B), matrix(D), mode)


def operands(family, rng):
    if family == "paper":
        return ((rng.random(s) - 0.5) * np.exp(2 * rng.standard_normal(s)) for s in ((9, 300), (300, 11)))
    if family == "cancelling":
        return fpemu.inputs.operands("cancellation", 8, 8, 64, 3, "fp64")
    # sums of a few powers of two far apart: many ties, and numbers just beside a tie or a power of two
    powers = [np.ldexp(1.0, rng.choice([0, -1, -52, -53, -54, -106, -107, -160], s)) for s in ((40, 6), (6, 40))]
    return (x * rng.choice([-1.0, 0.0, 1.0], x.shape) for x in powers)


@pytest.mark.parametrize("mode", ["CR", "CR, DGEMM"])
@pytest.mark.parametrize("family", ["paper", "cancelling", "ties"])
def test_near_sum_rounds_the_exact_product_once(work, mode, family):
    A, B = operands(family, np.random.default_rng(1))
    D, counts = published(work, A, B, mode)
    expected = fpemu.gemm(A, B, scheme="ozaki", hardware="H200", mode="CR")
    assert np.array_equal(D.view(np.uint64), expected.view(np.uint64))
    assert counts[0].products == counts[0].slices_a * counts[0].slices_b
    if family == "ties":  # hard for a sum in fp64
        assert (expected != A @ B).mean() > 0.01


@pytest.mark.parametrize("mode", ["DP", "SP"])
def test_blocks_and_counts_are_the_printed_algorithms(work, mode, monkeypatch):
    monkeypatch.setattr(ozaki, "BLOCK", 4)
    A, B = (X.astype(dgemm_tc.MODES[mode].operand.dtype) for X in operands("paper", np.random.default_rng(2)))
    D, counts = published(work, A, B, mode)
    assert len(counts) == 3 * 3
    for i in range(3):  # three blocks of three rows
        rows = A[3 * i : 3 * i + 3]
        options = {"scheme": "ozaki", "hardware": "H200", "mode": mode, "slices": "printed"}
        assert np.array_equal(D[3 * i : 3 * i + 3], fpemu.gemm(rows, B, **options))
        expected = ozaki.counts(rows, B, hardware="H200", mode=mode, slices="printed")
        assert {(c.slices_a, c.products) for c in counts[3 * i : 3 * i + 3]} == {
            (expected.slices[0], expected.products)
        }


@needs_nvrtc
def test_near_sum_compiles_for_hopper():
    assert compiler.compile(dgemm_tc._SOURCE, "sm_90a", name="near_sum.cu")[:4] == b"\x7fELF"


def test_the_extremes_are_the_smallest_and_the_largest_magnitude(work):
    X = np.array([[0.0, -3e-7, 2.5], [-7e4, 1.0, -0.0]])
    assert dgemm_tc.extremes(work, matrix(X)) == (3e-7, 7e4)


# --- pages


def test_the_record_agrees_with_the_cpu_and_cr_mode_with_the_residues():
    record = json.loads((pages.root() / "dgemm_tc" / "h200.json").read_text())
    assert all(record["equal to the CPU"].values())
    assert len(record["equal to the CPU"]) == 24
    digests = {(row["n"], row["phi"], row["implementation"]): row.get("digest") for row in record["speeds"]}
    pairs = [
        (digest, digests[n, phi, "CR"]) for (n, phi, name), digest in digests.items() if name == "CR, int8 residues"
    ]
    assert len(pairs) >= 9
    assert all(one == other for one, other in pairs)


def test_figure_3_shows_algorithm_3_as_printed():
    cell = {"hardware": "turing", "inputs": "phi", "mode": "DP", "phi": 1.0, "n": 256, "rows": 64, "seed": 10}
    A, B = fpemu.inputs.operands("phi", 64, 64, 256, 10, dtype="fp64", phi=1.0)
    exact = fpemu.reference.matmul(A, B)
    options = {"scheme": "ozaki", "hardware": "turing"}
    printed, default = (
        fpemu.metrics.max_relative(fpemu.gemm(A, B, **options, slices=slices), exact) for slices in ("printed", None)
    )
    assert printed != default  # the two criteria select different slices of B
    assert pages.load("dgemm_tc/fig3").evaluate(cell)["TC"] == printed


def test_the_published_66_products():
    page = pages.load("dgemm_tc/fig5b")
    numbers = page.evaluate({**page.cells("quick")[0], "phi": 0.1, "n": 7168, "rows": 8})
    assert (numbers["DP slices A"], numbers["DP slices B"], numbers["DP products"]) == (11.0, 11.0, 66.0)


def test_the_memory_model_is_that_of_section_4_3():
    memory = pages.load("dgemm_tc/fig7b").module.memory
    assert memory(7168, 11, 11) == (2 * 22 * 7168 * 3584 + 4 * 121 * 3584**2) / 1e9
    assert memory(10240, 16, 15) == (2 * 31 * 10240 * 3414 + 4 * 240 * 3414**2) / 1e9


def test_algorithm_3_fails_on_graded_inputs_and_cr_mode_does_not():
    page = pages.load("dgemm_tc/promise")
    families = {cell["family"]: cell for cell in page.cells("quick") if cell["seed"] == 0}
    graded, plain = (page.evaluate({**families[name], "n": 64}) for name in ("graded", "X·X"))
    for name in ("printed", "default"):
        assert graded[f"{name} normwise"] > 1e6 * graded["DGEMM normwise"]
        assert plain[f"{name} normwise"] < 2 * plain["DGEMM normwise"]
    assert graded["CR differing"] == plain["CR differing"] == graded["DP irreproducible"] == 0


def test_the_formula_is_wrong_where_words_or_sums_are_short():
    page = pages.load("dgemm_tc/exactness")
    cells = [c for c in page.cells("quick") if c["k"] in (1, 16, 64)]
    rows = [{**c, **page.evaluate(c)} for c in cells]
    found = {(m.name, m.variant): m.value for m in page.measures(rows)}
    assert found["slices_exact", "k from 4"] == found["derived_exact", ""] == 0
    assert found["slices_exact", "k = 1"] > 0
    assert all(value > 0 for (name, _), value in found.items() if name in ("formula_other_words", "derived_largest"))
    assert found["fp16_sums_more_slices", ""] >= 1
    assert all(value >= 1 for (name, _), value in found.items() if name == "integers_fewer_slices")


def test_algorithm_1_as_printed_overflows_below_the_largest_number():
    assert pages.load("dgemm_tc/ranges").module._limits(1) == {"lowest tau": -1073.0, "highest tau": 975.0}


def test_slices_decrease_with_their_scales_only():
    module = pages.load("dgemm_tc/ranges").module
    # 5 bits at n = 10240: 2^-5 is a unit of the first slice, and 2^-8 is the largest remainder, 1 after its scaling
    x = np.array([1.0, 2.0**-4 + 2.0**-8])
    assert module._growing(x) == {"stored smaller": 1.0, "scaled smaller": 0.0}
    tau, high = module._first_slice(x)
    assert (tau, list(high)) == (0, [1.0, 2.0**-4])
