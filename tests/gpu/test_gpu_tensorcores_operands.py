"""Operands for the mma.sync kernels: call after call the same as `fpemu.gpu.gemm.splitting.prepare`, described once."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import cuda_on_cpu
import numpy as np
import pytest

from fpemu import schemes
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm import splitting
from fpemu.gpu.gemm.mma_sync import operands
from fpemu.gpu.runtime import device, matrices, properties


def wide(rng, shape):
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-24, 6, shape))).astype(np.float32)


class HostModule(cuda_on_cpu.HostModule):
    """Kernels without instructions of warps, with structures for parameters."""

    queued: list[str] = []  # noqa: RUF012

    def prepare(self, name, grid, block, *arguments, keep=None, overlap=False):
        packed = [x if isinstance(x, np.ndarray) else cuda_on_cpu._pack(x) for x in arguments]
        pointers = (ctypes.c_void_p * len(packed))(*(p.ctypes.data for p in packed))
        run = getattr(self.library, f"run_{name}")

        def queue():
            HostModule.queued.append(name)
            run(ctypes.c_uint(int(grid)), ctypes.c_uint(block), pointers)

        return SimpleNamespace(queue=queue, keep=(keep, packed, arguments))


@pytest.fixture
def host(tmp_path_factory, monkeypatch):
    if emulation.compiler() is None:
        pytest.skip("no C++ compiler here")
    cuda_on_cpu.forget()
    cuda_on_cpu.stand_in(monkeypatch, tmp_path_factory.getbasetemp())
    monkeypatch.setattr(device, "Module", HostModule)
    monkeypatch.setattr(properties, "multiprocessors", lambda: 132)
    HostModule.queued.clear()
    yield
    monkeypatch.undo()
    cuda_on_cpu.forget()


def assert_same(got, want, rules):
    """Two prepared operands: words, exponents, rows and counts."""
    lines = want.source.count * want.rows
    assert (got.pitch if got.words else 0) == want.pitch
    assert len(got.words) == len(want.words)
    for g, w, rule in zip(got.words, want.words, rules, strict=False):
        assert np.array_equal(*(x.array((lines, want.pitch), rule.format.code_dtype) for x in (g, w)))
    for name, dtype in (("exponents", np.int32), ("special", np.uint8)):
        g, w = (getattr(x, name) for x in (got, want))
        assert (g is None) == (w is None), name
        assert w is None or np.array_equal(*(x.array(lines, dtype) for x in (g, w))), name
    assert np.array_equal(*(x.faults.array(2, np.uint64) for x in (got, want)))


@pytest.mark.parametrize("policy", ["raise", "propagate", "scale", "scale-rows"])
def test_operands_come_out_as_from_splitting_call_after_call(policy, host):
    scheme, rng = schemes.get("h2sgemm"), np.random.default_rng(7)
    rules = scheme.rules()
    for words in (True, False):
        splitter = operands.Splitter(rules, scheme.scaling, words=words)
        for call, (M, N, K) in enumerate([(33, 70, 130), (33, 70, 130), (5, 9, 64), (33, 70, 130), (40, 3, 1100)]):
            A, B = wide(rng, (2, M, K)), np.ascontiguousarray(wide(rng, (N, K))).T
            if call % 2 == 0:
                A[1, M // 2, K - 1], A[0, 0, 0], B[K // 2, N - 1] = np.inf, 1e6, np.nan
            pair = [(matrices.upload(A), "A"), (matrices.upload(B), "B")]
            for who in (pair, pair[:1], pair[1:], pair):  # memory that comes again, one operand or both
                for (X, letter), got in zip(who, splitter.prepare(who, policy), strict=True):
                    scaling = scheme.scaling(policy)
                    assert_same(got, splitting.prepare(X, letter, rules, policy, scaling, keep=words), rules)


def test_operands_that_come_again_are_not_described_again(host):
    scheme, rng = schemes.get("legemm"), np.random.default_rng(8)
    splitter = operands.Splitter(scheme.rules(), scheme.scaling, words=True)
    pair = [(matrices.upload(wide(rng, shape)), who) for shape, who in (((20, 30), "A"), ((30, 10), "B"))]
    steps = [splitter.prepare(pair, "raise") and set(map(id, splitter._kept.values())) for _ in range(5)]
    assert steps[1] == steps[2] == steps[4]
    assert HostModule.queued == ["split_operands"] * 5
    assert all(x.faults.array(2, np.uint64).tolist() == [0, 0] for x in splitter.prepare(pair, "raise"))
    empty = matrices.empty((0, 30), np.float32)
    faults = splitter.prepare([(empty, "A"), pair[1]], "raise")[0].faults
    assert faults.array(2, np.uint64).tolist() == [0, 0]
