"""Every row of the catalog, and instructions of one's own, against the exact scalar oracle of these tests."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import mma
from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.mma.mnemonics import mnemonic
from tests import hostile, oracle
from tests.hostile import FACTOR, bits, carrier, examples, integers

BACKENDS = ["compiled", "numpy"]
ROWS = [s for s in mma.catalog.rows() if not s.is_integer]
COUNT = 30  # dot products per class of operands


def count_of(kind, ab):
    """More where few operands tell: around the floor of the common exponent."""
    return 200 if kind == "floor" and ab in ("fp16", "bf16", "tf32") else COUNT


def key_of(spec):
    """The key of the oracle's table for a catalog row."""
    d = str(spec.d_format) if spec.c_format == spec.d_format else f"{spec.d_format} from {spec.c_format}"
    one_k = (spec.architecture, str(spec.a_format), spec.block) == ("cdna2", "bf16", 4)
    return spec.architecture, f"{spec.instruction}{'_1k' * one_k}", str(spec.a_format), d, spec.k


def instruction_of(spec):
    """The oracle's instruction for a catalog row."""
    return oracle.TABLE[key_of(spec)]


def run(A, B, C, spec, backend, a=None, b=None):
    """Independent dot products: codes (count, k), (count, k), (count,) to codes (count,)."""
    x = carrier(A, a or str(spec.a_format))[:, None, :]
    y = carrier(B, b or str(spec.b_format))[:, :, None]
    z = carrier(C, str(spec.c_format))[:, None, None]
    return bits(mma.execute(x, y, z, spec, backend=backend))[:, 0, 0]


def same(got, want, ins, nan_code=None):
    """Equal codes; where the specification says nothing, a zero of the other sign and the row's own NaN pass."""
    fmt = oracle.FORMATS[ins.d]
    sign = 1 << (fmt.width - 1)
    if got == want:
        return True
    if not ins.zero_sign and {got & ~sign, want & ~sign} == {0}:
        return True
    both_nan = oracle.decode(got, fmt).kind == oracle.decode(want, fmt).kind == "nan"
    return both_nan and ins.nan_code is None and (nan_code is None or got == nan_code)


def assert_oracle(A, B, C, spec, ins, backends, what):
    want = [ins.run(integers(a), integers(b), int(c)) for a, b, c in zip(A, B, C, strict=True)]
    for backend in backends:
        got = run(A, B, C, spec, backend)
        wrong = [i for i in range(len(C)) if not same(int(got[i]), want[i], ins, spec.nan_code)]
        shown = [(integers(A[i]), integers(B[i]), int(C[i]), hex(got[i]), hex(want[i])) for i in wrong[:1]]
        assert not wrong, f"{what}, {backend}: {len(wrong)} of {len(C)} differ; (a, b, c, got, exact): {shown}"


def test_every_row_of_the_catalog_has_an_oracle():
    assert len(ROWS) > 100
    missing = [s.name for s in ROWS if key_of(s) not in oracle.TABLE]
    assert not missing
    # no two rows are the same instruction, and all names differ
    rows = mma.catalog.rows(mixed=True)
    keys = Counter((*key_of(s), str(s.b_format), s.shape) for s in rows)
    assert max(keys.values()) == 1
    assert len({s.name for s in rows}) == len(rows)


def test_every_instruction_of_the_specification_is_in_the_catalog():
    have = set(map(key_of, ROWS))
    # the specification leaves the lengths of DMMA instructions open
    missing = [key for key in oracle.TABLE if key not in have and key[2] != "fp64"]
    assert not missing


def _arithmetic(s):
    """All fields of a row that its result depends on."""
    formats = map(str, (s.a_format, s.b_format, s.c_format, s.d_format))
    return (*formats, s.k, s.block, s.arithmetic, s.F, s.E0, s.final, s.fraction_bits, s.nan_code, s.payloads)


DISTINCT = list({_arithmetic(s): s for s in reversed(ROWS)}.values())


def _rows():
    """All rows; slow are those of an earlier row's arithmetic, and fp8 through fp16 in the longer length."""
    for s in ROWS:
        long = s.name.startswith("hopper mma m16n8k32 e4m3")
        yield pytest.param(s, id=s.name.replace(" ", "-"), marks=[pytest.mark.slow] * (s not in DISTINCT or long))


