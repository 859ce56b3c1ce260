"""``fpemu characterize``: emulated instructions are recovered from probes alone, and what fits nothing is said to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fpemu import InputError, mma
from fpemu.cli.probe import differences
from fpemu.mma import MmaSpec
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import codes, values
from fpemu.probing import characterize
from fpemu.probing.arithmetic import probes, separating
from fpemu.probing.arithmetic.fit import Results
from fpemu.probing.arithmetic.probes import NO_LEVEL, Builder, holds
from tests.hostile import examples

FIELDS = ("arithmetic", "block", "F", "E0", "final", "fraction_bits", "nan_code", "payloads")
DRAWN = [
    MmaSpec("fp16", "fp16", "fp32", k=4, block=2, F=22, E0=-31, final="RNE", nan_code=0x7FC00000),
    MmaSpec("bf16", "bf16", "fp32", k=4, block=4, F=34, E0=-140, fraction_bits=19),
    MmaSpec("tf32", "tf32", "fp32", k=4, block=1, F=25, E0=-118),
    MmaSpec("fp16", "fp16", "fp16", k=4, block=2, F=9, E0=-9, final="RZ", nan_code=0xFE00),
    MmaSpec("e4m3", "e5m2", "fp32", k=4, block=4, F=13, E0=-5, fraction_bits=11, final="RZ"),
    MmaSpec("e4m3", "e4m3", "fp16", k=8, block=8, arithmetic="via-half", F=22, E0=5),
    MmaSpec("bf16", "fp16", "fp32", k=3, block=3, arithmetic="exact", final="RZ"),
    MmaSpec("fp16", "fp16", "fp16", k=3, block=1, arithmetic="fma"),
    MmaSpec("fp16", "fp16", "fp32", k=4, block=4, arithmetic="flushed"),
    MmaSpec("bf16", "bf16", "fp32", k=4, block=2, arithmetic="cdna3", nan_code=0x7FC00000),
    MmaSpec("e5m2fnuz", "e4m3fnuz", "fp32", k=4, block=4, arithmetic="cdna3-fp8"),
    MmaSpec("fp64", "fp64", "fp64", k=1, block=1, arithmetic="fma", payloads=True, nan_code=0xFFF8 << 48),
]


def emulated(spec):
    return lambda A, B, C: mma.execute(A, B, C, spec, backend="numpy")


def found_in(spec, **options):
    a, b, c, d = spec.operand_formats
    return characterize(emulated(spec), a=a, b=b, c=c, d=d, k=spec.k, **{"outputs": 500, **options})


def alone(spec, execute, **options):
    return characterize(execute, a=spec.a_format, b=spec.b_format, d=spec.d_format, k=spec.k, outputs=0, **options)


@pytest.mark.parametrize("spec", DRAWN, ids=lambda spec: f"{spec.arithmetic} {spec.a_format}-{spec.d_format}")
def test_every_field_of_an_emulated_instruction_is_recovered(spec):
    found = found_in(spec)
    assert {f: getattr(found.spec, f) for f in FIELDS} == {f: getattr(spec, f) for f in FIELDS}
    assert found
    assert found.mismatches == 0
    assert found.verified_outputs >= 500
    assert found.contradiction == ""


@pytest.mark.parametrize("seed", range(examples(1)))  # more of them with FPEMU_EXAMPLES
def test_a_drawn_truncated_block_is_recovered_up_to_equivalent_arithmetic(seed):
    rng = np.random.default_rng(seed)
    F, bits = int(rng.integers(1, 36)), int(rng.integers(1, 24))
    E0, final = int(rng.integers(-150, 30)), str(rng.choice(["RZ", "RNE"]))
    spec = MmaSpec("fp16", "fp16", "fp32", k=4, block=2, F=F, E0=E0, fraction_bits=bits, final=final)
    found = found_in(spec)
    for model in (spec, found.spec):
        for kind in streams.CLASSES:
            A, B, C = streams.operands(model, kind, 1, 0, 20, 8, 8)
            a, b, c = (values(x, f) for x, f in zip((A, B, C), streams.formats(model), strict=True))
            D, E = (codes(emulated(s)(a, b.swapaxes(-1, -2), c), s.d_format) for s in (spec, found.spec))
            assert np.array_equal(D, E), (spec, found.spec, kind)
    assert found.spec.block == spec.block


HARD = [  # F and E0 show only beside a sum halfway between two numbers of D; and the least F that gives the same bits
    (MmaSpec("bf16", "fp16", "fp16", k=3, block=1, F=32, E0=-51), 32),
    (MmaSpec("e2m3", "e2m3", "fp32", k=1, block=1, F=34, final="RNE", fraction_bits=1), 34),
    (MmaSpec("e4m3", "e4m3", "fp32", k=6, block=2, F=30, E0=18, final="RNE"), 30),  # floor above every product
    (MmaSpec("e4m3", "fp16", "fp32", k=4, block=4, F=19, E0=-124, final="RNE", fraction_bits=9), 19),  # below them
    # a product with a subnormal factor, a power of two, and C half a unit below it but for C's own last place
    (MmaSpec("e3m2", "e3m2", "fp16", k=3, block=1, F=25), 24),
    # C a tie, which the steps before the product's would round away
    (MmaSpec("fp16", "e5m2fnuz", "fp32", k=2, block=1, F=34, E0=-145, final="RNE", fraction_bits=13), 34),
    # the sum of one half has an exponent that no product has
    (MmaSpec("e2m3", "e2m3", "fp16", k=4, block=4, arithmetic="via-half", F=21, E0=-228), 12),
    (MmaSpec("e5m2", "e2m1", "fp32", k=4, block=4, arithmetic="via-half", F=31, E0=19, fraction_bits=20), 31),
    # a probe's product above the level that it was made for
    (MmaSpec("fp16", "fp16", "fp32", k=2, block=1, F=17, E0=-15, final="RNE", fraction_bits=2), 17),
]
if examples(1) > 1:  # more of the last kinds, slower
    HARD.append((MmaSpec("e5m2", "e5m2", "fp16", k=4, block=1, F=25), 24))
    HARD.append((MmaSpec("e2m1", "e2m1", "fp32", k=8, block=8, arithmetic="via-half", F=16, E0=-126, final="RNE"), 9))
    HARD.append((MmaSpec("e4m3", "e4m3", "fp16", k=3, block=1, F=29, E0=-12), 25))
    HARD.append((MmaSpec("e5m2", "e5m2", "fp16", k=16, block=1, F=35, E0=-39), 24))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "F"), [pytest.param(s, F, id=f"{s.a_format}-{s.b_format}-{s.d_format}-{s.k}") for s, F in HARD]
)
def test_what_only_a_tie_with_a_rest_far_below_shows_is_recovered(spec, F):
    found = found_in(spec, outputs=0)
    assert (found.spec.arithmetic, found.spec.block, found.spec.F) == (spec.arithmetic, spec.block, F)
    assert spec.final in {s.final for s in (found.spec, *found.alike)}
    less = spec.replace(F=F - 1)
    pool = separating.draw(spec.operand_formats, spec.k, [spec, found.spec, less], np.random.default_rng(12345), 10_000)
    results = Results(spec.operand_formats, spec.k, pool, np.zeros(len(pool), spec.d_format.code_dtype))
    expected = results.codes(spec)
    assert np.array_equal(results.codes(found.spec), expected)
    assert (results.codes(less) != expected).any()


def test_a_probes_level_is_the_highest_exponent_of_its_terms():
    formats = mma.spec("V100", "fp16", "fp32").operand_formats
    pool = probes.first_round(formats, 4)

    def exponent(x, emin):
        return -np.inf if x == 0 else max(int(np.floor(np.log2(abs(float(x))))), emin)

    a, b, c = (values(x, f) for x, f in zip((pool.A, pool.B, pool.C), formats[:3], strict=True))
    for p, q, r, level in zip(a, b, c, pool.levels, strict=True):
        highest = max([exponent(x, -14) + exponent(y, -14) for x, y in zip(p, q, strict=True)] + [exponent(r, -126)])
        assert level in (highest, NO_LEVEL)
    assert 0 < np.mean(pool.levels == NO_LEVEL) < 0.5


def test_a_function_may_write_into_its_operands():
    def execute(A, B, C):
        D = emulated(DRAWN[0])(A, B, C)
        A[...], B[...], C[...] = 0, 0, 0
        return D

    found = characterize(execute, a="fp16", b="fp16", d="fp32", k=4, outputs=100)
    assert found
    assert (found.spec.block, found.spec.F) == (2, 22)


def test_the_probe_shown_for_a_field_is_answered_otherwise_by_another_value():
    found = found_in(DRAWN[1])
    shown = {f.field: f for f in found.findings}
    assert {"arithmetic", "block", "F", "E0", "fraction_bits", "final", "NaN", "zeros", "subnormal A"} <= set(shown)
    for field in ("arithmetic", "F", "E0", "fraction_bits", "final"):
        assert shown[field].probe
        assert shown[field].returned != shown[field].otherwise.split(" if it were")[0]
    assert shown["subnormal C"].value == "kept in part"  # 19 fraction bits
    flushed = {f.field: f.value for f in found_in(DRAWN[8]).findings}
    assert flushed["subnormal A"] == flushed["subnormal B"] == flushed["subnormal C"] == "flushed"


def test_a_floor_that_no_operand_reaches_is_none_and_the_catalogs_counts_as_equal():
    row = mma.spec("V100", "fp16", "fp32")
    found = found_in(row)
    assert row.E0 == -131
    assert found.spec.E0 is None
    assert differences(found.spec, row, found.alike) == {}
    assert differences(found.spec, row.replace(F=24), found.alike) == {"F": [23, 24]}
    assert "any floor up to" in next(f for f in found.findings if f.field == "E0").otherwise


def rounded_products(A, B, C):
    return C + np.sum(np.float32(np.float16(A * np.swapaxes(B, -1, -2))), axis=-1, keepdims=True)


def stops_at_the_largest(A, B, C):
    D = emulated(DRAWN[0])(A, B, C)
    return np.where(np.isinf(D), np.copysign(np.finfo(np.float32).max, D), D)


def flushes_inputs(A, B, C):
    A, B = (np.where(np.abs(X) < 2.0**-14, X * 0, X) for X in (A, B))
    return emulated(DRAWN[0])(A, B, C)


def descending(A, B, C):
    return emulated(DRAWN[0])(A[..., ::-1].copy(), B[..., ::-1, :].copy(), C)


def kahan(A, B, C):
    total, lost = C, np.zeros_like(C)
    for k in range(A.shape[-1]):
        term = A[..., :, k, None].astype(np.float32) * B[..., None, k, :].astype(np.float32) - lost
        new = total + term
        total, lost = new, (new - total) - term
    return total


def stochastic(A, B, C):
    exact = C.astype(np.float64) + A.astype(np.float64) @ B.astype(np.float64)
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    drawn = np.floor(exact / unit + np.random.default_rng(0).random(exact.shape)) * unit
    return np.where(np.isfinite(drawn), drawn, exact).astype(np.float32)


@pytest.mark.parametrize(
    "wrong", [rounded_products, stops_at_the_largest, flushes_inputs, descending, kahan, stochastic]
)
def test_what_fits_no_arithmetic_is_said_with_a_probe_and_no_row_is_made_up(wrong):
    with np.errstate(all="ignore"):
        found = alone(DRAWN[0], wrong)
    assert found.spec is None
    assert not found
    assert "no arithmetic known gives these answers" in found.contradiction
    assert "returned" in found.contradiction
    assert {f.field for f in found.findings} >= {"zeros", "subnormal A", "NaN"}


def test_nan_of_two_codes_without_a_rule_are_no_row():
    def execute(A, B, C):
        D = emulated(DRAWN[0])(A, B, C)
        bits = D.view(np.uint32)
        return np.where(np.isnan(D) & np.isnan(C), bits ^ np.uint32(1 << 31), bits).view(np.float32)

    found = alone(DRAWN[0], execute)
    assert found.spec is None
    assert "2 codes of NaN" in found.contradiction


def test_a_difference_that_only_random_operands_meet_is_counted():
    def execute(A, B, C):
        D = emulated(DRAWN[7])(A, B, C)
        return np.where(np.float16(1.2345) == C, D + np.float16(1), D) if A.shape[-2] == 1 else D * np.float16(1.001)

    found = characterize(execute, a="fp16", b="fp16", d="fp16", k=3, outputs=2000)
    assert found.spec.arithmetic == "fma"
    assert found.verified_outputs >= found.mismatches > 0
    assert "random operands of the class" in found.contradiction
    assert not found


def test_one_shape_of_d_is_enough():
    calls = []

    def execute(A, B, C):
        calls.append((A.shape, B.shape, C.shape))
        return emulated(DRAWN[9])(A, B, C)

    found = characterize(execute, a="bf16", b="bf16", d="fp32", k=4, shape=(64, 96), outputs=100)
    assert set(calls) == {((64, 4), (4, 96), (64, 96))}
    assert found.spec.arithmetic == "cdna3"
    assert found.mismatches == 0


def test_integers_wrap_or_are_said_to_stop():
    spec = mma.spec("H200", "int8")
    assert characterize(emulated(spec), a="int8", b="int8", c="int32", d="int32", k=32, outputs=500).spec.is_integer

    def stops(A, B, C):
        exact = C.astype(np.int64) + A.astype(np.int64) @ B.astype(np.int64)
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

    found = characterize(stops, a="int8", b="int8", d="int32", k=32)
    assert found.spec is None
    assert "stop at its ends" in [f.value for f in found.findings]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k = 0"),
        ({"outputs": -1}, "outputs = -1"),
        ({"d": "bf16"}, "no arithmetic has"),
        ({"a": "fp17"}, "unknown format"),
        ({"a": "int8"}, "int8 operands"),
        ({"a": "int8", "b": "int8", "d": "int32", "c": "fp32"}, "C and results in int32"),
        ({"d": "fp16"}, "returned float32"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(options, message):
    with pytest.raises(InputError, match=message) as e:
        characterize(emulated(DRAWN[0]), **{"a": "fp16", "b": "fp16", "d": "fp32", "k": 4, "outputs": 0, **options})
    assert "\n" not in str(e.value)


def test_a_probes_numbers_are_values_of_their_formats_and_have_the_requested_product():
    builder = Builder(mma.spec("hopper", "e4m3", "fp16", "wgmma").operand_formats, 32)
    for e in range(-18, 17):
        a, b = builder.product(e, -1)
        assert a * b == -(2.0**e)
        assert holds(builder.formats[0], a)
        assert builder.formats[1].contains(b)
    assert builder.product(17) is None
    assert builder.product(-19) is None
    builder.add("too long", [(q, builder.product(0)) for q in range(33)])
    builder.add("one", [(0, builder.product(3))], 2.0)
    builder.add("one", [(0, builder.product(3))], 2.0)
    assert len(builder.probes()) == 1


# --- the record of an H200
RECORD = json.loads((Path(__file__).parents[1] / "data/verified/h200_characterized.json").read_text(encoding="utf-8"))


def made(text):
    return eval(text, {"MmaSpec": MmaSpec})


def of_the_catalog(name):
    arch, instruction, shape, formats = name.split()
    ab, _, d = formats.partition("->")
    pair = tuple(ab.split("x")) if "x" in ab else ab
    return mma.spec(arch, pair, d, instruction, int(shape.rpartition("k")[2]))


def test_every_row_found_on_the_h200_is_the_catalogs():
    assert len(RECORD["instructions"]) == 37
    for entry in RECORD["instructions"]:
        row, found = of_the_catalog(entry["instruction"]), made(entry["row"])
        assert row.name == entry["instruction"]
        assert repr(found) == entry["row"]
        assert differences(found, row, tuple(map(made, entry["alike"]))) == {}
        assert entry["mismatches"] == entry["verified"]["mismatches"] == 0
        assert entry["verified"]["outputs"] >= 10**6
        if "fragments" in entry:
            assert entry["fragments"]["shape"] == row.shape
            assert entry["fragments"]["as_used"]


@pytest.mark.parametrize(
    "name", ["mma m16n8k8 fp16->fp16", "mma m16n8k4 tf32->fp32", "mma m16n8k16 e4m3->fp16", "mma m16n8k32 int8->int32"]
)
def test_the_emulated_instruction_is_found_to_be_what_the_h200s_was(name):
    entry = next(e for e in RECORD["instructions"] if e["instruction"] == f"hopper {name}")
    row = of_the_catalog(entry["instruction"])
    found = characterize(emulated(row), a=row.a_format, b=row.b_format, d=row.d_format, k=row.k, outputs=0)
    assert repr(found.spec) == entry["row"]
    assert {f.field: f.value for f in found.findings} == entry["found"]
