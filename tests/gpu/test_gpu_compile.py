"""Every kernel compiles to a cubin for the architectures it is for; no GPU is needed, NVRTC is."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import compilation
from fpemu import InputError, mma
from fpemu.gpu.emulation import chains
from fpemu.gpu.gemm import ordinary, splitting
from fpemu.gpu.gemm.wgmma import schedules, staged_int8
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler, device
from fpemu.mma import KOrder
from fpemu.schemes import build
from fpemu.verification import instructions as verify
from tests.simulated import Buffer

SLOW = pytest.mark.slow
ARCHES = ("sm_80", pytest.param("sm_90a", marks=SLOW), pytest.param("sm_100a", marks=SLOW))
needs_compiler = pytest.mark.skipif(
    compiler.compiler_missing() is not None, reason=compiler.compiler_missing() or "NVRTC is here"
)


def machine(cubin: bytes) -> int:
    """The compute capability that an ELF file of CUDA names in its flags (sm_90a: 90)."""
    assert cubin[:4] == b"\x7fELF"
    flags = int.from_bytes(cubin[48:52], "little")
    return flags & 0xFF if flags & 0xFF in (80, 90, 100) else flags >> 8 & 0xFF


@needs_compiler
@pytest.mark.parametrize("arch", ARCHES)
def test_every_instruction_of_an_architecture_compiles(arch):
    rows = instructions.rows(arch)
    assert len(rows) >= 10
    for spec in rows:
        wide = spec.instruction == "wgmma"
        for n in (8, 24, 256) if wide else (None,):
            for saturate in (False, True) if spec.is_integer else (False,):
                cubin = compiler.compile(instructions.source(spec, n=n, saturate=saturate), arch, name=spec.name)
                assert machine(cubin) == int(re.sub(r"\D", "", arch)), spec.name


@needs_compiler
@pytest.mark.slow
def test_the_kernels_around_an_instruction_compile_for_every_arithmetic(tmp_path, monkeypatch):
    """verify.cu of each arithmetic that the GPU has, and emulated_gemm.cu of fp64's; of the others: test_gpu_gemm."""
    arch = "sm_90a"  # the instructions, which differ between the GPUs, compile in the test above
    monkeypatch.setenv("FPEMU_CACHE", str(tmp_path))
    rows = sorted(instructions.rows(arch), key=lambda row: -row.k)
    shortest = {(row.arithmetic, row.instruction == "wgmma" and not row.is_integer): row for row in rows}
    assert {arithmetic for arithmetic, _ in shortest} >= {"truncated", "fma", "integer"}
    assert ("truncated", True) in shortest
    sources = [verify.source(row) for row in shortest.values()]
    sources.append(chains.source(next(row for row in rows if row.payloads)))
    compilation.compile_all(sources, arch)
    for source in sources:
        assert machine(compiler.cubin(source, arch)) == int(re.sub(r"\D", "", arch))


@needs_compiler
def test_wgmma_is_in_sm_90a_alone():
    assert {s.instruction for s in instructions.rows("sm_90a")} == {"mma", "wgmma"}
    for arch in ("sm_80", "sm_100a"):
        assert {s.instruction for s in instructions.rows(arch)} == {"mma"}
        with pytest.raises(device.GpuError, match="wgmma"):
            compiler.compile(instructions.source(mma.spec("hopper", "fp16")), arch)


@needs_compiler
def test_a_compilation_error_is_reported_with_the_compilers_messages():
    with pytest.raises(device.GpuError, match=r"odd\.cu\(1\).*undefined"):
        compiler.compile('extern "C" __global__ void f() { undefined(); }', "sm_80", name="odd.cu")


