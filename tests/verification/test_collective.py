"""`fpemu verify collective`: the suite on sums of the rule itself in place of NCCL's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fpemu import library
from fpemu.errors import InputError
from fpemu.verification import collective


@pytest.fixture
def suite(monkeypatch):
    gpus = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 4))
    monkeypatch.setattr(collective, "torch", lambda: gpus)
    monkeypatch.setattr(collective, "_LARGEST", 2**17)
    return collective.Collective(1)


@pytest.mark.parametrize("group", ["bf16 all_reduce", "fp32 reduce_scatter"])
def test_sums_are_compared_in_every_size(suite, group, monkeypatch):
    name = group.split()[1]

    def added(parts, kind, name):
        if name == "all_reduce":
            return [library.all_reduce(parts, fmt=kind)] * 4
        return library.reduce_scatter(parts, fmt=kind)

    monkeypatch.setattr(suite, "added", added)
    outcome = suite.run(group)
    assert (suite.ranks, outcome.cases + outcome.counts.get("unknown", 0)) == (4, 30)
    assert (outcome.mismatches, outcome.ok) == (0, True)
    assert outcome.outputs == sum(suite.sizes()[: outcome.cases]) * (4 if name == "all_reduce" else 1)
    monkeypatch.setattr(suite, "added", lambda *given: added([*given[0][1:], given[0][0]], *given[1:]))
    outcome = suite.run(group)
    assert outcome.mismatches > outcome.outputs / 100
    assert "entries: " in outcome.first[0]


def test_one_gpu_is_not_enough(monkeypatch):
    monkeypatch.setattr(collective, "torch", lambda: SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 1)))
    with pytest.raises(InputError, match="finds one here"):
        collective.Collective(1)