@pytest.mark.parametrize("spec", list(_rows()))
def test_row(spec):
    ins = instruction_of(spec)
    for kind in hostile.CLASSES if spec in DISTINCT or FACTOR > 1 else hostile.CLASSES[:2]:
        A, B, C = hostile.operands(ins.a, ins.b, ins.c, kind, 1, count_of(kind, ins.a), ins.k)
        assert_oracle(A, B, C, spec, ins, BACKENDS, f"{spec.name}, {kind}")


NEIGHBOURS = [
    ("fp16", "fp32", 16, 25, -133, "RZ", {"F"}),
    ("fp16", "fp16", 16, 25, -21, "RNE", {"F", "E0"}),
    ("fp16", "fp16", 4, 23, -19, "RNE", {"F", "E0"}),
    ("bf16", "fp32", 16, 25, -133, "RZ", {"F", "E0"}),
    ("tf32", "fp32", 8, 25, -133, "RZ", {"F", "E0"}),
    ("e4m3", "fp16", 32, 13, -21, "RNE", {"F"}),
    ("e2m1", "fp32", 32, 25, -133, "RZ", {"F"}),
]


@pytest.mark.parametrize(("ab", "d", "k", "F", "E0", "final", "seen"), NEIGHBOURS)
def test_these_operands_tell_neighbouring_instructions_apart(ab, d, k, F, E0, final, seen):
    """Wrong by one in F or in E0, by the oracle alone: the operands of `test_row` would show it."""
    right = oracle.truncated(ab, ab, d, k, k, F, E0, final)
    wrong = {
        (f, e): oracle.truncated(ab, ab, d, k, k, F + f, E0 + e, final)
        for f, e in ((1, 0), (-1, 0), (0, 1), (0, -1))
        if {"F" if f else "E0"} <= seen
    }
    shown = set()
    for kind in ("staircase", "leftover", "floor"):
        A, B, C = hostile.operands(ab, ab, d, kind, 1, count_of(kind, ab), k)
        for a, b, c in zip(A, B, C, strict=True):
            operands = integers(a), integers(b), int(c)
            shown |= {key for key, ins in wrong.items() if ins.run(*operands) != right.run(*operands)}
    assert shown == set(wrong)


@pytest.mark.parametrize(("a", "b"), [("e4m3", "e5m2"), ("e5m2", "e4m3")])
@pytest.mark.parametrize(
    "hardware", [("ada", "mma"), ("hopper", "wgmma"), ("hopper", "mma"), ("blackwell", "tcgen05"), ("cdna3", "mfma")]
)
def test_mixed_fp8_operands(hardware, a, b):
    architecture, name = hardware
    spec = mma.spec(architecture, (a, b), "fp32", instruction=name, k=32)
    if architecture == "cdna3":
        a, b = f"{a}fnuz", f"{b}fnuz"
    assert (str(spec.a_format), str(spec.b_format)) == (a, b)
    if hardware == ("hopper", "mma"):
        ins = oracle.fp8_through_half(a, b, "fp32", 32)
    elif architecture == "cdna3":
        ins = oracle.cdna3(a, b, 32, 16, interleaved=True)
    else:
        F = 25 if architecture == "blackwell" else 13
        L = 16 if architecture == "ada" else 32
        ins = oracle.truncated(a, b, "fp32", 32, L, F, -133, "RZ", 13 if F == 13 else None)
    for kind in hostile.CLASSES:
        A, B, C = hostile.operands(a, b, "fp32", kind, 3, COUNT, 32)
        assert_oracle(A, B, C, spec, ins, BACKENDS, f"{spec.name}, {kind}")


F8F6F4 = [s for s in mma.catalog.rows(mixed=True) if not {str(s.a_format), str(s.b_format)} <= {"e4m3", "e5m2"}]
F8F6F4 = [s for s in F8F6F4 if s.a_format != s.b_format and s.architecture.startswith("blackwell")]


def test_all_pairs_of_narrow_formats_on_blackwell():
    assert len(F8F6F4) == 2 * 2 * (25 - 5 - 2)  # two units, two results, the unequal pairs without fp8 alone
    for spec in F8F6F4:
        a, b, d = (str(f) for f in (spec.a_format, spec.b_format, spec.d_format))
        E0, final = (-133, "RZ") if d == "fp32" else (-21, "RNE")
        ins = oracle.truncated(a, b, d, 32, 32, 25, E0, final)
        for kind in ("mixed", "staircase", "floor"):
            A, B, C = hostile.operands(a, b, d, kind, 4, 8, 32)
            assert_oracle(A, B, C, spec, ins, BACKENDS, f"{spec.name}, {kind}")


