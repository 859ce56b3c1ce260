"""Whole applications without a GPU: the steps that run there, on NumPy's arrays under a few of PyTorch's names."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import fpemu
from benchmarks import timing
from benchmarks.gpu import applications
from benchmarks.timing import Timing
from fpemu import schemes
from fpemu.errors import GpuError


class Tensor(np.ndarray):
    """As much of a tensor as the applications use."""

    device = "cpu"

    def double(self):
        return self.astype(np.float64)

    def half(self):
        return self.astype(np.float16)

    def to(self, dtype):
        return self.astype(dtype)

    def t(self):
        return self.T

    def clone(self):
        return self.copy()

    def norm(self):
        return np.sqrt((np.asarray(self) ** 2).sum())

    def clamp(self, min):
        return np.maximum(self, min)

    def index_add_(self, axis, index, values):
        np.add.at(self, np.asarray(index), values)
        return self


def _of(x):
    return np.asarray(x).view(Tensor)


class PyTorch:
    """Simulate the part of PyTorch that applications call; `products` lists the types of the products."""

    __version__ = "0"
    float32, float64, int64 = np.float32, np.float64, np.int64

    def __init__(self):
        self.products = []
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)))
        self.cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
        self.nn = SimpleNamespace(functional=SimpleNamespace(gelu=lambda x: x * (1 + np.tanh(x * 0.8)) / 2))

    def manual_seed(self, seed):
        self.random = np.random.default_rng(seed)

    def rand(self, shape, device):
        return _of(self.random.random(shape, np.float32))

    def randn(self, shape, device):
        return _of(self.random.standard_normal(shape, np.float32))

    def randint(self, high, shape, device):
        return _of(self.random.integers(high, size=shape))

    def empty(self, shape, dtype, device):
        return _of(np.full(shape, np.nan, dtype))

    def zeros(self, shape, dtype, device):
        return _of(np.zeros(shape, dtype))

    def ones(self, shape, dtype, device):
        return _of(np.ones(shape, dtype))

    def mm(self, a, b, out_dtype=None):
        assert a.dtype == b.dtype
        self.products.append((a.dtype.name, self.backends.cuda.matmul.allow_tf32))
        return _of(np.matmul(a.astype(np.float64), b).astype(out_dtype or a.dtype))


class Plan:
    """A plan that emulates; `splits` counts the operands that it splits."""

    splits: ClassVar = {"A": 0, "B": 0}

    def __init__(self, scheme, A, B):
        self.scheme, self.shapes = scheme, {"A": A.shape, "B": B.shape}

    def prepare(self, X, operand="B"):
        assert X.shape == self.shapes[operand]
        assert X.dtype == np.float32
        Plan.splits[operand] += 1
        return (X,)

    def __call__(self, A, B):
        ready = [X if isinstance(X, tuple) else self.prepare(X, name) for name, X in (("A", A), ("B", B))]
        hardware = "hopper" if self.scheme.needs_hardware else None
        return _of(schemes.gemm(*(np.asarray(X) for (X,) in ready), scheme=self.scheme, hardware=hardware))


@pytest.fixture
def torch(monkeypatch):
    made = PyTorch()
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setattr(fpemu.gpu, "plan", Plan)
    monkeypatch.setattr(fpemu.gpu, "kernel", lambda *request: SimpleNamespace(name="stub"))
    Plan.splits.update(A=0, B=0)

    def measure(call, rules):
        call()
        return Timing(2e-3, 1e-3)

    monkeypatch.setattr(timing, "measure", measure)
    return made


def _task(name, shape, who):
    task = next(task for task in applications.cases(True) if task.data == name and task.implementation == who)
    return replace(task, M=shape[0], N=shape[1], K=shape[2])


SMALL = {"linear": (24, 16, 32), "BERT-base": (16, 48, 16), "k-means": (200, 8, 5)}


@pytest.mark.parametrize("name", SMALL)
def test_an_application_runs_with_every_implementation(name, torch):
    found = {who: applications.measure(_task(name, SMALL[name], who)) for who in applications.NAMES}
    for who, row in found.items():
        assert 0 < row["best_s"] <= row["first_s"]
        assert (row["kernel"] == "stub") is (who not in ("sgemm", "fp16"))
        assert row["relative_l2"] < (0.2 if name == "k-means" else 1e-2 if who == "fp16" else 1e-5)
    assert {tf32 for _, tf32 in torch.products} == {False}
    assert {"float16", "float32"} <= {dtype for dtype, _ in torch.products}
    if name == "k-means":
        assert all(0.5 < row["equal"] <= 1 and 0.9 < row["inertia"] < 1.1 for row in found.values())
        assert found["staged"]["equal"] == 1
        assert all(row["iterations"] >= 2 for row in found.values())
    else:
        assert found["staged"]["relative_l2"] < 1e-2 * found["fp16"]["relative_l2"]


def test_constant_operands_are_split_once(torch):
    applications.measure(_task("linear", SMALL["linear"], "staged"))
    assert Plan.splits == {"A": 2 * 3, "B": 3}  # the result that is compared, and one that is timed
    Plan.splits.update(A=0, B=0)
    row = applications.measure(_task("k-means", SMALL["k-means"], "staged"))
    assert Plan.splits == {"A": 1, "B": row["iterations"] + 1}


def test_lloyds_iterations_end_at_the_means(torch):
    rng = np.random.default_rng(0)
    centres = rng.uniform(-4, 4, (5, 3))
    X = _of(np.concatenate([c + 0.05 * rng.standard_normal((40, 3)) for c in centres]))
    points, C, count = applications.lloyd(torch, X, X, X[::40] + 0.5, lambda C: lambda Y: Y @ C.T)
    assert 1 < count < 10
    assert sorted(np.bincount(points).tolist()) == [40] * 5
    for number in range(5):
        assert np.allclose(C[number], X[points == number].mean(axis=0))


def test_applications_name_their_requirements(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GpuError, match="need PyTorch with CUDA"):
        applications.pytorch()
    without = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", without)
    with pytest.raises(GpuError, match="sees no GPU"):
        applications.pytorch()
