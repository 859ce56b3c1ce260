"""The CUDA form of every arithmetic, compiled for this machine, and its operands: equal to NumPy's without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fpemu import _system, mma
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler, device
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import code_dtype, codes, values
from fpemu.verification import instructions as verify
from fpemu.verification import reproducers
from tests import hostile
from tests.emulation_on_cpu import HostLibrary

ROWS = [row for row in mma.catalog.rows() if row.has_cuda]
DISTINCT = list({emulation.definition(row): row for row in reversed(ROWS)}.values())[::-1]  # one of each arithmetic
WGMMA = mma.spec("H200", "fp16", "fp32")
SEED = 0xFEDCBA9876543210

needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
needs_gpu = pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))


def names(rows):
    return [row.name for row in rows]


@pytest.fixture(scope="module")
def library():
    spoilt = WGMMA.replace(F=WGMMA.F - 1)
    return HostLibrary([*DISTINCT, spoilt], optimise=False)


def draw(fmt, kind, rng, shape):
    if isinstance(fmt, str):
        return rng.integers(0, 2 ** (8 * code_dtype(fmt).itemsize), shape).astype(code_dtype(fmt))
    return hostile.draw(str(fmt), kind, rng, shape)


def numpy_codes(A, B, C, spec):
    a, b, c = (values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    return codes(mma.execute(a, b.swapaxes(-1, -2), c, spec, backend="numpy"), spec.d_format)


# --- the arithmetic
def assert_equal(library, spec, tests, seed):
    """Compare with NumPy on hostile operands."""
    for number, kind in enumerate(hostile.CLASSES):
        rng = np.random.default_rng([number, *seed])
        shapes = ((tests, 16, spec.k), (tests, 8, spec.k), (tests, 16, 8))
        A, B, C = (draw(f, kind, rng, s) for f, s in zip(streams.formats(spec), shapes, strict=True))
        assert np.array_equal(library.execute(A, B, C, spec), numpy_codes(A, B, C, spec)), f"{spec} {kind}"


@needs_compiler
@pytest.mark.parametrize("spec", DISTINCT, ids=names(DISTINCT))
def test_the_cuda_implementation_equals_the_numpy_reference(spec, library):
    assert_equal(library, spec, 1 if str(spec.a_format) == "fp64" else 2, spec.name.encode())
    for kind in streams.CLASSES:
        A, B, C = streams.operands(spec, kind, SEED, 5, 1, 16, 8)
        assert np.array_equal(library.execute(A, B, C, spec), numpy_codes(A, B, C, spec)), kind


@needs_compiler
def test_mixed_formats_and_fields_outside_of_the_catalogue():
    base = mma.spec("ampere")
    specs = [
        mma.spec("ada", ("e4m3", "e5m2"), "fp16"),
        base.replace(E0=None),
        base.replace(F=35, final="RNE"),
        base.replace(F=1, fraction_bits=5),
        base.replace(a_format="fp32", b_format="bf16", block=1),
        mma.spec("ideal").replace(final="RZ"),
        mma.spec("ideal").replace(a_format="fp32", b_format="fp32"),
        mma.MmaSpec("fp16", "fp16", "fp16", k=4, block=1, arithmetic="fma"),
    ]
    library = HostLibrary(specs, optimise=False)
    for spec in specs:
        assert_equal(library, spec, 1, [1])


@needs_compiler
def test_infinities_of_a_format_without_negative_zero_have_signs():
    fmt = FloatFormat("e3m1", 2, -2, 3, negative_zero=False)
    spec = mma.spec("ampere").replace(a_format=fmt)
    A, B, C = (np.zeros((1, *shape), dtype) for shape, dtype in (((16, 16), "u1"), ((8, 16), "u2"), ((16, 8), "u4")))
    A[0, :3, 0], B[:] = fmt.encode(np.array([-np.inf, np.inf, -1.0])), 0x3C00  # 1.0
    want = numpy_codes(A, B, C, spec)
    assert want[0, :3, 0].tolist() == [0xFF800000, 0x7F800000, 0xBF800000]
    assert np.array_equal(HostLibrary([spec], optimise=False).execute(A, B, C, spec), want)


@needs_compiler
def test_another_number_of_fraction_bits_is_detected(library):
    A, B, C = streams.operands(WGMMA, "uniform", SEED, 0, 4, 16, 8)
    spoilt = WGMMA.replace(F=WGMMA.F - 1)
    assert (library.execute(A, B, C, WGMMA) != library.execute(A, B, C, spoilt)).any()


# --- the operands
# known answers of the generator's authors (Random123): counter, key, words
PHILOX = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), PHILOX)
def test_philox_matches_its_authors_known_answers(counter, key, expected):
    assert tuple(streams.philox(np.array(counter, np.uint32), key).tolist()) == expected


@needs_compiler
@pytest.mark.parametrize("spec", DISTINCT, ids=names(DISTINCT))
def test_cuda_and_numpy_draw_the_same_operands(spec, library):
    first = 2**32 - 1  # the second test's number does not fit into one word
    shapes = {"A": (16, spec.k), "B": (8, spec.k), "C": (16, 8)}
    for number, kind in enumerate(streams.CLASSES):
        for which, (letter, shape) in enumerate(shapes.items()):
            recipe = streams.recipes(spec, kind)[which].numbers()
            theirs = library.generate(spec, which, recipe, SEED, number, first, 2, shape[0])
            assert np.array_equal(streams.operand(spec, letter, kind, SEED, first, 2, *shape), theirs), (kind, letter)


def test_the_operands_of_a_test_do_not_depend_on_the_batch():
    many = streams.operands(WGMMA, "mixed", 3, 10, 5, 64, 8)
    alone = streams.operands(WGMMA, "mixed", 3, 12, 1, 64, 8)
    assert all(np.array_equal(x[2], y[0]) for x, y in zip(many, alone, strict=True))
    other = streams.operands(WGMMA, "mixed", 4, 12, 1, 64, 8)
    assert all((x != y).any() for x, y in zip(alone, other, strict=True))


FLOATS = [
    row for row in instructions.rows("sm_90a") if row.arithmetic in ("truncated", "via-half")
]  # what the papers and the GPU are about


@pytest.mark.parametrize("spec", FLOATS, ids=names(FLOATS))
def test_every_operand_class_covers_its_purpose(spec):
    def results(kind):
        A, B, C = streams.operands(spec, kind, 1, 0, 6, 16, 8)
        A, B = (x >> (p := spec.operand_formats[0].padding) << p for x in (A, B))  # the low bits of tf32 mean nothing
        given = zip(
            (A, B, C, verify.execute_codes(A, B, C, spec)), (*streams.formats(spec), spec.d_format), strict=True
        )
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return [values(x, fmt).astype(np.float64) for x, fmt in given]

    emin = spec.operand_formats[3].emin
    for kind in streams.CLASSES:
        a, b, c, d = results(kind)
        if kind == "any-bits":
            assert 0.02 < np.isnan(d).mean() < 0.7
            assert np.isfinite(d).mean() > 0.2
            assert np.isnan(a).any()
        else:
            assert np.isfinite(a).all()
            assert np.isfinite(b).all()
            assert np.isfinite(c).all()
        if kind not in ("any-bits", "finite", "large"):
            assert np.isfinite(d).mean() > 0.9, kind
        if kind == "uniform":
            assert (abs(a) < 1).all()
            assert (abs(a) >= 0.5).mean() > 0.4
        if kind == "large" and (emin == -14 or spec.operand_formats[0].emax > 100):  # sums of fp16 end at 2^37
            assert np.isinf(d).any()
        if kind in ("sparse", "zeros"):
            assert (a == 0).mean() > 0.5
        if kind == "deep" and spec.operand_formats[0].emin < -100:
            assert ((abs(d) < 2.0**emin) & (d != 0)).any()
        if kind in ("cancel", "leftover"):
            exact = c + a @ b.swapaxes(-1, -2)  # near enough
            assert (d[exact != 0] != 0).any()
            assert (abs(exact) < 0.5 * (abs(a) @ abs(b).swapaxes(-1, -2))).mean() > (0.7 if spec.k >= 8 else 0.3)


def test_unknown_classes_are_named():
    with pytest.raises(InputError, match="uniform"):
        streams.recipes(WGMMA, "unifrom")


# --- failures
def hunt(spec, fake, kind):
    """The first output on which another spec, in the hardware's place, differs; and that hardware."""

    def hardware(A, B, C, spec):
        return mma.execute(A, B, C, fake, backend="numpy")

    tile = instructions.instruction(spec)
    A, B, C = streams.operands(spec, kind, SEED, 0, 8, tile.m, tile.n)
    theirs, ours = verify.execute_codes(A, B, C, fake).reshape(-1), verify.execute_codes(A, B, C, spec).reshape(-1)
    index = int(np.flatnonzero(theirs != ours)[0])
    failure = reproducers.locate(spec, kind, SEED, (tile.m, tile.n), index, int(theirs[index]))
    return failure, hardware, int(ours[index])


