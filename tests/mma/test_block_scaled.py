"""Block-scaled instructions: an oracle in fractions, the NumPy, compiled and CUDA implementations, and refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fpemu import E4M3, E8M0, InputError, mma
from fpemu.gpu.emulation import specification as emulation
from fpemu.mma import KOrder
from fpemu.mma.codes import values
from tests.cuda_on_cpu import processor
from tests.emulation_on_cpu import HostLibrary
from tests.equal import same

__all__ = ["processor"]
ROWS = mma.catalog.block_scaled()[:8]
MIXED = mma.spec("RTX 5090", ("e5m2", "e2m3"), scale="ue8m0")
ALL = [*ROWS, MIXED, *(ROWS[0].replace(E0=None, final="RNE", name="RNE"), ROWS[7].replace(E0=None, F=12, name="F12"))]
IDS = [spec.name for spec in ALL]
FORMATS = {"e4m3": (3, 7), "e5m2": (2, 15), "e3m2": (2, 3), "e2m3": (3, 1), "e2m1": (1, 1), "fp32": (23, 127)}
CLASSES = ("ordinary", "any scale", "small", "cancel", "specials")
needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")


# --- the oracle: Fractions and codes, from the specification
def number(code, name):
    """Value and exponent of a code; "nan", "+inf" or "-inf" in place of the value."""
    fraction_bits, bias = FORMATS[name]
    width = {"fp32": 32, "e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4}[name]
    sign, rest = code >> (width - 1), code & ((1 << (width - 1)) - 1)
    field, fraction = rest >> fraction_bits, rest & ((1 << fraction_bits) - 1)
    if (name == "e4m3" and rest == 127) or (
        name in ("e5m2", "fp32") and field == (1 << (width - 1 - fraction_bits)) - 1
    ):
        return ("nan" if fraction else "-inf" if sign else "+inf"), None
    e = max(field, 1) - bias
    value = Fraction(fraction + (1 << fraction_bits if field else 0), 1 << fraction_bits) * Fraction(2) ** e
    return (-value if sign else value), e


def scale_of(code, name):
    """Significand and exponent of a scale, None for NaN."""
    if name == "ue8m0":
        return None if code == 255 else (Fraction(1), code - 127)
    code &= 127
    field = code >> 3
    return None if code == 127 else (Fraction((code & 7) + 8 * (field > 0), 8), max(field, 1) - 7)


def rounded(x, nearest):
    """The fp32 code of x: toward zero with overflow to Inf, or to nearest even; a zero is +0."""
    size = abs(x)
    if not size:
        return 0
    e = -126
    while Fraction(2) ** (e + 1) <= size:
        e += 1
    if e > 127:
        n, e = 1 << 24, 127
    else:
        steps = size / Fraction(2) ** (e - 23)
        n = int(steps)
        n += nearest and (steps - n > Fraction(1, 2) or (steps - n == Fraction(1, 2) and n % 2 == 1))
    code = ((e + 126) << 23) + n
    return (code | 1 << 31) if x < 0 and n else code


def oracle(a, b, c, scale_a, scale_b, spec):
    """The code of one output of one instruction."""
    A, B = [number(x, str(spec.a_format)) for x in a], [number(x, str(spec.b_format)) for x in b]
    C, e_c = number(c, "fp32")
    scales = [(scale_of(x, spec.scale), scale_of(y, spec.scale)) for x, y in zip(scale_a, scale_b, strict=True)]
    found = {C} if isinstance(C, str) else set()
    for (x, _), (y, _) in zip(A, B, strict=True):
        if isinstance(x, str) or isinstance(y, str):
            nan = "nan" in (x, y) or 0 in (x, y)
            negative = sum(v == "-inf" if isinstance(v, str) else v < 0 for v in (x, y)) == 1
            found.add("nan" if nan else "-inf" if negative else "+inf")
    if any(None in pair for pair in scales) or "nan" in found or len(found) == 2:
        return 0x7FFFFFFF
    if found:
        return 0x7F800000 | (found == {"-inf"}) << 31
    terms = [(C, e_c)]
    if spec.k == 32:
        (one, shift_a), (_, shift_b) = scales[0]
        assert one == 1
        shift = shift_a + shift_b
        terms += [(x * y * Fraction(2) ** shift, e + f + shift) for (x, e), (y, f) in zip(A, B, strict=True)]
    else:
        for first in range(0, 64, 16):
            (s, e), (t, f) = scales[first // spec.scale_block]
            total = sum(A[k][0] * B[k][0] for k in range(first, first + 16))
            terms.append((total * s * t * Fraction(2) ** (e + f), e + f))
    top = max([e for x, e in terms if x] + [-2000 if spec.E0 is None else spec.E0])
    unit = Fraction(2) ** (top - spec.F)
    return rounded(sum(int(x / unit) for x, _ in terms) * unit, spec.final == "RNE")


# --- operands
def draw(spec, kind, rng, M, N, K):
    """Codes of A (M, K), B (N, K), C (M, N), and of the scales (M, blocks) and (N, blocks)."""
    blocks = -(-K // spec.scale_block)
    A, B = (rng.integers(0, 1 << f.width, (n, K)).astype(np.uint8) for f, n in ((spec.a_format, M), (spec.b_format, N)))
    if kind != "specials":
        for x, f in ((A, spec.a_format), (B, spec.b_format)):
            x[~np.isfinite(f.decode(x))] = 1
    if kind == "cancel":
        half = K // 2
        A[:, half : 2 * half], B[:, half : 2 * half] = A[:, :half] ^ (1 << (spec.a_format.width - 1)), B[:, :half]
    middle, most = (127, 254) if spec.scale == "ue8m0" else (56, 126)
    low, high = {"ordinary": (middle - 4, middle + 4), "cancel": (middle, middle)}.get(kind, (0, most))
    if kind == "small":
        low, high = (60, 70) if spec.scale == "ue8m0" else (0, 9)
    SA, SB = (rng.integers(low, high + 1, (n, blocks)).astype(np.uint8) for n in (M, N))
    if kind == "specials":
        SA[0], SB[-1] = (255 if spec.scale == "ue8m0" else 127), middle
    if spec.scale == "ue4m3":
        SB |= (rng.integers(0, 2, SB.shape) << 7).astype(np.uint8)  # the ignored sign
    wide = (rng.integers(0, 255, (M, N)), rng.integers(127 - 40, 127 + 12, (M, N)))[kind in ("ordinary", "cancel")]
    C = (rng.integers(0, 2, (M, N)) << 31 | wide << 23 | rng.integers(0, 1 << 23, (M, N))).astype(np.uint32)
    if kind == "small":
        C[:] &= 0x80FFFFFF
    C[rng.random((M, N)) < 0.2] = 0
    if kind == "specials":
        C[1, :3] = 0x7F800000, 0xFF800000, 0x7FC00001
    return A, B, C, SA, SB


def arrays(spec, drawn):
    A, B, C, SA, SB = drawn
    fmt = E8M0 if spec.scale == "ue8m0" else E4M3
    a, b = values(A, spec.a_format), values(B, spec.b_format).T
    return (a, b, C.view(np.float32)), {"scale_a": fmt.decode(SA), "scale_b": fmt.decode(SB).T}


@pytest.mark.parametrize("spec", ALL, ids=IDS)
def test_an_instruction_is_the_sum_in_fractions(spec):
    for number_, kind in enumerate(CLASSES):
        drawn = draw(spec, kind, np.random.default_rng([7, number_]), 6, 5, spec.k)
        A, B, C, SA, SB = (x.tolist() for x in drawn)
        want = [[oracle(A[i], B[j], C[i][j], SA[i], SB[j], spec) for j in range(5)] for i in range(6)]
        operands, scales = arrays(spec, drawn)
        for backend in ("compiled", "numpy"):
            D = mma.execute(*operands, spec, **scales, backend=backend)
            same(D, np.array(want, np.uint32).view(np.float32), what=f"{kind} {backend}")


@pytest.mark.parametrize("spec", ALL, ids=IDS)
def test_compiled_is_the_numpy_reference_in_any_order(spec):
    orders = (None, KOrder(promote=128), KOrder(split=64, join="pairwise"), KOrder(split=96, tile=64, promote=64))
    for number_, kind in enumerate(CLASSES):
        rng = np.random.default_rng([8, number_])
        operands, scales = arrays(spec, draw(spec, kind, rng, 9, 70, (5 * spec.k, 3 * spec.k + 7)[number_ % 2]))
        for order in orders:
            x, y = (mma.gemm(*operands, spec, order, **scales, backend=b) for b in ("compiled", "numpy"))
            same(x, y, what=f"{kind} {order}")


@needs_compiler
def test_the_cuda_implementation_on_codes_is_the_oracle_of_numpy():
    library = HostLibrary(ALL, optimise=False)
    for spec in ALL:
        for number_, kind in enumerate(CLASSES):
            drawn = draw(spec, kind, np.random.default_rng([9, number_]), 16, 8, spec.k)
            operands, scales = arrays(spec, drawn)
            A, B, C, SA, SB = drawn
            words = [np.concatenate(x, -1)[None] for x in ((A, SA), (B, SB))]
            D = library.execute(*words, C[None], spec)[0]
            same(D.view(np.float32), mma.execute(*operands, spec, **scales, backend="numpy"), what=f"{spec} {kind}")


@needs_compiler
def test_the_emulated_gemm_has_the_bits_of_the_numpy_reference(processor):
    processor()
    for spec in (ROWS[1], ROWS[5], ROWS[7], MIXED):
        for number_, kind in enumerate(CLASSES):
            rng = np.random.default_rng([10, number_])
            operands, scales = arrays(spec, draw(spec, kind, rng, 67, 5, 3 * spec.k + 7))
            for order in (None, KOrder(promote=64)):
                x = mma.gemm(*operands, spec, order, **scales, device="cuda")
                same(x, mma.gemm(*operands, spec, order, **scales, backend="numpy"), what=f"{spec} {kind}")


def test_stacks_vectors_and_missing_scales():
    spec, rng = ROWS[7], np.random.default_rng(3)
    a, b = values(rng.integers(0, 16, (2, 3, 128)).astype(np.uint8), spec.a_format), np.ones((128, 4), np.float32)
    scales = E4M3.decode(rng.integers(1, 120, (2, 3, 8)).astype(np.uint8))
    D = mma.gemm(a, b, None, spec, scale_a=scales)
    for i in range(2):
        same(D[i], mma.gemm(a[i], b, None, spec, scale_a=scales[i], scale_b=np.ones((8, 4))))
        same(D[i, 0], mma.gemm(a[i, 0], b, None, spec, scale_a=scales[i, 0]))
    chained = None
    for k in range(0, 128, 64):
        part = slice(k // 16, k // 16 + 4)
        chained = mma.execute(a[..., k : k + 64], b[k : k + 64], chained, spec, scale_a=scales[..., part])
    same(D, chained)


ONES = np.ones((1, 128), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: mma.spec("H200", "e4m3", scale="ue8m0"),
            "hopper has no block-scaled instruction; blackwell, blackwell",
        ),
        (lambda: mma.spec("B200", "e4m3", scale="ue4m3"), "no scale = ue4m3; it has ue8m0"),
        (lambda: mma.spec("B200", "fp16", scale="ue8m0"), "no a_format = fp16; it has e2m1, e2m3"),
        (lambda: mma.spec("B200", "e2m1", scale="ue4m3", scale_block=32), "no scale_block = 32; it has 16"),
        (lambda: mma.spec("B200", "e2m1", scale="e5m2"), "unknown scale 'e5m2'"),
        (lambda: mma.spec("B200", ("e2m1", "e4m3"), k=64, scale="ue8m0"), "no k = 32; it has 64"),
        (
            lambda: mma.spec("A100").replace(scale="ue8m0", scale_block=32),
            "have no effect in the arithmetic 'truncated'",
        ),
        (lambda: ROWS[0].replace(scale=None), "needs scale and scale_block"),
        (lambda: ROWS[0].replace(scale_block=16), "one for each block of at most 32"),
        (lambda: ROWS[7].replace(scale_block=8), "a scale for each 16, 32 or 64 k"),
        (lambda: ROWS[7].replace(a_format="e4m3"), "exactly for e2m1 operands"),
        (lambda: ROWS[0].replace(d_format="fp16"), "at most 8 bits, and fp32 results"),
        (lambda: mma.gemm(ONES, ONES.T, None, ROWS[0], scale_a=np.ones((1, 3))), r"needs \(1, 4\), a scale for 32 k"),
        (lambda: mma.gemm(ONES, ONES.T, None, ROWS[0], scale_a=np.full((1, 4), 3.0)), "not values of e8m0"),
        (lambda: mma.gemm(ONES, ONES.T, None, mma.spec("H200", "e4m3"), scale_b=ONES), "has no scales"),
        (
            lambda: mma.gemm(ONES, ONES.T, None, ROWS[0], KOrder(split=40), scale_a=np.ones((1, 4))),
            "divides K at 40: with scales, at multiples of 32",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_catalogue_rows_are_those_of_the_lookup():
    assert len(mma.catalog.block_scaled()) == 16
    for row in mma.catalog.block_scaled():
        found = mma.spec(row.architecture, row.a_format, k=row.k, scale=row.scale, scale_block=row.scale_block)
        assert (found, row.evidence) == (row, "documented")
        assert eval(repr(row), {"MmaSpec": mma.MmaSpec}).replace(name="x") == row.replace(
            name="x", architecture="custom", instruction="mma", shape="", source=""
        )