@needs_compiler
@pytest.mark.parametrize(
    ("constant", "value", "reason", "scheme"),
    [
        ("TILE_N", 40, "the epilogue stores 16 at a time", "staged"),
        ("STAGES", 2, "holds all stages of a block while the producer fills the next", "staged"),
        ("STAGES", 3, "corrections: all its stages", "legemm"),
        ("STAGES", 64, "shared memory of a thread block", "staged"),
        ("CLUSTER", 4, "clusters of one or two thread blocks", "staged"),
        ("MATH_WARPGROUPS", 3, "two warpgroups", "staged"),
    ],
)
def test_a_tile_constant_that_a_kernel_does_not_support_stops_the_compiler(constant, value, reason, scheme):
    schedule = schedules.schedule(build(scheme, {}).lowering(mma.spec("hopper", "fp16")))
    text, count = re.subn(
        rf"(int {constant}) = \d+;", rf"\1 = {value};", schedules.source(schedule, schedules.Tile(32))
    )
    assert count == 1
    with pytest.raises(device.GpuError, match=reason):
        compiler.compile(text, "sm_90a")


def in_slices(tile):
    schedule = schedules.schedule(build("staged", {}).lowering(mma.spec("hopper", "fp16"), KOrder(split=512)))
    return [schedules.source(schedule, tile, spread=True), schedules.reduction(tile)]


TEXTS = {
    "copies": ("sm_80", lambda: [compiler.kernel_source("strided_copy.cu")]),
    "outputs of NaN": ("sm_80", lambda: [compiler.kernel_source("nonfinite_outputs.cu")]),
    "chains of fmas": ("sm_80", lambda: [ordinary.source("double", KOrder(split=7, join="pairwise"))]),
    "words of ootomo": ("sm_80", lambda: [splitting.source(build("ootomo", {}).rules())]),
    "words of bf16x3": ("sm_90a", lambda: [splitting.source(build("bf16x3", {}).rules())]),
    "words of ootomo-tf32": ("sm_100a", lambda: [splitting.source(build("ootomo-tf32", {}).rules())]),
    "slices, 128 columns": ("sm_90a", lambda: in_slices(schedules.Tile(128, cluster=1))),
    "slices, 64 rows": ("sm_90a", lambda: in_slices(schedules.Tile(32, cluster=1, rows=64))),
    **{
        f"staged-int8, {columns} columns": ("sm_90a", lambda c=columns: [staged_int8.source(c, 2, 1, False)])
        for columns in (min(staged_int8.COLUMNS), max(staged_int8.COLUMNS))
    },
}


@needs_compiler
@pytest.mark.parametrize("name", TEXTS)
def test_the_kernels_of_products_compile(name):
    arch, texts = TEXTS[name]
    for text in texts():
        assert machine(compiler.compile(text, arch)) == int(re.sub(r"\D", "", arch))