# --- C in another format than D


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hardware", ["V100", "T4"])
def test_c_in_fp16_is_not_c_widened_to_fp32(hardware, backend):
    spec, wide = mma.spec(hardware, "fp16", ("fp16", "fp32"), k=4), mma.spec(hardware, "fp16", "fp32", k=4)
    # C = 2^-24 has the exponent -14: the grid is 2^-37, and the product 2^-38 vanishes. In fp32 C has the exponent -24.
    a, b, c = np.float32([[2.0**-19, 0, 0, 0]]), np.float32([[2.0**-19], [0], [0], [0]]), np.float32([[2.0**-24]])
    D = [mma.execute(a, b, c, s, backend=backend).item() for s in (spec, wide)]
    assert D == [2.0**-24, 2.0**-24 + 2.0**-38]
    with pytest.raises(InputError, match="not values of fp16"):
        mma.execute(a, b, np.float32([[1 + 2.0**-20]]), spec, backend=backend)
    # only the first instruction of a chain reads C; C that joins an outer sum is not read by any
    rng = np.random.default_rng(3)
    A, B = rng.standard_normal((3, 10)).astype(np.float16), rng.standard_normal((10, 5)).astype(np.float16)
    C = np.full((3, 5), 2.0**-20, np.float32)
    A[0], B[:4] = 2.0**-20, 2.0**-20
    first = mma.execute(A[:, :4], B[:4], C, spec, backend=backend)
    assert not np.array_equal(bits(first), bits(mma.execute(A[:, :4], B[:4], C, wide, backend=backend)))
    rest = mma.gemm(A[:, 4:], B[4:], first, wide, backend=backend)
    assert np.array_equal(bits(mma.gemm(A, B, C, spec, backend=backend)), bits(rest))
    for order in (mma.KOrder(promote=4), mma.KOrder(split=8)):
        D = [mma.gemm(A, B, C, s, order, backend=backend) for s in (spec, wide)]
        assert np.array_equal(*map(bits, D))


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        (("v_mfma_f32_16x16x16_f16",), "cdna3 mfma m16n16k16 fp16->fp32"),
        (("MI210", None, None, "v_mfma_f32_16x16x16_f16"), "cdna2 mfma m16n16k16 fp16->fp32"),
        (("gfx90a", "bf16", None, "V_MFMA_F32_32X32X8BF16_1K"), "cdna2 mfma m32n32k8 bf16->fp32"),
        (("gfx90a", None, None, "v_mfma_f32_32x32x4bf16"), "cdna2 mfma m32n32k4 bf16->fp32"),
        (("gfx90a", None, None, "v_mfma_f32_32x32x4bf16_1k"), "cdna2 mfma m32n32k4 bf16->fp32 (_1k)"),
        (("MI300X", None, None, "v_mfma_f32_32x32x4_2b_bf16"), "cdna3 mfma m32n32k4 bf16->fp32"),
        (("v_mfma_f32_16x16x8_xf32",), "cdna3 mfma m16n16k8 tf32->fp32"),
        (("v_mfma_f32_16x16x32_bf8_fp8",), "cdna3 mfma m16n16k32 e5m2fnuzxe4m3fnuz->fp32"),
        (("v_mfma_i32_32x32x16_i8",), "cdna3 mfma m32n32k16 int8->int32"),
        (("A100", None, None, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"), "ampere mma m16n8k16 fp16->fp32"),
        (
            ("T4", None, None, "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f16"),
            "turing mma m8n8k4 fp16->fp32, C in fp16",
        ),
        (
            ("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e3m2.e2m1.f32",),
            "blackwell-rtx mma m16n8k32 e3m2xe2m1->fp32",
        ),
        (("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16",), "hopper wgmma m64nNk16 fp16->fp32"),
        (("tcgen05.mma.cta_group::2.kind::f8f6f4", ("e4m3", "e2m1")), "blackwell tcgen05 m128nNk32 e4m3xe2m1->fp32"),
        (("H100", None, None, "HMMA.16816.F32"), "hopper mma m16n8k16 fp16->fp32"),
        (("H100", None, None, "HMMA.1688.F32.TF32"), "hopper mma m16n8k8 tf32->fp32"),
        (("L4", None, None, "QMMA.16832.F32.E4M3.E5M2"), "ada mma m16n8k32 e4m3xe5m2->fp32"),
        (("HGMMA.64x128x16.F32.BF16",), "hopper wgmma m64nNk16 bf16->fp32"),
        (("A100", None, None, "IMMA.16832.S8.S8"), "ampere mma m16n8k32 int8->int32"),
        (("A100", None, None, "DMMA.884"), "ampere mma m8n8k4 fp64->fp64"),
        (("Hopper wgmma m64nNk16 fp16->fp32",), "hopper wgmma m64nNk16 fp16->fp32"),
    ],
)
def test_names_of_assembly_languages(arguments, row):
    assert mma.spec(*arguments).name == row
    assert mma.catalog.architecture(arguments[0]) == row.split()[0]


