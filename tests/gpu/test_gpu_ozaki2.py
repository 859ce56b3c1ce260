"""Ozaki scheme II by residue bytes: its steps on a processor, NumPy in the place of wgmma; its kernels; on a GPU."""

from __future__ import annotations

import ctypes
import math
import re
from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu.errors import InputError
from fpemu.gpu.emulation import specification
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree import hopper
from fpemu.gpu.errorfree.residues import ALL
from fpemu.gpu.gemm.wgmma.schedules import Tile
from fpemu.gpu.runtime import compiler, device, matrices
from fpemu.gpu.runtime.compiler import KERNELS
from fpemu.gpu.runtime.steps import Fill, Memory, Struct, pack
from fpemu.schemes.base import build, complex_dtype
from fpemu.schemes.call import validate
from fpemu.schemes.errorfree import crt
from tests import processor, simulated
from tests.gpu.test_gpu_hopper_on_cpu import LAUNCH, aligned
from tests.processor import matrix, view

work = processor.work

TILED = (0, 1, 7, 3, 8, 2, 4, 6, 10, 9, 5, 11)  # the order in memory of the axes of `Runner.multiply`


def untiled(out, tile):
    """Matrices (count, rows, columns) from their tiles in memory."""
    count, rows, columns = out.shape
    axes = (
        count,
        rows // tile.rows,
        2,
        tile.rows // 128,
        4,
        2,
        8,
        columns // tile.columns,
        tile.columns // 32,
        4,
        4,
        2,
    )
    stored = out.reshape([axes[i] for i in TILED])
    return stored.transpose(np.argsort(TILED)).reshape(out.shape)


def call_of(A, B, C=None, alpha=1.0, beta=0.0, **options):
    return validate(A, B, C, "ozaki2", "H200", alpha, beta, "raise", None, "cpu", options, form="4M")


