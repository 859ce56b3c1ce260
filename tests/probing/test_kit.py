"""Probe kits: C and Python compute the same operands, results give back the arithmetic, damaged files are refused."""

from __future__ import annotations

import gzip
import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma
from fpemu.cli.probe import differences
from fpemu.gpu.runtime import compiler
from fpemu.mma import MmaSpec, catalog, own_rows
from fpemu.probing import kit
from tests.hostile import examples

CC = shutil.which("gcc") or shutil.which("clang")
FORMATS = ["fp64", "fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e5m2fnuz", "e4m3fnuz", "e3m2", "e2m3", "e2m1"]
OPERANDS = r"""
int main(int count, char **word) {
  const Format *f[4];
  for (int n = 0; n < 4; n++) f[n] = format(word[1 + n]);
  u64 A[64], B[64], C;
  int k = atoi(word[5]);
  for (u64 i = 0; i < PROBE_COUNT + (u64)(count - 6); i++) {
    probe(f, k, i, A, B, &C);
    fwrite(A, 8, k, stdout), fwrite(B, 8, k, stdout), fwrite(&C, 8, 1, stdout);
  }
  return measure_all == 0;
}
"""
SPECS = {
    "fp16": mma.spec("H200", "fp16", "fp32"),
    "fp16 to fp16": mma.spec("T4", "fp16", "fp16"),
    "tf32": mma.spec("H200", "tf32", instruction="mma"),
    "via-half": mma.spec("H200", "e5m2", "fp32", "mma", 16),
    "13 bits": mma.spec("L40S", "e4m3", "fp16", k=16),
    "fp64": mma.spec("H200", "fp64", k=8),
    "cdna2": mma.spec("MI250X", instruction="v_mfma_f32_16x16x8bf16"),
    "cdna3": mma.spec("MI300X", "fp16"),
    "cdna3-fp8": mma.spec("MI300X", "e4m3"),
    "int8": mma.spec("H200", "int8"),
    "exact": mma.spec("Ascend 910A", "fp16"),
    "drawn": MmaSpec("fp16", "fp16", "fp32", k=4, block=2, F=22, E0=-31, final="RNE", nan_code=0x7FC00000),
}


def unit(spec, name="unit"):
    formats = (spec.a_format, spec.b_format, spec.c_format, spec.d_format)
    return kit.Unit(name, formats, spec.k, kit._emulated(kit.operands(formats, spec.k), formats, spec))


def recovered(spec):
    result = kit.characterize(unit(spec))
    assert result, result.contradiction
    assert result.mismatches == 0
    assert differences(result.spec, spec, result.alike) == {}
    return result


if examples(1) > 1:
    SPECS |= {row.name: row for row in catalog.rows()}
QUICK = ("fp16 to fp16", "via-half", "cdna3", "int8", "drawn")
HARDWARE = ("fp16", "tf32", "fp64")  # `MEASURED` has results of their instructions


@pytest.mark.parametrize(
    "spec",
    [pytest.param(s, id=n, marks=[pytest.mark.slow] * (n not in QUICK)) for n, s in SPECS.items() if n not in HARDWARE],
)
def test_results_of_an_emulated_instruction_give_back_its_arithmetic(spec):
    recovered(spec)


def test_evidence_names_the_probe_of_each_field():
    findings = {finding.field: finding for finding in recovered(SPECS["fp16 to fp16"]).findings}
    assert {"arithmetic", "block", "F", "E0", "final", "NaN", "zeros", "subnormal A", "subnormal C"} <= set(findings)
    assert findings["F"].value == "24"
    assert findings["F"].probe
    assert "if it were" in findings["F"].otherwise
    assert findings["subnormal A"].value == "kept"


def test_results_of_no_known_arithmetic_are_contradicted():
    right = unit(SPECS["fp16"])
    result = kit.characterize(kit.Unit("unit", right.formats, right.k, right.D ^ np.uint32(1)))
    assert not result
    assert "no arithmetic known" in result.contradiction
    wrong_nan = np.where(right.D == 0x7FFFFFFF, np.arange(len(right.D)) % 2 + 0x7FC00000, right.D).astype(np.uint32)
    result = kit.characterize(kit.Unit("unit", right.formats, right.k, wrong_nan))
    assert (bool(result), result.spec.F) == (False, 25)
    assert "NaN of other codes" in result.contradiction
    integer = unit(SPECS["int8"])
    assert not kit.characterize(kit.Unit("unit", integer.formats, integer.k, integer.D ^ np.uint32(4)))


@pytest.mark.parametrize("ab", ["e4m3", "e2m1"])
def test_a_block_scaled_instruction_with_scales_of_one_is_a_truncated_sum(ab):
    spec = mma.spec("RTX 5090", ab, k=32, scale="ue8m0", scale_block=32)
    result = kit.characterize(unit(spec))
    assert result.mismatches == 0
    assert (result.spec.arithmetic, result.spec.block, result.spec.F, result.spec.final) == ("truncated", 32, 25, "RZ")


