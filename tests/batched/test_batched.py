"""Batched half and half-complex products, and complex products by schemes.

The first are compared with a scalar oracle that follows the paper and does not import fpemu, the others with exact
fractions.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fpemu import batched, mma, schemes
from fpemu.batched import arguments
from fpemu.errors import InputError
from fpemu.mma import KOrder
from tests import hostile, oracle
from tests.hostile import bits, carrier, integers
from tests.oracle.blocks import converted
from tests.oracle.order import chain
from tests.oracle.ozaki import exact

F16, F32 = oracle.FORMATS["fp16"], oracle.FORMATS["fp32"]
FORMATS = {"fp16": F16, "fp32": F32}
ROWS = [
    ("volta", "mma", 4),
    ("turing", "mma", 8),
    ("ampere", "mma", 16),
    ("hopper", "mma", 16),
    ("hopper", "wgmma", 16),
    ("cdna2", "mfma", 16),
    ("cdna3", "mfma", 16),
    ("ascend910a", "cube", 16),
    ("ideal", "ideal", 16),
]
UNITS = [
    (*row, fmt) for row in ROWS for fmt in ("fp32", "fp16") if (row[0], row[1], "fp16", fmt, row[2]) in oracle.TABLE
]
SMALL = [("magma-small", None, 1, fmt) for fmt in ("fp32", "fp16")]


# --- the oracle: one element, from codes to a code
class Unit:
    """What adds up an element: an instruction, or a chain of fused multiply-adds."""

    def __init__(self, hardware, instruction, k, fmt):
        self.small, self.name, self.fmt = hardware == "magma-small", fmt, FORMATS[fmt]
        self.instruction = (
            oracle.fma_chain(fmt, 1) if self.small else oracle.TABLE[hardware, instruction, "fp16", fmt, k]
        )
        self.arguments = {"accumulate": fmt} | (
            {"kernel": "magma-small"} if self.small else {"hardware": hardware, "instruction": instruction}
        )

    def dot(self, a, b, pieces=None):
        if self.small:
            a, b = ([converted(x, F16, self.fmt) for x in codes] for codes in (a, b))
        return chain(self.instruction, a, b, 0, pieces)

    def times(self, x, y):
        minus_zero = oracle.decode(1 << (self.fmt.width - 1), self.fmt)
        return oracle.fma(oracle.decode(x, self.fmt), oracle.decode(y, self.fmt), minus_zero, self.fmt)

    def plus(self, x, y):
        return oracle.add(x, y, self.fmt)

    def minus(self, x, y):
        return oracle.add(x, y ^ 1 << (self.fmt.width - 1), self.fmt)

    def wide(self, code):
        return converted(code, F16, self.fmt)

    def half(self, code):
        return converted(code, self.fmt, F16)

    def number(self, x):
        """A Python float rounded to the sums' format, as a code."""
        exact = Fraction(x)
        unit = 1 - exact.denominator.bit_length()
        return oracle.codes.to_format(exact.numerator, unit, self.fmt, "RNE", int(np.signbit(x)))


def scaled(u, t, c, alpha, beta):
    t = u.times(u.number(alpha), t)
    return u.half(t if beta == 0 else u.plus(t, u.times(u.number(beta), u.wide(c))))


def negative(codes):
    return [x ^ 0x8000 for x in codes]


def turns(x, y, step):
    """x and y by turns, `step` of each, and how long the turns are."""
    out, pieces = [], []
    for start in range(0, len(x), step):
        for part in (x, y):
            out += part[start : start + step]
            pieces.append(len(part[start : start + step]))
    return out, pieces


def fused(u, ar, ai, br, bi):
    step = 1 if u.small else 16
    found = []
    for second, (p, q) in ((negative(ai), (br, bi)), (ai, (bi, br))):
        a, pieces = turns(ar, second, step)
        found.append(u.dot(a, turns(p, q, step)[0], pieces))
    return found


def three(u, ar, ai, br, bi):
    sums = [[oracle.add(x, y, F16) for x, y in zip(*pair, strict=True)] for pair in ((ar, ai), (br, bi))]
    t1, t2, t3 = u.dot(ar, br), u.dot(ai, bi), u.dot(*sums)
    return [u.minus(t1, t2), u.minus(u.minus(t3, t1), t2)]