@pytest.mark.parametrize("row", [r for r in mma.catalog.rows(mixed=True) if r.instruction == "mfma"], ids=str)
def test_every_mnemonic_of_amd_names_its_row(row):
    assert mma.spec(row.architecture, instruction=mnemonic(row)) == row


# --- instructions of one's own

NARROW = ["fp16", "bf16", "tf32", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e4m3fnuz", "e5m2fnuz"]


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.data())
def test_truncated_instruction_of_ones_own(data):
    a, b = data.draw(st.sampled_from(NARROW)), data.draw(st.sampled_from(NARROW))
    d, final = data.draw(st.sampled_from(["fp32", "fp16"])), data.draw(st.sampled_from(["RZ", "RNE"]))
    block, blocks = data.draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 32, 64])), data.draw(st.integers(1, 3))
    F, E0 = data.draw(st.integers(1, 35)), data.draw(st.none() | st.integers(-150, 30))
    keep = data.draw(st.sampled_from([None, None, 13, 7])) if d == "fp32" else None
    spec = MmaSpec(a, b, d, k=block * blocks, block=block, F=F, E0=E0, final=final, fraction_bits=keep)
    ins = oracle.truncated(a, b, d, spec.k, block, F, E0, final, keep)
    kind, seed = data.draw(st.sampled_from(hostile.CLASSES)), data.draw(st.integers(0, 2**31))
    A, B, C = hostile.operands(a, b, d, kind, seed, 12, spec.k)
    assert_oracle(A, B, C, spec, ins, BACKENDS, f"{spec}, {kind}")


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.data())
def test_exact_instruction_of_ones_own(data):
    a, b = data.draw(st.sampled_from(NARROW)), data.draw(st.sampled_from(NARROW))
    d, block = data.draw(st.sampled_from(["fp32", "fp16"])), data.draw(st.sampled_from([1, 2, 4, 7, 16, 32, 64]))
    spec = MmaSpec(a, b, d, k=2 * block, block=block, arithmetic="exact", final="RNE")
    ins = oracle.exact(a, b, d, spec.k, block)
    kind, seed = data.draw(st.sampled_from(hostile.CLASSES)), data.draw(st.integers(0, 2**31))
    A, B, C = hostile.operands(a, b, d, kind, seed, 12, spec.k)
    assert_oracle(A, B, C, spec, ins, BACKENDS, f"{spec}, {kind}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sum_of_products_is_exact_beyond_float64(backend):
    # bf16 products from 2^-266 to 2^254 in one block: only an exact sum sees the last bit
    spec = MmaSpec("bf16", "bf16", "fp32", k=4, block=4, arithmetic="exact", final="RNE")
    big, tiny = 2.0**120, 2.0**-130
    A = np.array([[big, -big, 1.0, tiny]], np.float32)
    B = np.array([[big], [big], [2.0**-24], [2.0**-100]], np.float32)
    assert mma.execute(A, B, np.float32([[1.0]]), spec, backend=backend)[0, 0] == np.float32(1 + 2.0**-23)
    A[0, 3] = -tiny
    assert mma.execute(A, B, np.float32([[1.0]]), spec, backend=backend)[0, 0] == np.float32(1.0)
    A[0, 3] = 0.0  # a tie, to even
    assert mma.execute(A, B, np.float32([[1.0]]), spec, backend=backend)[0, 0] == np.float32(1.0)


# --- the names in the catalog


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("hopper", "fp16", "fp32"), ("hopper", "wgmma", "fp16", "fp32", 16)),
        (("H200", "half"), ("hopper", "wgmma", "fp16", "fp32", 16)),
        (("hopper", "fp16", "fp32", "mma"), ("hopper", "mma", "fp16", "fp32", 16)),
        (("hopper", "fp16", "fp32", "mma", 8), ("hopper", "mma", "fp16", "fp32", 8)),
        (("A800", "tf32"), ("ampere", "mma", "tf32", "fp32", 8)),
        (("sm_80", "bf16"), ("ampere", "mma", "bf16", "fp32", 16)),
        (("V100", "fp16", "fp16"), ("volta", "mma", "fp16", "fp16", 4)),
        (("blackwell", "fp16"), ("blackwell", "tcgen05", "fp16", "fp32", 16)),
        (("MI210", "fp16"), ("cdna2", "mfma", "fp16", "fp32", 16)),
        (("A100", "double"), ("ampere", "mma", "fp64", "fp64", 4)),
    ],
)
def test_spec_by_name(arguments, found):
    s = mma.spec(*arguments)
    assert (s.architecture, s.instruction, str(s.a_format), str(s.d_format), s.k) == found