# --- the source files
@pytest.mark.parametrize("language", ["cuda", "hip", "sycl", "c"])
def test_a_kit_is_one_file_of_at_most_400_lines(language):
    text = kit.source(language)
    assert text.count("\n") <= 400
    assert "probes.h" not in text
    assert max(map(len, text.splitlines())) <= 132
    with pytest.raises(InputError, match="known: c, cuda, hip, sycl"):
        kit.source("opencl")


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
def test_operands_in_c_and_in_python_are_equal(tmp_path):
    (tmp_path / "main.c").write_text((kit._FOLDER / "probes.h").read_text() + OPERANDS)
    subprocess.run([str(CC), "-O1", "-o", tmp_path / "main", tmp_path / "main.c"], check=True)
    cases = [(a, a, d, d, 8) for a in FORMATS for d in ("fp32", "fp16", "fp64") if d != "fp64" or a == d]
    cases += [("int8", "int8", "int32", "int32", 16), ("bf16", "bf16", "fp32", "fp32", 2), ("fp32",) * 4 + (1,)]
    cases += [("e4m3", "e5m2", "fp32", "fp32", 32), ("fp16", "fp16", "fp16", "fp32", 4)]
    for *names, k in cases:
        output = subprocess.run([tmp_path / "main", *names, str(k)], check=True, capture_output=True).stdout
        formats = tuple(names) if names[0] == "int8" else tuple(map(fpemu.formats.get, names))
        probes = kit.operands(formats, k)
        expected = np.concatenate([probes.A, probes.B, probes.C[:, None]], axis=1).astype(np.uint64)
        assert np.array_equal(np.frombuffer(output, np.uint64).reshape(-1, 2 * k + 1), expected), names


@pytest.mark.skipif(CC is None or platform.machine() != "x86_64", reason="needs a C compiler and an x86-64 processor")
def test_the_c_kit_measures_this_processor(tmp_path):
    (tmp_path / "kit.c").write_text(kit.source("c"))
    subprocess.run([str(CC), "-O1", "-Wall", "-Werror", "-o", tmp_path / "kit", tmp_path / "kit.c"], check=True)
    shown = subprocess.run([tmp_path / "kit", tmp_path / "R.txt"], capture_output=True, text=True, check=False).stdout
    if "vfmadd231ps: measured" not in shown:
        pytest.skip("the processor has no FMA")
    units = {one.name: one for one in kit.read(tmp_path / "R.txt")[1]}
    spec = kit.characterize(units["vfmadd231ps"]).spec
    assert spec.block == 1
    assert spec.rules.fused


@pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120a"])
def test_the_instructions_of_the_cuda_kit_compile(arch):
    """The device code alone, by NVRTC: every instruction that the architecture has is valid PTX."""
    from cuda.core import Program, ProgramOptions

    text = (kit._FOLDER / "cuda.cu").read_text()
    device = text[text.index("#if defined(__CUDA_ARCH_FEAT") : text.index("static void check(")]
    macros = text[text.index("/* An instruction: rows") : text.index("#define LIST(")]
    names = re.findall(r"X\((U\d+),", text)
    words = [f"template __global__ void tile<{n}>({f'const {n}::Word *, ' * 3}{n}::Word *, int *);" for n in names]
    source = "\n".join(["typedef unsigned long long u64;", device, macros, "UNITS(DEFINE)", *words])
    code = Program(source, "c++", ProgramOptions(arch=arch, std="c++17")).compile("cubin").code
    assert len(names) == 42
    assert all(name.encode() in code for name in names)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.slow
def test_the_cuda_kit_compiles(tmp_path):
    (tmp_path / "kit.cu").write_text(kit.source("cuda"))
    for arch in ("sm_75", "sm_90a"):
        command = ["nvcc", "-std=c++17", f"-arch={arch}", "-cubin", "-o", tmp_path / "kit", tmp_path / "kit.cu"]
        subprocess.run(command, check=True, capture_output=True)