def calls(u, ar, ai, br, bi, cr, ci, alpha, beta):
    real = scaled(u, u.dot(ai, bi), scaled(u, u.dot(ar, br), cr, alpha, beta), -alpha, 1.0)
    return [real, scaled(u, u.dot(ai, br), scaled(u, u.dot(ar, bi), ci, alpha, beta), alpha, 1.0)]


def assert_codes(got, want, unit, what):
    """Bits, but the sign of zero and the NaN where the table leaves them open."""
    got, want = bits(got).ravel(), np.array(want, np.uint16)
    same = got == want
    if not unit.instruction.zero_sign:
        same |= (got | want | 0x8000) == 0x8000
    if unit.instruction.nan_code is None and not unit.small:
        same |= np.isnan(carrier(got, "fp16")) & np.isnan(carrier(want, "fp16"))
    wrong = np.flatnonzero(~same)
    shown = [(int(i), hex(int(got[i])), hex(int(want[i]))) for i in wrong[:3]]
    assert not len(wrong), f"{what}: {len(wrong)} of {len(want)} differ {shown}"


def dots(kind, count, k, seed=0):
    """Codes of `count` dot products: rows of A, columns of B."""
    A, B, _ = hostile.operands("fp16", "fp16", "fp16", kind, seed, count, k)
    return A, B


def halves(kind, count, seed):
    return hostile.draw("fp16", kind, np.random.default_rng(seed), (count,))


def as_batch(A, B):
    """Each dot product a batch entry of 1×k times k×1."""
    return carrier(A, "fp16")[:, None, :], carrier(B, "fp16")[:, :, None]


# --- HGEMM
@pytest.mark.parametrize("row", [*UNITS, *SMALL], ids=str)
def test_hgemm_is_the_chain_of_its_instruction_and_the_post_processing(row):
    unit = Unit(*row)
    for seed, kind in enumerate(hostile.CLASSES):
        k, alpha, beta = ((5, 1.0, 0.0), (21, -1.5, 0.0), (37, 0.3, 1.0), (18, 1.0, -0.7))[seed % 4]
        A, B = dots(kind, 4, k, seed)
        C = halves(kind, 4, seed)
        a, b = as_batch(A, B)
        D = batched.hgemm(a, b, carrier(C, "fp16")[:, None, None], alpha=alpha, beta=beta, **unit.arguments)
        want = [
            scaled(unit, unit.dot(integers(x), integers(y)), int(c), alpha, beta)
            for x, y, c in zip(A, B, C, strict=True)
        ]
        assert D.dtype == np.float16
        assert_codes(D, want, unit, f"{row} {kind}")


def test_a_batch_is_its_products_whatever_the_strides_and_transposes():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((2, 3, 7, 38)).astype(np.float16)[..., ::2]
    B = rng.standard_normal((3, 19, 5)).astype(np.float16)
    C = rng.standard_normal((7, 5)).astype(np.float16)
    options = {"alpha": 0.7, "beta": 2.0, "hardware": "A100"}
    D = batched.hgemm(A, B, C, **options)
    assert D.shape == (2, 3, 7, 5)
    for i in range(2):
        for j in range(3):
            one = batched.hgemm(A[i, j].copy(), B[j], C, **options)
            assert (bits(D[i, j]) == bits(one)).all()
    turned = batched.hgemm(A.swapaxes(-1, -2), B.swapaxes(-1, -2), C, transa="T", transb="c", **options)
    assert (bits(turned) == bits(D)).all()


def test_c_is_not_read_where_beta_is_zero_and_a_zero_alpha_is_no_special_case():
    A, B = np.float16([[np.inf, 1]]), np.float16([[1], [1]])
    assert batched.hgemm(A, B, [[np.nan]], hardware="V100").item() == np.inf
    assert np.isnan(batched.hgemm(A, B, [[1.0]], alpha=0, beta=1, hardware="V100").item())
    assert batched.hgemm([[1.0]], [[1.0]], [[4.0]], alpha=0, beta=0.5, hardware="V100").item() == 2


