"""Public functions compute with subnormal numbers and to nearest in every floating-point environment of the caller."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import fpemu
from fpemu import InputError, batched, metrics, mma, reference, simt
from fpemu.formats import FP16, FP64

# where fenv_t holds the control word of SSE (glibc and musl) or the FPCR, and the bits of each environment
MACHINES = {
    "x86_64": (28, {"flush": 0x8000, "denormals are zero": 0x40, "both": 0x8040, "up": 0x4000, "down": 0x2000}),
    "aarch64": (0, {"flush": 1 << 24, "up": 1 << 22, "down": 2 << 22, "zero": 3 << 22}),
}
MACHINES["x86_64"][1]["zero"] = 0x6000
PLACE, ENVIRONMENTS = MACHINES.get(platform.machine(), (0, {}))
pytestmark = pytest.mark.skipif(
    not ENVIRONMENTS or not sys.platform.startswith("linux"), reason="the layout of fenv_t is unknown here"
)


@contextmanager
def environment(name):
    """Run with another floating-point environment, and check that it is still there at the end."""
    libm = ctypes.CDLL(None)
    saved, changed, after = (ctypes.create_string_buffer(64) for _ in range(3))
    assert libm.fegetenv(saved) == 0
    word = int.from_bytes(saved.raw[PLACE : PLACE + 4], "little") | ENVIRONMENTS[name]
    changed.raw = saved.raw[:PLACE] + word.to_bytes(4, "little") + saved.raw[PLACE + 4 :]
    libm.fesetenv(changed)
    try:
        yield
        libm.fegetenv(after)
    finally:
        libm.fesetenv(saved)
    control = int.from_bytes(after.raw[PLACE : PLACE + 4], "little")
    assert control & ~0x3F == word & ~0x3F if PLACE else control == word  # the six lowest bits of MXCSR are flags


GENERATOR = np.random.default_rng(3)
A, B = (GENERATOR.standard_normal((24, 24)) for _ in "AB")
TINY = A * 2.0**-1022, B * 2.0**-20
SINGLE = (A * 2.0**-70).astype(np.float32), (B * 2.0**-70).astype(np.float32)
HALF = tuple((x * 2.0**-8).astype(np.float16) for x in (A, B))
LARGE = tuple(GENERATOR.standard_normal((256, 256)).astype(np.float32) * np.float32(2.0**-72) for _ in "AB")
A32, B32 = A.astype(np.float32), B.astype(np.float32)
OTHER = TINY[0] * 0.75
H16 = mma.spec("H100", "fp16", "fp32")
CALLS = {
    "matmul blas": lambda: reference.matmul(*TINY, method="blas"),
    "matmul flint": lambda: reference.matmul(*TINY, method="flint"),
    "matmul mpmath": lambda: reference.matmul(TINY[0][:2], TINY[1][:, :2], method="mpmath"),
    "sgemm": lambda: fpemu.gemm(*SINGLE, scheme="sgemm"),
    "sgemm on threads": lambda: fpemu.gemm(*LARGE, scheme="sgemm"),
    "dgemm": lambda: fpemu.gemm(*TINY, scheme="dgemm"),
    "ootomo": lambda: fpemu.gemm(SINGLE[0], B32, scheme="ootomo", hardware="A100", on_range="scale"),
    "ootomo with C": lambda: fpemu.gemm(A32, B32, A32, alpha=0.1, beta=0.3, scheme="ootomo", hardware="A100"),
    **{
        name: lambda name=name, more=more: fpemu.certify(*TINY, scheme=name, hardware="A100", **more).D
        for name, more in {"ozaki": {"mode": "CR"}, "ozimmu": {}, "ozaki2": {}}.items()
    },
    "mma.gemm": lambda: mma.gemm(*HALF, spec=H16),
    "mma.gemm by numpy": lambda: mma.gemm(*HALF, spec=H16, backend="numpy"),
    "mma.execute": lambda: mma.execute(HALF[0][:, :16], HALF[1][:16], None, H16),
    "round_to": lambda: fpemu.round_to(TINY[0], "fp64"),
    "round_to RZ": lambda: fpemu.round_to(A, "fp16", "RZ"),
    "bit_cut": lambda: fpemu.bit_cut(A32),
    "decode": lambda: FP16.decode(np.arange(1024, dtype=np.uint16)),
    "encode": lambda: FP64.encode(TINY[0]),
    "simt.gemm": lambda: simt.gemm(*SINGLE),
    "simt.fma": lambda: simt.fma(*SINGLE, SINGLE[0]),
    "tsm2": lambda: simt.tsm2(*SINGLE, fmt="fp32"),
    "hgemm": lambda: batched.hgemm(*HALF, hardware="A100"),
    "normwise": lambda: metrics.normwise(*SINGLE, *SINGLE),
    "relative_l2": lambda: metrics.relative_l2(TINY[0], OTHER),
    "inputs": lambda: fpemu.inputs.make("uniform", (64,), 0, "fp64"),
}
EXPECTED: dict[str, bytes] = {}


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_returns_the_same_bits_and_restores_the_environment(call, name):
    if call not in EXPECTED:
        EXPECTED[call] = np.asarray(CALLS[call]()).tobytes()
        assert any(EXPECTED[call])
    with environment(name):
        result = np.asarray(CALLS[call]()).tobytes()
    assert result == EXPECTED[call]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_other_functions_name_the_likely_causes(name):
    z = np.ones((2, 2), np.complex64)
    with environment(name), pytest.raises(InputError, match=r"set_flush_denormal.*-ffast-math.*fesetround"):
        batched.interleaved(z)


def test_threads_that_start_in_another_environment_compute_the_same():
    """The kernels' threads live on, so they must not inherit what the caller of the first product has set."""
    results = []
    expected = fpemu.gemm(*LARGE, scheme="sgemm")

    def work():
        with environment(next(iter(ENVIRONMENTS))):
            results.append(fpemu.gemm(*LARGE, scheme="sgemm"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results[0].tobytes() == expected.tobytes()


FLUSHING = """
import ctypes
libm = ctypes.CDLL(None)
state = ctypes.create_string_buffer(64)
libm.fegetenv(state)
word = int.from_bytes(state.raw[{place}:{place} + 4], "little") | {bits}
state.raw = state.raw[:{place}] + word.to_bytes(4, "little") + state.raw[{place} + 4:]
libm.fesetenv(state)  # as a library built with -ffast-math does, before NumPy starts the threads of OpenBLAS
import numpy as np
import fpemu
from fpemu.schemes import get
n = 2.0**-540 * np.ones((256, 256))
D = fpemu.certify(n, n * 2.0**60, scheme="ozaki", hardware="A100", mode="CR")
print(D.report.ok, D.D.min() == D.D.max(), D.D.view(np.uint64)[0, 0])
print(fpemu.reference.matmul(n, n * 2.0**60, method="blas").view(np.uint64).max())
bound = get("ozimmu").error_bound(n * 2.0**30, n, "A100")
print(bound.view(np.uint64).min() > 0)
"""


def test_libraries_that_flush_before_numpy_is_imported():
    script = FLUSHING.format(place=PLACE, bits=next(iter(ENVIRONMENTS.values())))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    expected = np.float64(256 * 2.0**-1020).view(np.uint64)
    assert done.stdout.splitlines() == [f"True True {expected}", str(expected), "True"], done.stderr