class Runner:
    """Run the steps of a plan on this processor; NumPy multiplies the bytes."""

    def __init__(self, queue, matrices_, memory):
        self.queue, self.regions = queue, {}
        sizes = {"work": memory.nbytes["work"], "cleared": memory.nbytes["cleared"]}
        self.held = {name: np.full(n + 16, 0xA5, np.uint8) for name, n in sizes.items()}
        self.held["cleared"][:] = 0
        for name, X in matrices_.items():
            self.regions[name] = 0 if X is None else X.pointer
        self.regions |= {name: x.ctypes.data for name, x in self.held.items()}

    def place(self, address):
        return self.regions[address.region] + address.offset if hasattr(address, "region") else int(address)

    def run(self, step):
        if isinstance(step, Fill):
            return ctypes.memset(self.place(step.pointer), step.byte, step.nbytes)
        if step.kernel == "byte_gemm":
            return self.multiply(*step.arguments, step.module.source)
        library, values = self.queue.library(step.module.source), []
        for value in step.arguments:
            data, slots = pack(value)
            data = bytearray(data)
            for at, target in slots.items():
                data[at : at + 8] = self.place(target).to_bytes(8, "little")
            values.append(processor.parameter(np.frombuffer(bytes(data), f"V{len(data)}")[0]))
        sizes = step.grid if isinstance(step.grid, tuple) else (step.grid,)
        sizes = (*sizes, *(1,) * (3 - len(sizes)))
        for z, y, x in np.ndindex(*sizes[::-1]):
            library.set_block(x, y, z, *sizes)
            getattr(library, step.kernel)(*values)

    def multiply(self, a, b, product, text):
        """The product of a stack of bytes, by the layouts of kernels/byte_gemm.cu."""
        X, Y = (self.rows(m) for m in (a, b))
        C = [x @ y.T for x, y in zip(X, Y, strict=True)]
        if product["row_maxima"] != 0:
            for name, most in (("row_maxima", C[0].max(axis=1)), ("column_maxima", C[0].max(axis=0))):
                view(self.place(product[name]), most.shape, (1,), np.int32)[...] = most
            return
        (rows, columns) = (int(text.split(f"{n} = ")[1].split(";")[0]) for n in ("ROW_BLOCKS", "TILE_N"))
        rows *= 128
        M, N = len(X[0]), len(Y[0])
        grid = -(-M // (2 * rows)) * 2, -(-N // columns)
        tiles = np.full((len(C), grid[0] * rows, grid[1] * columns), 0x5A, np.uint8)
        for i in range(len(C)):
            tiles[i, :M, :N] = C[i] % ALL[i // int(product["terms"])]
        # row: tile, warpgroup, block, warp, g, lane / 4; column: tile, chunk, j, lane % 4, n
        parts = tiles.reshape(len(C), grid[0], 2, rows // 128, 4, 2, 8, grid[1], columns // 32, 4, 4, 2)
        out = np.ascontiguousarray(parts.transpose(TILED)).reshape(-1)
        view(self.place(product["residues"]), out.shape, (1,), np.uint8)[...] = out

    def rows(self, m):
        X = view(self.place(m.pointer), (math.prod(m.shape),), (1,), np.uint8).reshape(m.shape)
        return X.transpose(0, 2, 1, 3).reshape(m.shape[0], m.shape[2], -1).astype(np.int64)


def computed(work, A, B, C=None, alpha=1.0, beta=0.0, **options):
    call = call_of(A, B, C, alpha, beta, **options)
    D = np.full(call.result_shape, np.nan, call.scheme.operand.dtype)
    D = D if call.form is None else D.view(complex_dtype(call.scheme.operand))
    held = {"A": matrix(A), "B": matrix(B), "C": None if call.C is None else matrix(C), "D": matrix(D)}
    memory, layouts = Memory(), matrices.layouts(*held.values())
    steps = hopper.steps(call, layouts, memory)
    assert len({id(step.module) for step in steps}) <= 4
    runner = Runner(work.queue, held, memory)
    for step in steps:
        runner.run(step)
    return D, [step.kernel for step in steps]


def wide(rng, shape, phi=1.0):
    return (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))


def hostile(kind, rng, shape):
    X = rng.standard_normal(shape)
    if kind == "tiny":
        return X * np.exp2(rng.integers(-1074, -1030, shape).astype(float))
    if kind == "huge":
        return X * np.exp2(rng.integers(900, 1022, shape).astype(float))
    if kind == "far apart":
        return X * np.exp2(rng.integers(-500, 500, shape).astype(float))
    if kind == "special":
        X.flat[rng.integers(0, X.size, 3)] = np.nan, np.inf, -np.inf
    if kind == "alone":  # the largest entries of A meet zeros of B, so that accurate scaling makes them too large
        X[:, 7] = 2.0**40 if shape[1] > shape[0] else X[:, 7]
        X[7] = 0 if shape[1] < shape[0] else X[7]
    return np.zeros(shape) if kind == "zeros" else X


BOTH = pytest.mark.parametrize("scaling", ["accurate", "invariant"])
CASES = {
    "truncated": {},
    "nearest": {"rounding": "nearest"},
    "few moduli": {"moduli": 8, "rounding": "nearest"},
    "three words": {"moduli": 20},
    "alpha and beta": {"alpha": -1.5, "beta": 0.75},
    "infinite alpha": {"alpha": math.inf, "beta": 1.0},
    "winograd": {"winograd": True},
    "winograd, nearest, alpha and beta": {"winograd": True, "rounding": "nearest", "alpha": -1.5, "beta": 0.75},
    "winograd, few moduli": {"winograd": True, "moduli": 6},
    "fp32": {"precision": "fp32"},
    "fp32, alpha and beta": {"precision": "fp32", "alpha": 0.75, "beta": 2.0, "rounding": "nearest"},
}


def agree(work, A, B, C=None, alpha=1.0, beta=0.0, **options):
    D, kernels = computed(work, A, B, C, alpha, beta, **options)
    want = fpemu.gemm(A, B, C, scheme="ozaki2", hardware="H200", alpha=alpha, beta=beta, **options)
    codes = np.uint32 if D.dtype in (np.float32, np.complex64) else np.uint64
    assert np.array_equal(D.view(codes), want.view(codes)), np.argwhere(want != D)[:5]
    return kernels


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_bits_equal_the_emulators(work, scaling, case):
    rng, options = np.random.default_rng(1), CASES[case]
    dtype = np.float32 if "precision" in options else np.float64
    A, B, C = (wide(rng, shape).astype(dtype) for shape in ((37, 300), (300, 41), (37, 41)))
    A[3], B[:, 5], C[4, 4] = 0, 0, np.inf
    kernels = agree(work, A, B, C if "beta" in options else None, scaling=scaling, **options)
    assert len(kernels) == {"accurate": 6, "invariant": 4}[scaling]


def beside_the_limit(K):
    """Operands with sums of squares that fp64 does not decide: with integers rounded up, on both sides of the limit."""
    _, g = crt.scaled(crt.limit(crt.basis(6).product, K))
    rng, A, unit = np.random.default_rng(4), np.zeros((12, K)), 2**30
    others = rng.integers(1, unit // 16, 5)  # whose last bits differ by the powers of two
    ones, rest = int(g), int((Fraction(g) - int(g)) * unit**2) - sum(int(x) ** 2 for x in others)
    A[:, :ones], A[:, ones : ones + 5] = 1, others / unit
    A[:, -1] = [(math.isqrt(rest) + d + 2.0**-30) / unit for d in range(-6, 6)]
    B = rng.standard_normal((K, 8))
    B[:, :4] = A[4:8].T * np.exp2([0.0, 30.0, -300.0, 5.0])
    return A, B


@pytest.mark.parametrize("K", [10, 300])
def test_sums_of_squares_beside_the_limit_give_the_emulators_powers_of_two(work, K):
    A, B = beside_the_limit(K)
    mu, nu = crt.invariant(A, B, crt.basis(6).product)
    assert len(set(mu.flat)) == len({*(nu[0, :4] + np.array([0, 30, -300, 5]))}) == 2
    agree(work, A, B, scaling="invariant", moduli=6)


@BOTH
@pytest.mark.parametrize("kind", ["tiny", "huge", "far apart", "special", "alone", "zeros"])
def test_extreme_ranges_and_special_values_equal_the_emulators(work, scaling, kind):
    rng = np.random.default_rng(2)
    for options in ({}, {"rounding": "nearest"}, {"winograd": True}, {"winograd": True, "moduli": 20}):
        A, B = hostile(kind, rng, (9, 140)), hostile(kind, rng, (140, 10))
        agree(work, A, B, scaling=scaling, **options)


COMPLEX_CASES = {
    "plain": {},
    "nearest, real scalars": {"rounding": "nearest", "alpha": -1.5, "beta": 0.75},
    "complex scalars": {"alpha": 0.3 - 1.7j, "beta": 0.75 + 2j},
    "complex beta": {"alpha": 2.0, "beta": 0.75 + 2j},
    "infinite": {"alpha": complex(1, math.inf), "beta": 0.5},
    "few moduli": {"moduli": 6},
    "three words": {"moduli": 20, "rounding": "nearest"},
    "fp32": {"precision": "fp32", "alpha": 0.3 - 1.7j, "beta": 0.75},
}


def complex_numbers(rng, shape, kind=None):
    parts = (wide(rng, shape) if kind is None else hostile(kind, rng, shape) for _ in range(2))
    return np.stack([*parts], axis=-1).view(complex)[..., 0]


@BOTH
@pytest.mark.parametrize("case", COMPLEX_CASES)
def test_complex_products_equal_the_emulators(work, scaling, case):
    rng, options = np.random.default_rng(7), COMPLEX_CASES[case]
    A, B, C = (complex_numbers(rng, shape) for shape in ((37, 150), (150, 41), (37, 41)))
    A[3], B[:, 5], C[4, 4], A[:, :70] = 0, 0, np.inf, A[:, :70].real
    if "precision" in options:
        A, B, C = (X.astype(np.complex64) for X in (A, B, C))
    agree(work, A, B, C if "beta" in options else None, scaling=scaling, **options)


@BOTH
@pytest.mark.parametrize("kind", ["tiny", "huge", "far apart", "special", "alone", "zeros"])
def test_complex_extremes_and_layouts_equal_the_emulators(work, scaling, kind):
    rng = np.random.default_rng(8)
    A, B = complex_numbers(rng, (9, 140), kind), complex_numbers(rng, (140, 10), kind)
    agree(work, A, B, scaling=scaling)
    agree(work, A.T.copy().T, B.T.copy().T, scaling=scaling, rounding="nearest")
    with np.errstate(over="ignore"):
        agree(work, A[::2, ::-1], B.astype(np.complex64)[:, 1:8:2], scaling=scaling)
    agree(work, np.stack([A, A[::-1]])[:, :5], B, scaling=scaling)


@pytest.mark.parametrize("winograd", [False, True])
def test_layouts_batches_and_panels(work, monkeypatch, winograd):
    rng, options = np.random.default_rng(3), {"winograd": winograd}
    A, B = wide(rng, (2, 1, 20, 130)), wide(rng, (3, 130, 9))
    agree(work, A, B, **options)
    agree(work, np.swapaxes(np.swapaxes(A, -1, -2).copy(), -1, -2), B[:, ::-1, ::2], **options)
    agree(work, np.array([[0.1]]), np.array([[3.0]]), **options)
    assert hopper.Planes((3 << 22, 1, 1), hopper.REAL, 3, Memory()).rows == 3 << 20
    monkeypatch.setattr(hopper, "WORKSPACE", 1)
    kernels = agree(work, wide(rng, (600, 130)), wide(rng, (130, 800)), **options)
    assert kernels.count("residue_bytes") == 4


CR_CASES = {"plain": {}, "a power of two": {"alpha": 0.25}, "alpha": {"alpha": -1.5}, "C": {"beta": 0.75, "alpha": 2.0}}


def exactly(work, A, B, C=None, alpha=1.0, beta=0.0, **options):
    """Compare mode CR with the emulator; return the moduli and words."""
    call = validate(A, B, C, "ozaki", "H200", alpha, beta, "raise", None, "cpu", {"mode": "CR"} | options, form="4M")
    D = np.full(call.result_shape, np.nan, call.scheme.operand.dtype)
    D = D if call.form is None else D.view(complex_dtype(call.scheme.operand))
    held = {"A": matrix(A), "B": matrix(B), "C": None if call.C is None else matrix(C), "D": matrix(D)}
    layouts, memory = matrices.layouts(*held.values()), Memory()
    memory.nbytes = {"work": 1 << 24, "cleared": 16}
    runner = Runner(work.queue, held, memory)
    steps, place = hopper.extents(call, layouts, Memory())
    for step in steps:
        runner.run(step)
    key = hopper.moduli_and_words(call, view(runner.place(place), (4,), (1,), np.int32).tolist())
    if key is not None:
        for step in hopper.exact(call, layouts, Memory(), *key):
            runner.run(step)
        want = fpemu.gemm(A, B, C, scheme="ozaki", hardware="H200", mode="CR", alpha=alpha, beta=beta, **options)
        codes = np.uint32 if D.dtype in (np.float32, np.complex64) else np.uint64
        assert np.array_equal(D.view(codes), want.view(codes)), np.argwhere(want != D)[:5]
    return key


@pytest.mark.parametrize("case", CR_CASES)
@pytest.mark.parametrize("spread", [0, 6, 40])
def test_exact_products_rounded_once_equal_the_emulators(work, case, spread):
    """Integers of 3 and 4 words, more than 16 moduli, and at last too long ones."""
    rng, options = np.random.default_rng(9), CR_CASES[case]
    A, B, C = (rng.standard_normal(shape) for shape in ((23, 140), (140, 17), (23, 17)))
    A, B = (np.ldexp(X, rng.integers(-spread, spread + 1, X.shape)) for X in (A, B))
    A[3], B[:, 5], A[4, 4], C[1, 1], B[7, 2] = 0, 0, np.nan, np.inf, 2.0**-1074 if spread == 40 else 1.0
    key = exactly(work, A, B, C if "beta" in options else None, **options)
    assert (key and key[1]) == {0: 3, 6: 3, 40: None}[spread]


def test_exact_products_of_batches_layouts_complex_and_fp32_numbers_equal_the_emulators(work):
    rng = np.random.default_rng(10)
    A, B = wide(rng, (2, 1, 20, 130)), np.ldexp(rng.integers(-99, 99, (3, 130, 9)), -600).astype(float)
    assert exactly(work, np.swapaxes(np.swapaxes(A, -1, -2).copy(), -1, -2), B[:, ::-1, ::2])[1] == 3
    assert exactly(work, np.float32(A), np.float32(np.ldexp(B, 600)), precision="fp32")[1] == 2
    exactly(work, np.ldexp(A, -1040), B)
    Z, W = complex_numbers(rng, (20, 70)), complex_numbers(rng, (70, 9))
    exactly(work, Z, W)
    exactly(work, Z.conj(), W, complex_numbers(rng, (20, 9)), alpha=0.3, beta=-1.5)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_sums_beside_ties_and_small_ones_are_rounded_once(work, precision):
    top, half = (110, 57) if precision == "fp64" else (90, 66)
    rows = [(sign * 2.0**top, last * 2.0**half, d, 0) for sign in (1, -1) for last in (1, -1, 3) for d in (-1, 0, 1)]
    rows += [(2.0**top, -(2.0**top), d, e) for d in (0, 5, 2.0**60, -(2.0**70)) for e in (0, -1, 2.0**7)]
    A = np.array(rows, np.float32 if precision == "fp32" else np.float64)
    assert exactly(work, A, np.ones((4, 3), A.dtype), precision=precision)[1] > 2


ROUNDED = r"""
extern "C" void rounded(const unsigned* v, int n, int exponent, u64* codes, unsigned char* decided) {
  for (int i = 0; i < n; i++) {
    Total t;
    for (int g = 0; g < GROUPS; g++) t.add(v[i * GROUPS + g], v[i * GROUPS + g], g);
    decided[i] = t.round(exponent, codes[i]);
  }
}
"""


def nearest(C, bits):
    """The integer with so many bits that is nearest to C, ties to even."""
    low = max(0, abs(C).bit_length() - bits)
    size, rest = divmod(abs(C), 1 << low)
    size += 2 * rest > 1 << low or (2 * rest == 1 << low and size % 2)
    return (size << low) * (1 if C > 0 else -1)


@pytest.mark.parametrize("count", [9, 15, 20, 23, 48])
@pytest.mark.parametrize("fmt", ["fp32", "fp64"])
def test_exact_sums_beside_ties_are_decided_right_and_others_nearly_always(tmp_path, count, fmt):
    """Numbers from P / 2 to 2^-110 P, half of them beside a tie of two results, and their four or five partial sums."""
    rng, P = np.random.default_rng(count), math.prod(ALL[:count])
    groups = [math.prod(ALL[i : min(i + 3, count)]) for i in range(0, count, 3)]
    bits, numbers = (24 if fmt == "fp32" else 53), []
    for n in range(4000):
        C = (
            int.from_bytes(rng.bytes(50), "little")
            % max(2, P >> int(rng.integers(2, 110) if n % 2 else min(42, 2 * count)))
            + 1
        )
        low = C.bit_length() - bits
        if n % 2 and low > 1:
            C = (C >> low << low) + (1 << (low - 1)) + int(rng.choice([-2, -1, 0, 1, 2])) * 2 ** max(0, low - 40)
        numbers.append(C * int(rng.choice([-1, 1])))
    inverses = [pow(P // G, -1, G) for G in groups]
    v = np.array(
        [[C * i % G + G * (n % 11) for i, G in zip(inverses, groups, strict=True)] for n, C in enumerate(numbers)]
    )
    text = hopper.sum_source(count, hopper.TILES[0], fmt == "fp32", once=True, plain=True) + ROUNDED
    codes, decided, exponent = np.zeros(4000, np.uint64), np.zeros(4000, np.uint8), 20 - P.bit_length()
    given = (x.ctypes.data_as(ctypes.c_void_p) for x in (v.astype(np.uint32), codes, decided))
    rounded, first = simulated.compiled(text, tmp_path, "-O1").rounded, next(given)
    rounded(first, 4000, exponent, *given)
    got = codes.astype(np.uint32).view(np.float32) if fmt == "fp32" else codes.view(np.float64)
    want = [float(Fraction(nearest(C, bits)) * Fraction(2) ** exponent) for C in numbers]
    right = got.astype(np.float64) == want
    assert right[decided == 1].all()
    assert decided[::2].mean() > 0.99


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_quotients_are_exact_for_all_sums_of_bytes(words):
    """v mod p for |v| up to the largest sum, from the rounding of one FMA, emulated exactly in fp64."""
    limit = 512 * 255 * words + 256
    v = np.arange(-limit, limit + 1)
    for p in ALL:
        start, inverse, center = hopper.quotient(p, limit)
        y = (start + v).astype(np.int64)
        exact = y.astype(np.int32).view(np.float32).astype(np.float64) * inverse + center  # 48 bits, and a rounding
        quotient = exact.astype(np.float32).view(np.int32).astype(np.int64)
        assert np.array_equal((y - (quotient * p if p < 256 else 0)) & 255, v % p), p


def test_fast_scaling_and_other_gpus_take_the_other_kernels(monkeypatch):
    A, B = np.ones((4, 8)), np.ones((8, 4))
    monkeypatch.setattr(device, "arch", lambda: "sm_90a")
    assert hopper.supported(call_of(A, B))
    assert not hopper.supported(call_of(A, B, scaling="fast"))
    assert not hopper.supported(call_of(A, B, moduli=2))
    monkeypatch.setattr(device, "arch", lambda: "sm_80")
    assert not hopper.supported(call_of(A, B))


def test_rounding_to_nearest_is_refused_by_the_other_kernels(work):
    chosen = build("ozaki2", {"rounding": "nearest"})
    A, B, D = (matrix(np.ones((2, 2))) for _ in range(3))
    with pytest.raises(InputError, match=r"^ozaki2: rounding='nearest'.* CPU and on Hopper"):
        errorfree.gemm(A, B, D, chosen, chosen.spec("A100"), work=work)


# --- the product of bytes
BYTES = """
template <int N> static void hold(int (&)[N]) {}
static void byte_product(int (&d)[Config::TILE_N / 2], u64 a, u64 b, int keep) {
  auto byte = [](u64 tile, int row, int k) {
    u64 at = (tile << 4) + row * 128 + k;
    return (u32)(int)*(BYTE*)(at ^ (at >> 7 & 7) << 4);
  };
  const int warp = threadIdx.x / 32 % 4, r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  for (int g = 0; g < 2; g++)
    for (int j = 0; j < Config::TILE_N / 8; j++)
      for (int n = 0; n < 2; n++) {
        u32 sum = keep ? (u32)d[4 * j + 2 * g + n] : 0;
        for (int k = 0; k < 32; k++) sum += byte(a, 16 * warp + r + 8 * g, k) * byte(b, 8 * j + 2 * c + n, k);
        d[4 * j + 2 * g + n] = (int)sum;
      }
}
"""
PRODUCT_LAUNCH = (
    LAUNCH.replace("static Nonfinite none_;", "static const void *second_;")
    .replace("hopper_gemm(*(const Maps*)maps_, *(const Task*)task_, none_)", "byte_gemm(MAPS[0], MAPS[1], PRODUCT)")
    .replace("MAPS", "((const TensorMap*)maps_)")
    .replace("PRODUCT", "*(const ByteProduct*)task_")
)


def compiled(folder, text):
    """kernels/byte_gemm.cu on this processor, as a function of its maps, its structure and its thread blocks."""
    config, _, rest = text.partition('#include "hopper.cuh"')
    table = rest[rest.index("__constant__") : rest.index("FPEMU_FUNCTION void byte_product")]
    kernel = rest[rest.index("// Products of matrices of bytes") :]
    kernel = kernel.replace('#include "pipeline.cuh"', (KERNELS / "pipeline.cuh").read_text()).replace(
        'extern "C" ', ""
    )
    kernel = re.sub(r"#pragma once", "", kernel).replace("extern __shared__ u8 memory[];", "u8* memory = dynamic_();")
    kernel = kernel.replace("__shared__ u64 barriers[2 * STAGES];", "u64* barriers = array<u64>(0);")
    product = BYTES.replace("BYTE*", "signed char*" if ".s32.s8.s8 " in rest else "u8*")
    text = "\n".join(
        [config, '#include "hopper_gemm_on_cpu.h"', '#include "byte_residues.cuh"', table, product, kernel]
    )
    flags = ("-O2", "-w", "-march=native")
    return simulated.compiled(text + PRODUCT_LAUNCH, folder, *flags).launch


@pytest.mark.slow
@pytest.mark.skipif(specification.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("what", ["tall", "wide", "lag", "one chunk", "long", "maxima", "wide maxima", "sums"])
def test_tiles_of_bytes_hold_residues_and_maxima(tmp_path, what):
    moduli = () if "maxima" in what else ALL[:2]
    tile = Tile(64, 2, rows=128) if "wide" in what else Tile(64, 2, rows=256)
    M, N, K, count = 300, 100, 100 if what == "one chunk" else 700, len(moduli) or 1
    options = {name: what == name for name in ("lag", "long")}
    output = next((name for name in ("maxima", "sums") if name in what), "residues")
    text = hopper.gemm_source(tile, output, **options)
    launch = compiled(tmp_path, text.replace("INTERVAL = 512", "INTERVAL = 2"))
    rng, chunks = np.random.default_rng(5), -(-K // 128)
    words = [rng.integers(0, 65 if output == "maxima" else 256, (count, n, K), np.uint8) for n in (M, N)]
    words = [x.view(np.int8) if what == "sums" else x for x in words]
    held = [np.zeros((count, chunks, n, 128), words[0].dtype) for n in (M, N)]
    maps = aligned((2, 16), np.uint64)
    for i, (x, h, box) in enumerate(zip(words, held, (tile.rows, tile.columns // 2), strict=True)):
        padded = np.pad(x, ((0, 0), (0, 0), (0, chunks * 128 - K)))
        h[...] = padded.reshape(*x.shape[:2], chunks, 128).transpose(0, 2, 1, 3)
        maps[i, :4] = h.ctypes.data, x.shape[1], chunks, box
    C = np.stack([x.astype(np.int64) @ y.T.astype(np.int64) for x, y in zip(*words, strict=True)])
    shape = (count, 2 * tile.count(M, 1) * tile.rows, -(-N // tile.columns) * tile.columns)
    out, maxima = np.full(shape, 0x5A, np.uint8), [np.zeros(n, np.int32) for n in (M, N)]
    values: dict = {
        "residues": out.ctypes.data,
        "M": M,
        "N": N,
        "chunks": chunks,
        "group": 8,
        "planes": count,
        "terms": 1,
    }
    values |= {n: m.ctypes.data for n, m in zip(("row_maxima", "column_maxima"), maxima, strict=True)}
    pairs = [(1, 0, 1), (0, 0, 2), (0, 1, 1)]
    sums, (a, b, length) = np.zeros((3, M, N + 4), np.int32), zip(*pairs, strict=True)
    if what == "sums":
        values |= {"sums": sums.ctypes.data, "stride": sums[0].size, "pitch": N + 4, "planes": 3}
        values |= {"a": a, "b": b, "length": length}
    data = Struct(hopper.PRODUCT, values).pack()[0]
    assert launch(ctypes.c_void_p(maps.ctypes.data), ctypes.c_char_p(data), 4) == 0, "threads wait for each other"
    if output == "maxima":
        assert [m.tolist() for m in maxima] == [C[0].max(axis=1).tolist(), C[0].max(axis=0).tolist()]
        return
    if what == "sums":
        products = np.einsum("imk,jnk->ijmn", *(x.astype(np.int64) for x in words))
        want = [sum(products[a + i, b + i] for i in range(length)) for a, b, length in pairs]
        assert np.array_equal(sums[..., :N], want)
        assert not sums[..., N:].any()
        return
    got = untiled(out, tile)
    for i, p in enumerate(moduli):
        assert np.array_equal(got[i, :M, :N], C[i] % p)


@pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
def test_the_kernels_compile_for_hopper():
    scheme, few, tile = build("ozaki2", {}), build("ozaki2", {"moduli": 6}), hopper.TILES[0]
    # few moduli for these forms, because the compiler unrolls the loop over them; real operands have all
    sources = [hopper.operands_source(few, form) for form in (hopper.COMPLEX, hopper.WINOGRAD)]
    sources += [hopper.gemm_source(tile, kind) for kind in ("maxima", "sums")]
    sources += [hopper.gemm_source(hopper.TILES[1], "maxima"), hopper.operands_source(scheme)]
    sources += [hopper.gemm_source(tile, lag=True)]
    sources += [hopper.gemm_source(hopper.TILES[1]), hopper.gemm_source(tile, long=True), hopper.exact_source(20, 3)]
    sources += [hopper.sum_source(20, tile, False, once=True, plain=plain) for plain in (False, True)]
    sources += [hopper.sum_source(15, tile, False, hopper.WINOGRAD)]
    assert all(compiler.cubin(source, "sm_90a")[:4] == b"\x7fELF" for source in sources)


# --- a GPU
@pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))
@BOTH
@pytest.mark.parametrize("shape", [(1, 1, 1), (300, 500, 127), (520, 328, 1000), (129, 1000, 257)])
def test_the_gpus_bits_equal_the_cpus(scaling, shape):
    M, N, K = shape
    rng, options = np.random.default_rng(6), {"scheme": "ozaki2", "scaling": scaling}
    A, B, C = wide(rng, (M, K)), wide(rng, (K, N)), wide(rng, (M, N))
    for rounding in ("truncate", "nearest") if device.arch() == "sm_90a" else ("truncate",):
        got = fpemu.gpu.gemm(A, B, C, beta=0.5, rounding=rounding, **options)
        want = fpemu.gemm(A, B, C, beta=0.5, rounding=rounding, hardware="H200", **options)
        assert np.array_equal(got.view(np.uint64), want.view(np.uint64))


@pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))
@pytest.mark.parametrize("kind", ["tiny", "huge", "far apart", "zeros", "beside the limit"])
def test_the_gpus_bits_of_extreme_sums_of_squares_equal_the_cpus(kind):
    rng, options = np.random.default_rng(11), {"scheme": "ozaki2", "scaling": "invariant", "moduli": 6}
    A, B = (
        (hostile(kind, rng, (300, 270)), hostile(kind, rng, (270, 70)))
        if " the " not in kind
        else beside_the_limit(300)
    )
    for X, Y in ((A, B), (A.T.copy().T, B.T.copy().T)):
        got = fpemu.gpu.gemm(X, Y, **options)
        want = fpemu.gemm(X, Y, hardware="H200", **options)
        assert np.array_equal(got.view(np.uint64), want.view(np.uint64))


@pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))
@pytest.mark.parametrize("kind", [None, "far apart", "special"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"winograd": True},
        {"scheme": "ozaki", "mode": "CR"},
        {"scheme": "ozaki", "words": "int8"},
        {"scheme": "ozimmu"},
    ],
    ids=str,
)
def test_the_gpus_bits_of_real_and_complex_products_equal_the_cpus(options, kind):
    rng, options = np.random.default_rng(11), {"scheme": "ozaki2"} | options
    M, N, K = (61, 30, 57) if (options["scheme"], kind) == ("ozimmu", "far apart") else (301, 130, 257)  # 152 slices
    Z, W = complex_numbers(rng, (M, K), kind), complex_numbers(rng, (K, N), kind)
    for A, B in ((Z.real, W.imag), (Z, W), (Z.T.copy().T, W.real)):
        got, want = fpemu.gpu.gemm(A, B, **options), fpemu.gemm(A, B, hardware="H200", **options)
        assert np.array_equal(got.view(np.uint64), want.view(np.uint64))