def test_alpha_times_the_product_is_rounded_before_c_is_added():
    """A fused multiply-add would keep what is left: (1 + 2^-10)^2 - (1 + 2^-9) = 2^-20."""
    x = 1 + 2.0**-10
    options = {"alpha": x, "beta": -1.0, "accumulate": "fp16", "hardware": "V100"}
    assert batched.hgemm([[x]], [[1.0]], [[1 + 2.0**-9]], **options).item() == 0
    assert batched.hgemm([[x]], [[1.0]], [[1 + 2.0**-9]], **options | {"accumulate": "fp32"}).item() == 2.0**-20


def test_every_nan_is_that_of_the_hardware():
    A = np.float16([[np.nan]])
    for hardware, code in (("V100", 0x7FFF), ("H200", 0x7FFF), ("MI210", 0x7E00)):
        assert bits(batched.hgemm(A, A, hardware=hardware)).item() == code
        assert (
            bits(batched.hcgemm(A[..., None].repeat(2, -1), A[..., None].repeat(2, -1), hardware=hardware)) == code
        ).all()
    assert bits(batched.hgemm(A, A, kernel="magma-small", accumulate="fp16")).item() == 0x7FFF


def test_the_interface_of_the_paper_compiles_to_mma_where_the_hardware_has_it():
    assert batched.real.arguments.arithmetic("tensor", "fp32", "hopper", None).spec == mma.spec(
        "hopper", instruction="mma"
    )
    assert batched.real.arguments.arithmetic("tensor", "fp32", "cdna3", None).spec == mma.spec("cdna3")