@pytest.mark.parametrize("kind", ["any-bits", "finite", "leftover", "near-one", "deep"])
def test_a_mismatch_is_reproduced_from_its_index_and_reduced(kind):
    failure, hardware, ours = hunt(WGMMA, WGMMA.replace(F=24), kind)
    assert failure.emulated == ours != failure.hardware
    small = reproducers.shrink(failure, hardware)
    assert small.hardware != small.emulated
    terms = [sum(map(bool, np.multiply(x.a, x.b, dtype=object))) + bool(x.c) for x in (small, failure)]
    assert terms[0] <= 3 <= terms[1]
    again = reproducers.locate(WGMMA, kind, SEED, (64, 8), 0, 0)  # its operands in the places of the small ones
    alone = replace(again, a=small.a, b=small.b, c=small.c)
    assert reproducers.shrink(replace(alone, hardware=small.hardware, emulated=small.emulated), hardware) == replace(
        small, where=again.where
    )
    text = reproducers.describe(small)
    assert f"0x{small.hardware:08x}" in text
    assert f"0x{small.emulated:08x}" in text
    assert "F = 25" in text


def test_the_picture_shows_the_effect_of_each_rounding_rule():
    a, b = np.zeros(16, np.float16), np.zeros(16, np.float16)
    a[:4], b[:4] = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1, 1, 1]
    operands = (tuple(x.view(np.uint16).tolist()) for x in (a, b))
    failure = reproducers.Mismatch(WGMMA, *operands, int(np.float32(2**23).view(np.uint32)), 0, 0xBF400000)
    rows = reproducers.describe(failure).splitlines()
    assert "  block 1 of 1: largest exponent 23, F = 25: truncated below 2^-2" in rows
    lost = next(row for row in rows if "-0.125" in row.replace("−", "-") and "exponent" in row)
    assert lost.endswith("kept 0")  # the eighth lies below the grid
    assert any("sum" in row and row.endswith("-0.75") for row in rows)


