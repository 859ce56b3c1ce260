"""``fpemu verify arguments`` on stand-ins for the GPU: every fact by every path, and faults that single facts show."""

from __future__ import annotations

import importlib.util

import pytest

from fpemu.verify import arguments
from fpemu.verify.arguments import Arguments
from fpemu.verify.paths import OPERATORS, PATHS
from tests.gpu.test_calls import gpu, processor, simulated
from tests.verify.test_memory import kernels
from tests.verify.test_paths import as_tensors
from tests.verify.test_paths import simulated as on_processor

__all__ = ["gpu", "kernels", "on_processor", "processor"]
WITH_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not WITH_TORCH, reason="PyTorch is not installed")


def outcomes(suite, group):
    return [suite.compare(group, number) for number in suite.numbers(group)]


@pytest.mark.parametrize("path", [pytest.param(p, marks=[needs_torch] * (p in OPERATORS)) for p in PATHS])
def test_products_of_every_fact_have_the_emulators_bits_by_every_path(on_processor, monkeypatch, path):
    if path in OPERATORS:
        as_tensors(monkeypatch)
    results = outcomes(Arguments(0, 1, paths=[path]), "gemm ootomo")
    bad = [outcome.first for outcome in results if not outcome.ok]
    assert not bad, bad


@simulated
@pytest.mark.parametrize("path", ["host", "eager", "graph"])
@pytest.mark.parametrize("group", ["hgemm", "hcgemm planar", "multiply fp32", "multiply fp64"])
def test_batched_and_tall_products_of_every_fact_have_the_emulators_bits(kernels, monkeypatch, group, path):
    monkeypatch.setattr(arguments.products, "arguments_of", lambda: {"hardware": "hopper", "instruction": "mma"})
    bad = [outcome.first for outcome in outcomes(Arguments(0, 2, paths=[path]), group) if not outcome.ok]
    assert not bad, bad