def test_tiny_products_that_share_an_instruction_are_the_same_chains():
    codes = hostile.draw("fp16", "any-bits", np.random.default_rng(2), (2, 25, 4, 4, 4))
    A, B = carrier(codes, "fp16")
    for d in ("fp32", "fp16"):
        spec = mma.spec("ampere", "fp16", d)
        stacked = np.zeros((25, 16, 16), np.float16), np.zeros((25, 16, 16), np.float16)
        stacked[0][..., :4], stacked[1][:, :4] = A.reshape(25, 16, 4), B.swapaxes(1, 2).reshape(25, 4, 16)
        whole = mma.execute(*stacked, None, spec).reshape(25, 4, 4, 4, 4)
        blocks = np.stack([whole[:, i, :, i] for i in range(4)], axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            assert (bits(batched.hgemm(A, B, accumulate=d, hardware="ampere")) == bits(blocks.astype(np.float16))).all()


@pytest.mark.parametrize("row", UNITS, ids=str)
def test_blocks_of_any_length_padded_with_zeros_are_the_same_chain(row):
    unit = Unit(*row)
    for seed, kind in enumerate(hostile.CLASSES):
        a, b = as_batch(*dots(kind, 12, 21, seed))
        padded = np.pad(a, [(0, 0), (0, 0), (0, 43)]), np.pad(b, [(0, 0), (0, 43), (0, 0)])
        z = [np.stack([x, x[::-1]], -1) for x in (a, b, *padded)]
        for multiply, pairs in ((batched.hgemm, ((a, b), padded)), (batched.hcgemm, (z[:2], z[2:]))):
            one, two = (multiply(*pair, **unit.arguments) for pair in pairs)
            if row[0] == "ideal" and row[3] == "fp16":  # the one row whose sums can underflow to -0
                one, two = one + np.float16(0), two + np.float16(0)
            assert np.array_equal(bits(one), bits(two)), kind


def test_an_order_over_k_goes_to_the_instructions():
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((2, 4, 100)).astype(np.float16), rng.standard_normal((2, 100, 4)).astype(np.float16)
    order = KOrder(split=32)
    sums = mma.gemm(A, B, None, mma.spec("ampere"), order)
    assert (bits(batched.hgemm(A, B, hardware="ampere", order=order)) == bits(sums.astype(np.float16))).all()
    assert (bits(sums) != bits(mma.gemm(A, B, None, mma.spec("ampere")))).any()


# --- HCGEMM
def complex_dots(kind, count, k, seed):
    """Codes of the four operands of `count` complex dot products."""
    return (*dots(kind, count, k, seed), *dots(kind, count, k, seed + 1000))


def half_complex(real, imaginary, layout):
    return np.stack([real, imaginary], axis=-1 if layout == "interleaved" else 0)


def run(unit, codes, C=None, layout="interleaved", **options):
    """hcgemm on a batch of complex dot products; its parts."""
    ar, br, ai, bi = codes
    (xr, yr), (xi, yi) = as_batch(ar, br), as_batch(ai, bi)
    c = None if C is None else half_complex(*(carrier(x, "fp16")[:, None, None] for x in C), layout)
    A, B = half_complex(xr, xi, layout), half_complex(yr, yi, layout)
    D = batched.hcgemm(A, B, c, layout=layout, **unit.arguments, **options)
    return np.moveaxis(D, -1 if layout == "interleaved" else 0, 0)


@pytest.mark.parametrize("row", [*UNITS, *SMALL], ids=str)
def test_four_products_take_turns_in_the_order_of_the_paper(row):
    unit = Unit(*row)
    for seed, kind in enumerate(hostile.CLASSES):
        codes = complex_dots(kind, 2, (35, 16, 5)[seed % 3], seed)
        real, imaginary = run(unit, codes)
        each = [fused(unit, *map(integers, (ar, ai, br, bi))) for ar, br, ai, bi in zip(*codes, strict=True)]
        assert_codes(real, [unit.half(x) for x, _ in each], unit, f"{row} {kind} real")
        assert_codes(imaginary, [unit.half(y) for _, y in each], unit, f"{row} {kind} imaginary")


def test_alternating_products_differ_from_one_product_after_the_other():
    codes = complex_dots("near-one", 40, 64, 3)
    ar, br, ai, bi = (carrier(x, "fp16") for x in codes)
    spec = mma.spec("volta", "fp16", "fp16")
    pairs = [(ar[:, None], br[:, :, None]), (-ai[:, None], bi[:, :, None])]
    real = run(Unit("volta", "mma", 4, "fp16"), codes)[0]
    assert (bits(real) == bits(mma.chain(pairs, None, spec, step=16))).all()
    assert (bits(real) != bits(mma.chain(pairs, None, spec))).any()
    assert (bits(real) != bits(mma.chain(pairs[::-1], None, spec, step=16))).any()


@pytest.mark.parametrize("row", [("volta", "mma", 4, "fp16"), ("hopper", "mma", 16, "fp32"), *SMALL], ids=str)
def test_the_planar_layout_is_four_calls_that_round_between(row):
    unit = Unit(*row)
    for seed, kind in enumerate(hostile.CLASSES):
        alpha, beta = ((1.0, 0.0), (-0.3, 0.6))[seed % 2]
        codes, C = complex_dots(kind, 4, 19, seed), (halves(kind, 4, seed), halves(kind, 4, seed + 50))
        real, imaginary = run(unit, codes, C, "planar", alpha=alpha, beta=beta)
        each = [
            calls(unit, *map(integers, (ar, ai, br, bi)), int(cr), int(ci), alpha, beta)
            for ar, br, ai, bi, cr, ci in zip(*codes, *C, strict=True)
        ]
        assert_codes(real, [x for x, _ in each], unit, f"{row} {kind} real")
        assert_codes(imaginary, [y for _, y in each], unit, f"{row} {kind} imaginary")


@pytest.mark.parametrize("row", [("ampere", "mma", 16, "fp32"), ("ampere", "mma", 16, "fp16"), *SMALL], ids=str)
def test_three_products(row):
    unit = Unit(*row)
    for seed, kind in enumerate(hostile.CLASSES):
        codes = complex_dots(kind, 4, 19, seed)
        real, imaginary = run(unit, codes, layout=("planar", "interleaved")[seed % 2], products=3)
        each = [three(unit, *map(integers, (ar, ai, br, bi))) for ar, br, ai, bi in zip(*codes, strict=True)]
        assert_codes(real, [unit.half(x) for x, _ in each], unit, f"{row} {kind} real")
        assert_codes(imaginary, [unit.half(y) for _, y in each], unit, f"{row} {kind} imaginary")


@pytest.mark.parametrize(("alpha", "beta"), [(0.4 - 1.3j, 0.0), (1.0, 1j), (-0.7j, 0.2 + 0.1j), (2.0, -0.3)])
def test_complex_alpha_and_beta(alpha, beta):
    def product(u, x, y):
        if x.imag == 0:
            return [u.times(u.number(x.real), part) for part in y]
        re, im = u.number(x.real), u.number(x.imag)
        return [u.minus(u.times(re, y[0]), u.times(im, y[1])), u.plus(u.times(re, y[1]), u.times(im, y[0]))]

    for unit in (Unit("ampere", "mma", 16, "fp32"), Unit("ampere", "mma", 16, "fp16")):
        codes, C = complex_dots("near-one", 12, 19, 5), (halves("near-one", 12, 1), halves("near-one", 12, 2))
        D = run(unit, codes, C, alpha=alpha, beta=beta)
        want = []
        for ar, br, ai, bi, cr, ci in zip(*codes, *C, strict=True):
            t = product(unit, complex(alpha), fused(unit, *map(integers, (ar, ai, br, bi))))
            if beta != 0:
                c = product(unit, complex(beta), [unit.wide(int(cr)), unit.wide(int(ci))])
                t = [unit.plus(x, y) for x, y in zip(t, c, strict=True)]
            want.append([unit.half(x) for x in t])
        assert_codes(D, np.array(want).T.ravel(), unit, f"{alpha} {beta}")


def test_layouts_are_one_product_and_conjugation_is_exact():
    rng = np.random.default_rng(4)
    z = [rng.standard_normal((2, 3, *s)) + 1j * rng.standard_normal((2, 3, *s)) for s in ((4, 21), (21, 6), (4, 6))]
    options = {"alpha": 1 - 1j, "beta": 0.5j, "hardware": "turing"}
    one = batched.hcgemm(*map(batched.interleaved, z), **options)
    two = batched.hcgemm(*map(batched.planar, z), layout="planar", algorithm="fused", **options)
    assert one.shape == (2, 3, 4, 6, 2)
    assert two.shape == (2, 2, 3, 4, 6)
    assert (bits(one) == bits(np.moveaxis(two, 0, -1))).all()
    assert (batched.as_complex(one) == batched.as_complex(two, "planar")).all()
    turned = [np.conj(x).swapaxes(-1, -2) for x in z[:2]]
    three = batched.hcgemm(*map(batched.interleaved, (*turned, z[2])), transa="C", transb="C", **options)
    assert (bits(one) == bits(three)).all()
    plain = [x.swapaxes(-1, -2) for x in z[:2]]
    four = batched.hcgemm(*map(batched.interleaved, (*plain, z[2])), transa="T", transb="T", **options)
    assert (bits(one) == bits(four)).all()


def test_half_complex_holds_all_halves_and_rounds_others_once():
    codes = np.arange(2**16, dtype=np.uint16)
    x = codes.view(np.float16)
    x = x[~np.isnan(x)]
    z = np.empty(x.size, np.complex64)
    z.real, z.imag = x, x[::-1]
    for pack, layout in ((batched.interleaved, "interleaved"), (batched.planar, "planar")):
        back = batched.as_complex(pack(z), layout)
        assert (bits(back.real.copy()) == bits(z.real.copy())).all()
        assert (bits(back.imag.copy()) == bits(z.imag.copy())).all()
    assert batched.interleaved([2049 + 2051j, 1e-9]).tolist() == [[2048.0, 2052.0], [0.0, 0.0]]
    with pytest.raises(InputError, match=r"the imaginary part of z is beyond fp16's range, 65504.0: 1 of 2 entries"):
        batched.planar([1, 65520j])


@pytest.mark.parametrize("shape", [(0, 4, 5, 3), (2, 0, 5, 3), (2, 4, 0, 3), (2, 4, 5, 0)])
def test_empty_products(shape):
    batch, M, K, N = shape
    A, B, C = np.ones((batch, M, K), np.float16), np.ones((batch, K, N), np.float16), np.ones((batch, M, N), np.float16)
    for kernel in ("tensor", "magma-small"):
        D = batched.hgemm(A, B, C, beta=2, hardware="ampere", kernel=kernel)
        assert D.shape == (batch, M, N)
        assert np.array_equal(D, np.full_like(D, 7 if K else 2))
        for layout, pack in (("interleaved", batched.interleaved), ("planar", batched.planar)):
            Z = batched.hcgemm(pack(A), pack(B), pack(C), beta=2, hardware="ampere", kernel=kernel, layout=layout)
            assert (batched.as_complex(Z, layout) == D).all()
    assert batched.complex_gemm(A, B, scheme="sgemm").shape == (batch, M, N)


# --- complex products by schemes
def exact_complex(A, B):
    """The complex product in fractions, each part rounded once to double."""
    rr, ii, ri, ir = (exact(x, y) for x, y in ((A.real, B.real), (A.imag, B.imag), (A.real, B.imag), (A.imag, B.real)))
    real = [[float(x - y) for x, y in zip(p, q, strict=True)] for p, q in zip(rr, ii, strict=True)]
    imaginary = [[float(x + y) for x, y in zip(p, q, strict=True)] for p, q in zip(ri, ir, strict=True)]
    return np.array(real) + 1j * np.array(imaginary)


def complex_operands(M, N, K, seed, dtype=np.complex64, batch=()):
    rng = np.random.default_rng(seed)
    shapes = ((*batch, M, K), (*batch, K, N))
    return [(rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(dtype) for s in shapes]


@pytest.mark.parametrize("K", [1, 15, 16, 33])
def test_a_correctly_rounded_scheme_rounds_a_complex_product_once(K):
    """One real product for each part: not so with an addition outside."""
    A, B = complex_operands(4, 3, K, K, np.complex128)
    options = {"scheme": "ozaki", "hardware": "ampere", "mode": "CR"}
    exact = exact_complex(A, B)
    assert (batched.complex_gemm(A, B, **options) == exact).all()
    if K > 1:
        assert (batched.complex_gemm(A, B, algorithm="calls", **options) != exact).any()


def test_a_fused_complex_product_is_one_chain_over_both_kinds():
    A, B = complex_operands(3, 4, 37, 0, batch=(2,))
    for scheme, hardware in (("ootomo", "ampere"), ("bf16x9", "hopper"), ("sgemm", None)):
        D = batched.complex_gemm(A, B, scheme=scheme, hardware=hardware)
        K = 48  # padded
        x, y = np.zeros((2, 3, 2 * K), np.float32), np.zeros((2, 2 * K, 4), np.float32)
        for k in range(37):
            at = k // 16 * 32 + k % 16
            x[..., at], x[..., at + 16] = A.real[..., k], -A.imag[..., k]
            y[..., at, :], y[..., at + 16, :] = B.real[..., k, :], B.imag[..., k, :]
        want = schemes.gemm(x, y, scheme=scheme, hardware=hardware)
        assert (bits(D.real.copy()) == bits(want)).all()
        assert D.dtype == np.complex64


@pytest.mark.parametrize("products", [4, 3])
def test_products_of_a_scheme_joined_outside(products):
    A, B = complex_operands(3, 4, 20, 1)
    options = {"scheme": "markidis", "hardware": "volta"}
    r, i = ((x.real.copy(), x.imag.copy()) for x in (A, B)), None
    (ar, ai), (br, bi) = r
    t1, t2 = schemes.gemm(ar, br, **options), schemes.gemm(ai, bi, **options)
    if products == 4:
        i = schemes.gemm(ar, bi, **options) + schemes.gemm(ai, br, **options)
    else:
        i = (schemes.gemm(ar + ai, br + bi, **options) - t1) - t2
    D = batched.complex_gemm(A, B, products=products, algorithm="calls", **options)
    assert (bits(D.real.copy()) == bits(t1 - t2)).all()
    assert (bits(D.imag.copy()) == bits(i)).all()
    exact = exact_complex(A, B)
    assert abs(D - exact).max() < 1e-5 * abs(exact).max()


@pytest.mark.parametrize("algorithm", ["fused", "calls"])
def test_entries_out_of_a_scheme_s_range_are_refused(algorithm):
    A, B = complex_operands(2, 2, 3, 2)
    A[1, 2] = 1e9j
    where = "over both parts, 16 of k by turns" if algorithm == "fused" else "Ai Bi"
    with pytest.raises(InputError, match=f"^in the real product {where}: A: "):
        batched.complex_gemm(A, B, scheme="markidis", hardware="volta", algorithm=algorithm)
    D = batched.complex_gemm(A, B, scheme="markidis", hardware="volta", algorithm=algorithm, on_range="scale")
    assert np.isfinite(D).all()


def test_a_sum_of_parts_that_overflows_is_named():
    A = np.full((2, 2), 6e4 + 6e4j)
    with pytest.raises(InputError, match=r"^in the real product \(Ar \+ Ai\)\(Br \+ Bi\): A: .*120000"):
        batched.complex_gemm(A, np.eye(2), scheme="fp16", hardware="volta", products=3)
    assert np.isfinite(batched.complex_gemm(A, np.eye(2), scheme="fp16", hardware="volta")).all()


# --- arguments
ONE = np.ones((2, 2), np.float16)
PAIR = np.ones((2, 2, 2), np.float16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: batched.hgemm(ONE, ONE), r"runs on a matrix instruction: give hardware="),
        (lambda: batched.hgemm(ONE, ONE, hardware="amper"), r"unknown hardware 'amper': did you mean 'ampere'\?"),
        (lambda: batched.hgemm(ONE, ONE, hardware="MI210", accumulate="fp16"), r"cdna2 fp16 ->.* no results in fp16"),
        (lambda: batched.hgemm(ONE, ONE, hardware="V100", instruction="wgmma"), r"no instruction wgmma; it has mma"),
        (lambda: batched.hgemm(ONE, ONE, hardware="V100", accumulate="half"), r"unknown accumulate 'half'"),
        (lambda: batched.hgemm(ONE, ONE, hardware="V100", kernel="small"), r"unknown kernel 'small'.*magma-small"),
        (lambda: batched.hgemm(ONE, ONE, hardware="V100", transa="X"), r"unknown transa 'X'"),
        (lambda: batched.hgemm(ONE, ONE, kernel="magma-small", instruction="mma"), r"leave instruction= out"),
        (lambda: batched.hgemm(ONE, ONE, kernel="magma-small", hardware="V1000"), r"unknown hardware 'V1000'"),
        (lambda: batched.hgemm(ONE, ONE, hardware=mma.spec("ampere", "bf16", "fp32")), r"takes bf16, bf16 and fp32"),
        (lambda: batched.hgemm(ONE, ONE, hardware=mma.spec("ampere", "fp16", "fp16")), r"accumulate='fp32' multiplies"),
        (lambda: batched.hgemm(ONE * 1j, ONE, hardware="V100"), r"A has dtype complex64: half-complex .*interleaved"),
        (lambda: batched.hcgemm(PAIR, PAIR * 1j, hardware="V100"), r"B has dtype complex64: half-complex matrices are"),
        (lambda: batched.as_complex(PAIR * 1j), r"x has dtype complex64: half-complex matrices are float16"),
        (lambda: batched.hgemm(ONE[0], ONE, hardware="V100"), r"A has shape \(2,\): it needs two axes"),
        (lambda: batched.hgemm(ONE, np.ones((3, 2)), hardware="V100"), r"do not share K"),
        (
            lambda: batched.hgemm(ONE, np.ones((2, 3)), transb="T", hardware="V100"),
            r"A of shape \(2, 2\) and the transpose of B of shape \(3, 2\) do not share K",
        ),
        (lambda: batched.hgemm(PAIR, np.ones((3, 2, 2)), hardware="V100"), r"leading axes of A .* do not broadcast"),
        (lambda: batched.hgemm(ONE + 2.0**-12 * np.eye(2), ONE, hardware="V100"), r"A has entries .* 2 of 4 entries"),
        (lambda: batched.hgemm(ONE, ONE, beta=1, hardware="V100"), r"beta = 1.0 needs C, a matrix of shape \(2, 2\)"),
        (lambda: batched.hgemm(ONE, ONE, np.ones((3, 2)), beta=1, hardware="V100"), r"C of shape \(3, 2\) does"),
        (lambda: batched.hgemm(ONE, ONE, np.ones((2, 2, 2)), beta=1, hardware="V100"), r"C of shape .* does not fit"),
        (lambda: batched.hgemm(ONE, ONE, alpha=1j, hardware="V100"), r"alpha must be one real number"),
        (lambda: batched.hgemm(ONE, ONE, alpha=1e5, accumulate="fp16", hardware="V100"), r"beyond the largest fp16"),
        (lambda: batched.hcgemm(ONE[..., :1], PAIR, hardware="V100"), r"A of shape \(2, 1\) is not interleaved: its"),
        (lambda: batched.hcgemm(PAIR[:1], PAIR, layout="planar", hardware="V100"), r"is not planar: its first axis"),
        (lambda: batched.hcgemm(ONE, PAIR, hardware="V100"), r"A has shape \(2,\): it needs two axes"),
        (lambda: batched.hcgemm(PAIR, PAIR, layout="split", hardware="V100"), r"unknown layout 'split'"),
        (lambda: batched.hcgemm(PAIR, PAIR, products=2, hardware="V100"), r"products = 2 must be 4 or 3"),
        (lambda: batched.hcgemm(PAIR, PAIR, algorithm="karatsuba", hardware="V100"), r"unknown algorithm 'karatsuba'"),
        (lambda: batched.hcgemm(PAIR, PAIR, products=3, algorithm="calls", hardware="V100"), r"products=3 is"),
        (lambda: batched.hcgemm(PAIR, PAIR, layout="planar", alpha=1j, hardware="V100"), r"no imaginary part"),
        (lambda: batched.hcgemm(PAIR, PAIR, beta=1j, hardware="V100"), r"beta = 1j needs C"),
        (lambda: batched.hcgemm(PAIR, PAIR, PAIR[:1], beta=1j, hardware="V100"), r"C of shape \(1, 2\) does not fit"),
        (lambda: batched.hcgemm(PAIR, PAIR, alpha="1", hardware="V100"), r"alpha must be one real number"),
        (lambda: batched.as_complex(PAIR + np.float32(1e-4)), r"x has entries that are not values of fp16"),
        (lambda: batched.interleaved([[1], [1, 2]]), r"z is no array"),
        (lambda: batched.interleaved("1+j"), r"z takes real or complex numbers"),
        (lambda: batched.complex_gemm(ONE, ONE, scheme="otomo"), r"unknown scheme 'otomo'"),
        (lambda: batched.complex_gemm(ONE, ONE, scheme="sgemm", alpha=2), r"takes no alpha"),
        (lambda: batched.complex_gemm(ONE, np.ones((3, 2)), scheme="sgemm"), r"do not share K"),
        (lambda: batched.complex_gemm(ONE * 0.1j, [[0.1], [1]], scheme="sgemm"), r"B: not fp32 numbers"),
        (lambda: batched.complex_gemm(ONE, ONE, scheme="sgemm", products=5), r"products = 5 must be 4 or 3"),
        (lambda: batched.complex_gemm(ONE, ONE, scheme="ootomo", hardware="hoper"), r"^unknown hardware 'hoper'"),
        (lambda: batched.complex_gemm(ONE, ONE, scheme="ootomo"), r"^ootomo: runs on a matrix instruction"),
        (lambda: batched.complex_gemm([[2**53 + 1]], [[1]], scheme="dgemm"), r"integers that float64 cannot hold"),
        (lambda: batched.complex_gemm([[2**24 + 1]], [[1]], scheme="sgemm"), r"A: not fp32 numbers: 1 of 1 entry"),
    ],
)
def test_wrong_arguments_are_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_real_products_of_an_element_alternate_after_whole_instructions():
    spec = mma.spec("hopper", "fp16", instruction="mma")
    specs = [spec.replace(k=k, block=k) for k in (4, 8, 16, 24, 32)]
    assert [arguments.arithmetic("tensor", "fp32", one, None).step for one in specs] == [16, 16, 16, 48, 32]
