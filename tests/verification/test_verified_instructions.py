"""Outputs of an H200 computed again: the record of a verification, and outputs that settled open questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fpemu import _system, mma
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.instructions import run
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.verification import instructions
from fpemu.verification.instructions import SAMPLE
from fpemu.verification.records import Record
from tests import golden, oracle
from tests.emulation_on_cpu import HostLibrary
from tests.hostile import FACTOR, bits, integers

FILE = Path(__file__).parents[1] / "data" / "verified" / "h200_instructions.json"
RECORD = Record.read(FILE)
LATER = "hopper mma m16n8k4 fp64->fp64"  # verified after this record: 1,000,001,280 outputs, 0 mismatches
ROWS = {row.name: row for row in run.rows("sm_90a") if row.name != LATER}
KINDS = list(streams.CLASSES)
entries = pytest.mark.parametrize("entry", RECORD.outcomes, ids=[entry.group for entry in RECORD.outcomes])


def test_every_instruction_of_hopper_is_recorded_with_a_billion_outputs():
    assert sorted(entry.group for entry in RECORD.outcomes) == sorted(ROWS)
    assert RECORD.facts == {"sample_tests": SAMPLE, "classes": KINDS}
    assert RECORD.device.keys() == {"gpu", "arch", "driver_cuda", "nvrtc", "driver"}
    assert RECORD.ok
    assert FILE.stat().st_size < 80_000
    assert RECORD.text() == FILE.read_text()


@entries
def test_the_counts_of_a_record_agree_and_its_first_tests_have_the_recorded_digests(entry):
    row, facts = ROWS[entry.group], entry.facts
    tile = run.instruction(row)
    assert (facts["ptx"], facts["tile"]) == (tile.ptx, [tile.m, tile.n])
    assert entry.outputs >= 10**9
    assert entry.outputs % (tile.m * tile.n * len(KINDS)) == 0
    assert all(list(x) == KINDS for x in (entry.digests, facts["samples"], facts["trial"]))
    assert {kind: instructions.replay(row, kind, RECORD.seed, facts["tile"]) for kind in KINDS} == facts["samples"]


@pytest.fixture(scope="module")
def library():
    return HostLibrary(list(ROWS.values()))


@pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
@entries
def test_digests_of_the_hardware_are_those_of_the_emulation(entry, library):
    """A class of each instruction, all with FPEMU_EXAMPLES above 1: the CUDA text compiled for this processor."""
    row, (m, n), facts = ROWS[entry.group], entry.facts["tile"], entry.facts
    tests = facts["trial_outputs"] // (len(KINDS) * m * n)
    turn = RECORD.outcomes.index(entry)
    for kind in KINDS if FACTOR > 1 else [KINDS[turn % len(KINDS)]]:
        drawn = [recipe.numbers() for recipe in streams.recipes(row, kind)]
        A, B, C = (
            library.generate(row, which, drawn[which], RECORD.seed, KINDS.index(kind), 0, tests, rows)
            for which, rows in enumerate((m, n, m))
        )
        assert _system.digest_text(library.execute(A, B, C, row)) == facts["trial"][kind], kind


@pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("entry", [e for e in RECORD.outcomes if "widths" in e.facts], ids=lambda entry: entry.group)
def test_every_width_of_a_wgmma_gives_the_recorded_digest(entry, library):
    row, recorded = ROWS[entry.group], entry.facts["widths"]
    assert list(recorded) == [str(n) for n in run.widths(row)]
    some = run.widths(row) if FACTOR > 1 else [16, 256]
    for n in some:
        drawn = [streams.operands(row, kind, RECORD.seed, 0, 1, 64, n) for kind in ("any-bits", "mixed", "leftover")]
        A, B, C = (np.concatenate(x) for x in zip(*drawn, strict=True))
        assert _system.digest_text(library.execute(A, B, C, row)) == recorded[str(n)]


# --- settled questions: tests/data/h200_settled.npz
with np.load(golden.DATA / "h200_settled.npz") as settled:
    SETTLED = {key: settled[key] for key in settled.files}
GROUPS = sorted({key.rpartition("/")[0] for key in SETTLED if not key.startswith("directed/")})
SHORT = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "s8": "int8", "s32": "int32", "e4m3": "e4m3", "e5m2": "e5m2"}
BACKENDS = ["compiled", "numpy"]


def spec_of(name):
    """``mma.m16n8k32.f16.e4m3.e5m2``: the instruction; m16n8k4 of fp64 is no row of the catalog but like the others."""
    instruction, shape, d, a, b = name.replace(".satfinite", "").split(".")
    k = int(shape.rpartition("k")[2])
    if shape == "m16n8k4" and a == "f64":
        return mma.spec("hopper", "fp64", "fp64", instruction, 8).replace(k=4, shape=shape)
    return mma.spec("hopper", (SHORT[a], SHORT[b]) if a != b else SHORT[a], SHORT[d], instruction, k)


def group(name):
    return [SETTLED[f"{name}/{what}"] for what in "ABCD"]


def by_rows(A, B, C, spec, backend):
    """Codes of D; B is stored by its columns."""
    a, b, c = (mma_codes.values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    D = mma.execute(a, b.swapaxes(-1, -2), c, spec, backend=backend)
    return mma_codes.codes(D, spec.d_format)


def test_the_settled_questions_are_all_there():
    kinds = {
        kind: {name.partition("/")[0] for name in GROUPS if name.endswith(f"/{kind}")}
        for kind in ("overflow", "classes", "nan-alone", "nan-many", "nan-crowded", "large-ends", "cancel-ends")
    }
    assert {kind: len(names) for kind, names in kinds.items()} == {
        "overflow": 8,
        "classes": 22,
        "nan-alone": 4,
        "nan-many": 4,
        "nan-crowded": 4,
        "large-ends": 4,
        "cancel-ends": 4,
    }
    for name in kinds["overflow"]:
        D = group(f"{name}/overflow")[3]
        assert ((D & 0x7FFF) == 0x7C00).mean() > 0.2  # Inf
        assert (D == 0x7FFF).mean() > 0.1
    assert (golden.DATA / "h200_settled.npz").stat().st_size < 400_000
    assert sum(path.stat().st_size for path in golden.DATA.rglob("*.np*")) < 4_000_000


def test_the_settled_outputs_are_cut_from_those_at_hand(monkeypatch):
    if golden.folder() is None or not (golden.folder() / "execute.npz").is_file():
        pytest.skip("the complete outputs are not at hand")
    monkeypatch.syspath_prepend(str(golden.DATA))
    from tests.data.make_settled import subset

    cut = subset(golden.folder())
    assert sorted(cut) == sorted(SETTLED)
    assert all(np.array_equal(cut[key], SETTLED[key]) for key in cut)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in GROUPS if "satfinite" not in name])
def test_settled_outputs_are_the_emulations(name, backend):
    A, B, C, D = group(name)
    got = by_rows(A, B, C, spec_of(name.partition("/")[0]), backend)
    assert got.dtype == D.dtype
    assert (got == D).all(), f"{(got != D).sum()} of {D.size} differ"


@pytest.mark.parametrize("name", [name for name in GROUPS if "/nan-" in name])
def test_the_oracle_gives_the_recorded_payloads(name):
    spec = spec_of(name.partition("/")[0])
    ins = oracle.TABLE["hopper", "mma", "fp64", "fp64", spec.k]
    A, B, C, D = group(name)
    for t, m, n in np.argwhere(np.isnan(D.view(np.float64)))[::7]:
        assert ins.run(integers(A[t, m]), integers(B[t, n]), int(C[t, m, n])) == D[t, m, n], (t, m, n)


@pytest.mark.parametrize("name", [name for name in GROUPS if "satfinite" in name])
def test_satfinite_stops_once_at_the_ends_of_int32(name):
    A, B, C, D = group(name)
    exact = C.view(np.int32) + A.view(np.int8).astype(np.int64) @ B.view(np.int8).astype(np.int64).swapaxes(-1, -2)
    assert (np.clip(exact, -(2**31), 2**31 - 1) == D.view(np.int32)).all()
    if "large" in name:
        assert (exact.astype(np.int32) != D.view(np.int32)).any()


QUIET, SIGNALLING, THIRD, INF, ONE = (x << 32 for x in (0x7FF80000, 0x7FF00000, 0x7FF80000, 0x7FF00000, 0x3FF00000))
QUIET, SIGNALLING, THIRD, MINUS = QUIET | 0x12345, SIGNALLING | 0x54321, THIRD | 0xABCDEF0, 1 << 63
DIRECTED = [  # a, b, c: one NaN, or one invalid product, at a time
    (QUIET, ONE, ONE),
    (QUIET | MINUS, ONE, ONE),
    (SIGNALLING, ONE, ONE),
    (ONE, QUIET, ONE),
    (ONE, QUIET | MINUS, ONE),
    (ONE, SIGNALLING, ONE),
    (ONE, ONE, QUIET),
    (ONE, ONE, QUIET | MINUS),
    (ONE, ONE, SIGNALLING),
    (QUIET, THIRD, ONE),
    (THIRD, QUIET, ONE),
    (QUIET, ONE, THIRD),
    (ONE, QUIET, THIRD),
    (QUIET, THIRD, SIGNALLING),
    (SIGNALLING, ONE, THIRD),
    (QUIET, ONE, SIGNALLING),
    (INF, 0, ONE),
    (0, INF, ONE),
    (INF | MINUS, 0, ONE),
    (INF, 0, QUIET),
    (INF, ONE, INF | MINUS),
    (INF | MINUS, ONE, INF),
    (QUIET, 0, 0),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", ["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"])
def test_one_nan_at_a_time_and_at_every_k(shape, backend):
    spec = spec_of(f"mma.{shape}.f64.f64.f64")
    k, recorded = spec.k, SETTLED[f"directed/mma.{shape}.f64.f64.f64"][: len(DIRECTED)]
    A, B, C = (np.zeros((len(DIRECTED), k, *tail), np.uint64) for tail in ((1, k), (1, k), (1, 1)))
    for i, (a, b, c) in enumerate(DIRECTED):
        for j in range(k):
            A[i, j, 0, j], B[i, j, 0, j], C[i, j] = a, b, c
    assert (by_rows(A, B, C, spec, backend)[..., 0, 0] == recorded).all()
    assert len(np.unique(recorded)) == 5  # three payloads, one of them with both signs, and that of an invalid step


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_payload_goes_from_instruction_to_instruction_and_is_lost_in_additions_outside(backend):
    spec = mma.spec("hopper", "fp64", "fp64")
    A, B = np.ones((1, 64)), np.ones((64, 1))
    A[0, 40], B[3, 0] = np.array([SIGNALLING, QUIET | MINUS], np.uint64).view(np.float64)
    chained = bits(mma.gemm(A, B, None, spec, backend=backend)).item()
    assert chained == QUIET | MINUS  # of c by then, which goes before a
    B[63, 0] = np.array(THIRD, np.uint64).view(np.float64)
    assert bits(mma.gemm(A, B, None, spec, backend=backend)).item() == THIRD
    for order in (mma.KOrder(split=32), mma.KOrder(promote=32)):
        assert bits(mma.gemm(A, B, None, spec, order, backend=backend)).item() == spec.nan_code