def test_converted_fp8_is_shown_as_its_two_half_precision_blocks():
    spec = mma.spec("hopper", "e4m3", "fp16", instruction="mma")
    failure, hardware, _ = hunt(spec, spec.replace(arithmetic="truncated"), "uniform")
    text = reproducers.describe(reproducers.shrink(failure, hardware))
    assert "block 2 of 2" in text
    assert "then c is added" in text


# --- the kernels around the instruction
@needs_nvrtc
@pytest.mark.parametrize("spec", [WGMMA, mma.spec("hopper", "int8"), mma.spec("hopper", "fp64")], ids=str)
def test_the_verification_compiles_for_hopper(spec):
    assert len(compiler.compile(verify.source(spec), "sm_90a")) > 1000


def test_the_digest_depends_on_every_bit_and_its_place():
    D = np.arange(64, dtype=np.uint32).reshape(4, 16)
    whole = _system.digest(D)
    assert whole == (_system.digest(D[:2]) + _system.digest(D[2:], first=32)) % 2**64
    assert whole != _system.digest(D[::-1])
    assert whole != _system.digest(D ^ np.uint32(1 << 31))


@needs_gpu
def test_a_wrong_specification_is_detected_on_the_gpu():
    wrong = WGMMA.replace(F=24)
    found = verify.verify(wrong, outputs=10**5, seed=3)
    assert found.mismatches > 0
    first = next(verify.failures(found, WGMMA, 3))
    assert first.hardware == first.emulated  # by the right specification


@needs_gpu
@pytest.mark.parametrize("spec", FLOATS if device.missing() is None else [], ids=str)
def test_the_gpu_agrees_with_the_catalogue(spec):
    if spec.architecture != mma.catalog.architecture(device.arch()) or spec.evidence != "measured":
        pytest.skip(f"{spec}: not this GPU's, or not measured")
    found = verify.verify(spec, outputs=10**6, seed=11)
    assert found.mismatches == 0, reproducers.describe(next(verify.failures(found, spec, 11)))
