"""DGEMM-TC: the published algorithm that is timed, on a simulated GPU, against `fpemu.gemm`; and its record."""

from __future__ import annotations

import numpy as np
import pytest
from processor import Processor, matrix

import fpemu
from benchmarks.errorfree import dgemm_tc
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.errorfree.machine import Workspace
from fpemu.gpu.runtime import compiler
from fpemu.schemes import ozaki

needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return Workspace(Processor(tmp_path_factory.mktemp("kernels")))


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


@needs_compiler
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


@needs_compiler
@pytest.mark.parametrize("mode", ["DP", "SP"])
def test_blocks_and_counts_are_the_printed_algorithms(work, mode, monkeypatch):
    monkeypatch.setattr(ozaki, "BLOCK", 4)
    A, B = (X.astype(dgemm_tc.MODES[mode].operand.dtype) for X in operands("paper", np.random.default_rng(2)))
    work.machine.products.clear()
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
