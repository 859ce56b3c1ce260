"""Instructions of x86 and ARM processors: recordings of processors, integers, and rules that random operands miss."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu import mma
from fpemu.errors import InputError
from fpemu.verification.reproducers import execute_codes
from tests import golden

UNITS = {"amx": ("bf16", "fp32", "tdpbf16ps"), "dp": ("bf16", "fp32", "vdpbf16ps"), "ph": ("fp16", "fp16", "vfmaddph")}
BACKENDS = ["numpy", "compiled"]


def recordings():
    """The complete recordings where they are at hand, else the committed part."""
    where = golden.folder()
    complete = where is not None and (where / "x86_units.npz").is_file()
    with np.load(where / "x86_units.npz" if complete else golden.DATA / "x86.npz") as z:
        return {key: z[key] for key in z.files}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("processor", "unit"),
    [
        ("intel_emerald_rapids", "amx"),
        ("intel_emerald_rapids", "dp"),
        ("intel_emerald_rapids", "ph"),
        ("amd_zen5", "dp"),
    ],
)
def test_recorded_outputs_and_payloads_of_nan(processor, unit, backend):
    arrays, (ab, d, instruction) = recordings(), UNITS[unit]
    spec, nan = mma.spec("x86", ab, d, instruction=instruction), 0
    groups = {key.rpartition("/")[0] for key in arrays if key.startswith(f"{processor}/{unit}/")}
    assert len(groups) == 11
    for group in groups:
        A, B, C, D = (arrays[f"{group}/{x}"] for x in "ABCD")
        codes = execute_codes(A, B, C, spec, lambda a, b, c, s: mma.execute(a, b, c, s, backend=backend))
        assert np.array_equal(codes, D), group
        nan += np.isnan(D.view(spec.d_format.dtype)).sum()
    assert nan > 100


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_of_every_x86_instruction_of_an_intel_processor(backend):
    """`tiny` are sums just below 2^-126: which of them are flushed distinguishes FTZ before and after rounding."""
    rows = {row.instruction: row for row in mma.catalog.rows() if row.architecture == "x86"}
    with np.load(golden.DATA / "x86_intel.npz") as arrays:
        groups = {key.rpartition("/")[0] for key in arrays}
        assert {group.partition("/")[0] for group in groups} == rows.keys() - {"tdpfp16ps"}
        assert {"tdpbf16ps/tiny", "vdpbf16ps/tiny"} <= groups
        for group in groups:
            A, B, C, D = (arrays[f"{group}/{x}"] for x in "ABCD")
            spec = rows[group.partition("/")[0]]
            codes = execute_codes(A, B, C, spec, lambda a, b, c, s: mma.execute(a, b, c, s, backend=backend))
            assert np.array_equal(codes, D), group


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("instruction", ["bfdot", "bfmmla", "bfdot-ebf", "bfmmla-ebf"])
def test_outputs_of_an_emulator_of_arm(instruction, backend):
    spec = mma.spec("arm", "bf16", instruction=instruction)
    with np.load(golden.DATA / "arm.npz") as arrays:
        groups = {key.rpartition("/")[0] for key in arrays if key.startswith(f"qemu/{instruction}/")}
        assert len(groups) == 15
        for group in groups:
            A, B, C, D = (arrays[f"{group}/{x}"] for x in "ABCD")
            codes = execute_codes(A, B, C, spec, lambda a, b, c, s: mma.execute(a, b, c, s, backend=backend))
            assert np.array_equal(codes, D), group


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("instruction", ["tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud", "vpdpbusd", "vpdpbusds"])
def test_integers(instruction, backend):
    row = next(row for row in mma.catalog.rows() if row.instruction == instruction)
    spec = mma.spec("x86", (str(row.a_format), str(row.b_format)), instruction=instruction)
    rng, K = np.random.default_rng(4), 3 * spec.k
    ends = [np.iinfo(np.dtype(fmt)) for fmt in (spec.a_format, spec.b_format, spec.d_format)]
    A, B, C = (
        rng.choice([e.min, e.max, e.max - 1, 1], shape).astype(e.dtype)
        for e, shape in zip(ends, ((9, K), (K, 7), (9, 7)), strict=True)
    )
    D = mma.gemm(A, B, C, spec, backend=backend)
    changed = 0
    for i, j in np.ndindex(9, 7):
        total = int(C[i, j])
        for k in range(0, K, spec.k):
            exact = total + sum(int(A[i, q]) * int(B[q, j]) for q in range(k, k + spec.k))
            total = (exact + 2**31) % 2**32 - 2**31
            if instruction == "vpdpbusds":
                total = min(max(exact, -(2**31)), 2**31 - 1)
            changed += total != exact
        assert D[i, j] == total
    assert changed > 5  # wrapped, or limited


def test_a_long_product_of_unsigned_bytes_is_exact():
    A, B = np.full((2, 3000), 255, np.uint8), np.full((3000, 2), 255, np.uint8)
    assert (mma.gemm(A, B, spec=mma.spec("x86", "uint8")) == 255 * 255 * 3000).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sum_that_rounds_to_the_smallest_normal_number_is_not_flushed(backend):
    """2^-126 - p is flushed if it rounds to less than 2^-126 with 24 bits: from p = 2^-151, a tie, excluded."""
    spec, tiny = mma.spec("x86", "bf16", "fp32", instruction="vdpbf16ps"), 2.0**-126
    for p, flushed in ((2.0**-152, False), (2.0**-151, False), (1.5 * 2.0**-151, True), (2.0**-149, True)):
        assert (tiny - Fraction(p) < Fraction(tiny) - Fraction(2) ** -151) == flushed
        for sign in (1.0, -1.0):
            A, B, C = [[-0.0, -sign * p * 2.0**60]], [[0.0], [2.0**-60]], [[sign * tiny]]
            D = mma.execute(A, B, C, spec, backend=backend)
            assert (
                D.tobytes() == np.float32(0.0 if flushed and sign > 0 else -0.0 if flushed else sign * tiny).tobytes()
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfmmla_with_and_without_ebf(backend):
    """1 + 2^-24, rounded to odd and to nearest; 2^127 + 2^127, which overflows in neither sum of products with EBF."""
    plain, extended = (mma.spec("arm", "bf16", instruction=name) for name in ("bfmmla", "bfmmla-ebf"))
    A, B = [[1.0, 2.0**-12, 0.0, 0.0]], [[1.0], [2.0**-12], [0.0], [0.0]]
    assert [mma.execute(A, B, None, s, backend=backend).item() for s in (plain, extended)] == [1 + 2.0**-23, 1.0]
    A, B, C = [[2.0**100, 2.0**100, 0.0, 0.0]], [[2.0**28], [-(2.0**28)], [0.0], [0.0]], [[5.0]]
    D = [mma.execute(A, B, C, s, backend=backend).item() for s in (plain, extended)]
    assert np.isnan(D[0])
    assert D[1] == 5.0


def test_names_and_refusals():
    assert mma.spec("x86", "bf16").instruction == "tdpbf16ps"
    assert mma.spec("x86", "fp16", "fp16").instruction == "vfmaddph"
    assert mma.spec("arm", "bf16").instruction == "bfmmla"
    with pytest.raises(InputError, match="tdpbf16ps has no matrix instruction for fp16"):
        mma.spec("x86", "fp16", "fp32", instruction="tdpbf16ps")
    for spec in (mma.spec("x86", "bf16"), mma.spec("x86", ("uint8", "int8"))):
        with pytest.raises(InputError, match="no CUDA implementation"):
            fpemu.gpu.emulation.specification.definition(spec)
    with pytest.raises(InputError, match="payloads have no effect in the arithmetic 'arm-odd'"):
        mma.spec("arm", "bf16").replace(payloads=True)
