"""One product by one implementation: speed without and with the split, power and clock, errors, and bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.gpu import implementations
from benchmarks.gpu.case import SEED, Case
from benchmarks.gpu.groups import groups
from benchmarks.gpu.operands import Operands
from fpemu.gpu.runtime import device

KIND = "product"
_RATES: dict[str, float] = {
    **dict.fromkeys(("sgemm", "h2sgemm"), 50),
    **dict.fromkeys(("legemm mma", "ootomo mma"), 90),
    **dict.fromkeys(("ozaki", "ozimmu"), 10),
    **dict.fromkeys(("staged", "legemm"), 230),
    **{"tf32": 350, "fp16": 650, "three fp16": 220, "dgemm": 60, "staged-int8": 300, "strassen": 250, "ootomo": 200},
    **{"markidis": 35, "ozaki CR": 30, "ozaki2": 60, "ozaki2 SP": 150, "ozaki SP": 20, "fp16 mma": 160},
}
"""Approximate TFLOP/s of implementations, by the beginnings of their names, for `seconds`."""
_SLOWEST = 25
_FIXED = 0.05  # seconds of a case besides its launches: memory, a sample by the emulator


def cases(quick: bool) -> Iterator[Case]:
    """Return the cases of all groups, some more than once."""
    for group in groups(quick):
        yield from group.cases(KIND)


def make(case: Case) -> Operands:
    """Draw the operands on the GPU."""
    return Operands(case.M, case.N, case.K, case.data, SEED, case.fmt)


def measure(case: Case, operands: Operands) -> dict[str, Any]:
    """Return the fields of a row."""
    prepared = implementations.prepare(implementations.find(case.implementation), operands)
    assert prepared.D is not None
    fields: dict[str, Any] = dict(prepared.about)
    rules = timing.RULES.get(case.rules)
    if rules is not None:
        fields |= timing.fields(timing.measure(prepared.multiply, rules[0]))
        if prepared.split is not None:
            fields |= timing.fields(timing.measure(prepared.both, rules[1]), "split_")
        if prepared.phases is not None:
            fields |= prepared.phases()
    device.synchronize()
    fields |= operands.errors(prepared.D)
    fields["digest"] = operands.digest(prepared.D)
    prepared.both()
    device.synchronize()
    fields["again"] = operands.digest(prepared.D) == fields["digest"]
    if prepared.emulate is not None:
        A, B, D = operands.sample(prepared.D)
        emulated = np.asarray(prepared.emulate(A, B), np.float32)
        mismatches = np.count_nonzero(D.view(np.uint32) != emulated.view(np.uint32))
        fields |= {"checked": int(D.size), "mismatches": int(mismatches)}
    return fields


def seconds(case: Case) -> float:
    """Estimate the seconds of a case.

    >>> from benchmarks.gpu import suite
    >>> round(seconds(suite.cases(["speed/frontier"])[0]), 1)
    2.7
    """
    known = [name for name in _RATES if case.implementation.startswith(name)]
    each = 2e-12 * case.M * case.N * case.K / (_RATES[max(known, key=len)] if known else _SLOWEST)
    rules = timing.RULES.get(case.rules, ())
    again = 2 if case.fmt == "fp64" else 4  # the first product, the product whose bits are compared, errors
    return _FIXED + again * each + sum(timing.seconds(rule, each) for rule in rules[: 1 if case.fmt == "fp64" else 2])


def sources(case: Case) -> list[str]:
    """Return the sources of a case's kernels, where compiling them takes long."""
    shape = (case.M, case.N, case.K)
    return implementations.sources(shape, case.implementation) if case.fmt == "fp32" else []
