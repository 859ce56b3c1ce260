"""``fpemu characterize``: emulated instructions are recovered from probes alone, and what fits nothing is said to."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fpemu import InputError, gpu, mma
from fpemu.cli import main
from fpemu.cli.characterize import differences
from fpemu.gpu import device, fragments, instructions, streams
from fpemu.gpu.emulation import codes, values
from fpemu.mma import MmaSpec
from fpemu.probing import characterize
from fpemu.probing.arithmetic.pool import Maker, holds

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


def test_a_random_truncated_block_is_recovered_up_to_what_no_operand_tells():
    rng = np.random.default_rng()
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


@pytest.mark.parametrize("wrong", [rounded_products, stops_at_the_largest])
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
    assert characterize(emulated(spec), a="int8", b="int8", d="int32", k=32, outputs=500).spec.is_integer

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
        ({"d": "fp16"}, "returned float32"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(options, message):
    with pytest.raises(InputError, match=message) as e:
        characterize(emulated(DRAWN[0]), **{"a": "fp16", "b": "fp16", "d": "fp32", "k": 4, "outputs": 0, **options})
    assert "\n" not in str(e.value)


def test_a_probes_numbers_are_values_of_their_formats_and_its_product_what_was_asked():
    maker = Maker(mma.spec("hopper", "e4m3", "fp16", "wgmma").operand_formats, 32)
    for e in range(-18, 17):
        a, b = maker.product(e, -1)
        assert a * b == -(2.0**e)
        assert holds(maker.formats[0], a)
        assert maker.formats[1].contains(b)
    assert maker.product(17) is None
    assert maker.product(-19) is None
    maker.add("too long", [(q, maker.product(0)) for q in range(33)])
    maker.add("one", [(0, maker.product(3))], 2.0)
    maker.add("one", [(0, maker.product(3))], 2.0)
    assert len(maker.pool()) == 1


# --- the command
def test_the_command_prints_a_row_and_its_evidence(capsys):
    assert main(["characterize", "--emulated", "volta mma m8n8k4 fp16->fp16", "--outputs", "500"]) == 0
    out = capsys.readouterr().out
    assert "MmaSpec('fp16', 'fp16', 'fp16', k=4, block=4, arithmetic='truncated', F=23, E0=-19, final='RNE'" in out
    assert "as in the catalog" in out
    assert "not as in" not in out


def test_the_command_takes_a_function_and_writes_json(capsys, tmp_path):
    file = tmp_path / "unknown.py"
    file.write_text(
        "import numpy as np\n"
        "def exact(A, B, C):\n    return (C.astype('f8') + A.astype('f8') @ B.astype('f8')).astype('f4')\n"
        "def odd(A, B, C):\n    return exact(A, B, C) * np.float32(1.5)\n"
        "def fails(A, B, C):\n    raise RuntimeError('no')\n"
    )
    common = ["--formats", "e4m3,e4m3,fp32", "--k", "2", "--json", "-n", "100"]
    with np.errstate(all="ignore"):
        assert main(["characterize", "--callable", f"{file}:odd", *common]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)[0]["row"] is None
    assert told.err.startswith("fpemu: odd: no arithmetic known")
    for arguments, message in (
        ([f"{file}:fails", *common], "RuntimeError: no"),
        ([f"{file}:none", *common], "no function none"),
        ([f"{file}", *common], "FILE.py:FUNCTION"),
        ([f"{file}:odd", "--k", "2"], "--formats"),
        ([f"{file}:odd", *common, "--shape", "16"], "MxN"),
        ([str(tmp_path / "x.py:f"), *common], "no file"),
    ):
        assert main(["characterize", "--callable", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_without_a_gpu_the_command_says_what_needs_none(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "available", lambda: "no NVIDIA GPU is usable here")
    assert main(["characterize"]) == 2
    assert "--emulated" in capsys.readouterr().err
    assert main(["characterize", "--emulated", "hoper"]) == 2
    assert "hopper" in capsys.readouterr().err


def test_on_a_gpu_the_shape_of_an_instruction_is_found_too(capsys, monkeypatch):
    row = mma.spec("A100", "tf32", "fp32", "mma", 4)
    find = fragments.find
    monkeypatch.setattr(gpu, "available", lambda: None)
    monkeypatch.setattr(gpu, "execute", lambda A, B, C, spec: mma.execute(A, B, C, spec, backend="numpy"))
    monkeypatch.setattr(instructions, "rows", lambda arch=None: [row])
    monkeypatch.setattr(fragments, "find", lambda spec: find(spec, model(spec)[0]))
    assert main(["characterize", "tf32", "--json", "-n", "100"]) == 0
    told = json.loads(capsys.readouterr().out)[0]
    assert told["fragments"] == {"shape": "m16n8k4", "probes": 480, "as_used": True}
    assert told["catalog"] == {}
    assert told["fields"]["F"] == 24


# --- fragments
def model(spec, scramble=False):
    """The instruction on slots, by the layout of PTX or by another one, and the layout."""
    ins, held = instructions.instruction(spec), list(fragments.expected(spec))
    if scramble:
        held = [x[np.random.default_rng(1).permutation(len(x))] for x in held]
    A, B, D = held

    def run(a, b):
        x, y = np.zeros((len(a), ins.m, ins.k), np.float32), np.zeros((len(b), ins.k, ins.n), np.float32)
        x[:, A[:, 0], A[:, 1]], y[:, B[:, 0], B[:, 1]] = a, b
        return (x @ y)[:, D[:, 0], D[:, 1]]

    return run, held


@pytest.mark.parametrize("scramble", [False, True])
def test_fragments_are_found_whatever_the_layout(scramble):
    for spec in (mma.spec("hopper", "fp16", "fp16", "mma", 8), mma.spec("hopper", "fp64"), mma.spec("T4", "int8")):
        run, held = model(spec, scramble)
        found = fragments.find(spec, run)
        ins = instructions.instruction(spec)
        assert (found.m, found.n, found.k) == (ins.m, ins.n, ins.k)
        assert fragments.agrees(found, spec) != scramble
        for mine, theirs in zip((found.a, found.b, found.d), held, strict=True):
            for i in (0, 1):  # the same slots together, by whatever name
                assert len({*zip(mine[:, i].tolist(), theirs[:, i].tolist(), strict=True)}) == len(set(theirs[:, i]))
        assert fragments.record(found)["shape"] == f"m{ins.m}n{ins.n}k{ins.k}"


def test_answers_of_no_product_are_no_fragments():
    spec = mma.spec("A100", "fp16", "fp32", "mma", 8)
    run, _ = model(spec)
    with pytest.raises(InputError, match="rows and columns"):
        fragments.find(spec, lambda a, b: run(a, b) + run(a, b)[:, ::-1])
    with pytest.raises(InputError, match=r"mma\.sync"):
        fragments.find(mma.spec("hopper", "fp16", "fp32", "wgmma"))


@pytest.mark.skipif(device.compiler_missing() is not None, reason="no NVRTC")
def test_the_kernel_of_fragments_compiles():
    for spec in {str(r.a_format): r for r in instructions.rows("sm_80")}.values():
        assert device.compile(fragments.source(spec), "sm_80", name=spec.name)[:4] == b"\x7fELF"
