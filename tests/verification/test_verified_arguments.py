"""``fpemu verify arguments`` on stand-ins for the GPU: every fact by every path, and faults that single facts show."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from tests.gpu.test_calls import gpu, processor, simulated

from fpemu.errors import InputError
from fpemu.gpu.runtime import device, matrices
from fpemu.verification import arguments
from fpemu.verification.arguments import Arguments
from fpemu.verification.paths import OPERATORS, PATHS
from fpemu.verification.records import Outcome, Record
from tests.commands import refusal
from tests.verification.test_memory import kernels
from tests.verification.test_paths import as_tensors
from tests.verification.test_paths import simulated as on_processor

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


def test_a_batch_that_is_assumed_to_be_contiguous_is_found(on_processor, monkeypatch):
    def offsets(X, lead=None):
        count = int(np.prod(X.shape[:-2]))
        numbers = np.arange(count).reshape(X.shape[:-2]) * (X.shape[-2] * X.shape[-1])
        return np.broadcast_to(numbers, X.shape[:-2] if lead is None else lead).reshape(-1).astype(np.int64)

    monkeypatch.setattr(matrices.Matrix, "offsets", offsets)
    matrices.forget()
    suite = Arguments(0, 1, paths=["eager"])
    bad = {
        suite.case("gemm ootomo", n).options["fact"]
        for n in suite.numbers("gemm ootomo")
        if not suite.compare("gemm ootomo", n).ok
    }
    assert bad >= {"an expanded batch", "batch between rows and columns", "exchanged batch axes", "every other matrix"}
    matrices.forget()


def test_cases_are_functions_of_seed_group_and_number_and_are_replayed():
    suite = Arguments(7, 2, paths=["host"])
    assert {fact.name for group in suite.groups() for fact in arguments.of(group)} == {f.name for f in arguments.FACTS}
    for group in ("hgemm", "multiply fp32", "gemm sgemm"):
        case = suite.case(group, 1)
        assert case == suite.case(group, 1)
        assert case.key != suite.case(group, 1 + len(arguments.of(group))).key
        record = Record("arguments", "", 7, {}, {}, "", {"architecture": "hopper"})
        facts = {"replay": {"1": {"spec": "hopper"}}} if group.startswith("gemm") else {}
        first, again = (suite.replay(record, Outcome(group, facts=facts), "1") for _ in range(2))
        assert first == again
    with pytest.raises(InputError, match="unknown group of products 'hgem': did you mean 'hgemm'"):
        suite.case("hgem", 0)


def test_the_command_checks_its_arguments(capsys, monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: None)
    assert "--rounds is 0" in refusal(capsys, "verify", "arguments", "--rounds", "0")
    monkeypatch.setattr(arguments.products, "need_gpu", lambda: None)
    assert "unknown path 'plann': did you mean 'plan'" in refusal(capsys, "verify", "arguments", "--path", "plann")