def test_a_spec_passes_through():
    s = MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=24, E0=-132)
    assert mma.spec(s) is s


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("hoper", "fp16"), "hopper"),
        (("H20O", "fp16"), "H200"),
        (("hopper", "fp61"), "fp16"),
        (("H200", "fp8"), "e4m3"),
        (("H200", 5), "format"),
        (("H200", ("e4m3",)), "a pair of formats"),
        (("volta", "bf16"), "volta"),
        (("hopper", "fp16", "bf16"), "hopper"),
        (("hopper", "fp16", "fp32", "wmgma"), "wgmma"),
        (("ampere", "fp16", "fp32", "wgmma"), "mma"),
        (("ampere", "fp16", "fp32", "mma", 32), "16"),
        (("HMMA.16816.F32",), "several architectures, ampere, ada, hopper, blackwell, blackwell-rtx"),
        (("v_mfma_f32_16x16x8bf16",), "cdna1, cdna2"),
        (("MI210", "bf16", None, None, 8), "v_mfma_f32_32x32x8bf16_1k (blocks of 4)"),
        (("H100", "bf16", None, "HMMA.16816.F32"), "it has fp16"),
        (("V100", None, None, "HMMA.16816.F32"), "volta has no instruction HMMA.16816.F32"),
        (("wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16",), "fpemu list hardware"),
        (("tcgen05.mma.cta_group::1.kind::f16",), "bf16, fp16"),
        (("hopper", ("e4m3", "e2m1")), "B in e2m1; it has e4m3, e5m2"),
        (("volta", "fp16", ("fp16",)), "C's and D's"),
        (("ampere", "fp16", ("fp16", "fp32")), "no C in fp16"),
    ],
)
def test_what_the_hardware_does_not_have_is_refused_with_a_hint(arguments, hint):
    with pytest.raises(InputError) as e:
        mma.spec(*arguments)
    assert hint in str(e.value)
    assert "\n" not in str(e.value)


def test_payloads_are_kept_by_fp64_alone_and_lost_with_another_format():
    fp64 = mma.spec("hopper", "fp64", "fp64")
    assert fp64.payloads
    assert not mma.spec("cdna3", "fp64", "fp64").payloads
    changed = fp64.replace(a_format="fp32", b_format="fp32", d_format="fp32")
    assert (changed.payloads, changed.nan_code) == (False, 0x7FFFFFFF)
    with pytest.raises(InputError, match="payloads of NaN are kept by the FMA chains of fp64 alone"):
        changed.replace(payloads=True)
    with pytest.raises(InputError, match="payloads = 1 must be True or False"):
        fp64.replace(payloads=1)


def test_the_evidence_of_every_row_is_named():
    assert {s.evidence for s in mma.catalog.rows()} <= {"measured", "replayed", "documented", "assumed", "definition"}
    for s in mma.catalog.rows():
        assert s.source
        measured = s.architecture in ("hopper", "x86") and s.name != "x86 tdpfp16ps m16n16k32 fp16->fp32"
        assert (s.evidence == "measured") == measured
        if s.is_integer:
            assert s.evidence in ("measured", "definition")
            continue
        if s.architecture.startswith("cdna"):
            assert s.evidence == "documented"
        if s.architecture == "ascend910a":
            assert s.evidence == "assumed"
    for gpu, architecture in mma.catalog.gpu_names().items():
        assert architecture in mma.catalog.architectures()
        assert mma.spec(gpu, "fp16").architecture == architecture
