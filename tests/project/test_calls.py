"""Limits of the Python calls, and of the changes of file between them, that repeated public calls make."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import schemes
from tests.calls import count

GENERATOR = np.random.default_rng(0)
A, B = (GENERATOR.standard_normal((64, 64)).astype(np.float32) for _ in "AB")
HALF = A.astype(np.float16), B.astype(np.float16)
SPEC = fpemu.mma.spec("A100", "fp16", "fp32")
D = fpemu.mma.gemm(*HALF, spec=SPEC)

GEMM = {  # calls of fpemu.gemm (64 × 64 × 64, A100), changes of file, checks of an array by as_array
    "sgemm": (114, 70, 8),
    "dgemm": (115, 73, 10),
    "fp16": (141, 92, 8),
    "markidis": (195, 120, 20),
    "bf16x9": (752, 419, 64),
    "bf16x6": (553, 309, 46),
    "bf16x3": (399, 233, 28),
    "egemm": (220, 120, 20),
    "ootomo": (262, 151, 16),
    "ootomo-tf32": (346, 185, 20),
    "ape": (293, 186, 16),
    "multiword": (244, 163, 20),
    "legemm": (329, 193, 22),
    "h2sgemm": (293, 190, 20),
    "staged": (189, 115, 16),
    "staged-int8": (150, 97, 16),
    "ozaki": (1054, 477, 16),
    "ozimmu": (737, 273, 6),
    "ozaki2": (327, 153, 6),
}
OTHERS = {
    "mma.gemm": (lambda: fpemu.mma.gemm(*HALF, spec=SPEC), (74, 47, 4)),
    "reference.matmul": (lambda: fpemu.reference.matmul(A, B), (112, 59, 2)),
    "conformance.verify": (lambda: fpemu.conformance.verify(D, *HALF, hardware="A100", fmt="fp16"), (7690, 2781, 81)),
}


def _check(call, limits):
    call()  # imports, compilation, caches of configurations
    calls = count(call)
    measured = calls.total, calls.file_changes, calls.functions["arrays.py:as_array"]
    most = "\n".join(f"{n:5} {name}" for name, n in calls.functions.most_common(40))
    assert all(m <= limit for m, limit in zip(measured, limits, strict=True)), f"{measured} above {limits}\n{most}"


@pytest.mark.parametrize("scheme", schemes.names())
def test_calls_of_a_repeated_product(scheme):
    _check(lambda: fpemu.gemm(A, B, scheme=scheme, hardware="A100"), GEMM[scheme])


@pytest.mark.parametrize("name", OTHERS)
def test_calls_of_other_public_functions(name):
    _check(*OTHERS[name])


def test_the_counter_excludes_imports_and_comprehensions():
    def call():
        fpemu.round_to([0.1], "fp16")

    call()
    calls = count(call)
    assert calls.functions["rounding.py:round_to"] >= 1
    assert not any(":<" in name for name in calls.functions)