# --- results of hardware: tests/data/README.md
DATA = Path(__file__).resolve().parents[1] / "data"
MEASURED = {
    "kit_h200": {
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16": mma.spec("H200", "fp16", "fp16", "mma", 8),
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32": mma.spec("H200", "tf32", "fp32", "mma", 4),
        "mma.sync.aligned.m16n8k16.row.col.f16.e5m2.e5m2.f16": mma.spec("H200", "e5m2", "fp16", "mma", 16),
        "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64": mma.spec("H200", "fp64", k=4),
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16": mma.spec("H200", "fp16", "fp16", "wgmma"),
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3": mma.spec("H200", "e4m3", "fp32", "wgmma"),
    },
    "kit_xeon": {
        "tdpbf16ps": mma.spec("x86", "bf16", instruction="tdpbf16ps"),
        "tdpbssd": mma.spec("x86", "int8", instruction="tdpbssd"),
        "vdpbf16ps": mma.spec("x86", "bf16", instruction="vdpbf16ps"),
        "vfmadd231ph": mma.spec("x86", "fp16", "fp16", "vfmaddph"),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(("file", "rows"), MEASURED.items(), ids=MEASURED)
def test_results_of_hardware_give_back_the_rows_of_the_catalogue(file, rows, tmp_path):
    (tmp_path / "R.txt").write_bytes(gzip.decompress((DATA / f"{file}.txt.gz").read_bytes()))
    units = {one.name: one for one in kit.read(tmp_path / "R.txt")[1]}
    assert set(units) == set(rows)
    for name, row in rows.items():
        result = kit.characterize(units[name])
        assert (bool(result), result.mismatches) == (True, 0), name
        assert differences(result.spec, row, result.alike) == {}, name


# --- files of results, and of rows
@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("kit") / "RESULT.txt"
    kit.write(path, {"one": SPECS["int8"], "mma.sync.m16n8k8": SPECS["tf32"]}, "some GPU")
    return path.read_text()


def test_results_are_read_as_written(results, tmp_path):
    (tmp_path / "R.txt").write_text(results)
    machine, units = kit.read(tmp_path / "R.txt")
    assert (machine, [one.name for one in units]) == ("some GPU", ["one", "mma.sync.m16n8k8"])
    assert np.array_equal(units[1].D, unit(SPECS["tf32"]).D)


def first_unit(text):
    return text[: text.index("end ")]


DAMAGE = {
    "not of a kit": (lambda t: "D = 1\n", "is no result of a probe kit"),
    "empty": (lambda t: "", "is no result of a probe kit"),
    "truncated": (lambda t: t[: len(t) // 2], "is truncated"),
    "two results": (lambda t: t + t, "holds two results"),
    "a changed digit": (lambda t: t[:300] + ("0" if t[300] != "0" else "1") + t[301:], "checksum differs"),
    "a missing line": (lambda t: t.replace(t.splitlines()[7] + "\n", "", 1), "checksum differs"),
    "no digits": (lambda t: t[:300] + "XYZ" + t[303:], "checksum differs"),
    "an instruction less": (lambda t: t.splitlines()[0] + "\n" + t[t.index("unit mma") :], "parts are missing"),
    "another name": (lambda t: t.replace("unit one:", "unit two:"), "checksum differs"),
    "another k": (lambda t: t.replace("k 32,", "k 16,"), "operands are not those of this version"),
    "k of 0": (lambda t: t.replace("k 32,", "k 0,"), "k is not between 1 and 64"),
    "another format": (lambda t: t.replace("A int8", "A int7"), "a format is none of fp64"),
    "half an integer": (lambda t: t.replace("B int8", "B fp16"), "integer results have"),
    "no header": (lambda t: t.replace("unit one: A", "unit one A"), "does not begin an instruction's results"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_results_are_refused_in_one_line(damage, message, results, tmp_path):
    path = tmp_path / "R.txt"
    path.write_text(damage(results))
    with pytest.raises(InputError, match=message) as problem:
        kit.read(path)
    assert str(path) in str(problem.value)
    assert "\n" not in str(problem.value)


def test_rows_of_a_file_are_hardware(tmp_path):
    path = str(tmp_path / "Unit.json")
    rows = [SPECS["fp16"].replace(name="mine"), SPECS["int8"].replace(name="integers"), SPECS["fp64"].replace(name="d")]
    own_rows.save(path, rows[:2])
    own_rows.save(path, [rows[2], rows[0].replace(F=20, name="mine")])  # one new, one replaced
    assert {row.name for row in own_rows.load(path)} == {"mine", "integers", "d"}
    spec = mma.spec(path, "fp16", "fp32")
    assert (spec.name, spec.F, spec.architecture) == ("mine", 20, path)
    assert repr(mma.spec(path, "fp64")) == repr(rows[2])
    rng = np.random.default_rng(0)
    A, B = rng.random((8, 64), np.float32), rng.random((64, 8), np.float32)
    D = fpemu.gemm(A, B, scheme="markidis", hardware=path)
    assert np.array_equal(D, fpemu.gemm(A, B, scheme="markidis", hardware=rows[0].replace(F=20)))
    grid = fpemu.sweep.Grid(inputs=["uniform"], schemes=["markidis"], hardware=path, M=8, N=8, K=32)
    assert grid.cells()[0]["hardware"] == repr(spec)  # not the path, because the file may change
    for text, message in (
        ("{}", "missing"),
        ('{"file": "fpemu catalogue", "version": 1, "rows": [{"k": 2}]}', "row 0"),
    ):
        (tmp_path / "Unit.json").write_text(text)
        with pytest.raises(InputError, match=message):
            mma.spec(path)
    with pytest.raises(InputError, match=r"none\.json"):
        mma.spec("none.json")