def python(code, folder, *arguments):
    """The output of a program whose cubins are saved in a folder."""
    environment = {**os.environ, "FPEMU_CACHE": str(folder)}
    head = "import sys\nfrom fpemu.gpu.runtime import compiler\n"
    command = [sys.executable, "-c", head + code, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout


@needs_compiler
def test_cubins_are_saved_and_a_changed_source_is_compiled_again(tmp_path):
    one, two = (f'extern "C" __global__ void f(int* x) {{ *x = {value}; }}' for value in (1, 2))
    code = 'sys.stdout.buffer.write(compiler.cubin(sys.argv[1], "sm_80"))'
    first = python(code, tmp_path, one)
    assert first[:4] == b"\x7fELF"
    assert (tmp_path / "cubins").stat().st_mode & 0o777 == 0o700
    assert python("compiler.compile = None\n" + code, tmp_path, one) == first  # from the folder
    assert python(code, tmp_path, two) != first


@needs_compiler
def test_sources_are_compiled_in_parallel_and_an_invalid_one_stops_none(tmp_path):
    sources = [f'extern "C" __global__ void f(int* x) {{ *x = {value}; }}' for value in ("1", "wrong", "3")]
    python('from benchmarks import compilation; compilation.compile_all(sys.argv[1:], "sm_80")', tmp_path, *sources)
    code = 'compiler.compile = None\nfor x in sys.argv[1:]: compiler.cubin(x, "sm_80")'
    python(code, tmp_path, sources[0], sources[2])
    with pytest.raises(subprocess.CalledProcessError):
        python(code, tmp_path, sources[1])


def test_every_row_of_the_catalog_has_an_instruction_or_raises_the_reason():
    named = set()
    for spec in mma.catalog.rows():
        narrow = str(spec.a_format) in ("e3m2", "e2m3", "e2m1")
        without = narrow or (spec.architecture in ("volta", "turing") and spec.shape == "m8n8k4")
        if spec.instruction in ("mma", "wgmma") and not without:
            named.add(instructions.instruction(spec).ptx)
            continue
        with pytest.raises(InputError, match=r"^[^\n]*fpemu\.gpu[^\n]*$"):
            instructions.instruction(spec)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in named
    assert "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2" in named
    assert "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" in named


@pytest.mark.parametrize("changes", [{"b_format": "bf16"}, {"k": 8, "block": 8}, {"a_format": "fp32"}])
def test_specifications_without_a_ptx_instruction_are_refused(changes):
    assert instructions.instruction(mma.spec("A100").replace(F=20)).ptx.startswith("mma.sync")
    assert "e4m3.e5m2" in instructions.instruction(mma.spec("ada", ("e4m3", "e5m2"), "fp16")).ptx
    with pytest.raises(InputError, match="not this one"):
        instructions.instruction(mma.spec("A100").replace(**changes))


def test_invalid_arguments_of_an_instruction_raise():
    with pytest.raises(InputError, match="no wgmma has n = 12"):
        instructions.instruction(mma.spec("H100"), n=12)
    with pytest.raises(InputError, match="no wgmma has n = 40"):
        instructions.instruction(mma.spec("H100", "int8"), n=40)
    with pytest.raises(InputError, match="only the int8"):
        instructions.instruction(mma.spec("H100"), saturate=True)
    with pytest.raises(InputError, match="n is for wgmma"):
        instructions.instruction(mma.spec("A100"), n=8)
    with pytest.raises(InputError, match="not this one"):
        instructions.instruction(mma.spec("B200"))
    with pytest.raises(InputError, match="takes K = 16"):
        instructions.execute(np.zeros((2, 8)), np.zeros((8, 2)), None, mma.spec("A100"))
    with pytest.raises(InputError, match="do not share K"):
        instructions.execute(np.zeros((2, 16)), np.zeros((8, 2)), None, mma.spec("A100"))


def test_the_memory_of_a_batch_is_limited_in_whole_tiles(monkeypatch):
    outputs = []

    def collect(run, shape, dtype):
        outputs.append(int(np.prod(shape)))
        return np.zeros(shape, dtype)

    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "arch", lambda: "sm_80")
    monkeypatch.setattr(device, "Buffer", Buffer)
    monkeypatch.setattr(device, "collect", collect)
    monkeypatch.setattr(instructions, "_OUTPUTS", 1024)
    instructions.execute(np.zeros((40, 1, 16)), np.zeros((16, 1)), None, mma.spec("A100"))
    assert sum(outputs) == 40 * 16 * 8
    assert max(outputs) <= 1024


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp32", "fp64", "e4m3", "e5m2"])
def test_codes_are_the_patterns_that_values_came_from(name):
    from fpemu import formats

    fmt = formats.get(name)
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 1 << min(fmt.width, 63), 20000, dtype=np.uint64).astype(fmt.code_dtype)
    raw = raw[~np.isnan(fmt.decode(raw))] if name == "e5m2" else raw
    values = raw.view(fmt.dtype) if name in ("fp16", "tf32", "fp32", "fp64") else fmt.decode(raw)
    np.testing.assert_array_equal(instructions.codes(values, fmt), raw)


def test_importing_the_subpackage_loads_no_cuda():
    code = "import sys, fpemu.gpu; sys.exit(any(m.split('.')[0] == 'cuda' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
